"""The Triton backend: what it refuses, what it does without Triton, and its kernels in Triton's interpreter."""

import json
import math
import os
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import widemargin as wm
from benchmarks import triton_accuracy
from head_batch import C, D, batch
from widemargin.head.backends import select, triton_backend

CASES = Path(__file__).parents[2] / "triton_cases.py"


def pair():
    heads = [wm.Head(D, C, "arcface(s=8)", backend=backend) for backend in ("triton", "stream")]
    heads[0].load_state_dict(heads[1].state_dict())
    return heads


def test_without_kernels_the_head_streams_with_one_warning(monkeypatch):
    monkeypatch.setattr(triton_backend, "_warnings_given", set())
    monkeypatch.setattr(triton_backend, "find_spec", lambda name: None)
    x, y = batch()
    ours, streamed = pair()
    with pytest.warns(UserWarning, match='"triton" is not used, backend="stream" is: Triton is not installed') as given:
        loss = ours(x, y)
    assert len(given) == 1
    assert ours.active_backend == "stream"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(ours(x, y), loss, rtol=0, atol=0)
    torch.testing.assert_close(loss, streamed(x, y), rtol=0, atol=0)


def test_a_failed_self_check_falls_back(monkeypatch):
    monkeypatch.setattr(triton_backend, "_warnings_given", set())
    monkeypatch.setattr(triton_backend, "_check_results", {})
    monkeypatch.setattr(triton_backend, "why_unavailable", lambda device: None)
    monkeypatch.setattr(triton_backend, "is_interpreted", lambda: True)  # Triton itself may be missing
    monkeypatch.setattr(triton_backend, "measure_disagreement", lambda *given: float("nan"))
    x, y = batch()
    ours, streamed = pair()
    with pytest.warns(UserWarning, match="differs from dense by nan on a small batch"):
        loss = ours(x, y)
    torch.testing.assert_close(loss, streamed(x, y), rtol=0, atol=0)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("num_classes", [10, 10**4, 10**7])
def test_auto_never_selects_triton(device, num_classes):
    assert select.select_backend("auto", 256, num_classes, torch.device(device)) in ("dense", "stream")


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("subcenter_arcface", "several weights per class"),
        ("soft_triple", "several weights per class"),
        ("sphereface2", "a sum of losses over the other classes"),
        ("p2sgrad", "a sum of losses over the other classes"),
        ("uniface", "a sum of losses over the other classes"),
    ],
)
def test_losses_without_kernels_are_refused_in_one_line(loss, words):
    with pytest.raises(wm.InputError, match=f'{words}: use backend="stream"') as error:
        wm.Head(D, C, loss, backend="triton")
    assert "\n" not in str(error.value)


def test_double_precision_is_refused_in_one_line():
    x, y = batch(dtype=torch.float64)
    head = wm.Head(D, C, "arcface", backend="triton", dtype=torch.float64)
    with pytest.raises(wm.InputError, match=r"torch\.float64") as error:
        head(x, y)
    assert "\n" not in str(error.value)


def test_a_broken_installation_falls_back(monkeypatch):
    def fail():
        raise ImportError("no module named triton._C\nand more")

    monkeypatch.setattr(triton_backend, "_warnings_given", set())
    monkeypatch.setattr(triton_backend, "find_spec", lambda name: True)
    monkeypatch.setattr(triton_backend, "is_interpreted", fail)
    x, y = batch()
    ours, streamed = pair()
    with pytest.warns(UserWarning, match=r"Triton cannot be imported: no module named triton\._C") as given:
        loss = ours(x, y)
    assert len(given) == 1
    assert "\n" not in str(given[0].message)
    torch.testing.assert_close(loss, streamed(x, y), rtol=0, atol=0)


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_the_self_check_notices_nan_in_any_result(wrong, monkeypatch):
    class Broken(triton_backend.DenseBackend):
        def split(self, margin, y, with_logit_sum=False):
            logits = super().split(margin, y, with_logit_sum)
            if wrong == 0:
                return logits._replace(others=logits.others * torch.nan)
            leaf = self.embeddings.raw if wrong == 1 else self.weight
            leaf.register_hook(lambda gradient: gradient * torch.nan)
            return logits

    monkeypatch.setattr(triton_backend, "TritonBackend", Broken)
    margin = wm.ArcFace().for_num_classes(37)
    error = triton_backend.measure_disagreement(margin, torch.float32, torch.float32, torch.device("cpu"))
    assert math.isnan(error)


def test_tf32_is_read_by_either_of_its_names():
    script = (
        "import torch\n"
        "from widemargin.head.backends.triton_backend import _is_tf32_allowed as allowed\n"
        "matmul = torch.backends.cuda.matmul\n"
        "found = [allowed()]\n"
        "matmul.allow_tf32 = True; found.append(allowed())\n"
        "matmul.allow_tf32 = False; found.append(allowed())\n"
        "matmul.fp32_precision = 'tf32'; found.append(allowed())\n"
        "print(found)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[False, True, False, True]"


# ---------------------------------------------------------------- interpreter


def require_triton():
    """Skip without Triton; where CI is set, which installs it, fail."""
    if find_spec("triton") is None:
        is_required = os.environ.get("CI") or os.environ.get("WIDEMARGIN_TRITON") == "required"
        absent = pytest.fail if is_required else pytest.skip
        absent('Triton is not installed: pip install --no-deps triton==3.9.0, or the extra "triton"')


def run_interpreted(*words):
    """Run a program with interpreted kernels and return its output."""
    require_triton()
    root = str(CASES.parents[1])
    run = subprocess.run(
        [sys.executable, "-W", "ignore::RuntimeWarning", *words],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join((root, *sys.path))},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout


@pytest.fixture(scope="module")
def interpreted(shared_folder):
    require_triton()
    folder = shared_folder("triton-cases", lambda to: (to / "cases.json").write_text(run_interpreted(str(CASES))))
    return json.loads((folder / "cases.json").read_text())


ACCEPTED = {
    "a_softmax", "aam_softmax", "adaacos", "adacos", "adaface", "arcface", "arcgrad", "circle", "combined", "cosface",
    "curricularface", "elasticface", "l_softmax", "ldam", "lm_softmax", "logit_adjusted", "m_softmax", "magface",
    "modified_softmax", "mv_softmax", "normface", "proxy_nca", "proxy_nca_pp", "softmax", "sphereface_r",
}  # fmt: skip


@pytest.mark.slow
def test_generated_curves_and_slopes_are_those_of_the_losses(interpreted):
    curves = interpreted["record"]["curves"]
    assert set(curves) == ACCEPTED
    wrong = {loss: case for loss, case in curves.items() if not max(e for e in case.values() if e is not None) < 2e-6}
    assert not wrong
    assert set(interpreted["record"]["refused"]) | ACCEPTED == set(map(str, wm.list_losses("margins")))


@pytest.mark.slow
@pytest.mark.parametrize("group", ["initial", "trained"])
@pytest.mark.parametrize("dtype", triton_accuracy.BOUNDS)
def test_losses_and_gradients_are_those_of_dense_in_double_precision(interpreted, dtype, group):
    of_loss, of_gradients = triton_accuracy.BOUNDS[dtype][group]
    rows = [row for row in interpreted["record"]["rows"] if row["dtype"] == dtype]
    assert [row["loss"] for row in rows] == ["arcface", "arcgrad", "curricularface", "softmax(bias=True)"]
    for row in rows:
        cases = row["initial"] if group == "initial" else [case for case in row["trained"].values() if case]
        # With s = 10 and a hundred classes no angle gives ArcGrad a loss of 1e-6.
        assert len(cases) == (4 if group == "initial" else 1 if row["loss"] == "arcgrad" else 2)
        for case in cases:
            assert case["loss_error"] < of_loss
            assert len(case["gradient_errors"]) == (3 if "bias" in row["loss"] else 2)
            assert all(error < of_gradients for error in case["gradient_errors"])
    assert not interpreted["violations"]


@pytest.mark.slow
@pytest.mark.parametrize("edge", triton_accuracy.EDGES)
def test_degenerate_points_are_finite_and_right(interpreted, edge):
    cases = {(row["loss"], row["dtype"]): row["degenerate"][edge] for row in interpreted["record"]["rows"]}
    assert len(cases) == 12
    overflows = {(loss, edge) for (loss, _), case in cases.items() if case["dense_finite"] > case["finite"]}
    assert overflows <= triton_accuracy.KNOWN_OVERFLOWS
    # Shorter than 1e-30 a weight counts as zero, but its angle as a target is that of its direction.
    if edge == "tiny w":
        return
    # The angle to another class comes from a cosine, which in fp32 has half of its digits there.
    bound = 1e-3 if edge == "x = other w" else 1e-5
    cases = {key: case for key, case in cases.items() if case["finite"]}
    assert not {key: case for key, case in cases.items() if not case["loss_error"] < bound}


@pytest.mark.slow
def test_numbers_per_class_and_chunks_of_classes(interpreted):
    assert len(interpreted["more"]) == 4
    for case in interpreted["more"].values():
        assert max(case["loss_error"], *case["gradient_errors"]) < 2e-6


@pytest.mark.slow
def test_tensors_of_any_layout_dtype_and_need_of_a_gradient(interpreted):
    assert {case["used"] for case in interpreted["calls"].values()} == {"triton"}
    tensors = {name: case["tensors"] for name, case in interpreted["calls"].items()}
    assert [name for name, count in tensors.items() if count == 2] == [
        "embeddings without gradient",
        "weights without gradient",
    ]
    for name, case in interpreted["calls"].items():
        assert case["error"] < (5e-3 if "bf16" in name or name == "autocast" else 5e-6), name


@pytest.mark.slow
def test_addresses_have_64_bits(interpreted):
    assert interpreted["far"]["embeddings"] < 1e-6
    assert interpreted["far"]["weights"] < 5e-4  # rounded to fp16


@pytest.mark.slow
def test_repeated_steps_give_the_same_bits(interpreted):
    assert interpreted["repeats"] is True


@pytest.mark.exhaustive
def test_every_error_of_the_table_is_within_its_bound(tmp_path):
    figures = tmp_path / "accuracy.json"
    printed = run_interpreted("-m", "benchmarks", "triton_accuracy", "--json", str(figures))
    assert "all errors are within their bounds" in printed
    assert len(json.loads(figures.read_text())["rows"]) == len(triton_accuracy.LOSSES) * len(triton_accuracy.DTYPES)


# ---------------------------------------------------------------- compiler


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "shape", "capability"),
    [
        ("bfloat16", (1, 1, 2), 80),
        ("bfloat16", (33, 40, 1000), 80),
        ("float32", (255, 511, 99_999), 86),
        ("float16", (255, 511, 99_999), 86),
    ],
)
def test_kernels_compile_for_a_gpu_without_spills_and_atomics(dtype, shape, capability):
    """Also with sizes of 1, which Triton makes constants, and odd ones, which need the most registers."""
    require_triton()
    script = (
        "import json, sys, torch\n"
        "from benchmarks import triton_compiled as t\n"
        f"launches = t.first_of_each_kernel(t.record_launches('arcgrad', torch.{dtype}, {shape}))\n"
        f"print(json.dumps({{l.kernel.__name__: t.compile_launch(l, {capability}) for l in launches}}))"
    )
    root = str(CASES.parents[1])
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join((root, *sys.path))
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    kernels = json.loads(run.stdout)
    assert list(kernels) == [
        "inverse_norms", "log_sums", "logit_gradients", "embedding_gradients", "weight_gradients"
    ]  # fmt: skip
    for name, kernel in kernels.items():
        assert kernel["spill_bytes"] == kernel["atomics"] == 0
        assert 0 < kernel["registers"] <= 255
        assert kernel["shared"] <= 99 * 1024
        assert bool(kernel["matrix"]) == (name != "inverse_norms" and dtype != "float32")  # fp32 without TF32
