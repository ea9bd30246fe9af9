"""Heads under torch.compile, torch.func, forward mode and double backward."""

import copy
import shutil

import pytest
import torch

import widemargin as wm
from head_batch import C, D, batch
from later_cases import SETTINGS, spell


@pytest.fixture(autouse=True)
def _fresh_compiler(request):
    if "compiled" in request.node.name:
        torch._dynamo.reset()  # graphs of other tests count towards its limit of recompilations


@pytest.mark.parametrize(
    "spec",
    [
        *("adacos", "softmax(bias=True)"),
        *(
            pytest.param(spec, marks=pytest.mark.exhaustive)
            for spec in ("arcface(s=16)", "arcgrad", "adaacos(s=8)", "a_softmax")
        ),
    ],
)
def test_compiled_head_is_the_head(spec):
    head = wm.Head(D, C, spec, backend="dense", label_smoothing=0.1)
    compiled = torch.compile(copy.deepcopy(head), backend="aot_eager", fullgraph=True)
    x, y = batch()
    for _ in range(3):
        one, other = head(x, y), compiled(x, y)
        torch.testing.assert_close(one, other)
    gradients = [torch.autograd.grad(loss.sum(), x, retain_graph=True)[0] for loss in (one, other)]
    torch.testing.assert_close(*gradients)
    assert int(compiled.margin_state.steps) == 3


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_compiled_by_inductor():
    head = wm.Head(D, C, "arcface(s=16, m=warmup(0, 0.5, steps=10))", backend="dense")
    compiled = torch.compile(copy.deepcopy(head), fullgraph=True)
    x, y = batch()
    for _ in range(2):
        one, other = head(x, y), compiled(x, y)
        torch.testing.assert_close(one, other)
        gradients = [torch.autograd.grad(loss.sum(), x)[0] for loss in (one, other)]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def assert_compiled_is_eager(spec, backend, dtype, rtol, atol, **options):
    """One compiled module for two batch sizes, in training and evaluation: loss and all gradients."""
    margin = wm.parse(spec).with_class_counts([9, 4, 30, 2, 7])
    head = wm.Head(D, C, margin, backend="dense", dtype=dtype, **options)
    compiled = torch.compile(copy.deepcopy(head), dynamic=True, backend=backend, fullgraph=True)
    for mode in (True, False):
        head.train(mode), compiled.train(mode)
        for n in (8, 13, 5):
            x, y = batch(n, dtype)
            found = []
            for one in (head, compiled):
                torch.manual_seed(n)
                loss = one(x, y)
                found.append((loss, *torch.autograd.grad(loss.sum(), (x, *one.parameters()))))
            for eager, other in zip(*found, strict=True):
                torch.testing.assert_close(other, eager, rtol=rtol, atol=atol)
    assert int(compiled.margin_state.steps) == 3


# One of each way through a backend in .ci/run: plain, with lengths and a bias, adaptive, φ and ψ of its own; then
# numbers of samples in ψ and in φ, draws, sub-centres, sums of a learnt number, numbers per class, penalties.
QUICKLY = ("softmax", "adacos", "arcgrad", "curricularface")
QUICKLY += ("elasticface", "subcenter_arcface", "sphereface2", "logit_adjusted", "magface")


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(name, marks=pytest.mark.slow if name in QUICKLY else pytest.mark.exhaustive)
        for name in wm.list_losses("margins")
    ],
)
def test_every_head_compiled_with_dynamic_shapes(spec):
    assert_compiled_is_eager(spec, "aot_eager", torch.float64, 1e-9, 1e-11)


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("spec", wm.list_losses("margins"))
def test_every_head_compiled_by_inductor_with_dynamic_shapes(spec):
    assert_compiled_is_eager(spec, "inductor", torch.float32, 1e-4, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("arcgrad(s=learnable(8))", {"label_smoothing": 0.1}),
        ("cosface(s=9, m=[0.1, 0.2, 0.3, 0.1, 0.1])", {"ignore_index": 3}),
        ("arcface(m=warmup(0, 0.5, steps=3))", {"class_weight": [1.0, 2.0, 1.0, 0.5, 1.0]}),
    ],
)
def test_options_of_a_head_compiled_with_dynamic_shapes(spec, options):
    assert_compiled_is_eager(spec, "aot_eager", torch.float64, 1e-9, 1e-11, **options)


# Where a graph breaks, dynamo itself looks at the .grad of tensors that have none, and warns.
breaks_graphs = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@breaks_graphs
@pytest.mark.parametrize(
    "spec", ["arcgrad", *(pytest.param(spec, marks=pytest.mark.exhaustive) for spec in ("adaacos(s=8)", "a_softmax"))]
)
def test_streamed_head_inside_a_compiled_step(spec):
    head = wm.Head(D, C, spec, backend="stream")
    compiled = torch.compile(copy.deepcopy(head), backend="aot_eager")
    x, y = batch()
    for _ in range(2):
        one, other = head(x, y), compiled(x, y)
        torch.testing.assert_close(one, other)
        gradients = [torch.autograd.grad(loss.sum(), x)[0] for loss in (one, other)]
        torch.testing.assert_close(*gradients)


def test_compiled_adaptive_head_takes_many_batch_sizes():
    head = wm.Head(D, C, "adacos", backend="dense")
    compiled = torch.compile(copy.deepcopy(head), backend="aot_eager", fullgraph=True)
    for n in range(4, 16):
        x, y = batch(n)
        torch.testing.assert_close(compiled(x, y), head(x, y))


@breaks_graphs
def test_compiled_objective_with_centres_has_the_right_gradient():
    objective = wm.Objective("softmax + 0.5*center", D, C)
    compiled = torch.compile(copy.deepcopy(objective), backend="aot_eager")
    x, y = batch()
    for _ in range(3):
        one, other = objective(x, y), compiled(x, y)
        torch.testing.assert_close(one, other)
        gradients = [torch.autograd.grad(loss.sum(), x)[0] for loss in (one, other)]
        torch.testing.assert_close(*gradients)


# The losses after ArcFace with ordinary numbers: hard classes, numbers of samples, sub-centres, sums, penalties.
LATER = [
    spell(name, options).format(counts=[9, 4, 30, 2, 7])
    for name, settings in SETTINGS.items()
    for options in settings[1:]
]


@pytest.mark.parametrize(
    "spec", ["arcface(s=16)", "arcgrad", "l_softmax", "cosface(m=[0.1, 0.2, 0.3, 0.1, 0.1])", *LATER]
)
def test_per_sample_gradients_by_torch_func(spec):
    head = wm.Head(D, C, spec, backend="dense", dtype=torch.float64).eval()
    x, y = batch(dtype=torch.float64)
    parameters = {name: p.detach() for name, p in head.named_parameters()}

    def loss_of_one(values, sample, label):
        return torch.func.functional_call(head, values, (sample.unsqueeze(0), label.unsqueeze(0)))[0]

    per_sample = torch.func.vmap(torch.func.grad(loss_of_one), (None, 0, 0))(parameters, x.detach(), y)["weight"]
    (whole,) = torch.autograd.grad(head(x, y).sum(), [head.weight])
    torch.testing.assert_close(per_sample.sum(0), whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("spec", ["arcface(s=4, m=0.2)", "arcgrad(s=3)", "l_softmax(lam=1)", *LATER])
def test_forward_mode_agrees_with_backward_mode(spec):
    head = wm.Head(4, C, spec, backend="dense", dtype=torch.float64).eval()
    x, y = batch(3, torch.float64, d=4)
    function = lambda v: head(v, y)  # noqa: E731
    torch.testing.assert_close(torch.func.jacfwd(function)(x.detach()), torch.func.jacrev(function)(x.detach()))
    hessian = torch.func.hessian(lambda v: head(v, y).sum())(x.detach())
    torch.testing.assert_close(hessian, torch.autograd.functional.hessian(lambda v: head(v, y).sum(), x.detach()))


@pytest.mark.parametrize("spec", ["arcface(s=4, m=0.2)", "arcgrad(s=3)", "l_softmax(lam=1)"])
def test_dense_backend_differentiates_twice(spec):
    head = wm.Head(4, 3, spec, backend="dense", dtype=torch.float64).eval()
    x, y = batch(3, torch.float64, d=4, c=3)
    assert torch.autograd.gradgradcheck(lambda v: head(v, y).sum(), (x,))


@pytest.mark.parametrize("spec", ["softmax(bias=True)", "arcface(s=8)", "arcgrad", "a_softmax", *LATER])
def test_second_derivatives_of_a_streamed_head(spec, monkeypatch):
    from widemargin.head.backends import stream

    x, y = batch(dtype=torch.float64)
    found = []
    for backend in ("dense", "stream"):
        torch.manual_seed(0)
        head = wm.Head(D, C, spec, backend=backend, dtype=torch.float64)
        first = torch.autograd.grad(head(x, y).sum(), (x, *head.parameters()), create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), (x, *head.parameters()))
        found.append((*first, *second))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    monkeypatch.setattr(stream, "_MAX_DOUBLE_BACKWARD_LOGITS", 10)
    with pytest.raises(wm.InputError, match="second derivative"):
        torch.autograd.grad(head(x, y).sum(), x, create_graph=True)
