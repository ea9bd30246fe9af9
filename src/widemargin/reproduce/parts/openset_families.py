"""Twelve losses that represent their families in the open-set recipes, each with its best setting on held-out classes.

Candidates are trained on half of the training classes and compared on the other half by AUC; the unseen classes, on
which the chosen setting is reported, take no part. Splits are drawn anew for every seed and the settings are chosen on
the first one, so that classes held out there can be unseen ones of a later split. Runs are in folders of their own, so
that a stopped recipe goes on where it was; `settings.json` has all candidates with their scores.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ...io import bounded
from ...io.errors import InputError
from ...io.locks import write_text_atomic
from ...losses.grammar import parse
from ...losses.margin import Margin
from ...losses.registry import list_losses
from ...training.config import TrainConfig
from .openset_methods import OpenSetMethod, evaluate_saved_network, train_own_loss
from .openset_table import execute_missing
from .runs import read_record, run_folder

HELD_OUT_FILE = "held_out.json"
SELECTION_METRIC = "auc"
UNSEEN_AND_HELD_OUT = 0.75
"""Unseen classes of a candidate's run: the half that is reported, and half of the others, on which it is judged."""

FAMILIES: dict[str, tuple[str, ...]] = {
    "softmax": ("softmax",),
    "arcface": ("arcface(s=16, m=0.2)", "arcface(s=16, m=0.4)", "arcface(s=32, m=0.3)"),
    "arcgrad": ("arcgrad(s=4)", "arcgrad(s=8)", "arcgrad(s=16)"),
    "adacos": ("adacos",),
    "circle": ("circle(s=32, m=0.25)", "circle(s=64, m=0.25)", "circle(s=80, m=0.4)"),
    "proxy_anchor": ("proxy_anchor(alpha=16)", "proxy_anchor(alpha=32)", "proxy_anchor(alpha=32, delta=0.2)"),
    "triplet": ("triplet(mining=semihard)", "triplet(alpha=0.4, mining=semihard)", "triplet(mining=distance)"),
    "contrastive": ("contrastive(m=0.7)", "contrastive(m=1)", "contrastive(m=1.3)"),
    "supcon": ("supcon(tau=0.07)", "supcon(tau=0.1)", "supcon(tau=0.3)"),
    "multi_similarity": (
        "multi_similarity(alpha=2, beta=50)",
        "multi_similarity(alpha=2, beta=40, lam=0.8)",
        "multi_similarity(alpha=2, beta=20)",
    ),
    "margin_pairs": ("margin_pairs(beta=1.2)", "margin_pairs(beta=1)", "margin_pairs(alpha=0.1, beta=1.2)"),
    "smooth_ap": ("smooth_ap(tau=0.01)", "smooth_ap(tau=0.03)", "smooth_ap(tau=0.1)"),
}
"""Candidates of every family; the first is taken where only one is given."""
ROUND_SCALE = 16.0
"""Scale of the other losses, whose own defaults are those of faces."""


def other_losses() -> list[str]:
    """Every other loss that can be trained alone, at its defaults but for scales made for very many classes."""
    specs = []
    for name in (*list_losses("margins"), *list_losses("pairs")):
        loss = parse(name)
        if name in FAMILIES or name == "center":
            continue
        scale = getattr(loss, "s", None)
        if isinstance(loss, Margin) and isinstance(scale, float) and scale > ROUND_SCALE:
            loss = parse(f"{name}(s={ROUND_SCALE:g})")
        specs.append("xbm(supcon, size=1024)" if name == "xbm" else repr(loss))
    return specs


def own_methods(base_config: TrainConfig, losses: Sequence[str]) -> list[OpenSetMethod]:
    """Rows of the table for our losses."""
    return [
        OpenSetMethod(loss, replace(base_config, loss=loss), train_own_loss, evaluate_saved_network) for loss in losses
    ]


def choose_settings(base_config: TrainConfig, options: argparse.Namespace, out: Path) -> dict[str, str] | None:
    """The best candidate of every family, all of which are trained if they were not; None if they are only listed."""
    if options.settings:
        return read_settings(Path(options.settings))
    runs_dir = Path(options.runs_dir)
    # Half as many classes to train on, and half of them in a batch.
    inner = replace(base_config, unseen_classes=UNSEEN_AND_HELD_OUT, batch_size=base_config.batch_size // 2, seed=0)
    candidates = [loss for losses in FAMILIES.values() if len(losses) > 1 for loss in losses]
    wanted = [(method, method.config) for method in own_methods(inner, candidates)]
    todo = [(method, config) for method, config in wanted if read_record(config, runs_dir) is None]
    if options.list:
        for _, config in wanted:
            print("missing " if read_record(config, runs_dir) is None else "finished", run_folder(config, runs_dir))
        return None
    execute_missing(todo, runs_dir, options.data_dir)
    scores: dict[str, float] = {}
    for _, config in wanted:
        if read_record(config, runs_dir) is not None:  # a run that diverged is no candidate any more
            scores[config.loss] = held_out_score(config, run_folder(config, runs_dir), base_config, options.data_dir)
    chosen = best_candidates(scores)
    out.mkdir(parents=True, exist_ok=True)
    content = {"metric": SELECTION_METRIC, "chosen": chosen, "scores": scores}
    write_text_atomic(out / "settings.json", json.dumps(content, indent=1) + "\n")
    return chosen


def read_settings(path: Path) -> dict[str, str]:
    """Read the chosen setting of every family from the `settings.json` of an earlier call."""
    try:
        chosen = bounded.read_json(path)["chosen"]
        settings = {family: str(chosen[family]) for family in FAMILIES if family in chosen}
        if not settings:
            raise ValueError("no family")
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{path}: not a settings.json of --loss-set families") from None
    for family, loss in settings.items():
        if loss not in FAMILIES[family]:
            raise InputError(f"{path}: {loss} is not a candidate of {family}: {', '.join(FAMILIES[family])}")
    return settings


def best_candidates(scores: Mapping[str, float]) -> dict[str, str]:
    """The candidate with the highest score of every family; the only one where there is no choice."""
    chosen = {}
    for family, losses in FAMILIES.items():
        known = [loss for loss in losses if loss in scores] if len(losses) > 1 else list(losses)
        if not known:
            print(f"{family}: all candidates diverged, left out", file=sys.stderr)
            continue
        chosen[family] = max(known, key=lambda loss: scores.get(loss, 0.0))
    return chosen


def held_out_score(config: TrainConfig, folder: Path, base_config: TrainConfig, data_dir: str | None) -> float:
    """AUC of a candidate on the classes that are unseen in its run and seen in the reported one; kept in its folder."""
    path = folder / HELD_OUT_FILE
    if path.exists():
        try:
            return float(json.loads(path.read_text(encoding="utf-8"))[SELECTION_METRIC])
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{path}: not a file of this recipe; delete it to evaluate the run again") from None
    import torch

    from ...models.attach import embed
    from ...recognition.evaluation import compute_embedding_metrics
    from ...training.inputs import load_inputs
    from ...training.run_loading import load_run

    run = load_run(folder)
    inputs = run.load_inputs(data_dir)
    reported = set(load_inputs(replace(base_config, seed=config.seed), data_dir).test_samples.class_names)
    names = inputs.test_samples.class_names
    held_out = torch.tensor([k for k, name in enumerate(names) if name not in reported])
    if len(held_out) >= len(names) or not len(held_out):
        raise InputError(f"{folder}: its unseen classes do not contain those of the reported split; delete the run")
    x, y = embed(run.model, inputs.eval_batches(inputs.test_samples))
    rows = torch.isin(y, held_out.to(y.device))
    found = compute_embedding_metrics(x[rows], torch.unique(y[rows], return_inverse=True)[1], seed=config.seed)
    value = float(found.values[SELECTION_METRIC])
    write_text_atomic(path, json.dumps({SELECTION_METRIC: value, "classes": len(held_out)}) + "\n")
    return value
