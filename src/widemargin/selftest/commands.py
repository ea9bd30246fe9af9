"""The command in processes of its own, to be killed: started fresh, or forked from one that has imported torch."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..cli import main

PATIENCE = 120.0  # seconds for what takes one or two
_LOADED = ["torch", "lightning_fabric", "safetensors.torch", "PIL.Image", "widemargin.training.loop"]
_LOADED += ["widemargin.data.folder", "widemargin.backbones.fast", "widemargin.cli"]


class Forked:
    """`widemargin WORDS` in a process that needs no second to begin; what it says goes to a file."""

    def __init__(
        self,
        words: Sequence[str],
        said: Path,
        environment: Mapping[str, str] | None = None,
        call: Callable[[list[str]], int] = main,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_LOADED)
        self.said = said
        self.process: Any = context.Process(target=_run, args=(call, list(words), str(said), dict(environment or {})))
        self.process.start()

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def running(self) -> bool:
        """Whether it still goes on."""
        return bool(self.process.is_alive())

    def send(self, number: int) -> None:
        """A signal, if there still is somebody to hear it."""
        if self.running():
            os.kill(self.pid, number)

    def end(self, patience: float = PATIENCE) -> int | None:
        """Wait; the exit code, minus the signal where one has ended it, None where it came too late."""
        self.process.join(patience)
        late = self.running()
        if late:
            self.process.kill()
            self.process.join()
        return None if late else int(self.process.exitcode)

    def text(self) -> str:
        """What it has printed."""
        return self.said.read_text(encoding="utf-8", errors="replace") if self.said.exists() else ""


def _run(call: Callable[[list[str]], int], words: list[str], said: str, environment: dict[str, str]) -> None:
    """In the child."""
    os.environ.update(environment)
    handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    import torch

    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", "1")))
    sys.exit(call(words))


def forked(
    words: Sequence[str],
    said: Path,
    environment: Mapping[str, str] | None = None,
    call: Callable[[list[str]], int] = main,
) -> tuple[int | None, str]:
    """Run a command to its end: exit code and what it said."""
    child = Forked(words, said, environment, call)
    return child.end(), child.text()


def complaint(said: str) -> str:
    """The one line that a command ends with, or what was there instead of it."""
    found = [line for line in said.splitlines() if line.startswith("widemargin: ")]
    return found[0] if len(found) == 1 and "Traceback" not in said else f"not one line: {said[-400:]}"


def ranks(words: Sequence[str], place: Path, count: int = 2) -> list[Forked]:
    """The same command as several processes of one training, each with its own file of what it says."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    place.mkdir(parents=True, exist_ok=True)
    found = []
    for rank in map(str, range(count)):
        told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
        told |= {"GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "selftest"}
        found.append(Forked(words, place / f"{port}-{rank}.txt", told))
    return found


@contextmanager
def fresh(command: Sequence[str], said: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command of the system's with this interpreter and package; ended with all its children, if it is not done."""
    import signal

    here = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    with said.open("ab") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until(what: Callable[[], bool], patience: float = PATIENCE, pause: float = 0.002) -> bool:
    """Wait for something; whether it came."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if what():
            return True
        time.sleep(pause)
    return False
