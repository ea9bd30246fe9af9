"""The same seed on the same machine gives the same bits; how far other numbers of threads and ranks lead away."""

from __future__ import annotations

from pathlib import Path

from ..check import Outcome, Size
from ..commands import forked, ranks
from ..trainings import Tally, cannot, difference, draw, words

TITLE = "same seed, same machine, one process: the same bits"
KIND = "fault"
LONG = False


def run(size: Size) -> Outcome:
    """The same run again and again with one thread and with two; then both beside each other, and two ranks."""
    if (missing := cannot()) is not None:
        return missing
    data, tally, firsts = draw(size.folder / "images"), Tally(), []
    for threads in ("1", "2"):
        folders = [size.folder / f"threads{threads}-{number}" for number in range(6 if size.long else 2)]
        for out in folders:
            code, said = forked(_short(data, out), out.with_suffix(".txt"), {"OMP_NUM_THREADS": threads})
            if code != 0:
                return Outcome(1, 0, "everything", f"an undisturbed run ended with {code}: {said[-300:]}")
            if out != folders[0]:
                tally.add(f"{threads} threads", difference(folders[0], out))
        firsts.append(folders[0])
        size.tell(f"{tally.tried} repeated")
    both = size.folder / "ranks"
    codes = [child.end() for child in ranks(_short(data, both), size.folder / "said")]
    if codes != [0, 0]:
        return Outcome(1, 0, "everything", f"two ranks ended with {codes}")
    told = [f"two threads beside one: {_apart(*firsts)}", f"two ranks beside one: {_apart(firsts[0], both)}"]
    return tally.outcome("; ".join(told))


def _short(data: Path, out: Path) -> list[str]:
    """Two threads for a small network on a machine with other work are slow."""
    return words(data, out, epochs=2, repeats=5)


def _apart(one: Path, other: Path) -> str:
    """How far the weights of two runs lie apart, as a share of their length, and the loss of the last epoch."""
    import torch

    from ...training import checkpoint
    from ...training.log import Log

    first, second = (checkpoint.load(folder / "checkpoints" / "last")[0] for folder in (one, other))
    flat = [
        torch.cat([value.double().flatten() for value in model.values() if value.is_floating_point()])
        for model in (first, second)
    ]
    share = float((flat[0] - flat[1]).norm() / flat[0].norm())
    losses = [Log.lines(folder / "metrics.jsonl")[-1] for folder in (one, other)]
    if share == 0.0:
        return f"the same bits after {losses[0]['step']} steps"
    steps = losses[0]["step"]
    return f"weights {share:.1e} apart after {steps} steps, loss {losses[0]['loss']:.6f} and {losses[1]['loss']:.6f}"
