"""A report on runs: their logs and records, and what their test images show, as a page, Markdown or a picture."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..export.hub import METADATA_FILE
from ..io import bounded
from ..io.errors import InputError, spell_option
from ..io.locks import write_text_atomic
from ..metrics.verification import VerificationMetrics, verification_metrics_of_embeddings
from ..models.attach import embed
from ..numerics.angles import unit_and_norm
from ..viz import page
from ..viz.embeddings import inspection_sections
from ..viz.run_page import RunSummary, runs_markdown, runs_page, write_run_figure
from ..viz.terminal import check_writable
from . import run_files
from .config import TrainConfig
from .logging import MetricsLog
from .run import Run
from .run_loading import load_hub_run, load_run, read_hub_config

REPORT_FORMATS = ("html", "md", "png", "pdf")


@dataclass(frozen=True)
class Report:
    """The path of a written report, and notes on what it could not show."""

    path: Path
    notes: tuple[str, ...] = ()


def report(
    runs: str | Path | Run | Sequence[str | Path | Run],
    out: str | Path | None = None,
    *,
    format: str | None = None,  # noqa: A002  (as the option is called)
    images: bool = True,
    data_dir: str | Path | None = None,
    device: str | None = None,
    command: str = "",
    paper_angles: Callable[[Sequence[RunSummary]], Mapping[str, float]] = lambda _: {},
) -> Report:
    """Write one run or several as a page, as Markdown or as a picture.

    Args:
        runs: a run, its folder, a folder that holds some, or several of these.
        out: file to write; by default `report.html` in the run, or here where there are several.
        format: html, md, png or pdf; by default as `out` ends, else html.
        images: show what needs the data: mistakes and embeddings.
        data_dir: folder with the data sets, or the folder in which the images of the run are now.
        device: where the models compute, such as "cuda".
        command: what makes the report again.
        paper_angles: angles of a paper to show beside those of the runs.

    Returns:
        `path` is the file that was written, `notes` say what could not be shown.
    """
    given = [runs] if isinstance(runs, str | Path | Run) else list(runs)
    folders = find_run_folders([_folder_of(one) if isinstance(one, Run) else one for one in given])
    ending = Path(out).suffix.lower().lstrip(".") if out else ""
    if out and (not ending or ending not in REPORT_FORMATS) and not format:
        raise InputError(f"{spell_option('out', str(out))}: the file must end in .{', .'.join(REPORT_FORMATS)}")
    kind = format or ending or "html"
    if out and ending != kind:
        raise InputError(f"{spell_option('out', str(out))}: the file of a report in {kind} must end in .{kind}")
    path = Path(out) if out else (folders[0] if len(folders) == 1 else Path()) / f"report.{kind}"
    check_writable(str(path))
    if data_dir and not Path(data_dir).is_dir():
        raise InputError(f"{spell_option('data_dir', str(data_dir))}: no such folder")
    summaries, notes = load_run_summaries(folders, data_dir, kind == "html" and images, device)
    notes += [f"{each.folder}: {each.missing_note}" for each in summaries if each.missing_note]
    if kind in ("png", "pdf") and not any(each.epoch_metrics for each in summaries):
        raise InputError(f"a report in {kind} shows finished epochs, and there are none yet")
    if kind == "html":
        write_text_atomic(path, runs_page(summaries, dict(paper_angles(summaries)), command))
    elif kind == "md":
        write_text_atomic(path, runs_markdown(summaries, command))
    else:
        write_run_figure(summaries, path)
    return Report(path, tuple(notes))


def _folder_of(run: Run) -> Path:
    return run.weights_path.parent if run.folder is None else run.folder


def find_run_folders(paths: Sequence[str | Path]) -> list[Path]:
    """Folders of runs, or of `export --hub`: as given, or all runs that lie directly in what is given."""
    found = []
    for text in paths:
        folder = Path(text)
        inside = sorted((path.parent for path in folder.glob("*/run.json")), key=_natural_sort_key)
        if any(os.path.lexists(folder / name) for name in ("run.json", METADATA_FILE)):
            found.append(folder)
        elif inside:
            found += inside
        else:
            raise InputError(f"{text}: neither a run (a folder with run.json) nor a folder of runs")
    return list(dict.fromkeys(found))


def _natural_sort_key(folder: Path) -> list[Any]:
    """Sort key in natural order: run 2 before run 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d{1,18})", folder.name)]


def load_run_summaries(
    folders: Sequence[Path], data_dir: str | Path | None, with_images: bool, device: str | None = None
) -> tuple[list[RunSummary], list[str]]:
    """The runs, and a line on each that is damaged and left out; a single one is an InputError then."""
    found, notes = [], []
    for folder in folders:
        try:
            found.append(load_run_summary(folder, data_dir, with_images, device))
        except InputError as error:
            if len(folders) == 1:
                raise
            notes.append(f"left out: {error}")
    if not found:
        raise InputError("none of these runs can be read")
    return found, notes


def load_run_summary(
    folder: Path, data_dir: str | Path | None = None, with_images: bool = False, device: str | None = None
) -> RunSummary:
    """What a run's folder says, and parts of a page made from its test images; a folder of `export` has no log."""
    is_run = os.path.lexists(folder / "run.json")
    config = TrainConfig.read(folder) if is_run else read_hub_config(folder)[0]
    epoch_metrics = MetricsLog.read_epochs(folder / "metrics.jsonl")
    record: dict[str, Any] | None = None
    if os.path.lexists(folder / "record.json"):
        try:
            record = run_files.parse_record(bounded.read_json(folder / "record.json"))
        except ValueError as error:
            why = f"not the record of a run ({error})"
            raise InputError(f"{folder / 'record.json'}: {why}; delete it and evaluate again") from None
    class_names, image_sections = (
        _load_image_sections(folder, data_dir, device) if with_images and (epoch_metrics or record) else ((), [])
    )
    name = folder.resolve().name
    return RunSummary(name, config, epoch_metrics, record, class_names, image_sections, is_export=not is_run)


def _load_image_sections(
    folder: Path, data_dir: str | Path | None, device: str | None
) -> tuple[tuple[str, ...], list[str]]:
    """Sections made from the run's test images, or a sentence if the images are not available."""
    try:
        trained_run = load_run(folder) if os.path.lexists(folder / "run.json") else load_hub_run(folder)
        trained_run = trained_run if device is None else trained_run.to(device)
    except InputError as error:
        return (), [page.paragraph(f"No pictures: {error}", "note")]
    try:
        return trained_run.class_names, inspection_sections(inspect_run(trained_run, data_dir))
    except InputError:
        if trained_run.is_multilabel:
            text = "No pictures: mistakes and embeddings are shown for images with one label each."
            return trained_run.class_names, [page.paragraph(text, "note")]
        where = spell_option("data_dir")
        text = f"No pictures: the run's images were not found, or are not those it was trained on (see {where})."
        return trained_run.class_names, [page.paragraph(text, "note")]


MAX_REPORT_IMAGES = 1000  # images in a report: a compromise between detail and time
_NUM_MISTAKES = 12


@dataclass(frozen=True)
class Mistake:
    """A misclassified test image, and the probability of the wrong class."""

    pixels: NDArray[np.uint8]
    true_class: str
    predicted_class: str
    probability: float


@dataclass(frozen=True, eq=False)
class RunInspection:
    """What a report shows of a run's test images."""

    num_images: int
    unit_embeddings: NDArray[np.float64]
    """Unit embeddings [N, D]."""
    y: NDArray[np.int64]
    class_names: tuple[str, ...]
    mistakes: list[Mistake]
    weights: NDArray[np.float64] | None
    """Unit class weights [C, D], or [C, K, D] with sub-centres, where they are those of the images' classes."""
    verification: VerificationMetrics | None = None
    """Metrics of all pairs of the images, where the run is evaluated by pairs."""
    note: str = ""
    """Which images of a folder these are, and what became of the others."""


@torch.no_grad()
def inspect_run(run: Run, data_dir: str | Path | None = None, max_images: int = MAX_REPORT_IMAGES) -> RunInspection:
    """What a report shows of a run, from at most `max_images` test images drawn with the run's seed."""
    inputs = run.load_inputs(data_dir)
    if inputs.is_multilabel:
        raise InputError("the pictures of a report are of images with one label each")
    if list(inputs.class_names) != run.input_spec["class_names"]:
        raise InputError(f"{run.config.data_name} has other classes now than the run was trained on")
    test: Any = inputs.test_samples
    rows = (
        torch.randperm(len(test), generator=torch.Generator().manual_seed(run.config.seed))[:max_images].sort().values
    )
    some = test.take(rows)
    x, y = embed(run.model, inputs.eval_batches(some))
    objective = run.model.objective
    answers = objective.has_logits and not run.is_open_set
    mistakes: list[Mistake] = []
    if answers and getattr(some, "x", None) is not None:
        logits = objective.logits(x.to(next(run.model.parameters()))).float().cpu()
        probabilities, predicted = logits.softmax(1).max(1)
        wrong = (predicted != y).nonzero().squeeze(1)
        for row in wrong[probabilities[wrong].argsort(descending=True)][:_NUM_MISTAKES].tolist():
            names = some.class_names
            mistakes.append(
                Mistake(some.x[row].numpy(), names[y[row]], names[predicted[row]], float(probabilities[row]))
            )
    head = objective.head
    weights = None if head is None or run.is_open_set else unit_and_norm(head.weight.detach().cpu().double())[0].numpy()
    unit = unit_and_norm(x.double())[0]
    pairs = None if answers else _verify_all_pairs(x, y)
    note = "; ".join(inputs.notes) if inputs.changes is None else inputs.changes.summary()
    return RunInspection(len(y), unit.numpy(), y.numpy(), tuple(some.class_names), mistakes, weights, pairs, note)


def _verify_all_pairs(x: Tensor, y: Tensor) -> VerificationMetrics | None:
    """Metrics of all pairs of the images; None where no class has two of them."""
    try:
        return verification_metrics_of_embeddings(x, y)
    except InputError:
        return None
