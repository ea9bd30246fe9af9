"""Every public function with batches and numbers of the wrong kind: the tables of `stress`, cell by cell."""

import math

import pytest
import torch

import widemargin as wm
from stress import invalid_arguments, invalid_batches

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("call", invalid_batches.BATCH_CALLS, ids=lambda call: call.name)
def test_invalid_batches_end_as_the_table_says(call):
    problems = {name: invalid_batches.batch_call_problem(call, name) for name in invalid_batches.BATCH_MUTATIONS}
    assert {name: problem for name, problem in problems.items() if problem} == {}


@pytest.mark.parametrize("name", invalid_arguments.ARGUMENT_CALLS)
def test_invalid_arguments_are_refused_in_one_line(name):
    values = invalid_arguments.ARGUMENT_CALLS[name][1]
    problems = [invalid_arguments.argument_problem(name, index) for index in range(len(values))]
    assert [problem for problem in problems if problem] == []


def test_every_public_name_stands_in_a_table():
    names = " ".join([call.name for call in invalid_batches.BATCH_CALLS] + list(invalid_arguments.ARGUMENT_CALLS))
    elsewhere = {
        *(
            "Criterion",
            "PairLoss",
            "Margin",
            "Sum",
            "Angles",
            "SubcenterOutliers",
            "InputError",
            "MarginModel",
            "list_losses",
            "raise_deferred_errors",
            "__version__",
        ),  # values, and calls without arguments
        *(
            "MarginClassifier",
            "load",
            "load_sharded",
            "save_sharded",
            "parse_list",
        ),  # scikit-learn's checks; fuzzed files
        *("compare", "Comparison"),  # tests/tabular/test_compare_api.py
        *("fit", "TableEncoder"),  # tests/tabular/test_fit.py, tests/data/tabular/test_encoder.py
        *("Calibration", "Gallery"),  # tests/recognition
        *("suggest", "Suggestion"),  # tests/test_advice.py
        *(
            "train",
            "evaluate",
            "find_lr",
            "report",
            "Run",
            "Evaluation",
            "LRRangeTest",
            "Callback",
        ),  # training/test_api.py
    }
    assert [name for name in wm.__all__ if name not in names and name not in elsewhere] == []


@pytest.mark.parametrize("backend", ["dense", "stream"])
def test_labels_without_values_are_not_read(backend):
    """They once were, from whatever lay in memory."""
    head = wm.Head(4, 3, "arcface", backend=backend)
    with pytest.raises(wm.InputError, match=r"labels.*meta.*cpu"):
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
        with pytest.raises(wm.InputError, match="give both"):
            search(x, y, torch.randn(5, 4))


def test_words_are_no_answers():
    """`numpy.asarray(["False"], dtype=bool)` is True."""
    from widemargin.metrics.verification import verification_metrics

    with pytest.raises(wm.InputError, match="True or False"):
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
