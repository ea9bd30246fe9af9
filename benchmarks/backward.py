"""`python -m benchmarks backward`: steps with a hand-written backward pass against autograd of its definition.

For every function of `widemargin.numerics.custom_autograd` with a plain definition: training steps that use it, at
typical sizes, unchanged and with the function replaced by its definition, alternating in one process. The result is the
time of the plain step divided by that of ours, each the minimum over the rounds, so 1.00 means no gain. For functions
that save memory, also the peak memory of a step beyond what the previous step left, each in a separate process (Linux
only). Steps are forward and backward of a head, or forward, backward and optimizer of the stack of small networks that
`compare` trains.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import widemargin
from widemargin.io.errors import InputError, unknown_name_error
from widemargin.numerics.custom_autograd import CUSTOM_FUNCTIONS, CustomFunction

Step = Callable[[], None]
_MIN_ROUND_SECONDS = 0.1


@cache
def list_custom_functions() -> dict[str, CustomFunction]:
    """Return every function with a hand-written backward pass, by name; imports the modules that have some."""
    root = Path(widemargin.__file__).parent
    for file in sorted(root.rglob("*.py")):
        if "@custom_autograd" in file.read_text(encoding="utf-8"):
            importlib.import_module(".".join(("widemargin", *file.relative_to(root).with_suffix("").parts)))
    return dict(sorted(CUSTOM_FUNCTIONS.items()))


@contextmanager
def plain_definition(entry: CustomFunction) -> Iterator[None]:
    """Replace the function by its definition inside the block, differentiated by autograd."""
    assert entry.definition is not None
    entry.function.apply = staticmethod(entry.definition)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del entry.function.apply


def make_head_step(
    loss: str,
    backend: str,
    shape: tuple[int, int, int],
    trained: bool = False,
    sample_rate: float = 1.0,
    compiles: bool = False,
) -> Step:
    """Forward and backward of a head; `trained` places embeddings close to their class weights.

    The dense backend has native kernels only if it `compiles`.
    """
    from widemargin.head.head import Head

    samples, dim, classes = shape
    torch.manual_seed(1)
    head = Head(
        dim, classes, loss, backend=backend, sample_rate=sample_rate, compile=compiles if backend == "dense" else "auto"
    )
    x, y = torch.randn(samples, dim), torch.randint(classes, (samples,))
    if trained:
        x = head.weight.detach()[y] + 0.2 * dim**-0.5 * x
    x.requires_grad_()

    def step() -> None:
        head.zero_grad()
        x.grad = None
        head(x, y).mean().backward()

    return step


def make_stack_step(loss: str, models: int = 100, rows: int = 150, features: int = 4, classes: int = 3) -> Step:
    """A step of the networks that ten times ten folds of a small table train at once."""
    from widemargin.tabular.batched import StackedTable, StackedTrainer
    from widemargin.tabular.config import MLPConfig

    rng = np.random.default_rng(0)
    x, y = torch.from_numpy(rng.standard_normal((rows, features))).float(), torch.arange(rows) % classes
    flat = torch.zeros(models, 1, features)
    table = StackedTable(x, y, classes, flat, flat + 1.0)
    parts = [np.sort(rng.permutation(rows)[: rows * 9 // 10]) for _ in range(models)]
    trainer = StackedTrainer(loss, table, parts, [(0, k) for k in range(models)], MLPConfig(min_steps=10**5))
    return lambda: trainer.run(1)


@dataclass(frozen=True)
class Usage:
    """A step that uses a function."""

    function: str
    step: str
    make: Callable[[], Step]
    with_memory: bool = False


USAGES: tuple[Usage, ...] = (
    Usage("Cosines", "arcface, dense 256×512×10", lambda: make_head_step("arcface", "dense", (256, 512, 10))),
    Usage("Cosines", "arcface, dense 256×512×1000", lambda: make_head_step("arcface", "dense", (256, 512, 1000))),
    Usage("Cosines", "arcface, dense 256×128×1000", lambda: make_head_step("arcface", "dense", (256, 128, 1000))),
    Usage("Cosines", "arcgrad, 100 stacked networks", lambda: make_stack_step("arcgrad(s=5)")),
    Usage(
        "DenseFunction",
        "arcface, native dense 256×128×1000",
        lambda: make_head_step("arcface", "dense", (256, 128, 1000), compiles=True),
    ),
    Usage(
        "DenseFunction",
        "arcgrad, native dense 256×128×1000",
        lambda: make_head_step("arcgrad", "dense", (256, 128, 1000), compiles=True),
    ),
    Usage(
        "NonTargetLogSumExp",
        "arcface, dense 256×128×1000",
        lambda: make_head_step("arcface", "dense", (256, 128, 1000)),
    ),
    Usage(
        "NonTargetLogSumExp",
        "softmax, dense 256×128×1000",
        lambda: make_head_step("softmax", "dense", (256, 128, 1000)),
    ),
    Usage("NonTargetLogSumExp", "softmax, 100 stacked networks", lambda: make_stack_step("softmax")),
    Usage(
        "_Arccos",
        "arcgrad, dense 256×128×1000, trained",
        lambda: make_head_step("arcgrad", "dense", (256, 128, 1000), trained=True),
    ),
    Usage(
        "_StreamFunction",
        "arcface, stream 256×512×10,000",
        lambda: make_head_step("arcface", "stream", (256, 512, 10_000)),
        with_memory=True,
    ),
    Usage(
        "_SparseGradRows",
        "arcface, sampled 256×512×100,000, rate 0.1",
        lambda: make_head_step("arcface", "sampled", (256, 512, 100_000), sample_rate=0.1),
    ),
)


def time_usage(usage: Usage, rounds: int) -> dict[str, float]:
    """Seconds of the step, unchanged and with the plain definition, the minimum over alternating rounds."""
    entry, step = list_custom_functions()[usage.function], usage.make()

    def spend(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            step()
        return (time.perf_counter() - start) / count

    spend(2)
    with plain_definition(entry):
        count = max(1, int(_MIN_ROUND_SECONDS / spend(2)))
    ours, plain = [], []
    for _ in range(rounds):
        ours.append(spend(count))
        with plain_definition(entry):
            plain.append(spend(count))
    return {"ours": min(ours), "plain": min(plain)}


def measure_usage(usage: Usage, rounds: int, with_memory: bool = True) -> dict[str, Any]:
    """Measure a function in a step."""
    seconds = time_usage(usage, rounds)
    row: dict[str, Any] = {"function": usage.function, "step": usage.step, "seconds": seconds}
    row["plain_over_ours"] = seconds["plain"] / seconds["ours"]
    if with_memory and usage.with_memory:
        row["mebibytes"] = {way: _measure_memory_in_child(usage, way) for way in ("ours", "plain")}
    return row


def _measure_memory_in_child(usage: Usage, way: str) -> float:
    from .head_timing import checkout_environment

    command = [sys.executable, "-m", __name__, usage.function, usage.step, way, str(torch.get_num_threads())]
    # Freed memory is returned to the system at once, so that it does not hide new allocations.
    environment = checkout_environment() | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if process.returncode:
        raise InputError(f"{usage.function} could not be measured: {process.stderr.strip().splitlines()[-1:]}")
    return round(float(process.stdout.split()[-1]), 1)


def _measure_memory(usage: Usage, way: str) -> float:
    """Peak MiB of a second step beyond the memory after the first, which includes the gradient."""
    from .head_timing import peak_resident_kib, reset_peak_resident, resident_kib

    entry, step = list_custom_functions()[usage.function], usage.make()
    with plain_definition(entry) if way == "plain" else nullcontext():
        step()  # loads libraries, compiles kernels
        gc.collect()
        before = resident_kib()
        reset_peak_resident()
        step()
        return (peak_resident_kib() - before) / 1024


def markdown(record: Mapping[str, Any]) -> str:
    """Return the table: every function, its purpose, the reason, and its gain in the record."""
    lines = [
        "| function | file | serves | why not autograd | plain step / ours |",
        "|---|---|---|---|---|",
    ]
    for name, entry in list_custom_functions().items():
        gains = []
        for row in record["rows"]:
            if row["function"] == name:
                memory = row.get("mebibytes")
                memory_text = f", {memory['plain']:.0f} MiB / {memory['ours']:.0f} MiB" if memory else ""
                gains.append(f"{row['plain_over_ours']:.2f} ({row['step']}{memory_text})")
        lines.append(f"| `{name}` | `{entry.file}` | {entry.serves} | {entry.why} | {'; '.join(gains) or '–'} |")
    return "\n".join(lines) + "\n"


BEGIN, END = "<!-- backward: begin -->\n", "<!-- backward: end -->\n"


def write_table(page: Path, table: str) -> None:
    """Replace the table of a Markdown page between two comments."""
    before, begun, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not begun or not ended:
        raise InputError(f"{page}: the comments {BEGIN.strip()} and {END.strip()} are missing")
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


def print_usages(functions: list[str] | None, rounds: int, with_memory: bool, json_path: str | None) -> dict[str, Any]:
    """Measure, print, write."""
    from rich.table import Table

    from widemargin.io.progress import progress_bar
    from widemargin.viz.terminal import check_writable, console

    names = sorted({usage.function for usage in USAGES})
    for name in functions or ():
        if name not in names:
            raise unknown_name_error("function", name, names)
    if rounds < 1:
        raise InputError(f"--rounds must be at least 1, got {rounds}")
    if json_path:
        check_writable(json_path)
    usages = [usage for usage in USAGES if not functions or usage.function in functions]
    rows = []
    with progress_bar("steps", float(len(usages))) as on_progress:
        for usage in usages:
            rows.append(measure_usage(usage, rounds, with_memory))
            on_progress(1.0)
    title = f"Step with autograd of the definition over ours, {torch.get_num_threads()} threads"
    grid = Table(title=title, title_justify="left")
    for column in ("function", "step", "ours, ms", "plain, ms", "plain / ours", "MiB ours", "MiB plain"):
        grid.add_column(column, justify="left" if column in ("function", "step") else "right")
    for row in rows:
        memory = row.get("mebibytes", {})
        grid.add_row(
            row["function"],
            row["step"],
            *(f"{1e3 * row['seconds'][way]:.2f}" for way in ("ours", "plain")),
            f"{row['plain_over_ours']:.2f}",
            *(f"{memory[way]:.0f}" if memory else "–" for way in ("ours", "plain")),
        )
    console().print(grid)
    record = {"torch": torch.__version__, "threads": torch.get_num_threads(), "rows": rows}
    if json_path:
        Path(json_path).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return record


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--functions", nargs="+", metavar="NAME", help="functions to measure (default: all)")
    parser.add_argument("--rounds", type=int, default=9, metavar="N", help="rounds of each step (default 9)")
    parser.add_argument("--no-memory", action="store_true", help="skip memory, which takes two processes each")
    parser.add_argument("--json", metavar="FILE", help="also write the results to a file")
    parser.add_argument("--docs", metavar="FILE", help="also update the table in a page, docs/numerics.md")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    record = print_usages(options.functions, options.rounds, not options.no_memory, options.json)
    if options.docs:
        write_table(Path(options.docs), markdown(record))


if __name__ == "__main__":
    _function, _step, _way, _threads = sys.argv[1:]
    torch.set_num_threads(int(_threads))
    print(_measure_memory(next(u for u in USAGES if (u.function, u.step) == (_function, _step)), _way))
