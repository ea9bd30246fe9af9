"""Make the generated pages of the docs: one per loss, ours beside the paper's, how to add a loss, the API.

    python scripts/docs.py && zensical build --clean

Everything comes from the package and from records/; nothing generated is kept in the repository (docs/.gitignore).
"""

from __future__ import annotations

import inspect
import json
import math
import statistics
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

import widemargin as wm
from widemargin.catalogue import loss_class
from widemargin.listing import markdown
from widemargin.margin import Margin
from widemargin.report.palette import colour
from widemargin.report.xy import Axes, Curve, xy
from widemargin.theory import pull_curve, target_curve

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
DEGREES = tuple(range(0, 181, 3))
STYLE = (
    "<style>svg .grid{stroke:#8884}svg text{fill:currentColor;font-size:14px}"
    "svg text.tick{font-size:12px;opacity:.7}</style>\n"
)


def main() -> None:
    """All pages."""
    losses()
    reproduce()
    add_a_loss()
    api()


def losses() -> None:
    """A page per loss with its curve, and the page that lists them."""
    place = DOCS / "losses"
    place.mkdir(exist_ok=True)
    shelves: dict[str, list[str]] = defaultdict(list)
    for kind in map(loss_class, wm.losses()):
        text = markdown(kind).removeprefix("#")
        if issubclass(kind, Margin):
            text += f"\n## Its curves\n\n{STYLE}{pictures(kind.name)}\n"
        (place / f"{kind.name}.md").write_text(text, encoding="utf-8")
        sentence = (inspect.getdoc(inspect.getmodule(kind)) or "").partition("\n")[0]
        shelves[kind.kind].append(
            f"- [`{kind.name}`](losses/{kind.name}.md): {sentence.partition(': ')[2] or sentence}"
        )
    titles = {"margin": "Margins", "term": "On embeddings", "classical": "Classical"}
    parts = ["# The losses\n"]
    for kind, title in titles.items():
        parts += [f"## {title}\n", "\n".join(shelves[kind]), ""]
    parts.append(
        "`widemargin losses NAME` prints the same in the terminal, `widemargin lab` draws them with sliders.\n"
    )
    (DOCS / "losses.md").write_text("\n".join(parts), encoding="utf-8")


def pictures(name: str) -> str:
    """Target logit and pull over the angle, at a scale of 10 and ten classes."""
    theta = torch.tensor(DEGREES, dtype=torch.float64).deg2rad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        spec = f"{name}(s=10)" if name in ("normface", "arcface", "cosface", "combined", "arcgrad", "adaacos") else name
        own, plain = target_curve(spec, theta)
        pull = pull_curve(spec, theta, x_length=1.0).abs()
    drawn = []
    for title, rows in (
        (
            "logit",
            [Curve("of the target", pairs(own), colour(name)), Curve("of another", pairs(plain), "#888888", True)],
        ),
        ("pull", [Curve("|∂ loss / ∂θ|", pairs(pull), colour(name))]),
    ):
        values = [y for row in rows for _, y in row.points]
        low, high = min(*values, 0.0), max(*values, 0.1)
        pad = 0.05 * (high - low)
        axes = Axes((0, 180), (low - pad, high + pad), "angle of the target", title, "°")
        drawn.append(xy(rows, axes, f"{spec}: {title} over the angle"))
    return f"`{spec}`, ten classes, all others at 90°.\n\n" + "\n\n".join(drawn)


def pairs(values: Any) -> list[tuple[float, float]]:
    return [(float(d), float(v)) for d, v in zip(DEGREES, values.tolist(), strict=True)]


def reproduce() -> None:
    """Every record in a table, ours beside the paper's where it has the same."""
    parts = ["# Reproduce\n", (ROOT / "records" / "README.md").read_text(encoding="utf-8").partition("\n")[2]]
    for path in sorted((ROOT / "records").glob("*.jsonl")):
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for text in path.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            if "test" in line:
                found[str(line["loss"])].append(line)
        if not found:
            continue
        parts += [f"\n## {path.name}\n", "| loss | runs | test | angles |", "|---|---|---|---|"]
        for loss, lines in found.items():
            parts.append(f"| `{loss}` | {len(lines)} | {_means(lines, 'test', '%')} | {_means(lines, 'angles', '°')} |")
    (DOCS / "reproduce.md").write_text("\n".join(parts) + "\n", encoding="utf-8")


def _means(lines: list[dict[str, Any]], key: str, unit: str) -> str:
    names = [name for name, value in (lines[0].get(key) or {}).items() if isinstance(value, int | float)]
    shown = []
    for name in names:
        if name in ("images", "loss", "top5"):
            continue
        values = [line[key][name] for line in lines if line.get(key, {}).get(name) is not None]
        mean = statistics.fmean(values)
        shown.append(f"{name} {math.degrees(mean) if unit == '°' else mean:.2f} {unit}")
    return ", ".join(shown).replace("|", "\\|") or "–"


def add_a_loss() -> None:
    """The part of CONTRIBUTING that says how."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    part = text.partition("## Add a loss")[2].partition("\n## ")[0]
    (DOCS / "add-a-loss.md").write_text(f"# Add a loss{part}\n", encoding="utf-8")


def api() -> None:
    """Every public name with its signature and docstring."""
    parts = ["# API\n"]
    for name in wm.__all__:
        if name.startswith("__"):
            continue
        found = getattr(wm, name)
        try:
            signature = str(inspect.signature(found))
        except (TypeError, ValueError):
            signature = ""
        text = inspect.getdoc(found) or ""
        prose, _, example = text.partition("\n>>> ")
        parts += [f"## `{name}`\n", f"```python\n{name}{signature}\n```\n", prose, ""]
        if example:
            parts += [f"```pycon\n>>> {example}\n```", ""]
    (DOCS / "api.md").write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
