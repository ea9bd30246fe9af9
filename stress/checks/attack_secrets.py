"""Keys in the environment during all commands that write or print: none may appear in the output."""

from __future__ import annotations

import stat
from importlib.util import find_spec
from pathlib import Path

from .. import fixtures
from ..check import CheckContext, Outcome
from ..sandbox import Sandbox, run_attempt, run_cli

TITLE = "keys in the environment, searched for in every file and every printed line"
KIND = "attack"
LONG = False

PLANTED_SECRETS = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "HF_TOKEN": "hf_PlantedTokenThatNobodyMaySee0000",
    "HUGGING_FACE_HUB_TOKEN": "hf_PlantedTokenThatNobodyMaySee1111",
    "AWS_SECRET_ACCESS_KEY": "PlantedSecretThatNobodyMaySee2222",
    "GITHUB_TOKEN": "ghp_PlantedTokenThatNobodyMaySee3333",
    "https_proxy": "http://user:PlantedPassword4444@127.0.0.1:9",
}
_SECRET_VALUES = [value.encode() for name, value in PLANTED_SECRETS.items() if name != "https_proxy"] + [
    b"PlantedPassword4444"
]


def run(context: CheckContext) -> Outcome:
    """Train with every logger, evaluate, report, export, and fail to download."""
    missing = fixtures.fixtures_unavailable_outcome()
    if missing is not None:
        return missing
    logs = [name for name in ("tensorboard", "wandb") if find_spec(name) is not None]
    home = context.folder / "home"
    home.mkdir()
    around = {"HOME": str(home), "WANDB_MODE": "offline", "http_proxy": PLANTED_SECRETS["https_proxy"], "no_proxy": ""}
    sandbox = Sandbox(context, {**PLANTED_SECRETS, **around})
    short = ("--cv-repeats", "1", "--folds", "3", "--epochs", "1", "--jobs", "1")
    images, out = fixtures.generate_class_images(context.folder / "images"), context.folder / "run"
    picture = str(next((images / "test").rglob("*.png")))
    for words in (
        fixtures.fixture_train_argv(images, out, *(("--logger", *logs) if logs else ())),
        ("evaluate", str(out)),
        ("predict", str(out), picture),
        ("report", str(out)),
        ("export", str(out), "--hub", str(context.folder / "hub")),
        ("compare", *short, "--out", str(context.folder / "compared")),
        ("compare", "haberman", "--out", str(context.folder / "failed")),  # a download through the proxy that fails
        fixtures.fixture_train_argv(Path("mnist"), context.folder / "other"),
        ("train", "nowhere"),
    ):
        answer = run_attempt(run_cli, words, context.folder, sandbox.environment)
        leaked = any(key in answer.output.encode() for key in _SECRET_VALUES)
        wrong = "a key was printed" if leaked else f"broke with {answer.message}" if answer.status == "broke" else ""
        sandbox.add_result(f"{words[0]} prints no key", wrong)
    for path in sorted(context.folder.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            data = path.read_bytes()
            sandbox.add_result(
                f"{path.name} holds no key", "holds a key" if any(key in data for key in _SECRET_VALUES) else ""
            )
    if "wandb" in logs:
        mode = stat.S_IMODE((out / "wandb").stat().st_mode)
        sandbox.add_result("W&B's own files are nobody else's", "" if mode == 0o700 else f"mode {mode:o}")
    return sandbox.outcome("" if len(logs) == 2 else "without tensorboard or wandb, which are not installed")
