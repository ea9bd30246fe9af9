"""Labels of any kind with every loss: a loss per sample, or one line; a refused call leaves the state unchanged."""

from __future__ import annotations

from typing import Any

from ..check import CheckContext, Outcome
from ..fuzzing import run_fuzz_cases
from ..mutate import Mutator

TITLE = "Labels of any dtype, shape, range and device, with ignore_index, mixup and sample weights, under every loss"
KIND = "input"
LONG = False

COUNTS = (400, 12_000)
_EMBEDDING_DIM, _NUM_CLASSES = 4, 3
_LOSSES = ("arcface(s=8)", "softmax(bias=True)", "adacos", "arcface + 0.1*center", "0.1*center + arcgrad + triplet")
_DTYPE_NAMES = ("int64", "int32", "int16", "int8", "uint8", "bool", "float32", "float16", "complex64", "uint16")
_NUMBERS = (0, 1, 2, 2, 1, 0, 3, -1, -100, 127, 128, 255, 2**31, 2**62, -(2**63))
_IGNORE_INDICES = (None, None, -1, -100, 0, 255, 2**31, -(2**40), 2**62)


def run(context: CheckContext) -> Outcome:
    """Draw batches with invalid labels, and train on them."""
    import torch

    torch.rand(2, device="meta").sum()  # memory of torch's imports for this is not part of a case
    mutator = Mutator(context.seed)
    draw = mutator.rng
    corpus = [
        {"loss": "arcface(s=8)", "ignore": 2**62, "kind": "int8", "labels": [0, 1, 2], "shape": "right"},
        {"loss": "arcface(s=8)", "ignore": -1, "kind": "uint8", "labels": [0, 255, 2], "shape": "right"},
        {"loss": "0.1*center + arcgrad + triplet", "ignore": -1, "kind": "int64", "labels": [0, 1], "shape": "short"},
        {"loss": "arcface(s=8)", "ignore": None, "kind": "int64", "labels": [0, 1, 2], "shape": "meta"},
    ]

    def make_case() -> dict[str, Any]:
        count = draw.choice((0, 1, 2, 3, 7))
        few = _NUMBERS if draw.random() < 0.3 else _NUMBERS[:6]
        return {
            "loss": draw.choice(_LOSSES),
            "ignore": draw.choice(_IGNORE_INDICES),
            "kind": draw.choice(_DTYPE_NAMES) if draw.random() < 0.4 else "int64",
            "labels": [draw.choice(few) for _ in range(count)],
            "shape": draw.choice(
                (*["right"] * 12, "short", "column", "row", "single", "meta", "list", "strided", "strided")
            ),
            "mix": draw.choice((None, None, None, 0.3, "tensor", "tensor", 1.5, "wrong")),
            "weight": draw.choice((None, None, None, "right", "right", "short", "meta")),
        }

    return run_fuzz_cases(context, "labels", corpus, make_case, _compute_loss, COUNTS)


def _compute_loss(case: dict[str, Any]) -> None:
    import torch

    from widemargin.head.objective import Objective
    from widemargin.io.errors import InputError

    options = {} if case["ignore"] is None else {"ignore_index": case["ignore"]}
    torch.manual_seed(0)
    objective = Objective(case["loss"], _EMBEDDING_DIM, _NUM_CLASSES, **options)
    before = {name: value.clone() for name, value in objective.state_dict().items()}
    count = len(case["labels"])
    x, y = torch.randn(count, _EMBEDDING_DIM), _labels(case)
    mixes = {0.3: 0.3, 1.5: 1.5, "tensor": torch.rand(count), "wrong": torch.rand(count + 1)}
    mix = None if case.get("mix") is None else (y, mixes[case["mix"]])
    weights = {
        "right": torch.rand(count),
        "short": torch.rand(max(0, count - 1)),
        "meta": torch.rand(count, device="meta"),
    }
    weight = None if case.get("weight") is None else weights[case["weight"]]
    try:
        loss = objective(x, y, mix=mix, sample_weight=weight)
    except InputError:
        after = objective.state_dict()
        if any(not torch.equal(value, after[name]) for name, value in before.items()):
            raise AssertionError("refused, and yet the state has moved") from None
        raise
    if loss.shape != (count,) or not bool(torch.isfinite(loss).all()):
        raise AssertionError(f"a loss of {list(loss.shape)} that is not finite or not one per sample")


def _labels(case: dict[str, Any]) -> Any:
    import torch

    y = torch.tensor(case["labels"], dtype=torch.int64).to(getattr(torch, case["kind"]))
    shape = case["shape"]
    if shape == "list":
        return case["labels"]
    if shape == "strided":
        return torch.stack((y, y), 1)[:, 0]
    return {
        "short": y[:-1],
        "column": y.unsqueeze(1),
        "row": y.unsqueeze(0),
        "single": y.sum() if y.dtype != torch.uint16 else y.to(torch.int64).sum(),
        "meta": y.to("meta"),
    }.get(shape, y)
