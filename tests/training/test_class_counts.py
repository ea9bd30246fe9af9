"""Training images per class reach the loss and its class weights, and stay the same in a run that goes on."""

import json
import warnings

import numpy as np
import pytest
import torch

import widemargin as wm
from runs import assert_same
from small_tables import number_column, table_of
from widemargin.data.tabular.encode import encode
from widemargin.tabular.config import MLPConfig
from widemargin.tabular.crossval import partitions
from widemargin.tabular.early_stopping import train_validation_split
from widemargin.tabular.model_stacks import StackedModels, TrainingJob
from widemargin.training.run_files import check_input_spec

COUNTS = [60, 24, 6]


def make_items(counts=COUNTS):
    generator = torch.Generator().manual_seed(5)
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return torch.randn(len(y), 4, generator=generator) + y.unsqueeze(1), y


def make_net():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 5))


def train(out, epochs=4, counts=COUNTS, **options):
    config = {"epochs": epochs, "batch_size": 10, "lr": 0.01, "schedule": "constant", "loss": "cosface(s=8, m=0.1)"}
    given = {name: options.pop(name) for name in ("resume", "stop_after", "test") if name in options}
    items = make_items(counts)
    return wm.train({**config, **options}, out, train=items, model=make_net(), at=None, quiet=True, **given)


WANTS_COUNTS = {
    "ldam(s=8)": wm.LDAM(s=8, counts=COUNTS),
    "ldam(s=8) + 0.02*center": wm.LDAM(s=8, counts=COUNTS),
    "triplet + logit_adjusted(tau=0.5)": wm.LogitAdjusted(tau=0.5, counts=COUNTS),
}


@pytest.mark.parametrize("loss", WANTS_COUNTS)
def test_a_loss_gets_the_counts_of_the_training_items(tmp_path, loss):
    run = train(tmp_path / "run", loss=loss, test=make_items([1, 5, 9]))
    head = run.model.objective.head
    assert head.spec == WANTS_COUNTS[loss]
    assert run.config.loss == loss  # as it was written
    assert run.input_spec["class_counts"] == COUNTS
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "trained with …, this head has …", "without counts …"
        again = wm.load(tmp_path / "run", model=make_net(), at=None)
    assert again.model.objective.head.spec == head.spec
    x, _ = make_items()
    torch.testing.assert_close(again.embed(x), run.embed(x))


def test_counts_that_are_given_are_kept(tmp_path):
    run = train(tmp_path / "run", loss="ldam(counts=[3, 2, 1])")
    assert run.model.objective.head.spec.counts.values == (3.0, 2.0, 1.0)


@pytest.mark.parametrize("kind", ["balanced", "effective"])
def test_class_weights_are_one_on_average_over_the_items(tmp_path, kind):
    run = train(tmp_path / "run", class_weight=kind)
    weight = run.model.objective.head.margin_state.class_weight
    n = torch.tensor(COUNTS, dtype=torch.float64)
    assert float((weight * n).sum() / n.sum()) == pytest.approx(1.0, rel=1e-12)
    relative = 1 / n if kind == "balanced" else (1 - 0.9999) / (1 - 0.9999**n)
    torch.testing.assert_close(weight / weight[0], relative / relative[0], rtol=1e-9, atol=0)
    if kind == "balanced":  # scikit-learn's
        torch.testing.assert_close(weight, n.sum() / (3 * n))
    assert torch.equal(
        wm.load(tmp_path / "run", model=make_net(), at=None).model.objective.head.margin_state.class_weight, weight
    )


def test_deferred_weights_begin_at_their_part_of_the_training(tmp_path):
    """The first three of four epochs are those of a run without class weights, the last is not."""
    plain, deferred = (
        train(tmp_path / name, **options).history
        for name, options in (("plain", {}), ("deferred", {"class_weight": "balanced", "class_weight_start": 0.75}))
    )
    assert [line["loss"] for line in plain[:3]] == [line["loss"] for line in deferred[:3]]
    assert plain[3]["loss"] != deferred[3]["loss"]
    always = train(tmp_path / "always", class_weight="balanced").history
    assert always[0]["loss"] != plain[0]["loss"]


def test_the_start_is_a_number_of_steps(tmp_path):
    run = train(tmp_path / "run", class_weight="balanced", class_weight_start=0.6)
    assert run.model.objective.head.class_weight_start == round(0.6 * 4 * 9)  # 90 items in batches of 10
    assert int(run.model.objective.head.margin_state.steps) == 36


@pytest.mark.parametrize("stop_after", [1, 3])
def test_a_resumed_run_has_the_same_numbers(tmp_path, stop_after):
    options = {"loss": "ldam(s=8)", "class_weight": "effective", "class_weight_start": 0.5}
    train(tmp_path / "whole", **options)
    train(tmp_path / "parts", stop_after=stop_after, **options)
    train(tmp_path / "parts", resume=True, **options)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_other_epochs_move_the_start_and_that_is_said(tmp_path):
    options = {"class_weight": "balanced", "class_weight_start": 0.5}
    train(tmp_path / "run", stop_after=1, **options)
    with pytest.warns(UserWarning, match="the start of the class weights is that of 6 epochs"):
        run = train(tmp_path / "run", epochs=6, resume=True, **options)
    assert run.model.objective.head.class_weight_start == 27


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_weight": "balance"}, "unknown class_weight 'balance'; did you mean 'balanced'?"),
        (
            {"class_weight_start": 0.5},
            "class_weight_start is the start of class weights; give class_weight too",
        ),
        ({"class_weight": "balanced", "class_weight_start": 1.0}, "class_weight_start must be a number"),
        ({"class_weight": "balanced", "loss": "cross_entropy"}, "has no margin, which is needed for class_weight"),
    ],
)
def test_bad_class_weights_are_one_line(tmp_path, options, message):
    with pytest.raises(wm.InputError, match=message) as error:
        train(tmp_path / "run", **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("options", [{"loss": "cosface", "class_weight": "balanced"}, {"loss": "ldam + 0.1*center"}])
def test_a_class_without_items_is_named(tmp_path, options):
    x, y = make_items()
    config = wm.TrainConfig(epochs=1, batch_size=10, **options)
    names = ["a", "b", "c", "d"]
    with pytest.raises(wm.InputError, match="class 3 has 0 samples"):
        wm.train(config, tmp_path / "run", train=(x, y), model=make_net(), at=None, class_names=names, quiet=True)


def test_an_objective_of_ones_own_has_its_own_weights(tmp_path):
    x, y = make_items()
    model = wm.MarginModel(make_net(), wm.Objective("cosface", 5, 3))
    with pytest.raises(wm.InputError, match="class_weight='balanced' is for losses given by name"):
        wm.train({"batch_size": 9, "class_weight": "balanced"}, tmp_path / "run", train=(x, y), model=model, quiet=True)


@pytest.mark.parametrize("wrong", [[1, 2], [1, 2, -3], [1, 2, 2.5], "123", None])
def test_counts_of_a_stranger_are_checked(wrong):
    spec = {"class_names": ["a", "b", "c"], "class_counts": wrong, "shape": [4], "labels": "names", "dtype": "float"}
    with pytest.raises(ValueError, match="class_counts"):
        check_input_spec(spec)


def test_a_run_without_counts_is_read(tmp_path):
    """Version 0.1 wrote none."""
    train(tmp_path / "run")
    path = tmp_path / "run" / "checkpoints" / "last" / "state.json"
    state = json.loads(path.read_text())
    del state["input_spec"]["class_counts"]
    path.write_text(json.dumps(state))
    (path.parent / "sha256.json").unlink()
    found = wm.load(tmp_path / "run", model=make_net(), at=None)
    assert "class_counts" not in found.input_spec


def test_a_table_classifier_has_the_counts_of_its_training_rows():
    x, y = (part.numpy() for part in make_items())
    model = wm.MarginClassifier("logit_adjusted", epochs=2, random_state=0, early_stopping=True).fit(x, y)
    training, held_out = train_validation_split(y, 0.1, [0])
    assert len(held_out) == 9
    assert model._model.head.margin.counts.values == tuple(np.bincount(y[training]))


@pytest.mark.parametrize("loss", ["ldam(s=8)", wm.parse("ldam(s=8) + 0.02*center")])
def test_the_folds_of_a_comparison_have_the_counts_of_the_table(loss):
    """They share one margin."""
    x, y = (part.numpy() for part in make_items())
    table = table_of([number_column(x[:, k], f"x{k}") for k in range(4)], y)
    models = StackedModels(encode(table), table, loss, MLPConfig(epochs=1, min_steps=1), seed=0)
    jobs = [TrainingJob(part.training, (0, k)) for k, part in enumerate(partitions(table.y, 1, 3, 0))]
    for block in models.train(jobs):
        assert block.trainer.objective.head.margin.m.values == pytest.approx(wm.margins_from_counts(COUNTS, "ldam"))
    assert models.time_steps(jobs, 1) > 0


def test_a_comparison_of_losses_that_want_counts():
    x, y = (part.numpy() for part in make_items())
    found = wm.compare(
        (x, y), losses=["softmax", "ldam(s=8)", "logit_adjusted"], cv_repeats=1, folds=3, baselines=False
    )
    assert len(found.table()) == 3
