"""Cross-validation of one method on one table: partitions, what a model sees of the rows, and how it is tested."""

import math

import numpy as np
import pytest
import torch

from small_tables import category_column, mixed_table, number_column, table_of
from widemargin.data.tabular.encode import (
    MAX_DECORRELATED_COLUMNS,
    MAX_ENCODED_COLUMNS,
    SHRINKAGE,
    decorrelation,
    encode,
    scaling,
)
from widemargin.data.tabular.read import read_table
from widemargin.data.tabular.table import Column
from widemargin.data.tabular.uci import load_uci_set
from widemargin.io.errors import InputError
from widemargin.losses.registry import list_losses
from widemargin.tabular import crossval, model_stacks
from widemargin.tabular.baselines import cross_validate_baseline
from widemargin.tabular.batched import StackedTrainer
from widemargin.tabular.config import MLPConfig
from widemargin.tabular.crossval import (
    Partition,
    check_cross_validation,
    cross_validate,
    partitions,
    stratified_sample,
)
from widemargin.tabular.model_stacks import build_stacked_table, predictions
from widemargin.tabular.results import BASELINES, MAJORITY

SMALL = MLPConfig(hidden=(16, 8), epochs=0, min_steps=40)


def preprocessed_rows(table, part, dtype=torch.float64):
    """All rows as the model that learns from `part` sees them."""
    rows = build_stacked_table(encode(table), table.y, len(table.class_names), [np.asarray(part)], dtype)
    return rows.preprocess(torch.arange(len(table)).unsqueeze(0))[0].numpy()


# Partitions


@pytest.mark.parametrize("stratify", [False, True])
@pytest.mark.parametrize(("rows", "runs", "folds"), [(150, 3, 10), (23, 2, 4), (7, 1, 7), (11, 2, 2)])
def test_every_row_is_tested_once_in_every_run(rows, runs, folds, stratify):
    split = partitions(np.arange(rows) % 3, runs, folds, 0, stratify)
    assert len(split) == runs * folds
    for run in range(runs):
        parts = split[run * folds : (run + 1) * folds]
        np.testing.assert_array_equal(np.sort(np.concatenate([part.test for part in parts])), np.arange(rows))
        sizes = [len(part.test) for part in parts]
        assert max(sizes) - min(sizes) <= 1
    for part in split:
        np.testing.assert_array_equal(np.sort(np.concatenate([part.training, part.test])), np.arange(rows))


@pytest.mark.parametrize("stratify", [False, True])
def test_partitions_are_random_and_come_again(stratify):
    y = np.arange(60) % 3

    def first_tests(seed):
        return [part.test.tolist() for part in partitions(y, 2, 5, seed, stratify)]

    assert first_tests(4) == first_tests(4)
    assert first_tests(4) != first_tests(5)
    assert first_tests(4)[:5] != first_tests(4)[5:]  # every run is another partition
    assert first_tests(4)[0] != list(range(12))


@pytest.mark.parametrize("folds", [2, 3, 7, 10])
def test_stratified_parts_keep_the_shares_within_one_row(folds):
    y = np.random.default_rng(0).choice(4, 131, p=[0.6, 0.25, 0.1, 0.05])
    shares = [np.bincount(y[part.test], minlength=4) for part in partitions(y, 2, folds, 0, stratify=True)]
    assert (np.ptp(shares, axis=0) <= 1).all()
    plain = [np.bincount(y[part.test], minlength=4) for part in partitions(y, 2, folds, 0)]
    assert (np.ptp(plain, axis=0) > 1).any()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cv_repeats": 0}, "cv_repeats must be at least 1, got 0"),
        ({"folds": 1}, r"folds must be between 2 and the number of rows \(20\), got 1"),
        ({"folds": 21}, "folds must be between 2 and the number of rows"),
        ({"seed": -1}, "seed must be between 0 and 2147483647, got -1"),
        ({"seed": 1 << 40}, "seed must be between 0 and"),
    ],
)
def test_wrong_partitions_are_refused(given, message):
    wanted = {"cv_repeats": 1, "folds": 4, "seed": 0, **given}
    with pytest.raises(InputError, match=message):
        partitions(np.arange(20) % 2, **wanted)
    with pytest.raises(InputError, match=message):
        check_cross_validation(table_of([number_column(range(20))]), **wanted, config=SMALL)


@pytest.mark.parametrize(
    ("change", "word"),
    [({"hidden": (100_000, 100_000)}, "weights"), ({"epochs": 1e300}, "epochs"), ({"min_steps": 1 << 40}, "min_steps")],
)
def test_a_model_beyond_all_memory_is_refused_before_work(change, word):
    wanted = {"hidden": SMALL.hidden, "epochs": 1.0, "min_steps": 40, **change}
    with pytest.raises(InputError, match=word):
        check_cross_validation(table_of([number_column(range(20))]), 1, 4, 0, MLPConfig(**wanted))


# What a model sees


def test_numbers_come_first_then_a_column_for_every_level():
    encoded = encode(table_of([category_column(["b", "a", None, "b"]), number_column([1, 2, 3, 4])]))
    assert encoded.feature_names == ("x", "c=a", "c=b", "c=missing")
    assert encoded.is_numeric.tolist() == [True, False, False, False]
    np.testing.assert_array_equal(encoded.x[:, 1:], [[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]])
    alone = table_of([category_column(["b", "a", "a", "b"])])
    np.testing.assert_array_equal(preprocessed_rows(alone, [0, 1]), [[0, 1], [1, 0], [1, 0], [0, 1]])


def test_a_number_is_standardized_by_its_training_part():
    values = np.array([3.0, 5.0, 10.0, -2.0, 8.0, 700.0])
    part = [0, 1, 2, 3]
    known = values[part]
    found = preprocessed_rows(table_of([number_column(values)]), part)[:, 0]
    np.testing.assert_allclose(found, (values - known.mean()) / known.std(), rtol=1e-12)


def test_missing_numbers_are_the_median_of_the_training_part():
    values = np.array([1.0, 2.0, 9.0, np.nan, 4.0, np.nan, 1000.0, 1000.0])
    part = [0, 1, 2, 3, 4]
    filled = np.where(np.isnan(values), 3.0, values)  # the median of 1, 2, 9 and 4
    known = filled[part]
    found = preprocessed_rows(table_of([number_column(values)]), part)[:, 0]
    np.testing.assert_allclose(found, (filled - known.mean()) / known.std(), rtol=1e-12)


def test_a_column_missing_in_all_of_the_training_part_is_off():
    table = table_of([number_column([np.nan, np.nan, 1.0, 2.0]), number_column([1.0, 2.0, 3.0, 4.0], "z")])
    found = preprocessed_rows(table, [0, 1])
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[:, 1] / found[0, 1], [1, -1, -3, -5])
    assert np.linalg.matrix_rank(found) == 1


def test_what_does_not_vary_or_occur_in_the_training_part_is_off():
    constant, word = number_column([5, 5, 5, 5, 9, 1]), category_column(["a", "a", "b", "b", "new", None])
    found = preprocessed_rows(table_of([constant, word]), [0, 1, 2, 3])
    np.testing.assert_array_equal(found[:, 0], 0)  # the constant
    np.testing.assert_array_equal(found[4:], 0)  # a new level, and one missing where none was missing before
    np.testing.assert_array_equal(found[:4, 1:3], [[1, 0], [1, 0], [0, 1], [0, 1]])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("unit", [1.0, 1e-30, 1e30, 1e290])
def test_huge_and_tiny_numbers_keep_their_digits(dtype, unit):
    spread = np.random.default_rng(0).integers(-3, 4, 40)
    found = preprocessed_rows(table_of([number_column((1e12 + spread) * unit)]), range(30), dtype)[:, 0]
    known = spread[:30]
    np.testing.assert_allclose(found, (spread - known.mean()) / known.std(), rtol=0, atol=1e-3 if unit != 1 else 1e-5)


def test_the_largest_numbers_do_not_overflow():
    values = np.array([1.7e308, -1.7e308] * 10 + [0.0, 1.0])
    found = preprocessed_rows(
        table_of([number_column(values), number_column(range(22), "z")]), range(20), torch.float32
    )
    assert np.isfinite(found).all()
    assert found[0, 0] * found[1, 0] < 0


def test_only_the_training_part_matters():
    """Whatever stands in the other rows, the training rows look the same, and so does everything learned from them."""
    draw = np.random.default_rng(1)
    one = mixed_table()
    part, rest = np.arange(45), np.arange(45, 60)

    def with_others(value):
        columns = []
        for column in one.columns:
            values = column.values.copy()
            values[rest] = value(column, len(rest))
            columns.append(Column(column.name, values, column.levels))
        return table_of(columns, one.y)

    def shuffled_values(column, count):
        return draw.permutation(column.values[:45])[:count]

    def huge_values(column, count):
        return 1e12 * draw.standard_normal(count) if column.levels is None else 0

    def missing_values(column, count):  # the widths of layers may know which levels there are, so no new one
        return np.nan if column.levels is None else -1 if (column.values < 0).any() else 0

    before, logits = preprocessed_rows(one, part), []
    for table in (one, *map(with_others, (shuffled_values, huge_values, missing_values))):
        np.testing.assert_allclose(preprocessed_rows(table, part)[part], before[part], rtol=1e-9, atol=1e-9)
        rows = build_stacked_table(encode(table), table.y, 3, [part], torch.float64)
        stack = StackedTrainer("arcgrad(s=5)", rows, [part], [(0, 0)], SMALL)
        stack.run()
        logits.append(stack.logits(torch.from_numpy(part).unsqueeze(0)).numpy())
    for found in logits[1:]:
        np.testing.assert_allclose(found, logits[0], rtol=1e-6, atol=1e-6)


def test_decorrelated_numbers_have_the_shrunk_correlations():
    draw = np.random.default_rng(2)
    x = draw.standard_normal((200, 4)) @ draw.standard_normal((4, 4))
    part = np.arange(150)
    found = preprocessed_rows(table_of([number_column(x[:, k], f"x{k}") for k in range(4)]), part)[part]
    np.testing.assert_allclose(found.mean(0), 0, atol=1e-12)
    correlation = np.corrcoef(x[part].T)
    assert np.abs(correlation - np.eye(4)).max() > 0.5  # something to undo
    # ZCA with the root of the shrunk correlations S = (1−a) C + a I on both sides of C.
    values, vectors = np.linalg.eigh(correlation)
    wanted = (vectors * (values / ((1 - SHRINKAGE) * values + SHRINKAGE))) @ vectors.T
    np.testing.assert_allclose(found.T @ found / 150, wanted, atol=1e-10)
    large = values > 0.5
    assert large.any()
    kept = np.diag(vectors.T @ wanted @ vectors)[large]
    assert ((kept > 0.8) & (kept < 1.2)).all()


def test_only_numbers_are_decorrelated_and_not_too_many():
    table = mixed_table()
    encoded = encode(table)
    parts = [np.arange(30), np.arange(20, 60)]
    matrix = decorrelation(encoded, parts, scaling(encoded, parts))
    assert matrix.shape == (2, 3, 3)  # and not a matrix over all levels, of which there may be thousands
    rows = build_stacked_table(encoded, table.y, 3, parts)
    every = torch.arange(60).expand(2, 60)
    levels = np.broadcast_to(encoded.x[:, 3:], (2, 60, encoded.x.shape[1] - 3))
    present = np.stack([encoded.x[part][:, 3:].any(0) for part in parts])[:, None]
    np.testing.assert_array_equal(rows.preprocess(every)[..., 3:].numpy(), levels * present)
    for count, wanted in (
        (1, False),
        (2, True),
        (MAX_DECORRELATED_COLUMNS, True),
        (MAX_DECORRELATED_COLUMNS + 1, False),
    ):
        several = encode(table_of([number_column(np.random.default_rng(k).random(9), str(k)) for k in range(count)]))
        part = [np.arange(8)]
        assert (decorrelation(several, part, scaling(several, part)) is not None) == wanted


def test_too_many_columns_are_refused_by_name():
    words = category_column([f"w{k}" for k in range(MAX_ENCODED_COLUMNS)])
    with pytest.raises(InputError, match=rf"made: {MAX_ENCODED_COLUMNS + 1} columns"):
        encode(table_of([words]))


# Cross-validation


@pytest.mark.parametrize("loss", ["softmax", "adacos", "arcgrad", "softmax + 0.02*center", "arcface + 0.1*triplet"])
@pytest.mark.parametrize("limit", ["_MAX_STACK_WEIGHTS", "_MAX_STACK_SAMPLES"])
def test_several_stacks_are_one_stack(loss, limit, monkeypatch):
    table = mixed_table()
    split = partitions(table.y, 1, 7, 3)
    whole = cross_validate(table, loss, split, SMALL, 3, torch.float64)
    sizes = []
    real = model_stacks.StackedTrainer
    monkeypatch.setattr(model_stacks, "StackedTrainer", lambda *given: sizes.append(len(given[2])) or real(*given))
    weights, draws = 13 * 16 + 16 * 8 + 8 * 3, 40 * 16
    monkeypatch.setattr(model_stacks, limit, 3 * (weights if limit == "_MAX_STACK_WEIGHTS" else draws))
    several = cross_validate(table, loss, split, SMALL, 3, torch.float64)
    assert len(sizes) > 1
    assert max(sizes) <= 3
    assert several.folds == whole.folds
    assert several.angles == pytest.approx(whole.angles, rel=1e-9)


@pytest.mark.parametrize("loss", ["softmax", "arcface(s=20, m=0.1)", "adacos", "arcgrad(s=5)", "cross_entropy"])
def test_iris_is_learned(loss):
    table = load_uci_set("iris")
    score = cross_validate(table, loss, partitions(table.y, 1, 10, 0), MLPConfig(min_steps=150))
    assert len(score.folds) == 10
    assert np.mean(score.folds) > 90
    assert score.seconds > 0
    assert set(score.angles) == {"wc_intra", "w_inter", "c_inter"}
    assert all(0 < angle < math.pi for angle in score.angles.values())


@pytest.mark.filterwarnings("ignore:.*ada.*")
@pytest.mark.parametrize("loss", list_losses("margins"))
@pytest.mark.parametrize("classes", [2, 3])
def test_every_margin_runs(loss, classes):
    draw = np.random.default_rng(0)
    y = np.arange(30) % classes
    table = table_of([number_column(draw.standard_normal(30) + y), number_column(draw.standard_normal(30) - y, "z")], y)
    score = cross_validate(table, loss, partitions(y, 1, 3, 0), SMALL)
    assert all(0 <= fold <= 100 for fold in score.folds)
    assert all(math.isfinite(angle) for angle in score.angles.values())


@pytest.mark.parametrize("limit", [1 << 22, 500])
def test_reported_progress_sums_to_one(limit, monkeypatch):
    monkeypatch.setattr(model_stacks, "_MAX_STACK_WEIGHTS", limit)
    table = mixed_table()
    shares = []
    cross_validate(table, "softmax", partitions(table.y, 1, 5, 0), SMALL, on_progress=shares.append)
    assert sum(shares) == pytest.approx(1)
    assert all(share > 0 for share in shares)
    shares.clear()
    cross_validate_baseline(table, "logistic_regression", partitions(table.y, 1, 5, 0), 0, shares.append)
    assert shares == pytest.approx([0.2] * 5)


@pytest.mark.parametrize("loss", ["softmax", "arcgrad(s=5)"])
def test_a_fold_is_the_share_of_its_test_rows_that_a_model_of_its_training_rows_gets_right(loss):
    table = mixed_table(61)
    split = partitions(table.y, 2, 4, 1)  # parts of 15 and 16 rows
    score = cross_validate(table, loss, split, SMALL, 1, torch.float64)
    plan = SMALL.steps_and_batch(min(len(part.training) for part in split))
    for k, part in enumerate(split):
        rows = build_stacked_table(encode(table), table.y, 3, [part.training], torch.float64)
        alone = StackedTrainer(loss, rows, [part.training], [(1, k)], SMALL, plan)
        alone.run()
        right = 0
        for row in part.test.tolist():
            answer = alone.logits(torch.tensor([[row]]))[0, 0].argmax().item()
            right += answer == table.y[row]
        assert score.folds[k] == pytest.approx(100 * right / len(part.test))


def test_predictions_in_pieces_are_those_at_once(monkeypatch):
    table = mixed_table(61)
    split = partitions(table.y, 1, 4, 1)
    training, test = [part.training for part in split], [part.test for part in split]
    stack = StackedTrainer(
        "softmax", build_stacked_table(encode(table), table.y, 3, training), training, [(0, k) for k in range(4)], SMALL
    )
    stack.run()
    at_once = predictions(stack, test)
    assert at_once.shape == (4, 16)
    monkeypatch.setattr(model_stacks, "_PREDICT_CHUNK_VALUES", 1)
    np.testing.assert_array_equal(predictions(stack, test), at_once)


def test_a_table_with_gaps_and_words_from_file_to_score(tmp_path):
    draw = np.random.default_rng(0)
    lines = ["size,colour,note,kind"]
    for row in range(90):
        kind = row % 3
        size = "" if row % 7 == 0 else f"{draw.normal(3 * (kind == 0), 0.3):.2f}"
        colour = "NA" if kind == 1 else ("red", "green")[draw.integers(2)]  # that it is missing is what tells
        lines.append(f"{size},{colour},{'pq'[row % 2]},{'xyz'[kind]}")
    path = tmp_path / "gaps.csv"
    path.write_text("\n".join(lines))
    table = read_table(path)
    score = cross_validate(table, "arcgrad(s=5)", partitions(table.y, 1, 5, 0), MLPConfig(min_steps=120))
    assert np.mean(score.folds) > 85
    for name in BASELINES:
        small = cross_validate_baseline(table, name, partitions(table.y, 1, 3, 0), 0)
        assert (np.mean(small.folds) > 75) == (name != MAJORITY), name
        assert small.angles == {}


@pytest.mark.parametrize("loss", ["softmax", "arcgrad(s=5)"])
def test_labels_drawn_at_random_are_not_learned(loss):
    """Whatever leaked from a test part would show as an accuracy above chance."""
    draw = np.random.default_rng(7)
    y = draw.permutation(np.arange(240) % 2)
    x = draw.standard_normal((240, 12))
    words = [f"w{draw.integers(40)}" for _ in y]
    table = table_of([*(number_column(x[:, k], f"x{k}") for k in range(12)), category_column(words)], y)
    score = cross_validate(table, loss, partitions(y, 1, 10, 0), MLPConfig(min_steps=100))
    assert 38 < np.mean(score.folds) < 60


def test_training_accuracy_is_that_of_the_models_on_what_they_learnt_from(monkeypatch):
    table = load_uci_set("iris")
    split = partitions(table.y, 1, 5, 0)
    score = cross_validate(table, "softmax", split, SMALL, 3, torch.float64)
    rows = build_stacked_table(encode(table), table.y, 3, [part.training for part in split], torch.float64)
    stack = StackedTrainer("softmax", rows, [part.training for part in split], [(3, k) for k in range(5)], SMALL)
    stack.run()
    answers = predictions(stack, [part.training for part in split])
    wanted = [100 * np.mean(answers[k] == table.y[part.training]) for k, part in enumerate(split)]
    assert score.train == pytest.approx(wanted)
    assert score.train != score.folds
    monkeypatch.setattr(crossval, "MAX_TRAIN_ACCURACY_ROWS", 30)  # of 120
    monkeypatch.setattr(model_stacks, "_MAX_STACK_WEIGHTS", 1)  # each model in a stack of its own, the same draws
    for few in (cross_validate(table, "softmax", split, SMALL, 3, torch.float64) for _ in range(2)):
        seen = [stratified_sample(part.training, table.y, 30, [3, k, 4]) for k, part in enumerate(split)]
        answers = predictions(stack, seen)
        assert few.train == pytest.approx([100 * np.mean(answers[k] == table.y[part]) for k, part in enumerate(seen)])
        assert few.folds == score.folds


def test_a_sample_keeps_the_shares_of_the_classes():
    y = np.repeat([0, 1, 2], [500, 300, 200])
    rows = np.random.default_rng(0).permutation(1000)[:900]
    found = stratified_sample(rows, y, 90, [1, 2])
    assert len(set(found.tolist())) == 90
    assert set(found) <= set(rows)
    np.testing.assert_allclose(np.bincount(y[found]), np.bincount(y[rows]) / 10, atol=1)
    assert (found == stratified_sample(rows, y, 90, [1, 2])).all()
    assert (found != stratified_sample(rows, y, 90, [1, 3])).any()
    assert stratified_sample(rows, y, 900, [0]) is rows


def test_a_training_part_of_one_class_has_that_class_as_its_answer():
    table = table_of([number_column([1, 2, 3, 4, 5, 6]), number_column([2, 1, 4, 3, 6, 5], "z")], [0, 0, 0, 0, 1, 1])
    split = [Partition(np.array([0, 1, 2]), np.array([3, 4, 5]))] * 2
    for name in BASELINES:
        assert cross_validate_baseline(table, name, split, 0).folds == pytest.approx([100 / 3] * 2)
    score = cross_validate(table, "softmax", split, SMALL)
    assert all(0 <= fold <= 100 for fold in score.folds)
    assert math.isnan(score.angles["c_inter"])  # one class has no other to be far from
