"""Tables under losses that are not a softmax with one weight per class: sub-centres, sums, learnt and drawn numbers."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris

import widemargin as wm
from widemargin.losses.margin import Subcenters
from widemargin.losses.registry import list_losses, loss_class
from widemargin.tabular.batched import StackedTable, StackedTrainer, stack_angles
from widemargin.tabular.batched_objective import StackedHead, _draw_subcenters
from widemargin.tabular.config import MLPConfig

QUICK = MLPConfig(hidden=(12, 6), epochs=2, min_steps=12)
DEPARTING = [  # from a softmax over one weight per class
    name
    for name in list_losses()
    if loss_class(name).kind == "margin"
    and (loss_class(name).one_vs_all or loss_class(name).sample_fields or loss_class(name).learnt_fields)
]
SUBCENTERS = ("subcenter_arcface(s=10, k=2)", "aam_softmax(s=10, k=3, topk=1)", "soft_triple(k=4)")


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


def quick_classifier(loss, **options):
    return wm.MarginClassifier(
        loss, hidden=QUICK.hidden, epochs=QUICK.epochs, min_steps=QUICK.min_steps, random_state=0, **options
    )


def make_stack(spec, models=3, classes=4, rows=40):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 5, generator=draw, dtype=torch.float64)
    y = torch.arange(rows) % classes
    ones = torch.ones(models, 1, 5, dtype=torch.float64)
    table = StackedTable(x, y, classes, torch.zeros_like(ones), ones)
    parts = [np.arange(k, rows) for k in range(models)]
    return StackedTrainer(spec, table, parts, [(0, k) for k in range(models)], QUICK), parts


# ---------------------------------------------------------------- sub-centres in stacks


@pytest.mark.parametrize("count", [2, 10, 17])
def test_no_two_sub_centres_of_a_class_start_alike(count):
    weight = torch.randn(3, 4, 6)
    drawn = _draw_subcenters(weight, Subcenters(count)).view(3, 4, count, 6)
    assert torch.equal(drawn[:, :, 0], weight)
    torch.testing.assert_close(drawn.norm(dim=3).mean(), weight.norm(dim=2).mean())
    for of_class in drawn.flatten(0, 1):
        assert len(torch.unique(of_class, dim=0)) == count


@pytest.mark.parametrize("spec", SUBCENTERS)
def test_a_model_of_a_stack_is_a_head_with_its_sub_centres(spec):
    stacked = StackedHead(wm.parse(spec), torch.randn(3, 5, 6, dtype=torch.float64))
    x, y = torch.randn(3, 9, 6, dtype=torch.float64), torch.randint(5, (3, 9))
    loss, weights = stacked(x, y), stacked.class_weights
    for k in range(3):
        head = wm.Head(6, 5, spec, dtype=torch.float64)
        head.load_class_weights({"weight": weights[k]})
        torch.testing.assert_close(loss[k], head(x[k], y[k]), rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(stacked.logits(x)[k], head.logits(x[k]))


@pytest.mark.parametrize("spec", SUBCENTERS)
def test_angles_of_a_stack_are_those_to_the_nearest_sub_centres(spec):
    stack, parts = make_stack(spec)
    stack.run()
    found = stack_angles(stack, parts)
    for k, part in enumerate(parts):
        rows = torch.from_numpy(part)
        expected = wm.angles(
            stack.embed(rows.expand(3, -1))[k], stack.table.y[rows], stack.objective.head.class_weights[k]
        )
        assert found[k].tolist() == pytest.approx(list(expected[:3]), rel=1e-9)


def test_a_classifier_with_sub_centres(iris):
    x, y = iris
    model = wm.MarginClassifier("soft_triple(k=2)", min_steps=100, epochs=20, random_state=0, calibrate=False).fit(x, y)
    assert model.score(x, y) > 0.95
    assert model.class_weights_.shape == (3, 2, model.embedding_dim_)
    codes, embedded = torch.from_numpy(y), torch.from_numpy(model.transform(x))
    assert model.angles(x, y) == wm.angles(embedded, codes, torch.from_numpy(model.class_weights_))
    unit, weights = (v / np.linalg.norm(v, axis=-1, keepdims=True) for v in (model.transform(x), model.class_weights_))
    cos = np.einsum("nd,ckd->nck", unit, weights)
    share = np.exp(cos / 0.1) / np.exp(cos / 0.1).sum(2, keepdims=True)
    logits = 20.0 * (share * cos).sum(2)
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(x), probabilities, rtol=1e-7, atol=1e-12)


# ---------------------------------------------------------------- every loss that departs


def test_there_are_such_losses():
    assert {"sphereface2", "uniface", "p2sgrad", "adaface", "elasticface", "curricularface"} <= set(DEPARTING)


@pytest.mark.parametrize("spec", [*DEPARTING, *SUBCENTERS])
def test_probabilities_are_a_distribution_in_the_order_of_the_answers(spec, iris):
    x, y = iris
    model = quick_classifier(spec).fit(x, y)
    probabilities = model.predict_proba(x)
    assert np.isfinite(probabilities).all()
    assert (probabilities > 0).all()
    np.testing.assert_allclose(probabilities.sum(1), 1.0)
    assert (model.classes_[probabilities.argmax(1)] == model.predict(x)).all()
    np.testing.assert_allclose(np.exp(model.predict_log_proba(x)), probabilities)
    far = model.predict_proba(np.full((1, 4), 1e6))
    assert np.isfinite(far).all()
    again = quick_classifier(spec).fit(x, y)
    assert np.array_equal(again.predict_proba(x), probabilities)  # also of losses that draw


def test_a_learnt_number_is_learnt_by_each_model_of_a_stack():
    stack, _ = make_stack("sphereface2(s=8)")
    start = stack.objective.head.margin_state.learnt_b.detach().clone()
    stack.run()
    learnt = stack.objective.head.margin_state.learnt_b.detach()
    assert start.shape == learnt.shape == (3, 1)
    assert len(torch.unique(learnt)) == 3
    assert (learnt != start).all()


def test_drawn_numbers_do_not_depend_on_what_trains_beside():
    losses = []
    for models in (1, 3):
        torch.manual_seed(models)  # nor on what was drawn before
        stack, _ = make_stack("elasticface(s=8, plus=True)", models)
        stack.run(5)
        torch.rand(7)
        stack.run(5)
        losses.append(stack.objective.head.weight[0].detach())
    torch.testing.assert_close(losses[0], losses[1])


def test_a_comparison_of_them_all_with_its_page(tmp_path):
    specs = [*DEPARTING, *SUBCENTERS, "ldam", "logit_adjusted", "circle", "proxy_nca_pp"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ldam and logit adjustment without counts
        report = wm.compare(
            "iris",
            losses=specs,
            cv_repeats=1,
            folds=2,
            baselines=False,
            jobs=1,
            mlp_config=QUICK,
            calibrate=False,
            quiet=True,
            out=tmp_path / "out",
        )
    table = report.table()
    assert len(table) == len(specs)
    assert (table["folds"] == 2).all()
    assert np.isfinite(table[["mean", "log_loss", "brier", "roc_auc", "wc_intra", "w_inter", "c_inter"]]).all(axis=None)
    assert (table["mean"] > 100 / 3 - 5).all()
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert all(f"{method}" in page for method in ("subcenter_arcface(s=10, m=0.5, k=2)", "sphereface2", "adaface"))


def test_one_vs_all_losses_are_tuned_like_others():
    report = wm.compare(
        "iris",
        losses=["sphereface2", "subcenter_arcface(k=2)"],
        cv_repeats=1,
        folds=2,
        baselines=False,
        jobs=1,
        mlp_config=QUICK,
        quiet=True,
        tune=True,
        tune_trials=2,
    )
    assert len(report.table()) == 2
    assert np.isfinite(report.table()["log_loss"]).all()
