"""The seeds' flags: both commands as printed, what is refused, and that nothing is ever evaluated."""

import contextlib
import shlex
import string
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import widemargin as wm
from widemargin.io.errors import InputError
from widemargin.models.build import parse_model
from widemargin.reproduce.seed_flags import parse_gin, seed_loss_spec

TRANSFORM = {"scale": (0.8, 1.0), "mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616)}
FIRST = (
    """--gin "build_transform.scale=(0.8,1)" build_transform.mean="(0.4914, 0.4822, 0.4465)" """
    """build_transform.std="(0.2470, 0.2435, 0.2616)" build_model.patch_size=2 build_model.img_size=32  """
)
SECOND = (
    """--gin build_transform.scale=(0.8,1) "build_transform.mean=(0.4914, 0.4822, 0.4465)" """
    """"build_transform.std=(0.2470, 0.2435, 0.2616)" build_model.stem_type='deep' build_model.output_stride=8 """
    """MarginHead.s=10 """
)
FIRST_MEANS = {"build_transform": TRANSFORM, "build_model": {"patch_size": 2, "img_size": 32}, "MarginHead": {}}
SECOND_MEANS = {
    "build_transform": TRANSFORM,
    "build_model": {"stem_type": "deep", "output_stride": 8},
    "MarginHead": {"s": 10},
}


@pytest.mark.parametrize(("printed", "meant"), [(FIRST, FIRST_MEANS), (SECOND, SECOND_MEANS)])
def test_both_commands_of_the_seeds(printed, meant):
    words = shlex.split(printed)[1:]
    assert parse_gin(words) == meant
    assert parse_gin([" ".join(words)]) == meant  # all in one quoted word
    assert parse_gin(" ".join(words)) == meant
    assert parse_gin(["\n".join(words).replace("=", " = ")]) == meant


def test_the_commands_above_are_the_ones_printed():
    seed = Path(__file__).resolve().parents[3] / "shared" / "seeds" / "000_20b17eb049c45091.txt"
    if not seed.is_file():
        pytest.skip("the seeds are not at hand")
    text = seed.read_text(encoding="utf-8")
    assert FIRST in text
    assert SECOND in text


def test_quotes_that_reach_us_are_taken_off():
    words = ['build_transform.mean="(0.4914, 0.4822, 0.4465)"', "build_model.stem_type='deep'", "build_model.act=gelu"]
    found = parse_gin(words)
    assert found["build_transform"]["mean"] == TRANSFORM["mean"]
    assert found["build_model"] == {"stem_type": "deep", "act": "gelu"}


def test_values_may_hold_what_looks_like_an_assignment():
    found = parse_gin(["build_model.a='x build_model.b=2' build_model.c=[1, (2, 'x y.z=3')]"])
    assert found["build_model"] == {"a": "x build_model.b=2", "c": [1, (2, "x y.z=3")]}


def test_no_words_are_no_settings():
    assert parse_gin([]) == {"build_transform": {}, "build_model": {}, "MarginHead": {}}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("build_transfrom.scale=(0.8,1)", "unknown scope in --gin 'build_transfrom'; did you mean 'build_transform'?"),
        ("build_transform.scal=(0.8,1)", "unknown name in --gin build_transform 'scal'; did you mean 'scale'?"),
        ("MarginHead.scale=10", "unknown name in --gin MarginHead 'scale'"),
        ("MarginHead.s", "'MarginHead.s' has no =; write scope.name=value, such as MarginHead.s=10"),
        ("s=10", "'s=10' has no scope.name before its ="),
        ("=10", "'=10' has no scope.name before its ="),
        ("MarginHead.s=", "--gin MarginHead.s: no value after ="),
        ("", "--gin got an empty word"),
        ("  ", "--gin got an empty word"),
        ("MarginHead.s=10 MarginHead.s=10", "--gin MarginHead.s is given twice"),
        ("MarginHead.s=ten", "--gin MarginHead.s='ten' must be a number"),
        ("MarginHead.s=True", "--gin MarginHead.s=True must be a number"),
        ("MarginHead.s=1e999", "--gin MarginHead.s: cannot read '1e999'"),
        ("MarginHead.s=1j", "cannot read '1j'"),
        ("MarginHead.s=0x" + "f" * 5000, "cannot read '0xfff"),
        ("MarginHead.s=" + "9" * 5000, "cannot read '999"),
        ("build_model.depth=" + "[" * 500, "cannot read '[[["),
        ("build_model.depth=" + "[" * 300 + "]" * 300, "cannot read '[[["),
        ("build_model.depth=" + "-" * 3000 + "1", "cannot read '---"),
        ("build_model.depth=" + "1" * 20_000, "20018 characters are too many (at most 10000)"),
        ("build_model.depth=@layers()", "cannot read '@layers()'"),
        ("build_model.depth=2 3", "cannot read '2 3'"),
        ("build_model.depth={1: 2}", "cannot read '{1: 2}'"),
        ("build_model.depth={1, 2}", "cannot read '{1, 2}'"),
        ("build_model.act=b'x'", "cannot read"),
        ("build_model.act='\\d' + 1", "cannot read"),
        ("build_model.act=...", "cannot read '...'"),
        ("build_model.dynamic_img_size=false", "--gin build_model.dynamic_img_size=false: write False"),
        ("build_model.size=3", "--gin build_model.size: is determined by --input_size"),
        ("build_model.num_classes=3", "is determined by the data"),
        ("build_transform.scale=0.8", "must be two increasing numbers above 0, at most 1, as (0.8, 1)"),
        ("build_transform.scale=(1, 0.8)", "must be two increasing numbers above 0, at most 1, as (0.8, 1)"),
        ("build_transform.scale=(0.8, 2)", "must be two increasing numbers above 0, at most 1, as (0.8, 1)"),
        ("build_transform.ratio=(0, 1)", "must be two increasing numbers above 0, as (0.75, 1.3333)"),
        ("build_transform.mean=()", "must be numbers, such as (0.4914"),
        ("build_transform.mean=red", "must be numbers, such as (0.4914"),
        ("build_transform.std=(0.2, 0, 0.2)", "must be above 0 in every channel"),
        ("build_transform.hflip=2", "must be a number from 0 to 1"),
        ("build_transform.interpolation=bicubik", "did you mean 'bicubic'?"),
        ("build_transform.scale=__import__('os').system('true')", "cannot read"),
    ],
)
def test_a_mistake_is_one_line(word, message):
    with pytest.raises(InputError) as caught:
        parse_gin([word])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("name", "head", "meant"),
    [
        ("arcgrad", {"s": 10}, "arcgrad(s=10)"),
        ("arcgrad", {}, "arcgrad(s=10)"),
        ("arcgrad", {"s": 5.5}, "arcgrad(s=5.5)"),
        ("softmax", {}, "normface(s=10)"),
        (" Softmax ", {"s": 30}, "normface(s=30)"),
        ("arcface", {}, "arcface(s=10, m=0.5)"),
        ("arcface", {"s": 20, "m": 0.1}, "arcface(s=20, m=0.1)"),
        ("arcface(s=20, m=0.1)", {}, "arcface(s=20, m=0.1)"),
        ("arcface(s=20, m=0.1)", {"s": 8}, "arcface(s=8, m=0.1)"),
        ("cosface", {}, "cosface(s=64, m=0.35)"),  # not one of the seeds': as the catalogue has it
        ("softmax()", {}, "softmax"),  # written as a call, it is ours
        ("softmax(bias=True)", {}, "softmax(bias=True)"),
        ("arcface + 0.02*center", {"s": 8}, "arcface(s=8, m=0.5) + 0.02*center(alpha=0.5)"),
    ],
)
def test_the_loss_that_a_flag_means(name, head, meant):
    assert seed_loss_spec(name, head) == meant
    assert repr(wm.parse(meant)) == meant


@pytest.mark.parametrize(
    ("name", "head", "message"),
    [
        ("arcgard", {}, "unknown loss 'arcgard'; did you mean 'arcgrad'"),
        ("softmax", {"m": 0.5}, "normface, which --margin_loss 'softmax' means, has no m (it has s)"),
        ("softmax(bias=True)", {"s": 10}, "has no s"),
        ("arcgrad", {"s": 0}, "outside its domain"),
        ("triplet", {}, "'triplet' is not a margin"),
        ("arcface, cosface", {}, "a list of 2 losses"),
        ("", {}, "an empty loss"),
        (None, {}, "a loss must be a string"),
    ],
)
def test_a_loss_that_cannot_be(name, head, message):
    with pytest.raises(InputError) as caught:
        seed_loss_spec(name, head)
    assert message in str(caught.value)


class OneLine(Exception):  # noqa: N818
    """What a user may be told: an InputError without a line break."""


@contextlib.contextmanager
def one_line():
    try:
        yield
    except InputError as error:
        raise (OneLine if len(str(error).splitlines()) == 1 else AssertionError)(str(error)) from error


PIECES = st.one_of(
    st.sampled_from(["build_model.", "build_transform.scale=", "MarginHead.s=", "build_model.x=", "MarginHead.m ="]),
    st.sampled_from(
        ["(", ")", "[", "]", "{", "}", "'", '"', "=", "==", ".", ",", " ", "\n", "\\", "\0", "#", ":", "**"]
    ),
    st.sampled_from(["0.8", "1", "-", "True", "none", "1e999", "nan", "f''", "b''", "lambda: 0", "__import__('os')"]),
    st.sampled_from(["fast", "resnet18", "timm:", "width=", "ſ", "\ud800", "١"]),
    st.text(string.printable, max_size=5),
    st.text(max_size=3),
)


@given(st.lists(st.lists(PIECES, max_size=12).map("".join), max_size=4))
@example(["build_model.x=" + "(" * 199 + ")" * 199])
@example(["build_model.x='''", "build_model.x=1if 1else 2"])
def test_whatever_is_written_there_is_a_value_or_one_line(words):
    with contextlib.suppress(OneLine), one_line():
        parse_gin(words)
    for word in words:
        with contextlib.suppress(OneLine), one_line():
            parse_model(word)


@given(st.lists(PIECES, max_size=8).map("".join))
def test_whatever_the_loss_is_called_it_is_a_loss_or_one_line(name):
    with contextlib.suppress(OneLine), one_line():
        meant = seed_loss_spec(name, {"s": 10})
        assert "s=10" in meant
        assert repr(wm.parse(meant)) == meant


def test_nothing_is_evaluated(tmp_path):
    file = tmp_path / "made"
    attack = f"__import__('pathlib').Path({str(file)!r}).touch()"
    for word in (f"build_model.x={attack}", f"build_model.x=[{attack}]", f'build_model.x="({attack})"'):
        with pytest.raises(InputError):
            parse_gin([word])
    for text in (f"fast(width={attack})", f"fast({attack})", f"fast(width=[{attack}])"):
        with pytest.raises(InputError):
            parse_model(text)
    with pytest.raises(InputError):
        seed_loss_spec(f"arcface(s={attack})", {})
    assert not file.exists()
