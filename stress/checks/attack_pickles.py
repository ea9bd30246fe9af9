"""A malicious pickle in place of every file that is loaded: none is ever unpickled."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import fixtures
from ..check import CheckContext, Outcome
from ..sandbox import Sandbox, run_cli

TITLE = "a malicious pickle in place of every file that is loaded"
KIND = "attack"
LONG = False


class Payload:
    """Payload that creates a marker folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.marker),)


def run(context: CheckContext) -> Outcome:
    """Test runs, hub folders, weights of other libraries, sharded checkpoints, image sets, tables."""
    missing = fixtures.fixtures_unavailable_outcome()
    if missing is not None:
        return missing
    sandbox = Sandbox(context)
    _verify_payload_runs(sandbox)
    images, trained, hub = fixtures.train_fixtures(sandbox, context.folder)
    _try_run_folders(sandbox, images, trained)
    _try_hub_folders(sandbox, hub)
    _try_weight_files(sandbox)
    _try_sharded_checkpoints(sandbox)
    _try_image_sets(sandbox)
    _try_tables(sandbox, trained)
    return sandbox.outcome()


def _verify_payload_runs(sandbox: Sandbox) -> None:
    """Check that the payload runs when it is unpickled; otherwise the test would show nothing."""
    pickle.loads(pickle.dumps(Payload(sandbox.payload_marker)))
    sandbox.payload_marker.rmdir()


def _pickled_payloads(sandbox: Sandbox) -> Iterator[tuple[str, bytes]]:
    """Yield the payload as a plain pickle and as PyTorch writes it; with --long also in old formats."""
    import torch

    payload = Payload(sandbox.payload_marker)
    for protocol in (pickle.HIGHEST_PROTOCOL, 2) if sandbox.long else (pickle.HIGHEST_PROTOCOL,):
        yield f"pickle {protocol}", pickle.dumps(payload, protocol)
    for zipped in (True, False) if sandbox.long else (True,):
        file = io.BytesIO()
        torch.save({"weight": payload}, file, _use_new_zipfile_serialization=zipped)
        yield "PyTorch archive" if zipped else "old PyTorch file", file.getvalue()


def _try_run_folders(sandbox: Sandbox, images: Path, trained: Path) -> None:
    """Every file of a run's folder."""
    picture = next((images / "test").rglob("*.png"))
    last = "checkpoints/last"
    commands = {
        "run.json": ("predict", "report"),
        "record.json": ("report",),
        "metrics.jsonl": ("report", "resume"),
        f"{last}/model.safetensors": ("predict", "evaluate", "resume", "init"),
        f"{last}/training.safetensors": ("predict", "resume"),
        f"{last}/state.json": ("predict", "export"),
        f"{last}/sha256.json": ("predict",),
    }
    words = {
        "predict": ("predict", "{run}", str(picture)),
        "evaluate": ("evaluate", "{run}"),
        "report": ("report", "{run}", "--no-images"),
        "export": ("export", "{run}", "--safetensors", str(sandbox.folder / "out.safetensors")),
        "resume": fixtures.fixture_train_argv(images, Path("{run}"), "--resume"),
        "init": fixtures.fixture_train_argv(images, sandbox.folder / "other", "--init-from", "{run}"),
    }
    for kind, payload in _pickled_payloads(sandbox):
        for name, used in commands.items():
            for use in used:
                run = fixtures.copy_beside(trained, "spoiled")
                (run / name).write_bytes(payload)
                if last in name and "sha256" not in name:
                    fixtures.update_checksums(run / last)
                argv = [word.replace("{run}", str(run)) for word in words[use]]
                # A log with a truncated last line continues without that line.
                expect = sandbox.expect_harmless if name == "metrics.jsonl" else sandbox.expect_refusal
                expect(f"{kind} as {name}, {argv[0]} ({use})", run_cli, *argv)


def load_hub(folder: str) -> None:
    """`widemargin.load`, as an attempt."""
    from widemargin.loading import load

    load(folder)


def _try_hub_folders(sandbox: Sandbox, hub: Path) -> None:
    for kind, payload in _pickled_payloads(sandbox):
        for name in ("model.safetensors", "widemargin.json"):
            spoiled = fixtures.copy_beside(hub, "spoiled-hub")
            (spoiled / name).write_bytes(payload)
            sandbox.expect_refusal(f"{kind} as a hub folder's {name}", load_hub, str(spoiled))
        spoiled = fixtures.copy_beside(hub, "spoiled-hub")
        for name in ("pytorch_model.bin", "optimizer.pt", "config.pkl"):  # files that other libraries would load
            (spoiled / name).write_bytes(payload)
        sandbox.expect_harmless(f"{kind} beside a hub folder's files", load_hub, str(spoiled))


def load_weights_file(path: str) -> None:
    """Class weights out of a file, as an attempt."""
    from widemargin.head.import_weights import read_class_weights

    read_class_weights(path, 8)


def _try_weight_files(sandbox: Sandbox) -> None:
    for kind, payload in _pickled_payloads(sandbox):
        for ending in ("pt", "pth", "bin", "ckpt", "safetensors"):
            path = sandbox.folder / f"weights.{ending}"
            path.write_bytes(payload)
            sandbox.expect_refusal(f"{kind} as weights.{ending}", load_weights_file, str(path))


def load_shards(folder: str) -> None:
    """A sharded checkpoint into a head and its optimizer, as an attempt."""
    import torch

    from widemargin.head.head import Head
    from widemargin.head.sharded_checkpoint import load_sharded

    head = Head(8, 5, "arcface")
    load_sharded(folder, head, torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9))


def save_shards(folder: str) -> None:
    """Write the sharded checkpoint that `load_shards` reads."""
    import torch

    from widemargin.head.head import Head
    from widemargin.head.sharded_checkpoint import save_sharded

    head = Head(8, 5, "arcface")
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
    head(torch.randn(4, 8), torch.arange(4)).mean().backward()
    optimizer.step()
    save_sharded(folder, head, optimizer)


def _try_sharded_checkpoints(sandbox: Sandbox) -> None:
    whole = sandbox.folder / "shards"
    sandbox.expect_harmless("a sharded checkpoint is written", save_shards, str(whole))
    sandbox.expect_harmless("and read", load_shards, str(whole))
    part = next(path.name for path in whole.iterdir() if path.suffix == ".distcp")
    for kind, payload in _pickled_payloads(sandbox):
        for name in ("index.json", part):
            spoiled = fixtures.copy_beside(whole, "spoiled-shards")
            # Padded, so that the index still matches the file.
            (spoiled / name).write_bytes(payload.ljust((whole / name).stat().st_size, b"\0"))
            sandbox.expect_refusal(f"{kind} as {name} of a sharded checkpoint", load_shards, str(spoiled))
        spoiled = fixtures.copy_beside(whole, "spoiled-shards")
        for name in (".metadata", "__0.metadata"):
            (spoiled / name).write_bytes(payload)
        sandbox.expect_harmless(f"{kind} as torch's own index of a sharded checkpoint", load_shards, str(spoiled))
        (spoiled / "index.json").unlink()
        sandbox.expect_refusal(f"{kind} as the only index of a sharded checkpoint", load_shards, str(spoiled))


def load_images(name: str, folder: str) -> None:
    """An image set out of a folder, as an attempt."""
    from widemargin.data.images.sets import load_images as load

    load(name, folder)


def _try_image_sets(sandbox: Sandbox) -> None:
    """CIFAR's Python batches, MNIST's files, arrays that contain objects."""
    import numpy as np

    from widemargin.data.images.originals import IMAGE_SETS
    from widemargin.data.images.sets import OMNIGLOT_ARCHIVES, OMNIGLOT_ARRAYS_FILE, ORL_ARCHIVE

    for kind, payload in _pickled_payloads(sandbox):
        for name in ("cifar10", "cifar100", "mnist", "fashion_mnist"):
            folder = _make_empty_folder(sandbox.folder / "sets")
            for file in IMAGE_SETS[name].files:
                (folder / file.name).write_bytes(payload)
            sandbox.expect_refusal(f"{kind} as the files of {name}", load_images, name, str(folder))
        folder = _make_empty_folder(sandbox.folder / "sets")
        for file in IMAGE_SETS["mnist"].files:
            (folder / f"{file.name}.gz").write_bytes(gzip.compress(payload))
        sandbox.expect_refusal(f"{kind}, gzipped, as the files of mnist", load_images, "mnist", str(folder))
        folder = _make_empty_folder(sandbox.folder / "sets")
        with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as pack:
            for file in IMAGE_SETS["cifar10"].files:
                member = tarfile.TarInfo(file.name)
                member.size = len(payload)
                pack.addfile(member, io.BytesIO(payload))
        sandbox.expect_refusal(f"{kind} in cifar10's archive", load_images, "cifar10", str(folder))
        for name, files in (
            ("omniglot", (OMNIGLOT_ARRAYS_FILE,)),
            ("omniglot", OMNIGLOT_ARCHIVES),
            ("orl_faces", (ORL_ARCHIVE,)),
        ):
            folder = _make_empty_folder(sandbox.folder / "sets")
            for one in files:
                (folder / one).write_bytes(payload)
            sandbox.expect_refusal(f"{kind} as {files[0]}", load_images, name, str(folder))
    folder = _make_empty_folder(sandbox.folder / "sets")
    objects = np.array([Payload(sandbox.payload_marker)], dtype=object)
    np.savez(folder / OMNIGLOT_ARRAYS_FILE, images=objects, labels=objects, drawer=objects, names=objects)
    sandbox.expect_refusal("objects in the arrays of omniglot", load_images, "omniglot", str(folder))


def _make_empty_folder(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _try_tables(sandbox: Sandbox, trained: Path) -> None:
    """Tables, pairs, pictures, and results that `compare` would continue."""
    out = sandbox.folder / "compared"
    for kind, payload in _pickled_payloads(sandbox):
        for ending in ("csv", "parquet", "csv.gz"):
            path = sandbox.folder / f"table.{ending}"
            path.write_bytes(gzip.compress(payload) if ending.endswith("gz") else payload)
            sandbox.expect_refusal(f"{kind} as table.{ending}", run_cli, "compare", str(path), "--out", str(out))
        (_make_empty_folder(sandbox.folder / "kept") / "results.jsonl").write_bytes(payload + b"\n")
        sandbox.expect_refusal(f"{kind} as results.jsonl", run_cli, "compare", "--out", str(sandbox.folder / "kept"))
        for name, words in (("picture.png", ()), ("pairs.csv", ("--pairs",))):
            path = sandbox.folder / name
            path.write_bytes(payload)
            argv = ("evaluate", str(trained), *words, str(path)) if words else ("predict", str(trained), str(path))
            sandbox.expect_refusal(f"{kind} as {name}", run_cli, *argv)
