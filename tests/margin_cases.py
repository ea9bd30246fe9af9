"""Margins with their textbook references in double precision, and how a head is compared with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

import textbook
import textbook_later
import widemargin as wm
from later_cases import (
    NO_CROSS_ENTROPY,
    SETTINGS,
    STATE,
    draw_normals,
    make_reference,
    spell,
    uneven_counts,
    with_counts,
)

BACKENDS = ("dense", "stream")
Logits = Callable[[Tensor, Tensor, Tensor], Tensor]
# Spelling → textbook logits of a fresh head in evaluation. Bare names check the defaults.
FIXED: dict[str, Logits] = {
    "softmax": textbook.softmax,
    "modified_softmax": textbook.modified_softmax,
    "normface": textbook.normface,
    "normface(s=7.5)": partial(textbook.normface, s=7.5),
    "cosine_softmax(s=16)": partial(textbook.normface, s=16.0),
    "m_softmax": textbook.m_softmax,
    "m_softmax(m=1.7)": partial(textbook.m_softmax, m=1.7),
    "l_softmax": textbook.l_softmax,
    "l_softmax(m=2, lam=0)": partial(textbook.l_softmax, m=2, lam=0.0),
    "l_softmax(m=3, lam=1.5)": partial(textbook.l_softmax, m=3, lam=1.5),
    "l_softmax(m=4, lam=0)": partial(textbook.l_softmax, m=4, lam=0.0),
    "a_softmax": textbook.a_softmax,
    "a_softmax(m=2, lam=5)": partial(textbook.a_softmax, m=2, lam=5.0),
    "sphereface(m=4, lam=0)": partial(textbook.a_softmax, m=4, lam=0.0),
    "a_softmax(m=5, lam=0.3)": partial(textbook.a_softmax, m=5, lam=0.3),
    "cosface": textbook.cosface,
    "am_softmax(s=20, m=0.2)": partial(textbook.cosface, s=20.0, m=0.2),
    "arcface": textbook.arcface,
    "arcface(s=20, m=0.1)": partial(textbook.arcface, s=20.0, m=0.1),
    "arcface(s=12, m=1.4)": partial(textbook.arcface, s=12.0, m=1.4),
    "combined": textbook.combined,
    "combined(s=16, m1=1.35, m2=0.2, m3=0.1)": partial(textbook.combined, s=16.0, m1=1.35, m2=0.2, m3=0.1),
    "combined(s=8, m1=3.2, m2=1.1, m3=0.4)": partial(textbook.combined, s=8.0, m1=3.2, m2=1.1, m3=0.4),
    "arcgrad": textbook.arcgrad,
    "arcgrad(s=30)": partial(textbook.arcgrad, s=30.0),
}
ADAPTIVE: dict[str, Callable[[int], textbook.AdaCos | textbook.AdaAcos]] = {
    "adacos": textbook.AdaCos,
    "adacos(fixed=True)": partial(textbook.AdaCos, fixed=True),
    "adacos(floor=4)": partial(textbook.AdaCos, floor=4.0),
    "adaacos": textbook.AdaAcos,
    "adaacos(s=6)": partial(textbook.AdaAcos, s=6.0),
    "adaacos(floor=20)": partial(textbook.AdaAcos, floor=20.0),
}
TWO_CLASS_ADAPTIVE = ("adacos(floor=4)", "adaacos(s=6)", "adaacos(floor=20)")
# The losses after ArcFace, whose references are objects: spelling → name and options.
LATER = {spell(name, options): (name, options) for name, some in SETTINGS.items() for options in some}
LATER_ADAPTIVE = [spelling for spelling, (name, _) in LATER.items() if name in STATE]
# One setting of each loss, for tests that combine it with something else; two where a loss has two forms.
EACH = (
    "softmax",
    "modified_softmax",
    "normface(s=7.5)",
    "m_softmax",
    "l_softmax(m=3, lam=1.5)",
    "a_softmax(m=2, lam=5)",
    "cosface",
    "arcface(s=12, m=1.4)",
    "combined(s=16, m1=1.35, m2=0.2, m3=0.1)",
    "arcgrad",
    *(spell(name, some[1]) for name, some in SETTINGS.items()),
    *(spell(name, some[-1]) for name, some in SETTINGS.items() if len(some) > 2),
)
SMOOTHED = tuple(spelling for spelling in EACH if spelling.partition("(")[0] not in NO_CROSS_ENTROPY)
REGIMES = ("random", "trained", "opposed")
SIZES = ((1, 2, 3), (9, 2, 4), (16, 5, 3), (24, 17, 8), (12, 40, 6))

# Strategies, and settings for tests that draw from them.
any_backend = st.sampled_from(BACKENDS)
any_regime = st.sampled_from(REGIMES)
any_scale = st.floats(0.05, 128.0)
any_margin_angle = st.floats(0.0, math.pi / 2)
quick = settings(max_examples=30, deadline=None, database=None, derandomize=True)


def make_head(dim: int, classes: int, margin, backend: str = "dense", seed: int = 0, **options) -> wm.Head:
    """A head in double precision whose class weights differ in length; `{counts}` in a spelling are uneven counts."""
    if isinstance(margin, str) and "{counts}" in margin:
        margin = margin.format(counts=uneven_counts(classes).tolist())
    head = wm.Head(dim, classes, margin, backend=backend, dtype=torch.float64, **options)
    random = torch.Generator().manual_seed(seed + 1000)
    with torch.no_grad():
        shape = head.weight.shape
        head.weight.copy_(torch.randn(shape, dtype=torch.float64, generator=random))
        head.weight.mul_(0.5 + torch.rand(*shape[:-1], 1, dtype=torch.float64, generator=random))
        if head.bias is not None:
            head.bias.copy_(torch.randn(classes, dtype=torch.float64, generator=random))
    return head


def make_batch(head: wm.Head, samples: int, regime: str = "random", seed: int = 0) -> tuple[Tensor, Tensor]:
    """Embeddings anywhere (random), near their class weight (trained), or on its far side (opposed)."""
    random = torch.Generator().manual_seed(seed)
    y = torch.randint(head.num_classes, (samples,), generator=random)
    noise = torch.randn(samples, head.embedding_dim, dtype=torch.float64, generator=random)
    own = F.normalize(head.weight.detach().view(head.num_classes, -1, head.embedding_dim)[:, 0])[y]
    x = {"random": noise, "trained": own + 0.15 * noise, "opposed": -own + 0.15 * noise}[regime]
    return 1.7 * x, y


SEED_OF_DRAWS = 77


def parameters_of(head: wm.Head) -> list[Tensor]:
    """Class weights, bias and what else is learnt as it is, as far as there are any."""
    found = (head.weight, head.bias, getattr(head.margin_state, "learnt_b", None))
    return [parameter for parameter in found if parameter is not None]


def reference_result(head: wm.Head, x: Tensor, y: Tensor, loss_of: Callable, cotangent: Tensor):
    """Loss of the reference and its gradients to x, to the weights and, if there are any, to bias and learnt number."""
    x = x.detach().clone().requires_grad_()
    leaves = [p.detach().clone().requires_grad_() for p in parameters_of(head)]
    loss = loss_of(x, *leaves[:1], y, *leaves[1:])
    return loss.detach(), torch.autograd.grad(loss @ cotangent, [x, *leaves])


def head_result(head: wm.Head, x: Tensor, y: Tensor, cotangent: Tensor, **call):
    """Loss of the head and its gradients, in the order of `reference_result`."""
    x = x.detach().clone().requires_grad_()
    leaves = [x, *parameters_of(head)]
    torch.manual_seed(SEED_OF_DRAWS)
    loss = head(x, y, **call)
    return loss.detach(), torch.autograd.grad(loss @ cotangent, leaves)


def assert_same_loss(got: Tensor, wanted: Tensor) -> None:
    """Within 1e-12 of the loss, or of 1 where it is smaller."""
    assert got.shape == wanted.shape
    assert got.dtype == torch.float64
    off = (got - wanted).abs() / wanted.abs().clamp(min=1.0)
    assert off.max() <= 1e-12, f"loss {got[off.argmax()]} instead of {wanted[off.argmax()]}"


def assert_same_gradient(got: Tensor, wanted: Tensor) -> None:
    """Within 1e-10 of the largest entry; the last term is the rounding of `softmax − one_hot` in the reference."""
    off = (got - wanted).abs().max()
    assert off <= 1e-10 * wanted.abs().max() + 1e-12, f"gradient off by {off:.2e} of {wanted.abs().max():.2e}"


def assert_matches(head: wm.Head, x: Tensor, y: Tensor, loss_of: Callable, **call) -> None:
    """Loss and every gradient of the head's call are those of the reference."""
    cotangent = 0.5 + torch.rand(len(x), dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    wanted, wanted_gradients = reference_result(head, x, y, loss_of, cotangent)
    got, gradients = head_result(head, x, y, cotangent, **call)
    assert_same_loss(got, wanted)
    for one, other in zip(gradients, wanted_gradients, strict=True):
        assert_same_gradient(one, other)


def plain_loss(logits_of: Logits, label_smoothing: float = 0.0) -> Callable:
    """Cross-entropy of textbook logits as a function of x, W, y."""
    return lambda x, W, y: textbook.loss(logits_of(x, W, y), y, label_smoothing)


def later_loss(simulation: textbook_later.Reference, label_smoothing: float = 0.0, draws: Tensor | None = None):
    """The loss of a reference as a function of x, W, y and, where one is learnt, b; with draws that of training."""
    more = {} if draws is None else {"training": True, "draws": draws}

    def loss(x: Tensor, W: Tensor, y: Tensor, *learnt: Tensor) -> Tensor:
        if learnt:
            simulation.learnt["b"] = learnt[0].squeeze(0)
        return simulation.loss(x, W, y, label_smoothing=label_smoothing, **more)

    return loss


def simulate(spelling: str, classes: int) -> textbook_later.Reference:
    """The reference of a fresh head, by a spelling of `LATER`."""
    name, options = LATER[spelling]
    return make_reference(name, classes, **with_counts(options, classes))


def loss_reference(spelling: str, classes: int, label_smoothing: float = 0.0) -> Callable:
    """The loss of a fresh head in evaluation, by a spelling of `FIXED` or `LATER`."""
    if spelling in FIXED:
        return plain_loss(FIXED[spelling], label_smoothing)
    return later_loss(simulate(spelling, classes), label_smoothing)


def target_angles(head: wm.Head, x: Tensor, y: Tensor) -> Tensor:
    return torch.acos(textbook.target_of(textbook.cosines(x, head.weight.detach()), y))


def state_of(head: wm.Head) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in head.margin_state.state_dict().items()}


def assert_state(head: wm.Head, simulation: textbook.AdaCos | textbook.AdaAcos | textbook_later.Reference) -> None:
    if isinstance(simulation, textbook_later.Reference):
        for name in STATE.get(head.margin.name, ()):
            wanted = getattr(simulation, name)
            assert getattr(head.margin_state, f"state_{name}").item() == pytest.approx(wanted, rel=1e-12, abs=1e-12)
    elif isinstance(simulation, textbook.AdaCos):
        assert head.margin_state.state_s.item() == pytest.approx(simulation.s, rel=1e-12, abs=1e-12)
    else:
        assert head.margin_state.state_m.item() == pytest.approx(simulation.m, rel=1e-12, abs=1e-12)
        assert head.scale == pytest.approx(simulation.s, rel=1e-6)  # read in single precision


def assert_same_heads(one: str, other: str, backend: str, unit_x: bool = False) -> None:
    """Two losses agree in value and gradient, wherever the embeddings are."""
    for seed, regime in enumerate(("random", "trained", "opposed")):
        heads = [make_head(4, 6, spelling, backend).eval() for spelling in (one, other)]
        x, y = make_batch(heads[0], 16, regime, seed)
        x = F.normalize(x) if unit_x else x
        cotangent = torch.linspace(0.5, 1.5, 16, dtype=torch.float64)
        (loss, gradients), (wanted, wanted_gradients) = (head_result(head, x, y, cotangent) for head in heads)
        assert_same_loss(loss, wanted)
        # The length of x is kept by some losses: only directions are compared where x has unit length.
        if not unit_x:
            assert_same_gradient(gradients[0], wanted_gradients[0])
        assert_same_gradient(gradients[1], wanted_gradients[1])


def cosines_and_lengths(head: wm.Head, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    W = head.weight.detach()
    return textbook.cosines(x, W), textbook.lengths(x).squeeze(1), textbook.lengths(x) * textbook.lengths(W).T


def assert_reference(margin, logits_of: Logits, regime: str, backend: str) -> None:
    head = make_head(5, 7, margin, backend).eval()
    x, y = make_batch(head, 10, regime)
    assert_matches(head, x, y, plain_loss(logits_of))


def assert_is_textbook(spelling: str, backend: str, regime: str) -> None:
    """Loss and gradients of a fresh head in evaluation are the reference's, for heads of all `SIZES`."""
    for seed, (samples, classes, dim) in enumerate(SIZES):
        head = make_head(dim, classes, spelling, backend, seed).eval()
        x, y = make_batch(head, samples, regime, seed)
        assert_matches(head, x, y, plain_loss(FIXED[spelling]))


def assert_adapts_as_textbook(spelling: str, backend: str, regime: str) -> None:
    """The same for the first two training batches of an adaptive margin, of which the second moves an AdaCos scale."""
    for seed, (samples, classes, dim) in enumerate(SIZES):
        if classes == 2 and spelling not in TWO_CLASS_ADAPTIVE:
            continue
        head = make_head(dim, classes, spelling, backend, seed)
        simulation = ADAPTIVE[spelling](classes)
        for call in range(2):
            x, y = make_batch(head, samples, regime, seed + call)
            simulation.observe(x, head.weight.detach(), y)
            assert_matches(head, x, y, plain_loss(simulation.logits))


def assert_is_later_textbook(spelling: str, backend: str, regime: str) -> None:
    """Loss, gradients and state of training calls, and of evaluation where it differs, for heads of all `SIZES`."""
    for seed, (samples, classes, dim) in enumerate(SIZES):
        head = make_head(dim, classes, spelling, backend, seed)
        simulation = simulate(spelling, classes)
        differs = bool(head.margin.adaptive_fields) or head.margin.name == "elasticface"
        for call in range(2 if differs else 1):
            x, y = make_batch(head, samples, regime, seed + call)
            simulation.observe(x, head.weight.detach(), y)
            draws = None
            if head.margin.name == "elasticface":
                draws = draw_normals(SEED_OF_DRAWS, (1, samples), torch.float64)[0]
            assert_matches(head.train(), x, y, later_loss(simulation, draws=draws))
            assert_state(head, simulation)
        if differs:
            assert_matches(head.eval(), x, y, later_loss(simulation))
            assert_state(head, simulation)


def spellings_of(name: str) -> list[str]:
    """The spellings of `FIXED` and `ADAPTIVE` that mean the margin `name`."""
    return [spelling for spelling in (*FIXED, *ADAPTIVE) if wm.parse(spelling).name == name]
