"""What a page calls its runs: the name somebody gave them, else what tells them apart."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from ..run import TrainConfig

_DEFAULT_FOLDER_NAME = re.compile(r"-seed\d+(-[0-9a-f]{8})?")  # ends the name of a folder that nobody chose
_PREFERRED_SETTINGS = ("data", "model", "seed")  # settings that people compare by


def run_names(configs: Sequence[TrainConfig], folders: Sequence[str]) -> list[str]:
    """A name for each run, all different where their folders are.

    >>> made_up = [f"cifar10-fast-arcgrad_s=10-seed{k}" for k in range(2)]
    >>> run_names([Run(seed=0), Run(seed=1, opt="sgd")], made_up)  # one of the two says it
    ['arcgrad(s=10), seed 0', 'arcgrad(s=10), seed 1']
    >>> run_names([Run(), Run(loss="softmax")], ["mine", made_up[0]])
    ['mine', 'softmax']
    """
    unnamed_configs = [
        config
        for config, folder in zip(configs, folders, strict=True)
        if _is_default_folder_name(folder) and not config.name
    ]
    setting_names: list[str] = []  # settings beside the loss, as few as tell these runs apart
    for setting_name in sorted(
        (spec.name for spec in fields(TrainConfig)), key=lambda name: name not in _PREFERRED_SETTINGS
    ):
        if setting_name not in ("loss", "name") and _count_distinct_names(
            unnamed_configs, [*setting_names, setting_name]
        ) > _count_distinct_names(unnamed_configs, setting_names):
            setting_names.append(setting_name)
    names = [
        config.name or (_format_run_name(config, setting_names) if _is_default_folder_name(folder) else folder)
        for config, folder in zip(configs, folders, strict=True)
    ]
    times = Counter(names)
    return [
        f"{name} ({folder})" if times[name] > 1 and name != folder else name
        for name, folder in zip(names, folders, strict=True)
    ]


def _count_distinct_names(configs: Sequence[TrainConfig], setting_names: Sequence[str]) -> int:
    return len({_format_run_name(config, setting_names) for config in configs})


def _format_run_name(config: TrainConfig, setting_names: Sequence[str]) -> str:
    return ", ".join([config.loss, *(_format_setting(config, kind) for kind in setting_names)])


def _is_default_folder_name(folder: str) -> bool:
    return any(found.end() == len(folder) for found in _DEFAULT_FOLDER_NAME.finditer(folder))


def _format_setting(config: TrainConfig, setting_name: str) -> str:
    value = getattr(config, setting_name)
    if setting_name in ("data", "init_from"):
        return Path(value).name if value else f"no {setting_name}"  # whose folders they are in is nobody's business
    return str(value) if setting_name == "model" else f"{setting_name} {value}"
