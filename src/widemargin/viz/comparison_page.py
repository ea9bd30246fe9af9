"""A comparison as a page (`report.html`: the verdict, then the charts, then the numbers) and as a terminal table."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table as Grid
from rich.text import Text

from ..io.text import escape
from . import charts, page
from .charts import loss_colour
from .terminal import console, plain_text

if TYPE_CHECKING:
    from ..tabular.comparison import Comparison, CrossDatasetComparison, DatasetComparison
    from ..tabular.results import Result


_BASELINE_COLOUR = "#8a8f98"  # baselines: no loss has it
_ANGLE_DESCRIPTIONS = (
    ("wc_intra", "WC-Intra: class weight to class centre (small is compact)"),
    ("w_inter", "W-Inter: between class weights (large is separated)"),
    ("c_inter", "C-Inter: between class centres (large is separated)"),
)


def comparison_page(
    comparison: Comparison,
    data_notes: Sequence[str] = (),
    command: str = "",
    extra_sections: Sequence[str] = (),
    title: str = "",
) -> str:
    """The whole page; `data_notes` are sentences on the data, `extra_sections` stand after the verdict."""
    one = comparison.sets[0]
    first = one.results[0]
    count = len(first.folds)
    methods = f"{len(comparison.methods)} method{'s' if len(comparison.methods) > 1 else ''}"
    subtitle = f"{methods}, {count} folds each on the same partitions, seed {first.seed}"
    if comparison.baselines:
        subtitle += f"; {len(comparison.baselines)} baseline{'s' if len(comparison.baselines) > 1 else ''}"
    question = f"{one.set}: which loss serves it?"
    if len(comparison.sets) > 1:
        subtitle, question = (
            f"{len(comparison.sets)} sets, " + subtitle,
            f"{len(comparison.sets)} sets: which loss serves them?",
        )
    body = [f'<p class="verdict">{escape(comparison.verdict)}</p>', *extra_sections]
    body += (
        _cross_dataset_sections(comparison)
        if comparison.across_datasets is not None
        else [part for one in comparison.sets for part in _dataset_sections(one)]
    )
    body += _angle_metric_sections(comparison)
    body += _result_table_sections(comparison)
    body += _provenance_sections(data_notes, command, first)
    return page.html_page(title or question, subtitle, body)


def _draw_accuracy_intervals(comparison: DatasetComparison, order: Sequence[int]) -> str:
    """Losses in this order with their intervals, baselines below a line."""
    rows = [(comparison.results[i], comparison.intervals[i], loss_colour(comparison.results[i].loss)) for i in order]
    rows += [
        (r, span, _BASELINE_COLOUR) for r, span in zip(comparison.baselines, comparison.baseline_intervals, strict=True)
    ]
    return charts.draw_intervals(
        [r.loss for r, _, _ in rows],
        [r.mean for r, _, _ in rows],
        [span for _, span, _ in rows],
        [colour for _, _, colour in rows],
        "accuracy in percent",
        f"Accuracy of each method on {comparison.set} with its 95 % interval",
        num_references=len(comparison.baselines),
    )


def _dataset_sections(comparison: DatasetComparison) -> list[str]:
    parts = [
        page.heading(
            f"Accuracy on {comparison.set}",
            "The dot is the mean over all folds, the line its 95 % interval, allowing for rows that folds share."
            + _baseline_hint(comparison),
        ),
        page.figure(_draw_accuracy_intervals(comparison, comparison.order)),
    ]
    if len(comparison.results) > 1 and comparison.has_statement:
        diagram = charts.draw_critical_difference_diagram(
            [r.loss for r in comparison.results],
            [r.mean for r in comparison.results],
            comparison.groups,
            "accuracy",
            "Methods by accuracy; a bar joins those that no test tells apart",
            best_left=False,
        )
        why = (
            "A bar joins methods that the corrected resampled t-test with Holm's correction does not tell apart (5 %)."
        )
        parts += [page.heading("Who differs from whom", why), page.figure(diagram)]
    return parts


def _baseline_hint(comparison: DatasetComparison) -> str:
    """A sentence that explains the baselines in a picture; empty where there are none."""
    return (
        " Baselines stand below the line; an arrow marks one that lies too far left to be drawn."
        if comparison.baselines
        else ""
    )


def _cross_dataset_sections(comparison: Comparison) -> list[str]:
    summary = comparison.across_datasets
    assert summary is not None
    diagram = charts.draw_critical_difference_diagram(
        comparison.methods,
        summary.mean_ranks,
        summary.groups,
        "mean rank",
        "Critical-difference diagram: mean ranks, bars join methods that Nemenyi's test does not tell apart",
        (summary.critical_difference, f"critical difference {summary.critical_difference:.2f}"),
    )
    friedman = (
        f"Mean ranks over {len(summary.sets)} sets, 1 is best; a bar joins methods whose ranks differ by less than "
        "the critical difference (Nemenyi, 5 %). "
        f"Friedman's test that any differ at all: p = {summary.p_friedman:.3g}."
    )
    parts = [page.heading("Critical-difference diagram", friedman), page.figure(diagram)]
    parts.append(
        page.heading(
            "Accuracy by set",
            "The mean of each method; open a set for the 95 % intervals (folds share rows, which they allow for).",
        )
    )
    names = [one.set for one in comparison.sets]
    scores = [[result.mean for result in one.results] for one in comparison.sets]
    everything = charts.draw_dot_plot(names, comparison.methods, scores, [loss_colour(m) for m in comparison.methods])
    parts.append(page.figure(everything))
    for one in comparison.sets:
        parts.append(
            page.details(one.set, page.figure(_draw_accuracy_intervals(one, range(len(one.results))), one.verdict))
        )
    return parts


def _angle_metric_sections(comparison: Comparison) -> list[str]:
    measured = [
        m for m in comparison.methods if any(r.angles for one in comparison.sets for r in one.results if r.loss == m)
    ]
    if not measured:
        return []
    values = [[_mean_angle(comparison, method, key) for key, _ in _ANGLE_DESCRIPTIONS] for method in measured]
    picture = charts.draw_grouped_bars(
        measured,
        [name for _, name in _ANGLE_DESCRIPTIONS],
        values,
        [loss_colour(m) for m in measured],
        "Angle metrics in radians",
    )
    why = "Angles in radians (π/2 = 1.57), training rows, mean over all models" + (
        " and sets; sets with other numbers of classes have other largest angles."
        if len(comparison.sets) > 1
        else ". With two classes only the difference of two angles decides: there a centre may lie far from its weight."
    )
    return [page.heading("Compact within, far apart between", why), page.figure(picture)]


def _mean_angle(comparison: Comparison, method: str, key: str) -> float:
    values = [r.angles.get(key) for one in comparison.sets for r in one.results if r.loss == method]
    known = [v for v in values if v is not None and math.isfinite(v)]
    return sum(known) / len(known) if known else math.nan


def _result_table_sections(comparison: Comparison) -> list[str]:
    marks = "Bold: the best. ≈: not significantly worse than it (corrected resampled t-test, Holm, 5 %)."
    explained = [marks] if any(one.has_statement for one in comparison.sets) else []
    most = comparison.sets[0].results[0].max_train_rows
    measured = f"Train: accuracy on the rows that were learnt from, on {most:,} of each fold where there are more."
    fit = [measured, *(f"{line}." for line in baseline_notes(comparison))]
    if len(comparison.sets) == 1:
        if comparison.sets[0].has_statement:
            explained.append("A fold is won by everybody whom no other method beats in it.")
        return [page.heading("The numbers", " ".join([*explained, *fit])), _dataset_table(comparison.sets[0])]
    rows = [[(one.set, ""), *(_accuracy_cell(r, one) for r in one.results)] for one in comparison.sets]
    foot = _summary_footer(comparison.across_datasets) if comparison.across_datasets is not None else []
    ranges = [
        [
            (one.set, ""),
            (format_mean_range(one), ""),
            (format_train_accuracy_range(one), ""),
            *map(_mean_std_cell, one.baselines),
        ]
        for one in comparison.sets
    ]
    return [
        page.heading("The numbers", " ".join(explained)),
        page.table(("set", *comparison.methods), rows, foot),
        page.heading(
            "Training accuracy and baselines" if comparison.baselines else "Training accuracy",
            " ".join(["Of the losses the lowest and the highest mean.", *fit]),
        ),
        page.table(("set", "losses, test", "losses, train", *comparison.baselines), ranges),
    ]


def _dataset_table(comparison: DatasetComparison) -> str:
    """Losses, the best mean first, and the baselines at the foot."""
    rank_columns = ("rank", "folds won") if comparison.has_statement else ()

    def row(r: Result, mean: page.Cell, interval: tuple[float, float], place: Sequence[str]) -> list[page.Cell]:
        texts = (
            format_train_accuracy(r),
            format_interval(*interval, 2),
            *place[: len(rank_columns)],
            f"{r.seconds:.1f} s",
        )
        return [(r.loss, ""), mean, *((text, "") for text in texts)]

    rows = [
        row(
            comparison.results[i],
            _accuracy_cell(comparison.results[i], comparison),
            comparison.intervals[i],
            (f"{comparison.ranks[i]:g}", str(comparison.wins[i])),
        )
        for i in comparison.order
    ]
    foot = [
        row(r, _mean_std_cell(r), interval, ("–", "–"))
        for r, interval in zip(comparison.baselines, comparison.baseline_intervals, strict=True)
    ]
    return page.table(("loss", "mean ± std", "train", "95 % interval", *rank_columns, "time"), rows, foot)


def _summary_footer(summary: CrossDatasetComparison) -> list[list[page.Cell]]:
    wins = (f"{n} ({s} shared)" if s else f"{n}" for n, s in zip(summary.wins, summary.tied_wins, strict=True))
    return [
        [("average", ""), *((f"{v:.2f}", "") for v in summary.averages)],
        [("mean rank", ""), *((f"{v:.2f}", "") for v in summary.mean_ranks)],
        [("wins", ""), *((text, "") for text in wins)],
    ]


def _accuracy_cell(result: Result, comparison: DatasetComparison) -> page.Cell:
    css_class = {BEST_MARK: "best", NOT_WORSE_MARK: "alike"}.get(accuracy_mark(result, comparison), "")
    return _mean_std_cell(result)[0], css_class


def _mean_std_cell(result: Result) -> page.Cell:
    return f"{result.mean:.2f} ± {result.std:.2f}", ""


def _provenance_sections(data_notes: Sequence[str], command: str, first: Result) -> list[str]:
    parts = [page.heading("How this was made")]
    parts += [page.paragraph(sentence, "note") for sentence in data_notes]
    if command:
        parts += [page.paragraph("The command that makes it again:"), page.code(command)]
    settings = json.dumps({"settings": first.settings, "versions": first.versions}, indent=1, ensure_ascii=False)
    parts.append(page.details("Settings and versions", page.code(settings)))
    return parts


def format_interval(low: float, high: float, digits: int) -> str:
    """An interval as text; a dash for an empty one, as equal folds do not say how far off the mean may be.

    >>> format_interval(94.48, 99.9, 1), format_interval(96.0, 96.0, 1)
    ('94.5 – 99.9', '–')
    """
    return "–" if low == high else f"{low:.{digits}f} – {high:.{digits}f}"


def format_train_accuracy(result: Result) -> str:
    """The training accuracy as a table shows it; a dash where it was not measured."""
    return "–" if result.train_mean is None else f"{result.train_mean:.2f}"


def format_mean_range(comparison: DatasetComparison) -> str:
    """The lowest and the highest mean of the losses of a set."""
    return _format_range([result.mean for result in comparison.results])


def format_train_accuracy_range(comparison: DatasetComparison) -> str:
    """The lowest and the highest training accuracy of the losses of a set, of those that are known."""
    return _format_range([result.train_mean for result in comparison.results if result.train_mean is not None])


def _format_range(values: Sequence[float]) -> str:
    if not values:
        return "–"
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return low if low == high else f"{low} – {high}"


def baseline_notes(comparison: Comparison) -> list[str]:
    """Notes on baselines that were run on fewer folds than the losses, or fitted to fewer rows than there are."""
    datasets_by_phrase: dict[str, list[str]] = {}
    for one in comparison.sets:
        fewer: dict[int, list[str]] = {}
        for result in one.baselines:
            if len(result.folds) < len(one.results[0].folds):
                fewer.setdefault(len(result.folds), []).append(result.loss)
        phrases = [f"{' and '.join(names)}: the first {count} of these folds" for count, names in fewer.items()]
        capped: dict[int, list[str]] = {}
        for result in one.baselines:
            if "fit_rows" in result.settings:
                capped.setdefault(result.settings["fit_rows"], []).append(result.loss)
        phrases += [
            f"{' and '.join(names)}: fitted to {rows} rows of every training part" for rows, names in capped.items()
        ]
        for phrase in phrases:
            datasets_by_phrase.setdefault(phrase, []).append(one.set)
    return [
        phrase + ("" if len(sets) == len(comparison.sets) else f" ({', '.join(sets)})")
        for phrase, sets in datasets_by_phrase.items()
    ]


# A comparison as a table in the terminal.

NOT_WORSE_MARK = "≈"
BEST_MARK = "*"
"""In addition to bold type, which a file does not keep."""
MARKS_LEGEND = f"{BEST_MARK}: best; {NOT_WORSE_MARK}: not significantly worse (corrected resampled t-test, Holm, 5 %)"
FOLDS_WON_NOTE = "; a fold is won by everybody whom no other beats in it"
TRAIN_ACCURACY_NOTE = (
    "train: accuracy on the rows that were learnt from (on {rows:,} of each fold where there are more)"
)


def print_comparison(comparison: Comparison) -> None:
    """Print one set with a row per method, or several with a row per set and a summary."""
    if len(comparison.sets) == 1:
        _print_one_dataset(comparison.sets[0])
    else:
        _print_datasets(comparison)
    out = console()
    if any(one.has_statement for one in comparison.sets):
        out.print(f"[dim]{MARKS_LEGEND}{FOLDS_WON_NOTE if len(comparison.sets) == 1 else ''}[/dim]")
    rows = comparison.sets[0].results[0].max_train_rows
    for line in (TRAIN_ACCURACY_NOTE.format(rows=rows), *baseline_notes(comparison)):
        out.print(Text(line, style="dim"))
    out.print(plain_text(comparison.verdict))
    if len(comparison.sets) > 1:
        for one in comparison.sets:
            if not one.has_statement:
                out.print(plain_text(f"{one.set}: {one.verdict}"))


def _print_one_dataset(comparison: DatasetComparison) -> None:
    count = len(comparison.results[0].folds)
    title = plain_text(f"{comparison.set}: accuracy in percent over {count} folds")
    grid = Grid(title=title, title_justify="left", title_style="bold")
    grid.add_column("loss")
    for column in (
        "mean ± std",
        "train",
        "95 % interval",
        *(("rank", "folds won") if comparison.has_statement else ()),
    ):
        grid.add_column(column, justify="right")
    for i in comparison.order:
        result, (low, high) = comparison.results[i], comparison.intervals[i]
        placed = (f"{comparison.ranks[i]:g}", str(comparison.wins[i])) if comparison.has_statement else ()
        grid.add_row(
            plain_text(result.loss),
            _accuracy_text(result, comparison),
            format_train_accuracy(result),
            format_interval(low, high, 1),
            *placed,
        )
    if comparison.baselines:
        grid.add_section()
    for result, (low, high) in zip(comparison.baselines, comparison.baseline_intervals, strict=True):
        cells = (f"{result.mean:.2f}±{result.std:.2f} ", format_train_accuracy(result), format_interval(low, high, 1))
        grid.add_row(plain_text(result.loss), *cells, *(("–", "–") if comparison.has_statement else ()), style="dim")
    console().print(grid)


def _print_datasets(comparison: Comparison) -> None:
    grid = Grid(title="Accuracy in percent, mean ± std", title_justify="left", title_style="bold")
    grid.add_column("set", no_wrap=True)
    for method in comparison.methods:
        grid.add_column(plain_text(method), justify="right", overflow="fold", min_width=12)
    grid.add_column("train", justify="right", no_wrap=True)
    for name in comparison.baselines:
        grid.add_column(Text(name, style="dim"), justify="right", overflow="fold", min_width=12, style="dim")
    for one in comparison.sets:
        baseline_cells = (f"{result.mean:.2f}±{result.std:.2f} " for result in one.baselines)
        grid.add_row(
            plain_text(one.set),
            *(_accuracy_text(result, one) for result in one.results),
            format_train_accuracy_range(one),
            *baseline_cells,
        )
    if comparison.across_datasets is not None:
        grid.add_section()
        _add_summary(grid, comparison.across_datasets)
    console(width=50 + 20 * (len(comparison.methods) + len(comparison.baselines))).print(grid)


def _add_summary(grid: Grid, summary: CrossDatasetComparison) -> None:
    top = max(summary.averages)
    grid.add_row("average", *(Text(f"{v:.2f}", style="bold" if v == top else "") for v in summary.averages))
    first = min(summary.mean_ranks)
    grid.add_row("mean rank", *(Text(f"{v:.2f}", style="bold" if v == first else "") for v in summary.mean_ranks))
    wins = (f"{n}" + (f" ({s} tied)" if s else "") for n, s in zip(summary.wins, summary.tied_wins, strict=True))
    grid.add_row("wins", *wins)


def _accuracy_text(result: Result, comparison: DatasetComparison) -> Text:
    mark = accuracy_mark(result, comparison)
    return Text(f"{result.mean:.2f}±{result.std:.2f}{mark}", style="bold" if mark == BEST_MARK else "")


def accuracy_mark(result: Result, comparison: DatasetComparison) -> str:
    """The mark behind a mean: of the best, of one that no test finds worse, or a space."""
    if round(result.mean, 2) == comparison.best_mean:
        return BEST_MARK
    return NOT_WORSE_MARK if result.loss in comparison.not_worse else " "
