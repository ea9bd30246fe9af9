"""The gallery: MNIST digits in two dimensions under every loss, trained once and kept beside this file.

`widemargin tour --train` trains it again; what is kept says with which settings.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..recipes.parts.openset_lines import DIGITS
from ..report.escaped import escape
from ..report.spokes import spokes

if TYPE_CHECKING:
    from torch import Tensor

BASE = replace(DIGITS, dim=2, epochs=10, share=0.2, per_class=10)
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
FILE = "gallery.json"
_SHOWN = 40  # of each digit


def train_gallery(place: Path, data_dir: str | None, told: Callable[[str], None]) -> dict[str, Any]:
    """Train every loss (finished runs are not repeated) and take down where some test images lie."""
    import torch

    from ..recipes.parts.run_list import folder_of, record_of
    from ..training.finished import finished
    from ..training.loop import train
    from ..training.unseen import embed

    found: dict[str, Any] = {"run": json.loads(BASE.to_json()), "losses": {}}
    for loss in LOSSES:
        told(loss)
        run = replace(BASE, loss=loss)
        folder = folder_of(run, place)
        if record_of(run, place) is None:
            train(run, folder, resume=True, data_dir=data_dir, quiet=True)
        done = finished(folder)
        inputs = done.inputs(data_dir)
        y = inputs.test.y
        rows = torch.cat([(y == k).nonzero().squeeze(1)[:_SHOWN] for k in range(10)])
        x, y = embed(done.model, inputs.judged(inputs.test.take(rows)))
        test = (record_of(run, place) or {})["test"]
        right = test.get("top1", test.get("recall1"))
        head = done.model.objective.head
        found["losses"][loss] = {
            "on_circle": head is None or not head.margin.keeps_x,
            "w": None if head is None else _rounded(head.weight.detach()),
            "x": _rounded(x),
            "y": y.tolist(),
            "right": right,
            "what": "test accuracy" if "top1" in test else "recall@1",
        }
    return found


def _rounded(points: Tensor) -> list[list[float]]:
    return [[round(float(v), 4) for v in point] for point in points]


def kept() -> dict[str, Any] | None:
    """What was trained, if it is there."""
    file = resources.files(__package__).joinpath(FILE)
    if not file.is_file():
        return None
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def gallery_html(found: dict[str, Any]) -> str:
    """All losses side by side."""
    import numpy as np

    digits = [str(k) for k in range(10)]
    cells = []
    for loss, seen in found["losses"].items():
        weights = None if seen["w"] is None else np.array(seen["w"])
        title = f"MNIST in two dimensions under {loss}"
        picture = spokes(np.array(seen["x"]), np.array(seen["y"]), digits, weights, seen["on_circle"], title)
        name = loss.partition(", lam")[0] + (")" if ", lam" in loss else "")
        cells.append(
            f"<figure>{picture}<figcaption><b>{escape(name)}</b><br>{escape(seen['what'])} {seen['right']:.1f} %</figcaption></figure>"
        )
    return f'<div class="gallery">{"".join(cells)}</div>'
