"""`widemargin fit`: fit a loss to a table and save the model, with which `widemargin predict` predicts new rows."""

from __future__ import annotations

import argparse
from typing import Any

from ..io.text import print_escaped
from ..tabular.config import (
    DEFAULT_LOSS,
    add_data_options,
    add_mlp_options,
    add_table_options,
    add_tuning_options,
    command_line,
    mlp_values_from_options,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.description = "Fit a loss to a table and save the model, for widemargin predict and wm.load."
    parser.add_argument(
        "data",
        metavar="DATA",
        help="CSV, TSV or Parquet file, pipe or https URL, - for standard input, or a set's name",
    )
    add_table_options(parser)
    parser.add_argument(
        "--loss",
        default=DEFAULT_LOSS,
        metavar="LOSS",
        help=f'a loss such as "{DEFAULT_LOSS}" (the default); the folder of a comparison, for its best loss; or best, '
        "for that of compare-NAME, or if there is none of a comparison that runs first",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the model")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing model")
    add_tuning_options(parser)
    parser.add_argument(
        "--calibrate",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="calibrate the probabilities by a temperature fitted on held-out rows (default: yes)",
    )
    parser.add_argument("--class-weight", choices=["balanced"], help="balanced: weight every class alike")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default 0)")
    parser.add_argument("--device", default="cpu", help="where to train (default cpu)")
    parser.add_argument("--quiet", action="store_true", help="no notes and no progress")
    add_data_options(parser)
    add_mlp_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Fit, save, and print the command that predicts."""
    from ..tabular.fit import fit

    model = fit(
        options.data,
        target=options.target,
        target_is_class=options.target_is_class,
        decimal=options.decimal,
        loss=options.loss,
        tune=options.tune,
        tune_trials=options.tune_trials,
        calibrate=options.calibrate,
        class_weight=options.class_weight,
        mlp_config=mlp_values_from_options(options),
        seed=options.seed,
        device=options.device,
        out=options.out,
        overwrite=options.overwrite,
        data_dir=options.data_dir,
        quiet=options.quiet,
        command=command_line(options),
    )
    if not options.quiet:
        print_escaped(f"fitted {model.loss_} to {len(model.classes_)} classes; wrote {options.out}")
        print_escaped(f"widemargin predict {options.out} NEW.csv --out predictions.csv")


def run_predict_table(model: Any, options: argparse.Namespace) -> None:
    """Predict the rows of a table with a fitted model."""
    from ..io.errors import InputError
    from ..tabular.predictions import predict_file

    for name in ("top", "threshold", "reject_below"):
        if getattr(options, name) is not None:
            raise InputError(f"--{name.replace('_', '-')} is for images; {options.folder} is the model of a table")
    if len(options.inputs) != 1:
        raise InputError(f"predict reads one table, got {len(options.inputs)}")
    written = predict_file(
        model,
        options.inputs[0],
        options.out or "-",
        embeddings=options.embeddings,
        target_far=options.target_far,
    )
    for note in written.notes:
        print_escaped(f"note: {note}", to_stderr=True)
    if options.out and options.out != "-":
        unknown = f", {written.num_unknown:,} of them unknown" if options.target_far is not None else ""
        print_escaped(f"wrote {options.out}: {written.num_rows:,} rows{unknown}")
