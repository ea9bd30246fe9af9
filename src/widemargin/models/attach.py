"""attach: take the classifier off a model and put a margin head there.

Works on models of timm, torchvision and transformers and on most others, without importing any of these libraries
(`classifier.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..head.classes import decay_groups
from ..head.head import Head
from ..head.objective import Objective
from ..io.errors import InputError
from ..losses.base import Loss
from ..losses.grammar import Sum
from .classifier import backbone_embeddings, find_classifier, width_error


class MarginModel(nn.Module):
    """A backbone that gives embeddings, and the objective on them, as one module.

    One `parameters()` for the optimizer, so the class weights cannot be forgotten.
    `model(images, labels=y)` → loss [N]; `model(images)` → logits [N, C]; `model.embed(images)` → [N, D].
    Where the backbone takes one input, labels may be the second argument: `model(images, y)`.
    """

    def __init__(self, backbone: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.backbone = backbone
        self.objective = objective
        self._inputs = BackboneInputs.of(backbone)

    @property
    def head(self) -> Head:
        """The margin's head."""
        head = self.objective.head
        if head is None:
            raise InputError(f"{self.objective.spec!r} has no margin, therefore no head")
        return head

    def embed(self, *inputs: Any, **named_inputs: Any) -> Tensor:
        """Embeddings [N, D]; all arguments go to the backbone."""
        x = backbone_embeddings(self.backbone, *inputs, **named_inputs)
        head = self.objective.head
        if head is not None and x.shape[1] != head.embedding_dim:
            raise InputError(
                f"the model returns embeddings of dimension {x.shape[1]}, its head takes {head.embedding_dim}: "
                f"attach it with embedding_dim={x.shape[1]}"
            )
        return x

    def forward(
        self,
        *inputs: Any,
        labels: Tensor | None = None,
        sample_weight: Tensor | None = None,
        mix: tuple[Tensor, Tensor | float] | None = None,
        **named_inputs: Any,
    ) -> Tensor:
        """Loss [N] with labels, logits [N, C] without; `sample_weight` and `mix` as in `Head`.

        Everything else goes to the backbone.
        """
        if labels is None:
            inputs, labels = self._inputs.split_labels(inputs, named_inputs)
        if labels is None and not (sample_weight is None and mix is None):
            name = "mix" if sample_weight is None else "sample_weight"
            raise InputError(f"{name} is given without labels; write model(inputs, labels=y, {name}=…)")
        x = self.embed(*inputs, **named_inputs)
        return (
            self.objective.logits(x)
            if labels is None
            else self.objective(x, labels, sample_weight=sample_weight, mix=mix)
        )

    def extend(self, n: int, **options: Any) -> None:
        """Add `n` classes; options as in `Head.extend`. Give the optimizer the new parameters."""
        self.objective.extend(n, **options)

    def parameter_groups(self, weight_decay: float | None = None) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer: decay on the backbone's matrices and on class weights with a length."""
        return decay_groups(
            self.parameters(), [*self.decayed_backbone_parameters(), *self.objective.decayed_parameters()], weight_decay
        )

    def decayed_backbone_parameters(self) -> list[nn.Parameter]:
        """The backbone's weights of two and more dimensions, without those that it excludes from weight decay.

        timm's models name these in `no_weight_decay()`: position embeddings and class tokens are points, not maps.
        """
        asked = getattr(self.backbone, "no_weight_decay", None)
        no_decay_names = set(asked()) if callable(asked) else set()
        return [p for name, p in self.backbone.named_parameters() if p.ndim > 1 and name not in no_decay_names]


@dataclass(frozen=True)
class BackboneInputs:
    """Number of positional inputs of a backbone, to distinguish them from labels."""

    required: int
    possible: int | None
    """None: any number."""
    second_name: str = ""
    """Name of the second input, if there is one."""
    takes_y: bool = False
    """True if an input is called `y`, or any name is taken."""

    @classmethod
    def of(cls, backbone: nn.Module) -> BackboneInputs:
        """From the signature of its `forward`; one input where it has none that can be read."""
        try:
            parameters = list(inspect.signature(backbone.forward).parameters.values())
        except (TypeError, ValueError):
            return cls(1, 1)
        kinds = [parameter.kind for parameter in parameters]
        by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        required = sum(p.default is p.empty for p in by_position)
        possible = None if inspect.Parameter.VAR_POSITIONAL in kinds else len(by_position)
        takes_y = inspect.Parameter.VAR_KEYWORD in kinds or any(p.name == "y" for p in parameters)
        return cls(required, possible, by_position[1].name if len(by_position) > 1 else "", takes_y)

    def split_labels(
        self, inputs: tuple[Any, ...], named_inputs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], Tensor | None]:
        """Inputs and labels of a call that names no labels; refused where the last input might be either."""
        if "y" in named_inputs and not self.takes_y:
            raise InputError("the model takes no input named y; pass labels as labels=…")
        if len(inputs) == 2 and self.possible == 1:
            return inputs[:1], inputs[1]
        if len(inputs) == 2 and self.required < 2 and _might_be_labels(*inputs):
            second = f"{self.second_name}=…" if self.second_name else "by its name"
            raise InputError(
                f"the second argument is ambiguous: pass labels as labels=…, or an input of the model as {second}"
            )
        return inputs, None


def _might_be_labels(first: Any, second: Any) -> bool:
    """True if the second argument is one whole number for each sample of the first."""
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)) or first.ndim == 0:
        return False
    return second.shape == first.shape[:1] and not (second.is_floating_point() or second.is_complex())


def attach(
    model: nn.Module,
    loss: str | Loss | Sum,
    num_classes: int,
    *,
    at: str | None = None,
    embedding_dim: int | None = None,
    **head_options: Any,
) -> MarginModel:
    """Replace the classifier of a model of timm, torchvision or transformers by a head; the model is changed in place.

    The classifier is found by the conventions of these libraries (`get_classifier`, or a layer named `fc`,
    `classifier`, `head`, `score`, …); for other models name its layer: `at="module.path"`. The embedding is what enters
    the layer. A bare model of transformers has no classifier: its embedding is `pooler_output`, or the mean of
    `last_hidden_state` over `attention_mask`. The head takes the layer's input size and device; its weights are fp32
    whatever the model's dtype is. `embedding_dim` gives the size where the layer does not.

    >>> body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 10))
    >>> model = attach(body, "arcface(s=16)", num_classes=3, at="2")
    >>> model(torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])).shape, model(torch.randn(5, 4)).shape
    (torch.Size([5]), torch.Size([5, 3]))
    """
    if not isinstance(model, nn.Module):
        raise InputError(
            f"attach takes a model, got {type(model).__name__}; create it first, for example with timm.create_model"
        )
    classifier = find_classifier(model, at)
    width = embedding_dim if embedding_dim is not None else classifier.embedding_dim
    if width is None:
        raise width_error(classifier, model)
    layers = [model.get_submodule(path) for path in classifier.paths]
    like = next((p for layer in [*layers, model] for p in layer.parameters()), torch.empty(0))
    objective = Objective(loss, width, num_classes, **head_options).to(like.device)
    classifier.remove(model)
    return MarginModel(model, objective)


@torch.no_grad()
def embed(model: MarginModel, batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Embeddings [N, D] and labels [N] on the CPU."""
    like = next(model.parameters())
    was_training = model.training
    model.eval()
    found = [(model.embed(to_model_input(x, like)).float().cpu(), y) for x, y in batches]
    model.train(was_training)
    if not found:
        raise InputError("there are no images to embed")
    return check_finite_outputs(torch.cat([x for x, _ in found])), torch.cat([y for _, y in found])


def to_model_input(x: Tensor, like: Tensor) -> Tensor:
    """Inputs on the device of a model's parameter; floats in its dtype, whole numbers (tokens) as they are."""
    return x.to(like.device, like.dtype if x.is_floating_point() else None)


def check_finite_outputs(values: Tensor) -> Tensor:
    """Return the embeddings or logits; raise an InputError if some are not finite, as after an overflow."""
    if not bool(torch.isfinite(values).all()):
        raise InputError("the network returns NaN or infinity: its weights overflow; use an earlier checkpoint")
    return values
