"""The gallery: MNIST digits in two dimensions with every loss, trained once and stored in `gallery.json`.

`widemargin tour --train` trains it again; the file contains the settings.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..io.text import escape
from ..reproduce.parts.openset_methods import DIGITS_CONFIG
from ..viz.embeddings import draw_embedding_circle

if TYPE_CHECKING:
    from torch import Tensor


BASE_CONFIG = replace(DIGITS_CONFIG, embedding_dim=2, epochs=10, train_fraction=0.2, per_class=10)
LOSSES = (
    "softmax",
    "modified_softmax",
    "normface(s=10)",
    "softmax + 0.02*center(alpha=0.5)",
    "contrastive",
    "triplet(mining=semihard)",
    "l_softmax(m=2, lam=anneal(100, gamma=1, floor=1))",
    "a_softmax(m=2, lam=anneal(100, gamma=1, floor=1))",
    "m_softmax(m=0.5)",
    "cosface(s=10, m=0.1)",
    "arcface(s=10, m=0.1)",
    "adacos(ceiling=30)",
    "adaacos",
    "arcgrad(s=10)",
)
GALLERY_FILE = "gallery.json"
_IMAGES_PER_DIGIT = 40


def train_gallery(runs_dir: Path, data_dir: str | None, on_progress: Callable[[str], None]) -> dict[str, Any]:
    """Train every loss (finished runs are not repeated); return weights, some test embeddings and accuracy of each."""
    import torch

    from ..models.attach import embed
    from ..reproduce.parts.runs import read_record, run_folder
    from ..training.run_loading import load_run
    from ..training.train import train

    gallery: dict[str, Any] = {"run": asdict(BASE_CONFIG), "losses": {}}
    for loss in LOSSES:
        on_progress(loss)
        config = replace(BASE_CONFIG, loss=loss)
        folder = run_folder(config, runs_dir)
        if read_record(config, runs_dir) is None:
            train(config, folder, resume=True, data_dir=data_dir, quiet=True)
        trained_run = load_run(folder)
        inputs = trained_run.load_inputs(data_dir)
        y = inputs.test_samples.y
        rows = torch.cat([(y == k).nonzero().squeeze(1)[:_IMAGES_PER_DIGIT] for k in range(10)])
        x, y = embed(trained_run.model, inputs.eval_batches(inputs.test_samples.take(rows)))
        test = (read_record(config, runs_dir) or {})["test"]
        metric_value = test.get("top1", test.get("recall1"))
        head = trained_run.model.objective.head
        gallery["losses"][loss] = {
            "on_circle": head is None or not head.margin.uses_x_norm,
            "w": None if head is None else _round_points(head.weight.detach()),
            "x": _round_points(x),
            "y": y.tolist(),
            "right": metric_value,
            "what": "test accuracy" if "top1" in test else "recall@1",
        }
    return gallery


def _round_points(points: Tensor) -> Any:
    """Return a tensor's numbers as nested lists with four digits."""
    return points.double().cpu().numpy().round(4).tolist()


def load_gallery() -> dict[str, Any] | None:
    """Return the trained gallery that is part of the package; None if the file is missing."""
    file = resources.files(__package__).joinpath(GALLERY_FILE)
    if not file.is_file():
        return None
    gallery: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return gallery


def gallery_html(gallery: dict[str, Any]) -> str:
    """Return all losses in one grid."""
    import numpy as np

    digits = [str(k) for k in range(10)]
    cells = []
    for loss, entry in gallery["losses"].items():
        weights = None if entry["w"] is None else np.array(entry["w"])
        title = f"MNIST in two dimensions under {loss}"
        picture = draw_embedding_circle(
            np.array(entry["x"]), np.array(entry["y"]), digits, weights, entry["on_circle"], title
        )
        name = loss.partition(", lam")[0] + (")" if ", lam" in loss else "")
        caption = f"<b>{escape(name)}</b><br>{escape(entry['what'])} {entry['right']:.1f} %"
        cells.append(f"<figure>{picture}<figcaption>{caption}</figcaption></figure>")
    return f'<div class="gallery">{"".join(cells)}</div>'
