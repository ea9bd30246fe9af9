"""The table of an open-set recipe: lines and seeds, done as far as they are missing, with intervals and verdicts.

Runs whose figures an older version computed are judged again from what they kept; only what kept nothing is trained
again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...folder_lock import alone_in
from ...run import Run
from ...training.writing import write_whole
from .openset_identities import ALPHA, Compared, Split, compare_lines, is_current, keep, pooled_interval, split_of
from .openset_lines import PEERS, Line
from .run_list import folder_of, record_of, write_records

# Figure of a record → its title, whether high or low is good, digits.
FIGURES: dict[str, tuple[str, str, int]] = {
    "auc": ("AUC", "high", 2),
    "eer": ("EER", "low", 2),
    "pair_accuracy": ("pairs right in folds", "high", 2),
    "recall1": ("recall@1", "high", 2),
    "map_at_r": ("MAP@R", "high", 2),
    "five_way_one_shot": ("5-way-1-shot", "high", 2),
    "intra": ("image to centre, rad", "none", 3),
    "c_inter": ("C-Inter, rad", "none", 3),
}
_PICTURES = ("auc", "recall1", "five_way_one_shot")
COMPARED = ("auc", "eer", "pair_accuracy", "recall1", "map_at_r")
"""Figures by which all lines are compared with each other."""


def carry_out(lines: Sequence[Line], seeds: range, options: argparse.Namespace, recipe: str) -> Path | None:
    """Do what is missing, seed by seed; write the records of all that is finished. None where only a list was asked."""
    place, out = Path(options.runs), Path(options.out or f"openset_{recipe}")
    wanted = [(line, line.of_seed(seed)) for seed in seeds for line in lines]
    todo = [(line, run) for line, run in wanted if record_of(run, place) is None]
    if options.list:
        for line, run in wanted:
            print(_state(line, run, place), folder_of(run, place))
        return None
    with alone_in(out):
        _work(todo, place, options.data_dir)
        _judge_again([each for each in wanted if _state(*each, place) == _OLDER], place, options.data_dir)
        count = write_records([run for _, run in wanted], place, out / "records.jsonl")
    print(f"{count} of {len(wanted)} runs are finished")
    return out


_MISSING, _OLDER, _DONE = "missing ", "to judge", "finished"


def _state(line: Line, run: Run, place: Path) -> str:
    """Whether a run is to be done, to be judged again, or neither."""
    if record_of(run, place) is None:
        return _MISSING
    return _OLDER if line.judge is not None and not is_current(folder_of(run, place)) else _DONE


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


def _judge_again(older: Sequence[tuple[Line, Run]], place: Path, data_dir: str | None) -> None:
    """Figures of finished runs from what they kept, and without each identity; one that kept nothing is done again."""
    for number, (line, run) in enumerate(older, 1):
        folder = folder_of(run, place)
        print(f"judging {number} of {len(older)}: {line.name}, seed {run.seed}", file=sys.stderr, flush=True)
        assert line.judge is not None
        found = line.judge(run, folder, data_dir)
        if found is None:
            print(f"{line.name}, seed {run.seed}: kept no network and is trained again", file=sys.stderr, flush=True)
            line.work(run, folder, data_dir)
            found = line.judge(run, folder, data_dir)
        if found is not None:
            keep(folder, *found)


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


def splits_of(line: Line, seeds: range, place: Path, figure: str) -> dict[int, Split]:
    """A figure of the finished runs of a line with what it is without each identity, by seed."""
    values_of = by_seed(line, seeds, place, figure)
    found = {seed: split_of(folder_of(line.of_seed(seed), place), figure, value) for seed, value in values_of.items()}
    return {seed: split for seed, split in found.items() if split is not None}


def with_interval(line: Line, seeds: range, place: Path, figure: str) -> str:
    """Mean over the splits, with the interval over identities and splits where there is one."""
    numbers, digits = values(line, seeds, place, figure), FIGURES[figure][2]
    if FIGURES[figure][1] == "none":
        return shown(numbers, digits)
    if not numbers:
        return "–"
    splits = list(splits_of(line, seeds, place, figure).values())
    given = [record for seed in seeds if (record := record_of(line.of_seed(seed), place)) is not None]
    refused = any(record.get("intervals", {}).get(figure) is None for record in given)  # few events, in one split
    ends = None if refused or len(splits) < len(numbers) else pooled_interval(splits)
    mean = f"{statistics.fmean(numbers):.{digits}f}"
    return mean if ends is None else f"{mean} ({ends[0]:.{digits}f} to {ends[1]:.{digits}f})"


def compared_by(lines: Sequence[Line], seeds: range, place: Path, figure: str) -> list[Compared]:
    """Every two lines by a figure."""
    return compare_lines({line.name: splits_of(line, seeds, place, figure) for line in lines})


def told_apart(found: Sequence[Compared], figure: str) -> dict[str, tuple[list[str], list[str]]]:
    """For every line those that it is better and those that it is worse than."""
    names = dict.fromkeys(name for each in found for name in (each.one, each.other))
    result: dict[str, tuple[list[str], list[str]]] = {name: ([], []) for name in names}
    for each in found:
        if each.apart:
            ahead = (each.difference > 0) == (FIGURES[figure][1] == "high")
            better, worse = (each.one, each.other) if ahead else (each.other, each.one)
            result[better][0].append(worse)
            result[worse][1].append(better)
    return result


def _ahead(found: Sequence[Compared], figure: str) -> list[str]:
    """A sentence for every line that is better than others."""
    apart = told_apart(found, figure)
    return [f"{name} is better than {', '.join(better)}" for name, (better, _) in apart.items() if better]


def verdicts(found: Mapping[str, Sequence[Compared]]) -> list[str]:
    """How many lines each figure tells apart, and ours against the peer's of the same kind."""
    said = []
    for figure, rows in found.items():
        if rows:
            apart = sum(each.apart for each in rows)
            said.append(f"{FIGURES[figure][0]}: {apart} of {len(rows)} pairs of lines are told apart")
    for figure, rows in found.items():
        for each in rows:
            if PEERS.get(each.other) == each.one:
                ahead = (each.difference > 0) == (FIGURES[figure][1] == "high")
                word = ("better than" if ahead else "worse than") if each.apart else "not told apart from"
                gap = f"{each.difference:+.2f} ± {each.reach:.2f}, p = {each.p:.2g}"
                said.append(f"{each.one}, {FIGURES[figure][0]}: {word} {each.other} ({gap})")
    return said


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
        texts = [(with_interval(line, seeds, place, f), best[f] == line.name) for f in FIGURES]
        grid.add_row(line.name, *(f"[bold]{text}[/]" if wins else text for text, wins in texts))
        rows.append([(line.name, ""), *((text, "best" if wins else "") for text, wins in texts)])
    console(width=240).print(grid)
    found = {figure: compared_by(lines, seeds, place, figure) for figure in COMPARED}
    write_whole(out / "compared.json", json.dumps(_facts(found), indent=1, ensure_ascii=False) + "\n")
    said = verdicts(found)
    for sentence in said:
        print(sentence)
    for figure in COMPARED:
        for sentence in _ahead(found[figure], figure):
            print(f"{FIGURES[figure][0]}: {sentence}")
    body = [page.table(["loss", *(name for name, _, _ in FIGURES.values())], rows)]
    if said:
        body += [page.heading("What is told apart", _ABOUT), *(page.paragraph(sentence, "note") for sentence in said)]
    for figure in COMPARED:
        ahead = _ahead(found[figure], figure)
        if found[figure]:
            body += [page.heading(f"Told apart by {FIGURES[figure][0]}", "" if ahead else "None are.")]
            body += [page.paragraph(sentence) for sentence in ahead]
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
            body += [page.heading(FIGURES[figure][0], "A dot is a split, the bar their mean."), page.figure(picture)]
    body += [page.heading("Again"), page.code(f"widemargin reproduce openset {options.which} --seeds {len(seeds)}")]
    path = out / "report.html"
    path.write_text(page.page(title, sub, body), encoding="utf-8")
    print(f"wrote {path}, {out / 'records.jsonl'} and {out / 'compared.json'}")


def _facts(found: Mapping[str, Sequence[Compared]]) -> list[dict[str, Any]]:
    """Every comparison, for a file."""
    return [{"figure": name, **asdict(each), "apart": each.apart} for name, rows in found.items() for each in rows]


_ABOUT = (
    "Every two lines on the same splits and identities: the difference of their means with its 95 % interval over "
    f"identities and splits. Told apart are those with p of at most {ALPHA:g} after Holm's correction over all pairs "
    "(p is given after it); all others are not, whatever their order in the table."
)


def _best(lines: Sequence[Line], cells: Mapping[tuple[str, str], list[float]], figure: str) -> Any:
    means = {line.name: statistics.fmean(cells[line.name, figure]) for line in lines if cells[line.name, figure]}
    kind = FIGURES[figure][1]
    if not means or kind == "none":
        return None
    return (max if kind == "high" else min)(means, key=lambda name: means[name])
