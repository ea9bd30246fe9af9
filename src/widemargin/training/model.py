"""The model of a run: backbone, neck if wanted, and objective; and its average over the steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from ..head.objective import Objective
from ..io.errors import InputError
from ..models.attach import MarginModel
from ..numerics import distributed
from .config import TrainConfig

_MAX_IMAGE_VALUES = 1 << 26  # numbers of an image as a network sees it: 4,700 × 4,700 pixels in colour

ObjectiveFactory: TypeAlias = Callable[[int, int], Objective]
"""`objective_factory(embedding_dim, num_classes)` returns the objective of a run."""


def build_margin_model(
    config: TrainConfig,
    input_spec: dict[str, Any],
    allow_pretrained: bool = True,
    objective_factory: ObjectiveFactory | None = None,
) -> MarginModel:
    """Backbone and head of a run for the images that `input_spec` describes, drawn from the run's seed.

    Without `allow_pretrained` the weights come from a checkpoint: none are fetched. `objective_factory` makes an
    objective in place of the one that the run's loss names.
    """
    from ..models.build import build_backbone, strip_pretrained
    from ..models.neck import Neck, ProjectedBackbone

    torch.manual_seed(config.seed)
    model, options = (
        (config.model, dict(config.model_options))
        if allow_pretrained
        else strip_pretrained(config.model, config.model_options)
    )
    backbone = build_backbone(model, channels=input_spec["channels"], size=input_spec["size"], **options)
    if config.neck:
        backbone = Neck(backbone, embedding_dim=config.embedding_dim or 512)
    elif config.embedding_dim:
        backbone = ProjectedBackbone(backbone, config.embedding_dim)
    embedding_dim = backbone.embedding_dim
    assert isinstance(embedding_dim, int)
    class_names = tuple(input_spec["class_names"])
    return MarginModel(
        backbone,
        _build_objective(config, embedding_dim, class_names)
        if objective_factory is None
        else objective_factory(embedding_dim, len(class_names)),
    )


def state_bytes(model: nn.Module) -> int:
    """Bytes of all tensors that a checkpoint of the model holds."""
    return sum(value.nbytes for value in model.state_dict().values() if isinstance(value, Tensor))


def rebuild_model(
    config: TrainConfig,
    input_spec: Any,
    weight_bytes: int,
    where: str,
    objective_factory: ObjectiveFactory | None = None,
) -> MarginModel:
    """The network of a saved run, without its weights, which have `weight_bytes` bytes.

    `config` and `input_spec` may be from a stranger, so they are checked first.
    """
    try:
        values = input_spec["channels"] * input_spec["size"] ** 2
        names = input_spec["class_names"]
        known = all(isinstance(name, str) for name in names) and isinstance(names, list)
        if not known or type(values) is not int or not 0 < values <= _MAX_IMAGE_VALUES:
            raise ValueError
    except (KeyError, TypeError, ValueError, OverflowError):
        raise InputError(f"{where}: does not say what images the network sees; take another checkpoint") from None
    with limit_parameter_bytes(weight_bytes, where):
        return build_margin_model(config, input_spec, allow_pretrained=False, objective_factory=objective_factory)


@contextmanager
def limit_parameter_bytes(weight_bytes: int, where: str) -> Iterator[None]:
    """Refuse a network that is several times as large as the weights it is made for, before its memory is used.

    The text that describes a network may be a stranger's, and ask for more than a machine has.
    """
    remaining_bytes = [3 * weight_bytes + (64 << 20)]  # a head is made twice, its names being known the second time

    def count(_module: nn.Module, _name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            remaining_bytes[0] -= parameter.numel() * parameter.element_size()
            if remaining_bytes[0] < 0:
                raise InputError(f"{where}: describes a network far larger than its weights; not made")

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    except (RuntimeError, TypeError, OverflowError) as error:
        if not re.search("alloc|too large|overflow", str(error), re.IGNORECASE):
            raise
        raise InputError(f"{where}: describes a network far larger than its weights; not made") from None
    finally:
        handle.remove()


def _build_objective(config: TrainConfig, embedding_dim: int, class_names: tuple[str, ...]) -> Objective:
    """The objective of the run's loss; only a head takes label smoothing and class names. All ranks share one state."""
    group = dist.group.WORLD if distributed.has_multiple_ranks() else None
    bare = Objective(config.loss, embedding_dim, len(class_names), group=group)
    if bare.head is None and not config.label_smoothing:
        return bare
    return Objective(
        config.loss,
        embedding_dim,
        len(class_names),
        label_smoothing=config.label_smoothing,
        class_names=class_names,
        group=group,
    )


class TrainStep(nn.Module):
    """One training call: images and labels to losses and embeddings, so that a wrapper sees one forward."""

    def __init__(self, model: MarginModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, images: Tensor, y: Tensor, mix: tuple[Tensor, Tensor | float] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Losses [N] and embeddings [N, D], the latter without a gradient."""
        x = self.model.embed(images)
        return self.model.objective(x, y, mix=mix), x.detach()


class ModelEMA:
    """Exponential average of a model's floating-point state (weights, running statistics); the rest is not averaged."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.values = {name: value.detach().clone() for name, value in _float_state(model).items()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Update the average with the model's current state."""
        now = _float_state(model)
        torch._foreach_lerp_(list(self.values.values()), [now[name] for name in self.values], 1.0 - self.decay)

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor], prefix: str) -> None:
        """Copy the average of a checkpoint into these tensors, which keep their memory layout."""
        for name, value in self.values.items():
            value.copy_(tensors[prefix + name])

    @torch.no_grad()
    def swap(self, model: nn.Module) -> None:
        """Exchange the average and the model's own state; a second call undoes it."""
        for name, value in _float_state(model).items():
            kept = value.detach().clone()
            value.copy_(self.values[name])
            self.values[name] = kept


def _float_state(model: nn.Module) -> dict[str, Tensor]:
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: value for name, value in state.items() if value.is_floating_point() and "margin_state." not in name}
