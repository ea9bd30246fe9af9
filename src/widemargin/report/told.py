"""A run as its folder tells it, and what a page calls and colours it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..run import Run
from .palette import colour
from .run_names import run_names
from .sphere import INKS


@dataclass(frozen=True, eq=False)
class Told:
    """A run: its settings, its log, its record if it is finished."""

    folder: str
    run: Run
    lines: Sequence[Mapping[str, Any]]
    record: Mapping[str, Any] | None
    classes: Sequence[str] = ()
    shown: Sequence[str] = field(default_factory=list)
    """Parts of a page made from its images, if they were at hand."""
    name: str = ""
    ink: str = ""
    """What the page calls it, and its colour; `named` sets both, as they depend on what stands beside it."""

    @property
    def done(self) -> int:
        """Epochs that the log holds."""
        return int(self.lines[-1]["epoch"]) if self.lines else 0

    @property
    def state(self) -> str:
        """How far it is."""
        return "finished" if self.record else f"unfinished, epoch {self.done} of {self.run.epochs}"

    @property
    def parts(self) -> str:
        """How many images of a folder were trained on, chosen by and tested on, as the record has it; or nothing."""
        facts = (self.record or {}).get("manifest") or {}
        images = facts.get("images") or {}
        if "test" in images and "tested" in facts:  # those that were there, unchanged and in one class
            images = {**images, "test": facts["tested"]}
        names = {"train": "trained on", "held_out": "held out to choose by", "test": "tested on"}
        found = ", ".join(f"{images[part]:,.0f} {name}" for part, name in names.items() if part in images)
        return f"Images by the run's manifest: {found}." if found else ""

    @property
    def missing(self) -> str:
        """What the log should hold and does not; nothing where all is well."""
        if self.record and len(self.lines) < self.run.epochs:
            return f"metrics.jsonl holds {len(self.lines)} of {self.run.epochs} epochs; the others cannot be shown"
        return "" if self.lines else "No epoch is finished yet: nothing to show but the settings"


def named(told: Sequence[Told]) -> list[Told]:
    """The same runs with names and colours that tell them apart; a loss's own colour where that does."""
    names = run_names([each.run for each in told], [each.folder for each in told])
    inks = [colour(each.run.loss) for each in told]
    if len(set(inks)) < len(inks):
        inks = [INKS[k % len(INKS)] for k in range(len(told))]
    return [replace(each, name=name, ink=ink) for each, name, ink in zip(told, names, inks, strict=True)]
