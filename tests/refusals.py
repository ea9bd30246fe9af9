"""Pipes, devices, folders and sparse files in place of files, and calls that must refuse them in one line.

Every call runs in a separate process whose memory growth is measured, with a time limit, so that a reader that blocks
or fills the memory fails only its own test. Calls are defined here, where another process can import them.
"""

import json
import os
import struct
import zlib
from pathlib import Path
from unittest.mock import patch

import torch

from stress import sandbox
from stress.fuzzing import load_corpus_files

FILE_KINDS = ("pipe", "device", "holes", "folder")
CHECKPOINT = "checkpoints/last"
MAX_MEMORY_GROWTH = 300 << 20
SPARSE_BYTES = 8 << 30
ATTEMPT_TIMEOUT_SECONDS = 30.0


def run_attempt(call, args: tuple, folder: Path) -> sandbox.AttemptResult:
    """Call in a separate process, for at most 30 seconds."""
    with patch.object(sandbox, "_ATTEMPT_TIMEOUT_SECONDS", ATTEMPT_TIMEOUT_SECONDS):
        return sandbox.run_attempt(call, args, folder, {})


def refusal_message(call, *args, tmp_path: Path) -> str:
    """Return the line with which a call in a separate process is refused, within limits of time and memory."""
    answer = run_attempt(call, args, tmp_path)
    said = answer.message
    if answer.status == "returned":  # a command: the line is printed
        assert answer.exit_code == 2, answer
        lines = [line for line in answer.output.splitlines() if line.startswith("widemargin: ")]
        assert len(lines) == 1, answer
        said = lines[0]
    else:
        assert answer.status == "refused", answer
    assert "Traceback" not in answer.output
    assert answer.memory_growth < MAX_MEMORY_GROWTH, f"{answer.memory_growth >> 20} MiB"
    assert len(said) < 1000
    return said


def replace_with(path: Path, kind: str) -> None:
    """Put something else in the place of a file."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(SPARSE_BYTES)


def write_run_folder(folder: Path) -> Path:
    """The folder of a small finished run."""
    good = load_corpus_files("run")
    (folder / CHECKPOINT).mkdir(parents=True)
    (folder / "run.json").write_bytes(good["run.json"])
    for name in ("state.json", "model.safetensors", "training.safetensors"):
        (folder / CHECKPOINT / name).write_bytes(good[name])
    (folder / "metrics.jsonl").write_text(json.dumps({"epoch": 1, "loss": 1.0, "step": 5}) + "\n")
    (folder / "record.json").write_text(json.dumps({"test": {"top1": 50.0}, "seconds": 1.0}))
    return folder


def write_sparse_weights(path: Path, count: int = SPARSE_BYTES, name: str = "a") -> None:
    """A safetensors file of one tensor that is a hole."""
    header = json.dumps({name: {"dtype": "U8", "shape": [count], "data_offsets": [0, count]}}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + count)


def write_black_png(path: Path, wide: int, tall: int) -> None:
    """A black picture of one bit a pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    row = bytes(1 + (wide + 7) // 8)
    packed = b"".join(packer.compress(row * min(10_000, tall - top)) for top in range(0, tall, 10_000))
    header = struct.pack(">IIBBBBB", wide, tall, 1, 0, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", packed + packer.flush()), chunk(b"IEND", b""))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


# ---------------------------------------------------------------- calls, by name in another process


def load_run(folder: str) -> None:
    from widemargin.training.run_loading import load_run

    load_run(folder)


def load_hub(folder: str) -> None:
    from widemargin.loading import load

    load(folder)


def open_store(folder: str) -> None:
    from widemargin.tabular.results import ResultStore

    ResultStore(folder)


def resume_log(folder: str) -> None:
    from widemargin.training.config import TrainConfig
    from widemargin.training.logging import MetricsLog

    MetricsLog(Path(folder), 1, [], TrainConfig())


def save_again(folder: str) -> None:
    from widemargin.training.checkpoint import save

    for spare in (True, False):
        save(Path(folder, CHECKPOINT), {"a": torch.ones(2)}, {"b": torch.ones(2)}, {"epoch": 1}, keep_backup=spare)


def load_weights(path: str) -> None:
    from widemargin.head.import_weights import read_class_weights

    read_class_weights(path, 8)


def load_shards(folder: str) -> None:
    from stress.checks.attack_pickles import load_shards

    load_shards(folder)


def lock_and_release(folder: str) -> None:
    from widemargin.io.locks import lock_folder

    with lock_folder(folder):
        pass


def read_table(path: str, min_memory_budget: int | None = None) -> None:
    from widemargin.data.tabular import table
    from widemargin.data.tabular.read import read_table

    if min_memory_budget is not None:
        table.MIN_MEMORY_BUDGET = min_memory_budget
    read_table(path)


def read_pairs(path: str) -> None:
    from widemargin.recognition.protocols import read_pairs

    read_pairs(path)


def read_manifest(path: str) -> None:
    from widemargin.data.images.manifest import Manifest

    Manifest.read(Path(path))


def hash_picture(path: str) -> None:
    from widemargin.data.images.decode import hash_file

    hash_file(Path(path))


def read_picture(path: str) -> None:
    from widemargin.data.images.decode import read_image, resize_and_centre_crop

    resize_and_centre_crop(read_image(Path(path)), 32)
