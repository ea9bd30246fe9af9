"""`widemargin evaluate RUN` and `widemargin predict RUN image.png …`: what a trained run knows."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..printable import say

if TYPE_CHECKING:
    from ..training.finished import Finished
    from ..training.inputs import Inputs


ASSIGN_NEW = (
    "take a folder of images as it is now: images added since the run began are assigned to a part by the ranking that "
    "drew the first, and written to manifest.csv; no other image moves"
)
_PROTOCOL_NUMBERS = (
    ("batch", 1024, "queries that meet the gallery together; memory grows with it"),
    ("neighbours", 5, "of knn"),
    ("ways", 5, "classes of a fewshot episode"),
    ("shots", 1, "images each of them is known by"),
    ("episodes", 1000, "of fewshot"),
)


def add(commands: Any) -> None:
    """Both commands and their options."""
    judge = commands.add_parser("evaluate", help="judge a trained run on its test images")
    judge.add_argument("folder", metavar="RUN", help="run folder")
    judge.add_argument("--checkpoint", default="last", metavar="NAME", help="last, best or epoch-0010 (default last)")
    judge.add_argument("--no-flips", action="store_true", help="leave mirror images out, which takes half the time")
    judge.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    judge.add_argument("--assign-new", action="store_true", help=ASSIGN_NEW)
    judge.add_argument(
        "--protocol",
        choices=("verification", "retrieval", "knn", "fewshot", "openset"),
        help="judge embeddings instead of answers",
    )
    judge.add_argument("--pairs", metavar="FILE", help="verification of the pairs in a CSV with columns a, b, same")
    for name, default, meaning in _PROTOCOL_NUMBERS:
        judge.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{meaning} (default {default})")
    judge.add_argument(
        "--sampled-pairs", type=int, metavar="N", help="draw N distinct pairs of each kind (default: all pairs)"
    )
    judge.add_argument("--faiss", action="store_true", help="search with faiss, which gives the same numbers")
    judge.set_defaults(run=evaluate)
    name = commands.add_parser("predict", help="name images with a trained run")
    name.add_argument("folder", metavar="RUN", help="run folder")
    name.add_argument("images", nargs="+", metavar="IMAGE", help="image files")
    name.add_argument("--checkpoint", default="last", metavar="NAME", help="last, best or epoch-0010 (default last)")
    name.add_argument("--top", type=int, default=3, metavar="N", help="classes to print (default 3)")
    name.add_argument("--reject-below", type=float, metavar="COS", help="call an image unknown below this cosine")
    name.add_argument(
        "--target-far",
        type=float,
        metavar="P",
        help="the same, with the cosine that so many images of the run's unseen classes pass",
    )
    name.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    name.set_defaults(run=predict)


def evaluate(options: argparse.Namespace) -> None:
    """Print the figures, write them with what is taken for what to `evaluation.json`."""
    import math
    from pathlib import Path

    from ..plain_json import line_per_name
    from ..training.finished import finished
    from ..training.judging import headline
    from ..training.writing import write_whole

    run = finished(options.folder, options.checkpoint)
    if options.protocol or options.pairs:
        _by_protocol(run, options)
        return
    inputs = run.inputs(options.data_dir, assign_new=options.assign_new)
    say_changes(inputs)
    found = run.judge(flips=not options.no_flips, inputs=inputs)
    print(headline(found))
    if "angles" in found:
        names = {"wc_intra": "WC-Intra", "w_inter": "W-Inter", "c_inter": "C-Inter", "intra": "image to centre"}
        print(", ".join(f"{names[key]} {math.degrees(value):.2f}°" for key, value in found["angles"].items()))
    path = Path(options.folder, "evaluation.json")
    facts = {"checkpoint": options.checkpoint, **found, "classes": run.sees["classes"]}
    write_whole(path, line_per_name(facts, ensure_ascii=False))
    say(f"wrote {path}")


def say_changes(inputs: Inputs, *, aside: bool = False) -> None:
    """Say which images of a folder are tested, and what became of the others; only changes where that is `aside`."""
    if inputs.changes is None or inputs.drawn:
        for note in inputs.notes:
            say(note, aside=aside)
    if inputs.changes is not None and (inputs.changes or inputs.changes.doubled or not aside):
        for line in (inputs.changes.line(), *inputs.changes.details()):
            say(line, aside=aside)


def _by_protocol(run: Finished, options: argparse.Namespace) -> None:
    """Print what a protocol says of the run's embeddings, write it to `evaluation-NAME.json`."""
    import json
    import shlex
    from pathlib import Path

    import torch

    from ..errors import InputError
    from ..report.page import paragraph
    from ..report.protocol_page import neighbour_rows, protocol_page
    from ..training import protocols
    from ..training.writing import write_whole

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
        judged = protocols.verification_of(x, first, second, same, [str(path.parent) for path in files])
    else:
        settings = protocols.Settings(
            pairs=options.sampled_pairs,
            batch=options.batch,
            k=options.neighbours,
            ways=options.ways,
            shots=options.shots,
            episodes=options.episodes,
            seed=run.run.seed,
            faiss=options.faiss,
        )
        inputs = run.inputs(options.data_dir, assign_new=options.assign_new)
        say_changes(inputs)
        x, y = run.embeddings(inputs=inputs)
        judged = protocols.PROTOCOLS[name](x, y, settings)
    for line in judged.lines:
        say(line)
    path = Path(options.folder, f"evaluation-{name}.json")
    facts = {"checkpoint": options.checkpoint, **judged.facts}
    if inputs is not None and (listed := inputs.manifest_facts()):
        facts["manifest"] = listed
    write_whole(path, json.dumps(facts, indent=1))
    shown = [] if inputs is None else neighbour_rows(x, inputs.test, run.run.seed)
    if inputs is not None and inputs.changes is not None:
        shown.append(paragraph(inputs.changes.line(), "note"))
    sub = f"{run.run.model}, {run.run.loss}, on {'unseen classes' if run.run.unseen else 'the test images'}"
    command = shlex.join(["widemargin", *options.words])
    page = path.with_suffix(".html")
    write_whole(page, protocol_page(f"{Path(run.run.data).name}: {name}", sub, judged, command, shown))
    say(f"wrote {path} and {page}")


def predict(options: argparse.Namespace) -> None:
    """A line per image: the likeliest classes with their probabilities."""
    from ..errors import InputError
    from ..training.finished import finished

    if options.top < 1:
        raise InputError(f"--top must be at least 1, got {options.top}")
    run = finished(options.folder, options.checkpoint)
    least = _rejecting(run, options)
    for path in options.images:
        if least is not None:
            cos = float(run.nearness(run.embed_files([path]))[0])
            if cos < least:
                say(f"{path}: unknown (cosine {cos:.3f} to the nearest class, below {least:.3f})")
                continue
        likely = run.chances(path)[: options.top]
        say(f"{path}: " + ", ".join(f"{name} {100 * chance:.1f} %" for name, chance in likely))


def _rejecting(run: Finished, options: argparse.Namespace) -> float | None:
    """The cosine below which an image is unknown; None where nothing is refused."""
    from ..errors import InputError
    from ..metrics.identity_intervals import LEAST_EVENTS
    from ..metrics.verification import needed

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
    if not run.run.unseen:
        raise InputError("--target-far wants images of unknown classes: train with --unseen, or give --reject-below")
    inputs = run.inputs(options.data_dir)
    say_changes(inputs, aside=True)
    scores = run.nearness(run.embeddings(inputs=inputs)[0]).sort(descending=True).values
    passing = int(options.target_far * len(scores) + 1e-9)
    if passing < LEAST_EVENTS:
        raise InputError(
            f"a rate of {options.target_far:g} needs at least {LEAST_EVENTS} false alarms: "
            f"{needed(options.target_far):,} unseen images; there are {len(scores):,}; give --reject-below"
        )
    return float((scores[passing - 1] + scores[passing]) / 2)
