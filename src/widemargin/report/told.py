"""A run as its folder tells it, and what a page calls and colours it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..run import TrainConfig
from .palette import loss_colour
from .run_names import run_names
from .sphere import CLASS_COLOURS


@dataclass(frozen=True, eq=False)
class RunSummary:
    """A run: its settings, its log, its record if it is finished."""

    folder: str
    config: TrainConfig
    epoch_metrics: Sequence[Mapping[str, Any]]
    record: Mapping[str, Any] | None
    class_names: Sequence[str] = ()
    image_sections: Sequence[str] = field(default_factory=list)
    """Parts of a page made from its images, if they were at hand."""
    name: str = ""
    colour: str = ""
    """What the page calls it, and its colour; `named` sets both, as they depend on what stands beside it."""

    @property
    def epochs_done(self) -> int:
        """Epochs that the log holds."""
        return int(self.epoch_metrics[-1]["epoch"]) if self.epoch_metrics else 0

    @property
    def status(self) -> str:
        """How far it is."""
        return "finished" if self.record else f"unfinished, epoch {self.epochs_done} of {self.config.epochs}"

    @property
    def image_counts_note(self) -> str:
        """How many images of a folder were trained on, chosen by and tested on, as the record has it; or nothing."""
        facts = (self.record or {}).get("manifest") or {}
        images = facts.get("images") or {}
        if "test" in images and "tested" in facts:  # those that were there, unchanged and in one class
            images = {**images, "test": facts["tested"]}
        names = {"train": "trained on", "held_out": "held out to choose by", "test": "tested on"}
        found = ", ".join(f"{images[part]:,.0f} {name}" for part, name in names.items() if part in images)
        return f"Images by the run's manifest: {found}." if found else ""

    @property
    def missing_note(self) -> str:
        """What the log should hold and does not; nothing where all is well."""
        if self.record and len(self.epoch_metrics) < self.config.epochs:
            return f"metrics.jsonl holds {len(self.epoch_metrics)} of {self.config.epochs} epochs; the others cannot be shown"
        return "" if self.epoch_metrics else "No epoch is finished yet: nothing to show but the settings"


def assign_names_and_colours(summaries: Sequence[RunSummary]) -> list[RunSummary]:
    """The same runs with names and colours that tell them apart; a loss's own colour where that does."""
    names = run_names([each.config for each in summaries], [each.folder for each in summaries])
    colours = [loss_colour(each.config.loss) for each in summaries]
    if len(set(colours)) < len(colours):
        colours = [CLASS_COLOURS[k % len(CLASS_COLOURS)] for k in range(len(summaries))]
    return [
        replace(each, name=name, colour=colour) for each, name, colour in zip(summaries, names, colours, strict=True)
    ]
