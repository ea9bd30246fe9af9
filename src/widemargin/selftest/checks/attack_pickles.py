"""A malicious pickle in place of every file that is loaded: none of them is ever unpickled."""

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

from .. import prey
from ..check import Outcome, Size
from ..siege import Siege, command

TITLE = "a malicious pickle in place of every file that is loaded"
KIND = "attack"
LONG = False


class Payload:
    """What runs when somebody unpickles it: it makes the folder that must not appear."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.marker),)


def run(size: Size) -> Outcome:
    """Runs, hub folders, weights of others, sharded checkpoints, image sets, tables."""
    missing = prey.cannot()
    if missing is not None:
        return missing
    siege = Siege(size)
    _can_harm(siege)
    images, trained, hub = prey.trained(siege, size.folder)
    _runs(siege, images, trained)
    _hubs(siege, hub)
    _weights(siege)
    _sharded(siege)
    _image_sets(siege)
    _tables(siege, trained)
    return siege.outcome()


def _can_harm(siege: Siege) -> None:
    """The payload does run where somebody unpickles it: otherwise nothing here would show anything."""
    pickle.loads(pickle.dumps(Payload(siege.marker)))
    siege.marker.rmdir()


def _kinds(siege: Siege) -> Iterator[tuple[str, bytes]]:
    """The payload as a plain pickle and as PyTorch writes it; in long as they were written years ago, too."""
    import torch

    payload = Payload(siege.marker)
    for protocol in (pickle.HIGHEST_PROTOCOL, 2) if siege.long else (pickle.HIGHEST_PROTOCOL,):
        yield f"pickle {protocol}", pickle.dumps(payload, protocol)
    for zipped in (True, False) if siege.long else (True,):
        file = io.BytesIO()
        torch.save({"weight": payload}, file, _use_new_zipfile_serialization=zipped)
        yield "PyTorch archive" if zipped else "old PyTorch file", file.getvalue()


def _runs(siege: Siege, images: Path, trained: Path) -> None:
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
        "export": ("export", "{run}", "--safetensors", str(siege.folder / "out.safetensors")),
        "resume": prey.training(images, Path("{run}"), "--resume"),
        "init": prey.training(images, siege.folder / "other", "--init-from", "{run}"),
    }
    for kind, payload in _kinds(siege):
        for name, used in commands.items():
            for use in used:
                run = prey.copied(trained, "spoiled")
                (run / name).write_bytes(payload)
                if last in name and "sha256" not in name:
                    prey.summed(run / last)
                asked = [word.replace("{run}", str(run)) for word in words[use]]
                # A log whose last line was cut off goes on without that line, whatever stands in it.
                judged = siege.harmless if name == "metrics.jsonl" else siege.refused
                judged(f"{kind} as {name}, {asked[0]} ({use})", command, *asked)


def load_hub(folder: str) -> None:
    """`widemargin.load`, as an attempt."""
    from ...hub_folder import load

    load(folder)


def _hubs(siege: Siege, hub: Path) -> None:
    for kind, payload in _kinds(siege):
        for name in ("model.safetensors", "widemargin.json"):
            spoiled = prey.copied(hub, "spoiled-hub")
            (spoiled / name).write_bytes(payload)
            siege.refused(f"{kind} as a hub folder's {name}", load_hub, str(spoiled))
        spoiled = prey.copied(hub, "spoiled-hub")
        for name in ("pytorch_model.bin", "optimizer.pt", "config.pkl"):  # what others would load from there
            (spoiled / name).write_bytes(payload)
        siege.harmless(f"{kind} beside a hub folder's files", load_hub, str(spoiled))


def take_over(path: str) -> None:
    """Class weights out of a file, as an attempt."""
    from ...takeover import class_weights

    class_weights(path, 8)


def _weights(siege: Siege) -> None:
    for kind, payload in _kinds(siege):
        for ending in ("pt", "pth", "bin", "ckpt", "safetensors"):
            path = siege.folder / f"weights.{ending}"
            path.write_bytes(payload)
            siege.refused(f"{kind} as weights.{ending}", take_over, str(path))


def load_shards(folder: str) -> None:
    """A sharded checkpoint into a head and its optimizer, as an attempt."""
    import torch

    from ...head import Head
    from ...sharded_checkpoint import load_sharded

    head = Head(8, 5, "arcface")
    load_sharded(folder, head, torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9))


def save_shards(folder: str) -> None:
    """What `load_shards` reads."""
    import torch

    from ...head import Head
    from ...sharded_checkpoint import save_sharded

    head = Head(8, 5, "arcface")
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
    head(torch.randn(4, 8), torch.arange(4)).mean().backward()
    optimizer.step()
    save_sharded(folder, head, optimizer)


def _sharded(siege: Siege) -> None:
    whole = siege.folder / "shards"
    siege.harmless("a sharded checkpoint is written", save_shards, str(whole))
    siege.harmless("and read", load_shards, str(whole))
    part = next(path.name for path in whole.iterdir() if path.suffix == ".distcp")
    for kind, payload in _kinds(siege):
        for name in ("index.json", part):
            spoiled = prey.copied(whole, "spoiled-shards")
            # Padded, so that the index still fits the file.
            (spoiled / name).write_bytes(payload.ljust((whole / name).stat().st_size, b"\0"))
            siege.refused(f"{kind} as {name} of a sharded checkpoint", load_shards, str(spoiled))
        spoiled = prey.copied(whole, "spoiled-shards")
        for name in (".metadata", "__0.metadata"):
            (spoiled / name).write_bytes(payload)
        siege.harmless(f"{kind} as torch's own index of a sharded checkpoint", load_shards, str(spoiled))
        (spoiled / "index.json").unlink()
        siege.refused(f"{kind} as the only index of a sharded checkpoint", load_shards, str(spoiled))


def load_images(name: str, folder: str) -> None:
    """An image set out of a folder, as an attempt."""
    from ...data.images import load_images as load

    load(name, folder)


def _image_sets(siege: Siege) -> None:
    """CIFAR's batches as Python has them, MNIST's files, arrays with objects in them."""
    import numpy as np

    from ...data.image_catalogue import SETS
    from ...data.omniglot import ARCHIVES, ARRAYS
    from ...data.orl import ARCHIVE

    for kind, payload in _kinds(siege):
        for name in ("cifar10", "cifar100", "mnist", "fashion_mnist"):
            folder = _emptied(siege.folder / "sets")
            for file in SETS[name].files:
                (folder / file.name).write_bytes(payload)
            siege.refused(f"{kind} as the files of {name}", load_images, name, str(folder))
        folder = _emptied(siege.folder / "sets")
        for file in SETS["mnist"].files:
            (folder / f"{file.name}.gz").write_bytes(gzip.compress(payload))
        siege.refused(f"{kind}, gzipped, as the files of mnist", load_images, "mnist", str(folder))
        folder = _emptied(siege.folder / "sets")
        with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as pack:
            for file in SETS["cifar10"].files:
                member = tarfile.TarInfo(file.name)
                member.size = len(payload)
                pack.addfile(member, io.BytesIO(payload))
        siege.refused(f"{kind} in cifar10's archive", load_images, "cifar10", str(folder))
        for name, files in (("omniglot", (ARRAYS,)), ("omniglot", ARCHIVES), ("orl_faces", (ARCHIVE,))):
            folder = _emptied(siege.folder / "sets")
            for one in files:
                (folder / one).write_bytes(payload)
            siege.refused(f"{kind} as {files[0]}", load_images, name, str(folder))
    folder = _emptied(siege.folder / "sets")
    objects = np.array([Payload(siege.marker)], dtype=object)
    np.savez(folder / ARRAYS, images=objects, labels=objects, drawer=objects, names=objects)
    siege.refused("objects in the arrays of omniglot", load_images, "omniglot", str(folder))


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _tables(siege: Siege, trained: Path) -> None:
    """Tables, pairs, pictures, and results that `compare` would go on from."""
    out = siege.folder / "compared"
    for kind, payload in _kinds(siege):
        for ending in ("csv", "parquet", "csv.gz"):
            path = siege.folder / f"table.{ending}"
            path.write_bytes(gzip.compress(payload) if ending.endswith("gz") else payload)
            siege.refused(f"{kind} as table.{ending}", command, "compare", str(path), "--out", str(out))
        (_emptied(siege.folder / "kept") / "results.jsonl").write_bytes(payload + b"\n")
        siege.refused(f"{kind} as results.jsonl", command, "compare", "--out", str(siege.folder / "kept"))
        for name, words in (("picture.png", ()), ("pairs.csv", ("--pairs",))):
            path = siege.folder / name
            path.write_bytes(payload)
            asked = ("evaluate", str(trained), *words, str(path)) if words else ("predict", str(trained), str(path))
            siege.refused(f"{kind} as {name}", command, *asked)
