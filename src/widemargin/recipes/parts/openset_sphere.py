"""Six digits in three dimensions: what A-Softmax's m and ArcGrad do to the sphere, and to the angles of pairs."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...metrics.identity_intervals import LEAST_EVENTS
from ...run import Run
from .openset_lines import DIGITS, Line, trained
from .openset_table import carry_out
from .run_list import folder_of

# Six of the ten digits are seen; a tenth of their images is held out for the pictures.
BASE = replace(
    DIGITS,
    model="fast(widths=(32, 64, 64), bias=False)",
    dim=3,
    epochs=10,
    unseen=0.4,
    share=0.25,
    hold_out=0.1,
)
# λ must fall within these thousand steps, or every m is the same curve; SphereFace's own floor is 5.
LOSSES = (*(f"a_softmax(m={m}, lam=anneal(100, gamma=1, floor=1))" for m in (1, 2, 3, 4)), "arcgrad(s=10)")
_SHOWN = 150  # of each class
_PAIRS = 5000


def run(options: argparse.Namespace, seeds: range) -> None:
    """Train what is missing, draw the spheres and the angles of pairs."""
    from ...report import page

    lines = [Line(loss, replace(BASE, loss=loss), trained) for loss in LOSSES]
    out = carry_out(lines, seeds, options, "sphere")
    if out is None:
        return
    spheres, spreads = [], []
    for line in lines:
        first = line.of_seed(seeds[0])
        folder = folder_of(first, Path(options.runs))
        if (folder / "record.json").exists():
            picture, spread, said = _pictures(first, folder, options.data_dir)
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
    path.write_text(page.page(title, sub, body), encoding="utf-8")
    print(f"wrote {path} and {out / 'records.jsonl'}")


def _pictures(run: Run, folder: Path, data_dir: str | None) -> tuple[str, str, str]:
    """The sphere, the spread of pair angles, and a line about them."""
    from ...angle import between, direction
    from ...report.pairs import spread_of_angles
    from ...report.sphere import sphere
    from ...training.finished import finished
    from ...training.inputs import inputs_of
    from ...training.unseen import distinct_pairs, embed

    done = finished(folder)
    inputs = inputs_of(run, data_dir)
    held: Any = inputs.held_out
    x, y = embed(done.model, inputs.judged(held))
    unit = direction(x.double())[0]
    first, second, same = distinct_pairs(y, run.seed, _PAIRS)
    degrees = between(unit[first], unit[second]).rad2deg().numpy()
    kinds = same.numpy()
    head = done.model.objective.head
    assert head is not None
    weights = direction(head.weight.detach().double())[0].numpy()
    rows = torch.cat([(y == k).nonzero().squeeze(1)[:_SHOWN] for k in range(len(inputs.classes))])
    name = run.loss.partition(", lam")[0] + (")" if ", lam" in run.loss else "")
    picture = sphere(unit[rows].numpy(), y[rows].numpy(), inputs.classes, weights, name)
    said = (
        f"pairs of one digit {np.mean(degrees[kinds]):.1f}° apart, of two {np.mean(degrees[~kinds]):.1f}°; "
        f"{_wrong(degrees, kinds)} of pairs on the wrong side of the best threshold"
    )
    assert math.isfinite(float(degrees.sum()))
    return picture, spread_of_angles(degrees, kinds, f"Angles of pairs under {name}"), said


def _wrong(degrees: Any, same: Any) -> str:
    """Smallest share of pairs that a threshold gets wrong, in percent; a bound where fewer than ten are wrong."""
    order = np.argsort(degrees)
    kinds = same[order]
    wrong = np.concatenate(([kinds.sum()], kinds.sum() - np.cumsum(kinds) + np.cumsum(~kinds))).min()
    share = 100.0 * max(wrong, LEAST_EVENTS) / len(kinds)
    return f"{'' if wrong >= LEAST_EVENTS else 'below '}{share:.1f} %"
