"""Open sets: evaluation on unseen classes with every loss in one loop; AdaAcos' claim; six digits on a sphere.

omniglot: eleven losses, three of pytorch-metric-learning's, both Siamese networks, pixels and histograms under L1.
faces: the same (without Siamese networks) on ORL faces. adaacos: AdaAcos without tuning against a grid of ArcFace.
sphere: A-Softmax with m = 1 … 4 and ArcGrad in three dimensions.

Omniglot and faces with --loss-set families: twelve losses, one for each family, with the best of their settings on
held-out classes (three seeds); with --loss-set others: every other loss at one setting (one seed). Both go on where
they were stopped. `--settings records/openset_omniglot_settings.json` skips the choice, which is 30 runs.
"""

from __future__ import annotations

import argparse

EXPERIMENTS = ("omniglot", "faces", "adaacos", "sphere")
LOSS_SETS = ("usual", "families", "others")
_DEFAULT_SEED_COUNTS = {"omniglot": 3, "faces": 3, "adaacos": 3, "sphere": 1}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    from .parts.runs import add_records_argument

    parser.add_argument("which", choices=EXPERIMENTS, help="the experiment")
    parser.add_argument(
        "--loss-set",
        choices=LOSS_SETS,
        default="usual",
        help="of omniglot and faces: the eleven of the records and the peers' (usual), twelve families, or all others",
    )
    parser.add_argument(
        "--settings",
        metavar="FILE",
        help="of --loss-set families: take the settings chosen in an earlier call from its settings.json",
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="runs per method, seeds 0, 1, … (default 3; sphere 1)")
    parser.add_argument("--list", action="store_true", help="list finished and missing runs without training")
    parser.add_argument("--out", metavar="DIR", help="folder for the page and the records (default openset_WHICH)")
    parser.add_argument("--runs-dir", metavar="DIR", default="runs", help="folder of the runs, shared by all recipes")
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    add_records_argument(parser)


def run(options: argparse.Namespace) -> None:
    """Train missing runs, print the table, write the page."""
    from pathlib import Path

    from ..io.errors import InputError
    from .parts import openset_claims, openset_families, openset_methods, openset_table

    usual_count = 1 if options.loss_set == "others" else _DEFAULT_SEED_COUNTS[options.which]
    count = options.seeds if options.seeds is not None else usual_count
    if count < 1:
        raise InputError(f"--seeds must be at least 1, got {count}")
    seeds = range(count)
    if options.loss_set != "usual" and options.which not in ("omniglot", "faces"):
        raise InputError(f"--loss-set {options.loss_set} is for omniglot and faces, not for {options.which}")
    if options.settings and options.loss_set != "families":
        raise InputError("--settings is for --loss-set families, which chooses settings")
    if options.records and options.which != "adaacos":
        raise InputError(
            f"--records is for adaacos: {options.which} compares identities, which are in the folders of its runs"
        )
    if options.which == "adaacos":
        openset_claims.run_tuning_claim(options, seeds)
        return
    if options.which == "sphere":
        openset_claims.run_sphere(options, seeds)
        return
    characters = options.which == "omniglot"
    base = openset_methods.OMNIGLOT_CONFIG if characters else openset_methods.FACES_CONFIG
    title = "Omniglot, 121 unseen characters" if characters else "ORL faces, 20 unseen people"
    if options.loss_set == "usual":
        recipe, methods = options.which, openset_methods.list_methods(base, siamese=characters)
    else:
        recipe = f"{options.which}_{options.loss_set}"
        losses = openset_families.other_losses()
        if options.loss_set == "families":
            chosen = openset_families.choose_settings(base, options, Path(options.out or f"openset_{recipe}"))
            if chosen is None:
                return
            losses = list(chosen.values())
        methods = openset_families.own_methods(base, losses)
    out = openset_table.complete_openset_runs(methods, seeds, options, recipe)
    if out is None:
        return
    exceptions = "Siamese networks train on pairs, L1 is not trained" if characters else "L1 is not trained"
    notes = {
        "usual": f"ours and those of pytorch-metric-learning; {exceptions}",
        "families": "one for each family, with the best of its settings on held-out classes (settings.json)",
        "others": "each at one setting",
    }
    sub = (
        f"The same small network, batches and optimizer for all losses, {notes[options.loss_set]}. Mean of "
        f"{count} split{'' if count == 1 else 's'} with its 95 % interval over identities and "
        "splits; angles ± over splits; a dash means too few pairs"
    )
    openset_table.write_openset_report(methods, seeds, options, out, title, sub)
