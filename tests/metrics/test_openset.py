"""Open sets: detection and identification by hand."""

import pytest
import torch
from sklearn.metrics import roc_auc_score

from widemargin.io.errors import InputError
from widemargin.metrics.openset import open_set_metrics


def test_open_sets_by_hand():
    gallery, names = torch.eye(3), torch.tensor([0, 1, 2])
    probes = torch.tensor([[1.0, 0.1, 0.0], [0.1, 1.0, 0.0], [0.6, 0.0, 0.5], [1.0, 1.0, 1.0], [0.0, 1.0, 0.9]])
    labels = torch.tensor([0, 1, 2, 7, 8])
    found = open_set_metrics(probes, labels, gallery, names, fars=(0.5, 0.01))
    assert (found.known, found.unknown) == (3, 2)
    assert found.rank1 == pytest.approx(200 / 3)
    assert found.dir == {0.5: None, 0.01: None}  # one false alarm is too few for a rate
    many = open_set_metrics(probes.repeat(10, 1), labels.repeat(10), gallery, names, fars=(0.5, 0.01))
    # the ten lower of twenty unknown probes (0.577) are rejected: all known ones score above, two of three are right
    assert many.dir[0.5] == pytest.approx(200 / 3)
    assert many.dir[0.01] is None
    scores = [0.995, 0.995, 0.768, 0.577, 0.743]
    assert found.auroc == pytest.approx(roc_auc_score([1, 1, 1, 0, 0], scores))
    with pytest.raises(InputError, match="known and unknown"):
        open_set_metrics(probes[:3], labels[:3], gallery, names)
