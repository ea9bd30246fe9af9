"""Writers of the field's file formats, from their own specifications, for tests of the readers."""

import io
import json
import pickle
import struct
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

MAGIC = struct.pack("<I", 0xCED7230A)


def picture(label: int, number: int, size: int = 16) -> Image.Image:
    """A picture whose colour shows its class."""
    draw = np.random.default_rng(1000 * label + number)
    base = np.array([(label * 67) % 256, (label * 131) % 256, (label * 29) % 256])
    pixels = base + draw.integers(-20, 20, (size, size, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def encode(image: Image.Image, kind: str = "JPEG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def encoded_pictures(counts: Sequence[int], first_label: int = 0) -> list[tuple[bytes, int]]:
    """Encoded pictures with their labels, so many of each class."""
    classes = enumerate(counts, first_label)
    return [(encode(picture(label, number)), label) for label, count in classes for number in range(count)]


def write_folder(root: Path, counts: Sequence[int], first_label: int = 0) -> Path:
    for place, (data, label) in enumerate(encoded_pictures(counts, first_label)):
        path = root / f"c{label:03d}" / f"{place:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


COLOURS = ("red", "green", "blue")


def colour_pictures(count: int, seed: int = 0) -> list[tuple[bytes, list[str]]]:
    """Encoded pictures with any of three labels: a channel is bright where the picture has the channel's label."""
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        has = draw.random(3) < 0.5
        pixels = (draw.integers(0, 60, (12, 12, 3)) + 180 * has).astype(np.uint8)
        labels = [name for name, present in zip(COLOURS, has, strict=True) if present]
        found.append((encode(Image.fromarray(pixels), "PNG"), labels))
    return found


# ---------------------------------------------------------------- RecordIO, as dmlc-core writes it


def record(data: bytes) -> bytes:
    """A record; where the magic number stands in its bytes at a multiple of four, it is left out and begins a piece."""
    cuts = [at for at in range(0, len(data) - 3, 4) if data[at : at + 4] == MAGIC]
    pieces = [data[start:end] for start, end in zip([0, *(cut + 4 for cut in cuts)], [*cuts, len(data)], strict=True)]
    flags = [0] if len(pieces) == 1 else [1, *[2] * (len(pieces) - 2), 3]
    found = b""
    for flag, piece in zip(flags, pieces, strict=True):
        found += MAGIC + struct.pack("<I", flag << 29 | len(piece)) + piece + bytes(-len(piece) % 4)
    return found


def pack_image(data: bytes, label: float | Sequence[float], number: int = 0) -> bytes:
    """MXNet's IRHeader in front of an image."""
    if isinstance(label, int | float):
        return struct.pack("<IfQQ", 0, float(label), number, 0) + data
    return struct.pack("<IfQQ", len(label), 0.0, number, 0) + struct.pack(f"<{len(label)}f", *label) + data


def write_records(path: Path, items: Iterable[tuple[int, bytes]], *, index: bool = True) -> Path:
    places = []
    with path.open("wb") as file:
        for number, data in items:
            places.append((number, file.tell()))
            file.write(record(data))
    if index:
        path.with_suffix(".idx").write_text("".join(f"{number}\t{place}\n" for number, place in places))
    return path


def write_insightface(folder: Path, images: Sequence[tuple[bytes, int]], *, index: bool = True) -> Path:
    """`train.rec`, `train.idx` and `property` as insightface's face2rec2 writes them: images, then identities."""
    folder.mkdir(parents=True, exist_ok=True)
    labels = sorted({label for _, label in images})
    ranges = {label: [k for k, (_, one) in enumerate(images, 1) if one == label] for label in labels}
    end = len(images) + 1
    items = [(0, pack_image(b"", [float(end), float(end + len(labels))], 0))]
    items += [(k, pack_image(data, [float(label), 1.0], k)) for k, (data, label) in enumerate(images, 1)]
    items += [
        (end + k, pack_image(b"", [float(ranges[label][0]), float(ranges[label][-1] + 1)], end + k))
        for k, label in enumerate(labels)
    ]
    (folder / "property").write_text(f"{len(labels)},16,16\n")
    return write_records(folder / "train.rec", items, index=index)


# ---------------------------------------------------------------- tar shards


def write_shard(path: Path, samples: Iterable[tuple[str, dict[str, bytes]]], **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", **options) as pack:
        for key, fields in samples:
            for extension, data in fields.items():
                member = tarfile.TarInfo(f"{key}.{extension}")
                member.size = len(data)
                pack.addfile(member, io.BytesIO(data))
    return path


def shard_samples(images: Sequence[tuple[bytes, int]], start: int = 0, *, as_json: bool = False):
    for number, (data, label) in enumerate(images, start):
        fields = {"json": json.dumps({"label": label}).encode()} if as_json else {"cls": str(label).encode()}
        yield f"{number:06d}", {"jpg": data, **fields}


# ---------------------------------------------------------------- datasets.save_to_disk


def write_saved_dataset(
    folder: Path,
    images: Sequence[tuple[bytes, Any]],
    names: list[str],
    shards: int = 1,
    *,
    feature: Any = None,
    kind_of_label: Any = None,
) -> Path:
    """The files of `Dataset.save_to_disk`: Arrow streams, `state.json` and `dataset_info.json`."""
    import pyarrow as pa

    folder.mkdir(parents=True, exist_ok=True)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    files = [f"data-{k:05d}-of-{shards:05d}.arrow" for k in range(shards)]
    for k, name in enumerate(files):
        part = images[k * len(images) // shards : (k + 1) * len(images) // shards]
        table = pa.table(
            {
                "image": pa.array([{"bytes": data, "path": None} for data, _ in part], kind),
                "label": pa.array([label for _, label in part], kind_of_label or pa.int64()),
            }
        )
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            for batch in table.to_batches(max_chunksize=5):
                writer.write_batch(batch)
    features = {"image": {"_type": "Image"}, "label": feature or {"names": names, "_type": "ClassLabel"}}
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    state = {"_data_files": [{"filename": name} for name in files], "_fingerprint": "0", "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    return folder


# ---------------------------------------------------------------- pairs


def write_bin(path: Path, pairs: Sequence[tuple[bytes, bytes, bool]], protocol: int = 4, arrays: bool = False) -> Path:
    """insightface's lfw2pack: images two by two, and whether each pair is of one person."""
    images: list = [data for a, b, _ in pairs for data in (a, b)]
    same: list = [same for *_, same in pairs]
    if arrays:
        images, same = [np.frombuffer(data, np.uint8).copy() for data in images], [np.bool_(kind) for kind in same]
    path.write_bytes(pickle.dumps((images, same), protocol))
    return path


def write_lfw(root: Path, people: int = 12, images: int = 4, folds: int = 10, per_fold: int = 3) -> Path:
    """`pairs.txt` beside the people's folders, in the layout of LFW."""
    draw = np.random.default_rng(0)
    names = [f"Person_{k:02d}" for k in range(people)]
    for k, name in enumerate(names):
        for number in range(1, images + 1):
            path = root / "lfw" / name / f"{name}_{number:04d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(picture(k, number)))
    lines = [f"{folds}\t{per_fold}"]
    for _ in range(folds):
        for _ in range(per_fold):
            one, other = draw.choice(images, 2, replace=False) + 1
            lines.append(f"{names[draw.integers(people)]}\t{one}\t{other}")
        for _ in range(per_fold):
            a, b = draw.choice(people, 2, replace=False)
            lines.append(f"{names[a]}\t{draw.integers(images) + 1}\t{names[b]}\t{draw.integers(images) + 1}")
    (root / "pairs.txt").write_text("\n".join(lines) + "\n")
    return root / "pairs.txt"
