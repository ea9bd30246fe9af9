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

from ...run import TrainConfig
from ...training.unseen import EVALUATION_VERSION, EmbeddingMetrics
from ...training.writing import write_text_atomic

if TYPE_CHECKING:
    from ...training.siamese import SiameseConfig

ExecuteFunction = Callable[[TrainConfig, Path, str | None], None]
EvaluateFunction = Callable[[TrainConfig, Path, str | None], tuple[EmbeddingMetrics, tuple[str, ...]] | None]
"""A finished run's judgement on its unseen classes, and their names; None where the run kept too little for it."""

# One setting for all losses, none of it tuned. Flips would make other characters; faces are the same in a mirror.
_COMMON_SETTINGS: dict[str, Any] = {
    "model": "fast(widths=(32, 96, 96), bias=False)",
    "dim": 64,
    "per_class": 4,
    "unseen": 0.5,
    "opt": "adamw",
    "lr": 0.003,
    "weight_decay": 0.05,
}
OMNIGLOT_CONFIG = TrainConfig(
    data="omniglot",
    epochs=20,
    batch_size=120,
    input_size=28,
    augment_options={"pad": 8, "flip": "none"},
    **_COMMON_SETTINGS,
)
FACES_CONFIG = TrainConfig(
    data="orl_faces", epochs=60, batch_size=80, input_size=46, augment_options={"pad": 6}, **_COMMON_SETTINGS
)

# MNIST for pictures and grids: small, quick, and no flips.
DIGITS_CONFIG = TrainConfig(
    data="mnist",
    model="fast(widths=(16, 32, 32), bias=False)",
    batch_size=100,
    opt="adamw",
    lr=0.003,
    weight_decay=0.05,
    augment_options={"pad": 2, "flip": "none"},
)

# Scales and margins are one round number for all that have them; what adapts itself is left to itself.
OPENSET_LOSSES = (
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
PEER_LOSSES = {
    "pml:arcface(s=16, m=0.2)": "arcface(s=16, m=0.2)",
    "pml:cosface(s=16, m=0.2)": "cosface(s=16, m=0.2)",
    "pml:triplet(alpha=0.2)": "triplet(mining=semihard)",
}
"""pytorch-metric-learning's losses in our loop, and which of ours each stands beside."""


@dataclass(frozen=True)
class OpenSetMethod:
    """A row of the table: its name, its run but for the seed, what does the work, and what judges it again."""

    name: str
    config: TrainConfig
    execute: ExecuteFunction
    evaluate: EvaluateFunction | None = None

    def config_for_seed(self, seed: int) -> TrainConfig:
        return replace(self.config, seed=seed)


def list_methods(base_config: TrainConfig, *, siamese: bool) -> list[OpenSetMethod]:
    """All rows for a data set."""
    from .peers import PEER_PREFIX

    rows = [
        OpenSetMethod(loss, replace(base_config, loss=loss), train_method, evaluate_saved_network)
        for loss in OPENSET_LOSSES
    ]
    if find_spec("pytorch_metric_learning") is not None:
        rows += [
            OpenSetMethod(name, replace(base_config, loss=name), train_peer, evaluate_saved_network)
            for name in PEER_LOSSES
        ]
    else:
        print("without the peers; for them: pip install pytorch-metric-learning==2.9.0", file=sys.stderr)
    assert all(name.startswith(PEER_PREFIX) for name in PEER_LOSSES)
    if siamese:
        plain = replace(base_config, epochs=5, batch_size=100, per_class=0, embedding_dim=0)
        for merge, name in _SIAMESE_NAMES.items():
            rows.append(
                OpenSetMethod(
                    name, replace(plain, loss=f"siamese({merge})"), train_siamese_method, evaluate_saved_siamese
                )
            )
    bare = replace(base_config, model="none", embedding_dim=0, epochs=1)
    for kind in ("pixels", "histograms"):
        rows.append(
            OpenSetMethod(f"L1 of {kind}", replace(bare, loss=f"l1({kind})"), run_l1_baseline, evaluate_l1_baseline)
        )
    return rows


_SIAMESE_NAMES = {"input": "Siamese, merged at the input", "embedding": "Siamese, embedded apart"}


def train_method(config: TrainConfig, folder: Path, data_dir: str | None) -> None:
    """One of our losses."""
    from ...training.loop import train

    train(config, folder, resume=True, data_dir=data_dir, quiet=True)


def train_peer(config: TrainConfig, folder: Path, data_dir: str | None) -> None:
    """A peer's loss in the same loop."""
    from ...training.loop import train
    from .peers import peer_objective_factory

    train(
        config,
        folder,
        resume=True,
        data_dir=data_dir,
        quiet=True,
        objective_factory=peer_objective_factory(config.loss),
        command=_command(config),
    )


def evaluate_saved_network(
    config: TrainConfig, folder: Path, data_dir: str | None
) -> tuple[EmbeddingMetrics, tuple[str, ...]]:
    """The embeddings that a kept network gives the unseen classes."""
    from ...training.finished import load_run
    from ...training.unseen import compute_embedding_metrics, embed
    from .peers import PEER_PREFIX, peer_objective_factory

    done = load_run(
        folder, objective_factory=peer_objective_factory(config.loss) if config.loss.startswith(PEER_PREFIX) else None
    )
    inputs = done.load_inputs(data_dir)
    x, y = embed(done.model, inputs.eval_batches(inputs.test))
    return compute_embedding_metrics(x, y, seed=config.seed), inputs.test.class_names


def run_l1_baseline(config: TrainConfig, folder: Path, data_dir: str | None) -> None:
    """Pixels or histograms, nothing learned."""
    found, _ = evaluate_l1_baseline(config, folder, data_dir)
    write_record(config, folder, found, 0.0)


def evaluate_l1_baseline(
    config: TrainConfig, folder: Path, data_dir: str | None
) -> tuple[EmbeddingMetrics, tuple[str, ...]]:
    """The same again; nothing is kept but the figures."""
    from ...training.inputs import load_inputs
    from .traditional import evaluate_l1_features

    unseen: Any = load_inputs(replace(config, batch_size=1, per_class=0), data_dir).test
    kind = config.loss.removeprefix("l1(").removesuffix(")")
    size = config.input_size or unseen.x.shape[2]
    return evaluate_l1_features(unseen.x, unseen.y, size, kind, config.seed), unseen.class_names


def train_siamese_method(config: TrainConfig, folder: Path, data_dir: str | None) -> None:
    """A Siamese network on pairs of the seen classes, judged on pairs of the unseen; its weights are kept."""
    from safetensors.torch import save_file

    from ...training.checkpoint import clone_contiguous
    from ...training.inputs import load_inputs
    from ...training.siamese import train_siamese
    from .siamese_judging import evaluate_siamese, sample_training_pairs

    inputs = load_inputs(replace(config, per_class=0), data_dir)
    begun = time.perf_counter()
    network = train_siamese(_siamese(config), sample_training_pairs(inputs.train, config.seed + 1), inputs.augment)
    spent = time.perf_counter() - begun
    folder.mkdir(parents=True, exist_ok=True)
    save_file(clone_contiguous(network.state_dict()), folder / _SIAMESE_WEIGHTS_FILE)
    write_record(config, folder, evaluate_siamese(network, inputs.test, inputs.augment, config.seed), spent)


def evaluate_saved_siamese(
    config: TrainConfig, folder: Path, data_dir: str | None
) -> tuple[EmbeddingMetrics, tuple[str, ...]] | None:
    """A kept Siamese network; None for a run of before, which kept none."""
    from ...tensor_files import read_safetensors_header
    from ...training.checkpoint import restore_module
    from ...training.inputs import load_inputs
    from ...training.siamese import PairNetwork
    from .siamese_judging import evaluate_siamese

    if not (folder / _SIAMESE_WEIGHTS_FILE).is_file():
        return None
    inputs = load_inputs(replace(config, per_class=0), data_dir)
    network = PairNetwork(_siamese(config), inputs.input_spec["channels"], inputs.input_spec["size"])
    kept = read_safetensors_header(folder / _SIAMESE_WEIGHTS_FILE)
    restore_module(network, kept.read(), str(kept.path), kept.sources)
    return evaluate_siamese(network.eval(), inputs.test, inputs.augment, config.seed), inputs.test.class_names


def _siamese(config: TrainConfig) -> SiameseConfig:
    """How the pair network of a run is trained."""
    from ...training.siamese import SiameseConfig

    return SiameseConfig(
        merge=config.loss.removeprefix("siamese(").removesuffix(")"),
        model=config.model,
        epochs=config.epochs,
        batch_size=config.batch_size,
        lr=config.lr,
        weight_decay=config.weight_decay,
        seed=config.seed,
    )


_SIAMESE_WEIGHTS_FILE = "network.safetensors"


def write_record(config: TrainConfig, folder: Path, evaluation: EmbeddingMetrics, seconds: float) -> None:
    """The record of a run that the training loop knows nothing of."""
    import torch

    from ...origin import source_commit
    from ...results import versions

    record = {
        "data": config.data,
        "loss": config.loss,
        "model": config.model,
        "seed": config.seed,
        "epochs": config.epochs,
        "seconds": round(seconds, 1),
        "cores": torch.get_num_threads(),
        "test": evaluation.values,
        "angles": {},
        "intervals": evaluation.intervals,
        "evaluation": EVALUATION_VERSION,
        "versions": versions(),
        "command": _command(config),
        "commit": source_commit(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_text_atomic(folder / "run.json", config.to_json())
    write_text_atomic(folder / "record.json", json.dumps(record, indent=1))


def _command(config: TrainConfig) -> str:
    """What makes this run again, with those of smaller seeds."""
    recipe = {"omniglot": "omniglot", "orl_faces": "faces"}.get(config.data, config.data)
    return f"widemargin reproduce openset {recipe} --seeds {config.seed + 1}"
