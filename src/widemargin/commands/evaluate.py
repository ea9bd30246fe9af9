"""`widemargin evaluate RUN` and `widemargin predict RUN image.png …`: what a trained run knows."""

from __future__ import annotations

import argparse
from typing import Any


def add(commands: Any) -> None:
    """Both commands and their options."""
    judge = commands.add_parser("evaluate", help="judge a trained run on its test images")
    judge.add_argument("folder", metavar="RUN", help="run folder")
    judge.add_argument("--checkpoint", default="last", metavar="NAME", help="last, best or epoch-0010 (default last)")
    judge.add_argument("--no-flips", action="store_true", help="leave mirror images out, which takes half the time")
    judge.add_argument("--data-dir", metavar="DIR", help="folder with the data sets (also WIDEMARGIN_DATA)")
    judge.set_defaults(run=evaluate)
    name = commands.add_parser("predict", help="name images with a trained run")
    name.add_argument("folder", metavar="RUN", help="run folder")
    name.add_argument("images", nargs="+", metavar="IMAGE", help="image files")
    name.add_argument("--checkpoint", default="last", metavar="NAME", help="last, best or epoch-0010 (default last)")
    name.add_argument("--top", type=int, default=3, metavar="N", help="classes to print (default 3)")
    name.set_defaults(run=predict)


def evaluate(options: argparse.Namespace) -> None:
    """Print the figures, write them with the confusion matrix to `evaluation.json`."""
    import json
    import math
    from pathlib import Path

    from ..training.finished import finished
    from ..training.judging import headline

    run = finished(options.folder, options.checkpoint)
    found = run.judge(options.data_dir, flips=not options.no_flips)
    print(headline(found))
    if "angles" in found:
        names = {"wc_intra": "WC-Intra", "w_inter": "W-Inter", "c_inter": "C-Inter"}
        print(", ".join(f"{names[key]} {math.degrees(value):.2f}°" for key, value in found["angles"].items()))
    path = Path(options.folder, "evaluation.json")
    facts = {"checkpoint": options.checkpoint, **found, "classes": run.sees["classes"]}
    path.write_text(json.dumps(facts, indent=1, ensure_ascii=False), encoding="utf-8")
    print(f"wrote {path}")


def predict(options: argparse.Namespace) -> None:
    """A line per image: the likeliest classes with their probabilities."""
    from ..errors import InputError
    from ..training.finished import finished

    if options.top < 1:
        raise InputError(f"--top must be at least 1, got {options.top}")
    run = finished(options.folder, options.checkpoint)
    for path in options.images:
        likely = run.chances(path)[: options.top]
        print(f"{path}: " + ", ".join(f"{name} {100 * chance:.1f} %" for name, chance in likely))
