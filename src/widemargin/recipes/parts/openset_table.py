"""The table of an open-set recipe: lines and seeds, done as far as they are missing, with intervals and verdicts."""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...folder_lock import alone_in
from ...run import Run
from .openset_lines import PEERS, Line
from .run_list import folder_of, record_of, write_records

# Figure of a record → its title, whether high or low is good, digits.
FIGURES: dict[str, tuple[str, str, int]] = {
    "auc": ("AUC", "high", 2),
    "eer": ("EER", "low", 2),
    "pair_accuracy": ("pairs right, ten folds", "high", 2),
    "recall1": ("recall@1", "high", 2),
    "map_at_r": ("MAP@R", "high", 2),
    "five_way_one_shot": ("5-way-1-shot", "high", 2),
    "intra": ("image to centre, rad", "none", 3),
    "c_inter": ("C-Inter, rad", "none", 3),
}
_PICTURES = ("pair_accuracy", "recall1", "five_way_one_shot")


def carry_out(lines: Sequence[Line], seeds: range, options: argparse.Namespace, recipe: str) -> Path | None:
    """Do what is missing, seed by seed; write the records of all that is finished. None where only a list was asked."""
    place, out = Path(options.runs), Path(options.out or f"openset_{recipe}")
    wanted = [(line, line.of_seed(seed)) for seed in seeds for line in lines]
    todo = [(line, run) for line, run in wanted if record_of(run, place) is None]
    if options.list:
        for _, run in wanted:
            print("missing " if record_of(run, place) is None else "finished", folder_of(run, place))
        return None
    with alone_in(out):
        _work(todo, place, options.data_dir)
        count = write_records([run for _, run in wanted], place, out / "records.jsonl")
    print(f"{count} of {len(wanted)} runs are finished")
    return out


def _work(todo: Sequence[tuple[Line, Run]], place: Path, data_dir: str | None) -> None:
    """One run after the other; one that diverges does not keep the others from being done."""
    from ...training.allocator import keep_freed_memory
    from ...training.diagnosis import DivergedError

    keep_freed_memory()
    for number, (line, run) in enumerate(todo, 1):
        print(f"run {number} of {len(todo)}: {line.name}, seed {run.seed}", file=sys.stderr, flush=True)
        try:
            line.work(run, folder_of(run, place), data_dir)
        except DivergedError as error:
            print(f"{line.name}, seed {run.seed}: {error}", file=sys.stderr, flush=True)


def by_seed(line: Line, seeds: range, place: Path, figure: str) -> dict[int, float]:
    """A figure of the finished runs of a line."""
    found = {}
    for seed in seeds:
        record = record_of(line.of_seed(seed), place)
        value = None if record is None else record["test"].get(figure, record["angles"].get(figure))
        if value is not None:
            found[seed] = float(value)
    return found


def values(line: Line, seeds: range, place: Path, figure: str) -> list[float]:
    """The same without the seeds."""
    return list(by_seed(line, seeds, place, figure).values())


def interval(numbers: Sequence[float]) -> float | None:
    """Half the width of the 95 % interval of their mean (Student's t); None for fewer than two."""
    if len(numbers) < 2:
        return None
    from scipy.stats import t

    return float(t.ppf(0.975, len(numbers) - 1)) * statistics.stdev(numbers) / math.sqrt(len(numbers))


def shown(numbers: Sequence[float], digits: int) -> str:
    """Mean and interval."""
    if not numbers:
        return "–"
    half = interval(numbers)
    return f"{statistics.fmean(numbers):.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


def compared(ours: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    """In words, seed by seed: the same split, the same batches; nothing where too few seeds are finished."""
    gaps = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    half = interval(gaps)
    if half is None:
        return ""
    mean = statistics.fmean(gaps)
    word = "better than" if mean > half else "worse than" if mean < -half else "not told apart from"
    return f"{word} ({mean:+.2f} ± {half:.2f})"


def verdicts(lines: Sequence[Line], seeds: range, place: Path) -> list[str]:
    """Ours against the peer's of the same kind."""
    by_name = {line.name: line for line in lines}
    found = []
    for theirs, ours in PEERS.items():
        for figure in ("pair_accuracy", "recall1"):
            if theirs in by_name and ours in by_name:
                word = compared(*(by_seed(by_name[name], seeds, place, figure) for name in (ours, theirs)))
                kind, _, rest = word.partition(" (")
                if word:
                    found.append(f"{ours}, {FIGURES[figure][0]}: {kind} {theirs} ({rest}")
    return found


def present(lines: Sequence[Line], seeds: range, options: argparse.Namespace, out: Path, title: str, sub: str) -> None:
    """The table in the terminal and the page."""
    from rich.table import Table

    from ...listing import console
    from ...report import page
    from ...report.dot_rows import dot_rows
    from ...report.palette import colour

    place = Path(options.runs)
    cells = {(line.name, figure): values(line, seeds, place, figure) for line in lines for figure in FIGURES}
    best = {figure: _best(lines, cells, figure) for figure in FIGURES}
    grid = Table(title=title, title_justify="left", title_style="bold")
    grid.add_column("loss", no_wrap=True)
    for name, _, _ in FIGURES.values():
        grid.add_column(name, justify="right")
    rows = []
    for line in lines:
        texts = [(shown(cells[line.name, f], FIGURES[f][2]), best[f] == line.name) for f in FIGURES]
        grid.add_row(line.name, *(f"[bold]{text}[/]" if wins else text for text, wins in texts))
        rows.append([(line.name, ""), *((text, "best" if wins else "") for text, wins in texts)])
    console(width=200).print(grid)
    said = verdicts(lines, seeds, place)
    for sentence in said:
        print(sentence)
    body = [page.table(["loss", *(name for name, _, _ in FIGURES.values())], rows)]
    for figure in _PICTURES:
        there = [line.name for line in lines if cells[line.name, figure]]
        if there:
            picture = dot_rows(
                there,
                [cells[name, figure] for name in there],
                [None] * len(there),
                [colour(name) for name in there],
                "percent",
                FIGURES[figure][0],
            )
            body += [page.heading(FIGURES[figure][0], "A dot is a seed, the bar their mean."), page.figure(picture)]
    if said:
        about = "Differences over the same splits and batches, with 95 % intervals."
        body += [page.heading("Beside pytorch-metric-learning's", about)]
        body += [page.paragraph(sentence, "note") for sentence in said]
    body += [page.heading("Again"), page.code(f"widemargin reproduce openset {options.which} --seeds {len(seeds)}")]
    path = out / "report.html"
    path.write_text(page.page(title, sub, body), encoding="utf-8")
    print(f"wrote {path} and {out / 'records.jsonl'}")


def _best(lines: Sequence[Line], cells: Mapping[tuple[str, str], list[float]], figure: str) -> Any:
    means = {line.name: statistics.fmean(cells[line.name, figure]) for line in lines if cells[line.name, figure]}
    kind = FIGURES[figure][1]
    if not means or kind == "none":
        return None
    return (max if kind == "high" else min)(means, key=lambda name: means[name])
