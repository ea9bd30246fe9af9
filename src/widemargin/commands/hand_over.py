"""`widemargin embed` and `widemargin verify`: embeddings of images in a file, and whether two images show the same."""

from __future__ import annotations

import argparse
from typing import Any

from ..printable import say


def add(commands: Any) -> None:
    """Both commands and their options."""
    embed = commands.add_parser("embed", help="embeddings of images, as .npz or .parquet")
    embed.add_argument("folder", metavar="RUN", help="run folder")
    embed.add_argument("data", metavar="DATA", nargs="+", help="image files, folders of them, or one image set by name")
    embed.add_argument("--out", required=True, metavar="FILE", help="file to write: .npz or .parquet")
    embed.add_argument("--checkpoint", default="last", metavar="NAME", help="last, best or epoch-0010 (default last)")
    embed.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    embed.set_defaults(run=write_embeddings)
    export = commands.add_parser("export", help="hand a trained run over: ONNX, weights, or a folder with a card")
    export.add_argument("folder", metavar="RUN", help="run folder")
    export.add_argument("--onnx", metavar="FILE", help="ONNX file, checked by onnxruntime, and a JSON file beside it")
    export.add_argument("--safetensors", metavar="FILE", help="the weights alone")
    export.add_argument("--hub", metavar="DIR", help="weights, facts and a model card; widemargin.load(DIR) reads it")
    export.add_argument("--licence", default="not stated", metavar="NAME", help="of the weights, for the card")
    export.add_argument("--checkpoint", default="last", metavar="NAME", help="last, best or epoch-0010 (default last)")
    export.set_defaults(run=write_export)
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
    same.set_defaults(run=verify)


def write_embeddings(options: argparse.Namespace) -> None:
    """Embed, and write to a file with names and labels."""
    from pathlib import Path

    from ..embedding_files import embedded, write
    from ..training.finished import finished

    found = embedded(finished(options.folder, options.checkpoint), options.data, options.data_dir)
    write(Path(options.out), found)
    say(f"wrote {options.out}: {len(found.x):,} embeddings of {found.x.shape[1]} dimensions")


def write_export(options: argparse.Namespace) -> None:
    """Write what was asked for."""
    from pathlib import Path

    from ..errors import InputError
    from ..training.finished import finished

    if not (options.onnx or options.safetensors or options.hub):
        raise InputError("export: say what to write, --onnx FILE, --safetensors FILE or --hub DIR")
    run = finished(options.folder, options.checkpoint)
    run.check_sound()
    if options.onnx:
        from ..onnx_file import write_onnx

        apart = write_onnx(run, Path(options.onnx))
        say(f"wrote {options.onnx}: onnxruntime agrees with PyTorch to {apart:.1e}")
    if options.safetensors:
        from ..hub_folder import write_weights

        write_weights(run, Path(options.safetensors))
        say(f"wrote {options.safetensors}")
    if options.hub:
        from ..hub_folder import write_folder

        write_folder(run, Path(options.hub), options.licence)
        say(f"wrote {options.hub}: model.safetensors, widemargin.json, README.md")


def verify(options: argparse.Namespace) -> None:
    """Print cosine, angle and the answer."""
    import math

    from ..angle import between, direction
    from ..errors import InputError
    from ..training.finished import finished
    from ..training.protocols import calibrated_threshold
    from .evaluate import say_changes

    if not 0.0 < options.target_far < 1.0:
        raise InputError(f"--target-far must lie between 0 and 1, got {options.target_far:g}")
    if options.threshold is not None and not -1.0 <= options.threshold <= 1.0:
        raise InputError(f"--threshold is a cosine from -1 to 1, got {options.threshold:g}")
    run = finished(options.folder, options.checkpoint)
    one, other = direction(run.embed_files(options.images))[0]
    cos, angle = float(one @ other), math.degrees(float(between(one, other)))
    threshold, why = options.threshold, "as given"
    if threshold is None:
        inputs = run.inputs(options.data_dir)
        say_changes(inputs, aside=True)
        threshold = calibrated_threshold(*run.embeddings(inputs=inputs), options.target_far)
        why = f"{100 * options.target_far:g} % of different pairs pass"
    answer = "the same" if cos >= threshold else "not the same"
    say(f"{answer}: cosine {cos:.4f} ({angle:.1f}°), threshold {threshold:.4f} ({why})")
