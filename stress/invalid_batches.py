"""Every public function with invalid batches, and with unusual valid ones: a table of the expected results.

An invalid batch is REFUSED (one line) or WORKS; another memory layout gives EQUAL results, bit for bit; huge or tiny
numbers give FINITE ones. `BATCH_CALLS` are the calls, `BATCH_MUTATIONS` the changes of their batch with the expected
result; `BatchCall.expected_overrides` are the exceptions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from widemargin import theory
from widemargin.head.functional import margin_softmax
from widemargin.head.head import Head
from widemargin.head.objective import Objective
from widemargin.losses.grammar import parse
from widemargin.metrics.angles import AngleMeter, angles
from widemargin.metrics.fewshot import few_shot_metrics, knn_accuracy
from widemargin.metrics.openset import open_set_metrics
from widemargin.metrics.retrieval import retrieval_metrics
from widemargin.metrics.verification import verification_metrics
from widemargin.models.attach import attach

REFUSED, WORKS, EQUAL, FINITE = "refused", "works", "equal", "finite"
EMBEDDING_DIM, NUM_CLASSES, NUM_SAMPLES = 4, 3, 12


@dataclass(frozen=True)
class BatchCall:
    """`call(x, y)`; `expected_overrides` are mutations with another result here."""

    name: str
    call: Callable[[Any, Any], Any]
    expected_overrides: Mapping[str, str] = field(default_factory=dict)


def make_valid_batch() -> tuple[Tensor, Tensor]:
    """Embeddings [12, 4] and labels [12] of three classes."""
    draw = torch.Generator().manual_seed(0)
    return torch.randn(NUM_SAMPLES, EMBEDDING_DIM, generator=draw), torch.arange(NUM_SAMPLES) % NUM_CLASSES


def _head_call(
    margin: str, backend: str = "dense", method_name: str = "__call__", **options: Any
) -> Callable[[Any, Any], Any]:
    def call(x: Any, y: Any) -> Any:
        torch.manual_seed(1)
        head = Head(EMBEDDING_DIM, NUM_CLASSES, margin, backend=backend, **options)
        found = getattr(head, method_name)(x, y)
        return head.weight.detach() if found is None else found

    return call


def _objective_call(spec: str) -> Callable[[Any, Any], Any]:
    def call(x: Any, y: Any) -> Any:
        torch.manual_seed(1)
        return Objective(spec, EMBEDDING_DIM, NUM_CLASSES)(x, y)

    return call


def _loss_call(spec: str) -> Callable[[Any, Any], Any]:
    def call(x: Any, y: Any) -> Any:
        torch.manual_seed(1)
        return parse(spec)(x, y)

    return call


def _regression_call(spec: str) -> Callable[[Any, Any], Any]:
    """A loss on predictions against targets of their shape."""

    def call(x: Any, y: Any) -> Any:
        target = y
        if isinstance(y, Tensor) and isinstance(x, Tensor) and y.ndim == 1 and x.ndim and len(y) == len(x):
            target = (y.unsqueeze(1) % 2).expand(len(y), EMBEDDING_DIM).to(torch.float32)
        return parse(spec)(x, target)

    return call


def _call_margin_softmax(x: Any, y: Any) -> Any:
    cos = x
    if isinstance(x, Tensor) and x.is_floating_point() and x.layout == torch.strided and not x.is_meta:
        cos = x.clamp(-1, 1)
    return margin_softmax(cos, y, "arcface(s=8, m=0.1)")


def _call_angle_meter(x: Any, y: Any) -> Any:
    meter = AngleMeter(NUM_CLASSES, EMBEDDING_DIM)
    meter.update(x, y)
    return meter.compute(torch.eye(NUM_CLASSES, EMBEDDING_DIM))


def _call_attached_model(x: Any, y: Any) -> Any:
    torch.manual_seed(1)
    network = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(EMBEDDING_DIM, NUM_CLASSES))
    return attach(network, "arcface(s=8)", NUM_CLASSES, at="1")(x, y)


def _call_open_set_metrics(x: Any, y: Any) -> Any:
    draw = torch.Generator().manual_seed(1)
    return open_set_metrics(x, y, torch.randn(6, EMBEDDING_DIM, generator=draw), torch.tensor([0, 0, 1, 1, 0, 1]))


def _call_verification_metrics(x: Any, y: Any) -> Any:
    scores = x[:, 0].numpy() if isinstance(x, Tensor) and x.ndim == 2 and not x.is_meta and not x.is_sparse else x
    same = (y == 0).numpy() if isinstance(y, Tensor) and not y.is_meta else y
    return verification_metrics(scores, same)


_ANY_LABEL_OVERRIDES = {"a label too large": WORKS, "a label below 0": WORKS, "embeddings of another length": WORKS}
_PAIR_LOSS_OVERRIDES = {"embeddings of another length": WORKS, "a label too large": WORKS}
_NAN_OVERRIDES = {"NaN in an embedding": WORKS, "infinity in an embedding": WORKS}
_LOGIT_OVERRIDES = {**_NAN_OVERRIDES, "embeddings of another length": WORKS, "huge embeddings": WORKS}
_PAIR_SCORE_OVERRIDES = {
    "embeddings of whole numbers": WORKS,
    "embeddings of one dimension": WORKS,
    "NaN in an embedding": WORKS,
    "infinity in an embedding": WORKS,
    "embeddings of another length": WORKS,
    "a label too large": WORKS,
    "a label below 0": WORKS,
    "labels of floats": WORKS,
    "labels of booleans": WORKS,
}
_MARGINS = ("softmax", "normface", "arcface", "cosface", "arcgrad", "a_softmax", "adacos", "m_softmax")
_EMPTY_BATCH_OVERRIDES = {"an empty batch": REFUSED, "an embedding of zeros": WORKS}
_REGRESSION_OVERRIDES = {
    "embeddings of three dimensions": REFUSED,
    "embeddings of another length": REFUSED,
    "a label too large": WORKS,
    "a label below 0": WORKS,
    "labels of floats": WORKS,
    "labels of booleans": WORKS,
    "NaN in an embedding": WORKS,
    "infinity in an embedding": WORKS,
    "huge embeddings": WORKS,
}
BATCH_CALLS: tuple[BatchCall, ...] = (
    *(BatchCall(f"Head({name})", _head_call(name)) for name in _MARGINS),
    *(BatchCall(f"Head({name}, backend=stream)", _head_call(name, "stream")) for name in _MARGINS),
    BatchCall("Head(arcface, backend=sampled)", _head_call("arcface", "sampled", sample_rate=0.9)),
    BatchCall("Head(ignore_index=-1)", _head_call("arcface", ignore_index=-1), {"a label below 0": WORKS}),
    BatchCall("Head.logits", _head_call("arcface", method_name="logits"), {"no labels": WORKS}),
    BatchCall("Head.target_angles", _head_call("arcface", method_name="target_angles")),
    BatchCall("Head.init_from_means", _head_call("arcface", method_name="init_from_means")),
    BatchCall("margin_softmax", _call_margin_softmax, {**_NAN_OVERRIDES, "embeddings of another length": WORKS}),
    BatchCall("Objective(arcface + 0.1*center)", _objective_call("arcface + 0.1*center"), {"huge embeddings": WORKS}),
    BatchCall("Objective(arcface + triplet)", _objective_call("arcface + triplet")),
    BatchCall(
        "Objective(cross_entropy)", _objective_call("cross_entropy"), {**_NAN_OVERRIDES, "huge embeddings": WORKS}
    ),
    *(
        BatchCall(f"triplet(mining={mining})", _loss_call(f"triplet(mining={mining})"), _PAIR_LOSS_OVERRIDES)
        for mining in ("all", "hard", "semihard", "distance", "pool")
    ),
    BatchCall("contrastive", _loss_call("contrastive"), _PAIR_LOSS_OVERRIDES),
    BatchCall("contrastive(hadsell)", _loss_call("contrastive(form=hadsell)"), _PAIR_LOSS_OVERRIDES),
    BatchCall("cross_entropy", _loss_call("cross_entropy"), _LOGIT_OVERRIDES),
    BatchCall("focal", _loss_call("focal"), _LOGIT_OVERRIDES),
    *(BatchCall(name, _regression_call(name), _REGRESSION_OVERRIDES) for name in ("l1", "l2", "huber", "bce")),
    BatchCall("angles", lambda x, y: angles(x, y, torch.eye(NUM_CLASSES, EMBEDDING_DIM)), {"an empty batch": WORKS}),
    BatchCall("AngleMeter", _call_angle_meter),
    BatchCall("theory.gaps", lambda x, y: theory.gaps(x, y, torch.eye(NUM_CLASSES, EMBEDDING_DIM))),
    BatchCall(
        "retrieval_metrics",
        lambda x, y: retrieval_metrics(x, y, ks=(1,)),
        {**_ANY_LABEL_OVERRIDES, **_EMPTY_BATCH_OVERRIDES},
    ),
    BatchCall("knn_accuracy", knn_accuracy, {**_ANY_LABEL_OVERRIDES, **_EMPTY_BATCH_OVERRIDES}),
    BatchCall(
        "few_shot_metrics",
        lambda x, y: few_shot_metrics(x, y, ways=2, episodes=3),
        {**_ANY_LABEL_OVERRIDES, **_EMPTY_BATCH_OVERRIDES},
    ),
    BatchCall(
        "open_set_metrics",
        _call_open_set_metrics,
        {**_ANY_LABEL_OVERRIDES, **_EMPTY_BATCH_OVERRIDES, "embeddings of another length": REFUSED},
    ),
    BatchCall("verification_metrics", _call_verification_metrics, {**_PAIR_SCORE_OVERRIDES, **_EMPTY_BATCH_OVERRIDES}),
    BatchCall("attach", _call_attached_model, {"embeddings of three dimensions": WORKS, "no labels": WORKS}),
)


def _make_value_mutation(value: float) -> Callable[[Tensor, Tensor], tuple[Any, Any]]:
    def mutate(x: Tensor, y: Tensor) -> tuple[Any, Any]:
        x = x.clone()
        x[3, 1] = value
        return x, y

    return mutate


def _make_label_mutation(value: int) -> Callable[[Tensor, Tensor], tuple[Any, Any]]:
    def mutate(x: Tensor, y: Tensor) -> tuple[Any, Any]:
        y = y.clone()
        y[2] = value
        return x, y

    return mutate


def _make_strided(x: Tensor, y: Tensor) -> tuple[Any, Any]:
    wide, long = (
        torch.zeros(NUM_SAMPLES, 2 * EMBEDDING_DIM).T.contiguous().T,
        torch.zeros(2 * NUM_SAMPLES, dtype=torch.int64),
    )
    wide[:, ::2], long[::2] = x, y
    return wide[:, ::2], long[::2]


BATCH_MUTATIONS: dict[str, tuple[Callable[[Tensor, Tensor], tuple[Any, Any]], str]] = {
    "embeddings of whole numbers": (lambda x, y: (x.long(), y), REFUSED),
    "complex embeddings": (lambda x, y: (x.to(torch.complex64), y), REFUSED),
    "embeddings as a list": (lambda x, y: (x.tolist(), y), REFUSED),
    "no embeddings": (lambda x, y: (None, y), REFUSED),
    "embeddings of one dimension": (lambda x, y: (x[:, 0], y), REFUSED),
    "embeddings of three dimensions": (lambda x, y: (x.unsqueeze(2), y), REFUSED),
    "embeddings of another length": (lambda x, y: (x[:, :3], y), REFUSED),
    "a single number": (lambda x, y: (x[0, 0], y), REFUSED),
    "sparse embeddings": (lambda x, y: (x.to_sparse(), y), REFUSED),
    "embeddings without values (meta)": (lambda x, y: (x.to("meta"), y), REFUSED),
    "NaN in an embedding": (_make_value_mutation(float("nan")), REFUSED),
    "infinity in an embedding": (_make_value_mutation(float("inf")), REFUSED),
    "labels of floats": (lambda x, y: (x, y.float()), REFUSED),
    "labels of booleans": (lambda x, y: (x, y > 0), REFUSED),
    "labels as a list": (lambda x, y: (x, y.tolist()), REFUSED),
    "no labels": (lambda x, y: (x, None), REFUSED),
    "labels of two dimensions": (lambda x, y: (x, y.unsqueeze(0)), REFUSED),
    "a label too few": (lambda x, y: (x, y[:-1]), REFUSED),
    "a label too large": (_make_label_mutation(99), REFUSED),
    "a label below 0": (_make_label_mutation(-1), REFUSED),
    "labels without values (meta)": (lambda x, y: (x, y.to("meta")), REFUSED),
    "an empty batch": (lambda x, y: (x[:0], y[:0]), WORKS),
    "embeddings in half precision": (lambda x, y: (x.half(), y), WORKS),
    "embeddings in double precision": (lambda x, y: (x.double(), y), WORKS),
    "labels of 8 bits": (lambda x, y: (x, y.to(torch.int8)), EQUAL),
    "not contiguous": (_make_strided, EQUAL),
    "transposed in memory": (lambda x, y: (x.T.contiguous().T, y), EQUAL),
    "an embedding of zeros": (lambda x, y: (torch.where(torch.arange(NUM_SAMPLES)[:, None] == 3, 0.0, x), y), FINITE),
    "huge embeddings": (lambda x, y: (1e30 * x, y), FINITE),
    "tiny embeddings": (lambda x, y: (1e-30 * x, y), FINITE),
}


def batch_call_problem(call: BatchCall, mutation: str) -> str:
    """Return how the call differs from the expected result; empty if it does not."""
    from widemargin.io.errors import InputError

    from .fuzzing import message_problem

    change, usual = BATCH_MUTATIONS[mutation]
    expected = call.expected_overrides.get(mutation, usual)
    try:
        result = call.call(*change(*make_valid_batch()))
    except InputError as error:
        return message_problem(str(error)) if expected == REFUSED else f"refused: {error}"
    except Exception as error:  # an error from deep inside
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    if expected == REFUSED:
        return f"accepted silently: {result!r}"[:200]
    if expected == EQUAL and not is_bit_identical(result, call.call(*make_valid_batch())):
        return "another result than that of the same numbers"
    if expected == FINITE and not all(torch.isfinite(torch.as_tensor(each)).all() for each in flatten_numbers(result)):
        return f"not finite: {result!r}"[:200]
    return ""


def flatten_numbers(result: Any) -> list[Any]:
    """Return every number of a result of any structure."""
    if isinstance(result, dict):
        return [number for each in result.values() for number in flatten_numbers(each)]
    if isinstance(result, tuple | list):
        return [number for each in result for number in flatten_numbers(each)]
    if hasattr(result, "__dataclass_fields__"):
        return flatten_numbers([getattr(result, name) for name in result.__dataclass_fields__ if name != "roc"])
    return [result] if isinstance(result, Tensor | int | float) else []


def is_bit_identical(one: Any, other: Any) -> bool:
    """True if two results are equal bit for bit."""
    pairs = list(zip(flatten_numbers(one), flatten_numbers(other), strict=True))
    return all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in pairs)
