"""`python -m benchmarks shortcuts`: what each branch on tensor values saves on a CPU.

`widemargin.numerics.host_reads.SHORTCUTS` lists the branches that an accelerator does not take, because reading a value
there waits for the device. For each: a training step of a head that takes it, with it and without it, alternating in
one process. Times are those of the processor with one thread, so that other programs disturb them little. The result is
the time without divided by the time with it, the median over the rounds with its quartiles, so 1.00 means no gain. The
last rows are without all of them: the code path of an accelerator, on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from statistics import median, quantiles

import torch
from rich.table import Table

from widemargin import __version__
from widemargin.io.errors import unknown_name_error
from widemargin.numerics.host_reads import SHORTCUTS, without_shortcuts
from widemargin.viz.terminal import check_writable, console

from . import pairs
from .backward import Step, make_head_step

_PAIRS = "pairs"
_NATIVE = "native"
_NAMES = [*SHORTCUTS, "all"]
_SMALL, _MEDIUM, _LARGE = (256, 512, 10), (256, 128, 1000), (256, 512, 10_000)
# Loss, backend, shape, and whether embeddings are near their class weights; or a pair loss and its batch.
STEPS: dict[str, tuple[str, str, tuple[int, int, int], bool]] = {
    "norms": ("arcface", "dense", _SMALL, False),
    "cosines": ("arcface", "dense", _MEDIUM, False),
    "target_angle": ("arcface", "dense", _MEDIUM, False),
    "arccos": ("arcgrad", "dense", _MEDIUM, False),
    "log_sum": ("arcface", "dense", _MEDIUM, False),
    "arc_curve": ("arcface", "dense", _SMALL, False),
    "native_head": ("arcface", _NATIVE, _MEDIUM, False),
    "block_norms": ("arcface", "stream", _LARGE, False),
    "anchor": ("arcface", "stream", _LARGE, False),
    "tiny_angles": ("arcface", "stream", _LARGE, False),
    "pair_list": ("triplet(mining=semihard)", _PAIRS, (256, pairs.EMBEDDING_DIM, 256 // pairs.PER_CLASS), False),
    "penalty": ("soft_triple(k=3)", "stream", _MEDIUM, False),
}


def make_step(loss: str, backend: str, shape: tuple[int, int, int], trained: bool) -> Step:
    """A training step of a head or of a pair loss."""
    if backend == _PAIRS:
        return pairs.own_step(loss, *pairs.random_batch(shape[0]))
    if backend == _NATIVE:
        return make_head_step(loss, "dense", shape, trained, compiles=True)
    return make_head_step(loss, backend, shape, trained)


def time_alternately(step: Step, names: tuple[str, ...], rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of a step with and without shortcuts, in every round."""
    with_them, without = [], []
    for _ in range(rounds + 1):  # the first warms up
        began = time.process_time()
        step()
        middle = time.process_time()
        with without_shortcuts(*names):
            step()
        with_them.append(middle - began)
        without.append(time.process_time() - middle)
    return with_them[1:], without[1:]


def gain_and_quartiles(with_them: list[float], without: list[float]) -> tuple[float, float, float]:
    """Median of the rounds' ratios, and the quartiles.

    >>> gain_and_quartiles([1.0, 2.0, 1.0, 1.0], [1.0, 4.0, 3.0, 4.0])
    (2.5, 1.75, 3.25)
    """
    ratios = [b / a for a, b in zip(with_them, without, strict=True)]
    if len(ratios) == 1:
        return ratios[0], ratios[0], ratios[0]
    low, middle, high = quantiles(ratios, n=4, method="inclusive")
    return middle, low, high


def run(options: argparse.Namespace) -> None:
    """Time every shortcut, and the whole path of an accelerator for each backend."""
    os.environ.setdefault("WIDEMARGIN_CHECK", "sync")  # the same checks on both sides
    torch.set_num_threads(1)  # threads that wait for each other take processor time
    results: list[dict[str, object]] = []
    table = Table("shortcut", "what it does", "step", "ms", "gain")
    whole = [("arcface", "dense", shape, False) for shape in (_SMALL, _MEDIUM)]
    whole += [("arcface", "stream", _LARGE, False), ("softmax", "stream", _LARGE, False)]
    wanted = options.shortcuts or _NAMES
    if unknown := set(wanted) - set(_NAMES):
        raise unknown_name_error("shortcut", sorted(unknown)[0], _NAMES)
    rows = [((name,), SHORTCUTS[name], STEPS[name]) for name in SHORTCUTS if name in wanted]
    together = [((), "all of them", one) for one in whole if "all" in wanted]
    for names, text, (loss, backend, shape, trained) in [*rows, *together]:
        seconds, plain = time_alternately(make_step(loss, backend, shape, trained), names, options.rounds)
        gain, low, high = gain_and_quartiles(seconds, plain)
        milliseconds = 1e3 * median(seconds)
        where = f"{loss}, {backend} {'×'.join(f'{size:,}' for size in shape)}{', trained' if trained else ''}"
        shortcut = names[0] if names else "all"
        results.append(
            {"shortcut": shortcut, "step": where, "ms": milliseconds, "gain": gain, "quartiles": [low, high]}
        )
        table.add_row(shortcut, text, where, f"{milliseconds:.2f}", f"{gain:.2f} ({low:.2f} to {high:.2f})")
    console().print(table)
    if options.json:
        check_writable(options.json)
        path = Path(options.json)
        if options.shortcuts and path.exists():  # the other rows stay
            before = [row for row in json.loads(path.read_text(encoding="utf-8"))["rows"] if row["shortcut"] in _NAMES]
            results = sorted(
                [*(row for row in before if row["shortcut"] not in wanted), *results],
                key=lambda row: _NAMES.index(str(row["shortcut"])),
            )
        record = {"benchmark": "shortcuts", "version": __version__, "threads": torch.get_num_threads(), "rows": results}
        path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--shortcuts",
        nargs="+",
        metavar="NAME",
        help="only these (all: all of them together); others in the --json file stay",
    )
    parser.add_argument("--rounds", type=int, default=30, metavar="N", help="rounds of each step (default 30)")
    parser.add_argument("--json", metavar="FILE", help="also write the results to a file")
    parser.set_defaults(run=run)
