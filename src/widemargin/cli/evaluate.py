"""`widemargin evaluate RUN` and `widemargin predict RUN image.png …`: evaluate a trained run, classify images."""

from __future__ import annotations

import argparse

from ..io.options import add_arguments as add_settings
from ..io.options import given_values
from ..io.text import print_escaped
from ..recognition.settings import PROTOCOL_NAMES, ProtocolSettings

ASSIGN_NEW_HELP = (
    "use the current contents of an image folder: images added since the start of the run are assigned to a part by "
    "the same ranking and added to manifest.csv; no other image moves"
)


def add_evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("folder", metavar="RUN", help="run folder")
    parser.add_argument("--checkpoint", default="last", metavar="NAME", help="last, best or epoch-0010 (default last)")
    parser.add_argument(
        "--no-flips", action="store_true", help="do not average with mirrored images, which halves the time"
    )
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    parser.add_argument("--assign-new", action="store_true", help=ASSIGN_NEW_HELP)
    parser.add_argument(
        "--protocol",
        choices=PROTOCOL_NAMES,
        help="evaluate embeddings instead of predicted classes",
    )
    parser.add_argument("--pairs", metavar="FILE", help="verification of the pairs in a CSV with columns a, b, same")
    add_settings(parser, ProtocolSettings)
    parser.set_defaults(run=run_evaluate)


def add_predict_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("folder", metavar="RUN", help="run folder, or folder of a model that widemargin fit wrote")
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="image files; for the model of a table one table, - for standard input",
    )
    parser.add_argument("--checkpoint", default="last", metavar="NAME", help="last, best or epoch-0010 (default last)")
    parser.add_argument(
        "--top", type=int, metavar="N", help="classes to print (default 3; all of several labels per image)"
    )
    parser.add_argument(
        "--threshold",
        type=float,
        metavar="P",
        help="leave out classes whose probability is below (default 0.5 with several labels per image, else 0)",
    )
    parser.add_argument("--reject-below", type=float, metavar="COS", help="reject images as unknown below this cosine")
    parser.add_argument(
        "--target-far",
        type=float,
        metavar="P",
        help="the same, with the cosine that this fraction of the images of the run's unseen classes passes; for a "
        "table: reject rows like none in training, with this fraction of held-out rows rejected by mistake",
    )
    parser.add_argument(
        "--out", metavar="FILE", help="for a table: predictions as .csv or .parquet (default -: CSV on standard output)"
    )
    parser.add_argument("--embeddings", action="store_true", help="for a table: write embeddings too")
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    parser.set_defaults(run=run_predict)


def run_evaluate(options: argparse.Namespace) -> None:
    """Print the metrics, and write them with the confusion matrix to `evaluation.json`."""
    import shlex

    from ..loading import evaluate

    found = evaluate(
        options.folder,
        protocol=options.protocol,
        pairs=options.pairs,
        checkpoint=options.checkpoint,
        flips=not options.no_flips,
        data_dir=options.data_dir,
        assign_new=options.assign_new,
        **given_values(options, ProtocolSettings),
    )
    for line in (*found.notes, *found.lines):
        print_escaped(line)
    paths = found.write(options.folder, command=shlex.join(["widemargin", *options.argv]))
    print_escaped(f"wrote {' and '.join(map(str, paths))}")


def run_predict(options: argparse.Namespace) -> None:
    """Print a line per image: the most likely classes with their probabilities; or write those of a table's rows."""
    from ..io.errors import InputError
    from ..loading import folder_kind, load

    if folder_kind(options.folder) == "table_model":
        from .fit import run_predict_table

        run_predict_table(load(options.folder, options.checkpoint), options)
        return
    if options.out is not None or options.embeddings:
        raise InputError(f"--out and --embeddings are for the model of a table; {options.folder} is a run")
    if options.top is not None and options.top < 1:
        raise InputError(f"--top must be at least 1, got {options.top}")
    run = load(options.folder, options.checkpoint)
    top = 3 if options.top is None and not run.is_multilabel else options.top
    chance = 0.5 if options.threshold is None and run.is_multilabel else options.threshold
    rejection = run.rejection_threshold(
        reject_below=options.reject_below, target_far=options.target_far, data_dir=options.data_dir
    )
    for note in rejection.notes:
        print_escaped(note, to_stderr=True)
    for path in options.inputs:
        found = run.predict(path, top=top, threshold=chance, reject_below=rejection.cosine)
        said = ", ".join(f"{name} {100 * share:.1f} %" for name, share in found)
        if found.is_unknown:
            said = f"unknown (cosine {found.cosine:.3f} to the nearest class, below {rejection.cosine:.3f})"
        elif not found:
            said = f"no class reaches {100 * chance:g} %"
        print_escaped(f"{path}: {said}")
