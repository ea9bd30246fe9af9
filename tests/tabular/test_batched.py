"""A stack of models is those models: each one alone, in plain PyTorch, on the backends of `Head`."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

import widemargin as wm
from widemargin.data.tabular.table import Column, Table
from widemargin.head.backends.base import NormalizedEmbeddings, compute_margin_loss
from widemargin.head.backends.dense import DenseBackend
from widemargin.head.backends.stacked import StackedBackend
from widemargin.losses.registry import list_losses
from widemargin.tabular import batched, crossval, model_stacks
from widemargin.tabular.batched import StackedTable, StackedTrainer, stack_angles
from widemargin.tabular.batched_objective import StackedHead, StackedObjective, _draw_subcenters
from widemargin.tabular.config import MLPConfig

K, N, F, C = 3, 41, 5, 4
# Layers wide enough that no embedding hangs on a single hidden unit: on the unit sphere the true gradient of that
# unit is 0, and AdamW, which divides by the size of a gradient, makes steps of what rounding left of it.
CONFIG = MLPConfig(hidden=(32, 24, 5), epochs=0, min_steps=24, batch=8, lr=0.01, weight_decay=0.2, dropout=0.2)
SEEDS = [(7, 0), (7, 5), (7, 2)]
SPECIAL = [
    "softmax(bias=True)",
    "adacos(floor=2)",
    "adaacos(s=6)",
    "arcface(s=learnable(8), m=[0.1, 0.2, 0.3, 0.1])",
    "cosface(s=warmup(2, 8, steps=10), m=0.1)",
    "m_softmax(m=[0.1, 0.5, 0.2, 0.3])",
    "softmax + 0.02*center",
    "softmax + 0.02*center(learn=True)",
    "arcface(s=8, m=0.2) + 0.5*triplet(mining=hard)",
    "arcgrad(s=5) + 0.1*contrastive + 0.5*adacos",
    "cross_entropy",
    "cross_entropy(label_smoothing=0.1)",
    "focal",
]
OF_COUNTS = {name: f"{name}(counts=[4, 9, 30, 7])" for name in ("ldam", "logit_adjusted")}
MARGINS = [OF_COUNTS.get(name, name) for name in list_losses("margins")]
every_loss = pytest.mark.parametrize("spec", [*MARGINS, *SPECIAL])
every_margin = pytest.mark.parametrize(
    "spec",
    [
        *MARGINS,
        *SPECIAL[:6],
        "aam_softmax(k=2, topk=2, penalty=0.2)",
        "elasticface(form=cos, plus=True)",
        "logit_adjusted(counts=[4, 9, 30, 7], cosine=True, s=8)",
        "magface(s=9, l_a=2, u_a=6, lambda_g=9)",
        "sphereface_r(version=v2, weight=20)",
        "soft_triple(k=2, tau=warmup(0, 1, steps=4))",
        "uniface(s=learnable(8), m=[0.1, 0.2, 0.3, 0.1])",
    ],
)


def takes_smoothing(spec):
    return not has_margin(spec) or wm.parse(spec.partition(" + ")[0]).allows_label_smoothing


def make_table(gaps=True):
    draw = np.random.default_rng(3)
    y = np.resize(np.arange(C), N)
    x = draw.standard_normal((N, F)) + 1.5 * np.eye(C, F)[y]
    if gaps:
        x[draw.random((N, F)) < 0.05] = np.nan
    parts = [np.setdiff1d(np.arange(N), draw.permutation(N)[:size]) for size in (5, 8, 6)]
    return x, y, parts


def stacked_table_of(x, y, models, dtype=torch.float64):
    """What models inputs of a table: each its own scaling and its own stand-ins for what is missing."""
    draws = [np.random.default_rng([11, k]) for k in models]
    shift, scale, fill = (
        torch.tensor(np.stack([draw.uniform(low, high, (1, F)) for draw in draws]), dtype=dtype)
        for low, high in ((-0.2, 0.2), (0.8, 1.2), (-1.0, 1.0))
    )
    decorrelation = torch.tensor(np.stack([np.eye(F) + draw.uniform(-0.2, 0.2, (F, F)) for draw in draws]), dtype=dtype)
    return StackedTable(torch.tensor(x, dtype=dtype), torch.tensor(y), C, shift, scale, fill, decorrelation)


def train_stack(spec, models=range(K), config=CONFIG, steps_and_batch=(24, 8)):
    x, y, parts = make_table()
    stack = StackedTrainer(
        spec,
        stacked_table_of(x, y, models),
        [parts[k] for k in models],
        [SEEDS[k] for k in models],
        config,
        steps_and_batch,
    )
    start = [p.detach().clone() for p in stack.network.parameters()]
    stack.run()
    return stack, start


def weights_of(stack, k):
    """Parameters and state of model k of a stack by name."""
    found = {}
    for name, value in [*stack.network.state_dict().items(), *stack.objective.state_dict().items()]:
        if value.ndim >= 2 and "centers" not in name and "class_offset" not in name:
            found[name] = value[k]
        elif "centers" in name:
            found[name] = value.view(-1, C, value.shape[-1])[k]
    return found


@every_loss
@pytest.mark.filterwarnings("ignore:.*without counts")
def test_model_k_of_a_stack_is_that_model_alone(spec):
    together = train_stack(spec)[0]
    for k in range(K):
        alone = train_stack(spec, [k])[0]
        expected = weights_of(alone, 0)
        found = weights_of(together, k)
        assert len(expected) >= 7
        assert expected.keys() == found.keys()
        for name in expected:
            torch.testing.assert_close(found[name], expected[name], rtol=1e-9, atol=1e-9)


def has_margin(spec):
    return spec.partition("(")[0].partition(" ")[0] in list_losses("margins")


def train_in_plain_pytorch(spec, k, start, config, steps, batch):
    """Model k as anyone would write it: a loop over nn.Linear, wm.Objective and torch.optim.AdamW."""
    x, y, parts = make_table()
    rows = stacked_table_of(x, y, range(K))
    scaled = torch.where(torch.isnan(rows.x), rows.fill[k], rows.x) * rows.scale[k] + rows.shift[k]
    inputs = scaled @ rows.decorrelation[k]
    sizes = (F, *config.hidden)
    layers = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in pairwise(sizes)).double()
    options = {"label_smoothing": config.label_smoothing, "dtype": torch.float64} if has_margin(spec) else {}
    objective = wm.Objective(spec, sizes[-1], C, **options).double()
    draw = np.random.default_rng([*SEEDS[k], 0])
    with torch.no_grad():
        for i, layer in enumerate(layers):
            normal = draw.standard_normal((sizes[i], sizes[i + 1]))
            layer.weight.copy_(torch.tensor(normal.T * math.sqrt(2 / sizes[i])))
            layer.bias.zero_()
            torch.testing.assert_close(layer.weight.T, start[i][k])
        class_weights = torch.tensor(draw.standard_normal((C, sizes[-1])) / math.sqrt(sizes[-1]))
        for part in objective.parts.values():
            if isinstance(part, wm.Head):
                rows = _draw_subcenters(class_weights.unsqueeze(0), part.margin.subcenters)
                part.weight.copy_(rows.view_as(part.weight))
            elif hasattr(part, "linear"):
                part.linear.weight.copy_(class_weights)
                part.linear.bias.zero_()
    groups = [
        {"params": [layer.weight for layer in layers], "weight_decay": config.weight_decay},
        {"params": [layer.bias for layer in layers], "weight_decay": 0.0},
        *objective.parameter_groups(config.weight_decay),
    ]
    optimizer = torch.optim.AdamW(groups, lr=1.0)
    shuffle = np.random.default_rng([*SEEDS[k], 2])
    passes = np.tile(parts[k], (math.ceil(steps * batch / len(parts[k])), 1))
    order = torch.tensor(shuffle.permuted(passes, axis=1).ravel()[: steps * batch].reshape(steps, batch))
    masks = [np.random.default_rng([SEEDS[0][0], 1, i]) for i in range(len(layers) - 1)]
    objective.train()
    for step in range(steps):
        cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = config.lr * cosine * min(1.0, (step + 1) / steps / config.warmup)
        z = inputs[order[step]]
        for i, layer in enumerate(layers):
            z = layer(z)
            if i < len(layers) - 1:
                kept = masks[i].random((batch, sizes[i + 1]), np.float32) >= config.dropout
                z = torch.relu(z) * torch.tensor(kept).double() / (1 - config.dropout)
        optimizer.zero_grad()
        objective(z, torch.tensor(y)[order[step]]).mean().backward()
        optimizer.step()
    return layers, objective.eval(), inputs


@pytest.mark.parametrize(
    ("spec", "smoothing"),
    [
        (spec, share)
        for spec in (*MARGINS, *SPECIAL)
        for share in (0.0, 0.1)
        if not share or (has_margin(spec) and takes_smoothing(spec))
    ],
)
def test_a_stack_is_the_plain_loop_fold_by_fold(spec, smoothing):
    spec = "elasticface(sigma=0)" if spec == "elasticface" else spec  # a stack has draws of its own
    config = replace(CONFIG, label_smoothing=smoothing)
    stack, start = train_stack(spec, config=config)
    for k in range(K):
        layers, objective, inputs = train_in_plain_pytorch(spec, k, start, config, 24, 8)
        for i, layer in enumerate(layers):
            torch.testing.assert_close(stack.network.weights[i][k], layer.weight.T, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(stack.network.biases[i][k, 0], layer.bias, rtol=1e-9, atol=1e-9)
        embedded = inputs
        for i, layer in enumerate(layers):
            embedded = torch.relu(layer(embedded)) if i < len(layers) - 1 else layer(embedded)
        rows = torch.arange(N).expand(K, N)
        torch.testing.assert_close(stack.embed(rows)[k], embedded, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(stack.logits(rows)[k], objective.logits(embedded), rtol=1e-9, atol=1e-9)
        assert not torch.allclose(stack.network.weights[0][k], start[0][k], atol=1e-2)  # something was learnt


def test_training_in_pieces_is_training_at_once(monkeypatch):
    at_once = train_stack("adacos + 0.02*center")[0]
    monkeypatch.setattr(batched, "_GATHER_CHUNK_VALUES", 2 * K * 8 * F)
    in_slabs = train_stack("adacos + 0.02*center")[0]
    x, y, parts = make_table()
    piecewise = StackedTrainer("adacos + 0.02*center", stacked_table_of(x, y, range(K)), parts, SEEDS, CONFIG, (24, 8))
    counted = []
    for steps in (1, 7, 3, 100):
        piecewise.run(steps, on_progress=counted.append)
        piecewise.logits(torch.arange(N).expand(K, N))  # looking changes nothing
    assert sum(counted) == piecewise.step == 24
    for k in range(K):
        for name, value in weights_of(at_once, k).items():
            # Not the same bits: the sums of a matrix product may depend on where its operands lie in memory.
            torch.testing.assert_close(weights_of(in_slabs, k)[name], value, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(weights_of(piecewise, k)[name], value, rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------- the stacked backend


def heads_and_stack(spec, smoothing=0.0, dtype=torch.float64, dim=6):
    draw = torch.Generator().manual_seed(4)
    start = torch.randn(K, C, dim, generator=draw, dtype=torch.float64).to(dtype)
    stacked = StackedHead(wm.parse(spec), start.clone(), smoothing)
    heads = []
    for k in range(K):
        head = wm.Head(dim, C, spec, label_smoothing=smoothing, dtype=dtype)
        with torch.no_grad():
            head.weight.copy_(stacked.weight[k].view_as(head.weight))
            if head.bias is not None:
                head.bias.copy_(torch.randn(C, generator=draw))
                stacked.bias[k] = head.bias
        heads.append(head)
    return heads, stacked, draw


@every_margin
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_stacked_backend_is_the_heads(spec, smoothing):
    if smoothing and not takes_smoothing(spec):
        for make in (
            lambda: StackedObjective(spec, torch.zeros(K, C, 6), smoothing),
            lambda: heads_and_stack(spec, 0.1),
        ):
            with pytest.raises(wm.InputError, match="label_smoothing"):
                make()
        return
    heads, stacked, draw = heads_and_stack(spec, smoothing)
    for step in range(3):  # schedules and adaptive state go on
        x = (2 * torch.randn(K, 9, 6, generator=draw, dtype=torch.float64)).requires_grad_()
        y = torch.randint(C, (K, 9), generator=draw)
        torch.manual_seed(step)
        loss = stacked(x, y)
        outer = torch.rand(K, 9, generator=draw, dtype=torch.float64)
        stacked.zero_grad()
        (to_x,) = torch.autograd.grad((loss * outer).sum(), x, retain_graph=True)
        (loss * outer).sum().backward(inputs=list(stacked.parameters()))
        for k, head in enumerate(heads):
            own = x[k].detach().requires_grad_()
            torch.manual_seed(step)
            expected = head(own, y[k])
            head.zero_grad()
            (expected * outer[k]).sum().backward()
            torch.testing.assert_close(loss[k], expected, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(to_x[k], own.grad, rtol=1e-12, atol=1e-12)
            for name, parameter in head.named_parameters():
                found = stacked.get_parameter(name).grad[k]
                torch.testing.assert_close(found.view_as(parameter), parameter.grad, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(stacked.logits(x)[k], head.logits(own), rtol=1e-12, atol=1e-12)
            for name in head.margin.adaptive_fields:
                state = getattr(stacked.margin_state, f"state_{name}")
                torch.testing.assert_close(
                    state[k, 0], getattr(head.margin_state, f"state_{name}"), rtol=1e-12, atol=1e-12
                )


@every_margin
def test_the_state_of_a_stack_rests_in_evaluation(spec):
    _, stacked, draw = heads_and_stack(spec)
    x, y = torch.randn(K, 9, 6, generator=draw, dtype=torch.float64), torch.randint(C, (K, 9), generator=draw)
    stacked(x, y)
    before = {name: value.clone() for name, value in stacked.state_dict().items()}
    stacked.eval()
    stacked(x, y), stacked.logits(x)
    for name, value in stacked.state_dict().items():
        assert torch.equal(before[name], value), name


@every_margin
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_zero_embedding_or_class_weight_is_finite(spec, dtype):
    _, stacked, draw = heads_and_stack(spec, dtype=dtype)
    x = torch.randn(K, 9, 6, generator=draw, dtype=torch.float64).to(dtype)
    x[0, 0], x[1] = 0.0, 0.0
    x[2, 0] = stacked.weight[2, 1].detach()  # on a class weight, and opposite to one
    x[2, 1] = -stacked.weight[2, 1].detach()
    with torch.no_grad():
        stacked.weight[2, 3] = 0.0
    x.requires_grad_()
    y = torch.randint(C, (K, 9), generator=draw)
    y[2, :2] = 1
    for _ in range(2):
        loss = stacked(x, y)
        loss.sum().backward()
        assert torch.isfinite(loss).all()
        assert torch.isfinite(x.grad).all()
        assert all(torch.isfinite(p.grad).all() for p in stacked.parameters())
    assert not x.grad[1].any()  # what has no direction is not turned
    assert loss.dtype == dtype


def test_the_backend_itself_is_the_dense_one():
    draw = torch.Generator().manual_seed(8)
    x = torch.randn(K, 9, 6, generator=draw, dtype=torch.float64)
    w = torch.randn(K, C, 6, generator=draw, dtype=torch.float64)
    y = torch.randint(C, (K, 9), generator=draw)
    margin = wm.ArcGrad(s=3.0)
    backend = StackedBackend(x, w, None)
    for k in range(K):
        dense = DenseBackend(NormalizedEmbeddings(x[k]), w[k], None)
        torch.testing.assert_close(backend.largest_cosines(y, 2)[k], dense.largest_cosines(y[k], 2))
        torch.testing.assert_close(backend.logits(margin)[:, k].T, dense.logits(margin))
    assert compute_margin_loss(backend, margin, y, step=torch.tensor(0))[0].shape == (K, 9)


# ---------------------------------------------------------------- angles, folds, mistakes


@pytest.mark.parametrize("spec", ["arcgrad(s=5)", "softmax", "cross_entropy"])
def test_angles_of_a_stack_are_the_angles_of_its_models(spec):
    stack, _ = train_stack(spec)
    _, y, parts = make_table()
    parts = [parts[0], parts[1][y[parts[1]] != 2], parts[2][y[parts[2]] == 3]]  # a class missing; only one left
    found = stack_angles(stack, parts)
    for k, part in enumerate(parts):
        rows = torch.tensor(part)
        embedded = stack.embed(rows.expand(K, -1))[k]
        expected = wm.angles(embedded, stack.table.y[rows], stack.objective.head.weight[k])
        assert found[k].tolist() == pytest.approx(list(expected[:3]), rel=1e-9, nan_ok=True)
    assert math.isnan(found[2, 2])
    assert not torch.isnan(found[:2]).any()


def test_folds_do_not_depend_on_how_many_train_at_once(monkeypatch):
    x, y, _ = make_table(gaps=False)
    columns = tuple(Column(f"x{i}", x[:, i]) for i in range(F))
    data = Table("made", columns, y.astype(np.int64), tuple("abcd"))
    split = crossval.partitions(data.y, 2, 4, seed=1, stratify=True)
    config = replace(CONFIG, hidden=(8, 4), min_steps=40)
    shares = []
    at_once = crossval.cross_validate(data, "adacos", split, config, 5, torch.float64, shares.append)
    monkeypatch.setattr(model_stacks, "_MAX_STACK_WEIGHTS", 3 * (F * 8 + 8 * 4 + 4 * C))
    in_blocks = crossval.cross_validate(data, "adacos", split, config, 5, torch.float64, shares.append)
    assert at_once.folds == in_blocks.folds
    assert at_once.angles == pytest.approx(in_blocks.angles, rel=1e-9)
    assert sum(shares) == pytest.approx(2.0)
    assert len(at_once.folds) == 8


@pytest.mark.parametrize(
    ("spec", "smoothing", "message"),
    [
        ("triplet", 0.0, "no class weights"),
        ("softmax + l2", 0.0, "does not choose between classes"),
        ("cross_entropy", 0.1, r"cross_entropy\(label_smoothing=0.1\)"),
        ("arcfase", 0.0, "did you mean 'arcface'"),
    ],
)
def test_what_cannot_tell_classes_apart_is_refused(spec, smoothing, message):
    with pytest.raises(wm.InputError, match=message):
        StackedObjective(spec, torch.zeros(K, C, 2), smoothing)


@pytest.mark.parametrize(
    "wrong",
    [
        {"hidden": ()},
        {"hidden": (8, 0)},
        {"hidden": ("8",)},
        {"batch": 2.5},
        {"batch": 0},
        {"min_steps": True},
        {"epochs": "8"},
        {"epochs": math.nan},
        {"lr": 0},
        {"dropout": 1.0},
        {"label_smoothing": -0.1},
        {"weight_decay": None},
    ],
)
def test_a_config_checks_its_numbers(wrong):
    with pytest.raises(wm.InputError, match=next(iter(wrong))):
        MLPConfig(**wrong)
