"""The page of `evaluate --protocol`: what it says, and pictures of pairs and neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..angle import direction
from ..metrics.identity_intervals import LEAST_EVENTS
from ..metrics.retrieval import nearest
from . import neighbours, page, pairs

if TYPE_CHECKING:
    from ..metrics.verification import Verification
    from ..training.inputs import Samples
    from ..training.protocols import Judged

_ROWS, _NEAR = 12, 8


def protocol_page(title: str, sub: str, judged: Judged, command: str, shown: list[str]) -> str:
    """The whole page; `shown` are further parts, such as rows of neighbours."""
    body = [page.paragraph(line) for line in judged.lines]
    if judged.verification is not None:
        found = judged.verification
        thresholds = list(judged.facts["thresholds"].values())
        explained = "Lines are the thresholds of the FARs that so many pairs can support."
        body += [page.heading("Scores", explained)]
        body += [page.figure(pairs.spread(found.roc, thresholds, "Cosines of same and different pairs"))]
        body += supported_curves(found)
    return page.page(title, sub, [*body, *shown, page.heading("Again"), page.code(command)])


def supported_curves(found: Verification) -> list[str]:
    """Both curves of pairs, as far as ten pairs support their points."""
    parts = []
    roc, same, different = found.roc, found.same, found.different
    for title, picture, more in (
        ("Accepted pairs", pairs.curve(roc, same, different, "TAR over FAR"), ""),
        (
            "Misses over false alarms",
            pairs.misses(roc, same, different, "Misses over false alarms"),
            f", and {LEAST_EVENTS} same pairs missed",
        ),
    ):
        needs = f"{LEAST_EVENTS} pairs of each kind are accepted{more}"
        if picture is None:
            parts.append(page.heading(title, f"Not drawn: there is no FAR at which {needs}."))
        else:
            text = f"Drawn where at least {needs}."
            parts += [page.heading(title, text), page.figure(picture)]
    return parts


def neighbour_rows(x: Tensor, images: Samples, seed: int) -> list[str]:
    """Some images with their nearest others, those with a mistake first; nothing where pictures are not in memory."""
    pixels = getattr(images, "x", None)
    if pixels is None:
        return []
    unit, y = direction(x.float())[0], images.y
    chosen = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))[:400]
    near = min(_NEAR, len(y) - 1)
    scores, places = nearest(unit[chosen], unit, near, chosen)
    wrong = (y[places] != y[chosen].unsqueeze(1)).float().mean(1)
    worst = wrong.argsort(descending=True, stable=True)[: _ROWS // 2].tolist()
    others = [k for k in range(len(chosen)) if k not in worst][: _ROWS - len(worst)]
    rows = []
    for k in (*worst, *others):
        asked = (neighbours.thumbnail(pixels[chosen[k]].numpy()), images.classes[y[chosen[k]]])
        found = [
            (neighbours.thumbnail(pixels[place].numpy()), images.classes[y[place]], float(score))
            for place, score in zip(places[k].tolist(), scores[k], strict=True)
        ]
        rows.append(neighbours.row(asked, found))
    explained = (
        "Left what was asked for, then what lies nearest; mistakes are framed. The upper half are the worst of 400."
    )
    return [neighbours.STYLE, page.heading("Nearest neighbours", explained), *rows]
