"""Every public function with batches and numbers of the wrong kind: the tables of the selftest, cell by cell."""

import math

import pytest
import torch

import widemargin as wm
from stress import calls, odd_numbers

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("call", calls.BATCH_CALLS, ids=lambda call: call.name)
def test_spoiled_batches_end_as_the_table_says(call):
    found = {spoil: calls.batch_call_problem(call, spoil) for spoil in calls.BATCH_MUTATIONS}
    assert {spoil: said for spoil, said in found.items() if said} == {}


@pytest.mark.parametrize("name", odd_numbers.CALLS)
def test_odd_numbers_are_refused_in_one_line(name):
    found = [odd_numbers.value_call_problem(name, place) for place in range(len(odd_numbers.CALLS[name][1]))]
    assert [said for said in found if said] == []


def test_every_public_name_stands_in_a_table():
    told = " ".join([call.name for call in calls.BATCH_CALLS] + list(odd_numbers.CALLS))
    elsewhere = {
        *(
            "Criterion",
            "Term",
            "Margin",
            "Sum",
            "Angles",
            "InputError",
            "MarginModel",
            "losses",
            "__version__",
        ),  # values
        *(
            "MarginClassifier",
            "load",
            "load_sharded",
            "save_sharded",
            "parse_list",
        ),  # scikit-learn's checks; fuzzed files
    }
    assert [name for name in wm.__all__ if name not in told and name not in elsewhere] == []


@pytest.mark.parametrize("road", ["dense", "stream"])
def test_labels_without_values_are_not_read(road):
    """They once were, from whatever lay in memory."""
    head = wm.Head(4, 3, "arcface", backend=road)
    with pytest.raises(wm.InputError, match="the labels are on meta, the embeddings on cpu"):
        head(torch.randn(5, 4), torch.zeros(5, dtype=torch.int64, device="meta"))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int64])
@pytest.mark.parametrize("ignored", [-1, 200, 2**40])
def test_ignore_index_means_the_same_in_every_dtype(dtype, ignored):
    """255 in eight bits is not -1, and a number that a dtype cannot hold is simply not there."""
    x, y = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    torch.manual_seed(0)
    plain = wm.Head(4, 3, "arcface").eval()
    torch.manual_seed(0)
    head = wm.Head(4, 3, "arcface", ignore_index=ignored).eval()
    assert torch.equal(head(x, y.to(dtype)), plain(x, y))


def test_half_a_gallery_is_refused():
    """Without its labels the queries once searched among themselves, each finding itself: always 100 %."""
    x, y = torch.randn(8, 4), torch.arange(8) % 2
    from widemargin.metrics.fewshot import knn_accuracy
    from widemargin.metrics.retrieval import retrieval_metrics

    for search in (retrieval_metrics, knn_accuracy):
        with pytest.raises(wm.InputError, match="come together"):
            search(x, y, torch.randn(5, 4))


def test_words_are_no_answers():
    """`numpy.asarray(["False"], dtype=bool)` is True."""
    from widemargin.metrics.verification import verification_metrics

    with pytest.raises(wm.InputError, match="the same"):
        verification_metrics([0.1, 0.9, 0.5], ["False", "True", "False"])


@pytest.mark.parametrize("margin", ["arcface", "cosface", "arcgrad", "normface", "softmax", "a_softmax"])
@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_gradients_of_huge_and_tiny_embeddings_are_finite(margin, size):
    torch.manual_seed(0)
    head = wm.Head(4, 3, margin)
    x = (size * torch.randn(6, 4)).requires_grad_()
    loss = head(x, torch.arange(6) % 3)
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert torch.isfinite(x.grad).all()
    assert math.isfinite(float(head.weight.grad.abs().max()))
