"""The page of `evaluate --protocol`: its results in words, and pictures of pairs and neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..metrics.intervals import MIN_EVENTS
from ..metrics.neighbors import NeighborSearch
from . import embeddings, page, pair_charts

if TYPE_CHECKING:
    from ..metrics.verification import VerificationMetrics
    from ..recognition.protocols import ProtocolResult
    from ..training.image_inputs import Samples


_NEIGHBOUR_ROWS, _NEIGHBOURS_PER_ROW = 12, 8
_MAX_QUERIES = 400  # images among which the worst are looked for


def protocol_page(title: str, subtitle: str, result: ProtocolResult, command: str, extra_sections: list[str]) -> str:
    """The whole page; `extra_sections` are further parts, such as rows of neighbours."""
    body = [page.paragraph(line) for line in result.lines]
    if result.verification is not None:
        verification = result.verification
        thresholds = list(result.metrics["thresholds"].values())
        explained = "Lines are the thresholds of the FARs that so many pairs can support."
        scores = pair_charts.draw_score_histogram(verification.roc, thresholds, "Cosines of same and different pairs")
        first = page.heading("Scores", explained) + page.figure(scores)
        # Side by side they also fit the width of a phone.
        body.append(page.side_by_side([first, *verification_curve_sections(verification)]))
    return page.html_page(title, subtitle, [*body, *extra_sections, page.heading("Again"), page.code(command)])


def verification_curve_sections(verification: VerificationMetrics) -> list[str]:
    """Sections with the ROC and the DET curve, as far as ten pairs support their points."""
    parts = []
    roc, same, different = verification.roc, verification.num_same, verification.num_different
    for title, picture, more in (
        ("Accepted pairs", pair_charts.draw_roc_curve(roc, same, different, "TAR over FAR"), ""),
        (
            "Misses over false alarms",
            pair_charts.draw_det_curve(roc, same, different, "Misses over false alarms"),
            f", and {MIN_EVENTS} same pairs missed",
        ),
    ):
        needs = f"{MIN_EVENTS} pairs of each kind are accepted{more}"
        if picture is None:
            parts.append(page.heading(title, f"Not drawn: there is no FAR at which {needs}."))
        else:
            text = f"Drawn where at least {needs}."
            parts.append(page.heading(title, text) + page.figure(picture))
    return parts


def neighbour_sections(x: Tensor, images: Samples, seed: int) -> list[str]:
    """Some images with their nearest others, those with a mistake first; nothing where pictures are not in memory."""
    pixels = getattr(images, "x", None)
    if pixels is None:
        return []
    y = images.y
    chosen = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))[:_MAX_QUERIES]
    near = min(_NEIGHBOURS_PER_ROW, len(y) - 1)
    scores, places = NeighborSearch(x)(x[chosen], near, chosen)
    wrong = (y[places] != y[chosen].unsqueeze(1)).float().mean(1)
    worst = wrong.argsort(descending=True, stable=True)[: _NEIGHBOUR_ROWS // 2].tolist()
    others = [k for k in range(len(chosen)) if k not in worst][: _NEIGHBOUR_ROWS - len(worst)]
    rows = []
    for k in (*worst, *others):
        query = (embeddings.thumbnail(pixels[chosen[k]].numpy()), images.class_names[y[chosen[k]]])
        matches = [
            (embeddings.thumbnail(pixels[place].numpy()), images.class_names[y[place]], float(score))
            for place, score in zip(places[k].tolist(), scores[k], strict=True)
        ]
        rows.append(embeddings.neighbour_row(query, matches))
    explained = (
        "Left what was asked for, then what lies nearest; mistakes are framed. "
        f"The first {len(worst)} are the worst of {len(chosen)}."
    )
    return [embeddings.THUMBNAIL_STYLE, page.heading("Nearest neighbours", explained), *rows]
