"""The model of a run: backbone, neck if wanted, and objective; and its average over the steps."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ..head.objective import Objective
from ..io.errors import InputError, spell_option
from ..losses.base import Loss
from ..losses.class_counts import check_class_counts, class_weights_from_counts, with_class_counts
from ..losses.criterion import Criterion
from ..losses.grammar import Sum, parse
from ..losses.margin import Margin
from ..losses.multilabel import check_multilabel_loss
from ..models.attach import MarginModel, to_model_input
from ..models.classifier import backbone_embeddings, find_classifier, find_known_classifier
from ..numerics import distributed
from .config import TrainConfig

_MAX_IMAGE_VALUES = 1 << 26  # numbers of an image as a network sees it: 4,700 × 4,700 pixels in colour

MODULE_PREFIX = "module:"
"""Begins the model of a run whose network was given as a module; the name of its class follows."""

ObjectiveFactory: TypeAlias = Callable[[int, int], Objective]
"""`objective_factory(embedding_dim, num_classes)` returns the objective of a run."""


def build_margin_model(
    config: TrainConfig,
    input_spec: dict[str, Any],
    allow_pretrained: bool = True,
    objective_factory: ObjectiveFactory | None = None,
    module: GivenModule | None = None,
    steps_per_epoch: int = 0,
) -> MarginModel:
    """Backbone and head of a run for the inputs that `input_spec` describes, drawn from the run's seed.

    Losses and class weights that follow the training images of each class take them from `input_spec`, so that a model
    that is built again has the same numbers. `steps_per_epoch` says when deferred class weights begin; a model that is
    not trained needs none. Without `allow_pretrained` the weights come from a checkpoint: none are fetched.
    `objective_factory` makes an objective in place of the one that the run's loss names. A `module` takes the place of
    the backbone it names.
    """
    from ..models.neck import Neck, ProjectedBackbone

    torch.manual_seed(config.seed)
    class_names = tuple(input_spec["class_names"])
    is_given = objective_factory is not None or (module is not None and isinstance(module.model, MarginModel))
    for name, neutral in (("class_weight", "none"), ("backend", "auto"), ("sample_rate", 1.0)):
        if is_given and (value := getattr(config, name)) != neutral:
            raise InputError(
                f"{spell_option(name, value)} is for losses given by name; configure your objective itself"
            )
    if module is not None and isinstance(module.model, MarginModel):
        return _check_margin_model(module.model, config, len(class_names), objective_factory)
    if module is None:
        backbone = _build_named_backbone(config, input_spec, allow_pretrained)
        embedding_dim = cast(int, backbone.embedding_dim)
    else:
        backbone, embedding_dim = module.build_backbone(config.loss, len(class_names))
    if config.neck or config.embedding_dim:
        setattr(backbone, "embedding_dim", embedding_dim)  # noqa: B010  (not a submodule, whatever type checkers think)
    if config.neck:
        embedding_dim = config.embedding_dim or 512
        backbone = Neck(backbone, embedding_dim=embedding_dim)
    elif config.embedding_dim:
        embedding_dim = config.embedding_dim
        backbone = ProjectedBackbone(backbone, embedding_dim)
    objective = (
        _build_objective(config, embedding_dim, input_spec, steps_per_epoch)
        if objective_factory is None
        else objective_factory(embedding_dim, len(class_names))
    )
    device = next((p.device for p in backbone.parameters()), None)
    return MarginModel(backbone, objective if device is None else objective.to(device))


def _check_margin_model(
    model: MarginModel, config: TrainConfig, num_classes: int, objective_factory: ObjectiveFactory | None
) -> MarginModel:
    """Return a `MarginModel` that was passed, if it fits the data and the config asks for no other loss."""
    if objective_factory is not None or config.neck or config.embedding_dim or config.label_smoothing:
        raise InputError(
            "the given MarginModel has an objective: omit objective_factory, neck, embedding_dim and label_smoothing"
        )
    head = model.objective.head
    if head is not None and head.num_classes != num_classes:
        raise InputError(f"the given MarginModel has {head.num_classes} classes, the data have {num_classes}")
    return model


@dataclass(frozen=True, eq=False)
class GivenModule:
    """A network that was given as a module, and inputs to try it on."""

    model: nn.Module
    example: Tensor
    """Some inputs [N, …] as the network will see them."""
    at: str | None = "auto"
    """Path of the classifier that is taken off; "auto" looks for one, None takes the outputs as embeddings."""
    warn: bool = True
    """Whether to say what "auto" has decided."""

    def build_backbone(self, loss: str, num_classes: int) -> tuple[nn.Module, int]:
        """The module without its classifier, which is taken off in place, and the length of its embeddings."""
        if not isinstance(self.model, nn.Module):
            raise InputError(f"model: a {type(self.model).__name__} is neither an nn.Module nor the name of a model")
        parse(loss)  # before anything is changed
        is_auto = self.at == "auto"
        classifier = find_known_classifier(self.model, num_classes) if is_auto else None
        if self.at is not None and not is_auto:
            classifier = find_classifier(self.model, self.at)
        if classifier is not None:
            described = classifier.describe(self.model)
            classifier.remove(self.model)
            if is_auto and self.warn:
                warnings.warn(
                    f"model: its classifier {described} is replaced by the loss's own; at=None keeps it",
                    stacklevel=2,
                )
        width = infer_embedding_dim(self.model, self.example)
        if classifier is None and is_auto and self.warn and width != num_classes:
            _warn_about_kept_layer(self.model, width)
        if classifier is None and width == num_classes and is_auto and self.warn:
            warnings.warn(
                f"model: its {width} outputs are taken as embeddings, though there are {num_classes} classes; "
                "if its last layer is a classifier, pass its name as at=, else at=None",
                stacklevel=2,
            )
        return self.model, width


def _warn_about_kept_layer(model: nn.Module, width: int) -> None:
    """Warn if the embeddings are outputs of a layer named like a classifier, possibly of another data set."""
    try:
        classifier = find_classifier(model)
    except InputError:
        return
    if classifier.num_outputs == width:
        path = classifier.paths[0]
        warnings.warn(
            f"model: the {width} outputs of its layer {path} are taken as embeddings; if it is a classifier, "
            f"pass at={path!r} to replace it, else at=None",
            stacklevel=3,
        )


@torch.no_grad()
def infer_embedding_dim(model: nn.Module, example: Tensor) -> int:
    """Length of the embeddings of some inputs, from one pass in eval mode that leaves the model as it was."""
    like = next((p for p in model.parameters() if not isinstance(p, nn.UninitializedParameter)), torch.empty(0))
    modes = {module: module.training for module in model.modules()}
    rng = torch.get_rng_state()
    model.eval()
    try:
        x = backbone_embeddings(model, to_model_input(example, like))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        said = " ".join(str(error).split())[:200]
        raise InputError(f"model: it does not take inputs of {list(example.shape)} ({said})") from None
    finally:
        for module, mode in modes.items():
            module.training = mode
        torch.set_rng_state(rng)
    if not x.is_floating_point() or len(x) != len(example):
        raise InputError(
            f"model: it returns {list(x.shape)} of {x.dtype}, not embeddings [N, D] of {len(example)} inputs"
        )
    return int(x.shape[1])


def _build_named_backbone(config: TrainConfig, input_spec: dict[str, Any], allow_pretrained: bool) -> nn.Module:
    """The backbone that the run names, for its images."""
    from ..models.build import build_backbone, strip_pretrained

    if config.model.startswith(MODULE_PREFIX):
        raise InputError(
            f"the run's model is a module given in Python ({config.model.removeprefix(MODULE_PREFIX)}): "
            "pass it, as in widemargin.load(folder, model=my_module)"
        )
    shape = input_spec.get("shape") or [input_spec["channels"], input_spec["size"], input_spec["size"]]
    if len(shape) != 3:
        raise InputError(f"{config.model} takes images [C, H, W]; for items of shape {shape} pass a module")
    model, options = (
        (config.model, dict(config.model_options))
        if allow_pretrained
        else strip_pretrained(config.model, config.model_options)
    )
    return build_backbone(model, channels=shape[0], size=(shape[1], shape[2]), **options)


def state_bytes(model: nn.Module) -> int:
    """Bytes of all tensors that a checkpoint of the model holds."""
    return sum(value.nbytes for value in model.state_dict().values() if isinstance(value, Tensor))


def rebuild_model(
    config: TrainConfig,
    input_spec: Any,
    weight_bytes: int,
    where: str,
    objective_factory: ObjectiveFactory | None = None,
    module: GivenModule | None = None,
) -> MarginModel:
    """The network of a saved run, without its weights, which have `weight_bytes` bytes.

    `config` and `input_spec` may come from an untrusted file, so they are checked first.
    """
    try:
        shape = input_spec.get("shape")
        values = math.prod(shape) if shape else input_spec["channels"] * input_spec["size"] ** 2
        names = input_spec["class_names"]
        known = all(isinstance(name, str) for name in names) and isinstance(names, list)
        if not known or type(values) is not int or not 0 < values <= _MAX_IMAGE_VALUES:
            raise ValueError
    except (KeyError, TypeError, ValueError, OverflowError):
        raise InputError(f"{where}: does not describe the input of the network; use another checkpoint") from None
    with limit_parameter_bytes(weight_bytes, where):
        return build_margin_model(
            config, input_spec, allow_pretrained=False, objective_factory=objective_factory, module=module
        )


@contextmanager
def limit_parameter_bytes(weight_bytes: int, where: str) -> Iterator[None]:
    """Refuse a network several times as large as its saved weights, before memory is allocated.

    The description of a network may come from an untrusted file and ask for more memory than there is.
    """
    remaining_bytes = [2 * weight_bytes + (64 << 20)]

    def count(_module: nn.Module, _name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            remaining_bytes[0] -= parameter.numel() * parameter.element_size()
            if remaining_bytes[0] < 0:
                raise InputError(f"{where}: describes a network far larger than its weights; not built")

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    except (RuntimeError, TypeError, OverflowError) as error:
        if not re.search("alloc|too large|overflow", str(error), re.IGNORECASE):
            raise
        raise InputError(f"{where}: describes a network far larger than its weights; not built") from None
    finally:
        handle.remove()


def _build_objective(
    config: TrainConfig, embedding_dim: int, input_spec: dict[str, Any], steps_per_epoch: int
) -> Objective:
    """The objective of the run's loss; only a head takes label smoothing, class weights and class names.

    All ranks share one state. Runs of version 0.1 say nothing of class counts.
    """
    class_names, class_counts = tuple(input_spec["class_names"]), input_spec.get("class_counts")
    spec = parse(config.loss)
    if input_spec.get("multilabel"):
        check_multilabel_loss(spec)
    elif class_counts is not None:
        spec = with_class_counts(spec, class_counts)
    losses = [loss for _, loss in spec.parts] if isinstance(spec, Sum) else [spec]
    if not input_spec.get("multilabel") and len(class_names) > 1:
        _check_single_label_losses(losses)
    options: dict[str, Any] = {"group": dist.group.WORLD if distributed.has_multiple_ranks() else None}
    options |= _backend_options(config)
    if config.label_smoothing or any(isinstance(loss, Margin) for loss in losses):
        options |= {"label_smoothing": config.label_smoothing, "class_names": class_names}
    if config.class_weight != "none":
        options["class_weight"] = _class_weights(config.class_weight, class_counts)
        options["class_weight_start"] = round(config.class_weight_start * config.epochs * steps_per_epoch)
    elif config.class_weight_start:
        raise InputError(
            f"{spell_option('class_weight_start')} is the start of class weights; give "
            f"{spell_option('class_weight')} too"
        )
    return Objective(spec, embedding_dim, len(class_names), **options)


def _backend_options(config: TrainConfig) -> dict[str, Any]:
    """Backend and sample rate of the head; several processes split the classes of which each samples a part."""
    backend = config.backend
    if backend == "sampled" and distributed.has_multiple_ranks():
        backend = "sharded"
    options: dict[str, Any] = {} if backend == "auto" else {"backend": backend}
    return options if config.sample_rate == 1.0 else {**options, "sample_rate": config.sample_rate}


def _check_single_label_losses(losses: Sequence[Loss]) -> None:
    """Refuse a loss that only takes several labels per sample, or numbers."""
    for loss in losses:
        if isinstance(loss, Criterion) and loss.target_type == "values":
            raise InputError(
                f"{loss.name} compares numbers with numbers, but the items have classes; use cross_entropy or a margin"
            )
        if isinstance(loss, Criterion) and loss.target_type == "answers" and not loss.is_multiclass:
            raise InputError(
                f"{loss.name} is a binary loss per label, but each item has exactly one label; use cross_entropy, "
                "focal or a margin, or give every item a row of 0 and 1"
            )


def _class_weights(kind: str, class_counts: list[int] | None) -> list[float]:
    """Class weights, 1 on average over the training images, so that they leave the size of a step as it is."""
    counts = check_class_counts(class_counts)
    weights = class_weights_from_counts(counts) if kind == "effective" else [1.0 / n for n in counts]
    total = sum(n * weight for n, weight in zip(counts, weights, strict=True))
    return [weight * sum(counts) / total for weight in weights]


class TrainStep(nn.Module):
    """Maps images and labels to losses and embeddings in one forward, as DDP and torch.compile need."""

    def __init__(self, model: MarginModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, images: Tensor, y: Tensor, mix: tuple[Tensor, Tensor | float] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Losses [N] and embeddings [N, D], the latter without a gradient."""
        x = self.model.embed(images)
        return self.model.objective(x, y, mix=mix), x.detach()


class ModelEMA(AveragedModel):
    """Exponential average of a model's floating-point state: weights and running statistics, from the first step on.

    Whole numbers, the state of margins and tensors that begin non-finite (masks) are not averaged; the model keeps
    its own.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        try:
            super().__init__(model, multi_avg_fn=average, use_buffers=True)
        except (RuntimeError, TypeError) as error:
            why = " ".join(str(error).split())
            raise InputError(
                f"{spell_option('ema', decay)} averages a copy of the model, which cannot be copied ({why})"
            ) from None
        self.n_averaged.fill_(1)  # with 0 the first step would replace the initial weights
        self.names = [name for name, value in _float_state(model).items() if value.isfinite().all()]

    @property
    def values(self) -> dict[str, Tensor]:
        """The averages by the names that the model has for them."""
        state = _float_state(self.module)
        return {name: state[name] for name in self.names}

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor], prefix: str) -> None:
        """Copy the average of a checkpoint into these tensors, which keep their memory layout."""
        for name, value in self.values.items():
            value.copy_(tensors[prefix + name])

    @torch.no_grad()
    def swap(self, model: nn.Module) -> None:
        """Exchange the average and the model's own state; a second call undoes it."""
        state = _float_state(model)
        for name, value in self.values.items():
            kept = state[name].clone()
            state[name].copy_(value)
            value.copy_(kept)


def _float_state(model: nn.Module) -> dict[str, Tensor]:
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        name: value.detach()
        for name, value in state.items()
        if value.is_floating_point() and "margin_state." not in name
    }
