"""The paper's Figure 1 as a film: angles of Iris samples and where their gradients push them, for two scales."""

from __future__ import annotations

from typing import Any

import torch

from ..recipes.figure1 import SCALES, train_snapshots

NUM_FRAMES = 24
_MAX_SAMPLES_PER_CLASS = 40  # samples of each class that are drawn


def compute_film_frames(seed: int = 0) -> list[dict[str, Any]]:
    """For each scale its frames: own angles in degrees, pulls per s, the mean gap and the theoretical one."""
    # Most happens early: frames stand at the squares of even steps.
    phases = {str(k): (k / (NUM_FRAMES - 1)) ** 2 for k in range(NUM_FRAMES)}
    found = []
    for scale in SCALES:
        moments = train_snapshots(scale, seed, phases)
        y = moments[0].y
        rows = torch.cat([(y == k).nonzero().squeeze(1)[:_MAX_SAMPLES_PER_CLASS] for k in range(int(y.max()) + 1)])
        found.append(
            {
                "s": scale,
                "theory": round(float(torch.tensor(moments[0].theoretical_gap).rad2deg()), 1),
                "y": y[rows].tolist(),
                "frames": [
                    {
                        "own": _round_values(moment.theta[rows, y[rows]].rad2deg(), 1),
                        "pull": _round_values(moment.gradient[rows, y[rows]] / scale, 3),
                        "gap": round(float(torch.tensor(moment.mean_gap).rad2deg()), 1),
                        "right": round(moment.accuracy, 1),
                    }
                    for moment in moments
                ],
            }
        )
    return found


def _round_values(values: torch.Tensor, digits: int) -> list[float]:
    return [round(value, digits) for value in values.tolist()]
