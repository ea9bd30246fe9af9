"""Attacks in separate processes: each must be refused in one line, without running a payload or taking much memory."""

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

from widemargin.io.errors import InputError

from .check import CheckContext, Outcome

MAX_MEMORY_GROWTH_BYTES = 768 << 20  # bytes that an attacked process may allocate beyond its start
# Address space beyond the start: an attack that succeeds is stopped there and does not fill the machine.
_ADDRESS_SPACE_HEADROOM_BYTES = 3 << 30
_ATTEMPT_TIMEOUT_SECONDS = 120.0
_MAX_REFUSAL_CHARS = 700  # characters of one clear line, which may quote long paths
_SANDBOX_PRELOADS = ["torch", "lightning_fabric", "safetensors.torch", "PIL.Image", "torch.distributed.checkpoint"]
_SANDBOX_PRELOADS += [
    "widemargin.cli.main",
    "widemargin.training.train",
    "widemargin.data.images.folder",
    "widemargin.models.fast",
]
_SANDBOX_PRELOADS += [
    "widemargin.viz.run_page",
    "widemargin.training.run",
    "widemargin.tabular.compare",
    "widemargin.reproduce",
]


@dataclass(frozen=True)
class AttemptResult:
    """Result of an attempt: `refused`, `returned` or `broke`; its message, output, and memory growth."""

    status: str
    message: str = ""
    output: str = ""
    exit_code: int | None = None
    memory_growth: int = 0


class Sandbox:
    """Runs attempts one after the other and counts those that did no harm."""

    def __init__(self, context: CheckContext, environment: Mapping[str, str] | None = None) -> None:
        folder = context.folder
        self.folder, self.on_progress, self.long = folder, context.on_progress, context.long
        self.payload_marker = folder / "payload-has-run"
        # Existing data would be used instead of the attack.
        alone = {"WIDEMARGIN_CACHE": str(folder / "cache"), "WIDEMARGIN_DATA": "", "no_proxy": "*"}
        self.environment = {**alone, **(environment or {})}
        self.tried, self.survived, self.problems, self.peak_growth = 0, 0, list[str](), 0

    def expect_refusal(self, description: str, call: Callable[..., Any], *args: Any) -> str:
        """Run an attempt that must end with one clear line; return the line."""
        answer = run_attempt(call, args, self.folder, self.environment)
        self._record_attempt(description, answer, self._refusal_problem(answer))
        return answer.message

    def expect_harmless(self, description: str, call: Callable[..., Any], *args: Any) -> AttemptResult:
        """Run an attempt that may be refused, or continue without the attacked part."""
        answer = run_attempt(call, args, self.folder, self.environment)
        went_on = answer.status == "returned" and answer.exit_code in (None, 0)
        self._record_attempt(description, answer, "" if went_on else self._refusal_problem(answer))
        return answer

    def add_result(self, description: str, problem: str) -> None:
        """Add the result of another test; `problem` is empty if it passed."""
        self._record_attempt(description, AttemptResult("returned"), problem)

    def _refusal_problem(self, result: AttemptResult) -> str:
        if result.status == "broke":
            return f"broke with {result.message}"
        if result.status == "returned" and result.exit_code != 2:
            return "was accepted"
        lines = (result.message or result.output).strip().splitlines()
        if result.status == "returned":
            lines = [line for line in result.output.splitlines() if line.startswith("widemargin: ")]
            if "Traceback" in result.output:
                return f"ended in a traceback: {result.output[-300:]}"
        if len(lines) != 1 or not lines[0].isprintable() or len(lines[0]) > _MAX_REFUSAL_CHARS:
            return f"was refused with {len(lines)} lines: {result.output[-300:]}{result.message[:300]}"
        return ""

    def _record_attempt(self, description: str, result: AttemptResult, problem: str) -> None:
        self.tried += 1
        self.peak_growth = max(self.peak_growth, result.memory_growth)
        if self.payload_marker.exists():
            problem = "the payload has run"
            self.payload_marker.rmdir() if self.payload_marker.is_dir() else self.payload_marker.unlink()
        if not problem and result.memory_growth > MAX_MEMORY_GROWTH_BYTES:
            problem = f"took {result.memory_growth >> 20} MiB"
        self.on_progress(f"{description}: {problem or 'held'}")
        if problem:
            self.problems.append(f"{description}: {problem}")
        else:
            self.survived += 1

    def outcome(self, note: str = "") -> Outcome:
        """Return the outcome of the check."""
        note = note or f"at most {self.peak_growth >> 20} MiB beyond the start" if self.peak_growth else note
        notes = "; ".join(filter(None, (note, *self.problems)))
        return Outcome(self.tried, self.survived, "see the note" if self.problems else "nothing", notes)


def run_attempt(
    call: Callable[..., Any], args: tuple[Any, ...], folder: Path, environment: Mapping[str, str]
) -> AttemptResult:
    """Run a call in a separate process and return its result."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_SANDBOX_PRELOADS)
    answered, printed = folder / ".answer", folder / ".printed"
    for path in (answered, printed):
        path.unlink(missing_ok=True)
    process = context.Process(
        target=_attempt_in_child, args=(call, args, str(answered), str(printed), dict(environment))
    )
    process.start()
    process.join(_ATTEMPT_TIMEOUT_SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
        return AttemptResult("broke", f"no end within {_ATTEMPT_TIMEOUT_SECONDS:g} s")
    text = printed.read_text("utf-8", "replace") if printed.exists() else ""
    if not answered.exists():
        return AttemptResult("broke", f"exit code {process.exitcode}", text)
    return AttemptResult(output=text, **json.loads(answered.read_text("utf-8")))


def _attempt_in_child(
    call: Callable[..., Any], args: tuple[Any, ...], result_path: str, output_path: str, environment: dict[str, str]
) -> None:
    os.environ.update(environment)
    handle = os.open(output_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for number in (1, 2):
        os.dup2(handle, number)
    import torch

    torch.set_num_threads(1)
    begun, used = _status_bytes("VmRSS"), _status_bytes("VmSize")
    resource.setrlimit(resource.RLIMIT_AS, (used + _ADDRESS_SPACE_HEADROOM_BYTES, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    result: dict[str, Any]
    try:
        value = call(*args)
        result = {"status": "returned", "exit_code": value if isinstance(value, int) else None}
    except InputError as error:
        result = {"status": "refused", "message": str(error)}
    except BaseException as error:  # anything else would be a traceback for the user
        result = {"status": "broke", "message": f"{type(error).__name__}: {error}"[:400]}
    result["memory_growth"] = max(0, _status_bytes("VmHWM") - begun)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    fresh = Path(f"{result_path}.{time.monotonic_ns()}")
    fresh.write_text(json.dumps(result), "utf-8")
    fresh.replace(result_path)


def _status_bytes(field: str) -> int:
    """Return a value of the kernel's process status in bytes; 0 if it is not available."""
    try:
        text = Path("/proc/self/status").read_text("ascii")
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith(f"{field}:")), 0)


def run_cli(*argv: str) -> int:
    """Run `widemargin ARGV` as an attempt."""
    from widemargin.cli.main import main

    return main(list(argv))
