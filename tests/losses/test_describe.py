"""What losses say of themselves: a group each, and state and needs that follow from what they declare."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

import widemargin as wm
from widemargin.losses import registry
from widemargin.losses.base import Number, option
from widemargin.losses.describe import describe_loss, describe_needs, describe_state
from widemargin.losses.grammar import parse
from widemargin.losses.margin import Margin, Subcenters
from widemargin.losses.registry import LOSS_FAMILIES, LOSS_GROUPS, list_losses, loss_class


@pytest.mark.parametrize("name", list_losses())
def test_every_loss_names_its_own_group(name):
    kind = loss_class(name)
    assert vars(kind).get("group") in LOSS_GROUPS, f"{name}: declare group beside reference, one of {list(LOSS_GROUPS)}"


def test_groups_divide_the_losses():
    by_group = [name for group in LOSS_GROUPS for name in list_losses(group=group)]
    assert Counter(by_group) == Counter(list_losses())
    assert all(list_losses(group=group) for group in LOSS_GROUPS)
    assert list_losses("margins", group="pairs") == []
    assert set(list_losses("pairs")) == set(list_losses(group="pairs")) | {"proxy_anchor"}
    for family in LOSS_FAMILIES:
        assert list_losses(family) == [name for name in list_losses() if name in set(list_losses(family))]


@pytest.mark.parametrize("group", ["nothing", "long tail", 3, ["margin"], b"margin", ""])
def test_an_unknown_group_is_refused(group):
    with pytest.raises(wm.InputError, match="unknown group of losses"):
        list_losses(group=group)


def test_a_loss_without_a_group_is_refused_with_its_name(monkeypatch):
    kind = loss_class("arcface")
    monkeypatch.setattr(kind, "group", "")
    with pytest.raises(wm.InputError, match="unknown group of arcface ''"):
        registry.loss_class.__wrapped__("arcface")


@dataclass(frozen=True, repr=False)
class Everything(Margin):
    name = "everything"
    adaptive_fields = ("s", "t")
    learnt_fields = ("b",)
    sample_fields = ("luck",)
    uses_x_norm = True

    s: Number = option(wm.Warmup(1, 2, 3), "scale", allows_schedule=True)
    t: Number = option(1.0, "other")
    b: Number = option(wm.Learnable(2.0), "bias", allows_schedule=True, allows_learnable=True)

    @property
    def subcenters(self):
        return Subcenters(7)

    def with_class_counts(self, counts):
        return self


def test_state_and_needs_follow_from_what_a_loss_declares():
    loss = object.__new__(Everything)
    for name, (_, default) in Everything.options().items():
        object.__setattr__(loss, name, default)
    assert describe_state(loss) == ["warmup: s", "learnt: b, b", "from batches: s, t", "per sample: luck"]
    assert describe_needs(loss) == ["class counts", "norms of x", "7 weights per class"]


@pytest.mark.parametrize(
    ("spec", "state", "needs"),
    [
        ("arcface", [], []),
        ("normface(s=learnable(30))", ["learnt: s"], []),
        ("cosface(m=cosine(0, 0.3, steps=9))", ["cosine: m"], []),
        ("adacos", ["from batches: s"], []),
        ("a_softmax", ["anneal: lam"], ["norms of x"]),
        ("curricularface", ["from batches: t", "per sample: threshold"], []),
        ("uniface", ["learnt: b"], []),
        ("logit_adjusted(cosine=True)", [], ["class counts"]),
        ("logit_adjusted", [], ["class counts", "norms of x and w"]),
        ("aam_softmax", ["per sample: threshold"], ["k weights per class, where k > 1"]),
        ("aam_softmax(k=2)", ["per sample: threshold"], ["2 weights per class"]),
        ("center", ["per class: centers"], []),
        ("center(learn=True)", ["learnt: centers"], []),
        ("triplet", [], ["several of a class in a batch"]),
        ("proxy_anchor", ["learnt: proxies"], []),
        ("margin_pairs(learn_beta=True)", ["learnt: beta"], ["several of a class in a batch"]),
        ("xbm(supcon)", ["from batches: memory, memory_labels, position, steps"], []),
        ("mhe", [], ["a loss with class weights"]),
        ("focal", [], ["binary targets"]),
        ("huber", [], ["numbers as targets"]),
    ],
)
def test_state_and_needs_of_losses(spec, state, needs):
    assert (describe_state(parse(spec)), describe_needs(parse(spec))) == (state, needs)


@pytest.mark.filterwarnings("ignore:.*without counts:UserWarning")
def test_what_is_said_is_what_heads_hold():
    """State that is learnt or follows batches is in a head's parameters and buffers; nothing else is."""
    for name in list_losses("margins"):
        lines = [line for line in describe_state(parse(name)) if line.startswith(("learnt", "from batches"))]
        said = {field for line in lines for field in line.partition(": ")[2].split(", ")}
        state = wm.Head(4, 5, name).margin_state.state_dict()
        held = {key.partition("_")[2] for key in state if key.startswith(("state_", "learnt_", "log_"))}
        assert held == said, name


def test_the_first_page_of_a_loss_is_complete():
    for name in list_losses():
        page = describe_loss(loss_class(name))
        assert page["sentence"].endswith("."), name
        assert page["reference"], name
        for part in ("Formula:", "Domain:", "When:", "Reference:"):
            assert f"\n{part}" in f"\n{page['body']}", (name, part)
        assert page["example"].startswith(">>> "), name


def test_the_page_on_choosing_names_every_loss():
    text = (Path(__file__).parents[2] / "docs" / "choosing.md").read_text(encoding="utf-8")
    listed = text.partition("## All losses")[2].partition("\n## ")[0]
    assert [name for name in list_losses() if f"`{name}`" not in listed] == []
