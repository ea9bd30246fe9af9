"""Make docs/reliability.md: what is promised under faults, bad input and attacks, and the table of what was tried.

    python -m stress --long --json records/stress.json && python scripts/reliability.py

The table comes from the record alone. A check that the record does not hold is listed as not run.
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

People leave training running for days on shared machines and load weights from strangers. What `widemargin` promises
then, and how often that was tried. Every row is printed by the command beside it, on your machine too (from a checkout
of the source): `python -m stress` in minutes, `python -m stress --long` as often as in the table (about an hour). It
leaves with code 1 if anything did not survive.

## What is promised

- **A killed run loses no more than the epoch it was in, and that is done again.** Checkpoints are written beside
  their place, synced and renamed, with SHA-256 sums; a damaged one is named and the one before it is used. After
  `--resume` weights, moments, averages, metrics and `metrics.jsonl` are those of the uninterrupted run, bit for bit
  on the CPU, no line lost or doubled (times of day and speeds aside).
- **SIGTERM and SIGINT lose nothing**: the step ends, everything is kept, and the command leaves with code 75 ("try
  again later"). A second one leaves at once.
- **A disk that is full or read-only, images that vanish**: one line, code 2; the last checkpoint and the log are
  whole, and `--resume` goes on when it is mended. No duration is measured by the clock on the wall, which may jump.
- **A folder of images that changes** moves no image from one part to another: `manifest.csv` in the run folder says
  which file was trained on, chosen by and tested on. New files belong to no part until `--assign-new`; what was added,
  changed or removed is said; a run whose training images have changed goes on only if it is told to.
- **A rank that dies** ends the others with a line that names it; one that is silent does so after `--timeout` seconds
  (1800). `torchrun --max-restarts 3 -m widemargin train … --resume` brings the run back by itself. On several
  machines set `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` for that: torchrun's attempts share a store otherwise, and may
  find each other's old addresses (pytorch issue 135712; not tried by us on several machines).
- **A loss that is no number** stops the run with the step, the part of the objective, the largest logit and angle,
  and what to try. Weights that are no numbers never take a good checkpoint's place.
- **One at a time in a folder.** A second `train`, `compare` or `reproduce` is refused by the first one's process
  number; the lock ends with its process. Interrupted ones go on from what is on disk.
- **Same seed, same machine, same number of threads, one process: the same bits.**

## What is not promised

- **The same bits for other numbers of threads or ranks.** Sums are added in another order; the rows of `same_bits`
  say how far that leads. Two ranks on the CPU also see batch norm over their own half of a batch each (torch syncs it
  on GPUs only).
- **Bits on a GPU**, on another kind of machine, or with another version of torch.
- **Where a file system has no locks** (some network file systems), two at once are not refused.
- **Under torchrun the survivors are ended by torchrun**, mostly before they can say who is missing: there torchrun
  names the rank.
- **A process that is silent before the run has begun** is given up after the time-out too, but cannot be named.

## What did not hold

Wrong in version 0.1.0, mended in 0.1.1; each has a test that fails on the older version.

- **AdaCos on large heads was wrong** (`auto`, `stream`, `sharded`; single precision, from 2²⁰ logits on, where a
  compiler is there): one step used a kernel that was compiled for a scale in double precision with one in single
  precision. Loss and gradients were wrong from the first step on. Kernels are now kept by the dtype and shape of all
  that they are given.
- **A block of one class could spoil a sum** (`stream`, `sampled`, `sharded`, `auto`; single precision): the second
  label of a mixup, and the loss of an adaptive margin, walk from the last block on. Where that held one class, the
  target, the sum began at 0 instead of at the largest logit; with all logits below about −90 (`arcgrad(s=80)`) it
  vanished, and losses were some percent off, gradients sometimes NaN. Such sums now begin anew.
- **Schedules lost steps** where one head was trained from several threads (9 of 800), and a head computed the last bit
  of its angles differently while another thread compiled kernels.
- **Class weights of length 0 got no pull from their own samples** under `softmax` and `m_softmax` (`stream`,
  `sampled`, `sharded`) and under `l_softmax(m=1)`: the gradient of a zero-initialised classifier was 45 to 99 % off.
- **Adaptive margins left their group**: a head split over some of the ranks adapted to the batches of all, and a
  dense head that one rank called alone waited for the others for ever. Heads and pair losses now communicate within
  their `group`, and without one not at all. Under DDP pass `group=torch.distributed.group.WORLD`; a warning says so.
- **One streamed head in several threads**: two threads could be given the same memory for their gradients (9 of 9,600
  gradients were wrong). A kept `weight.grad.untyped_storage()` was written over by the next step.
- **`extend` and `assign_from`**: `extend` of a sharded head gave a wrong loss on one rank and an error on two, unfroze
  a frozen learnable scale and forgot `sample_rate`; `assign_from` left label smoothing, backend, `sample_rate`,
  dimension and mode behind.
- **One kernel that failed to compile turned all off**, and `adaacos` and overflowing sums always failed. Now each is
  kept or given up by itself.
- **Heads on several ranks**: a second derivative ended in an index error (refused now, in one line), embeddings that
  want no gradient on one rank only aborted the others, and FSDP refused learnable scales.

  `tests/laws/test_heads.py` holds every loss, on every backend, with and without compiled kernels, in both
  precisions, through a head's life and with class weights of zero, tiny and huge length, against full logits in
  double precision.
- **`--precision 64-true` did not give the same bits twice.** The next batch is made in a thread of its own, and its
  random numbers were drawn in the default dtype of the process, which Lightning Fabric switches to float64 and back in
  every step. A crop, flip, erased box or mixed pair was therefore another one from run to run. The other precisions
  were not affected. Every draw now names its dtype and device. `tests/numerics/test_random.py` compares batches under
  every default dtype, and `tests/laws/test_runs.py` trains under random options (precision, average, mixing, repeated
  augmentation, batches per class, accumulation, optimizer, unseen classes, held-out part) twice and interrupted.
- **Weights that are NaN were used**: `predict` printed "nan %" and `export` wrote them, both with code 0. `predict`,
  `embed`, `verify`, `evaluate`, `export`, `--resume`, `--init-from`, `widemargin.load` and `Head.load_class_weights`
  now refuse weights, averages and running statistics that are not finite, by file and tensor. A checkpoint whose
  running statistics or averages are not finite is no longer written either.
- **`record.json` grew with the square of the number of classes**: it held the whole confusion matrix, 74 MiB for 3,600
  classes, more than `report` reads. Evaluation held that matrix in memory too. A record now has the images and right
  answers of every class and the most frequent mistakes (as many as classes, at least 10,000). Up to 100 classes the
  file has the matrix as before, and older records are still read.
- **TensorBoard lost epochs when the clock was set back between a kill and `--resume`.** It reads event files in the
  order of the times in their names, and each file takes back later epochs of those before it. Within one second the
  number of the process decided. The name of a new event file is now later than all that are there. `metrics.jsonl`
  and the checkpoints were not affected.
- **`torchrun -m widemargin train … --log tensorboard` ended with "ambiguous option"**: torchrun takes `--log` for an
  abbreviation of its own options, wherever it stands. The option is `--logger` now; `--log` is still understood
  without torchrun.
- **A run folder could fill the memory, or never be read to its end.** `run.json`, `metrics.jsonl`, `record.json`,
  `sha256.json`, `results.jsonl` and the files that sums are made of were opened by their names alone: as a link to
  `/dev/zero`, as a pipe, or as a file of gigabytes of holes they took more than 6 GB or for ever. Weights were read
  before anybody had compared them with the network. A `.lock` that was a link was written over where it led to. Every
  file is now opened without waiting, as a regular file only, with its size looked at first, by one module
  (`io/bounded.py`); weights are read when they fit their network and the memory, and not from holes.
- **A run folder could make a command wait or write elsewhere**: a pipe in the place of `last.new` or `last.old` was
  waited at for ever, `evaluation.json`, `report.html` or `results.jsonl` as a link were written to where they led, and
  a `checkpoints/last` that was no folder let `--resume` begin anew and drop its log. A `sha256.json` that named one
  file many times was read as many times.
- **Finite weights whose answers are not finite** (all at 3e38) were used: `predict` printed "nan %", `report` ended in
  a traceback. Every command that hands answers on now looks at them; moments that are not finite are named on
  `--resume`.
- **A small table took gigabytes**: a `.csv.gz` of 1.2 MB more than 6 GB, a Parquet file of 218 KB 5.7 GB. Cells are
  counted as they come in, equal words are kept once, Parquet is read column by column with the size of every page
  known before, and a table may take 512 MiB, or 64 times the size of its file, at most 8 GiB.
- **A PNG of 10 KB took 2.8 GB**: 1 × 80,000,000 pixels are within the bound of pixels, but every row costs a pointer in
  every copy. No side may have more than 65,535 pixels, fewer copies are made (0.4 to 0.8 GiB for a picture at the bound
  of pixels where it was 0.5 to 1.5, and 1.4 for WebP where it was 1.7), and pictures of more than 16,777,216 pixels are
  decoded one at a time. What is decoded is the same.
- **`input_size: 65536` in a `run.json` ended in a traceback** on an allocation of 8.6 TB. Images have at most 4,096
  pixels along a side, batches that are evaluated shrink with the size of the images, and memory that torch does not get
  is one line with code 2.
- **A table that came through a pipe to which nobody wrote was waited for for ever.** A pipe may be silent for 30
  seconds; `compare <(zcat table.csv.gz)` works as before.
- **Error lines could be as long as a name in the input**, where the system refused the name. Every line is cut to 1,000
  characters in one place, notes and warnings too.
- **`widemargin reproduce --help` crashed** on a percent sign in a description. Help is printed as it stands, and the
  `--help` of every command is tested.
- **Refused Parquet files left with code 134** in about two of five cases, after the right line: pyarrow's threads are
  still at work when Python exits, and with torch in the same process that ends in an abort (pyarrow 26.0.1, torch
  2.13.0). Parquet is now read without such threads.
- **Workers of a killed `compare` lived on** until their piece of work was done. They now end with the first process: on
  Linux the system does it, elsewhere a thread that watches.
- **`export --onnx` left `deviceid` and `onnxruntime.db` in the user's cache**: onnxruntime (1.31.1) has telemetry that
  is on by default, from its import on, and could have reported the export to its maker. It is told not to
  (`ORT_DISABLE_TELEMETRY`) before it is imported, and its cache is a folder that goes away.
- **`RowOptimizer` failed with Adagrad**, and under Rprop a row that was drawn for the first time in a later step moved
  by a millionth instead of the rate. What a row begins with is now found out by trying the optimizer; those that do not
  work row by row (Adafactor, Muon, LBFGS, SparseAdam) are refused in one line.
"""


def main(record: Path = RECORD, page: Path = PAGE) -> None:
    """Read the record, write the page."""
    found: dict[str, Any] = {}
    if record.exists():
        found = json.loads(record.read_text(encoding="utf-8"))
    page.write_text(PROMISES + "\n" + render_tables(found, load_checks()), encoding="utf-8")
    missing = [check.name for check in load_checks() if check.name not in checks_by_name(found)]
    if missing:
        print(f"not in {record.name}: {', '.join(missing)}", file=sys.stderr)


def checks_by_name(record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Lines of a record by the check's name."""
    return {line["name"]: line for line in record.get("checks", [])}


def render_tables(record: Mapping[str, Any], checks: Sequence[Check]) -> str:
    """What was tried, kind by kind; then what did not hold, was not run, or wants a word."""
    lines = checks_by_name(record)
    parts = ["## What was tried", "", _describe_machine(record), ""]
    for kind in KINDS:
        rows = [_render_row(check, lines.get(check.name)) for check in checks if check.kind == kind]
        if rows:
            parts += [
                f"### {TITLES[kind]}",
                "",
                "| what | tried | survived | lost | command |",
                "|---|--:|--:|---|---|",
            ]
            parts += [*rows, ""]
    failed = [line for line in lines.values() if line["survived"] < line["tried"]]
    parts += ["### What did not hold", ""]
    parts += [f"- `{line['name']}`: {_escape_cell(line['note'])}" for line in failed] or [_nothing_failed(lines)]
    notes = [line for line in lines.values() if line["note"] and line not in failed]
    if notes:
        parts += ["", "### In detail", "", *(f"- `{line['name']}`: {_escape_cell(line['note'])}" for line in notes)]
    return "\n".join(parts) + "\n"


def _nothing_failed(lines: Mapping[str, Any]) -> str:
    return "Nothing of what was tried." if lines else "Nothing was tried yet."


def _describe_machine(record: Mapping[str, Any]) -> str:
    if not record:
        return "No record yet: `python -m stress --long --json records/stress.json` makes it."
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    how = "--long" if record["long"] else "the short form"
    return f"{how}, {record['cores']} cores, {_escape_cell(record['platform'])}; {versions}."


def _render_row(check: Check, line: Mapping[str, Any] | None) -> str:
    title = _escape_cell(check.title)
    if line is None:
        long = " --long" if check.long else ""
        return f"| {title} | – | – | not run yet | `python -m stress --only {check.name}{long}` |"
    survived = f"{line['survived']:,}" if line["survived"] == line["tried"] else f"**{line['survived']}**"
    lost = _escape_cell(line["lost"]) if line["tried"] else "not tried on that machine"
    return f"| {title} | {line['tried']:,} | {survived} | {lost} | `{line['command']}` |"


def _escape_cell(text: str) -> str:
    """Text that cannot end a cell or begin a tag."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    main()
