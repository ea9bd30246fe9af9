"""How well outlier scores find planted wrong labels and foreign images.

A small network is trained on images of which a fraction has a wrong label, drawn among the other classes, and a
fraction is of another data set under a label drawn at random. Each score of `recognition.outliers` then ranks the
training images: AUROC of planted against clean images, with a 95 % interval over the classes of the clean ones.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.table import Table
from torch import Tensor

from widemargin.data.images.sets import load_images
from widemargin.io.progress import progress_bar
from widemargin.metrics.intervals import jackknife_interval
from widemargin.metrics.roc import auc, roc_curve
from widemargin.recognition.outliers import OUTLIER_SCORES, class_outlier_scores
from widemargin.training.train import train
from widemargin.viz.terminal import console

SETS = {"mnist": ("omniglot", 4000, 4), "orl_faces": ("mnist", 400, 40), "omniglot": ("mnist", 4000, 8)}
"""By set: where foreign images come from, how many images are used, and for how many epochs."""
FOREIGN_FRACTION = 0.05
_SIZE = 28


def load_square(name: str, limit: int, data_dir: str | None) -> tuple[Tensor, Tensor]:
    """Grey images [N, 1, 28, 28] of a set as bytes, and labels numbered from 0 on."""
    images = load_images(name, data_dir).train
    rows = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    if name == "omniglot":  # few images of each of very many characters: take whole characters
        rows = torch.argsort(images.y, stable=True)
    rows = rows[:limit]
    x = images.x[rows].float().mean(1, keepdim=True)
    x = F.interpolate(x, (_SIZE, _SIZE), mode="bilinear", antialias=True, align_corners=False)
    return x.round().clamp(0, 255).to(torch.uint8), torch.unique(images.y[rows], return_inverse=True)[1]


def plant(x: Tensor, y: Tensor, foreign: Tensor, noise: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Images, labels and kinds (0 clean, 1 wrong label, 2 foreign)."""
    draw = torch.Generator().manual_seed(seed)
    num_classes = int(y.max()) + 1
    kind = torch.zeros(len(y), dtype=torch.int64)
    kind[torch.randperm(len(y), generator=draw)[: round(noise * len(y))]] = 1
    shift = torch.randint(1, num_classes, (len(y),), generator=draw)
    y = torch.where(kind == 1, (y + shift) % num_classes, y)
    count = round(FOREIGN_FRACTION * len(y))
    labels = torch.randint(num_classes, (count,), generator=draw)
    return torch.cat((x, foreign[:count])), torch.cat((y, labels)), torch.cat((kind, torch.full((count,), 2)))


def measure(name: str, noise: float, seed: int, loss: str, data_dir: str | None) -> dict[str, Any]:
    """AUROC of every score for both kinds of planted images."""
    other, limit, epochs = SETS[name]
    x, y, kind = plant(*load_square(name, limit, data_dir), load_square(other, 1000, data_dir)[0], noise, seed)
    config = {"loss": loss, "epochs": epochs, "batch_size": 64, "seed": seed, "model": "fast(widths=(16,32,64))"}
    with tempfile.TemporaryDirectory() as folder:
        values = x.float() / 255
        run = train(config, train=(values, y), test=(values[:64], y[:64]), model=None, out=Path(folder) / "run")
        embeddings = run.embed(values, normalize=False)
        head = run.model.objective.head
        assert head is not None
        scores, _ = class_outlier_scores(embeddings, y, head.gather_weight())
    row: dict[str, Any] = {"set": name, "noise": noise, "seed": seed, "loss": loss, "images": len(y)}
    for planted, title in ((1, "wrong label"), (2, "foreign")):
        chosen = (kind == 0) | (kind == planted)
        is_planted, group = (kind[chosen] == planted).numpy(), y[chosen].numpy()
        for score in OUTLIER_SCORES:
            values_of = scores[score][chosen].double().numpy()
            value = auc(roc_curve(values_of, is_planted))
            rest = []
            for label in np.unique(group)[:200]:
                keep = group != label
                if is_planted[keep].any() and not is_planted[keep].all():
                    rest.append(auc(roc_curve(values_of[keep], is_planted[keep])))
            row[f"{title}: {score}"] = {"auroc": value, "interval": jackknife_interval(value, rest)}
    return row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--sets", nargs="+", choices=sorted(SETS), default=list(SETS), help="image sets (default all)")
    parser.add_argument("--noise", nargs="+", type=float, default=[0.05, 0.1, 0.2], help="fractions of wrong labels")
    parser.add_argument("--losses", nargs="+", default=["arcface(s=16, m=0.3)", "subcenter_arcface(s=16, m=0.3, k=3)"])
    parser.add_argument("--seed", type=int, default=0, help="of planting and training (default 0)")
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to a file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    cases = [(name, noise, loss) for name in options.sets for noise in options.noise for loss in options.losses]
    rows = []
    with progress_bar("outliers", float(len(cases))) as on_progress:
        for name, noise, loss in cases:
            rows.append(measure(name, noise, options.seed, loss, options.data_dir))
            on_progress(1.0)
    for title in ("wrong label", "foreign"):
        grid = Table(title=f"AUROC of planted images: {title}", title_justify="left")
        for column in ("set", "noise", "loss", *OUTLIER_SCORES):
            grid.add_column(column)
        for row in rows:
            cells = [_format(row[f"{title}: {score}"]) for score in OUTLIER_SCORES]
            grid.add_row(row["set"], f"{100 * row['noise']:g} %", row["loss"], *cells)
        console().print(grid)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def _format(cell: dict[str, Any]) -> str:
    ends = cell["interval"]
    return f"{100 * cell['auroc']:.1f}" + ("" if ends is None else f" ({100 * ends[0]:.1f} – {100 * ends[1]:.1f})")
