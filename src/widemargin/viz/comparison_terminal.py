"""A comparison as tables in the terminal, in blocks of columns where it is narrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from ..metrics.classification import METRICS
from .comparison_formats import (
    BEST_MARK,
    METRICS_NOTE,
    NOT_WORSE_MARK,
    baseline_notes,
    best_means,
    capitalize,
    format_interval,
    format_mean_and_std,
    format_score,
    format_train_accuracy,
    format_train_accuracy_range,
    metric_axis_label,
    metric_column_head,
    score_mark,
)
from .terminal import console, plain_text, print_in_blocks

if TYPE_CHECKING:
    from ..tabular.comparison import Comparison, CrossDatasetComparison, DatasetComparison
    from ..tabular.results import Result

MARKS_LEGEND = f"{BEST_MARK}: best; {NOT_WORSE_MARK}: not significantly worse (corrected resampled t-test, Holm, 5 %)"
FOLDS_WON_NOTE = "; a fold is won by every method that no other beats in it"
TRAIN_ACCURACY_NOTE = (
    "train: accuracy on the rows that were learnt from (on {rows:,} of each fold where there are more)"
)

_Row = list[Text]


def print_comparison(comparison: Comparison) -> None:
    """Print one set with a row per method, or several with a row per set and a summary; then every metric."""
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
    if len(comparison.sets) == 1 and comparison.sets[0].results[0].metrics:
        _print_metrics(comparison.sets[0])
        out.print(Text(METRICS_NOTE, style="dim"))
    out.print(plain_text(comparison.verdict))
    if len(comparison.sets) > 1:
        for one in comparison.sets:
            if not one.has_statement:
                out.print(plain_text(f"{one.set}: {one.verdict}"))
    if comparison.recommendation is not None:
        out.print(plain_text(comparison.recommendation.sentence, "bold"))
        for command in comparison.recommendation.commands:
            out.print(plain_text(f"  {command}"), soft_wrap=True)


def _print_one_dataset(comparison: DatasetComparison) -> None:
    metric, count = METRICS[comparison.metric], len(comparison.results[0].folds)
    place_heads = ("rank", "folds won") if comparison.has_statement else ()
    head = ["loss", "mean ± std", "train", "95 % interval", *place_heads]

    def row(result: Result, mean: Text, interval: tuple[float, float], place: tuple[str, str], style: str) -> _Row:
        span = format_interval(*interval, metric.decimals - 1)
        texts = (format_train_accuracy(result), span, *place[: len(place_heads)])
        return [plain_text(result.loss, style), mean, *(Text(text, style) for text in texts)]

    losses = [
        row(
            comparison.results[i],
            _score_text(comparison.results[i], comparison),
            comparison.intervals[i],
            (f"{comparison.ranks[i]:g}", str(comparison.wins[i])),
            "",
        )
        for i in comparison.order
    ]
    baselines = [
        row(result, _reference_text(result, comparison), interval, ("–", "–"), "dim")
        for result, interval in zip(comparison.baselines, comparison.baseline_intervals, strict=True)
    ]
    title = f"{comparison.set}: {metric_axis_label(metric)} over {count} folds"
    print_in_blocks(plain_text(title), [Text(text) for text in head], [losses, baselines])


def _print_metrics(comparison: DatasetComparison) -> None:
    """Means of every metric; the best of the losses in bold type where a statement is made."""
    best = best_means(comparison.results) if comparison.has_statement else {}

    def row(result: Result, style: str) -> _Row:
        cells = [plain_text(result.loss, style)]
        for name, metric in METRICS.items():
            mean = result.mean_and_std(name)[0]
            is_best = not style and round(mean, metric.decimals) == best.get(name)
            cells.append(Text(format_score(mean, metric), "bold" if is_best else style))
        return cells

    print_in_blocks(
        plain_text("Every metric, mean over the folds"),
        [Text("loss"), *(Text(metric_column_head(metric)) for metric in METRICS.values())],
        [
            [row(comparison.results[i], "") for i in comparison.order],
            [row(result, "dim") for result in comparison.baselines],
        ],
    )


def _print_datasets(comparison: Comparison) -> None:
    metric = METRICS[comparison.metric]
    head = [Text("set"), *map(plain_text, comparison.methods), Text("train")]
    head += [Text(name, "dim") for name in comparison.baselines]
    rows = [
        [
            plain_text(one.set),
            *(_score_text(result, one) for result in one.results),
            Text(format_train_accuracy_range(one)),
            *(_reference_text(result, one) for result in one.baselines),
        ]
        for one in comparison.sets
    ]
    together = comparison.across_datasets
    title = plain_text(f"{capitalize(metric_axis_label(metric))}, mean ± std")
    summary = [] if together is None else _summary_rows(together, comparison.metric)
    print_in_blocks(title, head, [rows, summary])


def _summary_rows(summary: CrossDatasetComparison, metric_name: str) -> list[_Row]:
    metric = METRICS[metric_name]
    top = max(summary.averages) if metric.higher_is_better else min(summary.averages)
    first = min(summary.mean_ranks)
    wins = (f"{n}" + (f" ({s} tied)" if s else "") for n, s in zip(summary.wins, summary.tied_wins, strict=True))
    return [
        [
            Text("average"),
            *(Text(format_score(v, metric), "bold" if v == top else "") for v in summary.averages),
        ],
        [Text("mean rank"), *(Text(f"{v:.2f}", "bold" if v == first else "") for v in summary.mean_ranks)],
        [Text("wins"), *map(Text, wins)],
    ]


def _score_text(result: Result, comparison: DatasetComparison) -> Text:
    mark = score_mark(result, comparison)
    text = format_mean_and_std(result, METRICS[comparison.metric], "±")
    return Text(f"{text}{mark}", style="bold" if mark == BEST_MARK else "")


def _reference_text(result: Result, comparison: DatasetComparison) -> Text:
    return Text(f"{format_mean_and_std(result, METRICS[comparison.metric], '±')} ", "dim")
