"""Class names, columns, files and runs called like markup and escape sequences, through the real commands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

from .. import prey
from ..check import Outcome, Size
from ..siege import Siege, attempt, command

TITLE = "class names and paths that are markup or escape sequences, in pages and terminals"
KIND = "attack"
LONG = False

WORDS = (
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
_ONLY_IN_TABLES = ("</title><script>alert(1)</script>", "--><script src=//evil></script>", "</style><b>")
# What none of our own output has, on a terminal either.
_SEQUENCES = ("\x1b]", "\x1b[31mEVIL", "\x9b", "\x07", "\u202e", "\u2066", "back\rover", "two\nwidemargin")
_TAGS = "html head meta title style body main h1 h2 p div table thead tbody tfoot tr th td figure figcaption details"
_TAGS += " summary pre code section svg g line text circle rect polyline polygon path img b br"


def run(size: Size) -> Outcome:
    """A table and a folder of images with such names, from training to report."""
    missing = prey.cannot()
    if missing is not None:
        return missing
    siege = Siege(size)
    try:
        _table(siege)
        _images(siege)
    except OSError as error:  # a file system that does not take such names
        return siege.outcome(f"not all tried: {error.strerror}")
    _mistakes(siege)
    return siege.outcome()


def _said(siege: Siege, what: str, *words: str, code: int = 0) -> None:
    """A command whose every printed character must be printable."""
    answer = attempt(command, words, siege.folder, siege.environment)
    odd = [one for one in answer.printed if not one.isprintable() and one not in "\n\u200d\u200c"]
    wrong = f"prints {odd[0]!r}" if odd else ""
    if answer.how != "returned" or answer.code != code:
        wrong = f"{answer.how} {answer.code} {answer.said} {answer.printed[-300:]}"
    elif "\nwidemargin: lines" in answer.printed:
        wrong = "prints a line of its own"
    siege.held(f"{what}, in a pipe", wrong)


def _on_terminal(siege: Siege, what: str, *words: str) -> None:
    """The same on a real terminal, where rich colours and a bar moves."""
    if not hasattr(os, "openpty"):
        return
    outer, inner = os.openpty()
    environment = {**os.environ, **siege.environment, "TERM": "xterm-256color", "COLUMNS": "200"}
    path = os.pathsep.join(sys.path)
    process = subprocess.Popen(
        [sys.executable, "-m", "widemargin", *words],
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
        except OSError:  # how Linux says that the other end is closed
            break
        if not part:
            break
        parts.append(part)
    os.close(outer)
    process.wait()
    text = b"".join(parts).decode("utf-8", "replace")
    found = [one for one in _SEQUENCES if one in text]
    siege.held(f"{what}, on a terminal", f"prints {found[0]!r}" if found else "" if text else "prints nothing")


class _Page(HTMLParser):
    """Everything in a page that could do something."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _TAGS.split():
            self.wrong.append(f"<{tag}>")
        for name, value in attrs:
            address = name in ("href", "src", "action", "data") and not str(value).startswith(("data:image/png", "#"))
            if name.startswith("on") or address:
                self.wrong.append(f"{name}={value}")

    def handle_data(self, data: str) -> None:
        self.wrong += [repr(one) for one in data if not one.isprintable() and one not in "\n\u200d\u200c"]


def _page(siege: Siege, path: Path) -> None:
    page = _Page()
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    page.feed(text)
    if "script-src 'none'" not in text:
        page.wrong.append("a page that forbids no scripts")
    siege.held(f"the page {path.name}", page.wrong[0] if page.wrong else "")


def _markdown(siege: Siege, path: Path) -> None:
    """No element, link, cell or line of another's making."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    outside = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    found = re.search(r"(?<!\\)<[a-z]|(?<!\\)\]\(|\x1b|\u202e|^widemargin: lines", outside, re.MULTILINE)
    siege.held(f"the Markdown of {path.name}", found[0] if found else "" if text else "is not there")


def _table(siege: Siege) -> None:
    words = (*WORDS, *_ONLY_IN_TABLES)
    quoted = ['"' + word.replace('"', '""') + '"' for word in words]
    rows = [f"{1.5 * k + j:.15f},{j + k / 7:.15f},{name}" for k, name in enumerate(quoted) for j in range(4)]
    # Text that is more control characters than words is refused, rightly: most of this is numbers.
    rows += [f"{1 / (k + 1):.18f},{k / 7:.18f},plain{k % 2}" for k in range(400)]
    header = f"{quoted[0]},{quoted[5]},{quoted[8]}"
    for number, name in enumerate((WORDS[0], WORDS[5] + WORDS[4], WORDS[8] + WORDS[10])):
        path = siege.folder / f"{name}.csv"
        path.write_text("\n".join((header, *rows)) + "\n", encoding="utf-8")
        out = siege.folder / f"compared{number}"
        asked: tuple[str, ...] = (
            "compare",
            str(path),
            "--losses",
            "softmax, arcgrad(s=5)",
            "--runs",
            "1",
            "--folds",
            "3",
        )
        asked += ("--min-steps", "5", "--epochs", "1", "--jobs", "1", "--out", str(out))
        _said(siege, f"compare {name!r}", *asked)
        _page(siege, out / "report.html")
    _on_terminal(siege, "compare", *asked, "--overwrite")


def _images(siege: Siege) -> None:
    images = prey.draw(siege.folder / "images", WORDS, each=4)
    run, hub = siege.folder / f"run {WORDS[5]} {WORDS[0]}", siege.folder / "hub"
    _said(siege, "train", *prey.training(images, run, "--name", WORDS[8] + WORDS[13] + WORDS[12]))
    place = images / "test" / WORDS[6]
    picture = place / f"{WORDS[5]}{WORDS[8]}{WORDS[10]}.png"
    shutil.copy(place / "0.png", picture)
    for words in (
        ("predict", str(run), str(picture), "--top", "20"),
        ("predict", str(run), str(picture), "--reject-below", "1"),
        ("evaluate", str(run)),
        ("evaluate", str(run), "--protocol", "verification", "--sampled-pairs", "200"),
        ("verify", str(run), str(picture), str(place / "1.png"), "--threshold", "0.5"),
        ("embed", str(run), str(place), "--out", str(siege.folder / f"{WORDS[5]}.npz")),
        ("export", str(run), "--hub", str(hub), "--licence", f"mit\n{WORDS[0]}"),
        ("report", str(run)),
        ("report", str(run), "--format", "md"),
        ("report", str(run), "--format", "png"),
    ):
        _said(siege, " ".join(word for word in words if word.isascii() and word.isprintable())[:60], *words)
    _on_terminal(siege, "predict", "predict", str(run), str(picture), "--top", "20")
    _on_terminal(siege, "train", *prey.training(images, siege.folder / f"again {WORDS[6]}")[:-1])
    for name in ("report.html", "evaluation-verification.html"):
        _page(siege, run / name)
    _markdown(siege, run / "report.md")
    _markdown(siege, hub / "README.md")


def _mistakes(siege: Siege) -> None:
    """Mistakes quote what was given: paths, names, options."""
    for word in WORDS if siege.long else WORDS[5:9]:
        for words in (("predict", "nowhere", word), ("compare", f"{word}.csv"), ("train", word), ("losses", word)):
            siege.refused(f"{words[0]} {word!r}", command, *words)
