"""Finding and removing the classifier of a model, and reading its embeddings without it.

`attach` and `wm.train` both use this. It knows the conventions of timm, torchvision and transformers and imports none
of them. An embedding is what enters the classifier's last linear layer, or 1 × 1 convolution:

- timm: the last layer of `get_classifier()`. Models with several classifiers (distilled ones, CrossViT, VOLO) take them
  off themselves, `reset_classifier(0)`, and return what timm returns with `num_classes=0`.
- torchvision and others: the last layer under one of the usual names.
- transformers: the same for `…ForSequenceClassification`, `…ForImageClassification`, `…ForAudioClassification`; the
  embedding is `logits` of the output object. A bare model (`AutoModel`) has no classifier: `pooler_output` if there is
  one, else the mean of `last_hidden_state` over the positions that `attention_mask` keeps.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..io.errors import InputError, format_value

# Names under which models keep their classifier, in the order in which they are looked for.
_CLASSIFIER_NAMES = ("fc", "classifier", "head", "heads", "last_linear", "score", "classification_head", "logits_proj")
# Two classifiers of one distilled model of transformers, whose scores it averages.
_DISTILLED_PAIRS = (("cls_classifier", "distillation_classifier"), ("classifier", "classifier_distill"))
# Classifiers on inner layers, of GoogLeNet and Inception v3.
_AUXILIARY_NAMES = ("AuxLogits", "aux1", "aux2")
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Classifier:
    """The layers of a model that turn embeddings into class scores."""

    paths: tuple[str, ...]
    """Its layers; none where the model has no classifier and returns embeddings."""
    embedding_dim: int | None
    """Length of the embeddings without it; None if that cannot be told without data."""
    num_outputs: int | None = None
    """How many class scores it computes; None if that is not known or there are none."""
    resets: bool = False
    """True if the model takes it off itself, by `reset_classifier(0)`."""

    def remove(self, model: nn.Module) -> None:
        """Take it off in place, so that the model returns embeddings."""
        if self.resets:
            cast(Any, model).reset_classifier(0)
        for path in () if self.resets else self.paths:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent) if parent else model, name, nn.Identity())
        if isinstance(getattr(model, "num_classes", None), int):  # what timm's own reset_classifier(0) leaves behind
            setattr(model, "num_classes", 0)  # noqa: B010  (not a submodule, whatever type checkers think)
        if getattr(model, "aux_logits", None) is True:
            setattr(model, "aux_logits", False)  # noqa: B010
            for name in _AUXILIARY_NAMES:
                if isinstance(getattr(model, name, None), nn.Module):
                    setattr(model, name, None)

    def describe(self, model: nn.Module) -> str:
        """Its layers in words."""
        return ", ".join(f"{path} ({type(model.get_submodule(path)).__name__})" for path in self.paths)


def find_classifier(model: nn.Module, at: str | None = None) -> Classifier:
    """The classifier of a model: the layer at the path `at`, or the one that the conventions of its library name."""
    modules = dict(model.named_modules())
    if at is not None:
        if not isinstance(at, str) or at not in modules or not at:
            raise InputError(f"the model has no module {format_value(at)}{_describe_layers(modules)}")
        return Classifier((at,), *_layer_sizes(modules[at]))
    known = _find_by_get_classifier(model, modules)
    if known is None and _is_bare_transformer(model):
        known = Classifier((), _transformer_width(model))
    known = known or _find_by_name(modules)
    if known is not None:
        return known
    advice = (
        _describe_layers(modules) + "; if it returns embeddings, use wm.MarginModel(model, wm.Objective(loss, D, C))"
    )
    if _is_transformer(model):
        advice = "…, or load it as AutoModel or as a model for sequence, image or audio classification"
    raise InputError(f"no classifier found in {type(model).__name__}; name it with at={advice}")


def find_known_classifier(model: nn.Module, num_classes: int) -> Classifier | None:
    """Return the classifier if it can be identified with certainty, else None: the outputs are then embeddings.

    That is the layer under one of the usual names in a model of timm, torchvision or transformers, and elsewhere if it
    has as many outputs as there are classes: another model's `fc` may be what makes its embeddings.

    >>> net = nn.Sequential()
    >>> net.body, net.fc = nn.Linear(4, 8), nn.Linear(8, 3)
    >>> find_known_classifier(net, num_classes=3).paths, find_known_classifier(net, num_classes=5)
    (('fc',), None)
    """
    try:
        classifier = find_classifier(model)
    except InputError:
        return None
    known = type(model).__module__.split(".")[0] in ("timm", "torchvision", "transformers")
    is_sure = classifier.num_outputs == num_classes or (known and classifier.num_outputs)
    return classifier if is_sure else None


def _find_by_get_classifier(model: nn.Module, modules: dict[str, nn.Module]) -> Classifier | None:
    """The classifier that timm's `get_classifier` returns; None for models without it."""
    get_classifier = getattr(model, "get_classifier", None)
    if not callable(get_classifier):
        return None
    found = get_classifier()
    parts = list(found) if isinstance(found, tuple | list | nn.ModuleList) else [found]
    paths = tuple(path for path, module in modules.items() if any(module is part for part in parts))
    if not paths:
        return None
    features = getattr(model, "head_hidden_size", None) or getattr(model, "num_features", None)
    width = features if isinstance(features, int) else None
    if all(isinstance(part, nn.Identity) for part in parts):  # made with num_classes=0
        return Classifier((), width)
    num_classes = getattr(model, "num_classes", None)
    layers = [path for path in _paths_within(modules, paths) if _layer_sizes(modules[path])[1] == num_classes]
    named = (getattr(model, "pretrained_cfg", None) or {}).get("classifier")  # VOLO names a second one only here
    if len(layers) == 1 and not (isinstance(named, tuple | list) and len(named) > 1):
        return Classifier((layers[0],), *_layer_sizes(modules[layers[0]]))
    if callable(getattr(model, "reset_classifier", None)):
        return Classifier(paths, width, num_classes, resets=True)
    return None


def _paths_within(modules: dict[str, nn.Module], tops: Iterable[str]) -> list[str]:
    """Paths of the modules at or below some others."""
    return [path for path in modules if any(path == top or path.startswith(f"{top}.") for top in tops)]


def _find_by_name(modules: dict[str, nn.Module]) -> Classifier | None:
    """The last linear layer or 1 × 1 convolution under one of the usual names."""

    def last_layer(name: str) -> str | None:
        inside = _paths_within(modules, [name])
        for kinds in ((nn.Linear,), _CONVOLUTIONS):
            layers = [path for path in inside if isinstance(modules[path], kinds) and _layer_sizes(modules[path])[0]]
            if layers:
                return layers[-1]
        return None

    for pair in _DISTILLED_PAIRS:
        paths = [last_layer(name) for name in pair]
        if None not in paths:
            return Classifier(cast("tuple[str, ...]", tuple(paths)), *_layer_sizes(modules[cast(str, paths[0])]))
    for name in _CLASSIFIER_NAMES:
        path = last_layer(name)
        if path is not None:
            return Classifier((path,), *_layer_sizes(modules[path]))
    return None


def _layer_sizes(layer: nn.Module) -> tuple[int | None, int | None]:
    """Numbers of inputs and outputs of a linear layer or 1 × 1 convolution; None for other modules."""
    if isinstance(layer, nn.Linear):
        return layer.in_features or None, layer.out_features  # a lazy layer says 0
    if isinstance(layer, _CONVOLUTIONS) and set(layer.kernel_size) == {1} and layer.groups == 1:
        return layer.in_channels or None, layer.out_channels
    return None, None


def _describe_layers(modules: dict[str, nn.Module]) -> str:
    paths = [path for path, module in modules.items() if _layer_sizes(module)[0]]
    return "; linear layers are at " + ", ".join(paths[-6:]) if paths else "; it has no linear layer"


def width_error(classifier: Classifier, model: nn.Module) -> InputError:
    """Return the error for an unknown embedding dimension, with its remedy."""
    path = classifier.paths[0] if classifier.paths else ""
    if not path:
        return InputError(f"the embedding dimension of {type(model).__name__} cannot be inferred: pass embedding_dim=")
    layer = model.get_submodule(path)
    inside = [f"{path}.{name}" for name, module in layer.named_modules() if name and _layer_sizes(module)[0]]
    named = f"name the layer within it, at={inside[-1]!r}, or " if inside else ""
    return InputError(
        f"{path} is a {type(layer).__name__}, not a linear layer: {named}give its input size as embedding_dim="
    )


# ---------------------------------------------------------------- transformers


def _is_transformer(model: nn.Module) -> bool:
    return hasattr(getattr(model, "config", None), "model_type") and hasattr(model, "base_model")


def _is_bare_transformer(model: nn.Module) -> bool:
    """True if this is a model of transformers without anything on it, as `AutoModel` makes."""
    return _is_transformer(model) and model.base_model is model


def _transformer_width(model: nn.Module) -> int | None:
    """Length of the embeddings of a bare model of transformers, from its pooler or its config."""
    config = cast(Any, model).config
    if getattr(config, "is_encoder_decoder", False) and isinstance(getattr(model, "decoder", None), nn.Module):
        raise InputError(
            f"{type(model).__name__} has an encoder and a decoder: attach to model.get_encoder(), or to its model for "
            "sequence classification"
        )
    pooler = getattr(model, "pooler", None)
    layers = [m for m in pooler.modules() if isinstance(m, nn.Linear)] if isinstance(pooler, nn.Module) else []
    if layers:
        return layers[-1].out_features
    sizes = [getattr(config, "hidden_size", None), *(getattr(config, "hidden_sizes", None) or [])[-1:]]
    return next((size for size in sizes if isinstance(size, int)), None)


# ---------------------------------------------------------------- embeddings


def backbone_embeddings(backbone: nn.Module, *inputs: Any, **named_inputs: Any) -> Tensor:
    """Embeddings [N, D] that a backbone returns for a batch; all arguments go to it.

    An output object of transformers is read as described at the top of this file. timm's distilled models return two
    tensors in train mode after `set_distilled_training(True)`; their mean is taken, which they return otherwise.
    """
    outputs = backbone(*inputs, **named_inputs)
    x = outputs if isinstance(outputs, Tensor) else _select_embeddings(backbone, outputs, inputs, named_inputs)
    if x.ndim < 2:
        raise InputError(f"the model returns {list(x.shape)}, not embeddings [N, D]; pass a batch of inputs")
    return x.flatten(1)


def _select_embeddings(
    backbone: nn.Module, outputs: Any, inputs: Sequence[Any], named_inputs: dict[str, Any]
) -> Tensor:
    """The embeddings among the outputs of a model that returns more than a tensor."""
    logits = getattr(outputs, "logits", None)
    if isinstance(logits, Tensor):
        if logits.ndim == 3:
            raise InputError(
                f"the model returns {list(logits.shape)}, one embedding per token; use its model for sequence "
                "classification, or AutoModel"
            )
        return logits
    for name in ("pooler_output", "last_hidden_state"):
        hidden = getattr(outputs, name, None)
        if isinstance(hidden, Tensor):
            return hidden if name == "pooler_output" else _mean_of_states(backbone, hidden, inputs, named_inputs)
    if _returns_distilled_pair(backbone, outputs):
        return torch.stack(list(outputs)).mean(0)
    kind = type(outputs).__name__
    if isinstance(outputs, tuple | list) and _is_transformer(backbone):
        raise InputError(f"the model returns a {kind}, not embeddings; build it with return_dict=True in its config")
    fields = f" with {', '.join(map(str, outputs))[:200]}" if isinstance(outputs, dict) else ""
    raise InputError(
        f"the model returns a {kind}{fields}, not embeddings; wrap it in a module whose forward returns a tensor [N, D]"
    )


def _returns_distilled_pair(backbone: nn.Module, outputs: Any) -> bool:
    parts = (backbone, getattr(backbone, "head", None))
    is_pair = isinstance(outputs, tuple) and len(outputs) == 2 and all(isinstance(x, Tensor) for x in outputs)
    return is_pair and any(getattr(part, "distilled_training", False) for part in parts)


def _mean_of_states(backbone: nn.Module, hidden: Tensor, inputs: Sequence[Any], named_inputs: dict[str, Any]) -> Tensor:
    """Mean of hidden states [N, T, D] over the positions that the attention mask keeps, or of a map [N, D, H, W]."""
    if hidden.ndim != 3:
        return hidden.flatten(2).mean(2) if hidden.ndim > 3 else hidden
    mask = named_inputs.get("attention_mask")
    if mask is None and len(inputs) > 1:
        mask = inspect.signature(backbone.forward).bind_partial(*inputs, **named_inputs).arguments.get("attention_mask")
    if not isinstance(mask, Tensor):
        return hidden.mean(1)
    if mask.shape != hidden.shape[:2]:  # audio: the mask is one of samples, the states are fewer
        shorten = getattr(backbone, "_get_feature_vector_attention_mask", None)
        if not callable(shorten):
            raise InputError(
                f"attention_mask has shape {list(mask.shape)}, the hidden states {list(hidden.shape)}: leave the "
                "mask out, or use the model for classification"
            )
        mask = shorten(hidden.shape[1], mask)
    weight = mask.to(hidden.dtype).unsqueeze(2)
    return (hidden * weight).sum(1) / weight.sum(1).clamp(min=1.0)
