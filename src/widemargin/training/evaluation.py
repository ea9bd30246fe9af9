"""`Evaluation`: the metrics of a trained run on its test items, or of a protocol on its embeddings."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..io.bounded import dumps_one_line_per_key
from ..io.errors import InputError, spell_option, unknown_name_error
from ..io.locks import write_text_atomic
from ..metrics.confusion import Confusion
from ..recognition import protocols
from ..recognition.pair_files import read_pair_list, verify_pair_list
from ..recognition.settings import ProtocolSettings
from ..viz import page
from ..viz.matrices import MAX_CONFUSION_CLASSES, draw_confusion_matrix
from ..viz.protocol_page import neighbour_sections, protocol_page
from .evaluate import evaluate, format_metrics
from .image_inputs import Inputs, describe_skipped_images
from .run_inputs import describe_data_changes

if TYPE_CHECKING:
    from .run import Run

_MAX_LISTED_LABELS = 20  # labels whose average precision is printed; evaluation.json has all
_ANGLE_NAMES = {"wc_intra": "WC-Intra", "w_inter": "W-Inter", "c_inter": "C-Inter", "intra": "image to centre"}


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Metrics of a run: `metrics` as numbers, `lines` as text."""

    metrics: dict[str, Any]
    lines: list[str]
    notes: list[str]
    """Which images of a folder were tested, and which were added, changed or removed."""
    protocol: str | None
    """verification, retrieval, knn, fewshot or openset; None for the metrics of the classifier."""
    title: str
    subtitle: str
    facts: dict[str, Any] = field(repr=False)
    """Contents of the file that `to_json` writes."""
    class_names: tuple[str, ...] = field(default=(), repr=False)
    build_page: Callable[[str], str] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return "\n".join([*self.notes, *self.lines])

    def __repr__(self) -> str:
        return f"Evaluation({self.title}: {'; '.join(self.lines)})"

    def _repr_html_(self) -> str:
        """The metrics as a small table, for notebooks."""
        return page.table((self.title, ""), [((line, ""),) for line in (*self.lines, *self.notes)])

    def to_json(self, path: str | Path | None = None) -> str:
        """All metrics as JSON, also written to `path`."""
        text = (
            dumps_one_line_per_key(self.facts, ensure_ascii=False)
            if self.protocol is None
            else json.dumps(self.facts, indent=1)
        )
        if path is not None:
            write_text_atomic(Path(path), text)
        return text

    def to_html(self, path: str | Path | None = None, *, command: str = "") -> str:
        """A page with metrics and charts, also written to `path`; `command` is printed on it."""
        text = self._own_page(command) if self.build_page is None else self.build_page(command)
        if path is not None:
            write_text_atomic(Path(path), text)
        return text

    def _own_page(self, command: str) -> str:
        body = [page.paragraph(line) for line in self.lines] + [page.paragraph(note, "note") for note in self.notes]
        if self.metrics.get("confusion") is not None and len(self.class_names) <= MAX_CONFUSION_CLASSES:
            confusion = Confusion.from_json(self.metrics["confusion"])
            picture = draw_confusion_matrix(confusion, self.class_names, "Confusion matrix")
            body += [page.heading("Confusion"), page.figure(picture)]
        body += [page.heading("Again"), page.code(command)] if command else []
        return page.html_page(self.title, self.subtitle, body)

    def write(self, folder: str | Path, *, command: str = "") -> list[Path]:
        """Write the files of `widemargin evaluate` to a run folder, and return their paths.

        That is `evaluation.json`, or of a protocol `evaluation-NAME.json` and `.html`.
        """
        path = Path(folder, "evaluation.json" if self.protocol is None else f"evaluation-{self.protocol}.json")
        self.to_json(path)
        if self.protocol is None:
            return [path]
        self.to_html(path.with_suffix(".html"), command=command)
        return [path, path.with_suffix(".html")]


def evaluate_run(
    run: Run,
    inputs: Inputs | None,
    *,
    protocol: str | None = None,
    pairs: str | Path | None = None,
    flips: bool = True,
    assign_new: bool = False,
    data_dir: str | Path | None = None,
    **settings: Any,
) -> Evaluation:
    """Metrics of a run on `inputs`; with `protocol` or `pairs` those of its embeddings.

    `settings` are fields of `ProtocolSettings`.
    """
    options = ProtocolSettings(**settings)
    if protocol is not None and protocol not in protocols.PROTOCOLS:
        raise unknown_name_error("protocol", protocol, protocols.PROTOCOLS)
    if pairs is not None:
        return _evaluate_pairs(run, pairs, protocol, assign_new, data_dir)
    assert inputs is not None
    if list(inputs.class_names) != run.input_spec["class_names"]:
        raise InputError(f"{run.config.data} has other classes than those the run {run.weights_path} was trained on")
    if protocol is not None:
        return _evaluate_protocol(run, inputs, protocol, options)
    found: dict[str, Any] = {}
    if inputs.test is not None or not inputs.pair_files:
        found = evaluate(run.model, run.config, inputs, inputs.test_samples, flips=flips)
    if summary := inputs.manifest_summary():
        found["manifest"] = summary
    lines = [format_metrics(found)] if found else []
    if inputs.pair_files:
        found["pairs"] = verify_pair_files(run, inputs)
        lines += describe_pair_files(found["pairs"])
    if inputs.bad_images:
        found["skipped_images"] = inputs.skipped_images()
        lines.append(describe_skipped_images(found["skipped_images"]))
    if (by_label := found.get("average_precision")) is not None and len(by_label) <= _MAX_LISTED_LABELS:
        said = (f"{name} {'–' if value is None else f'{value:.2f} %'}" for name, value in by_label.items())
        lines.append(f"average precision: {', '.join(said)}")
    if "angles" in found:
        angles = [f"{_ANGLE_NAMES[key]} {math.degrees(value):.2f}°" for key, value in found["angles"].items()]
        lines.append(", ".join(angles))
    return Evaluation(
        found,
        lines,
        describe_data_changes(inputs),
        None,
        f"{run.config.data_name}: evaluation",
        _subtitle(run),
        {"checkpoint": _checkpoint_name(run), **found, "class_names": run.input_spec["class_names"]},
        run.class_names,
    )


def _checkpoint_name(run: Run) -> str:
    return run.weights_path.name


def _subtitle(run: Run) -> str:
    images = "unseen classes" if run.is_open_set else "the test images"
    return f"{run.config.model}, {run.config.loss}, on {images}"


def verify_pair_files(run: Run, inputs: Inputs) -> dict[str, Any]:
    """Figures of the files of pairs that lie beside the images of a run, by their names."""
    found: dict[str, Any] = {}
    for path in inputs.pair_files:
        pairs = read_pair_list(path)
        found[path.stem] = verify_pair_list(run.embed(pairs.images), pairs).metrics
    return found


def describe_pair_files(figures: Mapping[str, Any]) -> list[str]:
    """A line about each file of pairs."""
    return [
        f"{name}: {one['fold_accuracy']:.2f} % ± {one['fold_accuracy_std']:.2f} right, "
        f"{one['same'] + one['different']:,} pairs"
        for name, one in figures.items()
        if "fold_accuracy" in one
    ]


def _evaluate_pairs(
    run: Run, path: str | Path, protocol: str | None, assign_new: bool, data_dir: str | Path | None
) -> Evaluation:
    """Verification of the pairs in a file."""
    if protocol not in (None, "verification"):
        raise InputError(f"{spell_option('pairs')} requires protocol verification, not {protocol}")
    if assign_new:
        raise InputError(
            f"{spell_option('assign_new')} evaluates the images of the run, {spell_option('pairs')} other images; "
            "use one of them"
        )
    listed = read_pair_list(path, data_dir)
    result = verify_pair_list(run.embed(listed.images), listed)
    return _protocol_evaluation(run, "verification", result, [], {}, list)


def _evaluate_protocol(run: Run, inputs: Inputs, protocol: str, options: ProtocolSettings) -> Evaluation:
    """A protocol on the embeddings of the test items."""
    if inputs.is_multilabel:
        raise InputError(
            f"{spell_option('protocol', protocol)} needs one label per image, this run has several; omit it"
        )
    x, y = run.embed_test_images(inputs=inputs)
    result = protocols.PROTOCOLS[protocol](x, y, options, run.config.seed)
    summary = inputs.manifest_summary()

    def sections() -> list[str]:
        found = neighbour_sections(x, inputs.test_samples, run.config.seed)
        if inputs.changes is not None:
            found.append(page.paragraph(inputs.changes.summary(), "note"))
        return found

    extra = {"manifest": summary} if summary else {}
    return _protocol_evaluation(run, protocol, result, describe_data_changes(inputs), extra, sections)


def _protocol_evaluation(
    run: Run,
    protocol: str,
    result: protocols.ProtocolResult,
    notes: list[str],
    extra: dict[str, Any],
    sections: Callable[[], list[str]],
) -> Evaluation:
    title, subtitle = f"{Path(run.config.data).name}: {protocol}", _subtitle(run)
    return Evaluation(
        result.metrics,
        result.lines,
        notes,
        protocol,
        title,
        subtitle,
        {"checkpoint": _checkpoint_name(run), **result.metrics, **extra},
        run.class_names,
        lambda command: protocol_page(title, subtitle, result, command, sections()),
    )
