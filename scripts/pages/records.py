"""The page of reproduced results: every record as a table, with the paper's values if it has them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.numerics import TARGET_LOSSES
from benchmarks.table_verdicts import summarise as summarise_verdicts
from widemargin.reproduce import longtail
from widemargin.reproduce.paper import TABLE1_LOSSES, paper_table1, read_paper_table
from widemargin.reproduce.parts.openset_table import METRICS
from widemargin.reproduce.parts.runs import EXTRA_LOSSES, IMAGE_LOSSES
from widemargin.viz.run_page import ANGLE_TITLES

Line = Mapping[str, Any]


def render_records_page(folder: Path) -> str:
    """Return the whole page: tables, then the text of records/README.md, then the commands."""
    intro, commands, words = (
        (folder / "README.md").read_text(encoding="utf-8").partition("\n")[2].strip().split("\n\n", 2)
    )
    parts = ["# Reproduce", "", intro, ""]
    others = sorted(path.name for path in folder.glob("*.jsonl") if path.name not in TABLES)
    for name in [*TABLES, *others]:
        path = folder / name
        if not path.exists():
            continue
        title, render = TABLES.get(name, (name.removesuffix(".jsonl").replace("_", " ").capitalize(), results_table))
        parts += [f"## {title}", "", *render(_read(path)), "", f"From `records/{name}`.", ""]
    return "\n".join([*parts, "## Discussion", "", words.strip(), "", "## The commands", "", commands, ""])


def _read(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a Markdown table with numbers aligned to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]


def small_print(lines: list[str]) -> list[str]:
    """A table with many columns, in small print."""
    return ['<div class="dense" markdown>', "", *lines, "", "</div>"]


def _format_mean(values: Sequence[float], digits: int = 2) -> str:
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}" if values else "–"


def _group_by_loss(lines: Sequence[Line]) -> dict[str, list[Line]]:
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(line["loss"], []).append(line)
    return groups


def table1(lines: Sequence[Line]) -> list[str]:
    """Sets by methods: our accuracy with the paper's below; averages of the baselines."""
    theirs = paper_table1()
    ours = {(line["set"], line["loss"]): float(line["mean"]) for line in lines}
    sets = list(dict.fromkeys(line["set"] for line in lines))
    rows = [
        [
            name.replace("_", " "),
            *(f"{ours[name, loss]:.2f}<br>*{theirs[name, key][0]:.2f}*" for key, loss in TABLE1_LOSSES.items()),
        ]
        for name in sets
    ]
    averages = ["**average**"]
    for key, loss in TABLE1_LOSSES.items():
        own = statistics.fmean(ours[name, loss] for name in sets)
        paper = statistics.fmean(theirs[name, key][0] for name in sets)
        averages.append(f"**{own:.2f}**<br>*{paper:.2f}*")
    others = {loss: group for loss, group in _group_by_loss(lines).items() if loss not in TABLE1_LOSSES.values()}
    baselines = [
        f"{loss.replace('_', ' ')} {statistics.fmean(line['mean'] for line in group):.2f}"
        for loss, group in others.items()
        if len(group) == len(sets)
    ]
    words = "Accuracy in percent, ten runs of ten folds; the paper's in grey below ours. "
    words += f"On the same folds, averaged: {', '.join(baselines)}."
    head = ["set", *(loss.replace("softmax + 0.02*", "softmax + 0.02 ") for loss in TABLE1_LOSSES.values())]
    return [words, "", *small_print(table(head, [*rows, averages]))]


def headline(lines: Sequence[Line]) -> list[str]:
    """CIFAR-10 within an hour: all attempts."""
    theirs = next(float(row["cifar10_plus"]) for row in read_paper_table(4) if row["method"] == "arcgrad")
    rows = [
        [str(k), *(f"{line['test'][name]:.2f}" for name in ("top1", "top1_flip")), f"{line['seconds'] / 60:.1f}"]
        for k, line in enumerate(lines, 1)
    ]
    words = (
        f"ArcGrad on CIFAR-10, `{lines[0]['model']}` on two CPU cores; the paper's ResNet-18 on a GPU: {theirs:.2f}."
    )
    return [words, "", *table(["attempt", "accuracy, percent", "with flips", "minutes"], rows)]


def table7(lines: Sequence[Line]) -> list[str]:
    """Accuracy after ten epochs next to the paper's, and angles next to its Table VI."""
    epochs = {row["epochs"]: row for row in read_paper_table(7)}[str(lines[0]["epochs"])]
    angles = {row["metric"]: row for row in read_paper_table(6)}
    rows = []
    for key, loss in {**IMAGE_LOSSES, **EXTRA_LOSSES}.items():
        runs = _group_by_loss(lines).get(loss, [])
        cells = [f"`{loss}`", f"{_format_mean([line['test']['top1'] for line in runs])} ({epochs.get(key, '–')})"]
        for kind in ("wc_intra", "w_inter", "c_inter"):
            cells.append(f"{_format_mean([line['angles'][kind] for line in runs])} ({angles[kind].get(key, '–')})")
        rows.append(cells)
    words = f"`{lines[0]['model']}` after {lines[0]['epochs']} epochs; in brackets the paper's ResNet-18 after as many "
    words += "(accuracy in percent), and its angles in radians after 120 (Table VI)."
    head = ["loss", "accuracy", *(ANGLE_TITLES[kind] for kind in ("wc_intra", "w_inter", "c_inter"))]
    return [words, "", *small_print(table(head, rows))]


def figure3(lines: Sequence[Line]) -> list[str]:
    """Accuracy by the fraction of the training images."""
    shares = sorted({line["train_fraction"] for line in lines}, reverse=True)
    rows = []
    for loss, found in _group_by_loss(lines).items():
        cells = [
            _format_mean([line["test"]["top1"] for line in found if line["train_fraction"] == share])
            for share in shares
        ]
        rows.append([f"`{loss}`", *cells])
    return [
        "Accuracy in percent on CIFAR-10 by the fraction of the training images.",
        "",
        *table(["loss", *(f"{share:.0%}" for share in shares)], rows),
    ]


def long_tail(lines: Sequence[Line]) -> list[str]:
    """Balanced accuracy of every method, and accuracy of the groups of classes."""
    rows = []
    for title, changes in longtail.methods().items():
        weights = changes.get("class_weight", "none")
        own = [line for line in lines if (line["loss"], line["class_weight"]) == (changes["loss"], weights)]
        groups = [[longtail.group_accuracy(line["class_accuracy"], group) for line in own] for group in longtail.GROUPS]
        values = [[line["test"]["balanced_accuracy"] for line in own], *groups]
        rows.append([title, str(len(own)), *(_format_mean(each) for each in values)])
    words = (
        f"CIFAR-10 with {sum(longtail.class_counts()):,} training images, 5,000 of the first class and 50 of the last; "
    )
    words += f"`{lines[0]['model']}`, {lines[0]['epochs']} epochs. Accuracy in percent, mean ± standard deviation over "
    words += (
        "seeds, which also draw the images: of all classes, and of those with at least 1,000, 100 and fewer images."
    )
    return [words, "", *table(["method", "runs", "balanced accuracy", *longtail.GROUPS], rows)]


def figure2(accuracies: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Accuracy on Iris by depth."""
    losses = dict.fromkeys(loss for means in accuracies.values() for loss in means)
    rows = [[f"`{loss}`", *(f"{means[loss]:.1f}" for means in accuracies.values())] for loss in losses]
    return [
        "Accuracy in percent on Iris by the number of layers.",
        "",
        *small_print(table(["loss", *accuracies], rows)),
    ]


def numerics(record: Mapping[str, Any]) -> list[str]:
    """Errors of fp32 gradients, also of pytorch-metric-learning."""
    rows = []
    for row in record["rows"]:
        errors = ["–" if value is None else f"{value:.0e}" for value in (row["initial"], *row["trained"])]
        finite = (
            "yes" if all(row["finite"].values()) else "no: " + ", ".join(k for k, v in row["finite"].items() if not v)
        )
        rows.append([f"`{row['name']}`", *errors, finite, row["library"].partition(",")[0]])
    head = ["loss", "at the start", *(f"at a loss of {target:.0e}" for target in TARGET_LOSSES), "finite", "library"]
    words = "Relative error of fp32 gradients against fp64. –: the scale bounds the loss from below. Finite: loss and "
    words += "gradient at x = ±w, at another class's weight and at 0, in fp32, fp16 and bf16."
    return [words, "", *small_print(table(head, rows))]


def crossval(rows_of_record: Sequence[Line]) -> list[str]:
    """Time per fit, also of two other implementations."""
    names = ("ours", "plain PyTorch, fold by fold", "scikit-learn's MLPClassifier")
    rows = [[row["set"], *(f"{1000 * row[name]['seconds_per_fit']:.1f}" for name in names)] for row in rows_of_record]
    return ["Milliseconds per fit of the same small network.", "", *table(["set", *names], rows)]


def train_speed(record: Mapping[str, Any]) -> list[str]:
    """The training loop next to a minimal one."""
    rows = [
        [
            f"`{row['model']}`",
            row["precision"],
            *(f"{row['images_per_second'][k]:.0f}" for k in ("loop", "bare")),
            f"{row['ratio']:.3f}",
        ]
        for row in record["loop"]
    ]
    words = "Images per second of `widemargin train` and of a plain forward, backward and step on tensors in memory."
    return [words, "", *table(["network", "precision", "ours", "bare", "ratio"], rows)]


def comparison_table(comparisons: Sequence[Line]) -> list[str]:
    """Significant differences between the methods of an open-set table, by metric."""
    rows = []
    for figure in dict.fromkeys(line["metric"] for line in comparisons):
        pairs = [line for line in comparisons if line["metric"] == figure]
        high = METRICS[figure][1] == "high"
        better: dict[str, list[str]] = {}
        for line in pairs:
            if line["is_significant"]:
                ahead = (line["difference"] > 0) == high
                one, other = (line["method_a"], line["method_b"]) if ahead else (line["method_b"], line["method_a"])
                better.setdefault(one, []).append(f"`{other}`")
        count = f"{sum(line['is_significant'] for line in pairs)} of {len(pairs)}"
        text = "; ".join(f"`{one}` better than {', '.join(others)}" for one, others in better.items())
        rows.append([METRICS[figure][0], count, text or "–"])
    words = "All pairs of rows over identities and splits, p ≤ 0.05 after Holm's correction ([how](intervals.md))."
    return [words, "", *small_print(table(["metric", "significant pairs", "which"], rows))]


def results_table(lines: Sequence[Line]) -> list[str]:
    """A row per loss with the means of its metrics over runs, for records without a specific table."""
    lines = [line for line in lines if isinstance(line.get("test"), dict)] or lines
    if "test" not in lines[0]:
        groups = _group_by_loss(lines)
        rows = [
            [f"`{loss}`", str(len(own)), _format_mean([line["mean"] for line in own])] for loss, own in groups.items()
        ]
        return table(["loss", "sets", "mean accuracy in percent ± standard deviation over the sets"], rows)
    plain = ("loss", "paired_images", "identities")
    names = [name for name, value in lines[0]["test"].items() if isinstance(value, int | float) and name not in plain]
    rows = []
    for loss, groups in _group_by_loss(lines).items():
        values = {name: [line["test"][name] for line in groups if line["test"].get(name) is not None] for name in names}
        rows.append([f"`{loss}`", str(len(groups)), *(_format_mean(values[name]) for name in names)])
    return small_print(table(["loss", "runs", *(name.replace("_", " ") for name in names)], rows))


def table_shapes(lines: Sequence[Line]) -> list[str]:
    """Tables of many shapes: mean test accuracy over seeds of the selected loss and of the baselines."""
    by_table: dict[str, dict[str, list[float]]] = {}
    for line in lines:
        by_table.setdefault(line["set"], {}).setdefault(line["method"], []).append(line["accuracy"])
    methods = list(dict.fromkeys(line["method"] for line in lines))
    rows = [
        [f"`{name}`", *(f"{sum(own[m]) / len(own[m]):.2f}" if m in own else "–" for m in methods)]
        for name, own in by_table.items()
    ]
    return small_print(table(["table", *(method.replace("_", " ") for method in methods)], rows))


def table_verdicts(lines: Sequence[Line]) -> list[str]:
    """Pairs of losses that differ significantly in each run: default settings, and tuned with fewer and more trials."""
    rows = []
    for row in summarise_verdicts(lines):
        trials, significant = (", ".join(map(str, row[name])) for name in ("trials", "significant"))
        sizes = [str(row[name]) for name in ("rows", "columns", "classes")]
        cells = [trials, str(row["pairs"]), significant, str(row["confirmed"]), str(len(row["opposite"]))]
        rows.append([f"`{row['set']}`", *sizes, *cells])
    columns = [
        "rows",
        "columns",
        "classes",
        "trials of each run",
        "pairs",
        "significant",
        "in two runs",
        "opposite winners",
    ]
    return small_print(table(["table", *columns], rows))


def table_settings(lines: Sequence[Line]) -> list[str]:
    """Losses with several settings on MNIST as a table and on a wide table."""
    losses = list(lines[0]["losses"])
    rows = [
        [
            f"`{line['set']}`",
            str(line["seed"]),
            line["setting"],
            *(f"{line['losses'][n]['accuracy']:.2f}" for n in losses),
        ]
        for line in lines
    ]
    return table(["table", "seed", "setting", *(f"`{loss}`" for loss in losses)], rows)


TABLES: dict[str, tuple[str, Callable[[Any], list[str]]]] = {
    "table1.jsonl": ("Table I: fifteen tables, seven losses", table1),
    "tables.jsonl": ("Tables of many shapes: the selected loss and baselines", table_shapes),
    "table_verdicts.jsonl": ("Tables of many shapes: default and tuned settings", table_verdicts),
    "table_settings.jsonl": ("MNIST as a table, and 5,000 columns of 300 rows", table_settings),
    "headline.jsonl": ("CIFAR-10 within an hour on two CPU cores", headline),
    "table7_cpu.jsonl": ("Tables VI and VII in CPU size", table7),
    "figure2.json": ("Figure 2: depth", figure2),
    "figure3_cpu.jsonl": ("Figure 3 in CPU size: fewer images", figure3),
    "longtail.jsonl": ("Long-tailed CIFAR-10", long_tail),
    "numerics.json": ("Accuracy of gradients", numerics),
    "crossval.json": ("Time of a fit", crossval),
    "table1_decay2.jsonl": ("Table I with a large weight decay", results_table),
    "seeds_smoke.jsonl": ("The original commands, one short epoch", results_table),
    "train_speed.json": ("Speed of the training loop", train_speed),
    "openset_omniglot.jsonl": ("Omniglot: unseen characters", results_table),
    "openset_faces.jsonl": ("ORL faces: unseen people", results_table),
    "openset_adaacos.jsonl": ("AdaAcos without tuning, ArcFace and AdaCos", results_table),
    "openset_sphere.jsonl": ("Six digits in three dimensions", results_table),
    "openset_omniglot_compared.json": ("Omniglot: significant differences", comparison_table),
    "openset_faces_compared.json": ("ORL faces: significant differences", comparison_table),
}
