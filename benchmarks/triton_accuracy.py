"""`python -m benchmarks triton_accuracy`: the Triton backend in Triton's interpreter against `dense` in fp64.

Losses and gradients of the same numbers are compared by the norm of the difference divided by that of the reference:
at initialisation over shapes with parts of tiles, with embeddings pulled towards their classes down to a mean loss of
1e-6, and at degenerate points. Embeddings and weights in bf16 or fp16 are rounded first, so that the reference has the
same numbers; its gradients are not rounded. Also the logit and the slope that are generated for every loss, against
autograd of the definition in fp64.

Needs Triton (`pip install widemargin[triton]`) and no GPU. The interpreter runs the programs of a kernel one after the
other, with the arithmetic of numpy: what a GPU adds to this are races, its approximate exp, square root and division
(about 2e-7 each), and TF32 in the gradient products of fp16 (5e-4).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from widemargin.head.head import Head
from widemargin.io.errors import InputError
from widemargin.losses.grammar import parse_margin
from widemargin.losses.registry import list_losses
from widemargin.numerics.angles import unit_and_norm

from .margins import benchmark_margin
from .numerics import TARGET_LOSSES, pull_towards_class

# φ: the cosine, minus the angle, a curve with a number per sample; norms that stay; a learnt scale.
LOSSES = ("arcface", "cosface", "arcgrad", "curricularface", "softmax(bias=True)", "arcgrad(s=learnable(10))")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Samples, dimensions, classes: one sample, less than a tile, multiples of 16, parts of second tiles.
SHAPES = ((1, 9, 5), (5, 7, 9), (16, 32, 48), (70, 129, 131))
TRAINED_SHAPE = (32, 64, 100)
EDGES = ("x = w", "x = −w", "x = other w", "x = 0", "w = 0", "long", "short", "tiny w")
EDGE_SHAPE = (13, 11, 19)
# Largest errors that count as right, of losses and of gradients: at initialisation, and trained.
BOUNDS = {
    "float32": {"initial": (1e-6, 2e-6), "trained": (2e-5, 2e-5)},
    "bfloat16": {"initial": (1e-6, 2e-2), "trained": (2e-5, 2e-2)},
    "float16": {"initial": (1e-6, 1e-3), "trained": (2e-5, 1e-3)},
}
CURVE_BOUND = 2e-6
# Raw products of so long vectors overflow in the kernels.
KNOWN_OVERFLOWS = {("softmax(bias=True)", "long")}
TRAINED_GRADIENT_SCALE = 4096.0  # as a gradient scaler does: in fp16, gradients of so small a loss are below 6e-8


class Batch(tuple[Tensor, Tensor, Tensor]):
    """Embeddings [N, D], class weights [C, D] and labels [N]."""


def random_batch(shape: tuple[int, int, int]) -> Batch:
    """Return embeddings of norm about √D, and class weights of norm about 1."""
    samples, dims, classes = shape
    draw = torch.Generator().manual_seed(samples)
    x = torch.randn(samples, dims, generator=draw)
    w = torch.randn(classes, dims, generator=draw) / dims**0.5
    return Batch((x, w, torch.randint(classes, (samples,), generator=draw)))


def relative_error(ours: Tensor, reference: Tensor) -> float:
    """Norm of the difference divided by the norm of the reference."""
    reference = reference.double()
    return float((ours.double() - reference).norm() / reference.norm().clamp_min(1e-30))


def run_head(
    loss: str, backend: str, dtype: torch.dtype, batch: Batch, gradient_scale: float = 1.0, **options: Any
) -> list[Tensor]:
    """Losses [N] of a head with these numbers, and the gradients of their mean: embeddings, weights, learnt numbers."""
    x, w, y = batch
    margin = benchmark_margin(loss, len(w))
    head = Head(w.shape[1], len(w), margin, backend=backend, dtype=dtype, **options)
    with torch.no_grad():
        head.weight.copy_(w.to(dtype))
        if head.bias is not None:
            head.bias.copy_(torch.linspace(-1.0, 1.0, len(w)).to(torch.bfloat16).to(dtype))
    embeddings = x.to(dtype, copy=True).requires_grad_()
    losses = head(embeddings, y)
    (losses.mean() * gradient_scale).backward()
    if head.active_backend != backend:
        raise InputError(f"the self-check of {loss} failed, so backend={head.active_backend!r} was used")
    gradients = [embeddings.grad, *(parameter.grad for parameter in head.parameters())]
    return [losses.detach(), *(gradient for gradient in gradients if gradient is not None)]


def compare_with_dense(loss: str, dtype: torch.dtype, batch: Batch, **options: Any) -> dict[str, Any]:
    """Errors of the losses and of every gradient against `dense` in fp64, and whether all are finite."""
    x, w, y = batch
    rounded = Batch((x.to(dtype), w.to(dtype), y))
    ours = run_head(loss, "triton", dtype, rounded, **options)
    reference = run_head(loss, "dense", torch.float64, rounded, **options)
    return {
        "loss_error": relative_error(ours[0], reference[0]),
        "gradient_errors": [relative_error(a, b) for a, b in zip(ours[1:], reference[1:], strict=True)],
        "finite": _are_finite(ours),
    }


def _are_finite(tensors: Sequence[Tensor]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def compare_at_edge(loss: str, dtype: torch.dtype, edge: str) -> dict[str, Any]:
    """Errors at a degenerate point, and whether `dense` is finite there in the same dtype: logits of very long vectors
    are not, nor is the gradient of a very short one in fp16."""
    batch = degenerate_batch(edge, dtype)
    dense = _are_finite(run_head(loss, "dense", dtype, batch))
    return compare_with_dense(loss, dtype, batch) | {"dense_finite": dense}


def trained_batch(loss: str, target: float) -> Batch | None:
    """A batch whose embeddings are rotated towards their classes until the mean loss is `target`, if that exists."""
    x, w, y = random_batch(TRAINED_SHAPE)
    x = unit_and_norm(x)[0] * 64.0

    def mean_loss(fraction: float) -> float:
        pulled = pull_towards_class(x.double(), y, w.double(), fraction)
        return float(run_head(loss, "dense", torch.float64, Batch((pulled, w, y)))[0].mean())

    low, high = 0.0, 0.995
    if mean_loss(high) > target:
        return None
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_loss(middle) > target else (low, middle)
    return Batch((pull_towards_class(x, y, w, high), w, y))


def degenerate_batch(edge: str, dtype: torch.dtype) -> Batch:
    """A batch with a degenerate point: an angle of 0 or π, a vector of zeros, or a very long or very short one."""
    x, w, y = random_batch(EDGE_SHAPE)
    y[1] = (y[0] + 1) % len(w)
    huge, small, tiny = (1e3, 1e-4, 1e-7) if dtype == torch.float16 else (1e25, 1e-20, 1e-36)
    if edge == "x = w":
        x[0], x[1] = w[y[0]], 4.0 * w[y[1]]
    elif edge == "x = −w":
        x[0], x[1] = -w[y[0]], -4.0 * w[y[1]]
    elif edge == "x = other w":
        x[0], x[1] = w[y[1]], -w[y[0]]
    elif edge == "x = 0":
        x[0] = 0
    elif edge == "w = 0":
        w[y[0]], w[(y[0] + 2) % len(w)] = 0, 0
    elif edge == "long":
        x[0], w[y[1]] = x[0] * huge, w[y[1]] * huge
    elif edge == "short":
        x[0], w[y[1]] = x[0] * small, w[y[1]] * small
    elif edge == "tiny w":
        w[y[1]] *= tiny
    return Batch((x, w, y))


def list_accepted_losses() -> dict[str, str | None]:
    """Every margin of the package, and why the Triton backend refuses it (None: it computes it)."""
    from widemargin.head.backends.triton_source import why_refused

    return {name: why_refused(parse_margin(name).for_num_classes(9)) for name in map(str, list_losses("margins"))}


def compare_curve(loss: str) -> dict[str, float | None]:
    """Errors of the generated logit, its slope and its derivative by the scale, against autograd in fp64."""
    from widemargin.head.backends.base import DotProducts, compute_logits
    from widemargin.head.backends.kernels import KernelSpec
    from widemargin.head.backends.triton_source import load_functions

    from .triton_curve import evaluate

    margin = benchmark_margin(loss, 9).for_num_classes(9)
    learns = {name: True for name, _ in margin.named_values() if name == "s"}
    spec = KernelSpec.from_margin(margin, False, learns, margin.phi_sample_fields)
    functions = load_functions(spec, False)
    samples, count = 3, 61
    cos = torch.linspace(-0.99, 0.99, count).expand(samples, count).contiguous()
    per_sample = {name: torch.tensor([-0.3, 0.2, 0.6]) for name in spec.sample_names}
    scale = torch.tensor(7.0)
    given = per_sample | dict.fromkeys(learns, scale)
    numbers, rows = (
        torch.stack([given[name] for name in names]).float() if names else torch.zeros(1)
        for names in (functions.source.number_names, functions.source.sample_names)
    )
    out = torch.full((3, samples, count), torch.nan)
    slopes = {"SLOPE": functions.logit_and_slope, "NUMBER": functions.number_slope}
    evaluate[(1,)](cos, out, numbers, rows, samples, count, **slopes, BN=4, BC=64)
    leaf, s = cos.double().requires_grad_(), scale.double().expand(samples, count).clone().requires_grad_()
    values = {name: v.double().unsqueeze(1) for name, v in per_sample.items()} | dict.fromkeys(learns, s)
    z = compute_logits(spec.margin.with_values(**values) if values else spec.margin, DotProducts(leaf, None), None)
    slope, of_scale = torch.autograd.grad(z.sum(), (leaf, s), allow_unused=True)
    has_scale = functions.source.learnt_name is not None
    return {
        "logit": relative_error(out[0], z.detach()),
        "slope": relative_error(out[1], slope),
        "scale": relative_error(out[2], of_scale) if has_scale else None,
    }


def start_interpreter() -> None:
    """Check that Triton interprets the kernels, which counts when it is imported; an InputError without Triton."""
    if find_spec("triton") is None:
        raise InputError("this benchmark needs Triton: pip install --no-deps triton==3.9.0")
    from widemargin.head.backends.triton_backend import is_interpreted

    if not is_interpreted():
        raise InputError("set TRITON_INTERPRET=1 before Triton is imported")


def measure(losses: Sequence[str], on_progress: Callable[[float], None] = lambda _: None) -> dict[str, Any]:
    """Measure curves, initialised and trained heads, and degenerate points; one row for a loss and dtype each."""
    start_interpreter()
    accepted = list_accepted_losses()
    record: dict[str, Any] = {"torch": torch.__version__, "triton": version("triton"), "bounds": BOUNDS}
    record["curves"] = {name: compare_curve(name) for name, reason in accepted.items() if reason is None}
    record["refused"] = {name: reason for name, reason in accepted.items() if reason is not None}
    on_progress(1.0)
    rows = record["rows"] = []
    for loss in losses:
        trained = {target: trained_batch(loss, target) for target in TARGET_LOSSES}
        for dtype in DTYPES:
            initial = [
                compare_with_dense(loss, dtype, random_batch(shape), label_smoothing=smoothing)
                | {"shape": shape, "label_smoothing": smoothing}
                for shape in SHAPES
                for smoothing in (0.0, 0.1)
            ]
            rows.append(
                {
                    "loss": loss,
                    "dtype": str(dtype).removeprefix("torch."),
                    "initial": initial,
                    "trained": {
                        f"{target:g}": None
                        if batch is None
                        else compare_with_dense(loss, dtype, batch, gradient_scale=TRAINED_GRADIENT_SCALE)
                        for target, batch in trained.items()
                    },
                    "degenerate": {edge: compare_at_edge(loss, dtype, edge) for edge in EDGES},
                }
            )
            on_progress(1.0)
    return record


def largest_errors(cases: Sequence[dict[str, Any] | None]) -> tuple[float, float]:
    """Largest error of the losses, and of all gradients."""
    present = [case for case in cases if case is not None]
    losses = [case["loss_error"] for case in present]
    gradients = [error for case in present for error in case["gradient_errors"]]
    # By tensors, because Python's max may pass over NaN.
    return float(torch.tensor(losses).amax()), float(torch.tensor(gradients).amax())


def print_record(record: dict[str, Any]) -> None:
    """Print one line for every loss and dtype, and what is outside of its bound."""
    from rich.table import Table

    from widemargin.viz.terminal import console

    grid = Table(title="Triton's interpreter against dense in fp64: losses, gradients", title_justify="left")
    for column in ("loss", "dtype", "initial", *(f"loss {target:g}" for target in TARGET_LOSSES), "finite at edges"):
        grid.add_column(column, justify="left" if column in ("loss", "dtype") else "right")
    for row in record["rows"]:
        trained = [
            "–" if case is None else "{:.1e}, {:.1e}".format(*largest_errors([case]))
            for case in row["trained"].values()
        ]
        edges = row["degenerate"].values()
        grid.add_row(
            row["loss"],
            row["dtype"],
            "{:.1e}, {:.1e}".format(*largest_errors(row["initial"])),
            *trained,
            f"{sum(case['finite'] for case in edges)} of {len(edges)}",
        )
    console().print(grid)
    curves = [error for case in record["curves"].values() for error in case.values() if error is not None]
    print(f"{len(record['curves'])} generated curves, errors of logit and slopes at most {max(curves):.1e}")
    for line in list_violations(record) or ["all errors are within their bounds"]:
        print(line)


def list_violations(record: dict[str, Any]) -> list[str]:
    """One line for everything that is outside of its bound, empty if nothing is."""
    lines = [
        f"{name}: {what} of the generated curve has an error of {error:.1e}"
        for name, case in record["curves"].items()
        for what, error in case.items()
        if error is not None and not error <= CURVE_BOUND
    ]
    for row in record["rows"]:
        name = f"{row['loss']}, {row['dtype']}"
        trained = [case for case in row["trained"].values() if case is not None]
        groups = {"initial": row["initial"]} | ({"trained": trained} if trained else {})
        for group, cases in groups.items():
            of_losses, of_gradients = largest_errors(cases)
            loss_bound, gradient_bound = BOUNDS[row["dtype"]][group]
            if not (of_losses <= loss_bound and of_gradients <= gradient_bound):
                lines.append(f"{name}: {group} errors {of_losses:.1e} and {of_gradients:.1e} are above the bound")
        lines += [
            f"{name}: not finite at {edge}"
            for edge, case in row["degenerate"].items()
            if case["dense_finite"] > case["finite"] and (row["loss"], edge) not in KNOWN_OVERFLOWS
        ]
    return lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--losses", nargs="+", metavar="LOSS", default=list(LOSSES), help="losses of the table")
    parser.add_argument("--json", metavar="FILE", help="also write the results to a file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure, print, write."""
    from widemargin.io.progress import progress_bar
    from widemargin.viz.terminal import check_writable

    if options.json:
        check_writable(options.json)
    if os.environ.get("TRITON_INTERPRET") != "1":  # counts when Triton is imported, which torch may have done
        command = [sys.executable, "-m", "benchmarks", *sys.argv[1:]]
        sys.exit(subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, check=False).returncode)
    with progress_bar("losses", 1.0 + len(DTYPES) * len(options.losses)) as on_progress:
        record = measure(options.losses, on_progress)
    print_record(record)
    if options.json:
        Path(options.json).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
