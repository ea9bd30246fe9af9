"""Runs as one picture for a paper, PNG or PDF: loss, accuracy, what moves, and the angles of the last epoch."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..printable import escape_unprintable
from .sphere import CLASS_COLOURS
from .told import RunSummary, assign_names_and_colours

_RUN_LINE_STYLES = ("-", (0, (5, 2)), (0, (1, 1)))


def _label(name: str) -> str:
    """A name as the legend shows it; one that begins with _ would be left out."""
    return f" {escape_unprintable(name)}" if name.startswith("_") else escape_unprintable(name)


def write_run_figure(summaries: Sequence[RunSummary], path: Path) -> None:
    """Write the picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    from ..training.writing import write_chunks_atomic

    summaries = assign_names_and_colours(summaries)
    # A run's name is no formula, though it may hold two dollars.
    rc_params: Any = {"text.parse_math": False, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with mpl.rc_context(rc_params), warnings.catch_warnings():
        # Letters that the font has not are boxes; matplotlib would say so once for each of them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        rows = -(-len(summaries) // 3)
        figure, axes = plt.subplots(1, 3, figsize=(12, 3.6 + 0.2 * rows), layout="constrained")
        for k, each in enumerate(summaries):
            style = {
                "color": each.colour,
                "linestyle": _RUN_LINE_STYLES[k // len(CLASS_COLOURS) % len(_RUN_LINE_STYLES)],
                "label": _label(each.name),
            }
            at = [line["epoch"] for line in each.epoch_metrics]
            axes[0].plot(at, [line["loss"] for line in each.epoch_metrics], **style)
            if any(line["train_top1"] for line in each.epoch_metrics):  # a loss that only embeds gives no answers
                axes[1].plot(at, [line["train_top1"] for line in each.epoch_metrics], **style)
            counts = next(
                (line["histogram"]["own"] for line in reversed(each.epoch_metrics) if "histogram" in line), None
            )
            if counts:
                width = 180 / len(counts)
                total = max(1, sum(counts))
                axes[2].plot([(i + 0.5) * width for i in range(len(counts))], [c / total for c in counts], **style)
        axes[0].set(title="Loss", xlabel="epoch")
        axes[1].set(title="Right answers on training images, %", xlabel="epoch")
        axes[2].set(title="Angles to the own class, last epoch", xlabel="degrees", ylabel="share")
        for place in axes[:2]:
            place.xaxis.get_major_locator().set_params(integer=True)
        figure.legend(
            *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=8
        )
        drawn = io.BytesIO()
        figure.savefig(drawn, dpi=200, format=path.suffix.lower().lstrip("."))
        write_chunks_atomic(path, [drawn.getvalue()])
        plt.close(figure)
