"""Keys in the environment while everything is done that writes or prints: none may be found again."""

from __future__ import annotations

import stat
from importlib.util import find_spec
from pathlib import Path

from .. import prey
from ..check import Outcome, Size
from ..siege import Siege, attempt, command

TITLE = "keys in the environment, looked for in every file and every printed line"
KIND = "attack"
LONG = False

KEYS = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "HF_TOKEN": "hf_PlantedTokenThatNobodyMaySee0000",
    "HUGGING_FACE_HUB_TOKEN": "hf_PlantedTokenThatNobodyMaySee1111",
    "AWS_SECRET_ACCESS_KEY": "PlantedSecretThatNobodyMaySee2222",
    "GITHUB_TOKEN": "ghp_PlantedTokenThatNobodyMaySee3333",
    "https_proxy": "http://user:PlantedPassword4444@127.0.0.1:9",
}
_NEEDLES = [value.encode() for name, value in KEYS.items() if name != "https_proxy"] + [b"PlantedPassword4444"]


def run(size: Size) -> Outcome:
    """Train with every log there is, judge, report, hand over, and fail to download."""
    missing = prey.cannot()
    if missing is not None:
        return missing
    logs = [name for name in ("tensorboard", "wandb") if find_spec(name) is not None]
    home = size.folder / "home"
    home.mkdir()
    around = {"HOME": str(home), "WANDB_MODE": "offline", "http_proxy": KEYS["https_proxy"], "no_proxy": ""}
    siege = Siege(size, {**KEYS, **around})
    short = ("--runs", "1", "--folds", "3", "--epochs", "1", "--jobs", "1")
    images, out = prey.draw(size.folder / "images"), size.folder / "run"
    picture = str(next((images / "test").rglob("*.png")))
    for words in (
        prey.training(images, out, *(("--logger", *logs) if logs else ())),
        ("evaluate", str(out)),
        ("predict", str(out), picture),
        ("report", str(out)),
        ("export", str(out), "--hub", str(size.folder / "hub")),
        ("compare", *short, "--out", str(size.folder / "compared")),
        ("compare", "haberman", "--out", str(size.folder / "failed")),  # a download through the proxy that fails
        prey.training(Path("mnist"), size.folder / "other"),
        ("train", "nowhere"),
    ):
        answer = attempt(command, words, size.folder, siege.environment)
        leaked = any(key in answer.printed.encode() for key in _NEEDLES)
        wrong = "a key was printed" if leaked else f"broke with {answer.said}" if answer.how == "broke" else ""
        siege.held(f"{words[0]} prints no key", wrong)
    for path in sorted(size.folder.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            data = path.read_bytes()
            siege.held(f"{path.name} holds no key", "holds a key" if any(key in data for key in _NEEDLES) else "")
    if "wandb" in logs:
        mode = stat.S_IMODE((out / "wandb").stat().st_mode)
        siege.held("W&B's own files are nobody else's", "" if mode == 0o700 else f"mode {mode:o}")
    return siege.outcome("" if len(logs) == 2 else "without tensorboard or wandb, which are not installed")
