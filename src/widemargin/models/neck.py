"""Layers between a network and its margin head: the seeds' neck of two linear layers, or one layer.

Linear(in, 2048) – ReLU – batch norm – Linear(2048, 512) – batch norm without gain and bias. The last norm centres
the embeddings, so that the angles to the class weights use the whole sphere and not the corner where a ReLU
network puts everything.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from ..io.errors import InputError
from .classifier import backbone_embeddings


class BackboneWrapper(nn.Module):
    """A backbone with layers behind it: images → [N, embedding_dim]. The backbone is reached as `.backbone`."""

    def __init__(self, backbone: nn.Module, embedding_dim: int) -> None:
        super().__init__()
        if not isinstance(getattr(backbone, "embedding_dim", None), int):
            raise InputError(
                f"{type(self).__name__} needs a backbone with the attribute embedding_dim, as build_backbone returns; "
                f"{type(backbone).__name__} has none"
            )
        self.embedding_dim = embedding_dim
        self.backbone = backbone
        self.layers = nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.layers(backbone_embeddings(self.backbone, x)))

    def whiten(self, images: Tensor) -> None:
        """Hand training images on to a backbone that whitens them (`fast`); the others have no use for them."""
        inner = getattr(self.backbone, "whiten", None)
        if inner is not None:
            inner(images)

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that the backbone excludes from weight decay."""
        asked = getattr(self.backbone, "no_weight_decay", None)
        return {f"backbone.{name}" for name in asked()} if callable(asked) else set()


class Neck(BackboneWrapper):
    """The seeds' neck."""

    def __init__(self, backbone: nn.Module, hidden: int = 2048, embedding_dim: int = 512) -> None:
        super().__init__(backbone, embedding_dim)
        self.layers = nn.Sequential(
            nn.Linear(cast(int, backbone.embedding_dim), hidden),
            nn.ReLU(),
            nn.BatchNorm1d(hidden),
            nn.Linear(hidden, embedding_dim),
            nn.BatchNorm1d(embedding_dim, affine=False),
        )


class ProjectedBackbone(BackboneWrapper):
    """One linear layer: embeddings of another length, and of both signs where a backbone ends in a ReLU."""

    def __init__(self, backbone: nn.Module, embedding_dim: int) -> None:
        super().__init__(backbone, embedding_dim)
        self.layers = nn.Sequential(nn.Linear(cast(int, backbone.embedding_dim), embedding_dim))
