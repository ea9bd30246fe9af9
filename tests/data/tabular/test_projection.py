"""Relevance of columns and principal components of wide tables, beside scipy's F-test and numpy's SVD."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from widemargin.data.tabular.encode import EncodedTable, Scaling, column_relevance, projection, scaling


def draw_columns(rows, columns, num_informative, effect, seed=0, classes=3):
    """Normal columns, of which the first few have another mean in every class."""
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % classes
    shift = effect * np.where(np.arange(columns) < num_informative, 1.0, 0.0)
    return rng.standard_normal((rows, columns)) + shift * y[:, None], y


def f_test_p(x, y):
    return np.array([stats.f_oneway(*(column[y == k] for k in np.unique(y))).pvalue for column in x.T])


def relevance_from_p(p):
    """One minus the local false discovery rate, from the definition: the slopes of the least concave majorant."""
    count = len(p)
    null_share = min(1.0, 2.0 * np.mean(p > 0.5) + 1.0 / count)
    order = np.argsort(p, kind="stable")
    px = np.concatenate([[0.0], np.cumsum(np.maximum(np.diff(p[order], prepend=0.0), 1e-12))])
    py = np.arange(count + 1) / count
    weights, at = np.empty(count), 0
    while at < count:  # the steepest line from here to any later point of the distribution function
        slopes = (py[at + 1 :] - py[at]) / (px[at + 1 :] - px[at])
        following = at + 1 + len(slopes) - 1 - int(slopes[::-1].argmax())
        weights[order[at:following]] = max(0.0, 1.0 - null_share / slopes.max())
        at = following
    return weights


@pytest.mark.parametrize(("effect", "num_informative"), [(0.3, 20), (1.0, 4), (0.1, 60)])
def test_weights_follow_from_the_p_values_of_scipys_f_test(effect, num_informative):
    x, y = draw_columns(90, 60, num_informative, effect)
    weights = column_relevance(x, y, 3)
    expected = relevance_from_p(f_test_p(x, y))
    np.testing.assert_allclose(weights, expected if expected.any() else 1.0, atol=1e-6)
    order = np.argsort(f_test_p(x, y))
    assert (np.diff(weights[order]) <= 1e-12).all()  # a smaller p is never of less weight


def test_few_columns_among_many_are_found():
    x, y = draw_columns(200, 2_000, 10, 0.8)
    weights = column_relevance(x, y, 3)
    assert weights[:10].min() > 0.95
    assert weights[10:].mean() < 0.05
    assert set(np.argsort(weights)[-10:]) == set(range(10))


def test_where_most_columns_differ_all_keep_their_weight():
    x, y = draw_columns(300, 400, 400, 0.8)
    assert column_relevance(x, y, 3).min() > 0.95


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(2, 30),
    columns=st.integers(1, 20),
    classes=st.integers(1, 30),
    constant=st.sampled_from(["none", "some", "all", "by_class"]),
    seed=st.integers(0, 1000),
)
def test_weights_are_from_0_to_1_whatever_the_table(rows, columns, classes, constant, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((rows, columns)), rng.integers(classes, size=rows)
    x[:, :: {"none": columns + 1, "some": 2}.get(constant, 1)] *= 1.0 if constant == "none" else 0.0
    if constant == "by_class":
        x += y[:, None]  # no variance within the classes
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weights = column_relevance(x, y, classes)
    assert weights.shape == (columns,)
    assert ((weights >= 0) & (weights <= 1)).all()  # NaN is neither
    assert weights.any()
    if len(np.unique(y)) in (1, rows):  # nothing to test
        assert (weights == 1).all()


# ---------------------------------------------------------------- projection


def encode_numbers(x):
    return EncodedTable(np.asarray(x, np.float64), np.ones(x.shape[1], np.bool_), ())


def identity_scaling(models, columns):
    return Scaling(np.zeros((models, columns)), np.ones((models, columns)), None)


@pytest.mark.parametrize(("rows", "columns"), [(12, 40), (60, 15), (20, 20)])
@pytest.mark.parametrize("max_components", [1, 7, 1000])
def test_components_are_those_of_an_svd(rows, columns, max_components):
    x = np.random.default_rng(1).standard_normal((rows + 5, columns)) * np.linspace(0.5, 3, columns)
    y, part = np.arange(rows + 5) % 2, np.arange(rows)
    scales = scaling(encode_numbers(x), [part])
    matrix = projection(encode_numbers(x), y, 2, [part], scales, 0.0, max_components)[0]
    z = (x[part] - x[part].mean(0)) / x[part].std(0)
    _, singular, axes = np.linalg.svd(z, full_matrices=False)
    count = min(max_components, rows, columns)
    rank = min(count, rows - 1, columns)  # a centred matrix has one direction less than rows
    assert matrix.shape == (columns, count)
    scores = z @ matrix
    assert scores.var(axis=0).mean() == pytest.approx(1.0)
    unit = np.sqrt((singular[:count] ** 2).sum() / (rows * count))
    expected = z @ axes[:rank].T / unit
    sign = np.sign((scores[:, :rank] * expected).sum(0))
    np.testing.assert_allclose(scores[:, :rank] * sign, expected, atol=1e-8)
    assert not matrix[:, rank:].any()  # nothing was learned about other directions


def test_screening_weights_columns_before_the_components():
    x, y = draw_columns(120, 300, 5, 1.5)
    encoded, part = encode_numbers(x), np.arange(120)
    scales = scaling(encoded, [part])
    z = x * scales.scale[0] + scales.shift[0]
    for screening in (0.5, 1.0, 2.0):
        weights = column_relevance(z, y, 3) ** screening
        plain = projection(encode_numbers(z * weights), y, 3, [part], identity_scaling(1, 300), 0.0, 4)[0]
        found = projection(encoded, y, 3, [part], scales, screening, 4)[0]
        scores, expected = z @ found, (z * weights) @ plain
        np.testing.assert_allclose(scores * np.sign((scores * expected).sum(0)), expected, atol=1e-8)
    assert not found[weights == 0].any()
    assert (weights == 0).sum() > 250


def test_each_model_projects_by_its_own_training_rows_and_fills_by_their_medians():
    x, y = draw_columns(60, 90, 6, 1.0)
    x[np.random.default_rng(2).random(x.shape) < 0.1] = np.nan
    parts = [np.arange(0, 40), np.arange(15, 60)]
    encoded = encode_numbers(x)
    together = projection(encoded, y, 3, parts, scaling(encoded, parts), 1.0, 10)
    assert np.isfinite(together).all()
    for k, part in enumerate(parts):
        changed = x.copy()
        changed[np.setdiff1d(np.arange(60), part)] = 99.0
        others = y.copy()
        others[np.setdiff1d(np.arange(60), part)] = 0
        alone = encode_numbers(changed)
        (expected,) = projection(alone, others, 3, [part], scaling(alone, [part]), 1.0, 10)
        np.testing.assert_allclose(together[k], expected, atol=1e-10)


def test_columns_that_do_not_vary_have_no_components():
    x = np.zeros((20, 200))
    x[:, 3] = np.arange(20)
    encoded, parts = encode_numbers(x), [np.arange(20)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        matrix = projection(encoded, np.arange(20) % 2, 2, parts, scaling(encoded, parts), 1.0, 5)[0]
        nothing = projection(encode_numbers(0 * x), np.arange(20) % 2, 2, parts, identity_scaling(1, 200), 1.0, 5)[0]
    assert np.isfinite(matrix).all()
    assert not np.delete(matrix, 3, axis=0).any()
    assert np.isfinite(nothing).all()
