"""Class names, columns, files and runs that contain markup and escape sequences, through the real commands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

from .. import fixtures
from ..check import CheckContext, Outcome
from ..sandbox import Sandbox, run_attempt, run_cli

TITLE = "class names and paths that are markup or escape sequences, in pages and terminals"
KIND = "attack"
LONG = False

HOSTILE_NAMES = (
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "&lt;script&gt;alert(1)&lt;script&gt;",
    "[red]rich[bold] [link=file:x]here",
    "\x1b[31mEVIL\x1b[0m",
    "\x1b]0;owned\x07title",
    "\x1b]8;;http:evil\x07link",
    "two\nwidemargin: lines",
    "back\rover",
    "exe\u202egnp.abc\u2066",
    "\x9b31mEVIL",
    "`code` | cell | [x](javascript:alert)",
    "$\\frac{",
    "{0.__class__} %n %s",
)
_TABLE_ONLY_NAMES = ("</title><script>alert(1)</script>", "--><script src=//evil></script>", "</style><b>")
# Sequences that our own output never contains, not even on a terminal.
_FORBIDDEN_SEQUENCES = ("\x1b]", "\x1b[31mEVIL", "\x9b", "\x07", "\u202e", "\u2066", "back\rover", "two\nwidemargin")
_ALLOWED_TAGS = (
    "html head meta title style body main h1 h2 p div table thead tbody tfoot tr th td figure figcaption details"
)
_ALLOWED_TAGS += " summary pre code section svg g line text circle rect polyline polygon path img b br"


def run(context: CheckContext) -> Outcome:
    """Test a table and a folder of images with such names, from training to report."""
    missing = fixtures.fixtures_unavailable_outcome()
    if missing is not None:
        return missing
    sandbox = Sandbox(context)
    try:
        _try_hostile_tables(sandbox)
        _try_hostile_images(sandbox)
    except OSError as error:  # a file system that does not take such names
        return sandbox.outcome(f"not all tried: {error.strerror}")
    _try_hostile_arguments(sandbox)
    return sandbox.outcome()


def _try_in_pipe(sandbox: Sandbox, description: str, *argv: str, expected_code: int = 0) -> None:
    """Run a command; every printed character must be printable."""
    answer = run_attempt(run_cli, argv, sandbox.folder, sandbox.environment)
    odd = [one for one in answer.output if not one.isprintable() and one not in "\n\u200d\u200c"]
    wrong = f"prints {odd[0]!r}" if odd else ""
    if answer.status != "returned" or answer.exit_code != expected_code:
        wrong = f"{answer.status} {answer.exit_code} {answer.message} {answer.output[-300:]}"
    elif "\nwidemargin: lines" in answer.output:
        wrong = "prints a line of its own"
    sandbox.add_result(f"{description}, in a pipe", wrong)


def _try_on_terminal(sandbox: Sandbox, description: str, *argv: str) -> None:
    """The same on a real terminal, with rich's colours and a progress bar."""
    if not hasattr(os, "openpty"):
        return
    outer, inner = os.openpty()
    environment = {**os.environ, **sandbox.environment, "TERM": "xterm-256color", "COLUMNS": "200"}
    path = os.pathsep.join(sys.path)
    process = subprocess.Popen(
        [sys.executable, "-m", "widemargin", *argv],
        stdin=subprocess.DEVNULL,
        stdout=inner,
        stderr=inner,
        env={**environment, "PYTHONPATH": path},
    )
    os.close(inner)
    parts = []
    while True:
        try:
            part = os.read(outer, 1 << 16)
        except OSError:  # Linux's way to signal that the other end is closed
            break
        if not part:
            break
        parts.append(part)
    os.close(outer)
    process.wait()
    text = b"".join(parts).decode("utf-8", "replace")
    forbidden = [one for one in _FORBIDDEN_SEQUENCES if one in text]
    sandbox.add_result(
        f"{description}, on a terminal", f"prints {forbidden[0]!r}" if forbidden else "" if text else "prints nothing"
    )


class _ActiveContentParser(HTMLParser):
    """Collects all active content of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _ALLOWED_TAGS.split():
            self.problems.append(f"<{tag}>")
        for name, value in attrs:
            address = name in ("href", "src", "action", "data") and not str(value).startswith(("data:image/png", "#"))
            if name.startswith("on") or address:
                self.problems.append(f"{name}={value}")

    def handle_data(self, data: str) -> None:
        self.problems += [repr(one) for one in data if not one.isprintable() and one not in "\n\u200d\u200c"]


def _inspect_page(sandbox: Sandbox, path: Path) -> None:
    page = _ActiveContentParser()
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    page.feed(text)
    if "script-src 'none'" not in text:
        page.problems.append("a page that forbids no scripts")
    sandbox.add_result(f"the page {path.name}", page.problems[0] if page.problems else "")


def _inspect_markdown(sandbox: Sandbox, path: Path) -> None:
    """Check that no name creates an element, link, cell or line."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    outside = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    match = re.search(r"(?<!\\)<[a-z]|(?<!\\)\]\(|\x1b|\u202e|^widemargin: lines", outside, re.MULTILINE)
    sandbox.add_result(f"the Markdown of {path.name}", match[0] if match else "" if text else "is not there")


def _try_hostile_tables(sandbox: Sandbox) -> None:
    words = (*HOSTILE_NAMES, *_TABLE_ONLY_NAMES)
    quoted = ['"' + word.replace('"', '""') + '"' for word in words]
    rows = [f"{1.5 * k + j:.15f},{j + k / 7:.15f},{name}" for k, name in enumerate(quoted) for j in range(4)]
    # Text with mostly control characters is refused, as intended: most of this is numbers.
    rows += [f"{1 / (k + 1):.18f},{k / 7:.18f},plain{k % 2}" for k in range(400)]
    header = f"{quoted[0]},{quoted[5]},{quoted[8]}"
    for number, name in enumerate(
        (HOSTILE_NAMES[0], HOSTILE_NAMES[5] + HOSTILE_NAMES[4], HOSTILE_NAMES[8] + HOSTILE_NAMES[10])
    ):
        path = sandbox.folder / f"{name}.csv"
        path.write_text("\n".join((header, *rows)) + "\n", encoding="utf-8")
        out = sandbox.folder / f"compared{number}"
        argv: tuple[str, ...] = (
            "compare",
            str(path),
            "--losses",
            "softmax, arcgrad(s=5)",
            "--cv-repeats",
            "1",
            "--folds",
            "3",
        )
        argv += ("--min-steps", "5", "--epochs", "1", "--jobs", "1", "--out", str(out))
        _try_in_pipe(sandbox, f"compare {name!r}", *argv)
        _inspect_page(sandbox, out / "report.html")
    _try_on_terminal(sandbox, "compare", *argv, "--overwrite")


def _try_hostile_images(sandbox: Sandbox) -> None:
    images = fixtures.generate_class_images(sandbox.folder / "images", HOSTILE_NAMES, images_per_class=4)
    run, hub = sandbox.folder / f"run {HOSTILE_NAMES[5]} {HOSTILE_NAMES[0]}", sandbox.folder / "hub"
    _try_in_pipe(
        sandbox,
        "train",
        *fixtures.fixture_train_argv(images, run, "--name", HOSTILE_NAMES[8] + HOSTILE_NAMES[13] + HOSTILE_NAMES[12]),
    )
    place = images / "test" / HOSTILE_NAMES[6]
    picture = place / f"{HOSTILE_NAMES[5]}{HOSTILE_NAMES[8]}{HOSTILE_NAMES[10]}.png"
    shutil.copy(place / "0.png", picture)
    for words in (
        ("predict", str(run), str(picture), "--top", "20"),
        ("predict", str(run), str(picture), "--reject-below", "1"),
        ("evaluate", str(run)),
        ("evaluate", str(run), "--protocol", "verification", "--sampled-pairs", "200"),
        ("verify", str(run), str(picture), str(place / "1.png"), "--threshold", "0.5"),
        ("embed", str(run), str(place), "--out", str(sandbox.folder / f"{HOSTILE_NAMES[5]}.npz")),
        ("export", str(run), "--hub", str(hub), "--licence", f"mit\n{HOSTILE_NAMES[0]}"),
        ("report", str(run)),
        ("report", str(run), "--format", "md"),
        ("report", str(run), "--format", "png"),
    ):
        _try_in_pipe(sandbox, " ".join(word for word in words if word.isascii() and word.isprintable())[:60], *words)
    _try_on_terminal(sandbox, "predict", "predict", str(run), str(picture), "--top", "20")
    _try_on_terminal(
        sandbox, "train", *fixtures.fixture_train_argv(images, sandbox.folder / f"again {HOSTILE_NAMES[6]}")[:-1]
    )
    for name in ("report.html", "evaluation-verification.html"):
        _inspect_page(sandbox, run / name)
    _inspect_markdown(sandbox, run / "report.md")
    _inspect_markdown(sandbox, hub / "README.md")


def _try_hostile_arguments(sandbox: Sandbox) -> None:
    """Errors quote their input: paths, names, options."""
    for word in HOSTILE_NAMES if sandbox.long else HOSTILE_NAMES[5:9]:
        for words in (("predict", "nowhere", word), ("compare", f"{word}.csv"), ("train", word), ("losses", word)):
            sandbox.expect_refusal(f"{words[0]} {word!r}", run_cli, *words)
