"""`widemargin evaluate RUN` and `widemargin predict RUN image.png …`: what a trained run knows."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..io.text import print_escaped

if TYPE_CHECKING:
    from ..training.inputs import Inputs
    from ..training.run import Run


ASSIGN_NEW_HELP = (
    "take a folder of images as it is now: images added since the run began are assigned to a part by the ranking that "
    "drew the first, and written to manifest.csv; no other image moves"
)
_PROTOCOL_OPTIONS = (
    ("batch", 1024, "queries that meet the gallery together; memory grows with it"),
    ("neighbours", 5, "of knn"),
    ("ways", 5, "classes of a fewshot episode"),
    ("shots", 1, "images each of them is known by"),
    ("episodes", 1000, "of fewshot"),
)


def add_evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("folder", metavar="RUN", help="run folder")
    parser.add_argument("--checkpoint", default="last", metavar="NAME", help="last, best or epoch-0010 (default last)")
    parser.add_argument("--no-flips", action="store_true", help="leave mirror images out, which takes half the time")
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    parser.add_argument("--assign-new", action="store_true", help=ASSIGN_NEW_HELP)
    parser.add_argument(
        "--protocol",
        choices=("verification", "retrieval", "knn", "fewshot", "openset"),
        help="evaluate embeddings instead of answers",
    )
    parser.add_argument("--pairs", metavar="FILE", help="verification of the pairs in a CSV with columns a, b, same")
    for name, default, meaning in _PROTOCOL_OPTIONS:
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{meaning} (default {default})")
    parser.add_argument(
        "--sampled-pairs", type=int, metavar="N", help="draw N distinct pairs of each kind (default: all pairs)"
    )
    parser.add_argument("--faiss", action="store_true", help="search with faiss, which gives the same numbers")
    parser.set_defaults(run=run_evaluate)


def add_predict_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("folder", metavar="RUN", help="run folder")
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image files")
    parser.add_argument("--checkpoint", default="last", metavar="NAME", help="last, best or epoch-0010 (default last)")
    parser.add_argument("--top", type=int, default=3, metavar="N", help="classes to print (default 3)")
    parser.add_argument("--reject-below", type=float, metavar="COS", help="call an image unknown below this cosine")
    parser.add_argument(
        "--target-far",
        type=float,
        metavar="P",
        help="the same, with the cosine that so many images of the run's unseen classes pass",
    )
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    parser.set_defaults(run=run_predict)


def run_evaluate(options: argparse.Namespace) -> None:
    """Print the figures, write them with the confusion matrix to `evaluation.json`."""
    import math
    from pathlib import Path

    from ..io.bounded import dumps_one_line_per_key
    from ..io.locks import write_text_atomic
    from ..training.evaluate import format_metrics
    from ..training.run import load_run

    run = load_run(options.folder, options.checkpoint)
    if options.protocol or options.pairs:
        _run_protocol(run, options)
        return
    inputs = run.load_inputs(options.data_dir, assign_new=options.assign_new)
    print_data_changes(inputs)
    found = run.evaluate(flips=not options.no_flips, inputs=inputs)
    print(format_metrics(found))
    if "angles" in found:
        names = {"wc_intra": "WC-Intra", "w_inter": "W-Inter", "c_inter": "C-Inter", "intra": "image to centre"}
        print(", ".join(f"{names[key]} {math.degrees(value):.2f}°" for key, value in found["angles"].items()))
    path = Path(options.folder, "evaluation.json")
    facts = {"checkpoint": options.checkpoint, **found, "class_names": run.input_spec["class_names"]}
    write_text_atomic(path, dumps_one_line_per_key(facts, ensure_ascii=False))
    print_escaped(f"wrote {path}")


def print_data_changes(inputs: Inputs, *, to_stderr: bool = False) -> None:
    """Say which images of a folder are tested, and what became of the others; only changes on standard error."""
    if inputs.changes is None or inputs.has_new_manifest:
        for note in inputs.notes:
            print_escaped(note, to_stderr=to_stderr)
    if inputs.changes is not None and (inputs.changes or inputs.changes.duplicates or not to_stderr):
        for line in (inputs.changes.summary(), *inputs.changes.details()):
            print_escaped(line, to_stderr=to_stderr)


def _run_protocol(run: Run, options: argparse.Namespace) -> None:
    """Print what a protocol says of the run's embeddings, write it to `evaluation-NAME.json`."""
    import json
    import shlex
    from pathlib import Path

    import torch

    from ..io.errors import InputError
    from ..io.locks import write_text_atomic
    from ..recognition import protocols
    from ..viz.page import paragraph
    from ..viz.protocol_page import neighbour_sections, protocol_page

    name = options.protocol or "verification"
    if options.pairs and name != "verification":
        raise InputError(f"--pairs belongs to --protocol verification, not to {name}")
    if options.pairs and options.assign_new:
        raise InputError("--assign-new is for the run's own images; --pairs names others: leave one out")
    for option in ("sampled_pairs", "batch", "neighbours", "ways", "shots", "episodes"):
        if getattr(options, option) is not None and getattr(options, option) < 1:
            raise InputError(f"--{option.replace('_', '-')} must be at least 1, got {getattr(options, option)}")
    if options.pairs:
        given = protocols.read_pairs(options.pairs)
        files = list(dict.fromkeys(path for a, b, _ in given for path in (a, b)))
        place = {path: k for k, path in enumerate(files)}
        first, second = torch.tensor([place[a] for a, _, _ in given]), torch.tensor([place[b] for _, b, _ in given])
        x, inputs = run.embed_files(files), None
        same = torch.tensor([same for *_, same in given])
        result = protocols.evaluate_listed_pairs(x, first, second, same, [str(path.parent) for path in files])
    else:
        settings = protocols.ProtocolSettings(
            num_pairs=options.sampled_pairs,
            batch=options.batch,
            k=options.neighbours,
            ways=options.ways,
            shots=options.shots,
            episodes=options.episodes,
            seed=run.config.seed,
            faiss=options.faiss,
        )
        inputs = run.load_inputs(options.data_dir, assign_new=options.assign_new)
        print_data_changes(inputs)
        x, y = run.embed_test_images(inputs=inputs)
        result = protocols.PROTOCOLS[name](x, y, settings)
    for line in result.lines:
        print_escaped(line)
    path = Path(options.folder, f"evaluation-{name}.json")
    facts = {"checkpoint": options.checkpoint, **result.metrics}
    if inputs is not None and (listed := inputs.manifest_summary()):
        facts["manifest"] = listed
    write_text_atomic(path, json.dumps(facts, indent=1))
    extra_sections = [] if inputs is None else neighbour_sections(x, inputs.test, run.config.seed)
    if inputs is not None and inputs.changes is not None:
        extra_sections.append(paragraph(inputs.changes.summary(), "note"))
    images = "unseen classes" if run.config.unseen_classes else "the test images"
    subtitle = f"{run.config.model}, {run.config.loss}, on {images}"
    command = shlex.join(["widemargin", *options.argv])
    page = path.with_suffix(".html")
    write_text_atomic(
        page, protocol_page(f"{Path(run.config.data).name}: {name}", subtitle, result, command, extra_sections)
    )
    print_escaped(f"wrote {path} and {page}")


def run_predict(options: argparse.Namespace) -> None:
    """A line per image: the likeliest classes with their probabilities."""
    from ..io.errors import InputError
    from ..training.run import load_run

    if options.top < 1:
        raise InputError(f"--top must be at least 1, got {options.top}")
    run = load_run(options.folder, options.checkpoint)
    threshold = _rejection_threshold(run, options)
    for path in options.images:
        if threshold is not None:
            cos = float(run.nearest_class_cosine(run.embed_files([path]))[0])
            if cos < threshold:
                print_escaped(f"{path}: unknown (cosine {cos:.3f} to the nearest class, below {threshold:.3f})")
                continue
        likely = run.predict(path)[: options.top]
        print_escaped(f"{path}: " + ", ".join(f"{name} {100 * chance:.1f} %" for name, chance in likely))


def _rejection_threshold(run: Run, options: argparse.Namespace) -> float | None:
    """The cosine below which an image is unknown; None where nothing is refused."""
    from ..io.errors import InputError
    from ..metrics.intervals import MIN_EVENTS
    from ..metrics.verification import required_different_pairs

    if options.reject_below is not None and options.target_far is not None:
        raise InputError("--reject-below and --target-far both set the threshold; take one of them")
    if options.reject_below is not None:
        if not -1.0 <= options.reject_below <= 1.0:
            raise InputError(f"--reject-below is a cosine from -1 to 1, got {options.reject_below:g}")
        return float(options.reject_below)
    if options.target_far is None:
        return None
    if not 0.0 < options.target_far < 1.0:
        raise InputError(f"--target-far must lie between 0 and 1, got {options.target_far:g}")
    if not run.config.unseen_classes:
        raise InputError(
            "--target-far wants images of unknown classes: train with --unseen-classes, or give --reject-below"
        )
    inputs = run.load_inputs(options.data_dir)
    print_data_changes(inputs, to_stderr=True)
    scores = run.nearest_class_cosine(run.embed_test_images(inputs=inputs)[0]).sort(descending=True).values
    passing = int(options.target_far * len(scores) + 1e-9)
    if passing < MIN_EVENTS:
        raise InputError(
            f"a rate of {options.target_far:g} needs at least {MIN_EVENTS} false alarms: "
            f"{required_different_pairs(options.target_far):,} unseen images; there are {len(scores):,}; "
            "give --reject-below"
        )
    return float((scores[passing - 1] + scores[passing]) / 2)
