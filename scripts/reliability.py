"""Generate docs/reliability.md: guarantees under faults, bad input and attacks, and the table of tests.

    python -m stress --long --json records/stress.json && python scripts/reliability.py

The table is generated from the record. A check that is not in the record is listed as not run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for stress, which is not installed

from stress.check import KINDS, Check, load_checks

RECORD, PAGE = ROOT / "records" / "stress.json", ROOT / "docs" / "reliability.md"
TITLES = {"fault": "Faults", "input": "Bad input", "attack": "Attacks"}
PROMISES = """# Reliability

Training runs for days on shared machines, and weights come from untrusted sources. This page lists the guarantees of
`widemargin` for these cases, and how often they were tested. Every row of the tables is printed by the command next
to it, also on your machine (from a checkout of the source): `python -m stress` takes minutes, `python -m stress
--long` repeats the counts of the table (about an hour). It exits with code 1 if a test fails.

## Guarantees

- **A killed run loses at most its current epoch, which is repeated.** Checkpoints are written to a temporary name,
  synced and renamed, with SHA-256 sums; a damaged one is reported and the one before it is used. After `--resume`
  weights, moments, averages, metrics and `metrics.jsonl` are those of the uninterrupted run, bit for bit on the CPU,
  without lost or repeated lines (except times of day and speeds).
- **SIGTERM and SIGINT lose nothing**: the current step is completed, everything is saved, and the command exits with
  code 75 ("try again later"). A second signal exits at once.
- **A disk that is full or read-only, images that vanish**: one line, code 2; the last checkpoint and the log are
  intact, and `--resume` continues after the repair. Durations do not use the system clock, which may jump.
- **A folder of images that changes** moves no image from one part to another: `manifest.csv` in the run folder lists
  the files used for training, validation and testing. New files belong to no part until `--assign-new`; added,
  changed and removed files are reported; a run whose training images have changed continues only if requested.
- **A rank that dies** stops the others with a line that names it; a rank that hangs does so after `--timeout` seconds
  (1800). `torchrun --max-restarts 3 -m widemargin train … --resume` restarts the run automatically. On several
  machines set `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` for that: otherwise torchrun's attempts share a store and may
  find each other's old addresses (pytorch issue 135712; not tested by us on several machines).
- **A loss of NaN or infinity** stops the run and reports the step, the part of the objective, the largest logit and
  angle, and what to try. Non-finite weights never overwrite a good checkpoint.
- **One process per folder.** A second `train`, `compare` or `reproduce` is refused with the id of the first process;
  the lock ends with its process. Interrupted commands continue from the saved state.
- **Same seed, same machine, same number of threads, one process: the same bits.**

## What is not guaranteed

- **The same bits for other numbers of threads or ranks.** Sums are computed in another order; the rows of `same_bits`
  measure the difference. Two ranks on the CPU also compute batch norm over their own half of a batch (torch
  synchronises it on GPUs only).
- **Bits on a GPU**, on another kind of machine, or with another version of torch.
- **On file systems without locks** (some network file systems), a second process is not refused.
- **Under torchrun the other ranks are stopped by torchrun**, mostly before they can report the missing rank; torchrun
  then names it.
- **A process that hangs before the run has started** is abandoned after the time-out too, but cannot be named.

## Fixed failures

Errors of version 0.1.0, fixed in 0.1.1; each has a test that fails on the older version.

- **AdaCos on large heads was wrong** (`auto`, `stream`, `sharded`; single precision, from 2²⁰ logits, with a
  compiler): one step used a kernel compiled for a scale in double precision with one in single precision. Loss and
  gradients were wrong from the first step. Kernels are now cached by the dtype and shape of all their inputs.
- **A block of one class could corrupt a sum** (`stream`, `sampled`, `sharded`, `auto`; single precision): the second
  label of a mixup, and the loss of an adaptive margin, iterate from the last block. If that held only one class, the
  target, the sum used the anchor 0 instead of the largest logit; with all logits below about −90 (`arcgrad(s=80)`) it
  underflowed, losses were wrong by some percent, and gradients sometimes NaN. Such sums are now recomputed.
- **Schedules lost steps** if one head was trained from several threads (9 of 800), and the last bit of a head's
  angles differed while another thread compiled kernels.
- **Class weights of norm 0 got no gradient from their own samples** under `softmax` and `m_softmax` (`stream`,
  `sampled`, `sharded`) and under `l_softmax(m=1)`: the gradient of a zero-initialised classifier was wrong by 45 to
  99 %.
- **Adaptive margins left their group**: a head split over some of the ranks adapted to the batches of all, and a
  dense head that one rank called alone waited for the others forever. Heads and pair losses now communicate within
  their `group`, or not at all without one. Under DDP pass `group=torch.distributed.group.WORLD`; a warning says so.
- **One streamed head in several threads**: two threads could be given the same memory for their gradients (9 of 9,600
  gradients were wrong). A kept `weight.grad.untyped_storage()` was overwritten by the next step.
- **`extend` and `assign_from`**: `extend` of a sharded head gave a wrong loss on one rank and an error on two,
  unfroze a frozen learnable scale and lost `sample_rate`; `assign_from` did not copy label smoothing, backend,
  `sample_rate`, dimension and mode.
- **One kernel that failed to compile disabled all**, and `adaacos` and overflowing sums always failed. Now each
  kernel falls back separately.
- **Heads on several ranks**: a second derivative ended in an index error (now refused in one line), embeddings
  without gradient on one rank only aborted the others, and FSDP refused learnable scales.

  `tests/laws/test_heads.py` compares every loss, on every backend, with and without compiled kernels, in both
  precisions, through all operations of a head and with class weights of zero, tiny and huge norm, with full logits in
  double precision.
- **`--precision 64-true` did not give the same bits twice.** The next batch is prepared in a background thread, and
  its random numbers were drawn in the default dtype of the process, which Lightning Fabric switches to float64 and
  back in every step. So crops, flips, erased boxes and mixed pairs differed from run to run. Other precisions were
  not affected. Every draw now names its dtype and device. `tests/numerics/test_random.py` compares batches under
  every default dtype, and `tests/laws/test_runs.py` trains under random options (precision, average, mixing, repeated
  augmentation, batches per class, accumulation, optimizer, unseen classes, held-out part) twice and interrupted.
- **Weights that are NaN were used**: `predict` printed "nan %" and `export` wrote them, both with code 0. `predict`,
  `embed`, `verify`, `evaluate`, `export`, `--resume`, `--init-from`, `widemargin.load` and `Head.load_class_weights`
  now refuse weights, averages and running statistics that are not finite, and name the file and tensor. A checkpoint
  with non-finite running statistics or averages is no longer written either.
- **`record.json` grew with the square of the number of classes**: it held the whole confusion matrix, 74 MiB for
  3,600 classes, more than `report` reads. Evaluation held that matrix in memory too. A record now has the number of
  images and correct predictions of every class and the most frequent mistakes (as many as classes, at least 10,000).
  Up to 100 classes the file has the matrix as before, and older records are still read.
- **TensorBoard lost epochs when the clock was set back between a kill and `--resume`.** It reads event files in the
  order of the times in their names, and each file replaces later epochs of those before it. Within one second the
  process id decided. The name of a new event file is now later than all existing ones. `metrics.jsonl` and the
  checkpoints were not affected.
- **`torchrun -m widemargin train … --log tensorboard` ended with "ambiguous option"**: torchrun interprets `--log` as
  an abbreviation of its own options at any position. The option is now `--logger`; `--log` still works without
  torchrun.
- **A run folder could fill the memory or block forever.** `run.json`, `metrics.jsonl`, `record.json`, `sha256.json`,
  `results.jsonl` and the files covered by checksums were opened without checks: as a link to `/dev/zero`, as a pipe,
  or as a sparse file of gigabytes they took more than 6 GB or blocked forever. Weights were read before they were
  compared with the network. A `.lock` that was a link overwrote its target. Every file is now opened without
  blocking, as a regular file only, with its size checked first, by one module (`io/bounded.py`); weights are read if
  they fit their network and the memory, and not from sparse files.
- **A run folder could make a command block or write elsewhere**: a pipe named `last.new` or `last.old` blocked
  forever, `evaluation.json`, `report.html` or `results.jsonl` as a link overwrote their targets, and a
  `checkpoints/last` that was not a folder made `--resume` start from scratch and drop its log. A `sha256.json` that
  listed one file many times was read as many times.
- **Finite weights with non-finite outputs** (all at 3e38) were used: `predict` printed "nan %", `report` ended in a
  traceback. Every command now checks its outputs; non-finite moments are reported on `--resume`.
- **A small table took gigabytes**: a `.csv.gz` of 1.2 MB more than 6 GB, a Parquet file of 218 KB 5.7 GB. Cells are
  counted while reading, equal words are stored once, Parquet is read column by column with the size of every page
  checked first, and a table may take 512 MiB, or 64 times the size of its file, at most 8 GiB.
- **A PNG of 10 KB took 2.8 GB**: 1 × 80,000,000 pixels are within the limit of pixels, but every row needs a pointer
  in every copy. No side may have more than 65,535 pixels, fewer copies are made (0.4 to 0.8 GiB for a picture at the
  limit instead of 0.5 to 1.5, and 1.4 for WebP instead of 1.7), and pictures of more than 16,777,216 pixels are
  decoded one at a time. The decoded images are the same.
- **`input_size: 65536` in a `run.json` ended in a traceback** on an allocation of 8.6 TB. Images have at most 4,096
  pixels along a side, evaluation batches shrink with the size of the images, and a failed allocation in torch is one
  line with code 2.
- **A table from a pipe without a writer blocked forever.** A pipe may be silent for 30 seconds; `compare <(zcat
  table.csv.gz)` works as before.
- **Error lines could be as long as a name in the input** if the system refused the name. Every line, also of notes
  and warnings, is shortened to 1,000 characters in one place.
- **`widemargin reproduce --help` crashed** on a percent sign in a description. Help texts are printed unchanged, and
  the `--help` of every command is tested.
- **Refused Parquet files exited with code 134** in about two of five cases, after the right line: pyarrow's threads
  still run when Python exits, which aborts with torch in the same process (pyarrow 26.0.1, torch 2.13.0). Parquet is
  now read without threads.
- **Workers of a killed `compare` kept running** until their task was done. They now end with the first process: by
  the system on Linux, by a watching thread elsewhere.
- **`export --onnx` left `deviceid` and `onnxruntime.db` in the user's cache**: onnxruntime (1.31.1) enables telemetry
  by default when it is imported, and could have reported the export. Telemetry is now disabled
  (`ORT_DISABLE_TELEMETRY`) before the import, and its cache is a temporary folder.
- **`RowOptimizer` failed with Adagrad**, and with Rprop a row first drawn in a later step moved by a millionth
  instead of the rate. The initial state of a row is now determined by running the optimizer on a small matrix; those
  that do not work row by row (Adafactor, Muon, LBFGS, SparseAdam) are refused in one line.
"""


def main(record: Path = RECORD, page: Path = PAGE) -> None:
    """Read the record, write the page."""
    stored: dict[str, Any] = {}
    if record.exists():
        stored = json.loads(record.read_text(encoding="utf-8"))
    page.write_text(PROMISES + "\n" + render_tables(stored, load_checks()), encoding="utf-8")
    missing = [check.name for check in load_checks() if check.name not in checks_by_name(stored)]
    if missing:
        print(f"not in {record.name}: {', '.join(missing)}", file=sys.stderr)


def checks_by_name(record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the lines of a record by the name of the check."""
    return {line["name"]: line for line in record.get("checks", [])}


def render_tables(record: Mapping[str, Any], checks: Sequence[Check]) -> str:
    """Return the tables of tests by kind, then failures, missing checks and notes."""
    lines = checks_by_name(record)
    parts = ["## Tests", "", _describe_machine(record), ""]
    for kind in KINDS:
        rows = [_render_row(check, lines.get(check.name)) for check in checks if check.kind == kind]
        if rows:
            parts += [
                f"### {TITLES[kind]}",
                "",
                "| test | cases | passed | lost at most | command |",
                "|---|--:|--:|---|---|",
            ]
            parts += [*rows, ""]
    failed = [line for line in lines.values() if line["survived"] < line["tried"]]
    parts += ["### Failures", ""]
    parts += [f"- `{line['name']}`: {_escape_cell(line['note'])}" for line in failed] or [_nothing_failed(lines)]
    notes = [line for line in lines.values() if line["note"] and line not in failed]
    if notes:
        parts += ["", "### Notes", "", *(f"- `{line['name']}`: {_escape_cell(line['note'])}" for line in notes)]
    return "\n".join(parts) + "\n"


def _nothing_failed(lines: Mapping[str, Any]) -> str:
    return "None." if lines else "No tests were run yet."


def _describe_machine(record: Mapping[str, Any]) -> str:
    if not record:
        return "No record yet: `python -m stress --long --json records/stress.json` writes it."
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    how = "--long" if record["long"] else "the short form"
    machine = f"{how}, {record['cores']} cores, {_escape_cell(record['platform'])}; {versions}."
    current = record["versions"].get("widemargin")
    older = sorted({str(line["version"]) for line in record["checks"] if line.get("version", current) != current})
    if not older:
        return machine
    names = ", ".join(f"`{line['name']}`" for line in record["checks"] if line.get("version", current) == current)
    return (
        f"{machine} This version was tested by {names}; the other tests were run with {', '.join(older)}, on the "
        "commits in `records/stress.json`."
    )


def _render_row(check: Check, line: Mapping[str, Any] | None) -> str:
    title = _escape_cell(check.title)
    if line is None:
        long = " --long" if check.long else ""
        return f"| {title} | – | – | not run yet | `python -m stress --only {check.name}{long}` |"
    survived = f"{line['survived']:,}" if line["survived"] == line["tried"] else f"**{line['survived']}**"
    lost = _escape_cell(line["lost"]) if line["tried"] else "not possible on that machine"
    return f"| {title} | {line['tried']:,} | {survived} | {lost} | `{line['command']}` |"


def _escape_cell(text: str) -> str:
    """Escape characters that would end a cell or begin a tag."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    main()
