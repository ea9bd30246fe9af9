"""widemargin: large-margin classification and metric learning on PyTorch.

One definition of each loss, used by the dense and the streamed head, by plots, docs, tests and
benchmarks alike. Names are loaded when first used, so that `import widemargin` and the
command's `--help` do not wait for torch.

    import widemargin as wm
    head = wm.Head(512, 1000, "arcgrad(s=10)")
    loss = head(x, y)        # [N], one per sample
"""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

__version__ = "0.1.1"

# Where each public name lives. Losses are not listed: the catalogue finds them by file.
_HOMES = {
    "Anneal": "schedule",
    "Cosine": "schedule",
    "Criterion": "criterion",
    "Decay": "schedule",
    "Head": "head",
    "InputError": "errors",
    "Learnable": "schedule",
    "Margin": "margin",
    "Objective": "objective",
    "RowOptimizer": "row_optimizer",
    "Sum": "catalogue",
    "Term": "term",
    "Warmup": "schedule",
    "AngleMeter": "metrics.angles",
    "Angles": "metrics.angles",
    "MarginClassifier": "estimator",
    "MarginModel": "classifier",
    "angles": "metrics.angles",
    "attach": "classifier",
    "load": "hub_folder",
    "load_sharded": "sharded_checkpoint",
    "losses": "catalogue",
    "margin_softmax": "margin",
    "parse": "catalogue",
    "parse_list": "catalogue",
    "save_sharded": "sharded_checkpoint",
    "suggest_scale": "theory",
    "theoretical_gap": "theory",
}

_ROOMS = ("metrics", "schedule", "theory")  # modules worth reaching as widemargin.theory

__all__ = ["__version__", *sorted(_HOMES)]  # noqa: PLE0604  (strings all)

if TYPE_CHECKING:
    from . import metrics, schedule, theory
    from .catalogue import Sum, losses, parse, parse_list
    from .classifier import MarginModel, attach
    from .criterion import Criterion
    from .errors import InputError
    from .estimator import MarginClassifier
    from .head import Head
    from .margin import Margin, margin_softmax
    from .metrics.angles import AngleMeter, Angles, angles
    from .objective import Objective
    from .schedule import Anneal, Cosine, Decay, Learnable, Warmup
    from .term import Term
    from .theory import suggest_scale, theoretical_gap


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    elif name in _ROOMS:
        value = importlib.import_module(f".{name}", __name__)
    elif name[:1].isupper():
        from .catalogue import find_loss_class

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
    from .catalogue import loss_class, losses

    return sorted({*__all__, *_ROOMS, *(loss_class(name).__name__ for name in losses())})
