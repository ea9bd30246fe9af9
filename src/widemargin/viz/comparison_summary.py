"""A comparison in a few lines: a short table and the verdict, as text for a prompt and as HTML for a notebook."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..io.text import escape, escape_unprintable
from ..metrics.classification import METRICS
from .comparison_formats import (
    BEST_MARK,
    NOT_WORSE_MARK,
    format_interval,
    format_mean_and_std,
    format_score,
    format_train_accuracy,
    metric_axis_label,
    score_mark,
)

if TYPE_CHECKING:
    from ..tabular.comparison import Comparison, CrossDatasetComparison, DatasetComparison
    from ..tabular.results import Result

_MAX_ROWS = 30  # rows of a summary; `Comparison.table()` has all
_TEXT_WIDTH = 100
_LEGEND = f"{BEST_MARK}: best; {NOT_WORSE_MARK}: not significantly worse"
# Colours of the notebook itself, so that it can be read in light and dark ones.
_CELL_STYLE = "padding:2px 12px 2px 0;text-align:{align};background:none;color:inherit;border:0;white-space:nowrap"

_Row = tuple[str, ...]


def summary_text(comparison: Comparison) -> str:
    """The title, the table, the verdict and what it suggests to try, as lines of plain text."""
    head, rows = _summary_table(comparison)
    table = [head, *rows]
    widths = [max(len(row[place]) for row in table) for place in range(len(head))]
    lines = [_title(comparison)]
    for row in table:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append(f"  {'  '.join(cells)}".rstrip())
    lines += [line for text in _closing_lines(comparison) for line in textwrap.wrap(text, _TEXT_WIDTH)]
    return "\n".join(map(escape_unprintable, lines))


def summary_html(comparison: Comparison) -> str:
    """The same as a fragment of HTML, all text escaped, without script and in the notebook's own colours."""
    head, rows = _summary_table(comparison)

    def line(cells: Sequence[str], tag: str) -> str:
        styles = (_CELL_STYLE.format(align="left" if place == 0 else "right") for place in range(len(cells)))
        return "".join(
            f'<{tag} style="{style}">{escape(cell)}</{tag}>' for style, cell in zip(styles, cells, strict=True)
        )

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    texts = map(escape, _closing_lines(comparison))
    closing = "".join(f"<p style='margin:6px 0;max-width:80ch'>{text}</p>" for text in texts)
    return (
        f"<div><p style='margin:6px 0'><strong>{escape(_title(comparison))}</strong></p>"
        "<table style='border-collapse:collapse;font-variant-numeric:tabular-nums;color:inherit'>"
        f"<thead><tr style='border-bottom:1px solid currentColor'>{line(head, 'th')}</tr></thead>"
        f"<tbody>{body}</tbody></table>{closing}</div>"
    )


def _title(comparison: Comparison) -> str:
    losses = f"{len(comparison.methods)} loss{'es' * (len(comparison.methods) > 1)}"
    names = [one.set for one in comparison.sets]
    where = names[0] if len(names) == 1 else f"{len(names)} sets"
    axis = metric_axis_label(METRICS[comparison.metric])
    return f"Comparison of {losses} on {where}, {len(comparison.sets[0].results[0].folds)} folds, {axis}"


def _closing_lines(comparison: Comparison) -> list[str]:
    lines = [_LEGEND] if any(one.has_statement for one in comparison.sets) else []
    lines.append(comparison.verdict)
    if comparison.suggested_config is not None:
        lines.append(f"mlp_config to try: {comparison.suggested_config!r}")
    return lines


def _summary_table(comparison: Comparison) -> tuple[_Row, list[_Row]]:
    """Head and rows: methods of one set, averages over several that can be compared, or else the methods of each."""
    summary, metric = comparison.across_datasets, METRICS[comparison.metric]
    if summary is not None:
        sign = 1.0 if metric.higher_is_better else -1.0
        places = range(len(comparison.methods))
        order = sorted(places, key=lambda i: (summary.mean_ranks[i], -sign * summary.averages[i]))
        return ("loss", "mean rank", "average", "wins"), [
            (
                comparison.methods[i],
                f"{summary.mean_ranks[i]:.2f}{_rank_mark(summary, comparison.methods, i)}",
                format_score(summary.averages[i], metric),
                str(summary.wins[i]),
            )
            for i in order
        ]
    if len(comparison.sets) == 1:
        return ("loss", "mean ± std", "95 % interval", "train"), _dataset_rows(comparison.sets[0])
    rows = [(one.set, *row) for one in comparison.sets for row in _dataset_rows(one)]
    shown = rows if len(rows) <= _MAX_ROWS else [*rows[:_MAX_ROWS], ("…", *[""] * 4)]
    return ("set", "loss", "mean ± std", "95 % interval", "train"), shown


def _dataset_rows(one: DatasetComparison) -> list[_Row]:
    metric = METRICS[one.metric]

    def row(result: Result, interval: tuple[float, float], mark: str) -> _Row:
        mean = f"{format_mean_and_std(result, metric)}{mark}"
        return result.loss, mean, format_interval(*interval, metric.decimals - 1), format_train_accuracy(result)

    losses = [row(one.results[i], one.intervals[i], score_mark(one.results[i], one)) for i in one.order]
    return losses + [row(r, span, " ") for r, span in zip(one.baselines, one.baseline_intervals, strict=True)]


def _rank_mark(summary: CrossDatasetComparison, methods: Sequence[str], place: int) -> str:
    if summary.mean_ranks[place] == min(summary.mean_ranks):
        return BEST_MARK
    return NOT_WORSE_MARK if methods[place] in summary.not_worse else " "
