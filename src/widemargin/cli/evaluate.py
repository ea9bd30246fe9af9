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
DATA_DIR_HELP = "folder with the data sets (also WIDEMARGIN_DATA), or the folder in which the images of the run are now"
_PREDICTED_AT_ONCE = 4096  # files, so that lines come before a large folder ends


def add_evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("folder", metavar="RUN", help="run folder, or one that export --hub wrote")
    add_model_arguments(parser, batches=False)
    parser.add_argument(
        "--no-flips", action="store_true", help="do not average with mirrored images, which halves the time"
    )
    parser.add_argument("--assign-new", action="store_true", help=ASSIGN_NEW_HELP)
    parser.add_argument(
        "--protocol",
        choices=PROTOCOL_NAMES,
        help="evaluate embeddings instead of predicted classes",
    )
    parser.add_argument(
        "--pairs",
        metavar="FILE",
        help="verification of listed pairs: a CSV with columns a, b, same, LFW's pairs.txt, or a file such as lfw.bin",
    )
    add_settings(parser, ProtocolSettings)
    parser.set_defaults(run=run_evaluate)


def add_predict_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("folder", metavar="RUN", help="run folder, folder of export --hub, or model of widemargin fit")
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="image files or folders of them; for the model of a table one table, - for standard input",
    )
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
        "table: reject rows unlike all training rows, at a threshold that rejects this fraction of held-out rows",
    )
    parser.add_argument(
        "--out", metavar="FILE", help="for a table: predictions as .csv or .parquet (default -: CSV on standard output)"
    )
    parser.add_argument("--embeddings", action="store_true", help="for a table: write embeddings too")
    add_model_arguments(parser)
    parser.set_defaults(run=run_predict)


def run_evaluate(options: argparse.Namespace) -> None:
    """Print the metrics, and write them with the confusion matrix to `evaluation.json`."""
    import shlex

    from ..loading import check_kind, evaluate

    check_kind(options.folder, "run")
    found = evaluate(
        options.folder,
        protocol=options.protocol,
        pairs=options.pairs,
        checkpoint=options.checkpoint,
        flips=not options.no_flips,
        data_dir=options.data_dir,
        assign_new=options.assign_new,
        device=options.device,
        **given_values(options, ProtocolSettings),
    )
    for line in (*found.notes, *found.lines):
        print_escaped(line)
    print_checkpoint_note(options.folder, options.checkpoint)
    paths = found.write(options.folder, command=shlex.join(["widemargin", *options.argv]))
    print_escaped(f"wrote {' and '.join(map(str, paths))}")


def add_model_arguments(parser: argparse.ArgumentParser, *, batches: bool = True) -> None:
    """Options of the commands that use a trained model."""
    parser.add_argument("--checkpoint", default="last", metavar="NAME", help="last, best or epoch-0010 (default last)")
    parser.add_argument("--device", metavar="NAME", help="where the model computes, such as cuda (default cpu)")
    if batches:
        parser.add_argument("--batch-size", type=positive_integer, default=256, metavar="N", help="images per batch")
        parser.add_argument(
            "--workers", type=positive_integer, metavar="N", help="threads that decode files (default: one per core)"
        )
    parser.add_argument("--data-dir", metavar="DIR", help=DATA_DIR_HELP)


def print_checkpoint_note(folder: str, name: str) -> None:
    """Say on standard error that the run has a checkpoint `best`, where the one used is `last` of another epoch."""
    from ..training.run_loading import describe_best_checkpoint

    if name == "last" and (note := describe_best_checkpoint(folder)):
        print_escaped(note, to_stderr=True)


def positive_integer(text: str) -> int:
    """A number of at least 1, for argparse."""
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number of at least 1 is expected, got {text!r}")
    return int(text)


def run_predict(options: argparse.Namespace) -> None:
    """Print a line per image: classes with probabilities, and the cosine to the nearest; or predict a table's rows."""
    from pathlib import Path

    from ..export.embeddings import find_image_files
    from ..io.errors import InputError
    from ..loading import folder_kind, load, load_run

    if folder_kind(options.folder) == "table_model":
        from .fit import run_predict_table

        run_predict_table(load(options.folder, options.checkpoint), options)
        return
    if options.out is not None or options.embeddings:
        raise InputError(f"--out and --embeddings are for the model of a table; {options.folder} is a run")
    if options.top is not None and options.top < 1:
        raise InputError(f"--top must be at least 1, got {options.top}")
    run = load_run(options.folder, options.checkpoint, device=options.device)
    top = 3 if options.top is None and not run.is_multilabel else options.top
    chance = 0.5 if options.threshold is None and run.is_multilabel else options.threshold
    rejection = run.rejection_threshold(
        reject_below=options.reject_below, target_far=options.target_far, data_dir=options.data_dir
    )
    for note in rejection.notes:
        print_escaped(note, to_stderr=True)
    paths = [path for word in options.inputs for path in find_image_files(Path(word).expanduser())]
    for start in range(0, len(paths), _PREDICTED_AT_ONCE):
        some = paths[start : start + _PREDICTED_AT_ONCE]
        answers = run.predict(
            some,
            top=top,
            threshold=chance,
            reject_below=rejection.cosine,
            batch_size=options.batch_size,
            workers=options.workers,
        )
        for path, found in zip(some, answers, strict=True):
            said = ", ".join(f"{name} {100 * share:.1f} %" for name, share in found)
            if found.is_unknown:
                said = f"unknown (cosine {found.cosine:.3f} to the nearest class, below {rejection.cosine:.3f})"
            else:
                said = said or f"no class reaches {100 * chance:g} %"
                said += "" if found.cosine is None else f" (cosine {found.cosine:.3f})"
            print_escaped(f"{path}: {said}")
