"""Methods of the open-set recipes: training and evaluation.

Four kinds: our losses; losses of pytorch-metric-learning in our training loop (the same network, batches and
optimizer); Siamese networks on pairs; and untrained features: pixels or their histogram with the L1 distance.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ...data.images.augment import Augment
from ...data.images.transforms import resize
from ...head.objective import Objective
from ...io.errors import InputError
from ...io.locks import write_text_atomic
from ...metrics.fewshot import evaluate_episodes
from ...metrics.intervals import leave_one_out_means, mean_interval
from ...metrics.pair_counts import ScoredPairs
from ...metrics.retrieval import interval_to_percent
from ...metrics.roc import identity_folds
from ...metrics.verification import verification_metrics_of_pairs
from ...recognition.evaluation import (
    EVALUATION_VERSION,
    EmbeddingMetrics,
    distinct_pairs,
    embedding_metrics_of_verification,
    episode_metrics,
    sampled_pairs,
)
from ...recognition.protocols import verify_scored_pairs
from ...training.config import TrainConfig
from ...training.model import ObjectiveFactory
from ...training.siamese import ImagePairs, PairNetwork, pair_scores

if TYPE_CHECKING:
    from ...training.siamese import SiameseConfig


ExecuteFunction = Callable[[TrainConfig, Path, str | None], None]
EvaluateFunction = Callable[[TrainConfig, Path, str | None], tuple[EmbeddingMetrics, tuple[str, ...]] | None]
"""Metrics of a finished run on its unseen classes, and their names; None if the run saved too little."""

# One untuned setting for all losses. Flips would make other characters, but not other faces.
_COMMON_SETTINGS: dict[str, Any] = {
    "model": "fast(widths=(32, 96, 96), bias=False)",
    "embedding_dim": 64,
    "per_class": 4,
    "unseen_classes": 0.5,
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

# MNIST for pictures and grids: small and quick, without flips.
DIGITS_CONFIG = TrainConfig(
    data="mnist",
    model="fast(widths=(16, 32, 32), bias=False)",
    batch_size=100,
    opt="adamw",
    lr=0.003,
    weight_decay=0.05,
    augment_options={"pad": 2, "flip": "none"},
)

# Scales and margins are one round number for all losses that have them; adaptive losses use their defaults.
OPENSET_LOSSES = (
    "softmax",
    "normface(s=16)",
    "contrastive",
    "triplet(mining=semihard)",
    "a_softmax(m=4, lam=anneal(100, gamma=1))",  # its default λ would hardly decrease within these steps
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
"""Losses of pytorch-metric-learning in our loop, and our loss that each is compared with."""


@dataclass(frozen=True)
class OpenSetMethod:
    """A row of the table: its name, its config without the seed, and its functions for training and evaluation."""

    name: str
    config: TrainConfig
    execute: ExecuteFunction
    evaluate: EvaluateFunction | None = None

    def config_for_seed(self, seed: int) -> TrainConfig:
        return replace(self.config, seed=seed)


def list_methods(base_config: TrainConfig, *, siamese: bool) -> list[OpenSetMethod]:
    """Return all methods for a data set."""
    rows = [
        OpenSetMethod(loss, replace(base_config, loss=loss), train_own_loss, evaluate_saved_network)
        for loss in OPENSET_LOSSES
    ]
    if find_spec("pytorch_metric_learning") is not None:
        rows += [
            OpenSetMethod(name, replace(base_config, loss=name), train_peer, evaluate_saved_network)
            for name in PEER_LOSSES
        ]
    else:
        hint = "pip install pytorch-metric-learning==2.9.0"
        print(f"the losses of pytorch-metric-learning are left out; to include them: {hint}", file=sys.stderr)
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


def train_own_loss(config: TrainConfig, folder: Path, data_dir: str | None) -> None:
    """Train with one of our losses."""
    from ...training.train import train

    train(config, folder, resume=folder.exists(), data_dir=data_dir, quiet=True)


def train_peer(config: TrainConfig, folder: Path, data_dir: str | None) -> None:
    """Train with a loss of pytorch-metric-learning in the same loop."""
    from ...training.train import train

    train(
        config,
        folder,
        resume=folder.exists(),
        data_dir=data_dir,
        quiet=True,
        objective_factory=peer_objective_factory(config.loss),
        command=_command(config),
    )


def evaluate_saved_network(
    config: TrainConfig, folder: Path, data_dir: str | None
) -> tuple[EmbeddingMetrics, tuple[str, ...]]:
    """Metrics of the embeddings of unseen classes by a saved network."""
    from ...models.attach import embed
    from ...recognition.evaluation import compute_embedding_metrics
    from ...training.run_loading import load_run

    run = load_run(
        folder, objective_factory=peer_objective_factory(config.loss) if config.loss.startswith(PEER_PREFIX) else None
    )
    inputs = run.load_inputs(data_dir)
    x, y = embed(run.model, inputs.eval_batches(inputs.test_samples))
    return compute_embedding_metrics(x, y, seed=config.seed), inputs.test_samples.class_names


def run_l1_baseline(config: TrainConfig, folder: Path, data_dir: str | None) -> None:
    """Pixels or histograms, without training."""
    metrics, _ = evaluate_l1_baseline(config, folder, data_dir)
    write_record(config, folder, metrics, 0.0)


def evaluate_l1_baseline(
    config: TrainConfig, folder: Path, data_dir: str | None
) -> tuple[EmbeddingMetrics, tuple[str, ...]]:
    """Metrics of pixels or histograms; always recomputed, because only the metrics are saved."""
    from ...training.inputs import load_inputs

    unseen: Any = load_inputs(replace(config, batch_size=1, per_class=0), data_dir).test
    kind = config.loss.removeprefix("l1(").removesuffix(")")
    size = config.input_size or unseen.x.shape[2]
    return evaluate_l1_features(unseen.x, unseen.y, size, kind, config.seed), unseen.class_names


def train_siamese_method(config: TrainConfig, folder: Path, data_dir: str | None) -> None:
    """Train a Siamese network on pairs of the seen classes, evaluate it on pairs of the unseen, save its weights."""
    from safetensors.torch import save_file

    from ...io.tensor_files import clone_contiguous
    from ...training.inputs import load_inputs
    from ...training.siamese import train_siamese

    inputs = load_inputs(replace(config, per_class=0), data_dir)
    start = time.perf_counter()
    network = train_siamese(
        _siamese_config(config), sample_training_pairs(inputs.train, config.seed + 1), inputs.augment
    )
    spent = time.perf_counter() - start
    folder.mkdir(parents=True, exist_ok=True)
    save_file(clone_contiguous(network.state_dict()), folder / _SIAMESE_WEIGHTS_FILE)
    write_record(config, folder, evaluate_siamese(network, inputs.test_samples, inputs.augment, config.seed), spent)


def evaluate_saved_siamese(
    config: TrainConfig, folder: Path, data_dir: str | None
) -> tuple[EmbeddingMetrics, tuple[str, ...]] | None:
    """Metrics of a saved Siamese network; None for a run of an older version, which saved no weights."""
    from ...io.tensor_files import read_safetensors_header
    from ...training.checkpoint import restore_module
    from ...training.inputs import load_inputs
    from ...training.siamese import PairNetwork

    if not (folder / _SIAMESE_WEIGHTS_FILE).is_file():
        return None
    inputs = load_inputs(replace(config, per_class=0), data_dir)
    network = PairNetwork(_siamese_config(config), inputs.input_spec["channels"], inputs.input_spec["size"])
    saved = read_safetensors_header(folder / _SIAMESE_WEIGHTS_FILE)
    restore_module(network, saved.read(), str(saved.path), saved.sources)
    return evaluate_siamese(
        network.eval(), inputs.test_samples, inputs.augment, config.seed
    ), inputs.test_samples.class_names


def _siamese_config(config: TrainConfig) -> SiameseConfig:
    """Training settings of the pair network of a run."""
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
    """Write the config and the record of a run that did not use the training loop."""
    from ...io.provenance import source_commit, versions

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
    """Return the command that repeats this run, and those with smaller seeds."""
    recipe = {"omniglot": "omniglot", "orl_faces": "faces"}.get(config.data, config.data)
    return f"widemargin reproduce openset {recipe} --seeds {config.seed + 1}"


PEER_PREFIX = "pml:"


class PeerObjective(Objective):
    """A pytorch-metric-learning loss on embeddings and labels, with its miner if any; it has no head with logits."""

    def __init__(self, loss: nn.Module, miner: nn.Module | None = None) -> None:
        nn.Module.__init__(self)
        self.parts, self.factors, self.last_losses = nn.ModuleDict(), {}, {}
        self.loss, self.miner = loss, miner

    def forward(self, x: Tensor, y: Tensor, **_: Any) -> Tensor:
        """Return the mean loss over the batch, repeated for every sample."""
        mean: Tensor = self.loss(x, y, None if self.miner is None else self.miner(x, y))
        return mean.expand(len(y))


def peer_objective_factory(name: str) -> ObjectiveFactory:
    """Return the factory of a pytorch-metric-learning loss, such as `pml:arcface(s=16, m=0.2)`."""
    from ...losses.grammar import parse_call

    kind, options = parse_call(name.removeprefix(PEER_PREFIX), "the loss")

    def make_objective(embedding_dim: int, num_classes: int) -> Objective:
        try:
            losses: Any = importlib.import_module("pytorch_metric_learning.losses")
            miners: Any = importlib.import_module("pytorch_metric_learning.miners")
        except ImportError:
            raise InputError(
                "pytorch-metric-learning is not installed: pip install pytorch-metric-learning==2.9.0"
            ) from None
        # Settings outside of the loss are as in ours: the norm of initial class weights, squared distances.
        init = {"weight_init_func": lambda weight: nn.init.normal_(weight, std=embedding_dim**-0.5)}
        if kind in ("arcface", "cosface"):
            loss, margin = (
                (losses.ArcFaceLoss, math.degrees(options["m"]))  # in degrees
                if kind == "arcface"
                else (losses.CosFaceLoss, options["m"])
            )
            return PeerObjective(loss(num_classes, embedding_dim, margin=margin, scale=options["s"], **init))
        squared = importlib.import_module("pytorch_metric_learning.distances").LpDistance(power=2)
        miner = miners.TripletMarginMiner(options["alpha"], "semihard", distance=squared)
        return PeerObjective(losses.TripletMarginLoss(options["alpha"], distance=squared), miner)

    return make_objective


FEATURES = ("pixels", "histograms")
_BINS = 32


def evaluate_l1_features(images: Tensor, y: Tensor, size: int, kind: str, seed: int) -> EmbeddingMetrics:
    """Metrics of uint8 images [N, C, H, W] by the L1 distance that need no embedding."""
    x = resize(images, size, "bicubic").float().flatten(1)
    features = x if kind == "pixels" else pixel_histograms(x)
    near = -torch.cdist(features, features, p=1.0)
    labels = np.unique(y.numpy(), return_inverse=True)[1].astype(np.int64)
    i, j = np.triu_indices(len(labels), 1)
    pairs = ScoredPairs(near.double().numpy()[i, j], labels[i], labels[j])
    result = embedding_metrics_of_verification(verification_metrics_of_pairs(pairs, identity_folds(labels)))
    others = near.fill_diagonal_(-torch.inf)
    correct = y[others.topk(5, 1).indices] == y.unsqueeze(1)
    for name, hits in (("recall1", correct[:, 0]), ("recall5", correct.any(1))):
        sums, counts = np.bincount(labels, hits.double().numpy()), np.bincount(labels)
        value, leave_one_out = 100.0 * float(hits.double().mean()), 100.0 * leave_one_out_means(sums, counts)
        interval = interval_to_percent(mean_interval(sums, counts))
        result += EmbeddingMetrics({name: value}, {name: interval}, {name: leave_one_out})

    def is_correct(support: Tensor, query: Tensor, targets: Tensor) -> Tensor:
        return near[query][:, support.squeeze(1)].argmax(1) == targets

    return result + episode_metrics(evaluate_episodes(y, is_correct, episodes=500, seed=seed))


def pixel_histograms(x: Tensor) -> Tensor:
    """Fraction of the pixels [N, P] of 0 … 255 in each of 32 bins, [N, 32]."""
    bins = (x * (_BINS / 256)).long().clamp(0, _BINS - 1)
    return torch.zeros(len(x), _BINS).scatter_add_(1, bins, torch.ones_like(x)) / x.shape[1]


_PAIRS_PER_KIND = 6000
_SIAMESE_EPISODES = 100  # every query is evaluated pair by pair


def sample_training_pairs(images: Any, seed: int, count: int = _PAIRS_PER_KIND) -> ImagePairs:
    """Draw `count` same and `count` different training pairs of images in memory."""
    return ImagePairs(images.x, *sampled_pairs(images.y, seed, count))


def evaluate_siamese(network: PairNetwork, images: Any, augment: Augment, seed: int) -> EmbeddingMetrics:
    """Verification and 5-way-1-shot; there are no embeddings to search.

    Every pair needs a pass through the network, so a sample of all distinct pairs is used.
    """
    pairs = ImagePairs(images.x, *distinct_pairs(images.y, seed, _PAIRS_PER_KIND))
    scores = pair_scores(network, pairs, augment)
    first, second = (images.y[places].numpy() for places in (pairs.first, pairs.second))
    verification = embedding_metrics_of_verification(verify_scored_pairs(scores, first, second))

    def is_correct(support: Tensor, query: Tensor, targets: Tensor) -> Tensor:
        ways = len(support)
        places = (query.repeat_interleave(ways), support.squeeze(1).repeat(len(query)))
        questions = ImagePairs(images.x, *places, torch.ones(len(places[0]), dtype=torch.bool))
        scores = torch.from_numpy(pair_scores(network, questions, augment)).view(len(query), ways)
        return scores.argmax(1) == targets

    episodes = evaluate_episodes(images.y, is_correct, episodes=_SIAMESE_EPISODES, seed=seed)
    return verification + episode_metrics(episodes)
