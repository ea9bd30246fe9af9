"""Train a head with a million classes on one machine; weights, gradient and momentum are 5.7 GiB.

    python examples/million_classes.py                      # minutes on two cores; prints what it holds
    python examples/million_classes.py --num-classes 50000  # seconds

Every class has a code of 64 numbers that follows from its own number; samples are codes with noise, and a small network
learns to embed them. The angle between samples and the weight of their class, on samples not trained on, must fall.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import nn

import widemargin as wm
from widemargin.head import costs

CODE_DIM, EMBEDDING_DIM, BATCH_SIZE, NUM_TRAINED = 64, 512, 128, 1000


def draw_samples(classes: torch.Tensor, noise: float = 0.3) -> torch.Tensor:
    """Codes of the classes, a different angle for every number, with noise."""
    turns = torch.arange(1, CODE_DIM + 1, dtype=torch.float64).sqrt()
    return torch.cos(classes.double().unsqueeze(1) * turns).float() + noise * torch.randn(len(classes), CODE_DIM)


def largest_memory() -> float:
    """GiB this process has held at the most; NaN where the system does not tell."""
    status = Path("/proc/self/status")
    if not status.exists():
        return float("nan")
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-classes", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--loss", default="arcface(s=32, m=0.3)")
    options = parser.parse_args()
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(CODE_DIM, EMBEDDING_DIM),
        nn.BatchNorm1d(EMBEDDING_DIM),
        nn.ReLU(),
        nn.Linear(EMBEDDING_DIM, EMBEDDING_DIM),
    )
    head = wm.Head(EMBEDDING_DIM, options.num_classes, options.loss, backend="stream")
    # Class weights are of length 1 and turn by lr · gradient: a mean over 128 samples wants a large rate.
    groups = [{"params": network.parameters(), "lr": 0.05}, {"params": head.parameters(), "lr": 2.0}]
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    # Some of the classes, so that each is met several times in few steps; the loss is over all of them.
    trained = torch.randperm(options.num_classes)[:NUM_TRAINED]
    held_out = trained[torch.arange(256) % len(trained)]
    need = (
        costs.total_cost((*costs.EAGER_COSTS, costs.MOMENTUM_COST), options.num_classes, EMBEDDING_DIM, BATCH_SIZE, 1)
        / 2**30
    )
    print(f"{head}")
    own = 3 * 4 * options.num_classes * EMBEDDING_DIM / 2**30
    print(f"weights, gradient and momentum: {own:.2f} GiB; eager: {need:.2f} GiB")
    for step in range(options.steps + 1):
        if step % 5 == 0:
            network.eval()
            with torch.no_grad():
                angle = head.target_angles(network(draw_samples(held_out)), held_out).median()
            network.train()
            print(f"step {step:3d}: target angle {torch.rad2deg(angle):5.1f}°, {largest_memory():.2f} GiB", flush=True)
        if step == options.steps:
            break
        begun = time.perf_counter()
        y = trained[torch.randint(len(trained), (BATCH_SIZE,))]
        optimizer.zero_grad()
        loss = head(network(draw_samples(y)), y).mean()
        loss.backward()
        optimizer.step()
        print(f"          loss {loss.item():6.3f}, {time.perf_counter() - begun:.2f} s", flush=True)


if __name__ == "__main__":
    main()
