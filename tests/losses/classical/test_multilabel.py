"""Several answers at once: `bce` and `focal` on pictures of two digits each, from pixels to average precision."""

import pytest
import torch
from sklearn.metrics import average_precision_score

from widemargin import MarginModel, Objective
from widemargin.data.images.sets import load_images
from widemargin.models.build import build_backbone


@pytest.fixture(scope="module")
def two_digits(data_dir):
    """Digits side by side, 28×56 pixels, and which of the ten are there, [N, 10]."""
    found = load_images("mnist", data_dir)

    def pair_digits(part, count, seed):
        rows = torch.randint(len(part), (count, 2), generator=torch.Generator().manual_seed(seed))
        x = torch.cat((part.x[rows[:, 0]], part.x[rows[:, 1]]), 3).float() / 255
        y = torch.zeros(count, 10).scatter_(1, part.y[rows], 1.0)
        return (x - found.mean[0]) / found.std[0], y

    return pair_digits(found.train, 3000, 0), pair_digits(found.test, 500, 1)


@pytest.mark.parametrize(
    "loss", [pytest.param("bce", marks=pytest.mark.slow), pytest.param("focal", marks=pytest.mark.exhaustive)]
)
def test_both_digits_of_a_picture_are_named(two_digits, loss):
    (x, y), (unseen, answers) = two_digits
    torch.manual_seed(0)
    backbone = build_backbone("fast(widths=(16, 32, 32), bias=False)", channels=1, size=(28, 56))
    backbone.whiten(x[:500])
    model = MarginModel(backbone, Objective(loss, 32, 10))
    optimizer = torch.optim.AdamW(model.parameter_groups(0.05), lr=0.01)
    steps = 100
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps)
    draw = torch.Generator().manual_seed(2)
    for _ in range(steps):
        rows = torch.randint(len(x), (100,), generator=draw)
        optimizer.zero_grad()
        model(x[rows], y[rows]).mean().backward()
        optimizer.step()
        rate.step()
    model.eval()
    with torch.no_grad():
        said = model(unseen).sigmoid()
    assert said.shape == (500, 10)
    assert average_precision_score(answers.numpy(), said.numpy()) > 0.8  # guessing reaches 0.19
    exact = ((said > 0.5).float() == answers).all(1).float().mean()
    assert exact > 0.4
