"""Six digits in three dimensions: what A-Softmax's m and ArcGrad do to the sphere, and to the angles of pairs."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...metrics.identity_intervals import MIN_EVENTS
from ...run import TrainConfig
from .openset_lines import DIGITS_CONFIG, OpenSetMethod, train_method
from .openset_table import complete_openset_runs
from .run_list import run_folder

# Six of the ten digits are seen; a tenth of their images is held out for the pictures.
SPHERE_CONFIG = replace(
    DIGITS_CONFIG,
    model="fast(widths=(32, 64, 64), bias=False)",
    embedding_dim=3,
    epochs=10,
    unseen_classes=0.4,
    train_fraction=0.25,
    val_fraction=0.1,
)
# λ must fall within these thousand steps, or every m is the same curve; SphereFace's own floor is 5.
SPHERE_LOSSES = (*(f"a_softmax(m={m}, lam=anneal(100, gamma=1, floor=1))" for m in (1, 2, 3, 4)), "arcgrad(s=10)")
_POINTS_PER_CLASS = 150  # of each class
_NUM_ANGLE_PAIRS = 5000


def run_sphere(options: argparse.Namespace, seeds: range) -> None:
    """Train what is missing, draw the spheres and the angles of pairs."""
    from ...report import page

    lines = [OpenSetMethod(loss, replace(SPHERE_CONFIG, loss=loss), train_method) for loss in SPHERE_LOSSES]
    out = complete_openset_runs(lines, seeds, options, "sphere")
    if out is None:
        return
    spheres, spreads = [], []
    for line in lines:
        first = line.config_for_seed(seeds[0])
        folder = run_folder(first, Path(options.runs))
        if (folder / "record.json").exists():
            picture, spread, said = _draw_sphere_and_angles(first, folder, options.data_dir)
            print(f"{line.name}: {said}")
            spheres.append(f'<div class="ball">{picture}</div>')
            spreads += [page.heading(line.name, said), page.figure(spread)]
    title = "Six digits in three dimensions"
    sub = f"MNIST, seed {seeds[0]}; held-out images of the six digits the network was trained on"
    style = "<style>.balls { display: flex; flex-wrap: wrap; } .ball svg { min-width: 0; width: 300px; }</style>"
    body = [
        style,
        page.heading("On the sphere", "Rays are the class weights; what lies behind is pale."),
        f'<div class="balls">{"".join(spheres)}</div>',
        page.heading("Angles of pairs"),
        *spreads,
        page.heading("Again"),
        page.code("widemargin reproduce openset sphere"),
    ]
    path = out / "report.html"
    path.write_text(page.html_page(title, sub, body), encoding="utf-8")
    print(f"wrote {path} and {out / 'records.jsonl'}")


def _draw_sphere_and_angles(config: TrainConfig, folder: Path, data_dir: str | None) -> tuple[str, str, str]:
    """The sphere, the spread of pair angles, and a line about them."""
    from ...angle import angle_between, unit_and_norm
    from ...report.pairs import draw_angle_histogram
    from ...report.sphere import draw_embedding_sphere
    from ...training.finished import load_run
    from ...training.inputs import load_inputs
    from ...training.unseen import distinct_pairs, embed

    done = load_run(folder)
    inputs = load_inputs(config, data_dir)
    held: Any = inputs.val
    x, y = embed(done.model, inputs.eval_batches(held))
    unit = unit_and_norm(x.double())[0]
    first, second, same = distinct_pairs(y, config.seed, _NUM_ANGLE_PAIRS)
    degrees = angle_between(unit[first], unit[second]).rad2deg().numpy()
    kinds = same.numpy()
    head = done.model.objective.head
    assert head is not None
    weights = unit_and_norm(head.weight.detach().double())[0].numpy()
    rows = torch.cat([(y == k).nonzero().squeeze(1)[:_POINTS_PER_CLASS] for k in range(len(inputs.class_names))])
    name = config.loss.partition(", lam")[0] + (")" if ", lam" in config.loss else "")
    picture = draw_embedding_sphere(unit[rows].numpy(), y[rows].numpy(), inputs.class_names, weights, name)
    said = (
        f"pairs of one digit {np.mean(degrees[kinds]):.1f}° apart, of two {np.mean(degrees[~kinds]):.1f}°; "
        f"{_format_threshold_error(degrees, kinds)} of pairs on the wrong side of the best threshold"
    )
    assert math.isfinite(float(degrees.sum()))
    return picture, draw_angle_histogram(degrees, kinds, f"Angles of pairs under {name}"), said


def _format_threshold_error(degrees: Any, same: Any) -> str:
    """Smallest share of pairs that a threshold gets wrong, in percent; a bound where fewer than ten are wrong."""
    order = np.argsort(degrees)
    kinds = same[order]
    wrong = np.concatenate(([kinds.sum()], kinds.sum() - np.cumsum(kinds) + np.cumsum(~kinds))).min()
    share = 100.0 * max(wrong, MIN_EVENTS) / len(kinds)
    return f"{'' if wrong >= MIN_EVENTS else 'below '}{share:.1f} %"
