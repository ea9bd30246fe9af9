"""`widemargin embed`, `export` and `verify`: embeddings as a file, a run as files, whether two images show the same."""

from __future__ import annotations

import argparse

from ..io.text import print_escaped


def add_embed_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("folder", metavar="RUN", help="run folder")
    parser.add_argument(
        "data", metavar="DATA", nargs="+", help="image files, folders of them, or one image set by name"
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="file to write: .npz or .parquet")
    parser.add_argument("--checkpoint", default="last", metavar="NAME", help="last, best or epoch-0010 (default last)")
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    parser.set_defaults(run=run_embed)


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("folder", metavar="RUN", help="run folder")
    parser.add_argument("--onnx", metavar="FILE", help="ONNX file, checked by onnxruntime, and a JSON file beside it")
    parser.add_argument("--safetensors", metavar="FILE", help="the weights alone")
    parser.add_argument("--hub", metavar="DIR", help="weights, facts and a model card; widemargin.load(DIR) reads it")
    parser.add_argument("--licence", default="not stated", metavar="NAME", help="of the weights, for the card")
    parser.add_argument("--checkpoint", default="last", metavar="NAME", help="last, best or epoch-0010 (default last)")
    parser.set_defaults(run=run_export)


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("folder", metavar="RUN", help="run folder")
    parser.add_argument("images", nargs=2, metavar="IMAGE", help="two image files")
    parser.add_argument("--checkpoint", default="last", metavar="NAME", help="last, best or epoch-0010 (default last)")
    parser.add_argument("--threshold", type=float, metavar="COS", help="cosine from which two images are the same")
    parser.add_argument(
        "--target-far",
        type=float,
        default=0.01,
        metavar="P",
        help="otherwise: the threshold that so many different pairs of the run's test images pass (default 0.01)",
    )
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    parser.set_defaults(run=run_verify)


def run_embed(options: argparse.Namespace) -> None:
    """Embed, and write to a file with names and labels."""
    from pathlib import Path

    from ..export.embeddings import embed_images, save_embeddings
    from ..training.run import load_run

    found = embed_images(load_run(options.folder, options.checkpoint), options.data, options.data_dir)
    save_embeddings(Path(options.out), found)
    print_escaped(f"wrote {options.out}: {len(found.x):,} embeddings of {found.x.shape[1]} dimensions")


def run_export(options: argparse.Namespace) -> None:
    """Write what was asked for."""
    from pathlib import Path

    from ..io.errors import InputError
    from ..training.run import load_run

    if not (options.onnx or options.safetensors or options.hub):
        raise InputError("export: say what to write, --onnx FILE, --safetensors FILE or --hub DIR")
    run = load_run(options.folder, options.checkpoint)
    run.check_model_outputs()
    if options.onnx:
        from ..export.onnx import write_onnx

        max_difference = write_onnx(run, Path(options.onnx))
        print_escaped(f"wrote {options.onnx}: onnxruntime agrees with PyTorch to {max_difference:.1e}")
    if options.safetensors:
        from ..export.hub import write_weights

        write_weights(run, Path(options.safetensors))
        print_escaped(f"wrote {options.safetensors}")
    if options.hub:
        from ..export.hub import write_folder

        write_folder(run, Path(options.hub), options.licence)
        print_escaped(f"wrote {options.hub}: model.safetensors, widemargin.json, README.md")


def run_verify(options: argparse.Namespace) -> None:
    """Print cosine, angle and the answer."""
    import math

    from ..io.errors import InputError
    from ..numerics.angles import angle_between, unit_and_norm
    from ..recognition.protocols import calibrated_threshold
    from ..training.run import load_run
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
