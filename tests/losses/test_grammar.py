"""The grammar of loss strings: what it reads, what it refuses, and that it never evaluates anything."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

import widemargin as wm
from widemargin.losses.grammar import Sum
from widemargin.losses.registry import loss_class


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("arcface(m=0.3)", "arcface(s=64, m=0.3)"),
        ("ArcFace( m = 0.3 )", "arcface(s=64, m=0.3)"),
        ("sphereface", "a_softmax(m=4)"),
        ("am_softmax(s=30)", "cosface(s=30, m=0.35)"),
        ("cosine_softmax", "normface(s=30)"),
        ("softmax(bias=True)", "softmax(bias=True)"),
        ("softmax(bias=False)", "softmax"),
        ("arcface(gradient=straight_through)", "arcface(s=64, m=0.5, gradient=straight_through)"),
        ("arcface(gradient='exact')", "arcface(s=64, m=0.5)"),
        ("arcface(s=64, m=warmup(0, 0.5, steps=1000))", "arcface(s=64, m=warmup(start=0, end=0.5, steps=1000))"),
        ("a_softmax(lam=0)", "a_softmax(m=4, lam=0)"),
        ("normface(s=learnable(30))", "normface(s=learnable(start=30))"),
        ("cosface(m=[0.1, 0.25])", "cosface(s=64, m=[0.1, 0.25])"),
        ("cosface(m=(0.1, 0.25))", "cosface(s=64, m=[0.1, 0.25])"),
        ("arcface + 0.02*center", "arcface(s=64, m=0.5) + 0.02*center(alpha=0.5)"),
        ("2*arcface", "2*arcface(s=64, m=0.5)"),
        ("triplet(mining=hard) + 1e-3*center", "triplet(alpha=0.2, mining=hard) + 0.001*center(alpha=0.5)"),
        ("adacos", "adacos"),
        ("adacos(floor=2)", "adacos(floor=2)"),
    ],
)
def test_what_is_read_is_written_again(text, written):
    value = wm.parse(text)
    assert repr(value) == written
    assert wm.parse(repr(value)) == value


def test_a_list_splits_outside_parentheses_only():
    found = wm.parse_list("softmax,arcgrad(s=5),arcface(s=20,m=0.1), arcface + 0.5*triplet(alpha=0.1, mining=all)")
    assert [repr(one) for one in found[:3]] == ["softmax", "arcgrad(s=5)", "arcface(s=20, m=0.1)"]
    assert isinstance(found[3], Sum)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "an empty loss"),
        ("   ", "an empty loss"),
        ("()", "an empty list of losses"),
        ("arcface(", "cannot read 'arcface\\('"),
        ("arcface, cosface", "a list of 2 losses"),
        ("arcfase", "unknown loss 'arcfase'; did you mean 'arcface'?"),
        ("arcface(margin=0.3)", "unknown option of arcface 'margin'"),
        ("arcface(0.3)", "options of arcface are given by name"),
        ("arcface(m=0.1, m=0.2)", "m is given twice"),
        ("arcface(**{'m': 1})", "\\*\\* is not supported"),
        ("arcface(m=__import__('os'))", "unknown schedule '__import__'"),
        ("__import__('os').system('true')", "cannot read"),
        ("arcface.m", "cannot read 'arcface.m'"),
        ("arcface(m=warmup(0, 0.5))", "warmup needs start, end, steps; got start, end"),
        ("arcface(m=warmup(0, 0.5, 3, 4))", "warmup takes at most 3 numbers"),
        ("arcface(m=warmup(0, 0.5, stops=3))", "unknown option of warmup 'stops'; did you mean 'steps'?"),
        ("arcface(m=warmup(0, 0.5, steps=0))", "steps=0 must be a whole number of at least 1"),
        ("arcface(m=warmup(0, inf, steps=5))", "end='inf' must be a finite number"),
        ("arcface(m=1e999)", "outside its domain"),
        ("arcface(m=True)", "must be a number"),
        ("arcface(m=small)", "arcface: m='small' must be a number \\(0 ≤ value ≤ 1.5708\\)"),
        ("cosface(m=[])", "an empty list"),
        ("cosface(m=[0.1, 'a'])", r"cosface: m\[1\]='a' must be a number"),
        ("triplet(mining=seminard)", "triplet: mining: unknown value 'seminard'; did you mean 'semihard'?"),
        ("softmax(bias=maybe)", "must be True or False"),
        ("0*arcface", "the factor before \\* must be a number above 0"),
        ("-1*arcface", "the factor before \\* must be a number above 0"),
        ("arcface*0.5", "must be a number above 0"),
        ("arcface - center", "cannot read"),
        ("a-softmax", "did you mean 'a_softmax'?"),
        ("arcface + center*0.5", "write the factor first"),
        ("arcface(m=28.6)", r"it is in radians: 28.6° = 0.4992"),
        ("softmax(bias=true)", r"must be True or False \(write True\)"),
        ("arcface(s=1" + "0" * 400 + ")", "outside its domain"),
        ("1" + "0" * 400 + "*arcface", "must be a number above 0"),
        ("arcface(m=warmup(0, 0.5, steps=1" + "0" * 400 + "))", "must be a finite number"),
        ("a_softmax(m=1" + "0" * 400 + ")", "outside its domain"),
        ("3", "cannot read '3'"),
        ("l_softmax(m=warmup(1, 4, steps=5))", "does not take a schedule"),
        ("a" * 5_000_000, "too long"),
        ("(" * 5000 + "arcface" + ")" * 5000, "cannot read"),
        ("arcface(m=" + "-" * 5000 + "1)", "cannot read"),
        ("arcface\x00", "cannot read"),
    ],
)
def test_what_cannot_be_read_is_one_line(text, message):
    with pytest.raises(wm.InputError, match=message) as caught:
        wm.parse(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 900


def test_not_text_at_all():
    with pytest.raises(wm.InputError, match="a loss must be a string"):
        wm.parse(64)


@pytest.mark.parametrize("name", wm.list_losses())
def test_every_loss_has_its_page(name):
    from widemargin.losses.describe import describe_loss

    facts = describe_loss(loss_class(name))
    assert facts["sentence"].endswith(".") or facts["sentence"].endswith("`.")
    for heading in ("Formula:", "Domain:", "When:", "Reference:"):
        assert heading in facts["body"], heading
    assert ">>> " in facts["example"]
    assert facts["reference"]
    assert wm.parse(name) == wm.parse(facts["default"])
    assert getattr(wm, facts["class"]) is loss_class(name)
    assert all(option["meaning"] for option in facts["options"].values())


def test_unknown_attribute_of_the_package():
    with pytest.raises(AttributeError, match="did you mean 'ArcFace'"):
        _ = wm.ArcFase


def test_schedules_and_submodules_are_reachable():
    assert wm.parse("arcface(m=warmup(0, 0.5, steps=9))") == wm.ArcFace(m=wm.Warmup(0, 0.5, steps=9))
    assert wm.theory.suggest_scale is wm.suggest_scale
    assert {"ArcGrad", "Head", "theory", "Warmup"} <= set(dir(wm))
    assert "Any" not in dir(wm)


def test_help_of_a_loss_is_its_page():
    assert "1801.07698" in wm.ArcFace.__doc__


@given(st.text(alphabet=string.printable, max_size=60) | st.text(max_size=30))
def test_rubbish_never_gives_anything_but_a_loss_or_one_line(text):
    try:
        value = wm.parse(text)
    except wm.InputError as error:
        said = str(error)
    else:
        said = repr(value)
        assert wm.parse(said) == value
    assert "\n" not in said


words = st.sampled_from([*wm.list_losses(), "warmup", "s", "m", "lam", "mining", "hard", "True", "0.5", "-3", "1e400"])
marks = st.sampled_from(["(", ")", ",", "=", "+", "*", "[", "]", " ", "."])


@given(st.lists(words | marks, max_size=14).map("".join))
def test_almost_right_never_gives_anything_but_a_loss_or_one_line(text):
    test_rubbish_never_gives_anything_but_a_loss_or_one_line.hypothesis.inner_test(text)


@given(st.floats(0.001, 500), st.floats(0, 1.57), st.integers(1, 10**6))
def test_numbers_survive_writing_and_reading(s, m, steps):
    value = wm.ArcFace(s=s, m=m)
    assert wm.parse(repr(value)) == value
    from widemargin.losses.schedule import Warmup

    moving = wm.ArcFace(s=s, m=Warmup(0, m, steps=steps))
    assert wm.parse(repr(moving)) == moving
