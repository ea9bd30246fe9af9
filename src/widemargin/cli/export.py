"""`widemargin embed`, `export` and `verify`: write embeddings, export a model, compare two images."""

from __future__ import annotations

import argparse

from ..io.text import print_escaped
from .evaluate import add_model_arguments, print_checkpoint_note


def add_embed_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("folder", metavar="RUN", help="run folder, or one that export --hub wrote")
    parser.add_argument(
        "data", metavar="DATA", nargs="+", help="image files, folders of them, or one image set by name"
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="file to write: .npz or .parquet")
    parser.add_argument(
        "--no-normalize", action="store_true", help="keep the lengths of the embeddings (default: length 1)"
    )
    add_model_arguments(parser)
    parser.set_defaults(run=run_embed)


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("folder", metavar="RUN", help="run folder")
    parser.add_argument("--onnx", metavar="FILE", help="ONNX file, checked by onnxruntime, with a JSON file next to it")
    parser.add_argument("--safetensors", metavar="FILE", help="the weights alone")
    parser.add_argument(
        "--hub", metavar="DIR", help="folder with weights, metadata and a model card; widemargin.load(DIR) reads it"
    )
    parser.add_argument(
        "--licence", default="not stated", metavar="NAME", help="licence of the weights, for the model card"
    )
    parser.add_argument("--checkpoint", default="last", metavar="NAME", help="last, best or epoch-0010 (default last)")
    parser.set_defaults(run=run_export)


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("folder", metavar="RUN", help="run folder, or one that export --hub wrote")
    parser.add_argument("images", nargs=2, metavar="IMAGE", help="two image files")
    parser.add_argument("--threshold", type=float, metavar="COS", help="cosine from which two images are the same")
    parser.add_argument(
        "--target-far",
        type=float,
        default=0.01,
        metavar="P",
        help="false accept rate that sets the threshold, on pairs of the run's test images (default 0.01)",
    )
    add_model_arguments(parser, batches=False)
    parser.set_defaults(run=run_verify)


def run_embed(options: argparse.Namespace) -> None:
    """Embed, and write to a file with names and labels."""
    from pathlib import Path

    from ..export.embeddings import check_embeddings_file, embed_images, save_embeddings
    from ..loading import load_run

    check_embeddings_file(Path(options.out))
    found = embed_images(
        load_run(options.folder, options.checkpoint, device=options.device),
        options.data,
        options.data_dir,
        batch_size=options.batch_size,
        normalize=not options.no_normalize,
        workers=options.workers,
    )
    save_embeddings(Path(options.out), found)
    print_escaped(f"wrote {options.out}: {len(found.x):,} embeddings of {found.x.shape[1]} dimensions")


def run_export(options: argparse.Namespace) -> None:
    """Write the requested files."""
    from ..io.errors import InputError
    from ..loading import load_run

    if not (options.onnx or options.safetensors or options.hub):
        raise InputError("export: no output given; use --onnx FILE, --safetensors FILE or --hub DIR")
    run = load_run(options.folder, options.checkpoint)
    lines = run.export(onnx=options.onnx, safetensors=options.safetensors, hub=options.hub, licence=options.licence)
    for line in lines:
        print_escaped(line)
    print_checkpoint_note(options.folder, options.checkpoint)


def run_verify(options: argparse.Namespace) -> None:
    """Print cosine, angle and the decision."""
    from ..loading import load_run

    found = load_run(options.folder, options.checkpoint, device=options.device).verify(
        *options.images, threshold=options.threshold, target_far=options.target_far, data_dir=options.data_dir
    )
    for note in found.notes:
        print_escaped(note, to_stderr=True)
    print_escaped(str(found))
