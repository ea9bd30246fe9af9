"""What the open-set recipes compare, line by line, and who does the work of a line's run."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...run import Run
from ...training.unseen import EVALUATION, Judgement
from ...training.writing import write_whole

if TYPE_CHECKING:
    from ...training.siamese import Siamese

Work = Callable[[Run, Path, str | None], None]
Judge = Callable[[Run, Path, str | None], tuple[Judgement, tuple[str, ...]] | None]
"""A finished run's judgement on its unseen classes, and their names; None where the run kept too little for it."""

# One setting for all losses, none of it tuned. Flips would make other characters; faces are the same in a mirror.
_COMMON: dict[str, Any] = {
    "model": "fast(widths=(32, 96, 96), bias=False)",
    "dim": 64,
    "per_class": 4,
    "unseen": 0.5,
    "opt": "adamw",
    "lr": 0.003,
    "weight_decay": 0.05,
}
OMNIGLOT = Run(
    data="omniglot",
    epochs=20,
    batch_size=120,
    input_size=28,
    augment_options={"pad": 8, "flip": "none"},
    **_COMMON,
)
FACES = Run(data="orl_faces", epochs=60, batch_size=80, input_size=46, augment_options={"pad": 6}, **_COMMON)

# MNIST for pictures and grids: small, quick, and no flips.
DIGITS = Run(
    data="mnist",
    model="fast(widths=(16, 32, 32), bias=False)",
    batch_size=100,
    opt="adamw",
    lr=0.003,
    weight_decay=0.05,
    augment_options={"pad": 2, "flip": "none"},
)

# Scales and margins are one round number for all that have them; what adapts itself is left to itself.
LOSSES = (
    "softmax",
    "normface(s=16)",
    "contrastive",
    "triplet(mining=semihard)",
    "a_softmax(m=4, lam=anneal(100, gamma=1))",  # its own λ would hardly fall within these steps
    "cosface(s=16, m=0.2)",
    "arcface(s=16, m=0.2)",
    "adacos",
    "adaacos",
    "arcgrad(s=16)",
    "softmax + 0.02*center(alpha=0.5)",
)
PEERS = {
    "pml:arcface(s=16, m=0.2)": "arcface(s=16, m=0.2)",
    "pml:cosface(s=16, m=0.2)": "cosface(s=16, m=0.2)",
    "pml:triplet(alpha=0.2)": "triplet(mining=semihard)",
}
"""pytorch-metric-learning's losses in our loop, and which of ours each stands beside."""


@dataclass(frozen=True)
class Line:
    """A row of the table: its name, its run but for the seed, what does the work, and what judges it again."""

    name: str
    run: Run
    work: Work
    judge: Judge | None = None

    def of_seed(self, seed: int) -> Run:
        return replace(self.run, seed=seed)


def lines_of(base: Run, *, siamese: bool) -> list[Line]:
    """All rows for a data set."""
    from .peers import PREFIX

    rows = [Line(loss, replace(base, loss=loss), trained, judge_network) for loss in LOSSES]
    if find_spec("pytorch_metric_learning") is not None:
        rows += [Line(name, replace(base, loss=name), beside, judge_network) for name in PEERS]
    else:
        print("without the peers; for them: pip install pytorch-metric-learning==2.9.0", file=sys.stderr)
    assert all(name.startswith(PREFIX) for name in PEERS)
    if siamese:
        plain = replace(base, epochs=5, batch_size=100, per_class=0, dim=0)
        for merge, name in _SIAMESE.items():
            rows.append(Line(name, replace(plain, loss=f"siamese({merge})"), paired, judge_paired))
    bare = replace(base, model="none", dim=0, epochs=1)
    for kind in ("pixels", "histograms"):
        rows.append(Line(f"L1 of {kind}", replace(bare, loss=f"l1({kind})"), by_hand, judge_by_hand))
    return rows


_SIAMESE = {"input": "Siamese, merged at the input", "embedding": "Siamese, embedded apart"}


def trained(run: Run, folder: Path, data_dir: str | None) -> None:
    """One of our losses."""
    from ...training.loop import train

    train(run, folder, resume=True, data_dir=data_dir, quiet=True)


def beside(run: Run, folder: Path, data_dir: str | None) -> None:
    """A peer's loss in the same loop."""
    from ...training.loop import train
    from .peers import peer

    train(
        run,
        folder,
        resume=True,
        data_dir=data_dir,
        quiet=True,
        another=peer(run.loss),
        command=_command(run),
    )


def judge_network(run: Run, folder: Path, data_dir: str | None) -> tuple[Judgement, tuple[str, ...]]:
    """The embeddings that a kept network gives the unseen classes."""
    from ...training.finished import finished
    from ...training.unseen import embed, judgement
    from .peers import PREFIX, peer

    done = finished(folder, another=peer(run.loss) if run.loss.startswith(PREFIX) else None)
    inputs = done.inputs(data_dir)
    x, y = embed(done.model, inputs.judged(inputs.test))
    return judgement(x, y, seed=run.seed), inputs.test.classes


def by_hand(run: Run, folder: Path, data_dir: str | None) -> None:
    """Pixels or histograms, nothing learned."""
    found, _ = judge_by_hand(run, folder, data_dir)
    write_record(run, folder, found, 0.0)


def judge_by_hand(run: Run, folder: Path, data_dir: str | None) -> tuple[Judgement, tuple[str, ...]]:
    """The same again; nothing is kept but the figures."""
    from ...training.inputs import inputs_of
    from .traditional import judge_traditional

    unseen: Any = inputs_of(replace(run, batch_size=1, per_class=0), data_dir).test
    kind = run.loss.removeprefix("l1(").removesuffix(")")
    size = run.input_size or unseen.x.shape[2]
    return judge_traditional(unseen.x, unseen.y, size, kind, run.seed), unseen.classes


def paired(run: Run, folder: Path, data_dir: str | None) -> None:
    """A Siamese network on pairs of the seen classes, judged on pairs of the unseen; its weights are kept."""
    from safetensors.torch import save_file

    from ...training.checkpoint import own
    from ...training.inputs import inputs_of
    from ...training.siamese import train_siamese
    from .siamese_judging import judge_siamese, pairs_of

    inputs = inputs_of(replace(run, per_class=0), data_dir)
    begun = time.perf_counter()
    network = train_siamese(_siamese(run), pairs_of(inputs.train, run.seed + 1), inputs.augment)
    spent = time.perf_counter() - begun
    folder.mkdir(parents=True, exist_ok=True)
    save_file(own(network.state_dict()), folder / _WEIGHTS)
    write_record(run, folder, judge_siamese(network, inputs.test, inputs.augment, run.seed), spent)


def judge_paired(run: Run, folder: Path, data_dir: str | None) -> tuple[Judgement, tuple[str, ...]] | None:
    """A kept Siamese network; None for a run of before, which kept none."""
    from ...tensor_files import stored_tensors
    from ...training.checkpoint import restore_module
    from ...training.inputs import inputs_of
    from ...training.siamese import PairNetwork
    from .siamese_judging import judge_siamese

    if not (folder / _WEIGHTS).is_file():
        return None
    inputs = inputs_of(replace(run, per_class=0), data_dir)
    network = PairNetwork(_siamese(run), inputs.sees["channels"], inputs.sees["size"])
    kept = stored_tensors(folder / _WEIGHTS)
    restore_module(network, kept.read(), str(kept.path), kept.held)
    return judge_siamese(network.eval(), inputs.test, inputs.augment, run.seed), inputs.test.classes


def _siamese(run: Run) -> Siamese:
    """How the pair network of a run is trained."""
    from ...training.siamese import Siamese

    return Siamese(
        merge=run.loss.removeprefix("siamese(").removesuffix(")"),
        model=run.model,
        epochs=run.epochs,
        batch_size=run.batch_size,
        lr=run.lr,
        weight_decay=run.weight_decay,
        seed=run.seed,
    )


_WEIGHTS = "network.safetensors"


def write_record(run: Run, folder: Path, found: Judgement, seconds: float) -> None:
    """The record of a run that the training loop knows nothing of."""
    import torch

    from ...origin import commit
    from ...results import versions

    record = {
        "data": run.data,
        "loss": run.loss,
        "model": run.model,
        "seed": run.seed,
        "epochs": run.epochs,
        "seconds": round(seconds, 1),
        "cores": torch.get_num_threads(),
        "test": found.figures,
        "angles": {},
        "intervals": found.intervals,
        "evaluation": EVALUATION,
        "versions": versions(),
        "command": _command(run),
        "commit": commit(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "run.json", run.to_json())
    write_whole(folder / "record.json", json.dumps(record, indent=1))


def _command(run: Run) -> str:
    """What makes this run again, with those of smaller seeds."""
    recipe = {"omniglot": "omniglot", "orl_faces": "faces"}.get(run.data, run.data)
    return f"widemargin reproduce openset {recipe} --seeds {run.seed + 1}"
