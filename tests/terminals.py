"""A command in a process of its own whose standard error is a terminal."""

import contextlib
import fcntl
import os
import pty
import re
import struct
import sys
import termios
import threading
from pathlib import Path

from stress.commands import CommandProcess
from widemargin.cli.main import main


def run_on_terminal(words: list[str], output: Path, width: int = 140) -> tuple[str, list[str]]:
    """What a command prints, and the lines that were seen on a terminal which is its standard error."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, width, 0, 0))
    parts: list[bytes] = []

    def read_terminal() -> None:
        with contextlib.suppress(OSError):  # Linux says so when the last writer has left
            while part := os.read(ours, 4096):
                parts.append(part)

    reader = threading.Thread(target=read_terminal)
    reader.start()
    process = CommandProcess([os.ttyname(theirs), *words], output, {"TERM": "xterm"}, main_on_terminal)
    code = process.wait()
    os.close(theirs)
    reader.join()
    os.close(ours)
    plain = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", b"".join(parts)).decode()
    assert code == 0, plain
    return process.read_output(), [line for line in re.split(r"[\r\n]+", plain) if line.strip()]


def main_on_terminal(argv: list[str]) -> int:
    """Entry point of a process: the name of the terminal that its standard error is, and the words of a command."""
    os.dup2(os.open(argv[0], os.O_RDWR | os.O_NOCTTY), 2)
    sys.stderr = os.fdopen(2, "w", closefd=False)  # the stream of before takes it for a file that can be sought in
    for name in ("COLUMNS", "FORCE_COLOR", "LINES"):
        os.environ.pop(name, None)
    return main(argv[1:])
