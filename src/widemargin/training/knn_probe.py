"""k-NN probe: how well the nearest training images tell the class of held-out ones, without any class weights.

Neighbours vote with exp(cos / 0.07), as in Wu et al., arXiv 1805.01978. Held-out images of training classes are
compared with training images; held-out identities, and training images where nothing is held out, with each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..io.errors import InputError, spell_option
from ..metrics.neighbors import NeighborSearch
from ..models.attach import MarginModel, embed

if TYPE_CHECKING:
    from .image_inputs import Inputs, Samples

_TEMPERATURE = 0.07
_MAX_IMAGES = 5000  # images of each part, evenly spaced


def knn_probe(model: MarginModel, inputs: Inputs, k: int) -> float:
    """Percentage of held-out images that their `k` nearest neighbours classify correctly."""
    if inputs.is_multilabel:
        raise InputError(f"{spell_option('knn_probe')} needs one label per image; these images have several")
    if inputs.val is None or tuple(inputs.val.class_names) != tuple(inputs.class_names):
        x, y = _embed_part(model, inputs, inputs.train if inputs.val is None else inputs.val)
        return knn_accuracy(x, y, k)
    return knn_accuracy(*_embed_part(model, inputs, inputs.val), k, *_embed_part(model, inputs, inputs.train))


def _embed_part(model: MarginModel, inputs: Inputs, samples: Samples) -> tuple[Tensor, Tensor]:
    """Embeddings and labels of some images of a part; every image of a small one."""
    step = -(-len(samples) // _MAX_IMAGES)
    return embed(model, inputs.eval_batches(samples.take(torch.arange(0, len(samples), step))))


def knn_accuracy(
    x: Tensor, y: Tensor, k: int, gallery: Tensor | None = None, gallery_labels: Tensor | None = None
) -> float:
    """Percentage of embeddings x [N, D] whose neighbours in the gallery vote for their label y [N].

    Without a gallery each is compared with all others of x.

    >>> x = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> knn_accuracy(x, torch.tensor([0, 0, 1, 1]), k=1), knn_accuracy(x, torch.tensor([0, 1, 0, 1]), k=1)
    (100.0, 0.0)
    """
    if gallery is None or gallery_labels is None:
        gallery, gallery_labels, skip = x, y, torch.arange(len(x))
    else:
        skip = None
    depth = min(k, len(gallery) - (skip is not None))
    if depth < 1:
        raise InputError(f"{spell_option('knn_probe')}: at least two images are needed")
    cosines, places = NeighborSearch(gallery)(x, depth, skip)
    labels, weights = gallery_labels[places], torch.exp((cosines - cosines[:, :1]) / _TEMPERATURE)
    votes = ((labels.unsqueeze(1) == labels.unsqueeze(2)) * weights.unsqueeze(1)).sum(2)
    answers = labels.gather(1, votes.argmax(1, keepdim=True)).squeeze(1)
    return 100.0 * float((answers == y).double().mean())
