"""What selects `best` is checked before the first step; settings that cannot work write no run."""

import numpy as np
import pytest
import torch

import widemargin as wm
from widemargin.data.images.sets import Images
from widemargin.io.errors import InputError
from widemargin.training.selection import selection_far

SET = "generated(classes=12, per_class=6, size=12, channels=1, test=24)"
SMALL = {"data": SET, "model": "fast(width=0.125)", "loss": "softmax", "batch_size": 24, "epochs": 1, "augment": "none"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"val_fraction": 0.2, "select_by": "map"}, "is for images with several labels"),
        ({"val_fraction": 0.5, "select_by": "tar"}, "needs 1,000 pairs of different classes .* have 594 and 36"),
        ({"val_fraction": 0.5, "select_by": "tar", "loss": "triplet", "per_class": 2}, "needs 1,000 pairs"),
        ({"val_fraction": 0.2, "select_by": "recall1"}, "no class has two held-out images"),
        ({"val_fraction": 0.5, "select_by": "top1", "loss": "triplet", "per_class": 2}, "a loss with class weights"),
        ({"val_fraction": 0.5, "select_by": "top1", "unseen_classes": 0.5}, "are evaluated; use recall1"),
        ({"loss": "l1"}, "compares numbers with numbers"),
        ({"augment": "paper", "augment_options": {"rand": "rand-m9-mst0.5"}}, "write it like rand-m9-mstd0.5-inc1"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_step(changes, says, tmp_path):
    with pytest.raises(InputError, match=says):
        wm.train({**SMALL, **changes}, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "run.json").exists()


def test_several_labels_are_selected_by_their_precision(tmp_path):
    torch.manual_seed(0)
    x, y = torch.randn(40, 6), np.eye(4, dtype=int)[torch.randint(4, (40,)).numpy()]
    settings = {"loss": "bce", "epochs": 1, "batch_size": 8, "val_fraction": 0.5}
    given = {"train": (x, y), "test": (x, y), "model": torch.nn.Linear(6, 4), "at": None, "quiet": True}
    for select_by in ("top1", "recall1", "tar"):
        with pytest.raises(InputError, match="measured by map"):
            wm.train({**settings, "select_by": select_by}, tmp_path / select_by, **given)
    run = wm.train({**settings, "select_by": "map"}, tmp_path / "map", **given)
    assert run.record["val"] == run.history[0]["val"]["map"]


def test_tar_is_of_one_rate_in_every_epoch(tmp_path):
    """Also where a model is so bad that too few pairs of one class are accepted to report a rate: that counts as 0."""
    run = wm.train({**SMALL, "val_fraction": 0.7, "select_by": "tar"}, tmp_path / "run", quiet=True)
    assert run.record["val"] == (run.history[0]["val"]["tar"]["0.01"] or 0.0)
    labels = torch.arange(30).repeat_interleave(4)
    val = Images("val", torch.zeros(120, 1, 1, 1, dtype=torch.uint8), labels, tuple(map(str, range(30))))
    assert selection_far(val) == "0.01"  # 6,960 pairs of different classes
    assert selection_far(val.take(torch.arange(120).repeat(2))) == "0.001"
