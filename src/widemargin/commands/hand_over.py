"""`widemargin embed` and `widemargin verify`: embeddings of images in a file, and whether two images show the same."""

from __future__ import annotations

import argparse
from typing import Any

from ..printable import print_escaped


def add_parser(commands: Any) -> None:
    """Both commands and their options."""
    embed = commands.add_parser("embed", help="embeddings of images, as .npz or .parquet")
    embed.add_argument("folder", metavar="RUN", help="run folder")
    embed.add_argument("data", metavar="DATA", nargs="+", help="image files, folders of them, or one image set by name")
    embed.add_argument("--out", required=True, metavar="FILE", help="file to write: .npz or .parquet")
    embed.add_argument("--checkpoint", default="last", metavar="NAME", help="last, best or epoch-0010 (default last)")
    embed.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    embed.set_defaults(run=run_embed)
    export = commands.add_parser("export", help="hand a trained run over: ONNX, weights, or a folder with a card")
    export.add_argument("folder", metavar="RUN", help="run folder")
    export.add_argument("--onnx", metavar="FILE", help="ONNX file, checked by onnxruntime, and a JSON file beside it")
    export.add_argument("--safetensors", metavar="FILE", help="the weights alone")
    export.add_argument("--hub", metavar="DIR", help="weights, facts and a model card; widemargin.load(DIR) reads it")
    export.add_argument("--licence", default="not stated", metavar="NAME", help="of the weights, for the card")
    export.add_argument("--checkpoint", default="last", metavar="NAME", help="last, best or epoch-0010 (default last)")
    export.set_defaults(run=run_export)
    same = commands.add_parser("verify", help="do two images show the same?")
    same.add_argument("folder", metavar="RUN", help="run folder")
    same.add_argument("images", nargs=2, metavar="IMAGE", help="two image files")
    same.add_argument("--checkpoint", default="last", metavar="NAME", help="last, best or epoch-0010 (default last)")
    same.add_argument("--threshold", type=float, metavar="COS", help="cosine from which two images are the same")
    same.add_argument(
        "--target-far",
        type=float,
        default=0.01,
        metavar="P",
        help="otherwise: the threshold that so many different pairs of the run's test images pass (default 0.01)",
    )
    same.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    same.set_defaults(run=run_verify)


def run_embed(options: argparse.Namespace) -> None:
    """Embed, and write to a file with names and labels."""
    from pathlib import Path

    from ..embedding_files import embed_images, save_embeddings
    from ..training.finished import load_run

    found = embed_images(load_run(options.folder, options.checkpoint), options.data, options.data_dir)
    save_embeddings(Path(options.out), found)
    print_escaped(f"wrote {options.out}: {len(found.x):,} embeddings of {found.x.shape[1]} dimensions")


def run_export(options: argparse.Namespace) -> None:
    """Write what was asked for."""
    from pathlib import Path

    from ..errors import InputError
    from ..training.finished import load_run

    if not (options.onnx or options.safetensors or options.hub):
        raise InputError("export: say what to write, --onnx FILE, --safetensors FILE or --hub DIR")
    run = load_run(options.folder, options.checkpoint)
    run.check_model_outputs()
    if options.onnx:
        from ..onnx_file import write_onnx

        max_difference = write_onnx(run, Path(options.onnx))
        print_escaped(f"wrote {options.onnx}: onnxruntime agrees with PyTorch to {max_difference:.1e}")
    if options.safetensors:
        from ..hub_folder import write_weights

        write_weights(run, Path(options.safetensors))
        print_escaped(f"wrote {options.safetensors}")
    if options.hub:
        from ..hub_folder import write_folder

        write_folder(run, Path(options.hub), options.licence)
        print_escaped(f"wrote {options.hub}: model.safetensors, widemargin.json, README.md")


def run_verify(options: argparse.Namespace) -> None:
    """Print cosine, angle and the answer."""
    import math

    from ..angle import angle_between, unit_and_norm
    from ..errors import InputError
    from ..training.finished import load_run
    from ..training.protocols import calibrated_threshold
    from .evaluate import print_data_changes

    if not 0.0 < options.target_far < 1.0:
        raise InputError(f"--target-far must lie between 0 and 1, got {options.target_far:g}")
    if options.threshold is not None and not -1.0 <= options.threshold <= 1.0:
        raise InputError(f"--threshold is a cosine from -1 to 1, got {options.threshold:g}")
    run = load_run(options.folder, options.checkpoint)
    one, other = unit_and_norm(run.embed_files(options.images))[0]
    cos, angle = float(one @ other), math.degrees(float(angle_between(one, other)))
    threshold, why = options.threshold, "as given"
    if threshold is None:
        inputs = run.load_inputs(options.data_dir)
        print_data_changes(inputs, to_stderr=True)
        threshold = calibrated_threshold(*run.embed_test_images(inputs=inputs), options.target_far)
        why = f"{100 * options.target_far:g} % of different pairs pass"
    answer = "the same" if cos >= threshold else "not the same"
    print_escaped(f"{answer}: cosine {cos:.4f} ({angle:.1f}°), threshold {threshold:.4f} ({why})")
