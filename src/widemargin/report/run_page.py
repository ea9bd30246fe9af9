"""The page of one run or several: courses, angles, mistakes, embeddings, settings, and the command to make it again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..run import Run
from . import escaped, page
from .confusion import MOST, confusion, worst
from .epochs import Course, epochs
from .palette import colour
from .ridges import ridges
from .run_names import run_names
from .sphere import INKS

ANGLES = {"wc_intra": "WC-Intra", "w_inter": "W-Inter", "c_inter": "C-Inter", "intra": "image to centre"}
_TEST = {"top1": "top-1", "top1_flip": "with flips", "top5": "top-5", "recall1": "recall@1", "map_at_r": "MAP@R"}
_TEST |= {"auc": "AUC", "eer": "EER", "pair_accuracy": "pairs right", "five_way_one_shot": "5-way-1-shot"}


@dataclass(frozen=True, eq=False)
class Told:
    """A run as its folder tells it."""

    folder: str
    run: Run
    lines: Sequence[Mapping[str, Any]]
    record: Mapping[str, Any] | None
    classes: Sequence[str] = ()
    shown: Sequence[str] = field(default_factory=list)
    """Parts of a page made from its images, if they were at hand."""
    name: str = ""
    """What the page calls it; `named` sets it, as it depends on what stands beside it."""

    @property
    def state(self) -> str:
        """How far it is."""
        done = self.lines[-1]["epoch"] if self.lines else 0
        return "finished" if self.record else f"epoch {done} of {self.run.epochs}"


def named(told: Sequence[Told]) -> list[Told]:
    """The same runs with names that tell them apart."""
    names = run_names([each.run for each in told], [each.folder for each in told])
    return [replace(each, name=name) for each, name in zip(told, names, strict=True)]


def runs_page(told: Sequence[Told], theirs: Mapping[str, float], command: str) -> str:
    """The whole page; `theirs` are the paper's angles where they apply to all of these runs."""
    told = named(told)
    one = len(told) == 1
    title, sub = _titles(told[0]) if one else (f"{len(told)} runs compared", _shared(told))
    body = [figures_table(told, theirs)]
    small = courses(told)
    if one:
        body += [page.side([*small, *_angles(told[0])]), *_alone(told[0])]
    else:
        body.append(page.side(small))
        spread = [part for each in told for part in _angles(each, each.name)]
        if spread:
            text = "Training images, epoch by epoch from top to bottom (Figure 4 of the ArcGrad paper)."
            body += [page.heading("Angles to the own class", text), page.side(spread), page.heading("Run by run")]
        for each in told:
            folder = "" if each.folder == each.name else f" ({each.folder})"
            body.append(page.details(f"{each.name}{folder}: mistakes, settings", "\n".join(_alone(each))))
    body += [page.heading("This page again"), page.code(command)]
    return page.page(title, sub, body)


def _titles(each: Told) -> tuple[str, str]:
    """Of the page of one run, and what stands under it."""
    run, chosen = each.run, each.name != each.run.loss
    about = [run.data_name, run.model, *([run.loss] if chosen else []), f"seed {run.seed}"]
    title = each.name if chosen else f"{run.loss} on {run.data_name}"
    return title, f"{', '.join(about)}; {each.state}" + ("" if each.folder == each.name else f"; {each.folder}")


def _shared(told: Sequence[Told]) -> str:
    """What all runs have in common, of what one wants to know first."""
    common = [
        {each.run.data_name for each in told},
        {each.run.model for each in told},
        {each.run.loss for each in told},
        {f"{each.run.epochs} epochs" for each in told},
    ]
    return ", ".join(next(iter(values)) for values in common if len(values) == 1)


def figures(told: Sequence[Told]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of the table: what the runs reached."""
    tests = [name for name in _TEST if any(name in ((each.record or {}).get("test") or {}) for each in told)]
    turns = [name for name in ANGLES if any(name in ((each.record or {}).get("angles") or {}) for each in told)]
    head = ["run", *(_TEST[name] for name in tests), *(ANGLES[name] for name in turns), "epochs", "minutes"]
    rows = []
    for each in told:
        record = each.record or {}
        test, angles = record.get("test") or {}, record.get("angles") or {}
        cells = [each.name, *(f"{test[name]:.2f} %" if test.get(name) is not None else "–" for name in tests)]
        cells += [f"{math.degrees(angles[name]):.1f}°" if angles.get(name) is not None else "–" for name in turns]
        spent = (each.lines[-1].get("seconds", 0.0) if each.lines else record.get("seconds", 0.0)) / 60
        rows.append([*cells, each.state if not each.record else str(each.run.epochs), f"{spent:.1f}"])
    return head, rows


def figures_table(told: Sequence[Told], theirs: Mapping[str, float]) -> str:
    """The table, with the paper's angles as its foot."""
    head, rows = figures(told)
    foot = []
    if theirs:
        by_title = {ANGLES[name]: f"{math.degrees(value):.1f}°" for name, value in theirs.items()}
        foot = [[("the paper (Table VI)", ""), *((by_title.get(title, ""), "") for title in head[1:])]]
    return page.table(head, [[(cell, "") for cell in row] for row in rows], foot)


def courses(told: Sequence[Told]) -> list[str]:
    """Loss, accuracy and every number that moves, over the epochs; a section each."""
    if len(told) == 1:  # its lines need no name
        told = [replace(told[0], name="")]
    inks = [colour(each.run.loss) for each in told]
    if len(set(inks)) < len(inks):  # several runs of one loss
        inks = [INKS[k % len(INKS)] for k in range(len(told))]
    wanted: list[tuple[str, str, list[Course]]] = [
        (
            "Loss",
            "mean of the training images",
            [_course(each, ink, "loss") for each, ink in zip(told, inks, strict=True)],
        )
    ]
    right = [_course(each, ink, "train_top1") for each, ink in zip(told, inks, strict=True)]
    right = [course for course in right if any(value > 0 for _, value in course.points)]
    held = [_held(each, ink) for each, ink in zip(told, inks, strict=True)]
    what = "percent of the training images" + ("; dashed: held-out ones" if any(c.points for c in held) else "")
    wanted.append(("Accuracy", what, right + held))
    names = sorted({name for each in told for line in each.lines for name in line.get("numbers", {})})
    for name in names:
        moving = [_number(each, ink, name) for each, ink in zip(told, inks, strict=True)]
        moving = [course for course in moving if len({round(value, 9) for _, value in course.points}) > 1]
        wanted.append((f"The number {name}", "as it stood at the end of each epoch", moving))
    wanted.append(
        (
            "Learning rate",
            "at the end of each epoch",
            [_course(e, ink, "lr") for e, ink in zip(told, inks, strict=True)],
        )
    )
    parts = []
    for title, unit, rows in wanted:
        there = [course for course in rows if course.points]
        if there:
            parts.append(page.heading(title) + page.figure(epochs(there, unit, title)))
    return parts


def _course(each: Told, ink: str, key: str) -> Course:
    points = [(line["epoch"], float(line[key])) for line in each.lines if math.isfinite(float(line.get(key, "nan")))]
    return Course(each.name, points, ink)


def _held(each: Told, ink: str) -> Course:
    found = [(line["epoch"], line["held_out"]) for line in each.lines if "held_out" in line]
    points = [(epoch, float(held.get("top1", held.get("recall1", math.nan)))) for epoch, held in found]
    return Course(
        f"{each.name}, held out".removeprefix(", "), [p for p in points if math.isfinite(p[1])], ink, dashed=True
    )


def _number(each: Told, ink: str, name: str) -> Course:
    points = [(line["epoch"], line["numbers"][name]) for line in each.lines if name in line.get("numbers", {})]
    return Course(each.name, [p for p in points if math.isfinite(p[1])], ink)


def _angles(each: Told, name: str = "") -> list[str]:
    """How the angles to the own class spread, as a section; none where the run did not keep them."""
    counts = [line["histogram"]["own"] for line in each.lines if "histogram" in line]
    if not counts:
        return []
    at = [str(line["epoch"]) for line in each.lines if "histogram" in line]
    picture = ridges(at, counts, colour(each.run.loss), f"Angles to the own class by epoch {name}".strip())
    text = "Training images, epoch by epoch (Figure 4 of the ArcGrad paper)."
    return [(page.paragraph(name) if name else page.heading("Angles to the own class", text)) + page.figure(picture)]


def _alone(each: Told) -> list[str]:
    """What is told of each run by itself."""
    parts: list[str] = []
    matrix = (each.record or {}).get("confusion")
    if matrix:
        names = list(each.classes) or [str(k) for k in range(len(matrix))]
        parts.append(page.heading("What is taken for what", "A row is a true class, a column the answer."))
        rows = [
            [(true, ""), (said, ""), (str(count), ""), (f"{share:.1f} %", "")]
            for true, said, count, share in worst(matrix, names)
        ]
        most = page.table(["class", "taken for", "times", "of the class"], rows) if rows else ""
        seen = page.figure(confusion(matrix, names, "Confusion matrix")) if len(names) <= MOST else ""
        parts.append(page.side(filter(None, (seen, most))))
    parts += each.shown
    options, own = ["option", "value"], _settings(each.run)
    parts += [page.heading("Settings", "Those that are not the default.")]
    parts += [
        page.table(options, [row for row in own if row[0][1]]),
        page.details("all settings", page.table(options, own)),
    ]
    if each.record:
        made = each.record.get("versions", {})
        where = ", ".join(f"{name} {version}" for name, version in made.items())
        text = f"{where}; commit {each.record.get('commit') or 'unknown'}; {each.record.get('cores')} thread(s)"
        parts += [page.heading("Environment"), page.paragraph(text)]
        parts += [page.heading("The run again"), page.code(str(each.record.get("command", "")))]
    return parts


def _settings(run: Run) -> list[list[page.Cell]]:
    usual = asdict(Run())
    rows = []
    for name, value in asdict(run).items():
        told = Path(value).name if name in ("data", "init_from") and value else value  # folders are nobody's business
        shown = json.dumps(told, ensure_ascii=False) if told and not isinstance(told, str) else str(told)
        rows.append([(name, "best" if value != usual[name] else ""), (shown, "")])
    return rows


def markdown(told: Sequence[Told], command: str) -> str:
    """The table and the settings as Markdown, for a paper's appendix or an issue."""
    told = named(told)
    head, rows = figures(told)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(map(escaped.markdown, row)) + " |" for row in rows]
    for each in told:
        lines += ["", f"## {escaped.markdown(each.name)}", "", "| option | value |", "|---|---|"]
        lines += [f"| {name[0]} | {escaped.markdown(value[0])} |" for name, value in _settings(each.run)]
        if each.record:
            lines += ["", "```bash", escaped.in_code(str(each.record.get("command", ""))), "```"]
    return "\n".join([*lines, "", f"Made by `{escaped.in_code(command)}`.", ""])
