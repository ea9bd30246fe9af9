"""`python -m benchmarks numerics`: accuracy of fp32 gradients, ours and pytorch-metric-learning's.

The error is ‖g − g64‖ / ‖g64‖ of the fp32 gradient against the same head in fp64 on the same inputs, the larger of
those with respect to x and W. Regimes: random initialisation, and embeddings moved towards their class until the mean
loss is 1e-2, 1e-4, 1e-6 (a dash if a loss cannot reach it: its scale or a penalty bounds it from below). A loss with
random draws is measured in evaluation mode, and one that needs class counts has those of a long tail. Degenerate
points: x = w_y, x = −w_y, x = w_other and x = 0, in fp32, fp16 and bf16; the table shows whether loss and gradient are
finite. The results are printed as a table and, on request, written as JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from widemargin import __version__
from widemargin.head.head import Head
from widemargin.losses.grammar import parse_list, parse_margin
from widemargin.losses.margin import Margin
from widemargin.losses.registry import list_losses
from widemargin.numerics.angles import unit_and_norm
from widemargin.viz.terminal import check_writable, console

from .margins import benchmark_margin, draws_numbers, weights_per_class

NUM_SAMPLES, EMBEDDING_DIM, NUM_CLASSES = 256, 512, 1000
TARGET_LOSSES = (1e-2, 1e-4, 1e-6)
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

LossFunction = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class LossImplementation:
    """A loss to measure: its name, and a function that builds it on class weights [C, D] in a dtype."""

    name: str
    library: str
    make: Callable[[Tensor], tuple[LossFunction, nn.Parameter]]
    embedding_norm: float
    """Norm of the embeddings: 1, or 64 if the loss keeps or reads it, to reach small losses."""


@dataclass(frozen=True)
class GradientAccuracy:
    """One row of the table."""

    name: str
    library: str
    initial: float
    trained: tuple[float | None, ...]
    finite: dict[str, bool]


def widemargin_loss(spec: str, backend: str = "dense") -> LossImplementation:
    """One of our margins."""
    margin: Margin = parse_margin(spec)
    per_class = weights_per_class(spec)

    def make(weight: Tensor) -> tuple[LossFunction, nn.Parameter]:
        num_classes, embedding_dim = weight.shape
        filled = benchmark_margin(spec, num_classes)
        head = Head(embedding_dim, num_classes, filled, backend=backend, dtype=weight.dtype)
        head.train(not draws_numbers(head.margin))
        with torch.no_grad():
            head.weight.copy_(weight if per_class == 1 else _with_more_subcenters(weight, per_class))
        return head, head.weight

    keeps_length = margin.uses_x_norm or bool(margin.sample_fields)
    return LossImplementation(repr(margin), f"widemargin, {backend}", make, 64.0 if keeps_length else 1.0)


def _with_more_subcenters(weight: Tensor, per_class: int) -> Tensor:
    """Class weights [C, K, D]: the given ones first, the others in random directions, the same in every dtype."""
    draw = torch.Generator().manual_seed(1)
    more = torch.randn(len(weight), per_class - 1, weight.shape[1], generator=draw) / weight.shape[1] ** 0.5
    return torch.cat([weight.unsqueeze(1), more.to(weight.dtype)], 1)


def metric_learning_losses() -> Iterator[LossImplementation]:
    """Margins of pytorch-metric-learning with the same options; none if it is not installed."""
    try:
        from pytorch_metric_learning import losses as peer
    except ImportError:
        return

    def make_implementation(name: str, build: Callable[[int, int], Any], length: float = 1.0) -> LossImplementation:
        def make(weight: Tensor) -> tuple[LossFunction, nn.Parameter]:
            loss = build(weight.shape[0], weight.shape[1]).to(weight.dtype)
            with torch.no_grad():
                loss.W.copy_(weight.T)
            loss.reducer = _make_per_sample_reducer(loss.reducer)
            return loss, loss.W

        return LossImplementation(name, "pytorch-metric-learning", make, length)

    yield make_implementation("ArcFaceLoss", lambda c, d: peer.ArcFaceLoss(c, d, margin=28.6479, scale=64))
    yield make_implementation("CosFaceLoss", lambda c, d: peer.CosFaceLoss(c, d, margin=0.35, scale=64))
    yield make_implementation(
        "NormalizedSoftmaxLoss", lambda c, d: peer.NormalizedSoftmaxLoss(c, d, temperature=1 / 30)
    )
    yield make_implementation("SphereFaceLoss", lambda c, d: peer.SphereFaceLoss(c, d, margin=4, scale=1), 64.0)
    yield make_implementation(
        "LargeMarginSoftmaxLoss", lambda c, d: peer.LargeMarginSoftmaxLoss(c, d, margin=2, scale=1), 64.0
    )


def _make_per_sample_reducer(reducer: Any) -> Any:
    from pytorch_metric_learning.reducers import DoNothingReducer

    class Elements(DoNothingReducer):  # type: ignore[misc]
        def forward(self, loss_dict: Any, embeddings: Tensor, labels: Tensor) -> Tensor:
            elements: Tensor = loss_dict["loss"]["losses"]
            return elements

    return Elements()


def measure_gradient_accuracy(implementation: LossImplementation) -> GradientAccuracy:
    """Measure one loss."""
    x, y, weight = random_inputs(implementation.embedding_norm)
    return GradientAccuracy(
        name=implementation.name,
        library=implementation.library,
        initial=gradient_error(implementation, x, y, weight),
        trained=tuple(_error_at_loss(implementation, x, y, weight, target) for target in TARGET_LOSSES),
        finite={name: is_finite_at_degenerate_points(implementation, weight, dtype) for name, dtype in DTYPES.items()},
    )


def random_inputs(embedding_norm: float) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings [N, D] in random directions, labels [N], class weights [C, D] of norm about 1."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(NUM_SAMPLES, EMBEDDING_DIM, generator=draw)
    weight = torch.randn(NUM_CLASSES, EMBEDDING_DIM, generator=draw) / EMBEDDING_DIM**0.5
    return unit_and_norm(x)[0] * embedding_norm, torch.randint(NUM_CLASSES, (NUM_SAMPLES,), generator=draw), weight


def pull_towards_class(x: Tensor, y: Tensor, weight: Tensor, fraction: float) -> Tensor:
    """Rotate embeddings towards their class by `fraction` (0: unchanged, 1: at the class weight); norms stay."""
    own, (start, length) = unit_and_norm(weight[y])[0], unit_and_norm(x)
    return unit_and_norm((1 - fraction) * start + fraction * own)[0] * length.unsqueeze(1)


def gradients(
    implementation: LossImplementation, x: Tensor, y: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss [N] and the gradients of its sum with respect to x and the class weights."""
    function, parameter = implementation.make(weight)
    x = x.clone().requires_grad_()
    loss = function(x, y)
    to_x, to_weight = torch.autograd.grad(loss.sum(), (x, parameter))
    return loss.detach(), to_x, to_weight


def gradient_error(implementation: LossImplementation, x: Tensor, y: Tensor, weight: Tensor) -> float:
    """The larger relative error of the two fp32 gradients against fp64 on the same inputs."""
    _, *single = gradients(implementation, x, y, weight)
    _, *double = gradients(implementation, x.double(), y, weight.double())
    return max(float(torch.dist(g.double(), h) / torch.linalg.norm(h)) for g, h in zip(single, double, strict=True))


def _error_at_loss(
    implementation: LossImplementation, x: Tensor, y: Tensor, weight: Tensor, target: float
) -> float | None:
    """Error at a mean fp64 loss of `target`, found by bisection; None if it cannot be reached."""

    def mean_loss(fraction: float) -> float:
        function, _ = implementation.make(weight.double())
        with torch.no_grad():
            return float(function(pull_towards_class(x.double(), y, weight.double(), fraction), y).mean())

    low, high = 0.0, 0.995
    if mean_loss(high) > target:
        return None
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_loss(middle) > target else (low, middle)
    return gradient_error(implementation, pull_towards_class(x, y, weight, high), y, weight)


def is_finite_at_degenerate_points(implementation: LossImplementation, weight: Tensor, dtype: torch.dtype) -> bool:
    """True if loss and gradients are finite at x = w_y, −w_y, w_other and 0."""
    rows = unit_and_norm(weight[:16])[0]  # more classes than the largest default `topk`
    x = torch.stack([rows[0], -rows[1], rows[3], torch.zeros_like(rows[2])]).to(dtype)
    loss, to_x, to_weight = gradients(implementation, x, torch.tensor([0, 1, 2, 2]), rows)
    return all(bool(torch.isfinite(t).all()) for t in (loss, to_x, to_weight))


def list_loss_implementations(
    requested_specs: list[str] | None = None, backend: str = "dense"
) -> list[LossImplementation]:
    """Our margins (all, or the requested ones) and those of pytorch-metric-learning.

    A margin whose default scale is too small for small losses is included again with s = 64.
    """
    specs = requested_specs or [spelling for name in list_losses("margins") for spelling in _spellings(name)]
    return [*(widemargin_loss(spec, backend) for spec in specs), *metric_learning_losses()]


def _spellings(name: str) -> list[str]:
    margin = benchmark_margin(name, NUM_CLASSES)
    has_scale = "s" in margin.options() and not margin.uses_any_norm
    small = has_scale and (margin.for_num_classes(NUM_CLASSES).s or 0.0) < 64.0
    return [name, f"{name}(s=64)"] if small else [name]


def print_numerics(requested_losses: str | None, backend: str, json_path: str | None) -> None:
    """Measure all losses, print the table, write the JSON."""
    specs = None if requested_losses is None else [repr(loss) for loss in parse_list(requested_losses)]
    if json_path is not None:
        check_writable(json_path)  # before measuring
    implementations = list_loss_implementations(specs, backend)
    screen = console()
    rows = [
        measure_gradient_accuracy(one) for one in track(implementations, "measuring", console=screen, transient=True)
    ]
    table = Table(
        title=f"fp32 gradient error against fp64, N={NUM_SAMPLES}, D={EMBEDDING_DIM}, C={NUM_CLASSES}",
        title_justify="left",
        title_style="bold",
    )
    table.add_column("loss", overflow="fold")
    for column in ("at start", *(f"loss {target:.0e}" for target in TARGET_LOSSES)):
        table.add_column(column, justify="right", min_width=8)
    for name in DTYPES:
        table.add_column(f"finite {name}", justify="center", min_width=6)
    for library, group in itertools.groupby(rows, lambda row: row.library):
        table.add_section()
        table.add_row(f"[dim]{library}[/dim]")
        for row in group:
            errors = [
                _format_error(value, limit)
                for value, limit in zip((row.initial, *row.trained), MAX_GRADIENT_ERRORS, strict=True)
            ]
            table.add_row(row.name, *errors, *("yes" if ok else "[bold red]NO[/]" for ok in row.finite.values()))
    screen.print(table)
    screen.print("finite: loss and gradients at x = w_y, −w_y, another class's weight, and 0")
    screen.print(
        "–: out of reach, the scale or a penalty bounds the loss from below; red: above 2e-6 at the start or 2e-5 later"
    )
    if all(row.library.startswith("widemargin") for row in rows):
        screen.print("to compare with pytorch-metric-learning: pip install pytorch-metric-learning==2.9.0")
    if json_path is not None:
        facts = {"widemargin": __version__, "torch": torch.__version__, "python": platform.python_version()}
        Path(json_path).write_text(
            json.dumps({"versions": facts, "rows": [asdict(row) for row in rows]}, indent=1) + "\n"
        )


# Limits of the errors: 2e-6 at the start, 2e-5 down to a loss of 1e-6.
MAX_GRADIENT_ERRORS = (2e-6, 2e-5, 2e-5, 2e-5)


def _format_error(value: float | None, limit: float) -> str:
    if value is None:
        return "–"
    return f"{value:.1e}" if value <= limit else f"[bold red]{value:.1e}[/]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--losses", help="margins to measure (default: all)")
    parser.add_argument("--backend", choices=("dense", "stream"), default="dense", help="backend of our heads")
    parser.add_argument("--json", metavar="FILE", help="also write the results to a file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    print_numerics(options.losses, options.backend, options.json)
