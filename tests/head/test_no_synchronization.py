"""A training step on the path of an accelerator reads no value on the host, and gives the same loss and gradients."""

import pytest
import torch

import widemargin as wm
from head_cases import LOSSES, SIZES, Case, generate_cases, inputs, make_head, run
from head_references import compute_expected, find_errors
from synchronization import HostReads
from widemargin.head.backends import class_blocks
from widemargin.io.errors import InputError
from widemargin.losses.registry import list_losses
from widemargin.numerics import host_reads
from widemargin.tabular.batched_objective import StackedObjective

KINDS = [(loss, variant) for loss, variants in LOSSES.items() for variant in range(len(variants))]
SAMPLES, CLASSES, DIM = SIZES["small"]


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch):
    monkeypatch.setenv("WIDEMARGIN_COMPILE", "0")
    monkeypatch.setattr(class_blocks, "max_block_rows", lambda samples, dim: 2)


@pytest.fixture(autouse=True)
def nothing_pending():
    host_reads._pending.clear()
    yield
    host_reads._pending.clear()


def make_step(case, samples=SAMPLES, **options):
    """A head, and a function that makes a training step of it."""
    head = make_head(case, CLASSES, **options)
    given = inputs(case, 0, CLASSES)
    x, y = given.x[:samples].to(head.weight.dtype).requires_grad_(), given.y[:samples]
    with torch.no_grad():
        head.weight.copy_(given.weight)

    def step(**arguments):
        head(x, y, **arguments).mean().backward()

    return head, step, given


@pytest.mark.parametrize("backend", ["dense", "stream", "sampled", "sharded"])
def test_a_step_of_every_loss_reads_nothing(backend):
    found = {}
    for loss, variant in KINDS:
        options = {"sample_rate": 0.8} if backend == "sampled" else {}  # six classes, as many as there are samples
        for smoothing in (0.0, 0.1)[: 1 if backend == "sampled" else 2]:
            case = Case(loss, variant, backend, dtype="float32", weights="zero row", label_smoothing=smoothing)
            try:
                _, step, _ = make_step(case, 6, **options)
            except InputError:  # no cross-entropy, so no label smoothing
                assert smoothing
                continue
            with host_reads.without_shortcuts(), HostReads() as guard:
                step()
            if guard.seen:
                found[str(case)] = guard.seen
            host_reads._pending.clear()
    assert not found, "\n".join(f"{case}: {seen}" for case, seen in found.items())


@pytest.mark.parametrize("backend", ["dense", "stream", "sharded"])
def test_mixup_and_factors_read_nothing(backend):
    head, step, given = make_step(
        Case("arcface", 0, backend), class_weight=[1.0] * CLASSES, class_weight_start=2, ignore_index=-1
    )
    with host_reads.without_shortcuts(), HostReads() as guard:
        step(mix=(given.other, torch.ones(SAMPLES)), sample_weight=torch.ones(SAMPLES))
        head.eval()
        step()
    assert [one for one in guard.seen if one != "tolist"] == []
    assert guard.seen.count("tolist") <= 1  # the second call looks at the checks of the first


def test_a_stack_of_models_reads_nothing():
    found = {}
    for loss in list_losses("margins"):
        case = Case(loss)
        objective = StackedObjective(case.spec(CLASSES), torch.randn(3, CLASSES, DIM), 0.0)
        x, y = torch.randn(3, SAMPLES, DIM, requires_grad=True), torch.randint(CLASSES, (3, SAMPLES))
        with host_reads.without_shortcuts(), HostReads() as guard:
            objective(x, y).mean().backward()
        if guard.seen:
            found[loss] = guard.seen
    assert not found


PAIR_SPECS = [
    *(name for name in list_losses("pairs") if name != "xbm"),
    "contrastive(form=hadsell)",
    "lifted(form=generalized)",
    "margin_pairs(learn_beta=True, mining=all)",
    *(f"triplet(mining={mining})" for mining in ("all", "distance", "hard", "pool")),
    "xbm(supcon, size=32)",
    "xbm(triplet, size=32)",
    "softmax + 0.02*center",
    "arcface + 0.1*mhe",
    "proxy_anchor + 0.1*regularface",
]


def pair_step(spec, close=False):
    """An objective, and a function that makes a training step of it; `close`: also with embeddings that coincide."""
    objective = wm.Objective(spec, DIM, 4)
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, DIM, generator=draw), torch.arange(12) // 3
    if close:
        x[1], x[5] = x[0], x[4] * (1 + 1e-6)
    x.requires_grad_()

    def step(**arguments):
        torch.manual_seed(1)
        loss = objective(x, y, **arguments)
        loss.mean().backward()
        return loss.detach(), x.grad

    return objective, step


@pytest.mark.parametrize("spec", PAIR_SPECS)
def test_a_step_of_a_pair_loss_waits_once_at_most(spec):
    _, step = pair_step(spec, close=True)
    with host_reads.without_shortcuts():
        step()  # its checks are read in the next one
        with HostReads() as guard:
            step()
    assert guard.seen in ([], ["tolist"])


@pytest.mark.parametrize("spec", PAIR_SPECS)
def test_pair_losses_compute_the_same_on_that_path(spec):
    def run_step():
        torch.manual_seed(3)  # the same parameters
        return pair_step(spec, close=True)[1]()

    loss, gradient = run_step()
    with host_reads.without_shortcuts():
        other_loss, other_gradient = run_step()
    assert torch.allclose(loss, other_loss, rtol=1e-5, atol=1e-6)
    assert torch.allclose(gradient, other_gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("spec", ["supcon", "circle_pairs", "center", "proxy_anchor", "margin_pairs(learn_beta=True)"])
def test_labels_of_pair_losses_are_checked_late(spec, monkeypatch):
    monkeypatch.setenv("WIDEMARGIN_CHECK", "async")
    objective = wm.Objective(spec, 2, 3)
    message = "embedding" if spec in ("supcon", "circle_pairs") else "label 3 is out of range"
    x = torch.full((4, 2), torch.nan) if message == "embedding" else torch.randn(4, 2)

    def two_steps():
        objective(x, torch.tensor([0, 0, 1, 3]))  # an error at once, if the step waits for a number of pairs
        objective(torch.randn(4, 2), torch.tensor([0, 0, 1, 1]))

    with pytest.raises(InputError, match=message), host_reads.without_shortcuts():
        two_steps()


def test_the_guard_sees_what_the_path_of_a_cpu_reads():
    """Otherwise the tests above would say nothing."""
    for backend in ("dense", "stream"):
        _, step, _ = make_step(Case("arcface", 0, backend))
        with HostReads() as guard:
            step()
        assert guard.seen


@pytest.mark.parametrize("name", sorted(host_reads.SHORTCUTS))
def test_every_shortcut_is_taken_somewhere(name, monkeypatch):
    asked = set()
    is_read_free = host_reads.is_read_free

    def note(tensor, shortcut=None):
        asked.add(shortcut)
        return is_read_free(tensor, shortcut)

    monkeypatch.setattr(host_reads, "is_read_free", note)
    for loss, backend in (("arcface", "dense"), ("arcgrad", "dense"), ("arcface", "stream"), ("soft_triple", "stream")):
        _, step, _ = make_step(Case(loss, 0, backend))
        step()
    pair_step("supcon")[1]()
    assert name in asked


def test_only_ignored_samples_of_an_adaptive_loss_are_waited_for():
    _, step, _ = make_step(Case("adacos"), ignore_index=2)
    with host_reads.without_shortcuts(), HostReads() as guard:
        step()
    assert guard.seen == ["nonzero"]


def test_more_samples_than_sampled_classes_are_waited_for_once():
    _, step, _ = make_step(Case("arcface", 0, "sampled"), sample_rate=0.3)
    with host_reads.without_shortcuts(), HostReads() as guard:
        step()
    assert guard.seen == ["__int__"]


@pytest.mark.parametrize("part", range(2))
def test_the_path_of_an_accelerator_computes_the_same(part):
    """Also with weights of norm 0, 2⁻⁶⁶ and 2⁶⁶, at every operation of a head's life."""
    failed = []
    for case in generate_cases(70, 40 + part):
        with host_reads.without_shortcuts():
            wrong = find_errors(case, run(case), compute_expected(case))
        failed += [f"{case}: {', '.join(wrong)}"] if wrong else []
    assert not failed, "\n".join(failed)


def test_tiny_angles_keep_their_digits():
    weight = torch.eye(3, 4)
    x = weight + torch.tensor([[0.0, 3e-6, 0, 0], [0, 0, 1e-3, 0], [0.5, 0, 0, 0]])

    def gradients(dtype):
        head = wm.Head(4, 3, "arcface(s=8, m=0.2)", backend="stream", dtype=dtype)
        with torch.no_grad():
            head.weight.copy_(weight)
        leaf = x.to(dtype).requires_grad_()
        head(leaf, torch.arange(3)).sum().backward()
        return leaf.grad.double(), head.weight.grad.double()

    expected = gradients(torch.float64)
    with host_reads.without_shortcuts():
        for one, other in zip(gradients(torch.float32), expected, strict=True):
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------- checks that are read late


def bad_step(value, **options):
    head = wm.Head(4, 3, "arcface", **options)
    x, y = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    if value == "nan":
        x[3] = torch.nan
    else:
        y[3] = value
    return head, head(x, y), (torch.randn(2, 4), torch.tensor([0, 1]))


@pytest.mark.parametrize("backend", ["dense", "stream", "sampled"])
@pytest.mark.parametrize(
    ("value", "message"), [(3, "label 3 is out"), (-1, "label -1 is out.*ignore_index"), ("nan", "1 embedding.*NaN")]
)
def test_a_late_error_is_raised_by_the_next_call(backend, value, message, monkeypatch):
    monkeypatch.setenv("WIDEMARGIN_CHECK", "async")
    head, loss, good = bad_step(value, backend=backend)
    if value != "nan":
        assert loss[3] == 0  # a sample without a class has no loss and no gradient
        assert (loss[:3] > 0).all()
    before = head.margin_state.steps.clone()
    with pytest.raises(InputError, match=message):
        head(*good)
    assert head.margin_state.steps == before
    assert torch.isfinite(head(*good)).all()  # raised once


def test_a_late_error_is_raised_on_request(monkeypatch):
    monkeypatch.setenv("WIDEMARGIN_CHECK", "async")
    bad_step(7)
    with pytest.raises(InputError, match="label 7"):
        wm.raise_deferred_errors()
    wm.raise_deferred_errors()


def test_samples_out_of_range_have_no_gradient(monkeypatch):
    monkeypatch.setenv("WIDEMARGIN_CHECK", "async")
    head = wm.Head(4, 3, "arcface(s=4)")
    x = torch.randn(3, 4, requires_grad=True)
    head(x, torch.tensor([0, 9, 2])).sum().backward()
    assert x.grad[1].eq(0).all()
    assert x.grad[0].ne(0).any()


def test_checks_can_be_off_or_at_once(monkeypatch):
    monkeypatch.setenv("WIDEMARGIN_CHECK", "off")
    _, loss, _ = bad_step("nan")
    assert loss[3].isnan()
    wm.raise_deferred_errors()
    monkeypatch.setenv("WIDEMARGIN_CHECK", "sync")
    with host_reads.without_shortcuts(), pytest.raises(InputError, match="label 3 is out of range"):
        bad_step(3)
    monkeypatch.setenv("WIDEMARGIN_CHECK", "later")
    with pytest.raises(InputError, match=r"WIDEMARGIN_CHECK='later'.*async"):
        bad_step(0)


def test_cosines_are_checked_late_too(monkeypatch):
    monkeypatch.setenv("WIDEMARGIN_CHECK", "async")
    loss = wm.margin_softmax(torch.zeros(2, 3), torch.tensor([0, 5]), "arcface")
    assert loss[1] == 0
    with pytest.raises(InputError, match="label 5"):
        wm.raise_deferred_errors()


def test_an_unknown_shortcut_is_refused():
    with pytest.raises(ValueError, match="unknown shortcuts"), host_reads.without_shortcuts("speed"):
        pass
