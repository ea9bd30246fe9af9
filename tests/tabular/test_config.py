"""The rule by which settings follow the size of a table: its values, its domain, and that it has no jumps."""

import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from widemargin.tabular.config import SMALL_ROWS, MLPConfig, default_repeats_and_folds

ROWS, COLUMNS, CLASSES = st.integers(2, 10**7), st.integers(1, 50_000), st.integers(2, 10**5)
CONTINUOUS = ("lr", "weight_decay", "dropout", "epochs")


def within(first, second, ratio):
    return first == second or 1 / ratio <= first / second <= ratio


@given(st.integers(2, SMALL_ROWS), st.integers(1, 128), st.integers(2, 16))
def test_small_tables_get_the_defaults(rows, columns, classes):
    config = MLPConfig.for_table(rows, columns, classes)
    assert (config.hidden, config.batch, config.lr) == ((64, 24), 16, 0.03)
    assert (config.weight_decay, config.dropout, config.epochs, config.min_steps) == (0.3, 0.2, 8.0, 300)
    assert (config.val_fraction, config.screening, config.max_components) == (0, 0, 0)


@given(ROWS, COLUMNS, CLASSES)
def test_every_setting_is_within_its_domain(rows, columns, classes):
    config = MLPConfig.for_table(rows, columns, classes)  # which checks the domains of the options
    assert 2 <= len(config.hidden) <= 4
    assert all(24 <= width <= 512 and width % 8 == 0 for width in config.hidden)
    assert 16 <= config.batch <= 512
    assert 0 < config.lr <= 0.03
    assert 0 < config.weight_decay <= 0.3
    assert 0 < config.dropout <= 0.2
    assert 0 < config.epochs <= 8 * 15**0.45 * 1.001
    assert config.val_fraction * rows <= 5_000 * 1.01
    assert (config.val_fraction > 0) == (rows >= 4_000)
    assert 0 <= config.screening <= 1
    assert config.max_components <= columns
    assert (config.max_components > 0) == (config.screening > 0)
    steps, batch = config.steps_and_batch(rows)
    assert steps >= 300
    assert 1 <= batch <= rows


def check_close(one, other, ratio):
    """Settings of neighbouring sizes: but for rounding (three digits, eight units) they differ by `ratio` at most."""
    for name in CONTINUOUS:
        assert within(getattr(one, name), getattr(other, name), ratio * 1.011), name
    assert abs(one.batch - other.batch) <= 1 + one.batch * (ratio - 1)
    if len(one.hidden) == len(other.hidden):
        for width, beside in zip(one.hidden, other.hidden, strict=True):
            assert abs(width - beside) <= 8 + width * (ratio - 1)
    else:  # a layer more between; the first and the last stay
        assert abs(len(one.hidden) - len(other.hidden)) <= 2
        for place in (0, -1):
            assert abs(one.hidden[place] - other.hidden[place]) <= 8 + one.hidden[place] * (ratio - 1)
    assert abs(one.screening - other.screening) <= 0.01 + 2 * math.log2(ratio)


@given(ROWS, COLUMNS, CLASSES)
def test_one_row_column_or_class_more_changes_little(rows, columns, classes):
    here = MLPConfig.for_table(rows, columns, classes)
    check_close(here, MLPConfig.for_table(rows + 1, columns, classes), 1 + 1 / rows)
    check_close(here, MLPConfig.for_table(rows, columns + 1, classes), 1 + 1 / columns)
    check_close(here, MLPConfig.for_table(rows, columns, classes + 1), 1 + 1 / max(16, classes))


@pytest.mark.parametrize("classes", [2, 16, 17, 100])
def test_the_edge_of_small_tables_is_no_jump(classes):
    for columns in (1, 128, 129):
        pair = [MLPConfig.for_table(rows, columns, classes) for rows in (SMALL_ROWS, SMALL_ROWS + 1)]
        assert pair[0].hidden[0] == pair[1].hidden[0]
        check_close(*pair, 1 + 1 / SMALL_ROWS)


@given(ROWS, COLUMNS, CLASSES)
def test_layers_are_added_only_at_so_many_rows_of_a_class(rows, columns, classes):
    def depth_by_documentation(rows, classes):
        each = rows / classes if rows > SMALL_ROWS else 0
        return 2 + (each >= 500) + (each >= 1_000)

    assert len(MLPConfig.for_table(rows, columns, classes).hidden) == depth_by_documentation(rows, classes)


@given(st.lists(ROWS, min_size=2, max_size=2).map(sorted), COLUMNS, CLASSES)
def test_with_more_rows_batches_do_not_shrink_and_rates_do_not_grow(rows, columns, classes):
    small, large = (MLPConfig.for_table(count, columns, classes) for count in rows)
    assert small.batch <= large.batch
    for name in ("lr", "weight_decay", "dropout"):
        assert getattr(small, name) >= getattr(large, name), name
    assert small.screening >= large.screening


@given(ROWS, COLUMNS, CLASSES, st.sampled_from(fields(MLPConfig)))
def test_what_is_given_stays_and_changes_nothing_else(rows, columns, classes, field):
    value = getattr(MLPConfig(hidden=(7, 5), epochs=3.0, patience=9), field.name)
    rule, changed = (MLPConfig.for_table(rows, columns, classes, **given) for given in ({}, {field.name: value}))
    for one in fields(MLPConfig):
        assert getattr(changed, one.name) == (value if one.name == field.name else getattr(rule, one.name))


@given(st.integers(1, 10**7))
def test_repeats_and_folds_follow_the_rows(rows):
    repeats, folds = default_repeats_and_folds(rows)
    assert folds == (10 if rows < 50_000 else 5)
    assert repeats == 10 if rows <= 2_000 else 1 <= repeats <= 10
    assert repeats == 1 or rows < 20_000
    assert default_repeats_and_folds(rows + 1)[0] in (repeats, repeats - 1)
