"""The classes of a head: names, more of them, class means, weight decay."""

import copy
import math

import pytest
import torch

import widemargin as wm
from head_batch import C, D, batch


def test_state_dict_deepcopy_and_names(tmp_path):
    names = ["ant", "bee", "cat<script>", "dö", "é"]
    head = wm.Head(D, C, "adaacos(s=6)", class_names=names)
    x, y = batch()
    head(x, y)
    torch.save(head.state_dict(), tmp_path / "head.pt")
    other = wm.Head(D, C, "adaacos(s=6)")
    other.load_state_dict(torch.load(tmp_path / "head.pt", weights_only=True))
    assert other.class_names == names
    assert other.margin_state.state_m == head.margin_state.state_m
    assert copy.deepcopy(head).class_names == names
    bare = wm.Head(D, C, "normface")
    bare.load_state_dict({"weight": head.weight, "margin_state.steps": torch.tensor(4)})
    assert int(bare.margin_state.steps) == 4


def test_damaged_extra_state_is_one_line():
    head = wm.Head(D, C, "arcface")
    state = head.state_dict()
    state["_extra_state"] = torch.tensor([1, 2, 3], dtype=torch.uint8)
    with pytest.raises(wm.InputError, match="extra state is damaged"):
        head.load_state_dict(state)


def test_extend_keeps_what_was_learned():
    head = wm.Head(D, C, "adacos", class_names=list("abcde"))
    x, y = batch()
    head(x, y), head(x, y)
    old, scale, logits = head.weight.detach().clone(), head.scale, head.logits(x)
    head.extend(3, class_names=["f", "g", "h"])
    assert head.weight.shape == (C + 3, D)
    assert head.class_names == list("abcdefgh")
    assert head.scale == scale
    assert int(head.margin_state.steps) == 2
    torch.testing.assert_close(head.weight[:C], old)
    torch.testing.assert_close(head.logits(x)[:, :C], logits)
    head(x, torch.full_like(y, 7)).sum().backward()
    assert head.weight.grad.shape == head.weight.shape


def test_extend_of_per_class_margins_asks_for_theirs():
    head = wm.Head(D, 2, "arcface(m=[0.1, 0.2])")
    with pytest.raises(wm.InputError, match="give 1 numbers for the new classes"):
        head.extend(1)
    head.extend(1, m=[0.3])
    assert head.spec == wm.parse("arcface(m=[0.1, 0.2, 0.3])")
    x, y = batch(c=3)
    assert head(x, y).shape == (8,)


def test_defaults_that_depend_on_the_classes_follow_extend():
    head = wm.Head(D, 10, "adaacos")
    before = head.scale
    head.extend(10)
    assert head.scale == pytest.approx(before * math.log(19) / math.log(9))


def test_extend_keeps_bias_and_class_weights():
    head = wm.Head(D, C, "softmax(bias=True)", class_weight=[1.0, 2.0, 3.0, 4.0, 5.0])
    with torch.no_grad():
        head.bias.copy_(torch.arange(C))
    with pytest.raises(wm.InputError, match="give 1 factors for the new classes"):
        head.extend(1)
    head.extend(1, class_weight=[6.0])
    assert head.bias.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 0.0]
    assert head.margin_state.class_weight.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_init_from_means_points_at_the_class():
    head = wm.Head(2, 3, "arcface")
    lengths = head.weight.detach().norm(dim=1)
    third = head.weight.detach()[2].clone()
    head.init_from_means(torch.tensor([[2.0, 0.0], [4.0, 0.0], [0.0, 5.0]]), torch.tensor([0, 0, 1]))
    directions = head.weight.detach() / head.weight.detach().norm(dim=1, keepdim=True)
    torch.testing.assert_close(directions[:2], torch.eye(2))
    torch.testing.assert_close(head.weight.detach().norm(dim=1), lengths)
    torch.testing.assert_close(head.weight.detach()[2], third)


def test_ignored_samples_do_not_pull_the_means():
    head = wm.Head(2, 2, "arcface", ignore_index=-1)
    head.init_from_means(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, -5.0]]), torch.tensor([0, 1, -1]))
    directions = head.weight.detach() / head.weight.detach().norm(dim=1, keepdim=True)
    torch.testing.assert_close(directions, torch.eye(2))


def test_only_weights_with_a_length_are_decayed():
    sphere = wm.Head(D, C, "arcface(s=learnable(10))").parameter_groups(weight_decay=0.1)
    assert [(group["weight_decay"], len(group["params"])) for group in sphere] == [(0.0, 2)]
    plain = wm.Head(D, C, "softmax(bias=True)").parameter_groups(weight_decay=0.1)
    assert [(group["weight_decay"], len(group["params"])) for group in plain] == [(0.1, 1), (0.0, 1)]
    torch.optim.SGD(plain, lr=0.1)


def test_without_a_number_the_optimizers_own_decay_counts():
    optimizer = torch.optim.AdamW(wm.Head(D, C, "softmax(bias=True)").parameter_groups(), weight_decay=0.05)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.05, 0.0]
