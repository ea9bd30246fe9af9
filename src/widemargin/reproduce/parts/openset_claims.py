"""Two open-set experiments: the claim of AdaAcos, and six digits on a sphere.

The claim: without tuning AdaAcos is as good as a tuned ArcFace, and better than AdaCos. ArcFace's scale and margin are
selected from a grid on validation images. The sphere: six digits of MNIST in three dimensions, to show the effect of
A-Softmax's m and of ArcGrad on the embeddings and on the angles of pairs.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...metrics.intervals import MIN_EVENTS
from ...training.config import TrainConfig
from .openset_methods import DIGITS_CONFIG, OMNIGLOT_CONFIG, OpenSetMethod, train_own_loss
from .openset_table import (
    complete_openset_runs,
    describe_paired_difference,
    format_mean_interval,
    metric_by_seed,
    metric_values,
)
from .runs import add_finished_runs, read_record, run_folder

if TYPE_CHECKING:
    from ...viz.svg import Chart

MARGINS = (0.1, 0.3, 0.5)
_CLAIM_DIGITS_CONFIG = replace(DIGITS_CONFIG, embedding_dim=16, epochs=8, train_fraction=0.1, val_fraction=0.05)


@dataclass(frozen=True)
class ClaimDataset:
    """A data set for testing the claim: its training settings, the deciding metric, and ArcFace's scales."""

    title: str
    base_config: TrainConfig
    metric: str
    unit: str
    scales: tuple[float, ...]
    untuned_losses: tuple[str, ...]

    def arcface_grid(self) -> dict[tuple[float, float], OpenSetMethod]:
        """ArcFace at every scale and margin."""
        losses = {(s, m): f"arcface(s={s:g}, m={m:g})" for s in self.scales for m in MARGINS}
        return {
            place: OpenSetMethod(loss, replace(self.base_config, loss=loss), train_own_loss)
            for place, loss in losses.items()
        }

    def untuned_methods(self) -> list[OpenSetMethod]:
        """The losses that need no tuning, as methods."""
        return [
            OpenSetMethod(loss, replace(self.base_config, loss=loss), train_own_loss) for loss in self.untuned_losses
        ]


# The author uses s ≈ 6 for ten classes, where the formula gives 10.8.
CLAIM_DATASETS = (
    ClaimDataset(
        "MNIST, a tenth of the training images",
        _CLAIM_DIGITS_CONFIG,
        "top1",
        "test accuracy in percent",
        (4, 6, 10, 16, 30, 64),
        ("adaacos", "adaacos(s=6)", "adacos"),
    ),
    ClaimDataset(
        "Omniglot, unseen characters",
        replace(OMNIGLOT_CONFIG, val_fraction=0.2, epochs=10),  # a large grid: half the epochs of the other recipe
        "recall1",
        "recall@1 in percent",
        (6, 10, 16, 30, 64),
        ("adaacos", "adacos"),
    ),
)


def run_tuning_claim(options: argparse.Namespace, seeds: range) -> None:
    """Train missing runs, select ArcFace's setting on held-out images, and state whether the claim holds."""
    from ...viz import page

    grids = [dataset.arcface_grid() for dataset in CLAIM_DATASETS]
    untuned_by_dataset = [dataset.untuned_methods() for dataset in CLAIM_DATASETS]
    methods = [
        method for grid, others in zip(grids, untuned_by_dataset, strict=True) for method in (*grid.values(), *others)
    ]
    configs = [method.config_for_seed(seed) for method in methods for seed in seeds]
    add_finished_runs(options.records, configs, Path(options.runs_dir))
    out = complete_openset_runs(methods, seeds, options, "adaacos")
    if out is None:
        return
    title = "AdaAcos without tuning against a tuned ArcFace and AdaCos"
    body: list[str] = []
    for dataset, grid, others in zip(CLAIM_DATASETS, grids, untuned_by_dataset, strict=True):
        body += _report_dataset(dataset, grid, others, seeds, Path(options.runs_dir))
    body += [page.heading("Command"), page.code(f"widemargin reproduce openset adaacos --seeds {len(seeds)}")]
    sub = "ArcFace's scale and margin are selected on held-out training images; the selected setting is framed"
    path = out / "report.html"
    path.write_text(page.html_page(title, sub, body), encoding="utf-8")
    print(f"wrote {path} and {out / 'records.jsonl'}")


def _report_dataset(
    dataset: ClaimDataset,
    grid: dict[tuple[float, float], OpenSetMethod],
    untuned_methods: Sequence[OpenSetMethod],
    seeds: range,
    runs_dir: Path,
) -> list[str]:
    """Print the result on one data set and return it as sections of the page."""
    from ...viz import page
    from ...viz.colours import loss_colour
    from ...viz.matrices import draw_heatmap

    values = {spot: metric_values(method, seeds, runs_dir, dataset.metric) for spot, method in grid.items()}
    selected = _tuned_setting(grid, seeds, runs_dir)
    if selected is None:
        return []
    best = max((spot for spot in values if values[spot]), key=lambda spot: statistics.fmean(values[spot]))
    rows = [
        (f"arcface tuned on held-out images: s={selected[0]:g}, m={selected[1]:g}", values[selected]),
        (f"arcface, best on the test images: s={best[0]:g}, m={best[1]:g}", values[best]),
        *((method.name, metric_values(method, seeds, runs_dir, dataset.metric)) for method in untuned_methods),
    ]
    print(f"\n{dataset.title}: {dataset.unit}")
    for name, numbers in rows:
        print(f"  {name}: {format_mean_interval(numbers, 2)}")
    verdicts = _claim_sentences(dataset, grid[selected], untuned_methods, seeds, runs_dir)
    for sentence in verdicts:
        print(f"  {sentence}")
    cells = {(f"s = {s:g}", f"m = {m:g}"): statistics.fmean(v) for (s, m), v in values.items() if v}
    picture = draw_heatmap(
        [f"s = {s:g}" for s in dataset.scales],
        [f"m = {m:g}" for m in MARGINS],
        cells,
        (f"s = {selected[0]:g}", f"m = {selected[1]:g}"),
        loss_colour("arcface"),
        f"ArcFace's grid on {dataset.title}",
    )
    table = page.table(
        ["method", dataset.unit], [[(name, ""), (format_mean_interval(numbers, 2), "")] for name, numbers in rows]
    )
    sentences = [page.paragraph(sentence, "verdict") for sentence in verdicts]
    return [
        page.heading(dataset.title),
        *sentences,
        table,
        page.heading(f"ArcFace's grid: {dataset.unit}"),
        page.figure(picture),
    ]


def _claim_sentences(
    dataset: ClaimDataset, tuned: OpenSetMethod, untuned_methods: Sequence[OpenSetMethod], seeds: range, runs_dir: Path
) -> list[str]:
    """Sentences that compare each untuned loss with the tuned ArcFace, and AdaAcos with AdaCos."""
    values = {method.name: metric_by_seed(method, seeds, runs_dir, dataset.metric) for method in untuned_methods}
    pairs = [(name, "the tuned ArcFace", metric_by_seed(tuned, seeds, runs_dir, dataset.metric)) for name in values]
    pairs += [(name, "AdaCos", values["adacos"]) for name in values if name.startswith("adaacos")]
    sentences = []
    for name, other, theirs in pairs:
        kind, _, rest = describe_paired_difference(values[name], theirs).partition(" (")
        if kind:
            sentences.append(f"{name} is {kind} {other} ({rest}")
    return sentences


def _tuned_setting(
    grid: dict[tuple[float, float], OpenSetMethod], seeds: range, runs_dir: Path
) -> tuple[float, float] | None:
    """Return the setting with the best mean on validation images."""
    means = {}
    for spot, method in grid.items():
        records = [read_record(method.config_for_seed(seed), runs_dir) for seed in seeds]
        val_scores = [record["val"] for record in records if record is not None]
        if val_scores:
            means[spot] = statistics.fmean(val_scores)
    return max(means, key=lambda spot: means[spot]) if means else None


# Training uses six of the ten digits; a tenth of their images is held out for the pictures.
SPHERE_CONFIG = replace(
    DIGITS_CONFIG,
    model="fast(widths=(32, 64, 64), bias=False)",
    embedding_dim=3,
    epochs=10,
    unseen_classes=0.4,
    train_fraction=0.25,
    val_fraction=0.1,
)
# λ must decrease within these thousand steps, or every m gives the same curve; SphereFace's own floor is 5.
SPHERE_LOSSES = (*(f"a_softmax(m={m}, lam=anneal(100, gamma=1, floor=1))" for m in (1, 2, 3, 4)), "arcgrad(s=10)")
_POINTS_PER_CLASS = 150
_NUM_ANGLE_PAIRS = 5000


def run_sphere(options: argparse.Namespace, seeds: range) -> None:
    """Train missing runs, draw the spheres and the angles of pairs."""
    from ...viz import page

    methods = [OpenSetMethod(loss, replace(SPHERE_CONFIG, loss=loss), train_own_loss) for loss in SPHERE_LOSSES]
    out = complete_openset_runs(methods, seeds, options, "sphere")
    if out is None:
        return
    spheres, histograms = [], []
    for method in methods:
        first = method.config_for_seed(seeds[0])
        folder = run_folder(first, Path(options.runs_dir))
        if (folder / "record.json").exists():
            picture, histogram, summary = _draw_sphere_and_angles(first, folder, options.data_dir)
            print(f"{method.name}: {summary}")
            spheres.append(f'<div class="ball">{picture}</div>')
            histograms += [page.heading(method.name, summary), page.figure(histogram)]
    title = "Six digits in three dimensions"
    sub = f"MNIST, seed {seeds[0]}; held-out images of the six training digits"
    style = "<style>.balls { display: flex; flex-wrap: wrap; } .ball svg { min-width: 0; width: 300px; }</style>"
    body = [
        style,
        page.heading("On the sphere", "Rays are the class weights; points behind the sphere are pale."),
        f'<div class="balls">{"".join(spheres)}</div>',
        page.heading("Angles of pairs"),
        *histograms,
        page.heading("Again"),
        page.code("widemargin reproduce openset sphere"),
    ]
    path = out / "report.html"
    path.write_text(page.html_page(title, sub, body), encoding="utf-8")
    print(f"wrote {path} and {out / 'records.jsonl'}")


def _draw_sphere_and_angles(config: TrainConfig, folder: Path, data_dir: str | None) -> tuple[str, Chart, str]:
    """Return the sphere, the histogram of pair angles, and a summary of them."""
    from ...models.attach import embed
    from ...numerics.angles import angle_between, unit_and_norm
    from ...recognition.evaluation import distinct_pairs
    from ...training.inputs import load_inputs
    from ...training.run_loading import load_run
    from ...viz.embeddings import draw_embedding_sphere
    from ...viz.pair_charts import draw_angle_histogram

    run = load_run(folder)
    inputs = load_inputs(config, data_dir)
    val: Any = inputs.val
    x, y = embed(run.model, inputs.eval_batches(val))
    unit = unit_and_norm(x.double())[0]
    first, second, same = distinct_pairs(y, config.seed, _NUM_ANGLE_PAIRS)
    degrees = angle_between(unit[first], unit[second]).rad2deg().numpy()
    kinds = same.numpy()
    head = run.model.objective.head
    assert head is not None
    weights = unit_and_norm(head.weight.detach().double())[0].numpy()
    rows = torch.cat([(y == k).nonzero().squeeze(1)[:_POINTS_PER_CLASS] for k in range(len(inputs.class_names))])
    name = config.loss.partition(", lam")[0] + (")" if ", lam" in config.loss else "")
    picture = draw_embedding_sphere(unit[rows].numpy(), y[rows].numpy(), inputs.class_names, weights, name)
    summary = (
        f"pairs of one digit {np.mean(degrees[kinds]):.1f}° apart, of two {np.mean(degrees[~kinds]):.1f}°; "
        f"{_format_threshold_error(degrees, kinds)} of pairs on the wrong side of the best threshold"
    )
    assert math.isfinite(float(degrees.sum()))
    return picture, draw_angle_histogram(degrees, kinds, f"Angles of pairs under {name}"), summary


def _format_threshold_error(degrees: Any, same: Any) -> str:
    """Smallest fraction of pairs on the wrong side of a threshold, in percent; a bound if fewer than ten are wrong."""
    order = np.argsort(degrees)
    kinds = same[order]
    wrong = np.concatenate(([kinds.sum()], kinds.sum() - np.cumsum(kinds) + np.cumsum(~kinds))).min()
    share = 100.0 * max(wrong, MIN_EVENTS) / len(kinds)
    return f"{'' if wrong >= MIN_EVENTS else 'below '}{share:.1f} %"
