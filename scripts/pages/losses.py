"""A page per loss: formula, curve, parameters, when to use it, reference; and the page that lists them."""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

import widemargin as wm
from widemargin.losses.base import Loss
from widemargin.losses.criterion import Criterion
from widemargin.losses.describe import describe_loss
from widemargin.losses.grammar import parse
from widemargin.losses.margin import Margin
from widemargin.losses.pair_loss import PairLoss
from widemargin.losses.registry import LOSS_GROUPS, loss_class
from widemargin.losses.regularizer import Regularizer
from widemargin.theory import gradient_curve, target_curve
from widemargin.tour.xy_chart import AxesSpec, Curve, draw_xy_chart
from widemargin.viz.colours import loss_colour
from widemargin.viz.curves import criterion_curve, pair_loss_curve, regularizer_curve
from widemargin.viz.loss_listing import numbers_to_choose, option_table, state_and_needs, what_it_is

from .typeset import typeset

DEGREES = tuple(range(0, 181, 3))
SCALE = 10.0
_INTRODUCTION = (
    "By group, as in `widemargin losses` and `wm.list_losses(group=…)`; [Choosing](choosing.md) says which to "
    "use when. Numbers are the options with their defaults; state is what changes during training."
)
_HEADINGS = ("Formula", "Domain", "When", "Reference")
_LINKS = {
    r"arXiv (\d{4}\.\d{5})": r"[arXiv \1](https://arxiv.org/abs/\1)",
    r"doi (10\.\S+?)(?=[),;]|\.?$)": r"[doi \1](https://doi.org/\1)",
}


def write_loss_pages(out: Path) -> None:
    """Write all pages to `losses/` and `losses.md`."""
    (out / "losses").mkdir(exist_ok=True)
    groups: dict[str, list[str]] = defaultdict(list)
    for kind in map(loss_class, wm.list_losses()):
        (out / "losses" / f"{kind.name}.md").write_text(render_loss_page(kind), encoding="utf-8")
        facts = describe_loss(kind)
        numbers = numbers_to_choose(facts)
        last = "<br>".join([*([f"`{numbers}`"] if numbers else []), *facts["state"], *facts["needs"]])
        groups[kind.group].append(
            f"| [`{kind.name}`](losses/{kind.name}.md) | {what_it_is(facts)} | {_docstring_parts(kind)['When']} | "
            f"{last or '–'} |"
        )
    lines = ["# The losses", "", _INTRODUCTION, ""]
    for group, title in LOSS_GROUPS.items():
        lines += [f"## {group.capitalize()}", "", title[0].upper() + title[1:] + ".", ""]
        lines += ['<div class="losses" markdown>', ""]
        lines += ["| loss | description | when | numbers, state, needs |", "|---|---|---|---|", *groups[group], ""]
        lines += ["</div>", ""]
    lines.append("`widemargin losses NAME` prints the same in the terminal, `widemargin lab` draws them with sliders.")
    (out / "losses.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def render_loss_page(kind: type[Loss]) -> str:
    """Return the page of one loss."""
    facts, parts = describe_loss(kind), _docstring_parts(kind)
    name, _, sentence = facts["sentence"].partition(": ")
    back = "[All losses](../losses.md)"
    also = f", also `{'`, `'.join(facts['aliases'])}`" if facts["aliases"] else ""
    formula = re.sub(r"[;,] (?=z_j = )", "<br>", parts["Formula"].removesuffix("."))
    group = f"[{facts['group']}](../losses.md#{facts['group']})"
    lines = [f"# {name}", "", f"`{facts['name']}`{also} ({group}): {sentence}", ""]
    lines += ["## Formula", "", formula_block(formula), "", f"**Domain.** {typeset(parts['Domain'])}", ""]
    lines += state_and_needs(facts)
    lines += ["## When to use it", "", typeset(parts["When"][0].upper() + parts["When"][1:]), ""]
    if facts["options"]:
        lines += ["## Parameters", "", *option_table(facts), ""]
    lines += ["## Its curve", "", *draw_loss(kind), ""]
    if facts["example"]:
        lines += ["## Example", "", "```pycon", facts["example"], "```", ""]
    reference = parts["Reference"]
    for pattern, link in _LINKS.items():
        reference = re.sub(pattern, link, reference)
    return "\n".join([*lines, "## Reference", "", reference, "", back, ""])


def formula_block(text: str) -> str:
    """Return a formula as a separate block."""
    return "\n".join(['<div class="formula" markdown>', "", typeset(text).replace("&lt;br&gt;", "<br>"), "", "</div>"])


def _docstring_parts(kind: type[Loss]) -> dict[str, str]:
    """Return the paragraphs of a loss's docstring by their first word."""
    parts = re.split(rf"^({'|'.join(_HEADINGS)}): ", describe_loss(kind)["body"], flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def draw_loss(kind: type[Loss]) -> list[str]:
    """Draw the loss over an angle, an error or a logit, with a caption."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        value = parse(kind.name)
        theta = torch.tensor(DEGREES, dtype=torch.float64).deg2rad()
        ink = loss_colour(kind.name)
        if isinstance(value, Margin):
            return _draw_margin(value, ink, theta)
        if isinstance(value, PairLoss):
            curves = [Curve(kind.name, _curve_points(DEGREES, pair_loss_curve(value, theta)), ink)]
            picture = _draw_curves(curves, (0, 180), "angle to a sample of another class", "loss", "°", repr(value))
            words = f"`{value!r}`: loss of an anchor with a sample of its own class 20° away."
            return [_side_by_side(picture), "", words]
        if isinstance(value, Regularizer):
            drawn = [Curve(kind.name, _curve_points(DEGREES, regularizer_curve(value, theta)), ink)]
            picture = _draw_curves(
                drawn, (0, 180), "angle to the weight of the other class", "penalty", "°", repr(value)
            )
            return [_side_by_side(picture), "", f"`{value!r}`: penalty of one of two classes."]
        assert isinstance(value, Criterion)
        grid = torch.linspace(-4, 4, 81, dtype=torch.float64)
        across = "error ŷ − y" if value.target_type == "values" else "logit of the true label"
        curves = [Curve(kind.name, _curve_points(grid.tolist(), criterion_curve(value, grid)), ink)]
        picture = _draw_curves(curves, (-4, 4), across, "loss", "", repr(value))
        return [_side_by_side(picture), "", f"`{value!r}`: loss of one sample."]


def _draw_margin(margin: Margin, ink: str, theta: torch.Tensor) -> list[str]:
    has_scale = "s" in margin.options() and "s" not in margin.adaptive_fields and not margin.uses_any_norm
    spec = f"{margin.name}(s={SCALE:g})" if has_scale else margin.name
    length = SCALE if margin.uses_any_norm else 1.0
    own, plain = target_curve(spec, theta, x_norm=length)
    pull = gradient_curve(spec, theta, num_classes=10, x_norm=length).abs()
    logits = [
        Curve("target", _curve_points(DEGREES, own), ink),
        Curve("other class", _curve_points(DEGREES, plain), "#888888", True),
    ]
    slope = [Curve("|∂ loss / ∂θ|", _curve_points(DEGREES, pull), ink)]
    across = "angle of the target"
    drawn = [
        _draw_curves(logits, (0, 180), across, "logit", "°", f"{spec}: logit over the angle"),
        _draw_curves(slope, (0, 180), across, "gradient", "°", f"{spec}: gradient over the angle"),
    ]
    kept = f", ‖x‖ = {SCALE:g}" if length != 1.0 else ", ‖x‖ = 1" if margin.sample_fields else ""
    words = f"`{spec}`: the target's logit and gradient over its angle, with ten classes, all others at 90°{kept}."
    return [_side_by_side(*drawn), "", words]


def _draw_curves(rows: list[Curve], x: tuple[float, float], across: str, up: str, suffix: str, title: str) -> str:
    values = [y for row in rows for _, y in row.points]
    low, high = min(*values, 0.0), max(*values, 0.1)
    pad = 0.05 * (high - low)
    return draw_xy_chart(rows, AxesSpec(x, (low - pad, high + pad), across, up, suffix), title)


def _side_by_side(*drawn: str) -> str:
    return '<div class="pictures">' + "".join(f"<figure>{one}</figure>" for one in drawn) + "</div>"


def _curve_points(at: Any, values: torch.Tensor) -> list[tuple[float, float]]:
    return [(float(x), float(v)) for x, v in zip(at, values.tolist(), strict=True)]
