"""The same seed on the same machine gives the same bits; and the effect of other numbers of threads and ranks."""

from __future__ import annotations

from pathlib import Path

from ..check import CheckContext, Outcome
from ..commands import run_command, start_ranks
from ..trainings import Tally, difference, generate_image_folder, train_argv, training_unavailable_outcome

TITLE = "same seed, same machine, one process: the same bits"
KIND = "fault"
LONG = False


def run(context: CheckContext) -> Outcome:
    """Repeat the same run with one thread and with two; then compare both, and two ranks."""
    if (missing := training_unavailable_outcome()) is not None:
        return missing
    data, tally, firsts = generate_image_folder(context.folder / "images"), Tally(), []
    for threads in ("1", "2"):
        folders = [context.folder / f"threads{threads}-{number}" for number in range(6 if context.long else 2)]
        for out in folders:
            code, output = run_command(
                _short_run_argv(data, out), out.with_suffix(".txt"), {"OMP_NUM_THREADS": threads}
            )
            if code != 0:
                return Outcome(1, 0, "everything", f"an undisturbed run ended with {code}: {output[-300:]}")
            if out != folders[0]:
                tally.add(f"{threads} threads", difference(folders[0], out))
        firsts.append(folders[0])
        context.on_progress(f"{tally.tried} repeated")
    both = context.folder / "ranks"
    codes = [child.wait() for child in start_ranks(_short_run_argv(data, both), context.folder / "said")]
    if codes != [0, 0]:
        return Outcome(1, 0, "everything", f"two ranks ended with {codes}")
    notes = [
        f"two threads against one: {_describe_weight_distance(*firsts)}",
        f"two ranks against one: {_describe_weight_distance(firsts[0], both)}",
    ]
    return tally.outcome("; ".join(notes))


def _short_run_argv(data: Path, out: Path) -> list[str]:
    """A shorter training: two threads are slow for a small network on a busy machine."""
    return train_argv(data, out, epochs=2, repeated_augmentation=5)


def _describe_weight_distance(one: Path, other: Path) -> str:
    """Describe the relative distance of the weights of two runs, and the loss of the last epoch."""
    import torch

    from widemargin.training import checkpoint
    from widemargin.training.logging import MetricsLog

    first, second = (checkpoint.load(folder / "checkpoints" / "last")[0] for folder in (one, other))
    flat = [
        torch.cat([value.double().flatten() for value in model.values() if value.is_floating_point()])
        for model in (first, second)
    ]
    share = float((flat[0] - flat[1]).norm() / flat[0].norm())
    losses = [MetricsLog.read_epochs(folder / "metrics.jsonl")[-1] for folder in (one, other)]
    if share == 0.0:
        return f"the same bits after {losses[0]['step']} steps"
    steps = losses[0]["step"]
    return f"weights {share:.1e} apart after {steps} steps, loss {losses[0]['loss']:.6f} and {losses[1]['loss']:.6f}"
