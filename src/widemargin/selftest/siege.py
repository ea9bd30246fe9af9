"""Attacks in processes of their own: each must be refused in one line, with no payload run and little memory taken."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from .check import Outcome, Size

MOST_MEMORY = 768 << 20  # bytes that a process under attack may take beyond what it began with
_CAP = 3 << 30  # where it is stopped, so that an attack that succeeds does not take the machine with it
_PATIENCE = 120.0
_LONGEST = 700  # characters of one clear line, whose paths may be long
_PRELOADED = ["torch", "lightning_fabric", "safetensors.torch", "PIL.Image", "torch.distributed.checkpoint"]
_PRELOADED += ["widemargin.cli", "widemargin.training.loop", "widemargin.data.folder", "widemargin.backbones.fast"]
_PRELOADED += ["widemargin.report.run_page", "widemargin.training.finished", "widemargin.compare", "widemargin.recipes"]


@dataclass(frozen=True)
class Answer:
    """What came of an attempt: `refused`, `returned` or `broke`; its words, its prints, and how much memory it took."""

    how: str
    said: str = ""
    printed: str = ""
    code: int | None = None
    grown: int = 0


class Siege:
    """Makes attempts one after the other and counts those that did no harm."""

    def __init__(self, size: Size, environment: Mapping[str, str] | None = None) -> None:
        folder = size.folder
        self.folder, self.tell, self.long = folder, size.tell, size.long
        self.marker = folder / "payload-has-run"
        # Data at hand would be taken instead of what is offered.
        alone = {"WIDEMARGIN_CACHE": str(folder / "cache"), "WIDEMARGIN_DATA": "", "no_proxy": "*"}
        self.environment = {**alone, **(environment or {})}
        self.tried, self.survived, self.wrong, self.most = 0, 0, list[str](), 0

    def refused(self, what: str, call: Callable[..., Any], *given: Any) -> str:
        """An attempt that must end with one clear line; the line."""
        answer = attempt(call, given, self.folder, self.environment)
        self._count(what, answer, self._unlike_refusal(answer))
        return answer.said

    def harmless(self, what: str, call: Callable[..., Any], *given: Any) -> Answer:
        """An attempt that may be refused, or go on without what it was offered."""
        answer = attempt(call, given, self.folder, self.environment)
        went_on = answer.how == "returned" and answer.code in (None, 0)
        self._count(what, answer, "" if went_on else self._unlike_refusal(answer))
        return answer

    def held(self, what: str, wrong: str) -> None:
        """Something that was looked at here; `wrong` is empty where it is as it should be."""
        self._count(what, Answer("returned"), wrong)

    def _unlike_refusal(self, answer: Answer) -> str:
        if answer.how == "broke":
            return f"broke with {answer.said}"
        if answer.how == "returned" and answer.code != 2:
            return "was accepted"
        lines = (answer.said or answer.printed).strip().splitlines()
        if answer.how == "returned":
            lines = [line for line in answer.printed.splitlines() if line.startswith("widemargin: ")]
            if "Traceback" in answer.printed:
                return f"ended in a traceback: {answer.printed[-300:]}"
        if len(lines) != 1 or not lines[0].isprintable() or len(lines[0]) > _LONGEST:
            return f"was refused with {len(lines)} lines: {answer.printed[-300:]}{answer.said[:300]}"
        return ""

    def _count(self, what: str, answer: Answer, wrong: str) -> None:
        self.tried += 1
        self.most = max(self.most, answer.grown)
        if self.marker.exists():
            wrong = "the payload has run"
            self.marker.rmdir() if self.marker.is_dir() else self.marker.unlink()
        if not wrong and answer.grown > MOST_MEMORY:
            wrong = f"took {answer.grown >> 20} MiB"
        self.tell(f"{what}: {wrong or 'held'}")
        if wrong:
            self.wrong.append(f"{what}: {wrong}")
        else:
            self.survived += 1

    def outcome(self, note: str = "") -> Outcome:
        """What the check answers."""
        note = note or f"at most {self.most >> 20} MiB beyond the start" if self.most else note
        told = "; ".join(filter(None, (note, *self.wrong)))
        return Outcome(self.tried, self.survived, "see the note" if self.wrong else "nothing", told)


def attempt(call: Callable[..., Any], given: tuple[Any, ...], folder: Path, environment: Mapping[str, str]) -> Answer:
    """Call in a process of its own; what came of it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    answered, printed = folder / ".answer", folder / ".printed"
    for path in (answered, printed):
        path.unlink(missing_ok=True)
    process = context.Process(target=_child, args=(call, given, str(answered), str(printed), dict(environment)))
    process.start()
    process.join(_PATIENCE)
    if process.is_alive():
        process.kill()
        process.join()
        return Answer("broke", f"no end within {_PATIENCE:g} s")
    text = printed.read_text("utf-8", "replace") if printed.exists() else ""
    if not answered.exists():
        return Answer("broke", f"exit code {process.exitcode}", text)
    return Answer(printed=text, **json.loads(answered.read_text("utf-8")))


def _child(call: Callable[..., Any], given: tuple[Any, ...], answered: str, printed: str, more: dict[str, str]) -> None:
    os.environ.update(more)
    handle = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for number in (1, 2):
        os.dup2(handle, number)
    import torch

    torch.set_num_threads(1)
    begun, used = _held("VmRSS"), _held("VmSize")
    resource.setrlimit(resource.RLIMIT_AS, (used + _CAP, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    found: dict[str, Any]
    try:
        value = call(*given)
        found = {"how": "returned", "code": value if isinstance(value, int) else None}
    except InputError as error:
        found = {"how": "refused", "said": str(error)}
    except BaseException as error:  # anything else is what a user would see as a traceback
        found = {"how": "broke", "said": f"{type(error).__name__}: {error}"[:400]}
    found["grown"] = max(0, _held("VmHWM") - begun)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    fresh = Path(f"{answered}.{time.monotonic_ns()}")
    fresh.write_text(json.dumps(found), "utf-8")
    fresh.replace(answered)


def _held(what: str) -> int:
    """Bytes that the kernel counts for this process; nothing where it does not tell."""
    try:
        text = Path("/proc/self/status").read_text("ascii")
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith(f"{what}:")), 0)


def command(*words: str) -> int:
    """`widemargin WORDS`, as an attempt."""
    from ..cli import main

    return main(list(words))
