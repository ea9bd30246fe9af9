"""Siamese networks on pairs of images from a CSV (a, b, same), merged at the input or embedded separately.

Cost: proportional to the number of pairs; 12,000 pairs of 28×28 pixels for 5 epochs take about a minute on two cores.
Paths are relative to the CSV. Without --test-pairs a fifth of the pairs is held out for the test.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from ..io.errors import InputError
from ..recognition.protocols import read_pairs
from ..training.siamese import ImagePairs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("pairs", metavar="PAIRS.csv", help="training pairs: columns a, b (image files), same")
    parser.add_argument("--test-pairs", metavar="PAIRS.csv", help="test pairs (default: a fifth of PAIRS)")
    parser.add_argument("--merge", nargs="+", choices=("input", "embedding"), default=["input", "embedding"])
    parser.add_argument("--model", default="fast(widths=(32, 96, 96), bias=False)", help="the backbone")
    parser.add_argument("--input-size", type=int, default=32, metavar="N", help="pixels along a side (default 32)")
    parser.add_argument("--epochs", type=int, default=5, metavar="N")
    parser.add_argument("--batch-size", type=int, default=100, metavar="N", help="pairs per batch (default 100)")
    parser.add_argument("--lr", type=float, default=0.003, metavar="X")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--out", metavar="FILE", help="write every test pair with its scores to a CSV")


def run(options: argparse.Namespace) -> None:
    """Train each architecture, and print its verification metrics on the test pairs."""
    import csv

    from ..data.images.augment import Augment
    from ..data.images.folder import IMAGENET_MEAN, IMAGENET_STD
    from ..io.errors import InputError
    from ..io.progress import progress_bar
    from ..metrics.verification import verification_metrics
    from ..recognition.protocols import select_pairs, verify_scored_pairs
    from ..training.siamese import SiameseConfig, pair_scores, train_siamese
    from ..viz.terminal import check_writable

    if options.input_size < 9:
        raise InputError(f"--input-size must be at least 9, got {options.input_size}")
    if options.out:
        check_writable(options.out)
    if options.test_pairs:
        (train_pairs, _), (test_pairs, files) = (
            read_pair_images(path, options.input_size) for path in (options.pairs, options.test_pairs)
        )
    else:
        train_pairs, test_pairs, files = split_pairs(*read_pair_images(options.pairs, options.input_size), options.seed)
        print(
            f"{len(test_pairs)} pairs of the same images are held out for the test; use --test-pairs for other images"
        )
    augment = Augment(
        size=options.input_size, pad=max(1, options.input_size // 16), mean=IMAGENET_MEAN, std=IMAGENET_STD
    )
    first, second, kinds = test_pairs.first.numpy(), test_pairs.second.numpy(), test_pairs.same.numpy()
    folders = [""] * len(test_pairs.x)
    for a, b, (one, other, _) in zip(first.tolist(), second.tolist(), files, strict=True):
        folders[a], folders[b] = str(one.parent), str(other.parent)
    selected = select_pairs(first, second, kinds, folders)
    for note in selected.notes:
        print(note)
    rows, identity = selected.rows, selected.identities
    columns = {}
    for merge in dict.fromkeys(options.merge):
        settings = SiameseConfig(
            merge, options.model, options.epochs, options.batch_size, options.lr, seed=options.seed
        )
        with progress_bar(f"Siamese, merge={merge}", 1.0, message="") as on_progress:
            network = train_siamese(
                settings, train_pairs, augment, lambda done, loss: on_progress(done, f"loss {loss:.3f}")
            )
        columns[merge] = pair_scores(network, test_pairs, augment)
        if identity is None:
            metrics = verification_metrics(columns[merge][rows], kinds[rows])
        else:
            metrics = verify_scored_pairs(columns[merge][rows], identity[first[rows]], identity[second[rows]])
        right = (
            "" if metrics.accuracy is None else f", pairs right in {metrics.num_folds} folds {metrics.accuracy:.2f} %"
        )
        error = "–" if metrics.eer is None else metrics.eer.percent_text
        print(f"merge={merge}: AUC {metrics.auc.percent_text}, EER {error}{right}")
    if options.out:
        with open(options.out, "w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(["a", "b", "same", *(f"score_{merge}" for merge in columns)])
            for k, (a, b, same) in enumerate(files):
                table.writerow([a, b, int(same), *(f"{scores[k]:.6g}" for scores in columns.values())])
        print(f"wrote {options.out}")


PairFiles = list[tuple[Path, Path, bool]]


def read_pair_images(path: str, size: int) -> tuple[ImagePairs, PairFiles]:
    """Read the pairs of a CSV with their images, each decoded once, and the paths of the pairs."""
    from ..data.images.folder import FolderImages

    files = read_pairs(path)
    each = tuple(dict.fromkeys(file for a, b, _ in files for file in (a, b)))
    place = {file: k for k, file in enumerate(each)}
    x = FolderImages(path, each, torch.zeros(len(each), dtype=torch.int64), ("image",)).load_into_memory(size).x
    first, second = torch.tensor([place[a] for a, _, _ in files]), torch.tensor([place[b] for _, b, _ in files])
    return ImagePairs(x, first, second, torch.tensor([same for *_, same in files])), files


def split_pairs(
    pairs: ImagePairs, files: PairFiles, seed: int, test_fraction: float = 0.2
) -> tuple[ImagePairs, ImagePairs, PairFiles]:
    """Split into training pairs, test pairs, and the paths of the latter."""
    count = round(test_fraction * len(pairs))
    if count < 2:
        raise InputError(f"{len(pairs)} pairs are too few to hold out a test set; give --test-pairs")
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed))
    test_rows, train_rows = order[:count], order[count:]
    train, test = (
        ImagePairs(pairs.x, pairs.first[rows], pairs.second[rows], pairs.same[rows]) for rows in (train_rows, test_rows)
    )
    return train, test, [files[k] for k in test_rows.tolist()]
