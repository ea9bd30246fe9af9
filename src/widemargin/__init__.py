"""widemargin: large-margin classification and metric learning on PyTorch.

One definition of each loss, used by every backend of the head, by plots, docs, tests and
benchmarks alike. Names are loaded when first used, so that `import widemargin` and the
command's `--help` do not wait for torch.

    import widemargin as wm
    head = wm.Head(512, 1000, "arcgrad(s=10)")
    loss = head(x, y)        # [N], one per sample
    run = wm.train({"loss": "arcgrad(s=10)"}, train=my_dataset, model=my_module)
"""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from ._version import __version__

# Where each public name lives. Losses are not listed: the registry finds them by file.
_PUBLIC_NAMES = {
    "Anneal": "losses.schedule",
    "Comparison": "tabular.comparison",
    "Cosine": "losses.schedule",
    "Criterion": "losses.criterion",
    "Decay": "losses.schedule",
    "Calibration": "recognition.calibration",
    "Evaluation": "training.evaluation",
    "Gallery": "recognition.gallery",
    "Head": "head.head",
    "InputError": "io.errors",
    "LRRangeTest": "training.lr_finder",
    "Learnable": "losses.schedule",
    "Margin": "losses.margin",
    "Objective": "head.objective",
    "RowOptimizer": "head.row_optimizer",
    "Run": "training.run",
    "SubcenterOutliers": "head.subcenters",
    "Sum": "losses.grammar",
    "PairLoss": "losses.pair_loss",
    "Warmup": "losses.schedule",
    "AngleMeter": "metrics.angles",
    "Angles": "metrics.angles",
    "Callback": "training.callbacks",
    "MLPConfig": "tabular.config",
    "MarginClassifier": "tabular.estimator",
    "MarginModel": "models.attach",
    "TableEncoder": "data.tabular.encoder",
    "TrainConfig": "training.config",
    "angles": "metrics.angles",
    "attach": "models.attach",
    "class_weights_from_counts": "losses.class_counts",
    "compare": "tabular.compare",
    "evaluate": "loading",
    "find_lr": "training.lr_finder",
    "fit": "tabular.fit",
    "load": "loading",
    "load_sharded": "head.sharded_checkpoint",
    "list_losses": "losses.registry",
    "margin_softmax": "head.functional",
    "margins_from_counts": "losses.class_counts",
    "parse": "losses.grammar",
    "parse_list": "losses.grammar",
    "raise_deferred_errors": "numerics.host_reads",
    "report": "training.report",
    "save_sharded": "head.sharded_checkpoint",
    "subcenter_outliers": "head.subcenters",
    "suggest": "advice",
    "suggest_scale": "theory",
    "theoretical_gap": "theory",
    "train": "training.train",
}

_SUBMODULES = {"metrics": "metrics", "schedule": "losses.schedule", "theory": "theory"}  # reached as widemargin.theory

__all__ = ["__version__", *sorted(_PUBLIC_NAMES)]  # noqa: PLE0604  (strings all)

if TYPE_CHECKING:  # `as`: exported to type checkers, as the names of `__all__`, which they cannot compute
    from . import metrics as metrics
    from . import theory as theory
    from .advice import suggest as suggest
    from .data.tabular.encoder import TableEncoder as TableEncoder
    from .head.functional import margin_softmax as margin_softmax
    from .head.head import Head as Head
    from .head.objective import Objective as Objective
    from .head.row_optimizer import RowOptimizer as RowOptimizer
    from .head.sharded_checkpoint import load_sharded as load_sharded
    from .head.sharded_checkpoint import save_sharded as save_sharded
    from .head.subcenters import SubcenterOutliers as SubcenterOutliers
    from .head.subcenters import subcenter_outliers as subcenter_outliers
    from .io.errors import InputError as InputError
    from .loading import evaluate as evaluate
    from .loading import load as load
    from .losses import schedule as schedule
    from .losses.class_counts import (
        class_weights_from_counts as class_weights_from_counts,
    )
    from .losses.class_counts import (
        margins_from_counts as margins_from_counts,
    )
    from .losses.criterion import Criterion as Criterion
    from .losses.grammar import Sum as Sum
    from .losses.grammar import parse as parse
    from .losses.grammar import parse_list as parse_list
    from .losses.margin import Margin as Margin
    from .losses.pair_loss import PairLoss as PairLoss
    from .losses.registry import list_losses as list_losses
    from .losses.schedule import (
        Anneal as Anneal,
    )
    from .losses.schedule import (
        Cosine as Cosine,
    )
    from .losses.schedule import (
        Decay as Decay,
    )
    from .losses.schedule import (
        Learnable as Learnable,
    )
    from .losses.schedule import (
        Warmup as Warmup,
    )
    from .metrics.angles import AngleMeter as AngleMeter
    from .metrics.angles import Angles as Angles
    from .metrics.angles import angles as angles
    from .models.attach import MarginModel as MarginModel
    from .models.attach import attach as attach
    from .numerics.host_reads import raise_deferred_errors as raise_deferred_errors
    from .recognition.calibration import Calibration as Calibration
    from .recognition.gallery import Gallery as Gallery
    from .tabular.compare import compare as compare
    from .tabular.comparison import Comparison as Comparison
    from .tabular.config import MLPConfig as MLPConfig
    from .tabular.estimator import MarginClassifier as MarginClassifier
    from .tabular.fit import fit as fit
    from .theory import suggest_scale as suggest_scale
    from .theory import theoretical_gap as theoretical_gap
    from .training.callbacks import Callback as Callback
    from .training.config import TrainConfig as TrainConfig
    from .training.evaluation import Evaluation as Evaluation
    from .training.lr_finder import LRRangeTest as LRRangeTest
    from .training.lr_finder import find_lr as find_lr
    from .training.report import report as report
    from .training.run import Run as Run
    from .training.train import train as train


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        value = getattr(importlib.import_module(f".{_PUBLIC_NAMES[name]}", __name__), name)
    elif name in _SUBMODULES:
        value = importlib.import_module(f".{_SUBMODULES[name]}", __name__)
    elif name[:1].isupper():
        from .losses.registry import find_loss_class

        value = find_loss_class(name)
        if value is None:
            near = get_close_matches(name, __dir__(), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise AttributeError(f"module 'widemargin' has no attribute {name!r}{hint}")
    else:
        raise AttributeError(f"module 'widemargin' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    from .losses.registry import list_losses, loss_class

    return sorted({*__all__, *_SUBMODULES, *(loss_class(name).__name__ for name in list_losses())})
