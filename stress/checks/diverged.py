"""A loss of NaN or infinity: the message names step, part, size and remedy; the good checkpoint stays."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ..check import CheckContext, Outcome
from ..commands import error_line, run_command
from ..trainings import Tally, generate_image_folder, train_argv, training_unavailable_outcome

TITLE = "a loss that becomes infinite or NaN"
KIND = "fault"
LONG = False
# Loss, its learning rate after a good epoch, and the required words of the message.
_DIVERGING_CASES = (
    ("softmax", 1e30, ("not finite", "the largest logit", "angle to the own class")),
    ("arcface(s=64, m=0.5)", 1e38, ("not finite",)),
    ("normface(s=10) + 3e38*triplet", 0.001, ("not finite in", "the largest logit", "angle to the own class")),
    ("normface(s=10) + 1e39*triplet", 0.001, ("(in triplet)", "largest logit", "largest angle", "°")),
)


def run(context: CheckContext) -> Outcome:
    """Train one good epoch with a small rate, then one that diverges."""
    if (missing := training_unavailable_outcome()) is not None:
        return missing
    data, tally, message = generate_image_folder(context.folder / "images"), Tally(), ""
    for number, (loss, rate, expected_words) in enumerate(_DIVERGING_CASES):
        message, wrong = _try_diverging_loss(data, context.folder / f"run{number}", loss, rate, expected_words)
        tally.add(loss, wrong)
        context.on_progress(f"{tally.tried} of {len(_DIVERGING_CASES)} tried")
    return tally.outcome(f"said for the last: {message}")


def _try_diverging_loss(
    data: Path, out: Path, loss: str, lr: float, expected_phrases: tuple[str, ...]
) -> tuple[str, str]:
    """Return the message, and what is wrong with it or with the remaining files."""
    sound = re.sub(r"[\d.e]+\*", "0.1*", loss)
    options = ("--lr", "0.001", "--schedule", "constant")
    code, text = run_command(train_argv(data, out, *options, epochs=1, loss=sound), out.with_suffix(".txt"))
    if code != 0:
        return "", f"the sound epoch ended with {code}: {text[-300:]}"
    settings = json.loads((out / "run.json").read_text(encoding="utf-8"))
    settings |= {"loss": loss, "lr": lr, "epochs": 2}
    (out / "run.json").write_text(json.dumps(settings), encoding="utf-8")
    kept, log = _read_files(out / "checkpoints" / "last"), (out / "metrics.jsonl").read_bytes()
    options = ("--lr", repr(lr), "--schedule", "constant")
    code, text = run_command(train_argv(data, out, *options, epochs=2, loss=loss), out.with_suffix(".wild.txt"))
    line = error_line(text)
    always = ("step ", "Try a smaller --lr", "the last good checkpoint is kept")
    if code != 2 or any(part not in line for part in (*always, *expected_phrases)):
        return line, f"ended with {code}: {line}"
    if _read_files(out / "checkpoints" / "last") != kept or (out / "metrics.jsonl").read_bytes() != log:
        return line, "the good checkpoint or the log has changed"
    return line, ""


def _read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
