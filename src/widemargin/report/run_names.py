"""What a page calls its runs: the name somebody gave them, else what tells them apart."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from ..run import Run

_MADE_UP = re.compile(r"-seed\d+(-[0-9a-f]{8})?")  # ends the name of a folder that nobody chose
_FIRST = ("data", "model", "seed")  # settings that people compare by


def run_names(runs: Sequence[Run], folders: Sequence[str]) -> list[str]:
    """A name for each run, all different where their folders are.

    >>> made_up = [f"cifar10-fast-arcgrad_s=10-seed{k}" for k in range(2)]
    >>> run_names([Run(seed=0), Run(seed=1, opt="sgd")], made_up)  # one of the two says it
    ['arcgrad(s=10), seed 0', 'arcgrad(s=10), seed 1']
    >>> run_names([Run(), Run(loss="softmax")], ["mine", made_up[0]])
    ['mine', 'softmax']
    """
    made_up = [run for run, folder in zip(runs, folders, strict=True) if _made_up(folder) and not run.name]
    apart: list[str] = []  # settings beside the loss, as few as tell these runs apart
    for kind in sorted((spec.name for spec in fields(Run)), key=lambda name: name not in _FIRST):
        if kind not in ("loss", "name") and _different(made_up, [*apart, kind]) > _different(made_up, apart):
            apart.append(kind)
    found = [
        run.name or (_named(run, apart) if _made_up(folder) else folder)
        for run, folder in zip(runs, folders, strict=True)
    ]
    times = Counter(found)
    return [
        f"{name} ({folder})" if times[name] > 1 and name != folder else name
        for name, folder in zip(found, folders, strict=True)
    ]


def _different(runs: Sequence[Run], apart: Sequence[str]) -> int:
    return len({_named(run, apart) for run in runs})


def _named(run: Run, apart: Sequence[str]) -> str:
    return ", ".join([run.loss, *(_told(run, kind) for kind in apart)])


def _made_up(folder: str) -> bool:
    return any(found.end() == len(folder) for found in _MADE_UP.finditer(folder))


def _told(run: Run, kind: str) -> str:
    value = getattr(run, kind)
    if kind in ("data", "init_from"):
        return Path(value).name if value else f"no {kind}"  # whose folders they are in is nobody's business
    return str(value) if kind == "model" else f"{kind} {value}"
