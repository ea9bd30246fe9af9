"""Search in a gallery on disk against a bare matrix product and topk in memory, by turns in one run.

Both compare the same unit vectors in float32 and in blocks of the same size; the bare one holds the whole gallery in
memory, ours maps its files (in the page cache after the first round) and also returns identities.
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
        gallery.add({f"p{start + k}": row.unsqueeze(0) for k, row in enumerate(x)})
    return gallery


def bare_search(queries: Tensor, vectors: Tensor, depth: int) -> Tensor:
    """Places [N, depth] of the nearest, block by block."""
    values, places = [], []
    for start in range(0, len(vectors), _BLOCK_ROWS):
        best = (queries @ vectors[start : start + _BLOCK_ROWS].T).topk(depth, 1)
        values.append(best.values)
        places.append(best.indices + start)
    order = torch.cat(values, 1).topk(depth, 1).indices
    return torch.cat(places, 1).gather(1, order)


def measure_gallery(entries: int, dim: int, probes: int, depth: int, rounds: int) -> dict[str, Any]:
    """Seconds of both in each round, and MiB that a search takes beyond the mapped vectors."""
    spent: dict[str, list[float]] = {"bare": [], "search_vectors": [], "search": []}
    with tempfile.TemporaryDirectory() as folder:
        with progress_bar("writing the gallery", 1.0) as on_progress:
            gallery = write_random_gallery(Path(folder), entries, dim)
            on_progress(1.0)
        vectors = torch.from_numpy(np.concatenate([np.asarray(part) for part in gallery.vectors()]))
        draw = torch.Generator().manual_seed(1)
        rows = torch.randint(entries, (probes,), generator=draw)
        queries = torch.nn.functional.normalize(vectors[rows] + 0.02 * torch.randn(probes, dim, generator=draw))
        gallery.search(queries[:1], depth)  # reads the entries once
        with progress_bar("searching", 3.0 * rounds) as on_progress:
            for _ in range(rounds):
                for name, call in (
                    ("bare", lambda: bare_search(queries, vectors, depth)),
                    ("search_vectors", lambda: gallery.search_vectors(queries, depth)[1]),
                    ("search", lambda: gallery.search(queries, depth)),
                ):
                    begun = time.perf_counter()
                    found = call()
                    spent[name].append(time.perf_counter() - begun)
                    on_progress(1.0)
                    if name == "search_vectors":
                        assert torch.equal(found[:, 0], rows)  # type: ignore[call-overload]
        vectors = vectors[:0]
        before = resident_kib()
        reset_peak_resident()
        gallery.search(queries, depth)
        memory = (peak_resident_kib() - before) / 1024
    ratios = sorted(ours / bare for ours, bare in zip(spent["search_vectors"], spent["bare"], strict=True))
    return {
        "entries": entries,
        "dim": dim,
        "probes": probes,
        "depth": depth,
        "threads": torch.get_num_threads(),
        "seconds": {name: [round(value, 4) for value in values] for name, values in spent.items()},
        "ratio": median(ratios),
        "ratio_range": [ratios[0], ratios[-1]],
        "ratio_with_identities": median(a / b for a, b in zip(spent["search"], spent["bare"], strict=True)),
        "mebibytes": round(memory, 1),
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
    parser.add_argument("--json", metavar="FILE", help="also write the figures to a file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    found = measure_gallery(options.entries, options.dim, options.probes, options.depth, options.rounds)
    low, high = found["ratio_range"]
    seconds = median(found["seconds"]["search_vectors"])
    print(
        f"{options.probes:,} probes in {options.entries:,} × {options.dim}: {seconds:.2f} s, {found['ratio']:.2f} "
        f"({low:.2f} – {high:.2f}) of bare matmul + topk (wanted: at most {MAX_RATIO}); with identities "
        f"{found['ratio_with_identities']:.2f}; at most {found['mebibytes']:,.0f} MiB more resident memory, pages of "
        f"the mapped files ({found['mapped_mebibytes']:,.0f} MiB) included"
    )
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
