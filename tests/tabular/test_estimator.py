"""MarginClassifier passes scikit-learn's checks, and its model is the one a comparison trains."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris, make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, LeaveOneOut, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import check_dataframe_column_names_consistency, parametrize_with_checks

import adult_like
import widemargin as wm
from benchmarks.estimator_checks import EXPECTED_FAILURES, check_loss, list_losses_to_check, make_estimator
from widemargin import MarginClassifier
from widemargin.data.tabular.encode import encode
from widemargin.data.tabular.load import load_table
from widemargin.data.tabular.table import Column, Table
from widemargin.tabular import crossval, model_stacks
from widemargin.tabular.batched import StackedTrainer
from widemargin.tabular.config import MLPConfig
from widemargin.tabular.early_stopping import train_validation_split
from widemargin.tabular.novelty import MAX_HELD_OUT

LOSSES = [
    "arcgrad(s=5)",
    "softmax",
    "arcface(s=20, m=0.1)",
    "adacos(floor=2)",
    "softmax + 0.02*center",
    "cross_entropy",
]
X, Y = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[Y]


def quick_classifier(loss="arcgrad(s=5)", **changed):
    return MarginClassifier(loss, **{"min_steps": 60, "epochs": 1, "hidden": (24, 8), "random_state": 0, **changed})


# `array_api` is skipped by scikit-learn itself unless SCIPY_ARRAY_API is set; `test_a_weight_of_two_is_about_two_rows`
# has what holds instead of the two expected failures.
@parametrize_with_checks(
    [make_estimator(loss) for loss in LOSSES],
    expected_failed_checks=lambda _: EXPECTED_FAILURES,
)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.mark.exhaustive
@pytest.mark.parametrize("loss", list_losses_to_check()[0])
def test_scikit_learns_own_checks_of_every_loss(loss):
    result = check_loss(loss)
    assert result["failed"] == {}
    assert result["passed"] == result["checks"] - len(EXPECTED_FAILURES) - 1


def test_every_loss_is_checked_or_refused_with_a_reason():
    losses, refused = list_losses_to_check()
    names = {part.name for loss in losses for _, part in getattr(wm.parse(loss), "parts", [(1.0, wm.parse(loss))])}
    assert names | set(refused) == set(wm.list_losses())
    assert set(refused) == {"bce", "huber", "l1", "l2"}


def test_feature_names_are_kept_and_compared():
    check_dataframe_column_names_consistency("MarginClassifier", quick_classifier())


def test_what_is_not_given_follows_the_size_of_x():
    model = MarginClassifier(random_state=0).fit(X, Y)
    assert model.config_ == MLPConfig()
    assert model.score(X, Y) > 0.95
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((1_500, 3)), np.arange(1_500) % 3
    given = {"hidden": [8, 4], "min_steps": 5, "epochs": 0, "patience": 4}
    model = MarginClassifier(**given, random_state=0).fit(x, y)
    assert model.config_ == MLPConfig.for_table(1_500, 3, 3, **{**given, "hidden": (8, 4)})
    assert model.config_.lr < MLPConfig().lr
    assert model.get_params()["lr"] is None  # parameters stay as they were given


@pytest.mark.parametrize(
    ("count", "early_stopping", "held_out"), [(3_999, None, 0), (4_000, None, 0.1), (4_000, False, 0)]
)
def test_rows_are_held_out_where_the_rule_does_so(count, early_stopping, held_out):
    x, y = np.random.default_rng(0).standard_normal((count, 2)), np.arange(count) % 2
    model = MarginClassifier(
        hidden=(4,), epochs=0, min_steps=3, early_stopping=early_stopping, validation_fraction=0.5, random_state=0
    ).fit(x, y)
    assert model.config_.val_fraction == held_out
    assert (model.validation_scores_ is not None) == (held_out > 0)


# ---------------------------------------------------------------- the same model as a comparison's


def iris_folds(gaps):
    x = X.copy()
    if gaps:
        x[np.random.default_rng(0).random(x.shape) < 0.1] = np.nan
    data = Table("iris", tuple(Column(f"x{i}", x[:, i]) for i in range(4)), Y.astype(np.int64), ("a", "b", "c"))
    return x, data, crossval.partitions(data.y, 1, 5, seed=2)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_fit_is_a_fold_of_a_comparison(loss, gaps, monkeypatch):
    monkeypatch.setattr(MarginClassifier, "_dtype", torch.float64)
    x, data, split = iris_folds(gaps)
    model = quick_classifier(loss, random_state=4).fit(x[split[0].training], Y[split[0].training])
    config = MLPConfig(hidden=(24, 8), epochs=1, min_steps=60)
    rows = model_stacks.build_stacked_table(encode(data), data.y, 3, [part.training for part in split], torch.float64)
    stack = StackedTrainer(loss, rows, [part.training for part in split], [(4, k) for k in range(5)], config)
    stack.run()
    np.testing.assert_allclose(model.class_weights_, stack.objective.head.weight[0].detach(), rtol=1e-9, atol=1e-9)
    expected = stack.logits(torch.arange(150).expand(5, -1))[0]
    np.testing.assert_allclose(model.decision_function(x), expected, rtol=1e-8, atol=1e-8)
    score = crossval.cross_validate(data, loss, split, config, seed=4, dtype=torch.float64)
    assert score.folds[0] == pytest.approx(100 * model.score(x[split[0].test], Y[split[0].test]))
    assert model.angles(x[split[0].training], Y[split[0].training]).wc_intra > 0


def test_single_precision_is_near_double(monkeypatch):
    single = quick_classifier().fit(X, Y).predict_proba(X)
    monkeypatch.setattr(MarginClassifier, "_dtype", torch.float64)
    np.testing.assert_allclose(quick_classifier().fit(X, Y).predict_proba(X), single, atol=1e-4)


def test_missing_values_are_the_medians_of_the_training_rows():
    x, _, split = iris_folds(gaps=True)
    training = x[split[0].training]
    full = np.where(np.isnan(training), np.nanmedian(training, axis=0), training)
    with_gaps, without = (
        quick_classifier().fit(training, Y[split[0].training]),
        quick_classifier().fit(full, Y[split[0].training]),
    )
    np.testing.assert_allclose(with_gaps.class_weights_, without.class_weights_)
    np.testing.assert_allclose(with_gaps.predict_proba(x), without.predict_proba(x))  # gaps that come later, too
    assert quick_classifier().fit(np.c_[x, np.full(150, np.nan)], Y).score(np.c_[x, np.full(150, np.nan)], Y) > 0.8


@pytest.mark.parametrize("standardize", [True, False])
def test_standardize_makes_units_irrelevant(standardize):
    other = np.array([0.0, 1e9, 1e9, -5.0]) + X * np.array([1e-12, 1e3, 1.0, 1e4])
    model, twin = (
        quick_classifier(standardize=standardize).fit(X, Y),
        quick_classifier(standardize=standardize).fit(other, Y),
    )
    assert np.allclose(model.transform(X), twin.transform(other), atol=1e-3) is standardize


# ---------------------------------------------------------------- what comes out


@pytest.mark.parametrize("loss", LOSSES)
def test_probabilities_logits_and_labels_agree(loss):
    model = quick_classifier(loss).fit(X, NAMES)
    logits, probabilities = model.decision_function(X), model.predict_proba(X)
    assert logits.shape == probabilities.shape == (150, 3)
    assert logits.dtype == probabilities.dtype == np.float64
    np.testing.assert_allclose(probabilities.sum(1), 1.0, rtol=0, atol=1e-15)
    np.testing.assert_allclose(np.log(probabilities), model.predict_log_proba(X), rtol=1e-6)
    assert (model.classes_[logits.argmax(1)] == model.predict(X)).all()
    assert model.score(X, NAMES) > 0.8


def test_two_classes_have_one_column():
    model = quick_classifier("arcface(s=20, m=0.1)").fit(X[:100], NAMES[:100])
    lead = model.decision_function(X[:100])
    assert lead.shape == (100,)
    assert (model.classes_[(lead > 0).astype(int)] == model.predict(X[:100])).all()
    assert model.temperature_ != 1
    np.testing.assert_allclose(model.predict_proba(X[:100])[:, 1], 1 / (1 + np.exp(-lead / model.temperature_)))


def test_embeddings_and_angles():
    model = quick_classifier(hidden=[16, 6]).fit(X, NAMES)
    embedded = model.transform(X)
    assert embedded.shape == (150, 6) == (150, model.embedding_dim_)
    assert model.class_weights_.shape == (3, 6)
    assert model.angles(X, NAMES) == wm.angles(
        torch.tensor(embedded), torch.tensor(Y), torch.tensor(model.class_weights_)
    )
    assert model.angles(X[:100], NAMES[:100]).empty_classes == [2]
    assert model.transform(X.astype(np.float32)).dtype == np.float32
    assert list(model.get_feature_names_out()) == [f"marginclassifier{i}" for i in range(6)]
    assert list(model.set_output(transform="pandas").transform(X).columns) == list(model.get_feature_names_out())


def test_rows_do_not_depend_on_their_company():
    model = quick_classifier().fit(X, Y)
    one_by_one = np.concatenate([model.predict_proba(X[i : i + 1]) for i in range(150)])
    np.testing.assert_allclose(one_by_one, model.predict_proba(X), rtol=1e-12)


@pytest.mark.parametrize("labels", [Y, NAMES])
def test_predictions_of_one_row_are_an_array_of_one(labels):
    model = quick_classifier().fit(X, labels)
    found = model.predict(X[:1])
    assert isinstance(found, np.ndarray)
    assert found.shape == (1,)
    assert found.dtype == labels.dtype
    assert found[0] == model.predict(X[:2])[0]
    assert model.score(X[:1], labels[:1]) in (0.0, 1.0)
    assert cross_val_predict(model, X[::15], labels[::15], cv=LeaveOneOut()).shape == (10,)


def test_the_course_is_written_down(capsys):
    model = quick_classifier(epochs=3, batch=32, min_steps=1, verbose=1).fit(X, Y)
    assert model.n_steps_ == round(3 * 150 / 32)
    assert model.n_iter_ == len(model.loss_curve_) == 3
    assert model.loss_curve_[-1] < model.loss_curve_[0]
    assert model.validation_scores_ is None
    assert "step 14 of 14, loss" in capsys.readouterr().out
    quick_classifier().fit(X, Y)
    assert capsys.readouterr().out == ""


# ---------------------------------------------------------------- early stopping


def test_early_stopping_keeps_the_best_weights():
    model = quick_classifier(early_stopping=True, validation_fraction=0.3, patience=3, min_steps=500, lr=0.1).fit(X, Y)
    training, validation = train_validation_split(Y, 0.3, seed=[0])
    assert not np.intersect1d(training, validation).size
    assert np.bincount(Y[validation]).tolist() == [15, 15, 15]
    assert model.n_steps_ < 500
    assert model.best_validation_score_ == max(model.validation_scores_)
    assert model.score(X[validation], Y[validation]) == model.best_validation_score_
    again = quick_classifier(early_stopping=True, validation_fraction=0.3, patience=3, min_steps=500, lr=0.1).fit(X, Y)
    assert (again.class_weights_ == model.class_weights_).all()


def test_early_stopping_learns_nothing_from_what_it_holds_out():
    far = X.copy()
    _, validation = train_validation_split(Y, 0.1, seed=[0])
    far[validation] *= 1000
    models = [quick_classifier(early_stopping=True, patience=100).fit(x, Y) for x in (X, far)]
    np.testing.assert_array_equal(*(model._model.preprocessing.scale for model in models))
    np.testing.assert_allclose(*(model.loss_curve_ for model in models))


def test_no_class_is_held_out_whole():
    y = np.array([0] * 50 + [1] * 2 + [2])
    for fraction in (0.01, 0.5, 0.99):
        training, validation = train_validation_split(y, fraction, seed=[1])
        assert set(y[training]) == {0, 1, 2}
        assert len(training) + len(validation) == 53
    with pytest.raises(wm.InputError, match="early_stopping=False"):
        quick_classifier(early_stopping=True).fit(X[[0, 60, 120]], Y[[0, 60, 120]])


# ---------------------------------------------------------------- at home in scikit-learn


def test_pipeline_grid_search_and_cross_validation():
    search = GridSearchCV(
        make_pipeline(MinMaxScaler(), quick_classifier()), {"marginclassifier__loss": LOSSES[:3]}, cv=3
    )
    search.fit(X, NAMES)
    assert search.best_score_ > 0.8
    assert search.best_params_["marginclassifier__loss"] in LOSSES
    assert cross_val_score(quick_classifier(), X, NAMES, cv=3, scoring="roc_auc_ovr").min() > 0.8
    features = make_pipeline(quick_classifier(), LogisticRegression()).fit(X, NAMES)
    assert features.score(X, NAMES) > 0.8


def test_data_frames_and_column_names():
    frame = pd.DataFrame(X, columns=["sl", "sw", "pl", "pw"]).astype({"sw": "float32"})
    labels = pd.Series(NAMES, dtype="category")
    model = quick_classifier().fit(frame, labels)
    assert model.feature_names_in_.tolist() == ["sl", "sw", "pl", "pw"]
    assert model.n_features_in_ == 4
    assert model.score(frame, labels) > 0.8
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["pw", "sl", "sw", "pl"]])
    gap = frame.astype("Float64")
    gap.iloc[3, 1] = pd.NA
    assert quick_classifier().fit(gap, pd.Series(NAMES)).score(gap, NAMES) > 0.8


@pytest.mark.parametrize(
    "loss", [*LOSSES, "normface(s=learnable(8))", "cosface(s=warmup(2, 8, steps=30), m=[0, 0.1, 0.2])"]
)
def test_a_restored_model_predicts_the_same(loss):
    model = quick_classifier(loss).fit(X, NAMES)
    expected = model.predict_proba(X)
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), clone(model).fit(X, NAMES)):
        assert (twin.predict_proba(X) == expected).all()
        assert twin.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        clone(model).predict(X)
    many = quick_classifier(loss, batch=1000).fit(*make_blobs(20_000, 4, random_state=0))
    held_out = 8 * MAX_HELD_OUT  # one distance of each
    assert len(pickle.dumps(many)) < len(pickle.dumps(model)) + held_out + 20_000  # no rows inside


def test_a_loss_may_be_a_value():
    model = quick_classifier(wm.ArcGrad(s=5)).fit(X, Y)
    assert (model.predict_proba(X) == quick_classifier("arcgrad(s=5)").fit(X, Y).predict_proba(X)).all()
    assert clone(model).set_params(loss="softmax").fit(X, Y).score(X, Y) > 0.8


@pytest.mark.parametrize(
    "loss", ["arcgrad(s=5)", "softmax + 0.5*triplet(mining=distance)", "softmax + 0.5*proxy_anchor"]
)
def test_random_state_is_all_the_chance_there_is(loss):
    torch.manual_seed(5)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    np.random.seed(5)  # noqa: NPY002 - the global generator is what must stay untouched
    numpy_state = np.random.get_state()[1].copy()  # noqa: NPY002
    with torch.no_grad():  # somebody else's business
        first = quick_classifier(loss).fit(X, Y)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert (np.random.get_state()[1] == numpy_state).all()  # noqa: NPY002
    torch.manual_seed(6)
    assert (quick_classifier(loss).fit(X, Y).class_weights_ == first.class_weights_).all()
    assert (quick_classifier(loss, random_state=1).fit(X, Y).class_weights_ != first.class_weights_).any()
    generators = [
        quick_classifier(loss, random_state=np.random.RandomState(3)).fit(X, Y).class_weights_ for _ in range(2)
    ]
    assert (generators[0] == generators[1]).all()
    assert quick_classifier(loss, random_state=None).fit(X, Y).score(X, Y) > 0.5


# ---------------------------------------------------------------- what people have

ADULT = adult_like.draw(300, seed=0)
RAW, INCOME = ADULT.drop(columns="income"), ADULT["income"]


def raw_frame():
    """The table with the types that a DataFrame may have."""
    return RAW.assign(
        education=RAW["education"].astype("category"),
        hired=pd.to_datetime(RAW["hired"], format="%d.%m.%Y"),
        married=RAW["married"].astype("boolean"),
    )


def test_raw_data_frames_are_read_by_the_encoder_of_files(tmp_path):
    frame = raw_frame()
    model = quick_classifier().fit(frame, INCOME)
    assert model.score(frame, INCOME) > 0.75
    assert model.n_features_in_ == 9
    assert model.feature_names_in_.tolist() == list(frame.columns)
    np.testing.assert_array_equal(model.predict_proba(frame[list(reversed(frame.columns))]), model.predict_proba(frame))
    ADULT.to_csv(tmp_path / "a.csv", index=False)
    encoder = wm.TableEncoder().fit(frame)
    table = load_table(tmp_path / "a.csv", "income")
    np.testing.assert_array_equal(encoder.transform(frame), wm.TableEncoder.from_table(table).encode_table(table))
    assert model.encoder_.get_feature_names_out().tolist() == encoder.get_feature_names_out().tolist()
    piped = make_pipeline(wm.TableEncoder(), quick_classifier()).fit(frame, INCOME)
    assert piped.score(frame, INCOME) > 0.7
    assert cross_val_score(quick_classifier(), frame, INCOME, cv=3).mean() > 0.7
    with pytest.raises(wm.InputError, match="no column 'age'"):
        model.predict(frame.drop(columns="age"))


def test_one_row_is_read_as_the_table_was():
    model = quick_classifier().fit(RAW, INCOME)
    together = model.predict_proba(RAW)
    for row in range(5):
        np.testing.assert_allclose(model.predict_proba(RAW.iloc[row : row + 1]), together[row : row + 1], atol=1e-12)


def test_a_data_frame_fits_as_a_fold_of_a_comparison_with_categories(monkeypatch):
    monkeypatch.setattr(MarginClassifier, "_dtype", torch.float64)
    table = load_table(ADULT, "income")
    rows = np.arange(len(table))
    config = MLPConfig(hidden=(24, 8), epochs=1, min_steps=60)
    stacked = model_stacks.build_stacked_table(encode(table), table.y, 2, [rows], torch.float64)
    stack = StackedTrainer("arcgrad(s=5)", stacked, [rows], [(4, 0)], config)
    stack.run()
    model = quick_classifier(random_state=4).fit(RAW, INCOME)
    np.testing.assert_allclose(model.class_weights_, stack.objective.head.weight[0].detach(), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.coo_array, sparse.csc_array])
def test_sparse_matrices_are_as_dense_ones(form):
    x = np.where(np.random.default_rng(0).random(X.shape) < 0.3, 0.0, X)
    dense, thin = quick_classifier().fit(x, Y), quick_classifier().fit(form(x), Y)
    np.testing.assert_array_equal(thin.predict_proba(form(x)), dense.predict_proba(x))
    wide = sparse.csr_matrix((3, 1 << 27))
    with pytest.raises(wm.InputError, match="TruncatedSVD"):
        quick_classifier().fit(wide, [0, 1, 0])


def test_a_weight_of_two_is_about_two_rows():
    x, y = make_blobs(400, 2, centers=2, cluster_std=4.0, random_state=0)
    weight = np.where(y == 0, 2, 1)
    given = {"hidden": (8,), "epochs": 30, "dropout": 0, "calibrate": False}
    weighted = [quick_classifier("softmax", random_state=k, **given).fit(x, y, weight) for k in range(4)]
    repeated = [
        quick_classifier("softmax", random_state=k, **given).fit(np.repeat(x, weight, 0), np.repeat(y, weight))
        for k in range(4)
    ]
    plain = [quick_classifier("softmax", random_state=k, **given).fit(x, y) for k in range(4)]
    means = [
        np.mean([model.predict_proba(x)[:, 0].mean() for model in models]) for models in (weighted, repeated, plain)
    ]
    assert abs(means[0] - means[1]) < 0.3 * (means[1] - means[2])
    dropped = quick_classifier().fit(np.r_[X, X + 100], np.r_[Y, Y], np.r_[np.ones(150), np.zeros(150)])
    assert dropped.score(X, Y) > 0.8


def test_class_weights():
    draw = np.random.default_rng(0)
    y = (np.arange(1_000) % 10 == 0).astype(int)
    x = draw.standard_normal((1_000, 3)) + 0.8 * y[:, None]
    recall = {
        str(weight): (quick_classifier(class_weight=weight, epochs=3).fit(x, y).predict(x)[y == 1] == 1).mean()
        for weight in (None, "balanced", {0: 1, 1: 9})
    }
    assert recall["None"] + 0.2 < recall["balanced"]
    assert abs(recall["balanced"] - recall["{0: 1, 1: 9}"]) < 0.1
    by_rows = quick_classifier(epochs=3).fit(x, y, np.where(y == 1, 9, 1))
    by_class = quick_classifier(epochs=3, class_weight={0: 1, 1: 9}).fit(x, y)
    np.testing.assert_allclose(by_rows.predict_proba(x), by_class.predict_proba(x))
    with pytest.raises(wm.InputError, match="class_weight"):
        quick_classifier(class_weight="even").fit(x, y)
    with pytest.raises(wm.InputError, match="two classes"):
        quick_classifier().fit(x, y, (y == 0).astype(float))


def test_options_of_the_loss_are_parameters():
    search = GridSearchCV(quick_classifier("arcface(s=20, m=0.1)"), {"loss__s": [4, 16], "loss__m": [0, 0.2]}, cv=3)
    search.fit(X, Y)
    assert set(search.best_params_) == {"loss__s", "loss__m"}
    assert search.best_estimator_.get_params()["loss__m"] == search.best_params_["loss__m"]
    model = quick_classifier("softmax + 0.02*center")
    assert clone(model.set_params(loss__alpha=0.7)).loss == "softmax + 0.02*center(alpha=0.7)"
    assert model.set_params(loss=wm.ArcFace(s=9), loss__m=0.2).loss == wm.ArcFace(s=9, m=0.2)
    with pytest.raises(wm.InputError, match="unknown option of arcface 'q'"):
        model.set_params(loss__q=1)
    with pytest.raises(wm.InputError, match="domain"):
        model.set_params(loss__s=-1)


def test_tuning_chooses_and_is_reproducible(capsys):
    given = {"tune_trials": 4, "verbose": 1, "min_steps": 20}
    model = quick_classifier("arcface(s=20, m=0.1)", **given).fit(X, Y)
    assert "tuned with 4 trials: lr" in capsys.readouterr().out
    assert set(model.tuned_) == {"lr", "weight_decay", "s", "m"}
    assert model.config_.lr == model.tuned_["lr"]
    assert model.get_params()["loss"] == "arcface(s=20, m=0.1)"
    again = quick_classifier("arcface(s=20, m=0.1)", **given).fit(X, Y)
    np.testing.assert_array_equal(model.predict_proba(X), again.predict_proba(X))
    assert quick_classifier().fit(X, Y).tuned_ is None
    with pytest.raises(wm.InputError, match="tune_trials"):
        quick_classifier(tune_trials=0).fit(X, Y)


def test_probabilities_are_calibrated():
    draw = np.random.default_rng(0)
    y = np.arange(3_000) % 2
    x = draw.standard_normal((3_000, 5)) + 0.5 * y[:, None]
    plain, calibrated = (
        MarginClassifier("arcface(s=64, m=0.5)", calibrate=wanted, random_state=0).fit(x[:1_000], y[:1_000])
        for wanted in (False, True)
    )
    held, truth = x[1_000:], y[1_000:]
    losses = [-np.log(model.predict_proba(held)[np.arange(2_000), truth]).mean() for model in (plain, calibrated)]
    assert plain.temperature_ == 1
    assert losses[1] < losses[0] - 0.05
    np.testing.assert_array_equal(plain.predict(held), calibrated.predict(held))  # the same weights
    stopped = quick_classifier("arcgrad(s=30)", early_stopping=True).fit(x[:1_000], y[:1_000])
    assert stopped.temperature_ != 1


def test_there_is_no_partial_fit_and_a_reason():
    assert not hasattr(quick_classifier(), "partial_fit")
    with pytest.raises(AttributeError, match="a model trained in parts would differ"):
        quick_classifier().partial_fit(X, Y)


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"loss": "arcfase"}, "did you mean 'arcface'"),
        ({"loss": "arcface(margin=1)"}, "unknown option"),
        ({"loss": 5}, "must be a string"),
        ({"loss": "triplet"}, "no class weights"),
        ({"loss": "l2"}, "does not choose"),
        ({"loss": "cosface(m=[0.1, 0.2])"}, "2 numbers for 3 classes"),
        ({"hidden": ()}, "hidden"),
        ({"hidden": 64}, "sequence"),
        ({"hidden": ("a",)}, "hidden"),
        ({"epochs": "many"}, "epochs"),
        ({"batch": 2.5}, "batch"),
        ({"lr": -1}, "lr"),
        ({"dropout": 1.0}, "dropout"),
        ({"lr": 1e30, "loss": "softmax"}, "use lr below"),
        ({"loss": "cross_entropy", "label_smoothing": 0.1}, "label_smoothing"),
        ({"device": "quantum"}, "device='cpu'"),
        ({"early_stopping": True, "validation_fraction": 1.0}, "validation_fraction"),
        ({"early_stopping": True, "patience": 0}, "patience must be a whole number of at least 1, got 0"),
        ({"patience": "long"}, "patience must be a whole number of at least 1, got 'long'"),
        ({"screening": -1}, "screening must be a number of at least 0"),
        ({"max_components": 2.5}, "max_components must be a whole number"),
    ],
)
def test_a_wrong_setting_is_one_line_when_fitting(wrong, message):
    with pytest.raises(wm.InputError, match=message) as caught:
        quick_classifier(**wrong).fit(X, Y)
    assert "\n" not in str(caught.value)


def test_bad_rows_are_refused():
    with pytest.raises(ValueError, match="infinity"):
        quick_classifier().fit(np.where(X > 7, np.inf, X), Y)
    with pytest.raises(wm.InputError, match="row 3 of X"):
        quick_classifier().fit(np.where(np.arange(150)[:, None] == 3, 1e200, X), Y)
    with pytest.raises(wm.InputError, match="one class"):
        quick_classifier().fit(X[:50], NAMES[:50])
    with pytest.raises(ValueError, match="Unknown label type"):
        quick_classifier().fit(X, X[:, 0])
    for frame, missing in ((X, None), (RAW, None), (RAW, np.nan)):
        y = np.resize(NAMES, len(frame)).astype(object)
        y[4] = missing
        with pytest.raises(wm.InputError, match="1 missing labels, the first in row 4"):
            quick_classifier().fit(frame, y)
    model = quick_classifier().fit(X, NAMES)
    with pytest.raises(wm.InputError, match="row 1 of X"):
        model.predict(np.array([X[0], X[1] * 1e90]))
    with pytest.raises(wm.InputError, match="'rose' was not among"):
        model.angles(X[:2], ["setosa", "rose"])
    with pytest.raises(ValueError, match="Seed must be"):
        quick_classifier(random_state=-1).fit(X, Y)


@pytest.mark.parametrize("lowest", [-10, 18, 1922, "rows"])
def test_temperatures_ages_years_and_row_numbers_are_refused(lowest):
    draw = np.random.default_rng(0)
    y = np.arange(1000) if lowest == "rows" else draw.integers(lowest, lowest + 60, 1000)
    with pytest.raises(wm.InputError, match="number to be predicted"):
        quick_classifier().fit(draw.normal(size=(1000, 3)), y)


def test_codes_of_classes_with_two_rows_each_are_classes():
    draw = np.random.default_rng(0)
    y = draw.integers(0, 40, 100)
    assert (np.bincount(y) == 1).sum() >= 4  # a tenth, by which a quantity is known
    assert len(quick_classifier().fit(draw.normal(size=(100, 3)), y).classes_) == len(np.unique(y))


@pytest.mark.parametrize("kind", [float, int, np.float32])
def test_a_number_to_be_predicted_is_refused(kind):
    rows, target = load_diabetes(return_X_y=True)
    with pytest.raises(wm.InputError, match=r"214.*442") as caught:
        quick_classifier().fit(rows, target.astype(kind))
    assert "astype(str)" in str(caught.value)
    with pytest.raises(ValueError, match="Unknown label type"):
        quick_classifier().fit(rows, target + 0.5)


@pytest.mark.filterwarnings("ignore:The number of unique classes")
def test_many_whole_numbers_are_classes_if_each_has_two_rows_or_they_are_counted():
    codes = np.repeat(np.arange(1000), 2)
    y = 7 * codes + 5000  # in a row they could be years
    rows = np.random.default_rng(0).normal(size=(2000, 3))
    model = quick_classifier(min_steps=2, epochs=0).fit(rows, y)
    assert len(model.classes_) == 1000
    assert model.predict(rows[:3]).dtype == y.dtype
    part = np.arange(2000) % 4 < 3  # of every other class a row is left
    assert len(quick_classifier(min_steps=2, epochs=0).fit(rows[part], codes[part]).classes_) == 1000
    _, target = load_diabetes(return_X_y=True)  # said to be classes
    assert len(quick_classifier(min_steps=2, epochs=0).fit(rows[:442], target.astype(str)).classes_) == 214


def test_importing_the_package_waits_for_nothing():
    code = "import sys, widemargin; assert not {'torch', 'sklearn', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
