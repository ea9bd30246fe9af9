"""Siamese networks on pairs of images from a CSV (a, b, same), merged at the input or embedded apart.

Cost: by the number of pairs; 12,000 pairs of 28×28 pixels for 5 epochs take about a minute on two cores. The paths in
the file are relative to it. Without --judge a fifth of the pairs is kept back to judge on.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("pairs", metavar="PAIRS.csv", help="pairs to learn from: columns a, b (image files) and same")
    parser.add_argument("--judge", metavar="PAIRS.csv", help="pairs to judge on (default: a fifth of PAIRS)")
    parser.add_argument("--merge", nargs="+", choices=("input", "embedding"), default=["input", "embedding"])
    parser.add_argument("--model", default="fast(widths=(32, 96, 96), bias=False)", help="the backbone")
    parser.add_argument("--input-size", type=int, default=32, metavar="N", help="pixels along a side (default 32)")
    parser.add_argument("--epochs", type=int, default=5, metavar="N")
    parser.add_argument("--batch-size", type=int, default=100, metavar="N", help="pairs of a batch (default 100)")
    parser.add_argument("--lr", type=float, default=0.003, metavar="X")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--out", metavar="FILE", help="write every judged pair with its scores to a CSV")


def run(options: argparse.Namespace) -> None:
    """Train each architecture, print what its answers are worth."""
    import csv

    from ..data.augment import Augment
    from ..data.folder import IMAGENET_MEAN, IMAGENET_STD
    from ..errors import InputError
    from ..listing import check_writable
    from ..metrics.verification import verification_metrics
    from ..progress import progress_bar
    from ..training.pair_lists import select_pairs
    from ..training.protocols import verify_scored_pairs
    from ..training.siamese import SiameseConfig, pair_scores, train_siamese
    from .parts.pair_files import read_pair_images, split_pairs

    if options.input_size < 9:
        raise InputError(f"--input-size must be at least 9, got {options.input_size}")
    if options.out:
        check_writable(options.out)
    if options.judge:
        (train_pairs, _), (test_pairs, files) = (
            read_pair_images(path, options.input_size) for path in (options.pairs, options.judge)
        )
    else:
        train_pairs, test_pairs, files = split_pairs(*read_pair_images(options.pairs, options.input_size), options.seed)
        print(f"{len(test_pairs)} pairs are kept back to judge on, of the same pictures; --judge takes others")
    augment = Augment(
        size=options.input_size, pad=max(1, options.input_size // 16), mean=IMAGENET_MEAN, std=IMAGENET_STD
    )
    first, second, kinds = test_pairs.first.numpy(), test_pairs.second.numpy(), test_pairs.same.numpy()
    folders = [""] * len(test_pairs.x)
    for a, b, (one, other, _) in zip(first.tolist(), second.tolist(), files, strict=True):
        folders[a], folders[b] = str(one.parent), str(other.parent)
    listed = select_pairs(first, second, kinds, folders)
    for note in listed.notes:
        print(note)
    rows, identity = listed.rows, listed.identities
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
            found = verification_metrics(columns[merge][rows], kinds[rows])
        else:
            found = verify_scored_pairs(columns[merge][rows], identity[first[rows]], identity[second[rows]])
        right = "" if found.accuracy is None else f", pairs right in {found.num_folds} folds {found.accuracy:.2f} %"
        error = "–" if found.eer is None else found.eer.percent_text
        print(f"merge={merge}: AUC {found.auc.percent_text}, EER {error}{right}")
    if options.out:
        with open(options.out, "w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(["a", "b", "same", *(f"score_{merge}" for merge in columns)])
            for k, (a, b, same) in enumerate(files):
                table.writerow([a, b, int(same), *(f"{scores[k]:.6g}" for scores in columns.values())])
        print(f"wrote {options.out}")
