"""Progress without a terminal: few lines, none of short or quiet work, and never a reason to fail."""

import os
import re
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from widemargin.io.progress import ProgressLines, format_duration

WORK = """
import sys, time
from widemargin.io.progress import progress_bar
hidden = sys.argv[1:] == ["hidden"]
with progress_bar("cross-validation", 40, 10, hidden=hidden, first_seconds=0.1, interval_seconds=0.2) as on_progress:
    for _ in range(60):
        on_progress(0.5)
        time.sleep(0.02)
print("done")
"""
LINE = re.compile(r"cross-validation: (\d+) of 40, (\d+) %, about \d+ s left")


def run_work(*words, stderr=subprocess.PIPE, code=WORK):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        environment.pop(name, None)
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=60, check=False, env=environment
    )


def test_lines_where_there_is_no_terminal():
    done = run_work()
    assert (done.returncode, done.stdout) == (0, "done\n")
    lines = [LINE.fullmatch(line) for line in done.stderr.splitlines()]
    assert all(lines), done.stderr
    assert 2 <= len(lines) <= 8  # 1.2 s at the least, one every 0.2 s
    counts = [int(line[1]) for line in lines]
    assert counts == sorted(set(counts))
    assert 10 < counts[0] < counts[-1] < 40
    for line in lines:
        assert 100 * int(line[1]) / 40 - 1 <= int(line[2]) <= 100 * (int(line[1]) + 1) / 40 + 1


def test_nothing_of_hidden_or_short_work():
    assert run_work("hidden").stderr == ""
    usual = WORK.replace(", first_seconds=0.1, interval_seconds=0.2", "")
    assert usual != WORK
    done = run_work(code=usual)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_reader_that_leaves_does_not_end_the_work():
    reading, writing = os.pipe()
    os.close(reading)
    done = run_work(stderr=writing)
    os.close(writing)
    assert (done.returncode, done.stdout) == (0, "done\n")


def lines_of(steps, total, completed=0.0, **options):
    """Lines with their times, for steps of (seconds, fraction); the first after 10 seconds unless said."""
    options.setdefault("first_seconds", 10.0)
    now, printed = [0.0], []
    on_progress = ProgressLines(
        "work", total, completed, clock=lambda: now[0], write=lambda line: printed.append((now[0], line)), **options
    )
    for seconds, fraction in steps:
        now[0] += seconds
        on_progress(fraction)
    return printed


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 3)), max_size=60), st.floats(0, 20), st.floats(0, 60))
def test_lines_are_rare_at_any_pace(steps, first, interval):
    printed = lines_of(steps, 50, first_seconds=first, interval_seconds=interval)
    times = [time for time, _ in printed]
    assert all(time >= first for time in times)
    assert all(later - earlier >= interval - 1e-6 for earlier, later in pairwise(times))
    assert lines_of(steps, 50, hidden=True) == []


def test_the_time_that_is_left_is_that_of_the_work_done_here():
    assert lines_of([(6, 1.0), (6, 1.0)], 30, completed=10) == [(12, "work: 12 of 30, 40 %, about 2 min left")]
    assert lines_of([(12, 0.25)], 1.0) == [(12, "work: 25 %, about 36 s left")]  # one piece of work is not counted
    assert lines_of([(12, 0.0)], 3) == [(12, "work: 0 of 3, 0 %")]
    assert lines_of([(12, 3.0)], 3) == []  # nothing is left to wait for


def test_messages_are_shown_and_another_line_is_waited_for(capsys):
    now = [0.0]
    on_progress = ProgressLines("a\x1b[31mb", 4, first_seconds=10.0, clock=lambda: now[0])
    for now[0], message in ((12, "loss 1.5"), (43, None)):
        on_progress(1.0, message)
    assert capsys.readouterr().err.splitlines() == [
        "a\\x1b[31mb: 1 of 4, 25 %, about 36 s left, loss 1.5",
        "a\\x1b[31mb: 2 of 4, 50 %, about 43 s left, loss 1.5",
    ]
    now[0] = 70
    on_progress.postpone()
    for now[0] in (80, 99):
        on_progress(0.1)
    assert capsys.readouterr().err == ""
    now[0] = 100
    on_progress(0.1)
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(("seconds", "text"), [(59.4, "59 s"), (59.5, "1 min"), (3570, "1 h"), (7200, "2 h")])
def test_rounding_of_durations(seconds, text):
    assert format_duration(seconds) == text
