"""Real tables: every margin learns with its defaults, through the same few lines a user writes."""

import csv

import pytest
import torch

import widemargin as wm
from widemargin.losses.registry import list_losses


def table(path) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """Standardised features, labels and class names of a CSV whose last column is the class."""
    with open(path, newline="") as file:
        _, *rows = csv.reader(file)
    features = torch.tensor([[float(cell) for cell in row[:-1]] for row in rows])
    names = sorted({row[-1] for row in rows})
    labels = torch.tensor([names.index(row[-1]) for row in rows])
    return (features - features.mean(0)) / features.std(0), labels, names


@pytest.mark.parametrize("name", list_losses("margins"))
@pytest.mark.parametrize(("stem", "least"), [("iris", 0.94), ("user_knowledge_modeling", 0.85)])
def test_a_margin_learns_a_real_table(data_dir, stem, name, least):
    x, y, names = table(data_dir / "uci" / f"{stem}.csv")
    torch.manual_seed(0)
    order = torch.randperm(len(x))
    train, test = order[: len(x) * 4 // 5], order[len(x) * 4 // 5 :]
    body = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
    margin = wm.parse(name).with_class_counts(torch.bincount(y[train]).tolist())
    head = wm.Head(16, len(names), margin, class_names=names)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        head(body(x[train]), y[train]).mean().backward()
        optimizer.step()
    right = head.eval().logits(body(x[test])).argmax(1) == y[test]
    assert right.float().mean() >= least
