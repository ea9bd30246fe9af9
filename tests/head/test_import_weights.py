"""Class weights of other libraries' heads: found, turned round, and never executed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning.losses import ArcFaceLoss
from safetensors.torch import save_file
from torch import Tensor

import widemargin as wm

DIM, CLASSES = 8, 5


@pytest.fixture
def head() -> wm.Head:
    return wm.Head(DIM, CLASSES, "arcface(s=64, m=0.5)")


def matrix(*shape: int) -> Tensor:
    """Different numbers in every place, so that a turned or shifted matrix is seen."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def assert_refused(head: wm.Head, source, match: str) -> None:
    """One line, and the head keeps its weights."""
    before = head.weight.detach().clone()
    with pytest.raises(wm.InputError, match=match) as caught:
        head.load_class_weights(source)
    assert "\n" not in str(caught.value)
    assert torch.equal(head.weight, before)


# ---------------------------------------------------------------- pytorch-metric-learning


@pytest.fixture
def other() -> ArcFaceLoss:
    return ArcFaceLoss(
        num_classes=CLASSES, embedding_size=DIM, margin=torch.rad2deg(torch.tensor(0.5)).item(), scale=64
    )


def test_a_state_dict_of_pytorch_metric_learning(head, other):
    head.load_class_weights(other.state_dict())
    assert torch.equal(head.weight, other.W.T)


def test_a_saved_state_dict_of_pytorch_metric_learning(head, other, tmp_path):
    path = tmp_path / "loss.pt"
    torch.save(other.state_dict(), path)
    head.load_class_weights(path)
    assert torch.equal(head.weight, other.W.T)
    again = wm.Head(DIM, CLASSES, "arcface")
    again.load_class_weights(str(path))
    assert torch.equal(again.weight, other.W.T)


def test_the_head_then_gives_that_librarys_loss(head, other):
    x, y = matrix(12, DIM), torch.arange(12) % CLASSES
    head.load_class_weights(other.state_dict())
    assert head(x, y).mean().item() == pytest.approx(other(x, y).item(), rel=1e-4)


def test_a_head_that_was_taken_over_still_learns(head, other):
    head.load_class_weights(other.state_dict())
    head(matrix(12, DIM), torch.arange(12) % CLASSES).mean().backward()
    assert isinstance(head.weight, torch.nn.Parameter)
    assert head.weight.grad.abs().sum() > 0
    assert other.W.grad is None


# ---------------------------------------------------------------- other layouts


def test_a_checkpoint_of_insightface(head, tmp_path):
    weight = matrix(CLASSES, DIM)
    path = tmp_path / "checkpoint.pt"
    torch.save({"epoch": 3, "global_step": 70, "state_dict_softmax_fc": {"weight": weight}}, path)
    head.load_class_weights(path)
    assert torch.equal(head.weight, weight)


def test_shards_are_put_together_in_the_given_order(head, tmp_path):
    weight = matrix(CLASSES, DIM)
    paths = []
    for rank, rows in enumerate(weight.split([2, 2, 1])):
        paths.append(tmp_path / f"rank_{rank}.pt")
        torch.save({"state_dict_softmax_fc": {"weight": rows.clone()}}, paths[-1])
    head.load_class_weights(paths)
    assert torch.equal(head.weight, weight)
    head.load_class_weights(paths[::-1])
    assert torch.equal(head.weight, torch.cat([weight[4:], weight[2:4], weight[:2]]))


def test_a_missing_shard_is_noticed(head, tmp_path):
    path = tmp_path / "rank_0.pt"
    torch.save({"weight": matrix(CLASSES - 2, DIM)}, path)
    assert_refused(head, [path], "3 classes")


def test_a_kernel_is_dimension_by_classes(head):
    kernel = matrix(DIM, CLASSES)
    head.load_class_weights({"kernel": kernel})
    assert torch.equal(head.weight, kernel.T)


@pytest.mark.parametrize("prefix", ["", "module.", "head.loss."])
def test_prefixes_of_keys_do_not_matter(head, prefix):
    weight = matrix(CLASSES, DIM)
    head.load_class_weights({f"{prefix}weight": weight, f"{prefix}bias": torch.zeros(CLASSES)})
    assert torch.equal(head.weight, weight)


def test_a_safetensors_file(head, tmp_path):
    weight = matrix(CLASSES, DIM)
    save_file({"weight": weight}, tmp_path / "head.safetensors")
    head.load_class_weights(tmp_path / "head.safetensors")
    assert torch.equal(head.weight, weight)
    save_file({"W": 2 * weight.T.contiguous()}, tmp_path / "other.safetensors")
    head.load_class_weights(tmp_path / "other.safetensors")
    assert torch.equal(head.weight, 2 * weight)


@pytest.mark.parametrize(("key", "turned"), [("weight", False), ("W", True), ("kernel", True)])
def test_square_weights_are_told_apart_by_their_key(key, turned):
    square = wm.Head(4, 4, "cosface")
    weight = matrix(4, 4)
    square.load_class_weights({key: weight})
    assert torch.equal(square.weight, weight.T if turned else weight)


def test_our_own_heads_state_dict(head, tmp_path):
    trained = wm.Head(DIM, CLASSES, "adacos", class_names=list("abcde"))
    torch.save(trained.state_dict(), tmp_path / "own.pt")
    head.load_class_weights(tmp_path / "own.pt")
    assert torch.equal(head.weight, trained.weight)


def test_weights_come_in_the_heads_own_dtype():
    double = wm.Head(DIM, CLASSES, "arcface", dtype=torch.float64)
    weight = matrix(CLASSES, DIM).half()
    double.load_class_weights({"weight": weight})
    assert double.weight.dtype == torch.float64
    assert torch.equal(double.weight, weight.double())


def test_logits_are_cosines_with_the_taken_weights(head):
    kernel, x = matrix(DIM, CLASSES), matrix(3, DIM)
    head.load_class_weights({"kernel": kernel})
    wanted = 64 * F.normalize(x) @ F.normalize(kernel, dim=0)
    assert torch.allclose(head.logits(x), wanted, atol=1e-4)


# ---------------------------------------------------------------- refusals


class Evil:
    """A pickle that would create a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("nested", [False, True], ids=["the file itself", "beside the weights"])
def test_a_malicious_pickle_is_refused_and_does_nothing(head, tmp_path, nested):
    victim, path = tmp_path / "victim", tmp_path / "evil.pt"
    evil = Evil(victim)
    torch.save({"weight": matrix(CLASSES, DIM), "extra": evil} if nested else evil, path)
    assert_refused(head, path, "cannot be read as plain tensors")
    assert not victim.exists()
    torch.load(path, weights_only=False)
    assert victim.exists(), "the pickle must be one that would have worked"


def test_a_saved_module_is_refused(head, other, tmp_path):
    torch.save(other, tmp_path / "module.pt")
    assert_refused(head, tmp_path / "module.pt", "cannot be read as plain tensors")


def test_missing_files_are_named(head, tmp_path):
    assert_refused(head, tmp_path / "nowhere.pt", "nowhere.pt: no such file")
    assert_refused(head, tmp_path, "no such file")
    assert_refused(head, [], "no weight file")


@pytest.mark.parametrize("name", ["broken.pt", "broken.safetensors"])
def test_files_of_something_else_are_named(head, tmp_path, name):
    (tmp_path / name).write_bytes(b"this is\nno checkpoint\n" * 5)
    assert_refused(head, tmp_path / name, name)


def test_a_file_with_a_bare_tensor_is_no_state_dict(head, tmp_path):
    torch.save(matrix(CLASSES, DIM), tmp_path / "bare.pt")
    assert_refused(head, tmp_path / "bare.pt", "a Tensor")


@pytest.mark.parametrize(("key", "shape"), [("weight", (CLASSES, 6)), ("W", (6, CLASSES)), ("kernel", (CLASSES, DIM))])
def test_another_dimension_is_said(head, key, shape):
    assert_refused(head, {key: matrix(*shape)}, f"this head of {DIM}")


def test_another_number_of_classes_is_said(head):
    assert_refused(head, {"weight": matrix(CLASSES + 2, DIM)}, "7 classes of dimension 8, this head 5 of 8")


@pytest.mark.parametrize(
    "state",
    [{}, {"bias": torch.zeros(5)}, {"weight": torch.zeros(5)}, {"weight": "text"}, {"other": torch.zeros(5, 8)}],
    ids=["empty", "bias only", "vector", "no tensor", "unknown name"],
)
def test_a_state_dict_without_a_matrix_is_said(head, state):
    assert_refused(head, state, "got 0 among")


def test_several_matrices_are_ambiguous(head):
    state = {"fc.weight": matrix(CLASSES, DIM), "head.weight": matrix(CLASSES, DIM)}
    assert_refused(head, state, "got 2 among: fc.weight, head.weight")


def test_a_linear_layer_comes_with_its_bias_or_not_at_all():
    linear = torch.nn.Linear(4, 3)
    head = wm.Head(4, 3, "softmax(bias=True)")
    head.load_class_weights(linear.state_dict())
    x = torch.randn(5, 4)
    torch.testing.assert_close(head.logits(x), linear(x))
    with pytest.raises(wm.InputError, match="include a bias"):
        wm.Head(4, 3, "arcface").load_class_weights(linear.state_dict())
