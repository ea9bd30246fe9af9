"""Public functions and classes with invalid arguments: a table of numbers, words and settings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from widemargin import theory
from widemargin.head.functional import margin_softmax
from widemargin.head.head import Head
from widemargin.head.objective import Objective
from widemargin.head.row_optimizer import RowOptimizer
from widemargin.head.subcenters import subcenter_outliers
from widemargin.io.errors import InputError
from widemargin.losses.class_counts import class_weights_from_counts, margins_from_counts
from widemargin.losses.grammar import parse, parse_list
from widemargin.losses.margins.arcface import ArcFace
from widemargin.losses.registry import list_losses
from widemargin.losses.schedule import Anneal, Cosine, Decay, Learnable, Warmup
from widemargin.metrics.angles import AngleMeter, angles
from widemargin.metrics.fewshot import few_shot_metrics, knn_accuracy
from widemargin.metrics.retrieval import retrieval_metrics
from widemargin.metrics.verification import verification_metrics
from widemargin.models.attach import attach
from widemargin.tabular.compare import compare
from widemargin.tabular.config import MLPConfig
from widemargin.tabular.estimator import MarginClassifier
from widemargin.training.config import TrainConfig

from .fuzzing import message_problem
from .invalid_batches import make_valid_batch

NOT_POSITIVE_INTS: tuple[Any, ...] = (0, -1, 2.5, "3", None, True, [3], math.nan, 10**40, torch.tensor(3.5))
NOT_POSITIVE: tuple[Any, ...] = (0, -1.0, "1", None, True, [1.0], math.nan, math.inf, 1j, 10**400)
NOT_FINITE: tuple[Any, ...] = ("1", None, True, [1.0], math.nan, math.inf, 1j, 10**400)
NEGATIVE: tuple[Any, ...] = (-1, "1", True, [1.0], math.nan, math.inf, 1j)
NOT_COUNTS: tuple[Any, ...] = (
    *(None, 3, "ab", [], [1, 0], [1, -1], [1, 2.5], [1, math.nan], [1, math.inf], [1, "2"], [True, 2], [10**400], [1j]),
    *({0: 5, 1: 3}, {5, 3}, [[1, 2]], torch.tensor(3), torch.ones(2, device="meta"), torch.tensor([1j, 2])),
)
NOT_A_LOSS: tuple[Any, ...] = (None, 3, "", "arcfase", ["arcface"], b"arcface", "arcface(", object)


def _x() -> Any:
    return make_valid_batch()[0]


def _y() -> Any:
    return make_valid_batch()[1]


def _fit_classifier(**options: Any) -> Any:
    return MarginClassifier(**options).fit(_x().numpy(), _y().numpy())


def _compare_table(**options: Any) -> Any:
    return compare((_x().numpy(), _y().numpy()), losses="softmax", folds=2, jobs=1, quiet=True, **options)


_ANGLES = torch.linspace(0.1, 3, 5)
NOT_ANGLES: tuple[Any, ...] = (None, 0.5, [0.1, 0.2], torch.tensor([1, 2]), "0.5", torch.tensor([1j]))

ARGUMENT_CALLS: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...]]] = {
    "TrainConfig(epochs)": (lambda v: TrainConfig(epochs=v), (*NOT_POSITIVE_INTS, 2**31)),
    "TrainConfig(lr)": (lambda v: TrainConfig(lr=v), (-1, "0.1", None, math.nan, math.inf, 10**400, True, [0.1])),
    "TrainConfig(opt)": (lambda v: TrainConfig(opt=v), (None, 3, "", "adm", ["adam"])),
    "TrainConfig(neck)": (lambda v: TrainConfig(neck=v), (None, 0, 1, "false")),
    "TrainConfig(model_options)": (
        lambda v: TrainConfig(model_options=v),
        (None, 3, [1], {"a": math.nan}, {"a": object()}, {"a": b"x"}),
    ),
    "MLPConfig(hidden)": (lambda v: MLPConfig(hidden=v), (None, 3, (), "64", (0,), (8, 2.5), (True,), [[8]])),
    "MLPConfig(dropout)": (lambda v: MLPConfig(dropout=v), (-0.1, 1.0, "0.1", None, math.nan, True, [0.1])),
    "MLPConfig(val_fraction)": (lambda v: MLPConfig(val_fraction=v), (*NEGATIVE, None, 1.0)),
    "MLPConfig(patience)": (lambda v: MLPConfig(patience=v), NOT_POSITIVE_INTS),
    "MLPConfig(screening)": (lambda v: MLPConfig(screening=v), (*NEGATIVE, None)),
    "MLPConfig(max_components)": (lambda v: MLPConfig(max_components=v), (-1, 2.5, "3", None, True, 10**40)),
    "compare(mlp_config)": (
        lambda v: _compare_table(mlp_config=v),
        (
            3,
            "lr=1",
            [1],
            {"lrr": 1},
            {3: 1},
            {"lr": 0},
            {"lr": None},
            {"val_fraction": 1},
            {"hidden": 8},
            {"kind": "x"},
        ),
    ),
    "compare(tune)": (lambda v: _compare_table(tune=v), (0, -1.0, "1", [1.0], math.nan, 1j, -math.inf, torch.ones(2))),
    "compare(tune_trials)": (
        lambda v: _compare_table(tune_trials=v),
        (0, -1, 2.5, "3", True, [3], math.nan, 1025, 10**40, torch.tensor(3)),
    ),
    "compare(calibrate)": (lambda v: _compare_table(calibrate=v), (None, "no", 2, 0.5, [True], math.nan)),
    "Head(embedding_dim)": (lambda v: Head(v, 3), NOT_POSITIVE_INTS),
    "Head(num_classes)": (lambda v: Head(4, v), (*NOT_POSITIVE_INTS, 1)),
    "Head(margin)": (lambda v: Head(4, 3, v), (*NOT_A_LOSS, "triplet", "arcface + center")),
    "Head(backend)": (lambda v: Head(4, 3, backend=v), (None, 3, "", "strem", ["dense"])),
    "Head(sample_rate)": (lambda v: Head(4, 3, backend="sampled", sample_rate=v), NOT_POSITIVE),
    "Head(label_smoothing)": (lambda v: Head(4, 3, label_smoothing=v), (-0.1, 1.0, "0.1", None, math.nan, True, [0.1])),
    "Head(class_weight)": (
        lambda v: Head(4, 3, class_weight=v),
        ([1, 2], [1, 2, -1], [1, 2, math.nan], "abc", 3, [[1, 2, 3]], ["a", "b", "c"], [1, 2, None]),
    ),
    "Head(class_weight_start)": (
        lambda v: Head(4, 3, class_weight=[1, 2, 3], class_weight_start=v),
        (-1, 2.5, "3", None, True, [3], math.nan, 10**40),
    ),
    "subcenter_outliers(x)": (
        lambda v: subcenter_outliers(Head(4, 3, "subcenter_arcface(k=2)"), v, _y()),
        (None, 3, [1.0], "a", torch.ones(12, 3), torch.ones(4), torch.ones(12, 4, dtype=torch.int64)),
    ),
    "subcenter_outliers(y)": (
        lambda v: subcenter_outliers(Head(4, 3, "subcenter_arcface(k=2)"), _x(), v),
        (None, 3, [1], torch.zeros(5, dtype=torch.int64), torch.full((12,), 3), torch.full((12,), -1)),
    ),
    "subcenter_outliers(max_angle)": (
        lambda v: subcenter_outliers(Head(4, 3, "subcenter_arcface(k=2)"), _x(), _y(), max_angle=v),
        (-1, 181, "75", None, math.nan, True, [75]),
    ),
    "Head.keep_dominant": (
        lambda v: Head(4, 3, "subcenter_arcface(k=2)").keep_dominant(v),
        (None, 3, [0, 1, 0], torch.zeros(3), torch.zeros(2, dtype=torch.int64), torch.full((3,), 2)),
    ),
    "margins_from_counts(counts)": (margins_from_counts, NOT_COUNTS),
    "margins_from_counts(form)": (lambda v: margins_from_counts([5, 3], v), (None, 3, "", "gdl", ["gld"])),
    "margins_from_counts(power)": (lambda v: margins_from_counts([5, 3], power=v), (*NEGATIVE, None, 10**400)),
    "class_weights_from_counts(counts)": (class_weights_from_counts, NOT_COUNTS),
    "class_weights_from_counts(beta)": (lambda v: class_weights_from_counts([5, 3], v), (*NEGATIVE, None, 1, 10**400)),
    "TrainConfig(class_weight)": (lambda v: TrainConfig(class_weight=v), (None, 3, "", "balance", ["none"])),
    "TrainConfig(class_weight_start)": (lambda v: TrainConfig(class_weight_start=v), (*NEGATIVE, None, 1.0)),
    "TrainConfig(imbalance)": (lambda v: TrainConfig(imbalance=v), (0.5, "2", None, True, [2.0], math.nan, math.inf)),
    "Head(ignore_index)": (lambda v: Head(4, 3, ignore_index=v), (0.5, "a", [1], True, 10**40)),
    "Head(memory)": (lambda v: Head(10**6, v), (10**12, 2**61)),
    "Head(class_names)": (lambda v: Head(4, 3, class_names=v), (["a"], "ab", 3, ["a", "b", "c", "d"])),
    "Head(dtype)": (lambda v: Head(4, 3, dtype=v), (torch.int64, torch.bool, torch.complex64, "float32", 3)),
    "Head(device)": (lambda v: Head(4, 3, device=v), ("nowhere", "cuda:99", 3.5, [1])),
    "Head.extend": (lambda v: Head(4, 3).extend(v), NOT_POSITIVE_INTS),
    "Head(mix)": (lambda v: Head(4, 3)(_x(), _y(), mix=v), (3, (_y(),), (_y(), 2), (_y(), "a"), (None, 0.5))),
    "Head(mix lam)": (
        lambda v: Head(4, 3)(_x(), _y(), mix=(_y(), v)),
        (-0.1, 1.1, math.nan, "a", None, torch.tensor([0.5]), torch.full((12,), 2.0), torch.tensor(math.nan)),
    ),
    "Head(sample_weight)": (
        lambda v: Head(4, 3)(_x(), _y(), sample_weight=v),
        (1.0, [1.0] * 12, torch.ones(3), torch.ones(12, 1), torch.ones(12, device="meta"), torch.ones(12) * 1j),
    ),
    "Head.load_class_weights": (
        lambda v: Head(4, 3).load_class_weights(v),
        (None, 3, {}, {"weight": 3}, {"weight": torch.ones(2, 4)}, {"weight": torch.ones(3, 5)}, [], "nowhere.pt", [3]),
    ),
    "Head.load_state_dict": (
        lambda v: Head(4, 3).set_extra_state(v),
        (None, 3, torch.ones(3), torch.tensor([91] * 99999, dtype=torch.uint8), torch.tensor([49], dtype=torch.uint8)),
    ),
    "ArcFace(s)": (
        lambda v: ArcFace(s=v),
        (0, -1, "a", None, True, [1.0], math.nan, 10**400, 1j, torch.tensor(1.0, device="meta"), torch.tensor(1j)),
    ),
    "list_losses": (list_losses, (3, "margin", ["margins"], b"margins")),
    "parse_list": (parse_list, NOT_A_LOSS),
    "MarginClassifier(loss)": (lambda v: _fit_classifier(loss=v), NOT_A_LOSS),
    "MarginClassifier(hidden)": (lambda v: _fit_classifier(hidden=v), ((), (0,), "64", 3, (2.5,), (True,))),
    "MarginClassifier(lr)": (lambda v: _fit_classifier(lr=v), tuple(v for v in NOT_POSITIVE if v is not None)),
    "MarginClassifier(batch)": (lambda v: _fit_classifier(batch=v), (0, -1, 2.5, "3", True)),
    "MarginClassifier(patience)": (lambda v: _fit_classifier(patience=v), NOT_POSITIVE_INTS),
    "MarginClassifier(screening)": (lambda v: _fit_classifier(screening=v), NEGATIVE),
    "MarginClassifier(max_components)": (lambda v: _fit_classifier(max_components=v), (-1, 2.5, "3", True, 10**40)),
    "MarginClassifier(device)": (lambda v: _fit_classifier(device=v), ("nowhere", 3.5, ["cpu"])),
    "MarginClassifier(validation_fraction)": (
        lambda v: _fit_classifier(early_stopping=True, validation_fraction=v),
        (0, 1, "0.1", None, math.nan),
    ),
    "Objective": (lambda v: Objective(v, 4, 3), NOT_A_LOSS),
    "Objective(embedding_dim)": (lambda v: Objective("arcface", v, 3), NOT_POSITIVE_INTS),
    "Objective(options)": (
        lambda v: Objective("arcface", 4, 3, **v),
        ({"label_smothing": 1}, {"backend": "x"}, {"sample_rate": 2}),
    ),
    "parse": (parse, NOT_A_LOSS),
    "attach(model)": (lambda v: attach(v, "arcface", 3), (None, "resnet18", torch.nn.Identity(), torch.ones(3))),
    "attach(at)": (
        lambda v: attach(torch.nn.Sequential(torch.nn.Linear(4, 3)), "arcface", 3, at=v),
        ("9", "", 3, ["0"], None),
    ),
    "margin_softmax(margin)": (lambda v: margin_softmax(_x().clamp(-1, 1), _y(), v), (*NOT_A_LOSS, "triplet")),
    "margin_softmax(step)": (
        lambda v: margin_softmax(_x().clamp(-1, 1), _y(), "arcface", step=v),
        (-1, 0.5, "1", None, True, 10**40),
    ),
    "margin_softmax(radius)": (
        lambda v: margin_softmax(_x().clamp(-1, 1), _y(), "softmax", radius=v),
        (None, 1.0, [1.0] * 12, torch.ones(3), torch.ones(12, device="meta"), torch.ones(12) * 1j, "a"),
    ),
    "Warmup": (lambda v: Warmup(0, v, steps=10), ("1", None, math.nan, math.inf, True, [1], 10**5000)),
    "Warmup(steps)": (lambda v: Warmup(0, 1, steps=v), (*NOT_POSITIVE_INTS[:8],)),
    "Cosine(steps)": (lambda v: Cosine(0, 1, steps=v), (*NOT_POSITIVE_INTS[:8],)),
    "Decay": (lambda v: Decay(1, v, steps=10), NOT_POSITIVE),
    "Anneal": (Anneal, (-1, "1", None, math.nan, math.inf, True)),
    "Learnable": (Learnable, NOT_POSITIVE),
    "AngleMeter(num_classes)": (lambda v: AngleMeter(v, 4), NOT_POSITIVE_INTS),
    "AngleMeter(embedding_dim)": (lambda v: AngleMeter(3, v), NOT_POSITIVE_INTS),
    "AngleMeter.merge": (lambda v: AngleMeter(3, 4).merge(v), (None, 3, AngleMeter(3, 5))),
    "AngleMeter.compute": (
        lambda v: AngleMeter(3, 4).compute(v),
        (None, [[1.0]], torch.ones(3), torch.ones(3, 4).long(), torch.ones(4, 3)),
    ),
    "angles(W)": (lambda v: angles(_x(), _y(), v), (None, torch.ones(3), torch.ones(3, 4).long(), torch.ones(3, 9))),
    "suggest_scale(num_classes)": (lambda v: theory.suggest_scale(v, 0.5), (*NOT_POSITIVE_INTS, 1)),
    "suggest_scale(gap)": (lambda v: theory.suggest_scale(10, v), NOT_POSITIVE),
    "theoretical_gap(num_classes)": (lambda v: theory.theoretical_gap(v, 1.0), (*NOT_POSITIVE_INTS, 1)),
    "theoretical_gap(scale)": (lambda v: theory.theoretical_gap(10, v), NOT_POSITIVE),
    "gap_loss(gap)": (lambda v: theory.gap_loss(v, 1.0, 10), NOT_FINITE),
    "gap_loss(scale)": (lambda v: theory.gap_loss(0.5, v, 10), NOT_FINITE),
    "gap_gradient(scale)": (lambda v: theory.gap_gradient(0.5, v, 10), NOT_FINITE),
    "target_curve(theta)": (lambda v: theory.target_curve("arcface", v), NOT_ANGLES),
    "target_curve(margin)": (lambda v: theory.target_curve(v, _ANGLES), (*NOT_A_LOSS, "triplet")),
    "target_curve(num_classes)": (lambda v: theory.target_curve("arcface", _ANGLES, v), (*NOT_POSITIVE_INTS, 1)),
    "target_slope(theta)": (lambda v: theory.target_slope("arcface", v), NOT_ANGLES),
    "gradient_curve(theta)": (lambda v: theory.gradient_curve("arcface", v), NOT_ANGLES),
    "gradient_curve(other_angle)": (
        lambda v: theory.gradient_curve("arcface", _ANGLES, other_angle=v),
        ("1", None, math.nan, [1]),
    ),
    "decision_function(theta2)": (
        lambda v: theory.decision_function("arcface", _ANGLES, v),
        (*NOT_ANGLES, torch.ones(3)),
    ),
    "boundary_angle(class_angle)": (lambda v: theory.boundary_angle("arcface", v), (*NOT_POSITIVE, 4.0)),
    "angular_margin(class_angle)": (lambda v: theory.angular_margin("arcface", v), (*NOT_POSITIVE, 4.0)),
    "retrieval_metrics(ks)": (lambda v: retrieval_metrics(_x(), _y(), ks=v), ((), (0,), (-1,), ("1",), (1.5,))),
    "retrieval_metrics(batch_size)": (lambda v: retrieval_metrics(_x(), _y(), batch_size=v), (0, -1, 1.5, "1", None)),
    "retrieval_metrics(gallery)": (lambda v: retrieval_metrics(_x(), _y(), v), (_x(), torch.ones(3, 9), "a")),
    "knn_accuracy(k)": (lambda v: knn_accuracy(_x(), _y(), k=v), (*NOT_POSITIVE_INTS[:9], 12)),
    "knn_accuracy(gallery)": (lambda v: knn_accuracy(_x(), _y(), v), (_x(), torch.ones(3, 9), "a")),
    "few_shot_metrics(ways)": (lambda v: few_shot_metrics(_x(), _y(), ways=v), (*NOT_POSITIVE_INTS, 4)),
    "few_shot_metrics(shots)": (lambda v: few_shot_metrics(_x(), _y(), ways=2, shots=v), (*NOT_POSITIVE_INTS, 4)),
    "few_shot_metrics(episodes)": (
        lambda v: few_shot_metrics(_x(), _y(), ways=2, episodes=v),
        (0, -1, 2.5, "3", None, True),
    ),
    "verification_metrics(same)": (
        lambda v: verification_metrics(_x()[:, 0], v),
        (["False", "True"] * 6, [2] * 12, None, [0] * 12, [0, 1]),
    ),
    "verification_metrics(folds)": (lambda v: verification_metrics(_x()[:, 0], _y() == 0, v), ([1, 2], [0] * 12, 3)),
    "verification_metrics(fars)": (
        lambda v: verification_metrics(_x()[:, 0], _y() == 0, fars=v),
        ((0,), (2,), ("a",), (math.nan,)),
    ),
    "RowOptimizer": (lambda v: RowOptimizer(v, torch.optim.SGD, lr=0.1), (None, 3, torch.ones(3), [[1.0]])),
    "RowOptimizer.load_state_dict": (
        lambda v: RowOptimizer(torch.ones(3, 2), torch.optim.SGD, lr=0.1).load_state_dict(v),
        (None, {}, {"memory": 3}, {"memory": {"m": torch.ones(2, 2)}, "scalars": {}, "param_groups": []}),
    ),
}


def argument_problem(name: str, index: int) -> str:
    """Return how the call differs from a refusal in one line; empty if it does not."""
    call, values = ARGUMENT_CALLS[name]
    try:
        result = call(values[index])
    except InputError as error:
        return message_problem(str(error))
    except Exception as error:  # an error from deep inside
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return f"accepted silently: {result!r}"[:200]
