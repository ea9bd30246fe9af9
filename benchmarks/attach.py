"""How many models of timm, torchvision and transformers `wm.attach` works on.

Each model of `attach_models.py` is built small and without pretrained weights and attached to an ArcFace head, without
options. It works if a call with labels returns a finite loss [N], the gradient reaches the first layers of the
backbone, logits are [N, C], and embeddings are [N, D] with the D of the head. Only `wm.attach` and the model it
returns are used, so that older versions of the package can be counted by the same command:
`PYTHONPATH=OLD/src:. python -m benchmarks attach`.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from widemargin.io.errors import InputError
from widemargin.io.progress import progress_bar
from widemargin.models.attach import MarginModel, attach

from .attach_models import ModelCase, list_cases

LIBRARIES = ("timm", "torchvision", "transformers")
NUM_CLASSES = 7
_FIRST_LAYERS = 12


def check_attach(case: ModelCase) -> str:
    """Attach a model, train it for one step and embed with it; why that failed, in one line, or nothing."""
    torch.manual_seed(0)
    backbone, inputs, labels = case.build(), case.make_inputs(), torch.tensor([1, 6])
    positional = () if case.library == "transformers" else (inputs.pop("x"),)
    try:
        model = attach(backbone, "arcface(s=16, m=0.3)", NUM_CLASSES)
        loss = model(*positional, **inputs, labels=labels)
        loss.mean().backward()
        with torch.no_grad():
            embeddings, logits = model.embed(*positional, **inputs), model(*positional, **inputs)
    except Exception as error:  # whatever a model raises
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return _check_outputs(model, backbone, loss, embeddings, logits)


def _check_outputs(
    model: MarginModel, backbone: nn.Module, loss: torch.Tensor, embeddings: torch.Tensor, logits: torch.Tensor
) -> str:
    if loss.shape != (2,) or not bool(loss.isfinite().all()):
        return f"the loss is {loss.tolist()}"
    first = list(backbone.parameters())[:_FIRST_LAYERS]
    if not any(p.grad is not None and bool(p.grad.isfinite().all()) and bool(p.grad.any()) for p in first):
        return "no gradient reaches the first layers"
    shapes = list(embeddings.shape), list(logits.shape)
    if shapes != ([2, model.head.embedding_dim], [2, NUM_CLASSES]):
        return f"embeddings and logits are {shapes}"
    return ""


def count_attached(libraries: Sequence[str]) -> dict[str, dict[str, Any]]:
    """For each library how many of its models work, of how many, and why the others do not."""
    cases = [case for library in libraries for case in list_cases(library)]
    found: dict[str, dict[str, Any]] = {name: {"attached": 0, "models": 0, "failures": {}} for name in libraries}
    logging.getLogger("transformers").setLevel(logging.ERROR)
    with progress_bar("models", float(len(cases))) as on_progress, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in cases:
            failure = check_attach(case)
            entry = found[case.library]
            entry["models"] += 1
            if failure:
                entry["failures"][case.name] = failure
            else:
                entry["attached"] += 1
            gc.collect()
            on_progress(1.0)
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=list(LIBRARIES), help="default: all three")
    parser.add_argument("--name", default="now", metavar="NAME", help='name of the counts in the file (default "now")')
    parser.add_argument("--json", metavar="FILE", help="also write the counts to a file, beside those of other names")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Count and print."""
    from widemargin.viz.terminal import check_writable

    if options.json:
        check_writable(options.json)
    path = Path(options.json) if options.json else None
    known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path and path.exists() else {}
    if not isinstance(known, dict):
        raise InputError(f"--json {options.json}: is no file of this command")
    found = count_attached(list(dict.fromkeys(options.libraries)))
    for library, entry in found.items():
        print(f"{library}: {entry['attached']} of {entry['models']} models")
        for name, failure in entry["failures"].items():
            print(f"  {name}: {failure}")
    if path:
        merged = {**known, options.name: {**known.get(options.name, {}), **found}}
        path.write_text(json.dumps(merged, indent=1) + "\n", encoding="utf-8")
