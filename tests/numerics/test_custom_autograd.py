"""Backward passes written by hand: all are in the list, and each is autograd of its definition, in fp64."""

import json
from pathlib import Path

import pytest
import torch

import widemargin as wm
from benchmarks.__main__ import main
from benchmarks.backward import list_custom_functions, markdown, plain_definition
from widemargin.head.backends import class_blocks, compiled
from widemargin.head.backends.base import NormalizedEmbeddings, fill_in_samples
from widemargin.head.backends.dense import DenseBackend
from widemargin.head.backends.stream import StreamBackend
from widemargin.numerics.custom_autograd import CUSTOM_FUNCTIONS

ROOT = Path(__file__).resolve().parents[2]
FUNCTIONS = list_custom_functions()


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def subclasses(kind):
    return {found for one in kind.__subclasses__() for found in (one, *subclasses(one))}


# ---------------------------------------------------------------- the list


def test_every_autograd_function_of_the_package_is_in_the_list():
    text = [file for file in (ROOT / "src").rglob("*.py") if "autograd.Function)" in file.read_text(encoding="utf-8")]
    defined = {one for one in subclasses(torch.autograd.Function) if one.__module__.startswith("widemargin.")}
    assert {entry.function for entry in CUSTOM_FUNCTIONS.values()} == defined
    assert {entry.file for entry in CUSTOM_FUNCTIONS.values()} == {
        file.relative_to(ROOT / "src" / "widemargin").as_posix() for file in text
    }
    for entry in CUSTOM_FUNCTIONS.values():
        assert (entry.definition is None) == (entry.serves == "ranks"), entry.name
        assert entry.serves in ("speed", "memory", "digits", "ranks")


def test_the_docs_hold_the_list_with_the_gains_of_the_record():
    record = json.loads((ROOT / "records" / "backward.json").read_text(encoding="utf-8"))
    formulas = {name for name, entry in FUNCTIONS.items() if entry.definition is not None}
    assert {row["function"] for row in record["rows"]} == formulas
    assert (ROOT / "docs" / "numerics.md").read_text(encoding="utf-8").count(markdown(record)) == 1
    for name in formulas:  # each earns its place in a step that uses it
        assert max(row["plain_over_ours"] for row in record["rows"] if row["function"] == name) >= 1.05


@pytest.mark.slow
def test_the_benchmark_prints_a_step_either_way(tmp_path, capsys):
    path = tmp_path / "backward.json"
    assert main(["backward", "--functions", "Cosines", "--rounds", "1", "--no-memory", "--json", str(path)]) == 0
    assert "plain / ours" in capsys.readouterr().out
    rows = json.loads(path.read_text())["rows"]
    assert {row["function"] for row in rows} == {"Cosines"}
    assert all(row["plain_over_ours"] == row["seconds"]["plain"] / row["seconds"]["ours"] for row in rows)
    assert main(["backward", "--functions", "Cosine"]) == 2
    assert "Cosines" in capsys.readouterr().err


# ---------------------------------------------------------------- each against autograd of its definition


def with_zero_rows(vectors, *rows):
    vectors[..., list(rows), :] = 0.0
    return vectors


COSINES = torch.cat([torch.linspace(-0.999, 0.999, 41), torch.tensor([1.0, -1.0, 1.0 + 1e-9, -1.0 - 1e-9])]).double()
LOGITS, ROWS = random(5, 2, 3) * 30, torch.tensor([[[0, 4, 2], [1, 1, 3]]])
CASES = {
    "Cosines": [
        (random(6, 4), random(3, 4, seed=1), None, None),
        (with_zero_rows(random(6, 4), 0, 5), with_zero_rows(random(3, 4, seed=1), 2), None, None),
        (random(6, 9), random(3, 9, seed=1), None, None, torch.tensor([0, 2, 2, 1, 0, 1])),  # with target angles
        (with_zero_rows(random(2, 6, 4), 3), random(2, 3, 4, seed=1), None, None),
        (random(6, 4), random(3, 4, seed=1), random(6, 4).norm(dim=-1), random(3, 4, seed=1).norm(dim=-1)),
        (random(3, 4, seed=1), torch.cat([random(3, 4, seed=1), -random(3, 4, seed=1)]), None, None),  # θ = 0 and π
    ],
    "NonTargetLogSumExp": [(LOGITS, ROWS), (LOGITS * 40, ROWS), (random(2, 7), torch.arange(7).unsqueeze(0) % 2)],
    "_Arccos": [(COSINES,), (COSINES.view(5, 9),)],
    "_SparseGradRows": [(random(6, 3), torch.tensor([0, 2, 5]))],
}


def test_every_formula_is_compared_with_its_definition():
    formulas = {name for name, entry in FUNCTIONS.items() if entry.definition is not None}
    assert formulas == {*CASES, "_StreamFunction", "DenseFunction"}


def derivatives(function, inputs):
    """Results, gradients along fixed directions, and the gradient of the squares of these."""
    leaves = [t.clone().requires_grad_() if t is not None and t.is_floating_point() else t for t in inputs]
    wanted = [t for t in leaves if t is not None and t.requires_grad]
    results = function(*leaves)
    results = [r for r in (results if isinstance(results, tuple) else (results,)) if r is not None]
    along = [random(*r.shape, seed=9) for r in results]
    first = torch.autograd.grad(results, wanted, along, retain_graph=True, allow_unused=True)
    first = [torch.zeros_like(t) if g is None else g for g, t in zip(first, wanted, strict=True)]
    again = torch.autograd.grad(results, wanted, along, create_graph=True, allow_unused=True)
    total = sum((g.to_dense() ** 2).sum() for g in again if g is not None)
    second = [None] * len(wanted)
    if total.requires_grad:
        second = torch.autograd.grad(total, wanted, allow_unused=True)
    second = [torch.zeros_like(t) if g is None else g for g, t in zip(second, wanted, strict=True)]
    return [*results, *(g.to_dense() for g in first), *second]


def assert_same_derivatives(one, other):
    for ours, plain in zip(one, other, strict=True):
        assert torch.isfinite(ours).all()
        torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("name", "number"), [(name, i) for name, cases in CASES.items() for i in range(len(cases))])
def test_value_gradient_and_second_derivative_are_those_of_the_definition(name, number):
    entry = FUNCTIONS[name]
    inputs = CASES[name][number]
    if name == "Cosines" and inputs[2] is not None:  # known norms are not inputs of the definition
        inputs = (*inputs[:2], *(t.to(torch.float64) for t in inputs[2:]))
        x, w = (t.clone().requires_grad_() for t in inputs[:2])
        along = random(3, 6, seed=9)
        ours, plain = (
            torch.autograd.grad(function(x, w, *inputs[2:])[0], (x, w), along)
            for function in (entry.function.apply, entry.definition)
        )
        assert_same_derivatives(ours, plain)
        return
    assert_same_derivatives(*(derivatives(function, inputs) for function in (entry.function.apply, entry.definition)))


STREAMED = [
    "arcface(s=9)",
    "arcgrad(s=5)",
    "a_softmax",
    "l_softmax",
    "softmax(bias=True)",
    "m_softmax",
    "modified_softmax",
    "cosface(s=learnable(7))",
    "subcenter_arcface(s=9, k=2)",
    "soft_triple(s=9, k=3)",
    "sphereface2(s=9)",
    "curricularface(s=9, t=0.2)",
]


@pytest.mark.parametrize("spec", STREAMED)
def test_a_streamed_pass_is_its_dense_definition(spec, monkeypatch):
    """Zero embeddings, an embedding on its class weight (θ = 0) and opposite to it (θ = π) among others."""
    monkeypatch.setattr(class_blocks, "max_block_rows", lambda samples, dim: 2)
    margin = wm.parse(spec).for_num_classes(5)
    scale = torch.tensor(7.0, dtype=torch.float64)
    shape = (5, 6) if margin.subcenters is None else (5, margin.subcenters.count, 6)
    x, weight, y = random(7, 6), random(*shape, seed=1), torch.tensor([0, 1, 2, 3, 4, 0, 1])
    first = weight if weight.ndim == 2 else weight[:, 0]
    x[0], x[1], x[2] = 0.0, 2.0 * first[1], -first[2]
    bias = random(5, seed=2) if margin.bias else None

    def split(x, weight, bias, scale):
        used = margin.with_values(s=scale) if "learnable" in spec else margin
        backend = StreamBackend(NormalizedEmbeddings(x), weight, bias, subcenters=margin.subcenters)
        used = fill_in_samples(backend, used, y, training=False)
        found = backend.split(used, y, with_logit_sum=margin.allows_label_smoothing)
        logit_sum = found.logit_sum if margin.allows_label_smoothing else None
        return tuple(
            part for part in (*found.target, found.others, logit_sum, found.weight_penalty) if part is not None
        )

    inputs = (x, weight, bias, scale)
    ours = derivatives(split, inputs)
    with plain_definition(FUNCTIONS["_StreamFunction"]):
        plain = derivatives(split, inputs)
    assert_same_derivatives(ours, plain)


@pytest.mark.slow
@pytest.mark.skipif(not compiled.can_compile(torch.device("cpu")), reason="no C++ compiler")
@pytest.mark.parametrize("spec", STREAMED)
def test_a_native_head_is_its_dense_definition(spec):
    """An embedding on its class weight (θ = 0), one opposite to it (θ = π) and one at a tiny angle among others."""
    margin = wm.parse(spec).for_num_classes(5)
    scale = torch.tensor(7.0, dtype=torch.float64)
    shape = (5, 6) if margin.subcenters is None else (5, margin.subcenters.count, 6)
    x, weight, y = random(7, 6), random(*shape, seed=1), torch.tensor([0, 1, 2, 3, 4, 0, 1])
    first = weight if weight.ndim == 2 else weight[:, 0]
    x[0], x[1], x[2] = first[0] + 1e-3 * random(6, seed=3), 2.0 * first[1], -first[2]
    bias = random(5, seed=2) if margin.bias else None

    def split(x, weight, bias, scale):
        used = margin.with_values(s=scale) if "learnable" in spec else margin
        backend = DenseBackend(NormalizedEmbeddings(x), weight, bias, margin.subcenters, compile_kernels=True)
        backend.expect(used)
        used = fill_in_samples(backend, used, y, training=False)
        found = backend.split(used, y, with_logit_sum=margin.allows_label_smoothing)
        assert backend.uses_native_kernels
        logit_sum = found.logit_sum if margin.allows_label_smoothing else None
        return tuple(
            part for part in (*found.target, found.others, logit_sum, found.weight_penalty) if part is not None
        )

    inputs = (x, weight, bias, scale)
    ours = derivatives(split, inputs)
    with plain_definition(FUNCTIONS["DenseFunction"]):
        plain = derivatives(split, inputs)
    assert_same_derivatives(ours, plain)


def test_the_slope_of_arccos_keeps_its_digits_near_one():
    cos = 1.0 - torch.arange(1, 10_000) * 2.0**-24
    cos = torch.cat([cos, -cos])
    exact = -1.0 / ((1.0 - cos.double()) * (1.0 + cos.double())).sqrt()
    slopes = {}
    for name, function in (
        ("ours", FUNCTIONS["_Arccos"].function.apply),
        ("definition", FUNCTIONS["_Arccos"].definition),
        ("torch", torch.acos),
    ):
        leaf = cos.clone().requires_grad_()
        (slope,) = torch.autograd.grad(function(leaf).sum(), leaf)
        slopes[name] = float(((slope.double() - exact) / exact).abs().max())
    assert slopes["ours"] < 1e-6
    assert slopes["definition"] < 1e-6
    assert slopes["torch"] > 1e-5  # half of the digits
