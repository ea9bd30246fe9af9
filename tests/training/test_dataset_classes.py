"""Classes of data passed in Python: held-out ones, unseen ones, and datasets that number their classes differently."""

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset

import image_formats as formats
import widemargin as wm
from widemargin.metrics.confusion import Confusion
from widemargin.training.inputs import load_inputs

GENERATOR = torch.Generator().manual_seed(0)
Y = torch.arange(160) % 8
X = torch.randn(8, 6, generator=GENERATOR)[Y] + 0.2 * torch.randn(160, 6, generator=GENERATOR)
CONFIG = {"loss": "arcface(s=10, m=0.1)", "epochs": 1, "batch_size": 16, "lr": 0.01}
WORDS = tuple("abcdefgh")


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6))


class Named(Dataset):
    """Items of some classes, numbered in the order of `classes`, as torchvision's ImageFolder numbers its folders."""

    def __init__(self, classes: str) -> None:
        self.classes = list(classes)
        self.rows = [k for k in range(len(Y)) if WORDS[Y[k]] in classes]
        self.targets = [self.classes.index(WORDS[Y[k]]) for k in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int):
        return X[self.rows[row]], self.targets[row]


def train(out, changes=None, **given):
    return wm.train({**CONFIG, **(changes or {})}, out, model=make_net(), at=None, quiet=True, **given)


def images_by_class(run: wm.Run) -> list[int]:
    """How many items of each training class are tested on."""
    return [int(count) for count in Confusion.from_json(run.evaluate().metrics["confusion"]).images]


@pytest.mark.parametrize("labels", [Y, [WORDS[k] for k in Y], 10 * Y])
def test_held_out_classes_select_best_and_are_not_tested_on(tmp_path, labels):
    run = train(tmp_path, {"val_classes": 0.25, "knn_probe": 3}, train=(X, labels), test=(X, labels))
    assert len(run.class_names) == 6
    assert run.input_spec["class_counts"] == [20] * 6
    held_out = run.input_spec["val_class_names"]
    assert {*held_out, *run.class_names} == {
        str(label) for label in (labels.tolist() if torch.is_tensor(labels) else labels)
    }
    assert run.history[-1]["val"]["images"] == 40
    assert run.history[-1]["val"]["recall1"] > 50
    assert sum(images_by_class(run)) == 120
    again = wm.load(tmp_path, model=make_net())
    assert again.evaluate(test=(X, labels)).metrics["top1"] == run.record["test"]["top1"]


def test_a_resumed_run_holds_out_the_same_classes(tmp_path):
    changes = {"val_classes": 0.25, "epochs": 2}
    whole = train(tmp_path / "whole", changes, train=(X, Y))
    train(tmp_path / "parts", changes, train=(X, Y), stop_after=1)
    resumed = train(tmp_path / "parts", changes, train=(X, Y), resume=True)
    assert resumed.input_spec == whole.input_spec
    assert torch.equal(resumed.embed(X), whole.embed(X))


def test_items_of_other_classes_are_an_open_set(tmp_path):
    seen = Y < 5
    run = train(tmp_path, train=(X[seen], Y[seen]), test=(X[~seen], Y[~seen]))
    assert run.is_open_set
    assert run.record["test"]["identities"] == 3
    assert run.evaluate().metrics["recall1"] == run.record["test"]["recall1"]
    with pytest.raises(wm.InputError, match=r"not one of the 5 classes of train.*or of none of them"):
        train(tmp_path / "mixed", train=(X[seen], Y[seen]), test=(X, Y))


def test_classes_are_compared_by_the_names_that_datasets_declare(tmp_path):
    run = train(tmp_path / "closed", train=Named("abcdef"), test=Named("bdf"))
    assert images_by_class(run) == [0, 20, 0, 20, 0, 20]
    opened = train(tmp_path / "open", train=Named("abcdef"), val=Named("hg"), test=Named("gh"))
    assert opened.is_open_set
    assert opened.record["test"]["identities"] == 2
    assert wm.load(tmp_path / "open", model=make_net()).evaluate(test=Named("gh")).metrics["identities"] == 2


def test_parts_of_one_dataset_with_different_classes(tmp_path):
    whole = Named("abcdefgh")
    parts = [
        Subset(whole, [k for k, label in enumerate(whole.targets) if (label < 5) == is_seen])
        for is_seen in (True, False)
    ]
    run = train(tmp_path, train=parts[0], test=parts[1])
    assert run.class_names == WORDS[:5]
    assert run.is_open_set
    assert run.record["test"]["identities"] == 3


@pytest.mark.parametrize(
    ("changes", "given", "said"),
    [
        ({"val_classes": 0.25}, {"val": (X, Y)}, "val and val_classes both"),
        ({"val_classes": 0.25}, {"sampler": torch.utils.data.SequentialSampler(X)}, "instead of val_classes"),
        ({"unseen_classes": 0.25}, {}, "pass items of other classes as test"),
        ({"val_classes": 0.25}, {"test": (X, [WORDS[k] for k in Y])}, "not a class number"),
    ],
)
def test_mistakes_are_one_line(tmp_path, changes, given, said):
    with pytest.raises(wm.InputError, match=said) as error:
        train(tmp_path, changes, train=(X, Y), **given)
    assert "\n" not in str(error.value)


def test_names_and_numbers_are_not_taken_for_other_classes(tmp_path):
    with pytest.raises(wm.InputError, match="is a number, unlike those of train"):
        train(tmp_path, train=(X, [WORDS[k] for k in Y]), test=(X, Y))


def test_classes_of_packed_files_are_held_out(tmp_path):
    path = formats.write_shard(tmp_path / "a.tar", formats.shard_samples(formats.encoded_pictures([5] * 8)))
    found = load_inputs(wm.TrainConfig(str(path), "fast", "arcface", input_size=16, val_classes=0.25), None)
    assert len(found.class_names) == 6
    assert found.test.class_names == found.class_names
    assert not {*found.val.class_names} & {*found.class_names}
    assert len(found.val) == 2 * 4  # the fifth image of each was drawn for the test before, and is in no part
