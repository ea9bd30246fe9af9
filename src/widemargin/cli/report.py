"""`widemargin report RUN …`: one run or several as a page, or as Markdown or a picture for a paper."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from ..io.text import print_escaped

if TYPE_CHECKING:
    from ..viz.run_page import RunSummary


FORMATS = ("html", "md", "png", "pdf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("folders", nargs="+", metavar="RUN", help="folders of runs, or a folder that holds some")
    parser.add_argument("--out", metavar="FILE", help="file to write (default report.html in the run, or here)")
    parser.add_argument("--format", choices=FORMATS, help="html, md, png or pdf (default: by --out, else html)")
    parser.add_argument("--no-images", action="store_true", help="leave out what needs the data: mistakes, embeddings")
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    import shlex
    from pathlib import Path

    from ..io.errors import InputError
    from ..io.locks import write_text_atomic
    from ..viz.run_page import runs_markdown, runs_page
    from ..viz.terminal import check_writable

    folders = _find_run_folders(options.folders)
    ending = Path(options.out).suffix.lower().lstrip(".") if options.out else ""
    if options.out and (not ending or ending not in FORMATS) and not options.format:
        raise InputError(f"--out {options.out}: give a file that ends in .{', .'.join(FORMATS)}")
    kind = options.format or ending or "html"
    if options.out and ending != kind:
        raise InputError(f"--out {options.out}: a report in {kind} is a file that ends in .{kind}")
    path = Path(options.out) if options.out else (folders[0] if len(folders) == 1 else Path()) / f"report.{kind}"
    check_writable(str(path))
    with_images = kind == "html" and not options.no_images
    if options.data_dir and not Path(options.data_dir).is_dir():
        raise InputError(f"--data-dir {options.data_dir}: no such folder")
    summaries = _load_run_summaries(folders, options.data_dir, with_images)
    for each in summaries:
        if each.missing_note:
            print_escaped(f"{each.folder}: {each.missing_note}", to_stderr=True)
    if kind in ("png", "pdf") and not any(each.epoch_metrics for each in summaries):
        raise InputError(f"--format {kind}: no epoch is finished yet, so there is nothing to draw")
    command = shlex.join(["widemargin", *options.argv])
    if kind == "html":
        write_text_atomic(path, runs_page(summaries, _paper_angles(summaries), command))
    elif kind == "md":
        write_text_atomic(path, runs_markdown(summaries, command))
    else:
        from ..viz.run_page import write_run_figure

        write_run_figure(summaries, path)
    print_escaped(f"wrote {path}")


def _find_run_folders(paths: list[str]) -> list[Any]:
    """Folders of runs: as given, or all that lie directly in what is given."""
    from pathlib import Path

    from ..io.errors import InputError

    found = []
    for text in paths:
        folder = Path(text)
        inside = sorted((path.parent for path in folder.glob("*/run.json")), key=_natural_sort_key)
        if os.path.lexists(folder / "run.json"):
            found.append(folder)
        elif inside:
            found += inside
        else:
            raise InputError(f"{text}: no run (a folder with run.json), and no folder of runs")
    return list(dict.fromkeys(found))


def _natural_sort_key(folder: Any) -> list[Any]:
    """Names in the order people count: run 2 before run 10."""
    import re

    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d{1,18})", folder.name)]


def _load_run_summaries(folders: list[Any], data_dir: str | None, with_images: bool) -> list[RunSummary]:
    """The runs; of several, one whose files are damaged is left out and named."""
    from ..io.errors import InputError

    found = []
    for folder in folders:
        try:
            found.append(_load_run_summary(folder, data_dir, with_images))
        except InputError as error:
            if len(folders) == 1:
                raise
            print_escaped(f"left out: {error}", to_stderr=True)
    if not found:
        raise InputError("none of these runs can be read")
    return found


def _load_run_summary(folder: Any, data_dir: str | None, with_images: bool) -> RunSummary:
    from ..io import bounded
    from ..io.errors import InputError
    from ..training import run_files
    from ..training.config import TrainConfig
    from ..training.logging import MetricsLog
    from ..viz.run_page import RunSummary

    config = TrainConfig.read(folder)
    epoch_metrics = MetricsLog.read_epochs(folder / "metrics.jsonl")
    record: dict[str, Any] | None = None
    if os.path.lexists(folder / "record.json"):
        try:
            record = run_files.parse_record(bounded.read_json(folder / "record.json"))
        except ValueError as error:
            why = f"not the record of a run ({error})"
            raise InputError(f"{folder / 'record.json'}: {why}; delete it and evaluate again") from None
    class_names, image_sections = (
        _load_image_sections(folder, data_dir) if with_images and (epoch_metrics or record) else ((), [])
    )
    return RunSummary(folder.resolve().name, config, epoch_metrics, record, class_names, image_sections)


def _load_image_sections(folder: Any, data_dir: str | None) -> tuple[tuple[str, ...], list[str]]:
    """Parts made from the run's test images; a sentence instead where they are not at hand."""
    from ..io.errors import InputError
    from ..training.run import inspect_run, load_run
    from ..viz import page
    from ..viz.embeddings import inspection_sections

    try:
        trained_run = load_run(folder)
    except InputError as error:
        return (), [page.paragraph(f"No pictures: {error}", "note")]
    class_names = tuple(trained_run.input_spec["class_names"])
    try:
        return class_names, inspection_sections(inspect_run(trained_run, data_dir))
    except InputError:
        text = "No pictures: the run's images are not at hand, or not those it was trained on (see --data-dir)."
        return class_names, [page.paragraph(text, "note")]


def _paper_angles(summaries: list[RunSummary]) -> dict[str, float]:
    """Table VI's angles of the runs' loss, where all are of one of its losses on CIFAR-10."""
    from ..reproduce.paper import read_paper_table
    from ..reproduce.parts.runs import IMAGE_LOSSES

    losses = {each.config.loss for each in summaries}
    method = next((method for method, loss in IMAGE_LOSSES.items() if {loss} == losses), None)
    if method is None or {each.config.data for each in summaries} != {"cifar10"}:
        return {}
    return {row["metric"]: float(row[method]) for row in read_paper_table(6) if method in row}
