"""One trained run or several as a page, as Markdown, or as a picture for a paper.

A page shows loss and accuracy over the epochs, angles, mistakes, embeddings, settings, and the command that makes the
run again. `RunSummary` is what a run's folder says; names and colours are chosen so that the runs of one page differ.
"""

from __future__ import annotations

import io
import json
import math
import re
import shlex
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..io import text
from ..io.text import escape_unprintable
from ..metrics.confusion import Confusion
from ..metrics.intervals import MIN_EVENTS
from . import page
from .charts import Line, draw_epoch_curves
from .colours import loss_colour
from .embeddings import CLASS_COLOURS
from .matrices import MAX_CONFUSION_CLASSES, draw_confusion_matrix, draw_ridgeline, most_common_confusions

if TYPE_CHECKING:
    from ..training.config import TrainConfig

# Suffix of a default folder name: the seed, changed options, or a hash if there are many.
_DEFAULT_FOLDER_NAME = re.compile(r"-seed\d+(-[a-z_]+=[^=]*|-neck|-compile|-grad_checkpointing)*(-[0-9a-f]{8})?")
_PREFERRED_SETTINGS = ("data", "model", "seed")  # settings that people compare by


def run_names(configs: Sequence[TrainConfig], folders: Sequence[str]) -> list[str]:
    """A name for each run, all different where their folders are: a given name, else the settings that differ.

    >>> made_up = [f"cifar10-fast-arcgrad_s=10-seed{k}" for k in range(2)]
    >>> from widemargin.training.config import TrainConfig
    >>> run_names([TrainConfig(seed=0), TrainConfig(seed=1, opt="sgd")], made_up)  # one of the two says it
    ['arcgrad(s=10), seed 0', 'arcgrad(s=10), seed 1']
    >>> run_names([TrainConfig(), TrainConfig(loss="softmax")], ["mine", made_up[0]])
    ['mine', 'softmax']
    """
    unnamed_configs = [
        config
        for config, folder in zip(configs, folders, strict=True)
        if _is_default_folder_name(folder) and not config.name
    ]
    setting_names: list[str] = []  # settings in addition to the loss, as few as make these runs' names differ
    for setting_name in sorted(
        (spec.name for spec in fields(configs[0])), key=lambda name: name not in _PREFERRED_SETTINGS
    ):
        if setting_name not in ("loss", "name") and _count_distinct_names(
            unnamed_configs, [*setting_names, setting_name]
        ) > _count_distinct_names(unnamed_configs, setting_names):
            setting_names.append(setting_name)
    names = [
        config.name or (_format_run_name(config, setting_names) if _is_default_folder_name(folder) else folder)
        for config, folder in zip(configs, folders, strict=True)
    ]
    times = Counter(names)
    return [
        f"{name} ({folder})" if times[name] > 1 and name != folder else name
        for name, folder in zip(names, folders, strict=True)
    ]


def _count_distinct_names(configs: Sequence[TrainConfig], setting_names: Sequence[str]) -> int:
    return len({_format_run_name(config, setting_names) for config in configs})


def _format_run_name(config: TrainConfig, setting_names: Sequence[str]) -> str:
    return ", ".join([config.loss, *(_format_setting(config, kind) for kind in setting_names)])


def _is_default_folder_name(folder: str) -> bool:
    return any(match.end() == len(folder) for match in _DEFAULT_FOLDER_NAME.finditer(folder))


def _format_setting(config: TrainConfig, setting_name: str) -> str:
    value = getattr(config, setting_name)
    if setting_name in ("data", "init_from"):
        return Path(value).name if value else f"no {setting_name}"  # a page shows no path of its maker's machine
    return str(value) if setting_name == "model" else f"{setting_name} {value}"


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
    is_export: bool = False
    """Whether the folder is one of `export --hub`, which has no log."""
    name: str = ""
    colour: str = ""
    """Name and colour on the page; `assign_names_and_colours` sets both, as they depend on the page's other runs."""

    @property
    def epochs_done(self) -> int:
        """Epochs that the log holds."""
        return int(self.epoch_metrics[-1]["epoch"]) if self.epoch_metrics else 0

    @property
    def status(self) -> str:
        """Whether the run is finished, or which epoch it has reached."""
        return "finished" if self.record else f"unfinished, epoch {self.epochs_done} of {self.config.epochs}"

    @property
    def image_counts_note(self) -> str:
        """Return the numbers of training, validation and test images of a folder; empty if the record has none."""
        facts = (self.record or {}).get("manifest") or {}
        images = facts.get("images") or {}
        if "test" in images and "tested" in facts:  # those that were there, unchanged and in one class
            images = {**images, "test": facts["tested"]}
        names = {"train": "trained on", "val": "held out to choose by", "test": "tested on"}
        counts = ", ".join(f"{images[part]:,.0f} {name}" for part, name in names.items() if part in images)
        return f"Images by the run's manifest: {counts}." if counts else ""

    @property
    def missing_note(self) -> str:
        """Return the epochs that are missing in the log; empty if it is complete."""
        known, epochs = len(self.epoch_metrics), self.config.epochs
        if self.record and not known and self.is_export:
            return "there is no metrics.jsonl, which an export leaves out, so no curves by epoch can be shown"
        if self.record and known < epochs:
            return f"metrics.jsonl holds {known} of {epochs} epochs; the others cannot be shown"
        return "" if self.epoch_metrics else "No epoch is finished yet: nothing to show but the settings"


def assign_names_and_colours(summaries: Sequence[RunSummary]) -> list[RunSummary]:
    """The same runs with names and colours that differ; the colours of their losses where those differ."""
    names = run_names([each.config for each in summaries], [each.folder for each in summaries])
    colours = [loss_colour(each.config.loss) for each in summaries]
    if len(set(colours)) < len(colours):
        colours = [CLASS_COLOURS[k % len(CLASS_COLOURS)] for k in range(len(summaries))]
    return [
        replace(each, name=name, colour=colour) for each, name, colour in zip(summaries, names, colours, strict=True)
    ]


ANGLE_TITLES = {"wc_intra": "WC-Intra", "w_inter": "W-Inter", "c_inter": "C-Inter", "intra": "image to centre"}
_TEST_METRIC_TITLES = {
    "top1": "top-1",
    "map": "mAP",
    "map_flip": "mAP with flips",
    "f1_micro": "F1",
    "exact_match": "exact match",
    "top1_flip": "with flips",
    "top5": "top-5",
    "balanced_accuracy": "balanced",
    "recall1": "recall@1",
    "map_at_r": "MAP@R",
}
_TEST_METRIC_TITLES |= {"auc": "AUC", "eer": "EER", "pair_accuracy": "pairs right", "five_way_one_shot": "5-way-1-shot"}


def runs_page(summaries: Sequence[RunSummary], paper_angles: Mapping[str, float], command: str) -> str:
    """The whole page; `paper_angles` are the paper's angles where they apply to all of these runs."""
    summaries = assign_names_and_colours(summaries)
    one = len(summaries) == 1
    title, sub = _titles(summaries[0]) if one else (f"{len(summaries)} runs compared", _shared_settings(summaries))
    body = [result_table(summaries, paper_angles)]
    body += [
        page.paragraph(f"{'' if one else f'{each.name}: '}{each.missing_note}.", "note")
        for each in summaries
        if each.missing_note
    ]
    small = training_curve_sections(summaries)
    if one:
        body += [page.side_by_side([*small, *_angle_ridgeline_sections(summaries[0])]), *_run_sections(summaries[0])]
    else:
        body.append(page.side_by_side(small))
        spread = [part for each in summaries for part in _angle_ridgeline_sections(each, each.name)]
        if spread:
            text = "Training images, epoch by epoch from top to bottom (Figure 4 of the ArcGrad paper)."
            body += [
                page.heading("Angles to the own class", text),
                page.side_by_side(spread),
                page.heading("Run by run"),
            ]
        for each in summaries:
            folder = "" if each.folder == each.name else f" ({each.folder})"
            body.append(page.details(f"{each.name}{folder}: mistakes, settings", "\n".join(_run_sections(each))))
    body += [page.heading("This page again"), page.code(command)]
    return page.html_page(title, sub, body, "" if one else page.SORT_SCRIPT)


def _titles(summary: RunSummary) -> tuple[str, str]:
    """Title and subtitle of the page of one run."""
    config, chosen = summary.config, summary.name != summary.config.loss
    about = [config.data_name, config.model, *([config.loss] if chosen else []), f"seed {config.seed}"]
    title = summary.name if chosen else f"{config.loss} on {config.data_name}"
    return title, f"{', '.join(about)}; {summary.status}" + (
        "" if summary.folder == summary.name else f"; {summary.folder}"
    )


def _shared_settings(summaries: Sequence[RunSummary]) -> str:
    """Data, model, loss and number of epochs, as far as all runs share them."""
    common = [
        {each.config.data_name for each in summaries},
        {each.config.model for each in summaries},
        {each.config.loss for each in summaries},
        {f"{each.config.epochs} epochs" for each in summaries},
    ]
    return ", ".join(next(iter(values)) for values in common if len(values) == 1)


def result_columns_and_rows(summaries: Sequence[RunSummary]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of the table of results."""
    tests = [
        name
        for name in _TEST_METRIC_TITLES
        if any(name in ((each.record or {}).get("test") or {}) for each in summaries)
    ]
    angle_names = [
        name for name in ANGLE_TITLES if any(name in ((each.record or {}).get("angles") or {}) for each in summaries)
    ]
    # A name chosen by a user does not tell the loss.
    has_custom_names = any(not each.name.startswith(each.config.loss) for each in summaries)
    head = [
        "run",
        *(["loss"] if has_custom_names else []),
        *(_TEST_METRIC_TITLES[name] for name in tests),
        *(ANGLE_TITLES[name] for name in angle_names),
    ]
    rows = []
    for each in summaries:
        record = each.record or {}
        test, angles = record.get("test") or {}, record.get("angles") or {}
        cells = [
            each.name,
            *(["" if each.name.startswith(each.config.loss) else each.config.loss] if has_custom_names else []),
        ]
        few = test.get("images", MIN_EVENTS) < MIN_EVENTS
        intervals = record.get("intervals") or {}
        cells += ["–" if few else _format_with_interval(test.get(name), intervals.get(name)) for name in tests]
        cells += [f"{math.degrees(angles[name]):.1f}°" if angles.get(name) is not None else "–" for name in angle_names]
        spent = each.epoch_metrics[-1].get("seconds", 0.0) if each.epoch_metrics else record.get("seconds", 0.0)
        epochs = str(each.config.epochs) if each.record else f"{each.epochs_done} of {each.config.epochs}"
        rows.append([*cells, epochs, f"{spent / 60:.1f} min" if spent >= 60 else f"{spent:.0f} s"])
    return [*head, "epochs", "time"], rows


def _format_with_interval(value: float | None, interval: Sequence[float] | None) -> str:
    """A metric in percent, its 95 % interval below it (older records have none); a dash where there is no value."""
    if value is None:
        return "–"
    return f"{value:.2f} %" + ("" if interval is None else f"\n{interval[0]:.2f} to {interval[1]:.2f}")


def result_table(summaries: Sequence[RunSummary], paper_angles: Mapping[str, float]) -> str:
    """The table, with the paper's angles as its foot."""
    head, rows = result_columns_and_rows(summaries)
    if head[1] == "loss":  # below the name: a column of its own would push the last ones off the page
        head = [head[0], *head[2:]]
        rows = [[f"{name}\n{loss}" if loss else name, *rest] for name, loss, *rest in rows]
    foot = []
    if paper_angles:
        by_title = {ANGLE_TITLES[name]: f"{math.degrees(value):.1f}°" for name, value in paper_angles.items()}
        foot = [[("the paper (Table VI)", ""), *((by_title.get(title, ""), "") for title in head[1:])]]
    cells = [[(cell, "") for cell in row] for row in rows]
    return page.table(head, cells, foot, is_sortable=len(summaries) > 1)


def training_curve_sections(summaries: Sequence[RunSummary]) -> list[str]:
    """Loss, accuracy and every number that moves, over the epochs; a section each."""
    if len(summaries) == 1:  # its lines need no name
        summaries = [replace(summaries[0], name="")]
    panels: list[tuple[str, str, list[Line]]] = [
        (
            "Loss",
            "mean of the training images",
            [_metric_series(each, "loss") for each in summaries],
        )
    ]
    # Of several labels per image a right answer has all of them right.
    keys = ("train_top1", "train_exact_match", "train_recall1")
    train_accuracy = [_metric_series(each, key) for each in summaries for key in keys]
    train_accuracy = [curve for curve in train_accuracy if any(value > 0 for _, value in curve.points)]
    validation = [_validation_series(each) for each in summaries]
    what = "percent of the training images" + ("; dashed: held-out ones" if any(c.points for c in validation) else "")
    panels.append(("Accuracy", what, train_accuracy + validation))
    epochs = [line for each in summaries for line in each.epoch_metrics]
    names = sorted({name for line in epochs for name in line.get("margin_values", {})})
    for name in names:
        series = [_margin_value_series(each, name) for each in summaries]
        series = [curve for curve in series if len({round(value, 9) for _, value in curve.points}) > 1]
        panels.append((f"The number {name}", "as it stood at the end of each epoch", series))
    panels.append(
        (
            "Learning rate",
            "at the end of each epoch",
            [_metric_series(each, "lr") for each in summaries],
        )
    )
    parts = []
    for title, unit, rows in panels:
        non_empty = [curve for curve in rows if curve.points]
        if non_empty:
            parts.append(page.heading(title) + page.figure(draw_epoch_curves(non_empty, unit, title)))
    return parts


def _metric_series(summary: RunSummary, key: str) -> Line:
    points = [
        (line["epoch"], float(line[key]))
        for line in summary.epoch_metrics
        if math.isfinite(float(line.get(key, "nan")))
    ]
    return Line(summary.name, points, summary.colour)


def _validation_series(summary: RunSummary) -> Line:
    metrics = [(line["epoch"], line["val"]) for line in summary.epoch_metrics if "val" in line]
    points = [(epoch, float(val.get("top1", val.get("map", val.get("recall1", math.nan))))) for epoch, val in metrics]
    return Line(
        f"{summary.name}, held out".removeprefix(", "),
        [p for p in points if math.isfinite(p[1])],
        summary.colour,
        dashed=True,
    )


def _margin_value_series(summary: RunSummary, name: str) -> Line:
    points = [
        (line["epoch"], line["margin_values"][name])
        for line in summary.epoch_metrics
        if name in line.get("margin_values", {})
    ]
    return Line(summary.name, [p for p in points if math.isfinite(p[1])], summary.colour)


def _angle_ridgeline_sections(summary: RunSummary, name: str = "") -> list[str]:
    """How the angles to the own class spread, as a section; none where the run did not keep them."""
    counts = [line["histogram"]["target"] for line in summary.epoch_metrics if "histogram" in line]
    if not counts:
        return []
    at = [str(line["epoch"]) for line in summary.epoch_metrics if "histogram" in line]
    picture = draw_ridgeline(at, counts, summary.colour, f"Angles to the own class by epoch {name}".strip())
    text = "Training images, epoch by epoch (Figure 4 of the ArcGrad paper)."
    return [(page.paragraph(name) if name else page.heading("Angles to the own class", text)) + page.figure(picture)]


def _class_accuracy_table(confusion: Confusion, names: Sequence[str]) -> str:
    """Test images of each class and how many are right, the lowest first where there are many classes."""
    known = [
        (names[k], confusion.images[k], value) for k, value in enumerate(confusion.class_accuracy) if value is not None
    ]
    title = f"accuracy of each class (on average {confusion.balanced_accuracy:.2f} %)"
    if len(known) > MAX_CONFUSION_CLASSES:
        known = sorted(known, key=lambda row: row[2])[:MAX_CONFUSION_CLASSES]
        title = f"{title}: the {MAX_CONFUSION_CLASSES} lowest"
    rows = [[(name, ""), (f"{images:,}", ""), (f"{value:.1f} %", "")] for name, images, value in known]
    return page.details(title, page.table(["class", "test images", "right"], rows))


def _run_sections(summary: RunSummary) -> list[str]:
    """Sections on one run: its mistakes, images, settings, environment, and command."""
    parts: list[str] = []
    confusion_counts = (summary.record or {}).get("confusion")
    if confusion_counts is not None:
        names = (
            summary.class_names
            if len(summary.class_names) == confusion_counts.num_classes
            else [str(k) for k in range(confusion_counts.num_classes)]
        )
        parts.append(page.heading("What is taken for what", "A row is a true class, a column the answer."))
        rows = [
            [(true, ""), (answer, ""), (str(count), ""), (f"{share:.1f} %", "")]
            for true, answer, count, share in most_common_confusions(confusion_counts, names)
        ]
        most_common = page.table(["class", "taken for", "times", "of the class"], rows) if rows else ""
        matrix = (
            page.figure(draw_confusion_matrix(confusion_counts, names, "Confusion matrix"))
            if len(names) <= MAX_CONFUSION_CLASSES
            else ""
        )
        parts.append(page.side_by_side(filter(None, (matrix, most_common))))
        parts.append(_class_accuracy_table(confusion_counts, names))
    parts += [
        *([page.paragraph(summary.image_counts_note, "note")] if summary.image_counts_note else []),
        *summary.image_sections,
    ]
    options, own = ["option", "value"], _settings_rows(summary.config)
    parts += [page.heading("Settings", "What is trained on what, and what is not the default.")]
    parts += [
        page.table(options, [row for row in own if row[0][1]]),
        page.details("all settings", page.table(options, own)),
    ]
    if summary.record:
        versions = ", ".join(f"{name} {version}" for name, version in summary.record.get("versions", {}).items())
        commit, threads = summary.record.get("commit") or "unknown", summary.record.get("cores")
        text = f"{versions}; commit {commit}; {threads} thread{'' if threads == 1 else 's'}"
        parts += [page.heading("Environment"), page.paragraph(text)]
        parts += [page.heading("The run again"), page.code(str(summary.record.get("command", "")))]
    else:
        parts += [
            page.heading("How it goes on"),
            page.code(shlex.join(["widemargin", "train", "--resume", summary.folder])),
        ]
    return parts


def _settings_rows(config: TrainConfig) -> list[list[page.Cell]]:
    defaults = asdict(type(config)())
    rows = []
    for name, value in asdict(config).items():
        # A page shows no path of its maker's machine.
        display_value = Path(value).name if name in ("data", "init_from") and value else value
        shown = display_value if isinstance(display_value, str) else json.dumps(display_value, ensure_ascii=False)
        differs = value != defaults[name] or name in ("data", "model", "loss")
        rows.append([(name, "best" if differs else ""), (shown, "")])
    return rows


def runs_markdown(summaries: Sequence[RunSummary], command: str) -> str:
    """The table and the settings that matter as Markdown, for a paper's appendix or an issue."""
    summaries = assign_names_and_colours(summaries)
    head, rows = result_columns_and_rows(summaries)
    title = _titles(summaries[0])[0] if len(summaries) == 1 else f"{len(summaries)} runs compared"
    lines = [f"# {text.escape_markdown(title)}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    flat = [[re.sub(r"\n(.*)", r" (\1)", cell) for cell in row] for row in rows]  # an interval behind its figure
    lines += ["| " + " | ".join(map(text.escape_markdown, row)) + " |" for row in flat]
    for each in summaries:
        lines += ["", f"## {text.escape_markdown(each.name)}", ""]
        lines += [f"{text.escape_markdown(each.missing_note)}.", ""] if each.missing_note else []
        lines += [each.image_counts_note, ""] if each.image_counts_note else []
        lines += ["| option | value |", "|---|---|"]
        lines += [
            f"| {name[0]} | {text.escape_markdown(value[0])} |"
            for name, value in _settings_rows(each.config)
            if name[1]
        ]
        if each.record:
            lines += ["", "```bash", text.escape_markdown_code(str(each.record.get("command", ""))), "```"]
    return "\n".join([*lines, "", f"Made by `{text.escape_markdown_code(command)}`.", ""])


_RUN_LINE_STYLES = ("-", (0, (5, 2)), (0, (1, 1)))


def _label(name: str) -> str:
    """A name as the legend shows it; one that begins with _ would be left out."""
    return f" {escape_unprintable(name)}" if name.startswith("_") else escape_unprintable(name)


def write_run_figure(summaries: Sequence[RunSummary], path: Path) -> None:
    """Write one picture, PNG or PDF: loss and accuracy over the epochs, and the angles of the last one."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from ..io.locks import write_chunks_atomic

    summaries = assign_names_and_colours(summaries)
    # A run's name is no formula, though it may hold two dollars.
    rc_params: Any = {"text.parse_math": False, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with mpl.rc_context(rc_params), warnings.catch_warnings():
        # Letters that the font has not are boxes; matplotlib would say so once for each of them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        rows = -(-len(summaries) // 3)
        figure = Figure((12, 3.6 + 0.2 * rows), layout="constrained")
        axes = figure.subplots(1, 3)
        for k, each in enumerate(summaries):
            style = {
                "color": each.colour,
                "linestyle": _RUN_LINE_STYLES[k // len(CLASS_COLOURS) % len(_RUN_LINE_STYLES)],
                "label": _label(each.name),
            }
            at = [line["epoch"] for line in each.epoch_metrics]
            axes[0].plot(at, [line["loss"] for line in each.epoch_metrics], **style)
            keys = ("train_top1", "train_exact_match", "train_recall1")
            right = [next((line[key] for key in keys if key in line), 0.0) for line in each.epoch_metrics]
            if any(right):
                axes[1].plot(at, right, **style)
            counts = next(
                (line["histogram"]["target"] for line in reversed(each.epoch_metrics) if "histogram" in line), None
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
