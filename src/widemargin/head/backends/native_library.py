"""Builds generated C++ into shared libraries with the machine's compiler, on demand, and keeps them on disk.

A library is kept in the user's cache folder (`$XDG_CACHE_HOME/widemargin/kernels`, by default under `~/.cache`) by a
hash of its source, the compiler with its options, and the processor. A folder or file that another user could have
written is not used: then a folder for this process alone is made. A library appears under its name only when it is
complete.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import threading
from functools import cache
from pathlib import Path

_OPTIONS = (
    *(
        "-std=c++17",
        "-O3",
        "-march=native",
        "-fopenmp",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-w",
        "-shared",
        "-fPIC",
    ),
    # GCC prefers half of the widest vectors.
    *(("-mprefer-vector-width=512",) if platform.machine() in ("x86_64", "AMD64") else ()),
)
_TIMEOUT_SECONDS = 120.0

_lock = threading.Lock()
_libraries: dict[str, ctypes.CDLL] = {}


def find_compiler() -> str | None:
    """Return the path of the C++ compiler: the one that CXX names, or g++; None if there is none."""
    return _find_on_path(os.environ.get("CXX", "g++"))


@cache
def _find_on_path(command: str) -> str | None:
    return shutil.which(command)


@cache
def _describe_machine(compiler: str) -> str:
    """Text that changes with the compiler and the processor that `-march=native` compiles for."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False, timeout=30).stdout
    features = ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = file.read().split("\n\n")[0].splitlines()
        features = "\n".join(line for line in lines if line.startswith(("model", "vendor", "flags", "Features", "CPU")))
    except OSError:
        pass
    return "\n".join((compiler, version, *_OPTIONS, platform.machine(), platform.platform(), features))


def cache_folder() -> Path:
    """Return the folder of the libraries, which only this user can write; it is created if needed."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(base) / "widemargin" / "kernels"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_private(folder) and os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return _temporary_folder()


@cache
def _temporary_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="widemargin-kernels-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _is_private(path: Path) -> bool:
    """True if this user owns the path and nobody else can write it; links are not followed."""
    found = path.lstat()
    owner = getattr(os, "getuid", lambda: found.st_uid)()
    return not stat.S_ISLNK(found.st_mode) and found.st_uid == owner and not found.st_mode & 0o022


def load_library(source: str) -> tuple[ctypes.CDLL, bool]:
    """Return the library of a source, and whether it had to be compiled; an OSError if that fails."""
    compiler = find_compiler()
    if compiler is None:
        raise OSError("no C++ compiler")
    name = _library_name(compiler, source)
    with _lock:
        if name in _libraries:
            return _libraries[name], False
        path, is_new = cache_folder() / f"{name}.so", False
        if not (path.is_file() and _is_private(path)):
            _compile(compiler, source, path)
            is_new = True
        try:
            library = ctypes.CDLL(str(path))
        except OSError:  # cut off by a full disk, say
            if is_new:
                raise
            _compile(compiler, source, path)
            library, is_new = ctypes.CDLL(str(path)), True
        _libraries[name] = library
        return library, is_new


def _library_name(compiler: str, source: str) -> str:
    return hashlib.sha256(f"{_describe_machine(compiler)}\n{source}".encode()).hexdigest()[:32]


def _compile(compiler: str, source: str, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".build-") as folder:
        text, result = Path(folder) / "kernels.cpp", Path(folder) / "kernels.so"
        text.write_text(source, encoding="utf-8")
        command = [compiler, *_OPTIONS, str(text), "-o", str(result)]
        try:
            process = subprocess.run(
                command, capture_output=True, text=True, errors="replace", check=False, timeout=_TIMEOUT_SECONDS
            )
        except subprocess.TimeoutExpired:
            raise OSError(f"{compiler} takes more than {_TIMEOUT_SECONDS:.0f} seconds") from None
        if process.returncode or not result.is_file():
            lines = [line for line in process.stderr.splitlines() if "error" in line] or process.stderr.splitlines()
            raise OSError(f"{compiler} failed: {lines[0] if lines else process.returncode}")
        result.chmod(0o700)
        os.replace(result, path)
