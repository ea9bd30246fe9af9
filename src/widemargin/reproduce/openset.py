"""Open sets: evaluation on unseen classes with every loss in one loop; AdaAcos' claim; six digits on a sphere.

omniglot: eleven losses, three of pytorch-metric-learning's, both Siamese networks, pixels and histograms under L1.
faces: the same (without Siamese networks) on ORL faces. adaacos: AdaAcos without tuning against a grid of ArcFace.
sphere: A-Softmax with m = 1 … 4 and ArcGrad in three dimensions.
"""

from __future__ import annotations

import argparse

EXPERIMENTS = ("omniglot", "faces", "adaacos", "sphere")
_DEFAULT_SEED_COUNTS = {"omniglot": 3, "faces": 3, "adaacos": 3, "sphere": 1}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("which", choices=EXPERIMENTS, help="the experiment")
    parser.add_argument("--seeds", type=int, metavar="N", help="runs per method, seeds 0, 1, … (default 3; sphere 1)")
    parser.add_argument("--list", action="store_true", help="list finished and missing runs without training")
    parser.add_argument("--out", metavar="DIR", help="folder for the page and the records (default openset_WHICH)")
    parser.add_argument("--runs-dir", metavar="DIR", default="runs", help="folder of the runs, shared by all recipes")
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")


def run(options: argparse.Namespace) -> None:
    """Train missing runs, print the table, write the page."""
    from ..io.errors import InputError
    from .parts import openset_claims, openset_methods, openset_table

    count = options.seeds if options.seeds is not None else _DEFAULT_SEED_COUNTS[options.which]
    if count < 1:
        raise InputError(f"--seeds must be at least 1, got {count}")
    seeds = range(count)
    if options.which == "adaacos":
        openset_claims.run_tuning_claim(options, seeds)
        return
    if options.which == "sphere":
        openset_claims.run_sphere(options, seeds)
        return
    characters = options.which == "omniglot"
    base = openset_methods.OMNIGLOT_CONFIG if characters else openset_methods.FACES_CONFIG
    methods = openset_methods.list_methods(base, siamese=characters)
    out = openset_table.complete_openset_runs(methods, seeds, options, options.which)
    title = "Omniglot, 121 unseen characters" if characters else "ORL faces, 20 unseen people"
    if out is None:
        return
    exceptions = "Siamese networks train on pairs, L1 is not trained" if characters else "L1 is not trained"
    sub = (
        "The same small network, batches and optimizer for all losses, ours and those of pytorch-metric-learning; "
        f"{exceptions}. Mean of {count} split{'' if count == 1 else 's'} with its 95 % interval over identities and "
        "splits; angles ± over splits; a dash means too few pairs"
    )
    openset_table.write_openset_report(methods, seeds, options, out, title, sub)
