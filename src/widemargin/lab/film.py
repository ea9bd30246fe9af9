"""The paper's Figure 1 as a film: angles of Iris samples and where their gradients push them, for two scales."""

from __future__ import annotations

from typing import Any

import torch

from ..recipes.figure1 import SCALES, course

FRAMES = 24
_BIGGEST = 40  # samples of each class that are drawn


def film(seed: int = 0) -> list[dict[str, Any]]:
    """For each scale its frames: own angles in degrees, pulls per s, the mean gap and the theoretical one."""
    # Most happens early: frames stand at the squares of even steps.
    phases = {str(k): (k / (FRAMES - 1)) ** 2 for k in range(FRAMES)}
    found = []
    for scale in SCALES:
        moments = course(scale, seed, phases)
        y = moments[0].y
        rows = torch.cat([(y == k).nonzero().squeeze(1)[:_BIGGEST] for k in range(int(y.max()) + 1)])
        found.append(
            {
                "s": scale,
                "theory": round(float(torch.tensor(moments[0].theoretical).rad2deg()), 1),
                "y": y[rows].tolist(),
                "frames": [
                    {
                        "own": _rounded(moment.theta[rows, y[rows]].rad2deg(), 1),
                        "pull": _rounded(moment.gradient[rows, y[rows]] / scale, 3),
                        "gap": round(float(torch.tensor(moment.gap).rad2deg()), 1),
                        "right": round(moment.accuracy, 1),
                    }
                    for moment in moments
                ],
            }
        )
    return found


def _rounded(values: torch.Tensor, digits: int) -> list[float]:
    return [round(value, digits) for value in values.tolist()]
