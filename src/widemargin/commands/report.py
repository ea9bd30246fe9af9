"""`widemargin report RUN …`: one run or several as a page, or as Markdown or a picture for a paper."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from ..printable import say

if TYPE_CHECKING:
    from ..report.told import Told

FORMATS = ("html", "md", "png", "pdf")


def add(commands: Any) -> None:
    """The command and its options."""
    parser = commands.add_parser("report", help="one run or several as a page: courses, angles, mistakes, settings")
    parser.add_argument("folders", nargs="+", metavar="RUN", help="folders of runs, or a folder that holds some")
    parser.add_argument("--out", metavar="FILE", help="file to write (default report.html in the run, or here)")
    parser.add_argument("--format", choices=FORMATS, help="html, md, png or pdf (default: by --out, else html)")
    parser.add_argument("--no-images", action="store_true", help="leave out what needs the data: mistakes, embeddings")
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    import shlex
    from pathlib import Path

    from ..errors import InputError
    from ..listing import check_writable
    from ..report.run_page import markdown, runs_page
    from ..training.writing import write_whole

    folders = _runs_in(options.folders)
    ending = Path(options.out).suffix.lower().lstrip(".") if options.out else ""
    if options.out and (not ending or ending not in FORMATS) and not options.format:
        raise InputError(f"--out {options.out}: give a file that ends in .{', .'.join(FORMATS)}")
    kind = options.format or ending or "html"
    if options.out and ending != kind:
        raise InputError(f"--out {options.out}: a report in {kind} is a file that ends in .{kind}")
    path = Path(options.out) if options.out else (folders[0] if len(folders) == 1 else Path()) / f"report.{kind}"
    check_writable(str(path))
    pictures = kind == "html" and not options.no_images
    if options.data_dir and not Path(options.data_dir).is_dir():
        raise InputError(f"--data-dir {options.data_dir}: no such folder")
    told = _all_told(folders, options.data_dir, pictures)
    for each in told:
        if each.missing:
            say(f"{each.folder}: {each.missing}", aside=True)
    if kind in ("png", "pdf") and not any(each.lines for each in told):
        raise InputError(f"--format {kind}: no epoch is finished yet, so there is nothing to draw")
    command = shlex.join(["widemargin", *options.words])
    if kind == "html":
        write_whole(path, runs_page(told, _paper(told), command))
    elif kind == "md":
        write_whole(path, markdown(told, command))
    else:
        from ..report.run_figure import write_figure

        write_figure(told, path)
    say(f"wrote {path}")


def _runs_in(given: list[str]) -> list[Any]:
    """Folders of runs: as given, or all that lie directly in what is given."""
    from pathlib import Path

    from ..errors import InputError

    found = []
    for text in given:
        folder = Path(text)
        inside = sorted((path.parent for path in folder.glob("*/run.json")), key=_by_number)
        if os.path.lexists(folder / "run.json"):
            found.append(folder)
        elif inside:
            found += inside
        else:
            raise InputError(f"{text}: no run (a folder with run.json), and no folder of runs")
    return list(dict.fromkeys(found))


def _by_number(folder: Any) -> list[Any]:
    """Names in the order people count: run 2 before run 10."""
    import re

    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d{1,18})", folder.name)]


def _all_told(folders: list[Any], data_dir: str | None, pictures: bool) -> list[Told]:
    """The runs; of several, one whose files are damaged is left out and named."""
    from ..errors import InputError

    found = []
    for folder in folders:
        try:
            found.append(_told(folder, data_dir, pictures))
        except InputError as error:
            if len(folders) == 1:
                raise
            say(f"left out: {error}", aside=True)
    if not found:
        raise InputError("none of these runs can be read")
    return found


def _told(folder: Any, data_dir: str | None, pictures: bool) -> Told:
    from .. import plain_json
    from ..errors import InputError
    from ..report.told import Told
    from ..run import Run
    from ..training import run_files
    from ..training.log import Log

    run = Run.read(folder)
    lines = Log.lines(folder / "metrics.jsonl")
    record: dict[str, Any] | None = None
    if os.path.lexists(folder / "record.json"):
        try:
            record = run_files.record(plain_json.read(folder / "record.json"))
        except ValueError as error:
            why = f"not the record of a run ({error})"
            raise InputError(f"{folder / 'record.json'}: {why}; delete it and evaluate again") from None
    classes, shown = _shown(folder, data_dir) if pictures and (lines or record) else ((), [])
    return Told(folder.resolve().name, run, lines, record, classes, shown)


def _shown(folder: Any, data_dir: str | None) -> tuple[tuple[str, ...], list[str]]:
    """Parts made from the run's test images; a sentence instead where they are not at hand."""
    from ..errors import InputError
    from ..report import page
    from ..report.look_parts import look_parts
    from ..training.finished import finished
    from ..training.look import look

    try:
        done = finished(folder)
    except InputError as error:
        return (), [page.paragraph(f"No pictures: {error}", "note")]
    names = tuple(done.sees["classes"])
    try:
        return names, look_parts(look(done, data_dir))
    except InputError:
        text = "No pictures: the run's images are not at hand, or not those it was trained on (see --data-dir)."
        return names, [page.paragraph(text, "note")]


def _paper(told: list[Told]) -> dict[str, float]:
    """Table VI's angles of the runs' loss, where all are of one of its losses on CIFAR-10."""
    from ..data.paper import rows
    from ..recipes.parts.image_settings import METHODS

    losses = {each.run.loss for each in told}
    method = next((method for method, loss in METHODS.items() if {loss} == losses), None)
    if method is None or {each.run.data for each in told} != {"cifar10"}:
        return {}
    return {row["metric"]: float(row[method]) for row in rows(6) if method in row}
