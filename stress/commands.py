"""The command in separate processes, to be killed: started fresh, or forked from one that has imported torch."""

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

import widemargin
from widemargin.cli.main import main

DEFAULT_TIMEOUT_SECONDS = 120.0  # for commands that take one or two seconds
_COMMAND_PRELOADS = ["torch", "lightning_fabric", "safetensors.torch", "PIL.Image", "widemargin.training.train"]
_COMMAND_PRELOADS += ["widemargin.data.images.folder", "widemargin.models.fast", "widemargin.cli.main"]


class CommandProcess:
    """`widemargin ARGV` in a process that starts at once; its output goes to a file."""

    def __init__(
        self,
        argv: Sequence[str],
        output_path: Path,
        environment: Mapping[str, str] | None = None,
        entry_point: Callable[[list[str]], int] = main,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_COMMAND_PRELOADS)
        self.output_path = output_path
        self.process: Any = context.Process(
            target=_run_in_child, args=(entry_point, list(argv), str(output_path), dict(environment or {}))
        )
        self.process.start()

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def is_running(self) -> bool:
        """True if the process still runs."""
        return bool(self.process.is_alive())

    def send_signal(self, signal_number: int) -> None:
        """Send a signal, if the process still runs."""
        if self.is_running():
            os.kill(self.pid, signal_number)

    def wait(self, timeout: float = DEFAULT_TIMEOUT_SECONDS) -> int | None:
        """Wait for the exit code: negative for a signal, None if it had to be killed after `timeout` seconds."""
        self.process.join(timeout)
        late = self.is_running()
        if late:
            self.process.kill()
            self.process.join()
        return None if late else int(self.process.exitcode)

    def read_output(self) -> str:
        """Return the output so far."""
        return self.output_path.read_text(encoding="utf-8", errors="replace") if self.output_path.exists() else ""


def _run_in_child(
    entry_point: Callable[[list[str]], int], argv: list[str], output_path: str, environment: dict[str, str]
) -> None:
    """In the child process: send its output to a file, run the command and exit with its code."""
    os.environ.update(environment)
    handle = os.open(output_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    import torch

    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", "1")))
    sys.exit(entry_point(argv))


def run_command(
    argv: Sequence[str],
    output_path: Path,
    environment: Mapping[str, str] | None = None,
    entry_point: Callable[[list[str]], int] = main,
) -> tuple[int | None, str]:
    """Run a command to its end; return its exit code and output."""
    child = CommandProcess(argv, output_path, environment, entry_point)
    return child.wait(), child.read_output()


def error_line(output: str) -> str:
    """Return the single error line of a command, or a description of its output."""
    lines = [line for line in output.splitlines() if line.startswith("widemargin: ")]
    return lines[0] if len(lines) == 1 and "Traceback" not in output else f"not one line: {output[-400:]}"


def start_ranks(
    argv: Sequence[str],
    output_dir: Path,
    world_size: int = 2,
    environment: Mapping[str, str] | None = None,
    entry_point: Callable[[list[str]], int] = main,
) -> list[CommandProcess]:
    """Start the same command as several ranks of one training, each with its own output file."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    output_dir.mkdir(parents=True, exist_ok=True)
    processes = []
    for rank in map(str, range(world_size)):
        own = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
        }
        own |= {
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "TORCHELASTIC_RUN_ID": "stress",
        }
        own |= environment or {}
        processes.append(CommandProcess(argv, output_dir / f"{port}-{rank}.txt", own, entry_point))
    return processes


@contextmanager
def start_subprocess(command: Sequence[str], output_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command in a new session that can import the package and the checkout; killed at the end."""
    import signal

    places = (Path(widemargin.__file__).resolve().parents[1], Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, (*map(str, places), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    with output_path.open("ab") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until(
    condition: Callable[[], bool], timeout: float = DEFAULT_TIMEOUT_SECONDS, poll_interval: float = 0.002
) -> bool:
    """Wait until `condition()` is true; False if that has not happened after `timeout` seconds."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(poll_interval)
    return False
