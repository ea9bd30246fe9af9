"""Search in a gallery on disk against a bare matrix product and topk in memory, by turns in one run.

Both compare the same unit vectors in float32 and in blocks of the same size, and write the scores of all blocks to the
same memory. The bare one holds the whole gallery in memory; ours maps its files, which a search before the first round
has brought into the page cache, and also returns identities. Beside the seconds stand those that the process had a
processor for, as a fraction of all that its threads could have had: far below 1 means that something else was running.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from widemargin.io.errors import InputError
from widemargin.io.progress import progress_bar
from widemargin.recognition import gallery_files as files
from widemargin.recognition.gallery import Gallery

from .head_timing import peak_resident_kib, reset_peak_resident, resident_kib

MAX_RATIO = 1.3
_WRITE_ROWS = 100_000
_BLOCK_ROWS = 16_384


def write_random_gallery(folder: Path, entries: int, dim: int) -> Gallery:
    """A gallery of random unit vectors, an identity each, written as `Gallery.add` writes it."""
    state = files.GalleryState("random vectors", dim, "best")
    files.write_state(folder, state)
    gallery = Gallery(folder)
    draw = torch.Generator().manual_seed(0)
    for start in range(0, entries, _WRITE_ROWS):
        x = torch.randn(min(_WRITE_ROWS, entries - start), dim, generator=draw)
        gallery.add_embeddings(x, [f"p{start + k}" for k in range(len(x))])
    return gallery


def bare_search(queries: Tensor, vectors: Tensor, depth: int) -> Tensor:
    """Places [N, depth] of the nearest, block by block."""
    values, places, scores = [], [], queries.new_empty(len(queries), min(_BLOCK_ROWS, len(vectors)))
    for start in range(0, len(vectors), _BLOCK_ROWS):
        block = vectors[start : start + _BLOCK_ROWS]
        if len(block) < scores.shape[1]:
            scores = queries.new_empty(len(queries), len(block))
        best = torch.mm(queries, block.T, out=scores).topk(depth, 1)
        values.append(best.values)
        places.append(best.indices + start)
    order = torch.cat(values, 1).topk(depth, 1).indices
    return torch.cat(places, 1).gather(1, order)


def measure_gallery(
    folder: Path, entries: int, dim: int, probes: int, depth: int, rounds: int, earlier: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Seconds of both in each round, after those of `earlier` calls, and MiB that a search takes beyond the mapping."""
    spent: dict[str, list[float]] = {"bare": [], "search_vectors": [], "search": []}
    processor: dict[str, list[float]] = {name: [] for name in spent}
    begun = time.perf_counter()
    is_new = not (folder / files.GALLERY_FILE).exists()
    gallery = write_random_gallery(folder, entries, dim) if is_new else Gallery(folder)
    write_seconds = round(time.perf_counter() - begun, 1) if is_new else None
    if len(gallery) != entries:
        raise InputError(f"{folder}: a gallery of {len(gallery):,} vectors, not {entries:,}; choose another folder")
    vectors = torch.from_numpy(np.concatenate([np.asarray(part) for part in gallery.vectors()]))
    draw = torch.Generator().manual_seed(1)
    rows = torch.randint(entries, (probes,), generator=draw)
    queries = torch.nn.functional.normalize(vectors[rows] + 0.02 * torch.randn(probes, dim, generator=draw))
    gallery.search(queries[:1], depth)  # reads the entries, and the vectors into the page cache
    memory = 0.0
    with progress_bar("searching", 3.0 * rounds) as on_progress:
        for _ in range(rounds):
            for name, call in (
                ("bare", lambda: bare_search(queries, vectors, depth)),
                ("search_vectors", lambda: gallery.search_vectors(queries, depth)[1]),
                ("search", lambda: gallery.search(queries, depth)),
            ):
                before = resident_kib()
                reset_peak_resident()
                begun, begun_processor = time.perf_counter(), time.process_time()
                found = call()
                seconds = time.perf_counter() - begun
                spent[name].append(round(seconds, 4))
                share = (time.process_time() - begun_processor) / (seconds * torch.get_num_threads())
                processor[name].append(round(share, 3))
                on_progress(1.0)
                if name == "search_vectors":
                    assert torch.equal(found[:, 0], rows)  # type: ignore[call-overload]
                if name == "search":
                    memory = max(memory, (peak_resident_kib() - before) / 1024)
    if earlier is not None:
        spent = {name: earlier["seconds"][name] + values for name, values in spent.items()}
        processor = {name: earlier["processor_share"][name] + values for name, values in processor.items()}
        memory, write_seconds = max(memory, earlier["mebibytes_beyond_mapping"]), earlier["write_seconds"]
    ratios = sorted(ours / bare for ours, bare in zip(spent["search_vectors"], spent["bare"], strict=True))
    return {
        "entries": entries,
        "dim": dim,
        "probes": probes,
        "depth": depth,
        "threads": torch.get_num_threads(),
        "seconds": spent,
        "processor_share": processor,
        "ratio": median(ratios),
        "ratio_range": [ratios[0], ratios[-1]],
        "ratio_with_identities": median(a / b for a, b in zip(spent["search"], spent["bare"], strict=True)),
        "write_seconds": write_seconds,
        "mebibytes_beyond_mapping": round(memory, 1),
        "mapped_mebibytes": entries * dim * 4 / 2**20,
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    for name, usual, meaning in (
        ("entries", 1_000_000, "enrolled vectors"),
        ("dim", 512, "length of the embeddings"),
        ("probes", 1000, "probes that are searched together"),
        ("depth", 5, "neighbours of each"),
        ("rounds", 5, "rounds of each"),
    ):
        parser.add_argument(f"--{name}", type=int, default=usual, metavar="N", help=f"{meaning} (default {usual:,})")
    parser.add_argument("--folder", metavar="DIR", help="keep the gallery there, and use one that is there already")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to a file")
    parser.add_argument("--append", action="store_true", help="add the rounds to those of the file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    settings = {name: getattr(options, name) for name in ("entries", "dim", "probes", "depth")}
    earlier = json.loads(Path(options.json).read_text(encoding="utf-8")) if options.append and options.json else None
    if earlier is not None and any(earlier[name] != value for name, value in settings.items()):
        raise InputError(f"{options.json}: its rounds had other settings; write another file")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(options.folder or scratch)
        folder.mkdir(parents=True, exist_ok=True)
        found = measure_gallery(folder, **settings, rounds=options.rounds, earlier=earlier)
    low, high = found["ratio_range"]
    seconds = median(found["seconds"]["search_vectors"])
    written = "" if found["write_seconds"] is None else f"; written in {found['write_seconds']:.0f} s"
    shares = ", ".join(f"{name} {median(values):.2f}" for name, values in found["processor_share"].items())
    print(
        f"{options.probes:,} probes in {options.entries:,} × {options.dim}: {seconds:.2f} s, {found['ratio']:.2f} "
        f"({low:.2f} – {high:.2f}) of bare matmul + topk (wanted: at most {MAX_RATIO}); with identities "
        f"{found['ratio_with_identities']:.2f}; a search takes {found['mebibytes_beyond_mapping']:,.0f} MiB beyond the "
        f"mapped files ({found['mapped_mebibytes']:,.0f} MiB, which the system may drop); share of the processors' "
        f"time: {shares}{written}"
    )
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
