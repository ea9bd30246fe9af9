"""Checks of our heads on a device: errors against `dense` in fp64, and whether repeated steps give the same bits.

`python -m benchmarks head --device cuda` prints them before the times. They show what Triton's interpreter cannot:
races between programs, and the order in which a GPU adds.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from widemargin.io.errors import InputError
from widemargin.viz.terminal import console

from .head_timing import HeadImplementation, random_batch
from .margins import benchmark_margin

CHECK_SHAPES = ((256, 512, 20_000), (200, 100, 5001))  # samples, dimensions, classes: whole tiles and parts of tiles
REPEATS = 20
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def parse_device(text: str) -> torch.device:
    """Return the device of a name such as `cpu`, `cuda` or `cuda:1`; an InputError if it is not there."""
    try:
        device = torch.device(text)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"--device {text!r}: cpu, cuda, or one of several such as cuda:1")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not count:
            raise InputError(f"--device {text}: torch {torch.__version__} finds no CUDA device")
        if device.index is not None and device.index >= count:
            raise InputError(f"--device {text}: torch finds {count} CUDA device{'s' * (count > 1)}, counted from 0")
    return device


def describe_device(device: torch.device) -> dict[str, Any]:
    """Name and versions of what the figures were measured on."""
    if device.type != "cuda":
        return {"device": device.type, "torch": torch.__version__}
    major, minor = torch.cuda.get_device_capability(device)
    return {
        "device": torch.cuda.get_device_name(device),
        "capability": f"{major}.{minor}",
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "tf32": str(torch.backends.cuda.matmul.fp32_precision),
    }


def check_head(
    loss: str,
    backend: str,
    device: torch.device,
    dtype: torch.dtype,
    shape: tuple[int, int, int],
    repeats: int = REPEATS,
) -> dict[str, Any]:
    """Errors of losses and gradients against `dense` in fp64 on the device, and how many repeats had the same bits."""
    samples, dims, classes = shape
    x, y = random_batch(samples, dims, classes)
    weight = torch.randn(classes, dims, generator=torch.Generator().manual_seed(1)) / dims**0.5
    x, y, weight = x.detach().to(device, dtype), y.to(device), weight.to(device, dtype)
    first, used = _run_step(loss, backend, x, y, weight)
    reference, _ = _run_step(loss, "dense", x.double(), y, weight.double())
    equal = sum(all(map(torch.equal, first, _run_step(loss, backend, x, y, weight)[0])) for _ in range(repeats))
    names = ("losses", "embeddings", "weights")
    errors = [
        float((ours.double() - exact).norm() / exact.norm()) for ours, exact in zip(first, reference, strict=True)
    ]
    return {
        "loss": loss,
        "backend": backend,
        "active_backend": used,
        "dtype": str(dtype).removeprefix("torch."),
        "shape": list(shape),
        "errors": dict(zip(names, errors, strict=True)),
        "repeats": repeats,
        "equal_repeats": equal,
    }


def _run_step(loss: str, backend: str, x: Tensor, y: Tensor, weight: Tensor) -> tuple[list[Tensor], str | None]:
    """Losses [N] and gradients of a step, and the backend that computed them."""
    from widemargin.head.head import Head

    classes, dims = weight.shape
    margin = benchmark_margin(loss, classes)
    head = Head(dims, classes, margin, backend=backend, device=x.device, dtype=weight.dtype)
    with torch.no_grad():
        head.weight.copy_(weight)
    embeddings = x.clone().requires_grad_()
    losses = head(embeddings, y)
    gradients = torch.autograd.grad(losses.mean(), (embeddings, head.weight))
    return [losses.detach(), *gradients], head.active_backend


def check_heads(
    losses: list[str], backends: list[str], device: torch.device, dtype: torch.dtype
) -> list[dict[str, Any]]:
    """Check every loss on every backend and shape; a backend that refuses a loss is left out."""
    rows = []
    for loss in losses:
        for backend in backends:
            for shape in CHECK_SHAPES:
                try:
                    rows.append(check_head(loss, backend, device, dtype, shape))
                except InputError as refused:
                    console().print(str(refused), markup=False)
                    break
    return rows


def print_checks(rows: list[dict[str, Any]]) -> None:
    """Print one line for each check."""
    grid = Table(title="Errors against dense in fp64 on this device", title_justify="left", title_style="bold")
    for name in ("loss", "backend", "used", "dtype", "shape", "losses", "embeddings", "weights", "equal repeats"):
        grid.add_column(name, justify="left" if name in ("loss", "backend", "used", "dtype", "shape") else "right")
    for row in rows:
        grid.add_row(
            row["loss"],
            row["backend"],
            row["active_backend"],
            row["dtype"],
            ",".join(map(str, row["shape"])),
            *(f"{error:.1e}" for error in row["errors"].values()),
            f"{row['equal_repeats']} of {row['repeats']}",
        )
    console().print(grid)


def measure_device_memory(
    implementation: HeadImplementation, device: torch.device, dtype: torch.dtype, shape: tuple[int, int, int]
) -> float:
    """MiB that a step of a head takes on a CUDA device at its peak, beyond the gradient of its weights."""
    samples, dims, classes = shape
    x, y = random_batch(samples, dims, classes)
    x, y = x.detach().to(device, dtype).requires_grad_(), y.to(device)
    head = implementation.make(dims, classes)
    head = head.to(device) if implementation.library == "widemargin" else head.to(device, dtype)
    weights = sum(p.numel() * p.element_size() for p in head.parameters())
    head(x, y).backward()  # compiles kernels, and makes room for the gradient of the embeddings
    head.zero_grad()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    head(x, y).backward()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    return (peak - weights) / 2**20


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the device."""
    parser.add_argument(
        "--device",
        default="cpu",
        metavar="DEVICE",
        help="cpu (default), cuda or cuda:N; on CUDA also errors against fp64 and repeats, and the triton backend",
    )
    parser.add_argument(
        "--dtype", choices=tuple(DTYPES), default="float32", help="of embeddings and weights (default float32)"
    )
