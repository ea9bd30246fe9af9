"""Learning-rate range test: the rate grows exponentially from step to step, and the loss tells when it is too large.

Smith's test (arXiv 1506.01186) on a fresh model of the run, over the run's own batches, with its own optimizer; the
model is thrown away, nothing is kept of it. The test ends early when the smoothed loss exceeds four times its best,
or is no longer a number. `draw_lr_chart` draws loss over rate as a picture that stands alone.

The suggestion is a tenth of the rate at which the smoothed loss is lowest. More exactly, of the first rate that comes
within 2 % of the whole fall: on the sphere, and behind batch norm, lengths do not matter, so the loss may stay low
however large the rate is, and where on such a floor the lowest point lies is chance. The other usual rule, the rate of
the steepest descent, is far too cautious here (figures in docs/log.md).

A loss that never rises again shows no rate that is too large (`is_bounded` is False): the suggestion is then no more
than the upper end of what is worth trying.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from itertools import count
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from torch import nn

from ..data.images.batches import Batch
from ..io.errors import InputError
from ..io.locks import write_text_atomic
from ..io.progress import progress_bar
from ..numerics import distributed
from ..numerics.precision import widest_float_dtype
from ..viz.colours import loss_colour
from ..viz.svg import CHART_WIDTH, INK, Chart, chart_style, truncate_label
from .config import TrainConfig
from .dataset_inputs import GivenObjects, as_config
from .datasets import CollateFn, ignore_progress
from .divergence import DivergedError
from .optim import set_lr
from .trainer import Trainer

MIN_LR, MAX_LR, NUM_STEPS = 1e-7, 10.0, 100
_SMOOTHING = 0.9  # weight of what came before in the smoothed loss
_DIVERGENCE_FACTOR = 4.0  # times the best smoothed loss
_BASELINE_STEPS = 10  # steps used only to measure the initial loss
_FLOOR_FRACTION = 0.02  # fraction of the decrease that counts as no change


@dataclass(frozen=True, repr=False)
class LRRangeTest:
    """The rates that were tried, the loss of each step, the same smoothed, and what follows from them."""

    lrs: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed_losses: tuple[float, ...]
    lowest_loss_lr: float | None
    """The rate at which the loss is lowest; None if it never fell."""
    suggestion: float | None
    is_bounded: bool
    """Whether the loss rose again, so that some rate was seen to be too large."""
    stop_reason: str
    config: TrainConfig
    """The run that was tried."""

    @property
    def suggested_config(self) -> TrainConfig:
        """The same run with the rate that is suggested."""
        if self.suggestion is None:
            raise InputError(
                f"the loss did not fall at any learning rate from {self.lrs[0]:g} on: check the data and the loss"
            )
        return replace(self.config, lr=self.suggestion)

    @property
    def title(self) -> str:
        """What was tried, and how it ended."""
        config = self.config
        images = config.batch_size * config.accumulate
        return (
            f"{config.model}, {config.loss}, {config.opt}: {len(self.lrs)} steps of {images} images, "
            f"ended {self.stop_reason}"
        )

    def table(self, max_rows: int = 12) -> list[tuple[float, float, str]]:
        """Some of the rates with their smoothed losses and a note; the lowest is among them."""
        last = len(self.lrs) - 1
        shown = {round(k * last / (max_rows - 1)) for k in range(max_rows)}
        if self.lowest_loss_lr is not None:
            shown.add(self.lrs.index(self.lowest_loss_lr))
        note = {self.lowest_loss_lr: "lowest, or as good as"}
        return [(self.lrs[k], self.smoothed_losses[k], note.get(self.lrs[k], "")) for k in sorted(shown)]

    def to_svg(self, path: str | Path | None = None) -> str:
        """Loss over rate as SVG text, also written to `path`."""
        text = draw_lr_chart(self).to_svg(standalone=True) + "\n"
        if path is not None:
            write_text_atomic(Path(path), text)
        return text

    def to_json(self, path: str | Path | None = None) -> str:
        """All numbers and the run as JSON, also written to `path`."""
        facts = {spec.name: getattr(self, spec.name) for spec in fields(self) if spec.name != "config"}
        text = json.dumps({**facts, "run": asdict(self.config)}, indent=1, ensure_ascii=False)
        if path is not None:
            write_text_atomic(Path(path), text)
        return text

    def write(self, folder: str | Path) -> list[Path]:
        """Write `lr_finder.json` and `lr_finder.svg` to a folder, and return their paths."""
        paths = [Path(folder, "lr_finder.json"), Path(folder, "lr_finder.svg")]
        paths[0].parent.mkdir(parents=True, exist_ok=True)
        self.to_json(paths[0])
        self.to_svg(paths[1])
        return paths

    def __repr__(self) -> str:
        found = "no suggestion" if self.suggestion is None else f"suggestion {self.suggestion:g}"
        return f"LRRangeTest({found}; {self.title})"

    def _repr_html_(self) -> str:
        """The chart, for notebooks."""
        return self.to_svg()


@torch.random.fork_rng(devices=[])  # as in `train`
def find_lr(
    config: TrainConfig | Mapping[str, Any] | None = None,
    *,
    train: Any = None,
    model: str | nn.Module | None = None,
    at: str | None = "auto",
    sampler: Any = None,
    class_names: Sequence[str] | None = None,
    workers: int = 0,
    collate_fn: CollateFn | None = None,
    low: float = MIN_LR,
    high: float = MAX_LR,
    steps: int = NUM_STEPS,
    data_dir: str | Path | None = None,
    devices: Any = "auto",
    quiet: bool = False,
) -> LRRangeTest:
    """Learning-rate range test: try rates from `low` to `high` and suggest one; nothing is written.

    Args:
        config: the run to try, as in `train`.
        train: training items, as in `train`.
        model: a name or a module, as in `train`; a module is copied, and stays as it is.
        at: path of the module's classifier, as in `train`.
        sampler: as in `train`.
        class_names: as in `train`.
        workers: as in `train`.
        collate_fn: as in `train`.
        low: the first rate.
        high: the last rate.
        steps: how many rates.
        data_dir: folder with the data sets, also `WIDEMARGIN_DATA`.
        devices: as in Lightning Fabric.
        quiet: show no bar.

    >>> x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    >>> result = find_lr({"batch_size": 16}, train=(x, (x[:, 0] > 0).long()), model=net, steps=30, quiet=True)
    >>> len(result.losses) > 10, result.to_svg()[:4]
    (True, '<svg')
    """
    if not (0 < low < high < math.inf and steps > _BASELINE_STEPS):
        raise InputError(
            f"low must be above 0, high above low, and steps above {_BASELINE_STEPS}; got {low}, {high} and {steps}"
        )
    config = as_config(config)
    if isinstance(model, str):
        config, model = replace(config, model=model), None
    given = GivenObjects(
        train=train,
        model=copy.deepcopy(model),
        at=at,
        sampler=sampler,
        class_names=class_names,
        workers=workers,
        collate_fn=collate_fn,
        quiet=quiet,
    )
    config = given.update_config(config)
    trainer = Trainer(replace(config, ema=0.0), data_dir, devices, given=given)
    trainer.model.train()
    lrs, losses, stop_reason = [], [], f"at the highest rate, {high:g}"
    show_progress = trainer.rank == 0 and not quiet
    with (
        closing(_iter_batches(trainer)) as batches,
        progress_bar("rates", steps) if show_progress else nullcontext(ignore_progress) as on_progress,
    ):
        for step in range(steps):
            lr = low * (high / low) ** (step / (steps - 1))
            set_lr(trainer.optimizer, lr)
            loss = _run_step(trainer, batches)
            if not math.isfinite(loss):
                stop_reason = f"at a rate of {lr:.2g}, where the loss is not a number"
                break
            lrs.append(lr)
            losses.append(loss)
            smooth = smooth_losses(losses)
            if smooth[-1] > _DIVERGENCE_FACTOR * min(smooth):
                stop_reason = (
                    f"at a rate of {lr:.2g}, where the loss is more than {_DIVERGENCE_FACTOR:g} times its best"
                )
                break
            on_progress(1.0)
    lowest = find_lowest_loss_lr(lrs, losses)
    suggestion = None if lowest is None else float(f"{lowest / 10.0:.2g}")
    is_bounded = len(lrs) < steps or has_loss_risen(losses)
    return LRRangeTest(
        tuple(lrs), tuple(losses), tuple(smooth_losses(losses)), lowest, suggestion, is_bounded, stop_reason, config
    )


def smooth_losses(losses: Sequence[float]) -> list[float]:
    """Exponential average, each step by its own weight: no pull towards 0 at the beginning.

    >>> smooth_losses([2.0, 2.0, 1.0])
    [2.0, 2.0, 1.6309963099630997]
    """
    found, total, weight = [], 0.0, 0.0
    for loss in losses:
        total, weight = _SMOOTHING * total + (1.0 - _SMOOTHING) * loss, _SMOOTHING * weight + (1.0 - _SMOOTHING)
        found.append(total / weight)
    return found


def find_lowest_loss_lr(lrs: Sequence[float], losses: Sequence[float]) -> float | None:
    """The first rate whose smoothed loss is near its minimum; None if it fell by no more than noise."""
    if len(losses) <= _BASELINE_STEPS:
        return None
    begin, smooth = losses[:_BASELINE_STEPS], smooth_losses(losses)
    best, fall = min(smooth), fmean(begin) - min(smooth)
    if fall <= stdev(begin):
        return None
    later = list(zip(lrs, smooth, strict=True))[_BASELINE_STEPS:]
    return next((rate for rate, loss in later if loss <= best + _FLOOR_FRACTION * fall), None)


def has_loss_risen(losses: Sequence[float]) -> bool:
    """Whether the smoothed loss has risen above its minimum at the end."""
    smooth = smooth_losses(losses)
    return smooth[-1] > min(smooth) + _FLOOR_FRACTION * (fmean(losses[:_BASELINE_STEPS]) - min(smooth))


def _run_step(trainer: Trainer, batches: Iterator[Batch]) -> float:
    """The mean loss before a step, over all processes; then the step."""
    config, device = trainer.config, trainer.fabric.device
    sums = torch.zeros(2, dtype=widest_float_dtype(device), device=device)
    for number in range(config.accumulate):
        images, y, mix = trainer.fabric.to_device(next(batches))
        try:
            losses, _ = trainer.backward(images, y, mix, sync_gradients=number + 1 == config.accumulate)
        except DivergedError:
            return math.nan
        sums += torch.stack((losses.detach().to(sums).sum(), torch.full_like(sums[0], len(y))))
    trainer.update()
    total, seen = distributed.all_reduce_sum(sums).tolist()
    return float(total / seen)


def _iter_batches(trainer: Trainer) -> Generator[Batch, None, None]:
    """The run's batches, epoch after epoch."""
    for epoch in count():
        yield from trainer.inputs.batches.iter_epoch(epoch)


@chart_style()
def draw_lr_chart(result: LRRangeTest) -> Chart:
    """Losses as dots, smoothed losses as a line over the rates, and the suggested rate.

    The axis ends a little above where the loss began: how far it diverges has no further information.
    """
    config, lrs, smoothed = result.config, result.lrs, result.smoothed_losses
    colour = loss_colour(config.loss)
    chart = Chart(CHART_WIDTH, 420, f"{config.model}, {config.loss}, {config.opt}: loss over learning rate")
    axes = chart.add_axes(70, 50, 830, 360)
    low, high = min(smoothed), 1.15 * max(smoothed[: len(smoothed) // 3 + 1])
    low -= 0.08 * (high - low)
    axes.set(xscale="log", xlim=(lrs[0], lrs[-1]), ylim=(low, high), xlabel="learning rate")
    axes.set_title(truncate_label(chart.title, 100), color=INK, size=13, pad=14)
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda lr, _: f"{lr:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.plot(lrs, np.clip(result.losses, low, high), "o", color=colour, ms=4, alpha=0.35)
    axes.plot(lrs, np.clip(smoothed, low, high), color=colour, lw=2.4)
    if result.suggestion is not None:
        at = max(result.suggestion, lrs[0])
        axes.axvline(at, color=INK, lw=1, ls=(0, (6, 4)))
        is_right = at > math.sqrt(lrs[0] * lrs[-1])
        axes.annotate(
            f"suggested: {result.suggestion:g}",
            (at, 1),
            (-8 if is_right else 8, -14),
            axes.get_xaxis_transform(),
            "offset points",
            ha="right" if is_right else "left",
        )
    return chart
