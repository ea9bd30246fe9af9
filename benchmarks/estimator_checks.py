"""scikit-learn's own checks (`check_estimator`) of `MarginClassifier` with every loss.

Losses without class weights are checked beside a margin, as `softmax + 0.1*triplet`. `adacos` and `adaacos` have a
scale of 0 for two classes and are checked with `floor=2`. `bce` is for several labels per row, which most of the checks
do not have; `l1`, `l2` and `huber` do not choose between classes: the classifier refuses them, and the table says so.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from widemargin.io.errors import InputError
from widemargin.io.progress import progress_bar
from widemargin.io.provenance import source_commit, versions
from widemargin.tabular.estimator import MarginClassifier

EXPECTED_FAILURES = {
    f"check_sample_weight_equivalence_on_{kind}_data": "a row of weight 2 is not exactly two rows, because batches are "
    "drawn by chance, as in SGDClassifier"
    for kind in ("dense", "sparse")
}
_MIN_STEPS = 20  # enough for the accuracy that the checks ask for
_SPELLED = {name: f"{name}(floor=2)" for name in ("adacos", "adaacos")}
_WEIGHT = 0.1  # of a loss beside a margin


def list_losses_to_check() -> tuple[list[str], dict[str, str]]:
    """Return the losses that the classifier takes, alone or beside softmax, and the others with the reason."""
    import widemargin as wm
    from widemargin.tabular.batched_objective import check_stacked_loss

    taken: list[str] = []
    refused: dict[str, str] = {}
    for name in wm.list_losses():
        for loss in (_SPELLED.get(name, name), f"softmax + {_WEIGHT:g}*{name}"):
            try:
                check_stacked_loss(loss)
            except InputError as error:
                refused.setdefault(name, str(error))
            else:
                taken.append(loss)
                refused.pop(name, None)
                break
    return taken, refused


def make_estimator(loss: str) -> MarginClassifier:
    """Return the classifier that is checked, whose fits take a fraction of a second."""
    return MarginClassifier(loss, min_steps=_MIN_STEPS, epochs=1)


def check_loss(loss: str) -> dict[str, Any]:
    """Run all checks with one loss; how many passed, and the others by name with the reason."""
    import torch
    from sklearn.utils.estimator_checks import check_estimator

    torch.set_num_threads(1)
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(
            make_estimator(loss), expected_failed_checks=EXPECTED_FAILURES, on_skip=None, on_fail=None
        )
    reasons: dict[str, dict[str, str]] = {"skipped": {}, "xfail": {}, "failed": {}}
    for result in results:
        if result["status"] != "passed":
            reason = result["expected_to_fail_reason"] if result["status"] == "xfail" else result["exception"]
            reasons[result["status"]][result["check_name"]] = " ".join(str(reason).split())[:300]
    return {
        "loss": loss,
        "estimator": " ".join(repr(make_estimator(loss)).split()),
        "checks": len(results),
        "passed": sum(result["status"] == "passed" for result in results),
        "skipped": reasons["skipped"],
        "expected_failures": reasons["xfail"],
        "failed": reasons["failed"],
        "seconds": round(time.perf_counter() - begun, 1),
        "commit": source_commit(),
        "scikit-learn": versions()["scikit-learn"],
    }


def check_losses(losses: Sequence[str], jobs: int) -> Iterator[dict[str, Any]]:
    """Yield the result of each loss as it is there, from processes of their own."""
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(jobs, mp_context=context) as pool,
        progress_bar("losses", float(len(losses))) as on_progress,
    ):
        for done in as_completed([pool.submit(check_loss, loss) for loss in losses]):
            yield done.result()
            on_progress(1.0)


def print_results(lines: Sequence[dict[str, Any]], refused: dict[str, str]) -> None:
    """Print a line per loss, then what was skipped or failed, and why."""
    width = max((len(line["loss"]) for line in lines), default=0)
    for line in lines:
        counts = ", ".join(
            f"{len(line[key])} {what}"
            for key, what in (
                ("skipped", "skipped"),
                ("expected_failures", "expected failures"),
                ("failed", "FAILED"),
            )
            if line[key]
        )
        print(f"{line['loss']:{width}}  {line['passed']} of {line['checks']} passed{counts and '; ' + counts}")
    for key, what in (("skipped", "skipped"), ("expected_failures", "expected failure")):
        for name, reason in dict(pair for line in lines for pair in line[key].items()).items():
            print(f"{what}: {name}: {reason}")
    for line in lines:
        for name, reason in line["failed"].items():
            print(f"FAILED: {line['loss']}: {name}: {reason}")
    for name, reason in refused.items():
        print(f"not for this classifier: {name}: {reason}")
    print(f"{len(lines)} losses, {sum(not line['failed'] for line in lines)} without a failure")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--losses", nargs="+", metavar="LOSS", help="default: every loss")
    parser.add_argument("--jobs", type=int, default=2, help="losses checked at once (default 2)")
    parser.add_argument("--json", metavar="FILE", help="results to add to; losses that it holds are not checked again")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Check the losses that the file lacks, and print all; exit code 1 if a check fails."""
    from widemargin.viz.terminal import check_writable

    losses, refused = list_losses_to_check()
    losses = options.losses or losses
    lines: list[dict[str, Any]] = []
    stored: list[dict[str, Any]] = []
    if options.json:
        check_writable(options.json)
        path = Path(options.json)
        stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() and path.stat().st_size else []
        lines = [line for line in stored if line["loss"] in losses]
    missing = [loss for loss in losses if loss not in {line["loss"] for line in lines}]
    for line in check_losses(missing, options.jobs):
        lines.append(line)
        if options.json:  # after every loss, so that an interrupted run loses little
            stored.append(line)
            path.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    print_results(sorted(lines, key=lambda line: losses.index(line["loss"])), refused)
    return int(any(line["failed"] for line in lines))
