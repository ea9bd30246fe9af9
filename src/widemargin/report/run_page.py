"""The page of one run or several: courses, angles, mistakes, embeddings, settings, and the command to make it again."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from ..metrics.identity_intervals import LEAST_EVENTS
from ..run import Run
from ..spelling import command_of
from . import escaped, page
from .confusion import MOST, confusion, worst
from .epochs import Course, epochs
from .ridges import ridges
from .told import Told, named

ANGLES = {"wc_intra": "WC-Intra", "w_inter": "W-Inter", "c_inter": "C-Inter", "intra": "image to centre"}
_TEST = {"top1": "top-1", "top1_flip": "with flips", "top5": "top-5", "recall1": "recall@1", "map_at_r": "MAP@R"}
_TEST |= {"auc": "AUC", "eer": "EER", "pair_accuracy": "pairs right", "five_way_one_shot": "5-way-1-shot"}


def runs_page(told: Sequence[Told], theirs: Mapping[str, float], command: str) -> str:
    """The whole page; `theirs` are the paper's angles where they apply to all of these runs."""
    told = named(told)
    one = len(told) == 1
    title, sub = _titles(told[0]) if one else (f"{len(told)} runs compared", _shared(told))
    body = [figures_table(told, theirs)]
    body += [
        page.paragraph(f"{'' if one else f'{each.name}: '}{each.missing}.", "note") for each in told if each.missing
    ]
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
    own = any(not each.name.startswith(each.run.loss) for each in told)  # a name that somebody gave says no loss
    head = ["run", *(["loss"] if own else []), *(_TEST[name] for name in tests), *(ANGLES[name] for name in turns)]
    rows = []
    for each in told:
        record = each.record or {}
        test, angles = record.get("test") or {}, record.get("angles") or {}
        cells = [each.name, *(["" if each.name.startswith(each.run.loss) else each.run.loss] if own else [])]
        few = test.get("images", LEAST_EVENTS) < LEAST_EVENTS
        ends = record.get("intervals") or {}
        cells += ["–" if few else _with_interval(test.get(name), ends.get(name)) for name in tests]
        cells += [f"{math.degrees(angles[name]):.1f}°" if angles.get(name) is not None else "–" for name in turns]
        spent = each.lines[-1].get("seconds", 0.0) if each.lines else record.get("seconds", 0.0)
        epochs = str(each.run.epochs) if each.record else f"{each.done} of {each.run.epochs}"
        rows.append([*cells, epochs, f"{spent / 60:.1f} min" if spent >= 60 else f"{spent:.0f} s"])
    return [*head, "epochs", "time"], rows


def _with_interval(value: float | None, ends: Sequence[float] | None) -> str:
    """A figure in percent with its 95 % interval; records of before have none, and a refused figure is a dash."""
    if value is None:
        return "–"
    return f"{value:.2f} %" + ("" if ends is None else f" ({ends[0]:.2f} to {ends[1]:.2f})")


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
    wanted: list[tuple[str, str, list[Course]]] = [
        (
            "Loss",
            "mean of the training images",
            [_course(each, "loss") for each in told],
        )
    ]
    right = [_course(each, "train_top1") for each in told]
    right = [course for course in right if any(value > 0 for _, value in course.points)]
    held = [_held(each) for each in told]
    what = "percent of the training images" + ("; dashed: held-out ones" if any(c.points for c in held) else "")
    wanted.append(("Accuracy", what, right + held))
    names = sorted({name for each in told for line in each.lines for name in line.get("numbers", {})})
    for name in names:
        moving = [_number(each, name) for each in told]
        moving = [course for course in moving if len({round(value, 9) for _, value in course.points}) > 1]
        wanted.append((f"The number {name}", "as it stood at the end of each epoch", moving))
    wanted.append(
        (
            "Learning rate",
            "at the end of each epoch",
            [_course(each, "lr") for each in told],
        )
    )
    parts = []
    for title, unit, rows in wanted:
        there = [course for course in rows if course.points]
        if there:
            parts.append(page.heading(title) + page.figure(epochs(there, unit, title)))
    return parts


def _course(each: Told, key: str) -> Course:
    points = [(line["epoch"], float(line[key])) for line in each.lines if math.isfinite(float(line.get(key, "nan")))]
    return Course(each.name, points, each.ink)


def _held(each: Told) -> Course:
    found = [(line["epoch"], line["held_out"]) for line in each.lines if "held_out" in line]
    points = [(epoch, float(held.get("top1", held.get("recall1", math.nan)))) for epoch, held in found]
    return Course(
        f"{each.name}, held out".removeprefix(", "), [p for p in points if math.isfinite(p[1])], each.ink, dashed=True
    )


def _number(each: Told, name: str) -> Course:
    points = [(line["epoch"], line["numbers"][name]) for line in each.lines if name in line.get("numbers", {})]
    return Course(each.name, [p for p in points if math.isfinite(p[1])], each.ink)


def _angles(each: Told, name: str = "") -> list[str]:
    """How the angles to the own class spread, as a section; none where the run did not keep them."""
    counts = [line["histogram"]["own"] for line in each.lines if "histogram" in line]
    if not counts:
        return []
    at = [str(line["epoch"]) for line in each.lines if "histogram" in line]
    picture = ridges(at, counts, each.ink, f"Angles to the own class by epoch {name}".strip())
    text = "Training images, epoch by epoch (Figure 4 of the ArcGrad paper)."
    return [(page.paragraph(name) if name else page.heading("Angles to the own class", text)) + page.figure(picture)]


def _alone(each: Told) -> list[str]:
    """What is told of each run by itself."""
    parts: list[str] = []
    found = (each.record or {}).get("confusion")
    if found is not None:
        names = each.classes if len(each.classes) == found.classes else [str(k) for k in range(found.classes)]
        parts.append(page.heading("What is taken for what", "A row is a true class, a column the answer."))
        rows = [
            [(true, ""), (said, ""), (str(count), ""), (f"{share:.1f} %", "")]
            for true, said, count, share in worst(found, names)
        ]
        most = page.table(["class", "taken for", "times", "of the class"], rows) if rows else ""
        seen = page.figure(confusion(found, names, "Confusion matrix")) if len(names) <= MOST else ""
        parts.append(page.side(filter(None, (seen, most))))
    parts += [*([page.paragraph(each.parts, "note")] if each.parts else []), *each.shown]
    options, own = ["option", "value"], _settings(each.run)
    parts += [page.heading("Settings", "What is trained on what, and what is not the default.")]
    parts += [
        page.table(options, [row for row in own if row[0][1]]),
        page.details("all settings", page.table(options, own)),
    ]
    if each.record:
        made = each.record.get("versions", {})
        where = ", ".join(f"{name} {version}" for name, version in made.items())
        threads = each.record.get("cores")
        text = (
            f"{where}; commit {each.record.get('commit') or 'unknown'}; {threads} thread{'' if threads == 1 else 's'}"
        )
        parts += [page.heading("Environment"), page.paragraph(text)]
        parts += [page.heading("The run again"), page.code(str(each.record.get("command", "")))]
    else:
        parts += [
            page.heading("How it goes on"),
            page.code(f"{shlex.join(command_of(each.run))} --out {each.folder} --resume"),
        ]
    return parts


def _settings(run: Run) -> list[list[page.Cell]]:
    usual = asdict(Run())
    rows = []
    for name, value in asdict(run).items():
        said = Path(value).name if name in ("data", "init_from") and value else value  # folders are nobody's business
        shown = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
        differs = value != usual[name] or name in ("data", "model", "loss")
        rows.append([(name, "best" if differs else ""), (shown, "")])
    return rows


def markdown(told: Sequence[Told], command: str) -> str:
    """The table and the settings that matter as Markdown, for a paper's appendix or an issue."""
    told = named(told)
    head, rows = figures(told)
    title = _titles(told[0])[0] if len(told) == 1 else f"{len(told)} runs compared"
    lines = [f"# {escaped.markdown(title)}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(map(escaped.markdown, row)) + " |" for row in rows]
    for each in told:
        lines += ["", f"## {escaped.markdown(each.name)}", ""]
        lines += [f"{escaped.markdown(each.missing)}.", ""] if each.missing else []
        lines += [each.parts, ""] if each.parts else []
        lines += ["| option | value |", "|---|---|"]
        lines += [f"| {name[0]} | {escaped.markdown(value[0])} |" for name, value in _settings(each.run) if name[1]]
        if each.record:
            lines += ["", "```bash", escaped.in_code(str(each.record.get("command", ""))), "```"]
    return "\n".join([*lines, "", f"Made by `{escaped.in_code(command)}`.", ""])
