"""`python -m benchmarks triton_compiled`: Triton's compiler on the kernels of the Triton backend, for named GPUs.

For every kernel, loss, dtype and GPU: registers per thread, bytes of spills, shared memory, the instruction of the
matrix products, and the number of atomic instructions, as ptxas (which comes with Triton) and the PTX show them. What
is compiled are the launches of a step, recorded on tensors without data, so arguments, dtypes and tiles are those that
a GPU would get; once with sizes that are multiples of 16 and once with odd ones, for which Triton compiles other code.

Also a roofline on paper: floating-point operations and bytes of a step, counted from the same launches, and the time
that the peak rates of two GPUs allow for them. No GPU is needed, and nothing here is a measurement of speed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch

from widemargin.head.backends.kernels import KernelSpec
from widemargin.head.backends.triton_backend import Tiles, TritonBlocks, launch_options
from widemargin.io.errors import InputError
from widemargin.losses.grammar import parse_margin

# Samples, dimensions, classes: multiples of 16, and sizes that are not.
SHAPES = {"aligned": (256, 512, 100_000), "odd": (255, 511, 99_999)}
# φ: the cosine (twice), minus the angle, a curve with a number per sample.
LOSSES = ("arcface", "cosface", "arcgrad", "curricularface")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Shared memory that one block may have, in bytes (CUDA C++ Programming Guide, technical specifications).
SHARED_MEMORY = {80: 163 * 1024, 86: 99 * 1024, 90: 227 * 1024}
_POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.int32: "*i32"}
_ATOMIC = re.compile(r"^\s*(?:@%\w+\s+)?(?:atom|red)\.", re.MULTILINE)
_MATRIX = re.compile(r"\b(wgmma\.mma_async|mma)\.sync\.aligned\.[\w.]*?(?:f32|row\.col)[\w.]*")


class Gpu(NamedTuple):
    """Peak rates from a data sheet: 10¹² operations a second without sparsity, 10⁹ bytes a second."""

    name: str
    fp32: float
    tf32: float
    half: float
    bandwidth: float


# NVIDIA's data sheets of A100 80 GB SXM and H100 SXM.
GPUS = (Gpu("A100 80 GB SXM", 19.5, 156.0, 312.0, 2039.0), Gpu("H100 SXM", 67.0, 494.5, 989.5, 3350.0))


class Launch(NamedTuple):
    """A launch of a kernel."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    tiles: Tiles


class _RecordingBlocks(TritonBlocks):
    """Records every launch instead of running it."""

    launches: list[Launch]

    def launch(self, kernel: Any, grid: tuple[int, ...], tiles: Tiles, **arguments: Any) -> None:
        self.launches.append(Launch(kernel, grid, arguments, tiles))


def record_launches(loss: str, dtype: torch.dtype, shape: tuple[int, int, int]) -> list[Launch]:
    """All launches of a step, forward and backward, with a learnable scale and label smoothing."""
    samples, dims, num_classes = shape
    margin = parse_margin(loss).for_num_classes(num_classes)
    spec = KernelSpec.from_margin(margin, True, {"s": True}, margin.phi_sample_fields)
    with torch.device("meta"):
        a, weight = torch.empty(samples, dims), torch.empty(num_classes, dims, dtype=dtype)
        x_scale = None if dtype == torch.float32 else torch.empty(samples)
        blocks = _RecordingBlocks(True, a, weight, a.to(dtype), x_scale)
        blocks.launches = []
        y, row = torch.empty(samples, dtype=torch.int64), torch.empty(samples)
        values = [*(row for _ in spec.sample_names), torch.empty(())]
        blocks.compute_others(spec, y, row, None, values)
        blocks.compute_gradients(spec, y, row, None, values, row, row, row, row, None, True, torch.empty_like(weight))
    return blocks.launches


def first_of_each_kernel(launches: list[Launch]) -> list[Launch]:
    """One launch for each kernel."""
    return list({launch.kernel.__name__: launch for launch in reversed(launches)}.values())[::-1]


def compile_launch(launch: Launch, capability: int) -> dict[str, Any]:
    """Compile a launch for a GPU and return what it needs there."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, constants, attributes = {}, {}, {}
    for place, parameter in enumerate(launch.kernel.params):
        value = launch.arguments[parameter.name]
        if parameter.is_constexpr or (isinstance(value, int) and value == 1):  # as Triton does at a launch
            signature[parameter.name] = "constexpr"
            constants[(place,)] = value
            continue
        signature[parameter.name] = _POINTERS[value.dtype] if isinstance(value, torch.Tensor) else "i32"
        if isinstance(value, torch.Tensor) or value % 16 == 0:
            attributes[(place,)] = [["tt.divisibility", 16]]
    compiled = triton.compile(
        ASTSource(launch.kernel, signature, constants, attributes),
        target=GPUTarget("cuda", capability, 32),
        options=launch_options(launch.tiles),
    )
    ptx = compiled.asm["ptx"]
    return {"shared": compiled.metadata.shared, **_read_resources(ptx, capability), **_read_instructions(ptx)}


def _read_resources(ptx: str, capability: int) -> dict[str, int]:
    """Registers per thread and bytes of spills, as ptxas reports them for the PTX that Triton made."""
    from triton.backends.nvidia.compiler import get_ptxas

    target = re.search(r"^\.target\s+(\w+)", ptx, re.MULTILINE)
    assert target is not None
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [get_ptxas(capability).path, "-v", f"-arch={target[1]}", "-o", os.devnull, file.name]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers = re.search(r"Used (\d+) registers", report)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", report)
    assert registers is not None
    assert spills
    return {"registers": int(registers[1]), "spill_bytes": sum(int(n) for n in spills)}


def _read_instructions(ptx: str) -> dict[str, Any]:
    """The instructions of the matrix products (none: fp32 multiplications and additions) and the atomic ones."""
    found = sorted({match[0] for match in _MATRIX.finditer(ptx)})
    return {"matrix": found, "atomics": len(_ATOMIC.findall(ptx))}


def compile_all(on_progress: Callable[[float], None] = lambda _: None) -> list[dict[str, Any]]:
    """Compile every kernel for every loss, dtype and GPU; kernels without a logit are compiled once per dtype.

    The odd shape is compiled for two losses, whose code differs most.
    """
    rows = []
    for dtype in DTYPES:
        for sizes, shape in SHAPES.items():
            for loss in LOSSES if sizes == "aligned" else (LOSSES[0], LOSSES[-1]):
                for launch in first_of_each_kernel(record_launches(loss, dtype, shape)):
                    has_logit = "LOGIT" in launch.arguments or "SLOPE" in launch.arguments
                    if not has_logit and loss != LOSSES[0]:
                        continue
                    for capability, limit in SHARED_MEMORY.items():
                        rows.append(
                            {
                                "kernel": launch.kernel.__name__,
                                "loss": loss if has_logit else None,
                                "dtype": str(dtype).removeprefix("torch."),
                                "sizes": sizes,
                                "sm": capability,
                                "tiles": launch.tiles._asdict(),
                                **compile_launch(launch, capability),
                                "shared_limit": limit,
                            }
                        )
                on_progress(1.0)
    return rows


# ---------------------------------------------------------------- roofline


def count_step(dtype: torch.dtype, shape: tuple[int, int, int]) -> list[dict[str, Any]]:
    """Operations and bytes of every kernel of a step of ArcFace, summed over its launches.

    `bytes` counts every matrix once per launch that reads or writes it, as if the second-level cache held all that
    programs share; `bytes_tiles` counts what programs load tile by tile, as if it held nothing. Truth is in between.
    """
    samples, dims, _ = shape
    steps: dict[str, dict[str, Any]] = {}
    for launch in record_launches("arcface", dtype, shape):
        name, given, tiles = launch.kernel.__name__, launch.arguments, launch.tiles
        size = {key: value.element_size() for key, value in given.items() if isinstance(value, torch.Tensor)}
        row = steps.setdefault(name, {"kernel": name, "launches": 0, "flops": 0, "bytes": 0, "bytes_tiles": 0})
        classes = min(given["chunk_size"], given["c"] - given["chunk_start"]) if "chunk_size" in given else given["c"]
        x, w = samples * dims * size.get("x", 0), classes * dims * size["w"]
        chunk = samples * classes * size.get("chunk", size.get("chunk_out", 0))
        row["launches"] += 1
        if name == "inverse_norms":
            row["bytes"] += 2 * w
            row["bytes_tiles"] += 2 * w
            continue
        row["flops"] += 2 * samples * classes * dims
        sample_tiles, class_tiles = -(-samples // tiles.samples), -(-classes // tiles.classes)
        dim_tiles = -(-dims // tiles.dims)
        if name in ("log_sums", "logit_gradients"):
            row["bytes"] += x + w + chunk
            row["bytes_tiles"] += x * class_tiles + w * sample_tiles + chunk
        elif name == "embedding_gradients":
            partial = given["partial_out"].numel() * 4 * (2 if given["ADDS"] else 1)
            row["bytes"] += chunk + w + partial
            row["bytes_tiles"] += chunk * dim_tiles + w * sample_tiles + partial
        else:
            grad = classes * dims * size["grad_out"]
            row["bytes"] += chunk + x + w + grad
            row["bytes_tiles"] += chunk * dim_tiles + x * class_tiles + w + grad
    return list(steps.values())


def roofline(dtype: torch.dtype, shape: tuple[int, int, int], gpu: Gpu) -> dict[str, Any]:
    """Lower bounds of a step's time on paper: of its operations, of its bytes, and of three matrix products.

    A kernel takes at least the longer of both times, kernels run one after the other. The three products are those that
    have no fourth and write N×C logits: forward X·Wᵀ, backward G·W and Gᵀ·X, each with its matrices once.
    """
    samples, dims, classes = shape
    bytes_per_number = torch.empty(0, dtype=dtype).element_size()
    milliseconds = {"operations": 0.0, "bytes": 0.0, "step": 0.0}
    flops = total_bytes = 0
    for row in count_step(dtype, shape):
        is_product = row["kernel"] in ("log_sums", "logit_gradients")
        rate = gpu.fp32 if dtype == torch.float32 else gpu.half
        if dtype == torch.float16 and not is_product:
            rate = gpu.tf32
        of_operations, of_bytes = row["flops"] / rate / 1e9, row["bytes"] / gpu.bandwidth / 1e6
        milliseconds["operations"] += of_operations
        milliseconds["bytes"] += of_bytes
        milliseconds["step"] += max(of_operations, of_bytes)
        flops, total_bytes = flops + row["flops"], total_bytes + row["bytes"]
    rate = gpu.fp32 if dtype == torch.float32 else gpu.half
    product_bytes = (samples * dims + classes * dims + samples * classes) * bytes_per_number
    product = max(2 * samples * classes * dims / rate / 1e9, product_bytes / gpu.bandwidth / 1e6)
    return {
        "gpu": gpu.name,
        "dtype": str(dtype).removeprefix("torch."),
        "shape": list(shape),
        "flops": flops,
        "bytes": total_bytes,
        "milliseconds": milliseconds,
        "three_products_milliseconds": 3 * product,
        "over_three_products": milliseconds["step"] / (3 * product),
    }


# ---------------------------------------------------------------- command


def print_record(record: dict[str, Any]) -> None:
    """Print the kernels with the most registers and shared memory for each GPU, and the roofline."""
    from rich.table import Table

    from widemargin.viz.terminal import console

    grid = Table(title="Registers per thread / shared memory in KiB", title_justify="left")
    for column in ("kernel", "loss", "dtype", "sizes", *(f"sm_{sm}" for sm in SHARED_MEMORY), "spills"):
        grid.add_column(column, justify="right" if column.startswith("s") else "left")
    for (kernel, loss, dtype, sizes), rows in group_rows(record["kernels"]).items():
        cells = [f"{row['registers']} / {row['shared'] / 1024:.0f}" for row in rows]
        grid.add_row(kernel, loss or "–", dtype, sizes, *cells, str(sum(row["spill_bytes"] for row in rows)))
    console().print(grid)
    grid = Table(title="Roofline on paper, no measurement", title_justify="left")
    for column in ("GPU", "dtype", "GFLOP", "MB", "ms of operations", "ms of bytes", "ms", "/ three products"):
        grid.add_column(column, justify="left" if column in ("GPU", "dtype") else "right")
    for row in record["roofline"]:
        times = row["milliseconds"]
        grid.add_row(
            row["gpu"],
            row["dtype"],
            f"{row['flops'] / 1e9:.0f}",
            f"{row['bytes'] / 1e6:.0f}",
            *(f"{times[name]:.2f}" for name in ("operations", "bytes", "step")),
            f"{row['over_three_products']:.2f}",
        )
    console().print(grid)
    for line in list_violations(record) or ["no spills, no atomic instructions, all shared memory within its limit"]:
        print(line)


def group_rows(rows: list[dict[str, Any]]) -> dict[tuple[str, str | None, str, str], list[dict[str, Any]]]:
    """Rows of one kernel, loss, dtype and kind of sizes, one for each GPU."""
    groups: dict[tuple[str, str | None, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["kernel"], row["loss"], row["dtype"], row["sizes"]), []).append(row)
    return groups


def list_violations(record: dict[str, Any]) -> list[str]:
    """One line for every kernel that spills, uses atomic instructions or needs too much shared memory."""
    lines = []
    for row in record["kernels"]:
        name = f"{row['kernel']} ({row['loss'] or 'every loss'}, {row['dtype']}, {row['sizes']}, sm_{row['sm']})"
        if row["spill_bytes"]:
            lines.append(f"{name} spills {row['spill_bytes']} bytes")
        if row["atomics"]:
            lines.append(f"{name} has {row['atomics']} atomic instructions")
        if row["shared"] > row["shared_limit"]:
            lines.append(f"{name} needs {row['shared']} bytes of shared memory, {row['shared_limit']} are there")
    return lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--json", metavar="FILE", help="also write the results to a file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Compile, count, print, write."""
    from widemargin.io.progress import progress_bar
    from widemargin.viz.terminal import check_writable

    if find_spec("triton") is None:
        raise InputError("this benchmark needs Triton: pip install --no-deps triton==3.9.0")
    from widemargin.head.backends.triton_backend import is_interpreted

    if is_interpreted():
        raise InputError("TRITON_INTERPRET=1 is set: unset it, or the kernels are not compiled")
    if options.json:
        check_writable(options.json)
    with progress_bar("kernels", float(len(DTYPES) * (len(LOSSES) + 2))) as on_progress:
        kernels = compile_all(on_progress)
    lines = [roofline(dtype, SHAPES["aligned"], gpu) for gpu in GPUS for dtype in DTYPES]
    record = {
        "torch": torch.__version__,
        "triton": version("triton"),
        "shapes": SHAPES,
        "kernels": kernels,
        "counts": {str(dtype).removeprefix("torch."): count_step(dtype, SHAPES["aligned"]) for dtype in DTYPES},
        "roofline": lines,
    }
    print_record(record)
    if options.json:
        Path(options.json).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
