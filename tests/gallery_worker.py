"""A small embedder of images, and a process that enrols identities until it is killed."""

from pathlib import Path

import numpy as np
import torch

from widemargin.recognition.gallery import Gallery

DIM = 12


class PixelEmbedder:
    """A linear map of an image of 8 × 8 pixels: deterministic, and needs no training."""

    embedding_dim = DIM

    def __init__(self, seed=0, calibration=None):
        self.matrix = torch.randn(64, DIM, generator=torch.Generator().manual_seed(seed))
        self.fingerprint = f"pixels-{seed}"
        self.calibration = calibration

    def embed(self, images, *, batch_size=256):
        pixels = [np.asarray(image.convert("L").resize((8, 8)), dtype=np.float32).ravel() - 128 for image in images]
        return torch.from_numpy(np.stack(pixels)) @ self.matrix

    def export(self, *, hub=None):
        Path(hub).mkdir(parents=True)
        return []


def draw_vectors(number):
    """Three vectors of an identity."""
    return torch.randn(3, DIM, generator=torch.Generator().manual_seed(number))


def enrol_until_killed(folder, log, number):
    """Enrol identities `number`, `number` + 1, …, and write down each one that `add` has returned for."""
    torch.set_num_threads(1)
    gallery = Gallery(folder, PixelEmbedder())
    while True:
        gallery.add({f"p{number}": draw_vectors(number)})
        with Path(log).open("a") as file:
            file.write(f"{number}\n")
        number += 1
