"""Native kernels are the plain functions; libraries are built once, kept privately, and done without if that fails."""

import os
import subprocess

import pytest
import torch

import widemargin as wm
from widemargin.head.backends import kernels, native, native_library
from widemargin.head.backends.kernels import Block, KernelSpec
from widemargin.losses.grammar import parse_margin

needs_compiler = pytest.mark.skipif(native_library.find_compiler() is None, reason="no C++ compiler")
CLASSES, SAMPLES = 37, 83  # neither is a multiple of a vector, a run or a tile

VARIANTS = [
    *wm.list_losses("margins"),
    "arcgrad(s=120)",
    "sphereface_r(version=v2)",
    "aam_softmax(topk=2, penalty=0.2)",
    "subcenter_arcface(k=2)",
    "softmax(bias=True)",
    "sphereface2(t=2.5)",
    "logit_adjusted(counts=[" + ", ".join(str(n + 1) for n in range(CLASSES)) + "])",
]


def make_block(spec, dtype, has_bias):
    """A block with targets in it and elsewhere, and cosines at and beyond ±1."""
    draw = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64).to(dtype)

    rows = CLASSES * spec.rows_per_class
    memory = (normal(rows, SAMPLES + 9) * 0.4).clamp(-1.0, 1.0)
    memory[:4, :3] = torch.tensor([1.0, -1.0, 0.0])
    inverse = 0.5 + 0.5 * torch.rand(rows, generator=draw, dtype=torch.float64).to(dtype)
    inverse[:6] = 1.0
    inverse[7] = 0.0  # a weight of norm 0
    target = torch.randint(-5, CLASSES + 5, (SAMPLES,), generator=draw).int()
    block = Block(
        memory[:, :SAMPLES], inverse, normal(SAMPLES).abs(), target, normal(CLASSES) if has_bias else None, CLASSES
    )
    values = [normal(SAMPLES) * 0.3 for _ in spec.sample_names]
    values += [torch.tensor(5.0 + k, dtype=dtype) for k in range(len(spec.value_names))]
    vectors = [normal(SAMPLES) for _ in range(4)]
    return block, values, vectors


@pytest.mark.slow
@needs_compiler
@pytest.mark.filterwarnings("ignore:.*without counts.*")
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("text", VARIANTS)
def test_generated_kernels_are_the_definition(text, learns):
    """Sums, sums of logits and all gradients of every margin; the definition in double precision."""
    margin = parse_margin(str(getattr(text, "name", text))).for_num_classes(CLASSES)
    has_bias = margin.bias or margin.class_offsets() is not None
    numbers = dict.fromkeys(("s", *margin.learnt_fields), True) if learns else {}
    spec = KernelSpec.from_margin(
        margin, margin.allows_label_smoothing, numbers, margin.phi_sample_fields, margin.subcenters
    )
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 2e-4)):
        library = native.NativeLibrary(spec, has_bias, dtype)
        block, values, vectors = make_block(spec, dtype, has_bias)
        exact = Block(*(t.double() if torch.is_tensor(t) and t.is_floating_point() else t for t in block))
        wide = [[t.double() for t in some] for some in (values, vectors)]
        function = kernels.sum_other_losses if margin.one_vs_all else kernels.sum_exp_logits
        (top,) = kernels.largest_logit(spec, exact, *wide[0])
        top = top.to(dtype).double() + 2.0  # a log-sum is above every logit of it
        anchor = () if margin.one_vs_all else (top,)
        compare = [
            (function, tuple(t.to(dtype) for t in anchor), anchor),
            (kernels.gradients, (top.to(dtype), *vectors[1:]), (top, *wide[1][1:])),
        ]
        for one, given, given_exact in compare:
            got = native.make_native_kernel(one, library)(spec, block, *given, *values)
            wanted = one(spec, exact, *given_exact, *wide[0])
            assert len(got) == len(wanted)
            for ours, theirs in zip(got, wanted, strict=True):
                assert torch.isfinite(ours).all()
                error = (ours.double() - theirs).norm() / theirs.norm().clamp_min(1e-30)
                assert error < tolerance, (one.__name__, dtype)


@needs_compiler
def test_a_library_is_built_once_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native_library, "_libraries", {})
    text = 'extern "C" int answer() { return 42; }'
    library, is_new = native_library.load_library(text)
    assert (library.answer(), is_new) == (42, True)
    assert native_library.load_library(text)[1] is False
    (file,) = (tmp_path / "widemargin" / "kernels").iterdir()
    monkeypatch.setattr(native_library, "_libraries", {})
    monkeypatch.setattr(native_library, "_compile", None)  # from the disk
    assert native_library.load_library(text)[1] is False
    assert file.stat().st_mode & 0o077 == 0


@needs_compiler
def test_a_damaged_library_is_built_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native_library, "_libraries", {})
    text = 'extern "C" int answer() { return 43; }'
    name = native_library._library_name(native_library.find_compiler(), text)
    path = native_library.cache_folder() / f"{name}.so"
    path.write_bytes(b"cut off")
    path.chmod(0o700)
    library, is_new = native_library.load_library(text)
    assert (library.answer(), is_new) == (43, True)


@needs_compiler
def test_a_folder_that_others_can_write_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = native_library.cache_folder()
    assert folder == tmp_path / "widemargin" / "kernels"
    folder.chmod(0o777)
    assert native_library.cache_folder() != folder
    folder.chmod(0o700)
    folder.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.symlink_to(elsewhere)
    assert native_library.cache_folder() != folder


@needs_compiler
def test_a_source_with_an_error_is_an_error_of_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(OSError, match=r"failed: .*error"):
        native_library.load_library("this is not C++")
    assert not list((tmp_path / "widemargin" / "kernels").iterdir())


def test_without_a_compiler_there_is_no_library(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(OSError, match="no C"):
        native_library.load_library("int x;")


@pytest.mark.slow
@needs_compiler
def test_processes_that_build_at_the_same_time_do_not_disturb_each_other(tmp_path):
    code = (
        "from widemargin.head.backends.native_library import load_library;"
        "print(load_library('extern \"C\" int answer() { return 45; }')[0].answer())"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    started = [
        subprocess.Popen(["python", "-c", code], env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    assert [process.communicate()[0].strip() for process in started] == ["45", "45"]
    assert len(list((tmp_path / "widemargin" / "kernels").iterdir())) == 1
