"""`python -m benchmarks head`: time, memory and gradient errors of our heads and others; tables and a page.

`head_timing.py` has the heads and their measurement, `head_device.py` the checks on a GPU, `head_page.py` the page.
`python -m benchmarks head --device cuda` is the command whose output we ask users with a GPU for.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.table import Table

from widemargin.io.errors import InputError
from widemargin.io.progress import progress_bar
from widemargin.losses.registry import list_losses
from widemargin.viz.terminal import console

from .head_device import (
    DTYPES,
    add_device_arguments,
    check_heads,
    describe_device,
    measure_device_memory,
    parse_device,
    print_checks,
)
from .head_timing import (
    CPU,
    MIN_CLASSES_TIMED_SEPARATELY,
    count_progress_calls,
    list_head_implementations,
    measure_extra_memory,
    round_ratios,
    time_heads,
    time_over_limit,
)
from .numerics import TARGET_LOSSES

SHAPES = (
    (256, 512, 10),
    (256, 128, 1000),
    (256, 512, 1000),
    (256, 512, 10_000),
    (256, 512, 100_000),
    (128, 512, 10**6),
)
SHARDED_SHAPE = (256, 512, 100_000)  # over two processes
BENCHMARK_LOSSES = ["arcface", "cosface", "adacos", "arcgrad"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument(
        "--shapes", nargs="+", metavar="N,D,C", help="samples, dimensions, classes (default: six shapes)"
    )
    parser.add_argument(
        "--losses",
        nargs="+",
        metavar="LOSS",
        help="default arcface cosface adacos arcgrad; all: every margin of the package",
    )
    parser.add_argument(
        "--backends",
        nargs="+",
        choices=("auto", "dense", "stream", "triton"),
        help="backends of our heads (default: auto; on CUDA dense stream triton)",
    )
    add_device_arguments(parser)
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="rounds of each head (default 7)")
    parser.add_argument("--no-peers", action="store_true", help="only our heads and the limit")
    parser.add_argument("--no-time", action="store_true", help="measure memory only")
    parser.add_argument("--no-memory", action="store_true", help="skip memory, which takes a process per head")
    parser.add_argument("--no-errors", action="store_true", help="skip the errors of gradients against fp64")
    parser.add_argument(
        "--memory-runs", type=int, default=1, metavar="N", help="processes per head; the median counts (default 1)"
    )
    parser.add_argument("--distributed", action="store_true", help="also measure a head split over two processes")
    parser.add_argument("--threads", type=int, metavar="N", help="threads (default: torch's)")
    parser.add_argument("--no-kept-gradient", action="store_true", help="skip steps that add to a kept gradient")
    parser.add_argument("--json", metavar="FILE", help="also write the results to a file")
    parser.add_argument("--append", action="store_true", help="add to the results in the --json file")
    parser.add_argument("--page", metavar="FILE", help="also write a page with pictures and a calculator")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure, print, write."""
    device = parse_device(options.device)
    if device.type != "cpu" and options.distributed:
        raise InputError("--distributed measures processes on a CPU: leave out --device")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    shapes = [_parse_shape(text) for text in options.shapes] if options.shapes else list(SHAPES)
    print_heads(
        shapes,
        list_losses("margins") if options.losses == ["all"] else options.losses or BENCHMARK_LOSSES,
        options.backends or (["auto"] if device.type == "cpu" else ["dense", "stream", "triton"]),
        options.rounds,
        not options.no_peers,
        0 if options.no_memory else options.memory_runs,
        options.distributed,
        options.json,
        options.page,
        with_time=not options.no_time,
        kept_gradient=not options.no_kept_gradient,
        with_errors=not options.no_errors,
        append=options.append,
        device=device,
        dtype=DTYPES[options.dtype],
    )


def _parse_shape(text: str) -> tuple[int, int, int]:
    try:
        samples, embedding_dim, num_classes = (int(float(word)) for word in text.split(","))
    except ValueError:
        raise InputError(f"--shapes {text!r}: write samples,dimensions,classes such as 256,512,100000") from None
    if min(samples, embedding_dim) < 1 or num_classes < 2:
        raise InputError(f"--shapes {text!r}: at least one sample, one dimension and two classes")
    return samples, embedding_dim, num_classes


def measure_heads(
    shapes: list[tuple[int, int, int]],
    losses: list[str],
    backends: list[str],
    rounds: int,
    *,
    peers: bool,
    memory_runs: int,
    with_time: bool = True,
    kept_gradient: bool = True,
    device: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
) -> list[dict[str, Any]]:
    """Measure all shapes; memory is the median of `memory_runs` processes, on CUDA of one step in this one."""
    rows = []
    for shape in shapes:
        # A step of the largest eager heads takes half a minute and ten GiB: only the first loss is measured there.
        baseline_losses = losses if shape[2] < MIN_CLASSES_TIMED_SEPARATELY else losses[:1]
        implementations = list_head_implementations(
            losses, backends, shape[0] * shape[2], baseline_losses if peers else [], kept_gradient, device, dtype
        )
        row: dict[str, Any] = {"shape": list(shape), "threads": torch.get_num_threads(), "seconds": {}}
        if with_time:
            with progress_bar(f"heads {shape}", count_progress_calls(shape, implementations, rounds)) as on_progress:
                row = time_heads(shape, implementations, rounds, on_progress, device, dtype)
        if memory_runs and device.type == "cuda":
            row["mebibytes"] = {
                one.name: round(measure_device_memory(one, device, dtype, shape), 2)
                for one in implementations
                if not one.keep_grad
            }
        elif memory_runs:
            names = [c.name for c in implementations if not c.keep_grad and not c.name.endswith("compiled")]
            with progress_bar(f"memory {shape}", len(names) * memory_runs) as on_progress:
                row["mebibytes"], row["mebibytes_of_runs"] = {}, {}
                for name in names:
                    runs = []
                    for _ in range(memory_runs):
                        runs.append(round(measure_extra_memory(name, shape, torch.get_num_threads()), 2))
                        on_progress(1.0)
                    row["mebibytes"][name], row["mebibytes_of_runs"][name] = median(runs), sorted(runs)
        rows.append(row)
    return rows


def measure_gradient_errors(losses: list[str], backends: list[str]) -> list[dict[str, Any]]:
    """Gradient errors in fp32 against fp64, at initialisation and at small losses, also of pytorch-metric-learning."""
    from . import numerics

    rows = [
        numerics.measure_gradient_accuracy(numerics.widemargin_loss(loss, backend))
        for loss in losses
        for backend in backends
    ]
    rows += [
        numerics.measure_gradient_accuracy(peer)
        for peer in numerics.metric_learning_losses()
        if peer.name in ("ArcFaceLoss", "CosFaceLoss")
    ]
    return [
        {"name": row.name, "library": row.library, "initial": row.initial, "trained": list(row.trained)} for row in rows
    ]


def print_heads(
    shapes: list[tuple[int, int, int]],
    losses: list[str],
    backends: list[str],
    rounds: int,
    peers: bool,
    memory_runs: int,
    sharded: bool,
    json_path: str | None,
    page_path: str | None,
    *,
    with_time: bool = True,
    kept_gradient: bool = True,
    with_errors: bool = True,
    append: bool = False,
    device: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Measure, print, write; `append` adds to the results in the JSON file."""
    from widemargin.viz.terminal import check_writable

    from .head_page import heads_page
    from .head_timing import measure_sharded_head

    for path in filter(None, (json_path, page_path)):
        check_writable(path)  # before minutes of measuring
    before = json.loads(Path(json_path).read_text(encoding="utf-8")) if append and json_path else {}
    on_gpu = device.type != "cpu"
    checks = check_heads(losses, backends, device, dtype) if on_gpu else []
    if on_gpu:
        print_checks(checks)
    head_rows = measure_heads(
        shapes,
        losses,
        backends,
        rounds,
        peers=peers,
        memory_runs=memory_runs,
        with_time=with_time,
        kept_gradient=kept_gradient,
        device=device,
        dtype=dtype,
    )
    error_backends = [backend for backend in backends if backend not in ("auto", "triton")] or ["stream"]
    error_rows = measure_gradient_errors(losses, error_backends) if with_errors and not on_gpu else []
    for row in head_rows:
        print_times(row)
    if error_rows:
        print_errors(error_rows)
    figures: dict[str, Any] = {"torch": torch.__version__, "heads": head_rows, "errors": error_rows}
    if on_gpu:
        figures |= {"device": describe_device(device), "dtype": str(dtype).removeprefix("torch."), "checks": checks}
    if sharded:
        figures["sharded"] = measure_sharded_head(SHARDED_SHAPE, losses[0], rounds)
        print_sharded_head(figures["sharded"])
    for name in ("heads", "errors"):
        figures[name] = before.get(name, []) + [row for row in figures[name] if row not in before.get(name, [])]
    if json_path:
        Path(json_path).write_text(json.dumps(figures, indent=1), encoding="utf-8")
    if page_path:
        Path(page_path).write_text(heads_page(figures), encoding="utf-8")
        print(f"wrote {page_path}")


def print_times(row: dict[str, Any]) -> None:
    """Print one shape: times as ratios, memory beyond the gradient."""
    samples, embedding_dim, num_classes = row["shape"]
    seconds, memory = row["seconds"], row.get("mebibytes", {})
    title = f"{samples} samples, {embedding_dim} dimensions, {num_classes:,} classes; {row['threads']} threads"
    grid = Table(title=title, title_justify="left", title_style="bold")
    for name in (
        "head",
        "ms",
        "/ limit",
        "rounds: median (range)",
        "/ linear + cross_entropy",
        "MiB beyond the gradient",
    ):
        grid.add_column(name, justify="left" if name == "head" else "right", no_wrap=name == "head")
    plain = seconds.get("linear + cross_entropy")
    memory_runs = row.get("mebibytes_of_runs", {})
    for name in seconds | memory:
        extra = f"{memory[name]:.1f}" if name in memory else "–"
        if len(memory_runs.get(name, [])) > 1:
            extra += f" ({memory_runs[name][0]:.1f} – {memory_runs[name][-1]:.1f})"
        used = row.get("active_backends", {}).get(name)
        shown = name if used is None or f", {used}" in name or ", auto" in name else f"{name} (used {used})"
        if name not in seconds:
            grid.add_row(shown, "–", "–", "–", "–", extra)
            continue
        spent = seconds[name]
        over_plain = f"{spent / plain:.2f}" if plain else "–"
        ratios = round_ratios(row, name)
        in_rounds = f"{median(ratios):.2f} ({ratios[0]:.2f} – {ratios[-1]:.2f})" if ratios else "–"
        grid.add_row(shown, f"{1e3 * spent:.2f}", f"{time_over_limit(row, name):.2f}", in_rounds, over_plain, extra)
    console().print(grid)


def print_errors(rows: list[dict[str, Any]]) -> None:
    """Gradient errors against fp64."""
    grid = Table(title="Error of fp32 gradients against fp64", title_justify="left", title_style="bold")
    for name in ("head", "library", "initial", *(f"loss {target:g}" for target in TARGET_LOSSES)):
        grid.add_column(name, justify="left" if name in ("head", "library") else "right")
    for row in rows:
        cells = [row["initial"], *row["trained"]]
        grid.add_row(row["name"], row["library"], *("–" if cell is None else f"{cell:.1e}" for cell in cells))
    console().print(grid)


def print_sharded_head(row: dict[str, Any]) -> None:
    """Print a head split over several processes."""
    samples, embedding_dim, num_classes = row["shape"]
    seconds = {name: f"{1e3 * value:.0f} ms" for name, value in row["seconds"].items()}
    exchanges = row["seconds"].get("exchanges")
    share = "" if exchanges is None else f"; its exchanges alone {1e3 * exchanges:.2f} ms"
    console().print(
        f"{row['loss']} over {row['world_size']} processes of one thread, {samples} samples, {embedding_dim} "
        f"dimensions, {num_classes:,} classes: {seconds['full']} a step, {row['full_over_single_process']:.2f} of one "
        f"process's {seconds['single_process']}; {row['mebibytes']:.1f} MiB beyond a rank's own gradient; with sample "
        f"rate {row['sample_rate']:g} {seconds['sampled']}, {row['sampled_over_full']:.2f} of that{share}"
    )
