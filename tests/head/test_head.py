"""What a head does besides its loss: names, growth, precision, compilation, bad input."""

import copy
import math
import shutil

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import widemargin as wm

D, C = 6, 5


@pytest.fixture(autouse=True)
def _fresh_compiler(request):
    if "compiled" in request.node.name:
        torch._dynamo.reset()  # graphs of other tests count towards its limit of recompilations


def batch(n=8, dtype=torch.float32, d=D, c=C):
    draw = torch.Generator().manual_seed(3)
    return torch.randn(n, d, generator=draw).to(dtype).requires_grad_(), torch.randint(c, (n,), generator=draw)


# ------------------------------------------------------------------ numbers that move


def test_margin_warms_up_with_training_calls_only():
    head = wm.Head(D, C, "arcface(s=8, m=warmup(0, 0.4, steps=4))")
    x, y = batch()
    fixed = [wm.Head(D, C, f"arcface(s=8, m={m})") for m in (0.0, 0.1, 0.2, 0.3, 0.4, 0.4)]
    for expected in fixed:
        expected.weight = head.weight
        head.eval()(x, y)
        torch.testing.assert_close(head.train()(x, y), expected(x, y))


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        ("warmup(10, 30, steps=2)", [10, 20, 30, 30]),
        ("decay(40, 10, steps=2)", [40, 20, 10, 10]),
        ("cosine(30, 10, steps=2)", [30, 20, 10, 10]),
        ("anneal(start=100, gamma=1, power=1, floor=30)", [100, 50, 100 / 3, 30]),
    ],
)
def test_scale_follows_its_schedule(schedule, values):
    head = wm.Head(D, C, f"arcgrad(s={schedule})" if "anneal" not in schedule else f"normface(s={schedule})")
    x, y = batch()
    for value in values:
        assert head.scale == pytest.approx(value)
        head(x, y)


@pytest.mark.parametrize("road", ["dense", "stream"])
def test_learnable_scale_gets_the_gradient_of_the_loss(road):
    head = wm.Head(D, C, "cosface(s=learnable(12), m=0.2)", backend=road, dtype=torch.float64)
    x, y = batch(dtype=torch.float64)
    (slope,) = torch.autograd.grad(head(x, y).sum(), [head.margin_state.log_s])
    losses = []
    for scale in (12 * math.exp(1e-5), 12 * math.exp(-1e-5)):
        fixed = wm.Head(D, C, f"cosface(s={scale!r}, m=0.2)", dtype=torch.float64)
        fixed.weight = head.weight
        losses.append(fixed(x, y).sum())
    assert slope.item() == pytest.approx(((losses[0] - losses[1]) / 2e-5).item(), rel=1e-6)
    assert any(p is head.margin_state.log_s for p in head.parameters())


def test_per_class_margin_is_each_class_its_own_head():
    margins = [0.0, 0.1, 0.2, 0.3, 0.4]
    head = wm.Head(D, C, wm.ArcFace(s=16, m=torch.tensor(margins, dtype=torch.float64)), dtype=torch.float64)
    assert head.spec == wm.parse("arcface(s=16, m=[0, 0.1, 0.2, 0.3, 0.4])")
    x, y = batch(dtype=torch.float64)
    loss = head(x, y)
    for label, m in enumerate(margins):
        one = wm.Head(D, C, wm.ArcFace(s=16, m=m), dtype=torch.float64)
        one.weight = head.weight
        torch.testing.assert_close(loss[y == label], one(x, y)[y == label], rtol=1e-12, atol=1e-12)


def test_half_precision_does_not_round_the_numbers():
    head = wm.Head(D, C, wm.AdaCos()).half()
    assert head.weight.dtype == torch.float16
    assert head.numbers.state_s.dtype == torch.float64
    assert head.scale == math.sqrt(2) * math.log(C - 1)
    weighted = wm.Head(D, C, "cosface(m=[0.1, 0.2, 0.3, 0.1, 0.1])", class_weight=[0.1] * C).bfloat16().double()
    assert weighted.numbers.per_class_m[0].item() == 0.1
    assert weighted.numbers.class_weight[0].item() == 0.1


def test_two_forwards_before_one_backward():
    head = wm.Head(D, C, "adacos", dtype=torch.float64)
    x, y = batch(dtype=torch.float64)
    total = head(x, y).sum() + head(x, y).sum() + head(x, y, mix=(y.flip(0), 0.3)).sum()
    total.backward()
    assert torch.isfinite(x.grad).all()


# ------------------------------------------------------------------ precision and transforms


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("road", ["dense", "stream"])
def test_any_float_embedding_beside_fp32_weights(dtype, road):
    head = wm.Head(D, C, "arcface(s=16)", backend=road)
    x, y = batch(dtype=dtype)
    loss = head(x, y)
    loss.mean().backward()
    assert loss.dtype == torch.float32
    assert x.grad.dtype == dtype
    assert head.weight.dtype == head.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("road", ["dense", "stream"])
def test_low_precision_weights_keep_their_dtype(road):
    head = wm.Head(D, C, "arcgrad", backend=road, dtype=torch.bfloat16)
    x, y = batch(dtype=torch.bfloat16)
    loss = head(x, y)
    loss.mean().backward()
    assert loss.dtype == torch.float32
    assert head.weight.dtype == head.weight.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("road", ["dense", "stream"])
def test_autocast_leaves_the_head_in_fp32(dtype, road):
    head = wm.Head(D, C, "arcface(s=64)", backend=road)
    x, y = batch()
    plain = head(x, y)
    wanted = torch.autograd.grad(plain.sum(), (x, head.weight))
    with torch.autocast("cpu", dtype=dtype):
        inside = head(x, y)
        assert head.logits(x).dtype == torch.float32
        if road == "stream":  # its backward pass is our own, so it is an island even inside the region
            got = torch.autograd.grad(inside.sum(), (x, head.weight))
    if road == "dense":
        got = torch.autograd.grad(inside.sum(), (x, head.weight))
    torch.testing.assert_close(inside, plain, rtol=0, atol=0)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def test_huge_and_tiny_embeddings_have_the_same_loss():
    head = wm.Head(D, C, "arcface(s=16)")
    x, y = batch()
    usual = head(x, y)
    for factor in (1e-35, 1e-20, 1e20, 1e35):
        torch.testing.assert_close(head(x.detach() * factor, y), usual, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "spec", ["arcface(s=16)", "arcgrad", "adacos", "adaacos(s=8)", "a_softmax", "softmax(bias=True)"]
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
    assert int(compiled.numbers.steps) == 3


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


# Where a graph breaks, dynamo itself looks at the .grad of tensors that have none, and warns.
breaks_graphs = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@breaks_graphs
@pytest.mark.parametrize("spec", ["arcgrad", "adaacos(s=8)", "a_softmax"])
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


@pytest.mark.parametrize("spec", ["arcface(s=16)", "arcgrad", "l_softmax", "cosface(m=[0.1, 0.2, 0.3, 0.1, 0.1])"])
def test_per_sample_gradients_by_torch_func(spec):
    head = wm.Head(D, C, spec, backend="dense", dtype=torch.float64).eval()
    x, y = batch(dtype=torch.float64)
    parameters = {name: p.detach() for name, p in head.named_parameters()}

    def loss_of_one(values, sample, label):
        return torch.func.functional_call(head, values, (sample.unsqueeze(0), label.unsqueeze(0)))[0]

    per_sample = torch.func.vmap(torch.func.grad(loss_of_one), (None, 0, 0))(parameters, x.detach(), y)["weight"]
    (whole,) = torch.autograd.grad(head(x, y).sum(), [head.weight])
    torch.testing.assert_close(per_sample.sum(0), whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("spec", ["arcface(s=4, m=0.2)", "arcgrad(s=3)", "l_softmax(lam=1)"])
def test_forward_mode_agrees_with_backward_mode(spec):
    head = wm.Head(4, 3, spec, backend="dense", dtype=torch.float64).eval()
    x, y = batch(3, torch.float64, d=4, c=3)
    function = lambda v: head(v, y)  # noqa: E731
    torch.testing.assert_close(torch.func.jacfwd(function)(x.detach()), torch.func.jacrev(function)(x.detach()))
    hessian = torch.func.hessian(lambda v: head(v, y).sum())(x.detach())
    torch.testing.assert_close(hessian, torch.autograd.functional.hessian(lambda v: head(v, y).sum(), x.detach()))


@pytest.mark.parametrize("spec", ["arcface(s=4, m=0.2)", "arcgrad(s=3)", "l_softmax(lam=1)"])
def test_dense_road_differentiates_twice(spec):
    head = wm.Head(4, 3, spec, backend="dense", dtype=torch.float64).eval()
    x, y = batch(3, torch.float64, d=4, c=3)
    assert torch.autograd.gradgradcheck(lambda v: head(v, y).sum(), (x,))


# ------------------------------------------------------------------ keeping


def test_state_dict_deepcopy_and_names(tmp_path):
    names = ["ant", "bee", "cat<script>", "dö", "é"]
    head = wm.Head(D, C, "adaacos(s=6)", class_names=names)
    x, y = batch()
    head(x, y)
    torch.save(head.state_dict(), tmp_path / "head.pt")
    other = wm.Head(D, C, "adaacos(s=6)")
    other.load_state_dict(torch.load(tmp_path / "head.pt", weights_only=True))
    assert other.class_names == names
    assert other.margin_state.state_m == head.margin_state.state_m
    assert copy.deepcopy(head).class_names == names
    bare = wm.Head(D, C, "normface")
    bare.load_state_dict({"weight": head.weight, "numbers.steps": torch.tensor(4)})
    assert int(bare.margin_state.steps) == 4


def test_loading_under_another_margin_is_said():
    head = wm.Head(D, C, "arcface")
    with pytest.warns(UserWarning, match=r"trained with arcface\(s=64, m=0.5\), this head has cosface"):
        wm.Head(D, C, "cosface").load_state_dict(head.state_dict())


def test_damaged_extra_state_is_one_line():
    head = wm.Head(D, C, "arcface")
    state = head.state_dict()
    state["_extra_state"] = torch.tensor([1, 2, 3], dtype=torch.uint8)
    with pytest.raises(wm.InputError, match="extra state is damaged"):
        head.load_state_dict(state)


def test_meta_device_and_back():
    head = wm.Head(D, C, "adacos", device="meta")
    assert head.margin_state.steps.is_meta
    real = head.to_empty(device="cpu")
    real.load_state_dict(wm.Head(D, C, "adacos").state_dict())
    x, y = batch()
    assert torch.isfinite(real(x, y)).all()


def test_extend_keeps_what_was_learned():
    head = wm.Head(D, C, "adacos", class_names=list("abcde"))
    x, y = batch()
    head(x, y), head(x, y)
    old, scale, logits = head.weight.detach().clone(), head.scale, head.logits(x)
    head.extend(3, class_names=["f", "g", "h"])
    assert head.weight.shape == (C + 3, D)
    assert head.class_names == list("abcdefgh")
    assert head.scale == scale
    assert int(head.margin_state.steps) == 2
    torch.testing.assert_close(head.weight[:C], old)
    torch.testing.assert_close(head.logits(x)[:, :C], logits)
    head(x, torch.full_like(y, 7)).sum().backward()
    assert head.weight.grad.shape == head.weight.shape


def test_extend_of_per_class_margins_asks_for_theirs():
    head = wm.Head(D, 2, "arcface(m=[0.1, 0.2])")
    with pytest.raises(wm.InputError, match="give 1 numbers for the new ones"):
        head.extend(1)
    head.extend(1, m=[0.3])
    assert head.spec == wm.parse("arcface(m=[0.1, 0.2, 0.3])")
    x, y = batch(c=3)
    assert head(x, y).shape == (8,)


def test_defaults_that_depend_on_the_classes_follow_extend():
    head = wm.Head(D, 10, "adaacos")
    before = head.scale
    head.extend(10)
    assert head.scale == pytest.approx(before * math.log(19) / math.log(9))


def test_init_from_means_points_at_the_class():
    head = wm.Head(2, 3, "arcface")
    lengths = head.weight.detach().norm(dim=1)
    third = head.weight.detach()[2].clone()
    head.init_from_means(torch.tensor([[2.0, 0.0], [4.0, 0.0], [0.0, 5.0]]), torch.tensor([0, 0, 1]))
    directions = head.weight.detach() / head.weight.detach().norm(dim=1, keepdim=True)
    torch.testing.assert_close(directions[:2], torch.eye(2))
    torch.testing.assert_close(head.weight.detach().norm(dim=1), lengths)
    torch.testing.assert_close(head.weight.detach()[2], third)


def test_only_weights_with_a_length_are_decayed():
    sphere = wm.Head(D, C, "arcface(s=learnable(10))").parameter_groups(weight_decay=0.1)
    assert [(group["weight_decay"], len(group["params"])) for group in sphere] == [(0.0, 2)]
    plain = wm.Head(D, C, "softmax(bias=True)").parameter_groups(weight_decay=0.1)
    assert [(group["weight_decay"], len(group["params"])) for group in plain] == [(0.1, 1), (0.0, 1)]
    torch.optim.SGD(plain, lr=0.1)


def test_auto_road_streams_when_the_logits_would_not_fit(monkeypatch):
    from widemargin.head.backends import select

    x, y = batch()
    head = wm.Head(D, C, "arcface(s=8)")
    assert head.active_backend is None
    expected = head(x, y)
    assert head.active_backend == "dense"
    monkeypatch.setattr(select, "MIN_STREAM_LOGITS", 10)
    torch.testing.assert_close(head(x, y), expected)
    assert head.active_backend == "stream"


def test_stream_never_holds_all_logits():
    """Peak memory of a streamed step stays far below one N×C matrix."""
    import subprocess
    import sys

    code = (
        "import torch, resource, widemargin as wm\n"
        "torch.set_num_threads(1)\n"
        "n, c, d = 1024, 100_000, 8\n"
        "head = wm.Head(d, c, 'cosface', road='stream'); x = torch.randn(n, d); y = torch.randint(c, (n,))\n"
        "wm.Head(d, 100, 'cosface', road='stream')(x, y % 100).sum().backward()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "head(x, y).sum().backward()\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / (n * c * 4))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert float(run.stdout) < 0.5  # as a share of one N×C fp32 matrix of 391 MiB


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: wm.Head(D, 1, "arcface"), "classes=1 must be a whole number of at least 2"),
        (lambda: wm.Head(0, 5, "arcface"), "dim=0 must be a whole number of at least 1"),
        (lambda: wm.Head(D, C, "arcfase"), "unknown loss 'arcfase'; did you mean 'arcface'?"),
        (lambda: wm.Head(D, C, "arcface(q=1)"), r"unknown option of arcface 'q' \(known: gradient, m, s\)"),
        (lambda: wm.Head(D, C, "arcface(m=2)"), r"arcface\(m\)=2 is outside its domain: 0 ≤ value ≤ 1.5708"),
        (lambda: wm.Head(D, C, "arcface(s=0)"), r"arcface\(s\)=0 is outside its domain: value > 0"),
        (lambda: wm.Head(D, C, "arcface(m=warmup(0, 2, steps=5))"), r"arcface\(m\)=2 is outside"),
        (lambda: wm.Head(D, C, "a_softmax(m=1.5)"), "is outside its domain: whole number, value ≥ 1"),
        (lambda: wm.Head(D, C, "arcface(m=learnable(0.2))"), "only a scale can be learnable"),
        (lambda: wm.Head(D, C, "arcface(s=[1, 2, 3, 4, 5])"), "one number per class is not possible here"),
        (lambda: wm.Head(D, C, "arcface(m=[0.1, 0.2])"), "m has 2 numbers for 5 classes"),
        (lambda: wm.Head(D, C, "triplet"), "'triplet' is not a margin"),
        (lambda: wm.Head(D, C, "arcface", backend="dens"), "unknown road 'dens'; did you mean 'dense'?"),
        (
            lambda: wm.Head(D, C, "arcface", label_smoothing=1.0),
            "smoothing=1.0 must be a number of at least 0 and below 1",
        ),
        (lambda: wm.Head(D, C, "arcface", class_weight=[1.0]), "class_weight must be 5 finite numbers"),
        (lambda: wm.Head(D, C, "arcface", class_names=["a"]), "class_names has 1 names for 5 classes"),
        (lambda: wm.Head(D, C, 3), "margin must be a parse string or a Margin, got int"),
        (lambda: wm.Head(D, C, "arcface", label_smoothing="0.1"), "smoothing='0.1' must be a number"),
        (lambda: wm.Head(D, C, "arcface", ignore_index="x"), "ignore_index='x' must be a whole number"),
        (lambda: wm.Head(D, C, "arcface", class_weight="balanced"), "class_weight must be 5 numbers, got 'balanced'"),
        (lambda: wm.margin_softmax(torch.zeros(1, 2), torch.tensor([0]), wm.ArcFace), "a Margin such as ArcFace"),
        (lambda: wm.margin_softmax(torch.ones(1, 2) * 9, torch.tensor([0]), "arcface"), "pass cosines, not logits"),
        (lambda: wm.attach("resnet18", "arcface", num_classes=3), "attach takes a model, got str"),
    ],
)
def test_a_head_that_cannot_be_made_says_why(make, message):
    with pytest.raises(wm.InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.zeros(2, 3), torch.tensor([0, 1]), r"embeddings must have shape \[N, 6\], got \[2, 3\]"),
        (torch.zeros(D), torch.tensor([0]), r"got \[6\]"),
        (torch.zeros(2, D, 1, 1), torch.tensor([0, 1]), r"got \[2, 6, 1, 1\]; use x.flatten\(1\)"),
        (torch.zeros(2, D, dtype=torch.int64), torch.tensor([0, 1]), "must be a float tensor"),
        (torch.zeros(2, D), torch.tensor([0]), r"labels must have shape \[2\], one per embedding, got \[1\]"),
        (torch.zeros(2, D), torch.tensor([0.0, 1.0]), "whole class numbers"),
        (torch.zeros(2, D), torch.tensor([0, 5]), "label 5 is out of range: 5 classes are numbered 0 to 4"),
        (torch.zeros(2, D), torch.tensor([0, -100]), "label -100 is out of range.*ignore_index"),
        (torch.tensor([[1.0] * D, [math.nan] * D]), torch.tensor([0, 1]), r"embedding\(s\) 1 hold NaN"),
        (torch.tensor([[math.inf] * D]), torch.tensor([0]), r"embedding\(s\) 0 hold NaN or infinite"),
    ],
)
@pytest.mark.parametrize("road", ["dense", "stream"])
def test_a_wrong_batch_is_one_line(x, y, message, road):
    head = wm.Head(D, C, "arcface", backend=road)
    with pytest.raises(wm.InputError, match=message) as caught:
        head(x, y)
    assert "\n" not in str(caught.value)
    assert int(head.margin_state.steps) == 0  # nothing moved


@pytest.mark.parametrize("road", ["dense", "stream"])
@pytest.mark.parametrize("spec", ["arcface", "adacos", "adaacos", "softmax"])
def test_empty_batch(road, spec):
    head = wm.Head(D, C, spec, backend=road)
    x = torch.zeros(0, D, requires_grad=True)
    loss = head(x, torch.zeros(0, dtype=torch.int64))
    loss.sum().backward()
    assert loss.shape == (0,)
    assert (head.weight.grad == 0).all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8, torch.int64])
def test_labels_of_any_whole_dtype(dtype):
    x, y = batch()
    head = wm.Head(D, C, "arcface(s=8)", label_smoothing=0.1)
    torch.testing.assert_close(head(x, y.to(dtype)), head(x, y))


def test_non_contiguous_embeddings():
    head = wm.Head(D, C, "arcgrad")
    x, y = batch()
    torch.testing.assert_close(head(x.detach().T.contiguous().T, y), head(x, y))


def test_a_loss_of_ones_own_needs_no_file():
    class Squared(wm.Margin):
        name = "squared"

        def psi(self, theta):
            return torch.cos(theta) - 0.1 * theta**2

    margin = __import__("dataclasses").dataclass(frozen=True, repr=False)(Squared)()
    x, y = batch()
    assert wm.Head(D, C, margin)(x, y).shape == (8,)


def test_training_with_every_road_learns():
    centers = torch.randn(C, 16) * 2
    y = torch.arange(200) % C
    data = centers[y] + 0.3 * torch.randn(200, 16)
    for road in ("dense", "stream"):
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, D))
        head = wm.Head(D, C, "arcface(s=16, m=0.3)", backend=road)
        optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=0.01)
        for _ in range(60):
            optimizer.zero_grad()
            head(body(data), y).mean().backward()
            optimizer.step()
        assert (head.logits(body(data)).argmax(1) == y).float().mean() > 0.98


@pytest.mark.parametrize("spec", ["arcgrad", "softmax(bias=True)"])
def test_streamed_head_with_frozen_weights_still_reaches_the_embeddings(spec):
    x, y = batch(dtype=torch.float64)
    dense, streamed = (wm.Head(D, C, spec, backend=road, dtype=torch.float64) for road in ("dense", "stream"))
    streamed.load_state_dict(dense.state_dict())
    streamed.weight.requires_grad_(False)
    wanted, got = (torch.autograd.grad(head(x, y).sum(), x)[0] for head in (dense, streamed))
    torch.testing.assert_close(got, wanted)
    streamed(x, y).sum().backward()
    assert streamed.weight.grad is None


def test_streamed_gradients_accumulate_and_reach_hooks():
    x, y = batch(dtype=torch.float64)
    head = wm.Head(D, C, "arcface(s=8)", backend="stream", dtype=torch.float64)
    seen = []
    head.weight.register_hook(lambda gradient: seen.append(gradient.clone()))
    head(x, y).sum().backward()
    once = head.weight.grad.clone()
    loss = head(x, y).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    torch.testing.assert_close(head.weight.grad, 3 * once)
    assert len(seen) == 3


@pytest.mark.parametrize("spec", ["arcface", "arcgrad", "softmax", "a_softmax"])
@pytest.mark.parametrize("road", ["dense", "stream"])
def test_a_nan_stays_visible(spec, road):
    x, y = batch()
    head = wm.Head(D, C, spec, backend=road)
    broken = x.detach().clone()
    broken[2, 0] = math.nan
    assert head.logits(broken)[2].isnan().all()
    assert not head.logits(broken)[1].isnan().any()
    with torch.no_grad():
        head.weight[y[0]] = math.nan
    assert head(x, y)[0].isnan()


@pytest.mark.parametrize("spec", ["softmax(bias=True)", "arcface(s=8)", "arcgrad", "a_softmax"])
def test_second_derivatives_of_a_streamed_head(spec, monkeypatch):
    from widemargin.head.backends import stream

    x, y = batch(dtype=torch.float64)
    found = []
    for road in ("dense", "stream"):
        torch.manual_seed(0)
        head = wm.Head(D, C, spec, backend=road, dtype=torch.float64)
        first = torch.autograd.grad(head(x, y).sum(), (x, head.weight), create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), (x, head.weight))
        found.append((*first, *second))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    monkeypatch.setattr(stream, "_MAX_DOUBLE_BACKWARD_LOGITS", 10)
    with pytest.raises(wm.InputError, match="cannot be differentiated twice"):
        torch.autograd.grad(head(x, y).sum(), x, create_graph=True)


def test_a_ceiling_holds_the_adaptive_scale():
    x, y = batch()
    free, held = wm.Head(D, C, "adacos"), wm.Head(D, C, "adacos(ceiling=2)")
    held.weight = free.weight
    for _ in range(6):
        free(x, y), held(x, y)
    assert free.scale > 2
    assert held.scale == 2


def test_now_says_how_the_numbers_stand():
    head = wm.Head(D, C, "arcface(s=learnable(12), m=warmup(0, 0.4, steps=4))")
    x, y = batch()
    head(x, y), head(x, y)
    assert head.margin_values == pytest.approx({"s": 12.0, "m": 0.2})
    assert wm.Head(D, C, "cosface(m=[0.1, 0.2, 0.3, 0.1, 0.1])").margin_values == {"s": 64.0}


def test_an_objective_and_a_model_grow_in_every_part():
    model = wm.MarginModel(nn.Linear(4, D), wm.Objective("arcface + 0.02*center + 0.1*triplet", D, C))
    model.eval()
    model.head.weight.requires_grad_(False)
    model.extend(2)
    assert not model.head.weight.requires_grad
    assert not model.head.margin_state.training
    assert model.objective.parts["center"].centers.shape == (C + 2, D)
    loss = model.train()(torch.randn(6, 4), torch.tensor([0, 1, 6, 6, 5, 5]))
    assert torch.isfinite(loss).all()
    with pytest.raises(wm.InputError, match="cannot be extended"):
        wm.Objective("cross_entropy", D, C).extend(1)


def test_a_model_refuses_options_that_need_labels():
    model = wm.attach(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)), "arcface", num_classes=3, at="1")
    with pytest.raises(wm.InputError, match="labels given without labels; write model"):
        model(torch.randn(2, 4), labels=torch.tensor([0, 1]))
    groups = model.parameter_groups(weight_decay=0.1)
    assert [(g["weight_decay"], len(g["params"])) for g in groups] == [(0.1, 1), (0.0, 2)]


def test_numbers_of_numpy_are_numbers():
    import numpy as np

    head = wm.Head(np.int64(D), np.int32(C), wm.CosFace(s=np.float32(8), m=np.full(C, 0.25)))
    x, y = batch()
    assert head.spec == wm.CosFace(s=8, m=[0.25] * C)
    torch.testing.assert_close(head(x, y, mix=(y, np.float64(0.5))), head(x, y))


OTHER = torch.zeros(8, dtype=torch.int64)


@pytest.mark.parametrize(
    "options",
    [
        {"mix": (OTHER,)},
        {"mix": 0.3},
        {"mix": (OTHER, 2.0)},
        {"mix": (OTHER + 99, 0.5)},
        {"mix": (OTHER, torch.ones(8, 1))},
        {"sample_weight": torch.ones(3)},
    ],
)
@pytest.mark.parametrize("objective", [False, True])
def test_a_refused_call_moves_nothing(options, objective):
    x, y = batch()
    model = wm.Objective("adaacos(s=8) + 0.1*center", D, C) if objective else wm.Head(D, C, "adaacos(s=8)")
    with torch.no_grad():
        (model.head if objective else model).init_from_means(x, y)  # so that a call would move the margin
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(wm.InputError):
        model(x, y, **options)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
    model(x, y)
    changed = [key for key, value in model.state_dict().items() if not torch.equal(value, before[key])]
    assert any("state_m" in key for key in changed)


def test_logits_of_ignored_samples_have_no_margin():
    head = wm.Head(D, C, "cosface(s=8, m=0.3)", ignore_index=-1)
    x, y = batch()
    marked = y.clone()
    marked[3] = -1
    with_margin, plain = head.logits(x, marked), head.logits(x)
    torch.testing.assert_close(with_margin[3], plain[3])
    assert not torch.allclose(with_margin[2], plain[2])


def test_ignored_samples_do_not_pull_the_means():
    head = wm.Head(2, 2, "arcface", ignore_index=-1)
    head.init_from_means(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, -5.0]]), torch.tensor([0, 1, -1]))
    directions = head.weight.detach() / head.weight.detach().norm(dim=1, keepdim=True)
    torch.testing.assert_close(directions, torch.eye(2))


def test_extend_keeps_bias_and_class_weights():
    head = wm.Head(D, C, "softmax(bias=True)", class_weight=[1.0, 2.0, 3.0, 4.0, 5.0])
    with torch.no_grad():
        head.bias.copy_(torch.arange(C))
    with pytest.raises(wm.InputError, match="give 1 of them"):
        head.extend(1)
    head.extend(1, class_weight=[6.0])
    assert head.bias.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 0.0]
    assert head.margin_state.class_weight.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_an_objective_grows_whole_or_not_at_all():
    objective = wm.Objective("arcface(m=[0.1, 0.2, 0.3]) + cosface + center", D, 3)
    with pytest.raises(wm.InputError, match="m is per class"):
        objective.extend(1)
    with pytest.raises(wm.InputError, match="unknown per-class option 'q'"):
        objective.extend(1, m=[0.4], q=[1.0])
    assert [part.weight.shape[0] for part in (objective.parts["arcface"], objective.parts["cosface"])] == [3, 3]
    objective.extend(1, m=[0.4])
    assert repr(objective.spec).startswith("arcface(s=64, m=[0.1, 0.2, 0.3, 0.4]) + cosface(s=64, m=0.35)")
    assert objective(torch.randn(4, D), torch.tensor([0, 1, 2, 3])).shape == (4,)


@pytest.mark.parametrize("lam", [0.25, torch.tensor(0.25), torch.full((8,), 0.25, dtype=torch.float64)])
def test_mixup_keeps_the_dtype_of_the_loss(lam):
    x, y = batch()
    head = wm.Head(D, C, "arcface(s=8)")
    mixed = head(x, y, mix=(y.flip(0), lam))
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, 0.25 * head(x, y) + 0.75 * head(x, y.flip(0)))


@pytest.mark.parametrize("spec", ["cosface(m=[0.1, 0.2, 0.3, 0.1, 0.1])", "normface(s=learnable(30))", "adacos"])
def test_a_head_made_on_the_meta_device_starts_like_any_other(spec):
    made, real = wm.Head(D, C, spec, device="meta").to_empty(device="cpu"), wm.Head(D, C, spec)
    made.reset_parameters()
    for key, value in real.margin_state.state_dict().items():
        torch.testing.assert_close(made.numbers.state_dict()[key], value)
    x, y = batch()
    loaded = wm.Head(D, C, spec, device="meta").to_empty(device="cpu")
    loaded.load_state_dict(real.state_dict())
    torch.testing.assert_close(loaded(x, y), real(x, y))


def test_without_a_number_the_optimizers_own_decay_counts():
    optimizer = torch.optim.AdamW(wm.Head(D, C, "softmax(bias=True)").parameter_groups(), weight_decay=0.05)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.05, 0.0]


def test_a_learnable_number_inside_phi_gets_its_gradient_on_both_roads():
    from dataclasses import dataclass

    from widemargin.losses.base import option

    @dataclass(frozen=True, repr=False)
    class Bent(wm.Margin):
        name = "bent"
        s: float = option(5.0, "scale", allows_schedule=True, allows_learnable=True)
        t: float = option(2.0, "bend", allows_schedule=True, allows_learnable=True)

        def phi(self, cos):
            return cos - cos**2 / (self.t * self.s)

    x, y = batch(dtype=torch.float64)
    found = []
    for road in ("dense", "stream"):
        torch.manual_seed(0)
        head = wm.Head(D, C, Bent(s=wm.Learnable(5), t=wm.Learnable(2)), backend=road, dtype=torch.float64)
        found.append(torch.autograd.grad(head(x, y).sum(), (x, *head.parameters())))
    torch.testing.assert_close(*found)


def test_a_small_batch_over_many_classes_makes_no_copy_of_the_weights():
    """With N = 2 the blocks are bounded by D, not by N: no normalised copy of W appears."""
    from widemargin.head.backends.class_blocks import max_block_rows

    assert max_block_rows(2, 128) * 128 <= 1 << 20
    assert max_block_rows(256, 512) * 256 <= 1 << 18


def test_tiny_half_precision_weights_give_no_nan():
    head = wm.Head(D, C, "arcface", dtype=torch.float16)
    with torch.no_grad():
        head.weight.mul_(1e-4)
    x, y = batch()
    head(x, y).sum().backward()
    assert not head.weight.grad.isnan().any()


def test_half_precision_does_not_round_a_learnable_scale():
    head = wm.Head(D, C, "normface(s=learnable(30))").half()
    assert head.weight.dtype == torch.float16
    assert head.scale == pytest.approx(30, abs=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: wm.ArcFace(margin=0.5), r"unknown option of arcface 'margin'.*known: gradient, m, s"),
        (lambda: wm.Triplet(minning="hard"), "did you mean 'mining'?"),
        (
            lambda: wm.Objective("arcface", D, C, smothing=0.1),
            "unknown option of Head 'smothing'; did you mean 'smoothing'?",
        ),
    ],
)
def test_an_unknown_option_names_the_nearest(make, message):
    with pytest.raises(wm.InputError, match=message):
        make()


def test_shapes_without_values_pass_through():
    head = wm.Head(D, C, "arcface", device="meta")
    loss = head(torch.empty(3, D, device="meta"), torch.empty(3, dtype=torch.int64, device="meta"))
    assert loss.is_meta
    assert loss.shape == (3,)


@pytest.mark.parametrize("road", ["dense", "stream", "sampled", "sharded"])
@pytest.mark.parametrize("spec", ["softmax", "l_softmax(m=1)", "m_softmax(m=0)"])
@pytest.mark.parametrize("by_logits", [False, True])
def test_softmax_learns_from_zero_weights(road, spec, by_logits):
    """The product is the logit, so that a weight without a direction still gets torch's own gradient."""
    if by_logits and road != "dense":
        return
    head = wm.Head(D, C, spec, backend=road, dtype=torch.float64)
    torch.nn.init.zeros_(head.weight)
    x, y = torch.randn(7, D, dtype=torch.float64), torch.arange(7) % C
    loss = F.cross_entropy(head.logits(x, y), y, reduction="sum") if by_logits else head(x, y).sum()
    loss.backward()
    plain = torch.zeros(C, D, dtype=torch.float64, requires_grad=True)
    F.cross_entropy(x @ plain.T, y, reduction="sum").backward()
    torch.testing.assert_close(head.weight.grad, plain.grad)
