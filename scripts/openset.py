"""Write the results of `widemargin reproduce openset --loss-set families | others` into docs/start/open-sets.md.

python scripts/openset.py                              # from records/
python scripts/openset.py --add omniglot DIR DIR       # first copies the records of two --out folders to records/

The two folders are those of `--loss-set families` and `--loss-set others`.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from pages.blocks import replace_block, write_block

__all__ = ["copy_records", "render", "replace_block", "sorted_rows"]
ROOT = Path(__file__).resolve().parents[1]
TITLES = {"omniglot": "Omniglot, 121 unseen characters", "faces": "ORL faces, 20 unseen people"}
METRICS = {"auc": "AUC", "eer": "EER", "recall1": "recall@1", "map_at_r": "MAP@R"}
LOWER_IS_BETTER = ("eer",)
FILES = {
    "families": {
        "records.jsonl": ".jsonl",
        "table.json": "_table.json",
        "compared.json": "_compared.json",
    },
    "others": {"records.jsonl": ".jsonl", "table.json": "_table.json"},
}
"""Files of an --out folder, and the endings of their names in records/."""


def record_path(records: Path, data: str, loss_set: str, ending: str) -> Path:
    """The record of a file of an --out folder."""
    return records / f"openset_{data}_{loss_set}{ending}"


def copy_records(records: Path, data: str, folders: dict[str, Path]) -> None:
    """Copy what is kept of the --out folders."""
    for loss_set, folder in folders.items():
        for name, ending in FILES[loss_set].items():
            shutil.copyfile(folder / name, record_path(records, data, loss_set, ending))


def read_json(path: Path) -> Any:
    """The content of a record."""
    return json.loads(path.read_text(encoding="utf-8"))


def format_cell(row: dict[str, Any], metric: str) -> str:
    """Mean and interval in percent; a dash where there are too few events."""
    found = row.get(metric)
    if found is None:
        return "–"
    ends = found["interval"]
    return f"{found['mean']:.1f}" + ("" if ends is None else f" ({ends[0]:.1f} to {ends[1]:.1f})")


def sorted_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Best AUC first; what diverged has none and is left out."""
    return sorted((row for row in rows if "auc" in row), key=lambda row: -row["auc"]["mean"])


def render_table(rows: list[dict[str, Any]]) -> str:
    """A Markdown table."""
    lines = [f"| loss | {' | '.join(METRICS.values())} |", f"|---|{'---:|' * len(METRICS)}"]
    lines += [
        f"| `{row['method']}` | {' | '.join(format_cell(row, metric) for metric in METRICS)} |"
        for row in sorted_rows(rows)
    ]
    return "\n".join(lines)


def render_differences(compared: list[dict[str, Any]]) -> str:
    """Which losses differ significantly, by metric: for each loss, those it is better than."""
    sentences = []
    for metric, title in METRICS.items():
        rows = [row for row in compared if row["metric"] == metric]
        better: dict[str, list[str]] = {}
        for row in rows:
            if row["is_significant"]:
                ahead = (row["difference"] > 0) != (metric in LOWER_IS_BETTER)
                one, other = (row["method_a"], row["method_b"]) if ahead else (row["method_b"], row["method_a"])
                better.setdefault(one, []).append(f"`{other}`")
        count = sum(map(len, better.values()))
        if not count:
            sentences.append(f"- {title}: no two of the {len(rows)} pairs differ significantly.")
            continue
        parts = [f"`{one}` is better than {', '.join(worse)}" for one, worse in better.items()]
        sentences.append(f"- {title}: {count} of {len(rows)} pairs differ significantly: {'; '.join(parts)}.")
    return "\n".join(sentences)


def render_data_set(records: Path, data: str) -> str | None:
    """The part of one data set; None without its records."""
    families = record_path(records, data, "families", "_table.json")
    if not families.is_file():
        return None
    rows = read_json(families)
    compared = read_json(record_path(records, data, "families", "_compared.json"))
    splits = max(row["splits"] for row in rows)
    parts = [
        f"### {TITLES[data]}",
        f"Twelve losses, one of each family, with the setting that is best on held-out classes; {splits} splits:",
        render_table(rows),
        "Differences that are significant (Holm's correction over all pairs); no other order in the table is:",
        render_differences(compared),
    ]
    others = record_path(records, data, "others", "_table.json")
    if others.is_file():
        parts += [
            "All other losses at one setting, one split, not compared with the table above: the interval is over "
            "identities alone, and another seed of the network moves a figure, too.",
            render_table(read_json(others)),
        ]
    return "\n\n".join(parts)


def render(records: Path) -> str:
    """The whole block."""
    found = [part for data in TITLES if (part := render_data_set(records, data)) is not None]
    if not found:
        raise SystemExit(f"{records}: no openset_*_families_table.json")
    intro = (
        "One small network, the same batches and optimizer for all losses, classes that are not in training. In "
        "percent, with 95 % intervals over identities and splits. The settings were chosen by AUC on half of the "
        "training classes of the first split (`records/openset_*_settings.json`). This is what "
        "`widemargin reproduce openset omniglot --loss-set families` (`--loss-set others`; `faces`) wrote; the "
        "commands are in `records/README.md`."
    )
    return "\n\n".join([intro, *found])


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments:
        if len(arguments) != 4 or arguments[0] != "--add" or arguments[1] not in TITLES:
            raise SystemExit("usage: python scripts/openset.py [--add omniglot|faces FAMILIES_DIR OTHERS_DIR]")
        given = dict(zip(("families", "others"), map(Path, arguments[2:]), strict=True))
        copy_records(ROOT / "records", arguments[1], given)
    write_block(ROOT / "docs" / "start" / "open-sets.md", "openset", render(ROOT / "records"))
