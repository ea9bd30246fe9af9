"""The page of `python -m benchmarks head`: time and memory by the number of classes, and a calculator for any size."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from widemargin.head import costs
from widemargin.io.text import escape
from widemargin.viz import page
from widemargin.viz.charts import Line, draw_log_lines
from widemargin.viz.colours import loss_colour

from .head_timing import time_over_limit

_TABLE_ONLY_SUFFIXES = ("kept gradient", "compiled")  # variants of the same head, left out of the pictures
_REFERENCE_COLORS = {"limit": "#888888", "linear + cross_entropy": "#555555"}


def heads_page(record: dict[str, Any]) -> str:
    """Return the whole page."""
    rows = record["heads"]
    dims = [row["shape"][1] for row in rows]
    wide = [row for row in rows if row["shape"][1] == max(set(dims), key=dims.count)]  # one line per dimension
    ratios = [{**row, "ratio": {name: time_over_limit(row, name) for name in row["seconds"]}} for row in wide]
    body = [
        page.heading(
            "Time", "Time of a step divided by that of three plain matrix products of the weights; 1 is the limit."
        ),
        page.figure(draw_log_lines(_lines(ratios, "ratio"), "classes", "time / limit", "Time over the limit")),
    ]
    if any("mebibytes" in row for row in wide):
        clipped = [{**row, "mebibytes": {n: max(m, 0.1) for n, m in row["mebibytes"].items()}} for row in wide]
        body += [
            page.heading("Memory", "Memory of a step beyond the gradient of the class weights, in a fresh process."),
            page.figure(draw_log_lines(_lines(clipped, "mebibytes"), "classes", "MiB", "Memory beyond the gradient")),
        ]
    for row in rows:
        body += [page.heading(_title(row)), _table(row)]
    body += [page.heading("Calculator", _PLAN_TEXT), _calculator(rows), _predicted_memory_table(rows)]
    body.append(page.code("python -m benchmarks head --json records/heads.json --page docs/heads.html"))
    return page.html_page("Heads: time and memory for any size", f"torch {record['torch']}, fp32", body, _SCRIPT)


_PLAN_TEXT = (
    "Memory and time per rank of a head with its classes split over ranks; the speed is that of the three "
    "matrix products measured above. Change the numbers."
)


def _lines(rows: list[dict[str, Any]], quantity: str) -> list[Line]:
    names = dict.fromkeys(
        name for row in rows for name in row.get(quantity, {}) if not name.endswith(_TABLE_ONLY_SUFFIXES)
    )
    return [
        Line(
            name,
            [(row["shape"][2], row[quantity][name]) for row in rows if name in row.get(quantity, {})],
            _REFERENCE_COLORS.get(name) or loss_colour(name.replace("Loss", "").lower().replace(",", " ")),
            "eager" in name or "Loss" in name,
        )
        for name in names
    ]


def _title(row: dict[str, Any]) -> str:
    samples, embedding_dim, num_classes = row["shape"]
    return f"{samples} samples, {embedding_dim} dimensions, {num_classes:,} classes"


def _table(row: dict[str, Any]) -> str:
    seconds, memory = row["seconds"], row.get("mebibytes", {})
    cells = [
        [
            (name, ""),
            (f"{1e3 * spent:.2f}", ""),
            (f"{time_over_limit(row, name):.2f}", ""),
            (f"{max(0.0, memory[name]):.1f}" if name in memory else "–", ""),
        ]
        for name, spent in seconds.items()
    ]
    return page.table(("head", "ms", "time / limit", "MiB beyond the gradient"), cells)


def matmul_flops_per_second(rows: list[dict[str, Any]]) -> float:
    """Floating-point operations per second of the limit at the largest shape."""
    row = max(rows, key=lambda row: row["shape"][1] * row["shape"][2])
    samples, embedding_dim, num_classes = row["shape"]
    return costs.MATMUL_FLOPS(num_classes, embedding_dim, samples) / float(row["seconds"]["limit"])


def _predicted_memory_table(rows: list[dict[str, Any]]) -> str:
    """Table of measured memory and the prediction of the cost model."""
    cells = []
    for row in rows:
        samples, embedding_dim, num_classes = row["shape"]
        for name, measured in row.get("mebibytes", {}).items():
            parts = (
                costs.WIDEMARGIN_COSTS[2:]
                if name.endswith(("stream", "auto"))
                else costs.EAGER_COSTS[2:]
                if "eager" in name
                else None
            )
            has_subcenters = name in row.get("weights_per_class", {})  # not covered by the cost model
            if parts is not None and num_classes >= 10_000 and not has_subcenters:
                predicted = costs.total_cost(parts, num_classes, embedding_dim, samples, 1) / 2**20
                title = f"{name}, {num_classes:,} classes"
                cells.append([(title, ""), (f"{predicted:.1f}", ""), (f"{measured:.1f}", "")])
    return page.table(("MiB beyond weights and gradient", "predicted", "measured"), cells) if cells else ""


def _calculator(rows: list[dict[str, Any]]) -> str:
    sets = {"ours": costs.WIDEMARGIN_COSTS, "eager": costs.EAGER_COSTS}
    facts = {
        "parts": {name: [asdict(part) for part in parts] for name, parts in sets.items()},
        "optimizers": {name: [asdict(part) for part in parts] for name, parts in costs.OPTIMIZER_COSTS.items()},
        "work": asdict(costs.MATMUL_FLOPS),
        "speed": matmul_flops_per_second(rows),
    }
    fields = (
        ("C", "classes", 10_000_000),
        ("D", "dimensions", 512),
        ("B", "samples, all ranks", 1024),
        ("R", "ranks", 8),
    )
    inputs = "".join(
        f'<label>{escape(text)} <input id="plan-{key}" type="number" min="1" value="{value}"></label> '
        for key, text, value in fields
    )
    choice = "".join(f"<option>{escape(name)}</option>" for name in costs.OPTIMIZER_COSTS)
    return (
        f'<div class="plan">{inputs}<label>GFLOP/s per rank <input id="plan-S" type="number" min="1" '
        f'value="{facts["speed"] / 1e9:.0f}"></label> '  # type: ignore[operator]
        f'<label>optimizer <select id="plan-O">{choice}</select></label>'
        f'<div id="plan-out" aria-live="polite"></div></div>'
        f"{page.json_script('plan-facts', facts)}"
    )


# Evaluates the terms of widemargin.head.costs.
_SCRIPT = """
(() => {
  const facts = JSON.parse(document.getElementById('plan-facts').textContent);
  const at = key => Math.max(1, Number(document.getElementById('plan-' + key).value) || 1);
  const show = () => {
    const c = at('C') / at('R'), d = at('D'), b = at('B');
    const value = p => p.factor * c ** p.class_exponent * d ** p.dim_exponent * b ** p.sample_exponent;
    const more = facts.optimizers[document.getElementById('plan-O').value];
    const size = x => x >= 2 ** 30 ? (x / 2 ** 30).toFixed(2) + ' GiB' : (x / 2 ** 20).toFixed(1) + ' MiB';
    const out = document.getElementById('plan-out'), table = document.createElement('table');
    const line = (...cells) => { const tr = table.insertRow(); cells.forEach(t => tr.insertCell().textContent = t); };
    for (const [name, parts] of Object.entries(facts.parts)) {
      const all = parts.concat(more);
      line(name + ' head, per rank', size(all.reduce((sum, p) => sum + value(p), 0)));
      all.forEach(p => line('    ' + p.name, size(value(p))));
    }
    line('three matrix products, per step and rank', (value(facts.work) / (at('S') * 1e9)).toPrecision(3) + ' s');
    out.replaceChildren(table);
  };
  document.querySelectorAll('.plan input, .plan select').forEach(e => e.addEventListener('input', show));
  show();
})();
"""
