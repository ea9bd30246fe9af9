"""Every public function with batches it cannot take, and with odd ones it must: an explicit table of what happens.

A spoiled batch is REFUSED (one line of ours) or WORKS; one that is laid out otherwise gives EQUAL results, bit for bit;
one of huge or tiny numbers gives FINITE ones. `BATCHES` are the calls, `SPOILS` what is done to their batch with what
must follow; a call may differ from that where it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .. import metrics, theory  # noqa: F401
from ..catalogue import parse
from ..classifier import attach
from ..head import Head
from ..margin import margin_softmax
from ..metrics.angles import AngleMeter, angles
from ..metrics.fewshot import few_shot, knn_accuracy
from ..metrics.openset import open_set
from ..metrics.retrieval import retrieve
from ..metrics.verification import verify
from ..objective import Objective

REFUSED, WORKS, EQUAL, FINITE = "refused", "works", "equal", "finite"
DIM, CLASSES, SAMPLES = 4, 3, 12


@dataclass(frozen=True)
class Call:
    """`call(x, y)`; `unlike` are the spoils that end otherwise here, and how."""

    name: str
    call: Callable[[Any, Any], Any]
    unlike: Mapping[str, str] = field(default_factory=dict)


def good_batch() -> tuple[Tensor, Tensor]:
    """Embeddings [12, 4] and labels [12] of three classes."""
    draw = torch.Generator().manual_seed(0)
    return torch.randn(SAMPLES, DIM, generator=draw), torch.arange(SAMPLES) % CLASSES


def _head(margin: str, road: str = "dense", what: str = "__call__", **options: Any) -> Callable[[Any, Any], Any]:
    def call(x: Any, y: Any) -> Any:
        torch.manual_seed(1)
        head = Head(DIM, CLASSES, margin, road=road, **options)
        found = getattr(head, what)(x, y)
        return head.weight.detach() if found is None else found

    return call


def _objective(spec: str) -> Callable[[Any, Any], Any]:
    def call(x: Any, y: Any) -> Any:
        torch.manual_seed(1)
        return Objective(spec, DIM, CLASSES)(x, y)

    return call


def _term(spec: str) -> Callable[[Any, Any], Any]:
    def call(x: Any, y: Any) -> Any:
        torch.manual_seed(1)
        return parse(spec)(x, y)

    return call


def _values(spec: str) -> Callable[[Any, Any], Any]:
    """A loss on predictions against targets of their shape."""

    def call(x: Any, y: Any) -> Any:
        target = y
        if isinstance(y, Tensor) and isinstance(x, Tensor) and y.ndim == 1 and x.ndim and len(y) == len(x):
            target = (y.unsqueeze(1) % 2).expand(len(y), DIM).to(torch.float32)
        return parse(spec)(x, target)

    return call


def _cosines(x: Any, y: Any) -> Any:
    cos = x
    if isinstance(x, Tensor) and x.is_floating_point() and x.layout == torch.strided and not x.is_meta:
        cos = x.clamp(-1, 1)
    return margin_softmax(cos, y, "arcface(s=8, m=0.1)")


def _meter(x: Any, y: Any) -> Any:
    meter = AngleMeter(CLASSES, DIM)
    meter.update(x, y)
    return meter.compute(torch.eye(CLASSES, DIM))


def _model(x: Any, y: Any) -> Any:
    torch.manual_seed(1)
    network = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(DIM, CLASSES))
    return attach(network, "arcface(s=8)", CLASSES, at="1")(x, y)


def _open(x: Any, y: Any) -> Any:
    draw = torch.Generator().manual_seed(1)
    return open_set(x, y, torch.randn(6, DIM, generator=draw), torch.tensor([0, 0, 1, 1, 0, 1]))


def _scores(x: Any, y: Any) -> Any:
    scores = x[:, 0].numpy() if isinstance(x, Tensor) and x.ndim == 2 and not x.is_meta and not x.is_sparse else x
    same = (y == 0).numpy() if isinstance(y, Tensor) and not y.is_meta else y
    return verify(scores, same)


_ANY_LABEL = {"a label too large": WORKS, "a label below 0": WORKS, "embeddings of another length": WORKS}
_A_TERM = {"embeddings of another length": WORKS, "a label too large": WORKS}
_NAN_STAYS = {"NaN in an embedding": WORKS, "infinity in an embedding": WORKS}
_LOGITS = {**_NAN_STAYS, "embeddings of another length": WORKS, "huge embeddings": WORKS}
_PAIR_SCORES = {
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
_NOT_FROM_NOTHING = {"an empty batch": REFUSED, "an embedding of zeros": WORKS}
_OF_SHAPE = {
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
BATCHES: tuple[Call, ...] = (
    *(Call(f"Head({name})", _head(name)) for name in _MARGINS),
    *(Call(f"Head({name}, road=stream)", _head(name, "stream")) for name in _MARGINS),
    Call("Head(arcface, road=sampled)", _head("arcface", "sampled", rate=0.9)),
    Call("Head(ignore_index=-1)", _head("arcface", ignore_index=-1), {"a label below 0": WORKS}),
    Call("Head.logits", _head("arcface", what="logits"), {"no labels": WORKS}),
    Call("Head.target_angles", _head("arcface", what="target_angles")),
    Call("Head.init_from_means", _head("arcface", what="init_from_means")),
    Call("margin_softmax", _cosines, {**_NAN_STAYS, "embeddings of another length": WORKS}),
    Call("Objective(arcface + 0.1*center)", _objective("arcface + 0.1*center"), {"huge embeddings": WORKS}),
    Call("Objective(arcface + triplet)", _objective("arcface + triplet")),
    Call("Objective(cross_entropy)", _objective("cross_entropy"), {**_NAN_STAYS, "huge embeddings": WORKS}),
    *(
        Call(f"triplet(mining={mining})", _term(f"triplet(mining={mining})"), _A_TERM)
        for mining in ("all", "hard", "semihard", "distance", "pool")
    ),
    Call("contrastive", _term("contrastive"), _A_TERM),
    Call("contrastive(hadsell)", _term("contrastive(form=hadsell)"), _A_TERM),
    Call("cross_entropy", _term("cross_entropy"), _LOGITS),
    Call("focal", _term("focal"), _LOGITS),
    *(Call(name, _values(name), _OF_SHAPE) for name in ("l1", "l2", "huber", "bce")),
    Call("angles", lambda x, y: angles(x, y, torch.eye(CLASSES, DIM)), {"an empty batch": WORKS}),
    Call("AngleMeter", _meter),
    Call("theory.gaps", lambda x, y: theory.gaps(x, y, torch.eye(CLASSES, DIM))),
    Call("retrieve", lambda x, y: retrieve(x, y, ks=(1,)), {**_ANY_LABEL, **_NOT_FROM_NOTHING}),
    Call("knn_accuracy", knn_accuracy, {**_ANY_LABEL, **_NOT_FROM_NOTHING}),
    Call("few_shot", lambda x, y: few_shot(x, y, ways=2, episodes=3), {**_ANY_LABEL, **_NOT_FROM_NOTHING}),
    Call("open_set", _open, {**_ANY_LABEL, **_NOT_FROM_NOTHING, "embeddings of another length": REFUSED}),
    Call("verify", _scores, {**_PAIR_SCORES, **_NOT_FROM_NOTHING}),
    Call("attach", _model, {"embeddings of three dimensions": WORKS, "no labels": WORKS}),
)


def _with(value: float) -> Callable[[Tensor, Tensor], tuple[Any, Any]]:
    def spoil(x: Tensor, y: Tensor) -> tuple[Any, Any]:
        x = x.clone()
        x[3, 1] = value
        return x, y

    return spoil


def _labelled(value: int) -> Callable[[Tensor, Tensor], tuple[Any, Any]]:
    def spoil(x: Tensor, y: Tensor) -> tuple[Any, Any]:
        y = y.clone()
        y[2] = value
        return x, y

    return spoil


def _strided(x: Tensor, y: Tensor) -> tuple[Any, Any]:
    wide, long = torch.zeros(SAMPLES, 2 * DIM).T.contiguous().T, torch.zeros(2 * SAMPLES, dtype=torch.int64)
    wide[:, ::2], long[::2] = x, y
    return wide[:, ::2], long[::2]


SPOILS: dict[str, tuple[Callable[[Tensor, Tensor], tuple[Any, Any]], str]] = {
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
    "NaN in an embedding": (_with(float("nan")), REFUSED),
    "infinity in an embedding": (_with(float("inf")), REFUSED),
    "labels of floats": (lambda x, y: (x, y.float()), REFUSED),
    "labels of booleans": (lambda x, y: (x, y > 0), REFUSED),
    "labels as a list": (lambda x, y: (x, y.tolist()), REFUSED),
    "no labels": (lambda x, y: (x, None), REFUSED),
    "labels of two dimensions": (lambda x, y: (x, y.unsqueeze(0)), REFUSED),
    "a label too few": (lambda x, y: (x, y[:-1]), REFUSED),
    "a label too large": (_labelled(99), REFUSED),
    "a label below 0": (_labelled(-1), REFUSED),
    "labels without values (meta)": (lambda x, y: (x, y.to("meta")), REFUSED),
    "an empty batch": (lambda x, y: (x[:0], y[:0]), WORKS),
    "embeddings in half precision": (lambda x, y: (x.half(), y), WORKS),
    "embeddings in double precision": (lambda x, y: (x.double(), y), WORKS),
    "labels of 8 bits": (lambda x, y: (x, y.to(torch.int8)), EQUAL),
    "not contiguous": (_strided, EQUAL),
    "transposed in memory": (lambda x, y: (x.T.contiguous().T, y), EQUAL),
    "an embedding of zeros": (lambda x, y: (torch.where(torch.arange(SAMPLES)[:, None] == 3, 0.0, x), y), FINITE),
    "huge embeddings": (lambda x, y: (1e30 * x, y), FINITE),
    "tiny embeddings": (lambda x, y: (1e-30 * x, y), FINITE),
}


def wrong(call: Call, spoil: str) -> str:
    """What goes otherwise than the table says, if anything does."""
    from ..errors import InputError
    from .trial import judged

    change, usual = SPOILS[spoil]
    expected = call.unlike.get(spoil, usual)
    try:
        found = call.call(*change(*good_batch()))
    except InputError as error:
        return judged(str(error)) if expected == REFUSED else f"refused: {error}"
    except Exception as error:  # from deep inside
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    if expected == REFUSED:
        return f"taken without a word: {found!r}"[:200]
    if expected == EQUAL and not same(found, call.call(*good_batch())):
        return "another result than that of the same numbers"
    if expected == FINITE and not all(torch.isfinite(torch.as_tensor(each)).all() for each in numbers(found)):
        return f"not finite: {found!r}"[:200]
    return ""


def numbers(found: Any) -> list[Any]:
    """Every number of a result, whatever it is made of."""
    if isinstance(found, dict):
        return [number for each in found.values() for number in numbers(each)]
    if isinstance(found, tuple | list):
        return [number for each in found for number in numbers(each)]
    if hasattr(found, "__dataclass_fields__"):
        return numbers([getattr(found, name) for name in found.__dataclass_fields__ if name != "roc"])
    return [found] if isinstance(found, Tensor | int | float) else []


def same(one: Any, other: Any) -> bool:
    """Whether two results are equal bit for bit."""
    pairs = list(zip(numbers(one), numbers(other), strict=True))
    return all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in pairs)
