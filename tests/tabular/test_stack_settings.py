"""Models of a stack with settings and validation rows of their own are the models that would come out alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import widemargin as wm
from small_tables import number_column, table_of
from widemargin.data.tabular.encode import encode
from widemargin.losses.grammar import Sum, parse
from widemargin.losses.margin import Margin
from widemargin.tabular.batched import ModelSettings, StackedTrainer
from widemargin.tabular.config import MLPConfig
from widemargin.tabular.early_stopping import EarlyStopping, train_validation_split, train_with_validation
from widemargin.tabular.model_stacks import StackedModels, TrainingJob, build_stacked_table

CONFIG = MLPConfig(hidden=(32, 24), epochs=0, min_steps=30, batch=8, lr=0.01, weight_decay=0.2, dropout=0.2)
LRS, DECAYS = (0.01, 0.004, 0.03), (0.2, 1.5, 0.0)
SCALES, MARGINS = (8.0, 3.0, 15.0), (0.2, 0.0, 0.35)
SEEDS = [(5, 0), (5, 3), (5, 1)]


def noisy_table(rows=120, columns=6, classes=4, effect=1.0, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % classes
    x = rng.standard_normal((rows, columns)) + effect * np.eye(classes, columns)[y]
    return table_of([number_column(x[:, k], f"x{k}") for k in range(columns)], y)


def training_parts(table, sizes=(90, 101, 80)):
    rng = np.random.default_rng(9)
    return [np.sort(rng.permutation(len(table))[:size]) for size in sizes]


def make_trainer(spec, parts, seeds, config=CONFIG, settings=None, table=None, steps_and_batch=(30, 8), prepare=False):
    table = table or noisy_table()
    stacked = build_stacked_table(encode(table), table.y, len(table.class_names), parts, torch.float64, config)
    stacked = stacked.prepare() if prepare else stacked
    return StackedTrainer(spec, stacked, parts, seeds, config, steps_and_batch, settings)


def assert_same_model(found, k, expected, tolerance=1e-9):
    """Model k of a stack and the only one of another see every row alike, and have the same weights."""
    rows = torch.arange(len(found.table.y))
    logits = found.logits(rows.expand(len(found.order), -1))[k]
    torch.testing.assert_close(logits, expected.logits(rows.expand(1, -1))[0], rtol=tolerance, atol=tolerance)
    for one, other in zip(found.network.parameters(), expected.network.parameters(), strict=True):
        torch.testing.assert_close(one[k], other[0], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        found.objective.head.weight[k], expected.objective.head.weight[0], rtol=tolerance, atol=tolerance
    )


# ---------------------------------------------------------------- settings


def loss_with_values(spec, values):
    """The loss with other numbers of its margin."""
    parts = [(factor, loss) for factor, loss in (parse(spec).parts if "+" in spec else ((1.0, parse(spec)),))]
    return Sum(tuple((f, replace(loss, **values) if isinstance(loss, Margin) else loss) for f, loss in parts))


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("softmax", ""),
        ("arcface(s=8, m=0.2)", "sm"),
        ("cosface(s=8, m=0.2)", "sm"),
        ("arcgrad(s=8)", "s"),
        ("m_softmax(m=0.2)", "m"),
        ("softmax + 0.02*center", ""),
        ("arcface(s=8, m=0.2) + 0.1*triplet", "sm"),
        ("cross_entropy", ""),
    ],
)
def test_models_with_settings_of_their_own_are_those_trained_alone_with_them(spec, names):
    parts = training_parts(noisy_table())
    numbers = {name: values for name, values in {"s": SCALES, "m": MARGINS}.items() if name in names}
    settings = ModelSettings(
        *(torch.tensor(values, dtype=torch.float64) for values in (LRS, DECAYS)),
        {name: torch.tensor(values, dtype=torch.float64) for name, values in numbers.items()},
    )
    together = make_trainer(spec, parts, SEEDS, settings=settings)
    together.run()
    for k in range(3):
        own = replace(CONFIG, lr=LRS[k], weight_decay=DECAYS[k])
        loss = loss_with_values(spec, {name: values[k] for name, values in numbers.items()})
        alone = make_trainer(loss, [parts[k]], [SEEDS[k]], own)
        alone.run()
        assert_same_model(together, k, alone)


def test_settings_can_be_taken_of_some_models():
    settings = ModelSettings(torch.tensor(LRS), torch.tensor(DECAYS), {"s": torch.tensor(SCALES)})
    some = settings.take(torch.tensor([2, 0]))
    assert some.lr.tolist() == pytest.approx([LRS[2], LRS[0]])
    assert some.weight_decay.tolist() == pytest.approx([DECAYS[2], DECAYS[0]])
    assert some.margin_values["s"].tolist() == [SCALES[2], SCALES[0]]


@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize("spec", ["softmax", "arcgrad(s=5)"])
def test_a_prepared_table_trains_the_same_models(spec, projected):
    table = noisy_table(columns=30)
    config = replace(CONFIG, screening=0.5, max_components=9) if projected else CONFIG
    parts = training_parts(table)
    plain, prepared = (make_trainer(spec, parts, SEEDS, config, table=table, prepare=p) for p in (False, True))
    width = plain.table.num_inputs
    assert 1 <= width <= 9 if projected else width == 30  # columns that do not matter are left out
    assert prepared.table.prepared.shape == (3, 120, width)
    assert plain.network.weights[0].shape[1] == width
    for trainer in (plain, prepared):
        trainer.run()
    for one, other in zip(plain.network.parameters(), prepared.network.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    rows = torch.arange(120).flip(0).expand(3, -1)
    torch.testing.assert_close(plain.logits(rows), prepared.logits(rows), rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------- early stopping


def split_parts(parts, fraction=0.25):
    pairs = []
    y = noisy_table().y
    for k, part in enumerate(parts):
        training, validation = train_validation_split(y[part], fraction, [k])
        pairs.append((part[training], part[validation]))
    return [training for training, _ in pairs], [validation for _, validation in pairs]


def train_stopped(models, spec="arcgrad(s=5)", patience=3, steps=200, validation=None):
    table = noisy_table(effect=0.7)
    training, held_out = split_parts(training_parts(table))
    config = replace(CONFIG, lr=0.05)
    trainer = make_trainer(
        spec, [training[k] for k in models], [SEEDS[k] for k in models], config, table=table, steps_and_batch=(steps, 8)
    )
    stopping = train_with_validation(trainer, [(validation or held_out)[k] for k in models], patience)
    return trainer, stopping


@pytest.mark.parametrize("spec", ["arcgrad(s=5)", "adacos", "softmax + 0.02*center"])
def test_early_stopping_of_a_stack_is_that_of_its_models_alone(spec):
    together, checks = train_stopped(range(3), spec)
    ends = []
    for k in range(3):
        alone, own_checks = train_stopped([k], spec)
        count = len(own_checks.accuracies)
        np.testing.assert_array_equal(np.array(checks.accuracies)[:count, k], np.array(own_checks.accuracies)[:, 0])
        assert_same_model(together, k, alone)
        ends.append(alone.step)
    assert max(ends) == together.step
    assert min(ends) < max(ends)  # some had to wait for others, which changed nothing


def test_the_weights_kept_are_those_of_the_best_check():
    table = noisy_table(effect=0.7)
    training, held_out = split_parts(training_parts(table))
    trainer = make_trainer("softmax", training, SEEDS, replace(CONFIG, lr=0.05), table=table, steps_and_batch=(60, 8))
    stopping, seen = EarlyStopping(trainer, held_out, 100), []
    for _ in range(12):
        trainer.run(5)
        stopping.check()
        own = [trainer.logits(torch.from_numpy(rows).expand(3, -1))[k] for k, rows in enumerate(held_out)]
        truth = [torch.from_numpy(table.y[rows]) for rows in held_out]
        seen.append(
            [
                (
                    (z.argmax(1) == y).double().mean().item(),
                    -torch.nn.functional.cross_entropy(z, y).item(),
                    trainer.network.weights[0][k].clone(),
                )
                for k, (z, y) in enumerate(zip(own, truth, strict=True))
            ]
        )
    np.testing.assert_allclose(stopping.accuracies, [[model[0] for model in check] for check in seen], atol=1e-12)
    stopping.restore()
    for k in range(3):
        best = max((check[k] for check in seen), key=lambda found: found[:2])
        torch.testing.assert_close(trainer.network.weights[0][k], best[2], rtol=0, atol=0)


@pytest.mark.parametrize("patience", [1, 2, 5])
def test_training_stops_after_so_many_checks_without_a_better_one(patience):
    trainer, stopping = train_stopped([0], patience=patience, steps=500)
    assert trainer.step == 10 * len(stopping.accuracies)  # fifty checks in a full training
    assert trainer.step < 500
    accuracies = [found[0] for found in stopping.accuracies]
    assert len(accuracies) > patience
    assert max(accuracies[-patience:]) <= max(accuracies[:-patience])


def test_steps_that_were_spared_are_reported_as_done():
    done = []
    table = noisy_table(effect=0.7)
    training, held_out = split_parts(training_parts(table))
    config = replace(CONFIG, lr=0.05)
    trainer = make_trainer("softmax", training[:1], SEEDS[:1], config, table=table, steps_and_batch=(500, 8))
    train_with_validation(trainer, held_out[:1], 2, done.append)
    assert trainer.step < 500
    assert sum(done) == 500


def test_no_row_that_is_held_out_is_trained_on_or_scales_the_columns():
    table = noisy_table(200)
    config = replace(CONFIG, val_fraction=0.2, min_steps=100)
    jobs = [TrainingJob(part, (0, k)) for k, part in enumerate(training_parts(table, (150, 160, 130)))]
    models = StackedModels(encode(table), table, "softmax", config, 0, torch.float64)
    (trained,) = models.train(jobs)
    for k, job in enumerate(jobs):
        held_out, used = trained.validation[k], np.unique(trained.trainer.order[k].numpy())
        assert not np.intersect1d(held_out, used).size
        np.testing.assert_array_equal(np.union1d(held_out, used), job.rows)
        assert len(held_out) == pytest.approx(0.2 * len(job.rows), abs=1)
        shares = np.bincount(table.y[held_out]) / len(held_out)
        np.testing.assert_allclose(shares, np.bincount(table.y[job.rows]) / len(job.rows), atol=1.5 / len(held_out))
        rows = np.setdiff1d(job.rows, held_out)
        expected = 1 / encode(table).x[rows].std(0)
        np.testing.assert_allclose(trained.trainer.table.scale[k, 0], expected)


def test_nothing_to_hold_out_is_refused():
    with pytest.raises(wm.InputError, match="val_fraction=0") as caught:
        train_validation_split(np.arange(5), 0.2, [0])
    assert "\n" not in str(caught.value)
