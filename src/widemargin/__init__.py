"""widemargin: large-margin classification and metric learning on PyTorch.

One definition of each loss, used by training, by the streamed and sharded heads, by plots, docs,
tests and benchmarks alike. Names are loaded when first used, so that `import widemargin` and the
command's `--help` do not wait for torch.

    import widemargin as wm
    head = wm.Head(512, 1000, "arcgrad(s=10)")
    loss = head(x, y)        # [N], one per sample
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where each public name lives. Losses are not listed: the catalogue finds them by file.
_HOMES = {
    "Head": "head",
    "InputError": "errors",
    "Margin": "margin",
    "Objective": "objective",
    "AngleMeter": "metrics.angles",
    "Angles": "metrics.angles",
    "MarginModel": "classifier",
    "angles": "metrics.angles",
    "attach": "classifier",
    "losses": "catalogue",
    "margin_softmax": "margin",
    "parse": "catalogue",
    "parse_list": "catalogue",
    "suggest_scale": "theory",
    "theoretical_gap": "theory",
}

__all__ = ["__version__", *sorted(_HOMES)]  # noqa: PLE0604  (strings all)

if TYPE_CHECKING:
    from .catalogue import losses, parse, parse_list
    from .classifier import MarginModel, attach
    from .errors import InputError
    from .head import Head
    from .margin import Margin, margin_softmax
    from .metrics.angles import AngleMeter, Angles, angles
    from .objective import Objective
    from .theory import suggest_scale, theoretical_gap


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    elif name[:1].isupper():
        from .catalogue import class_named

        value = class_named(name)
        if value is None:
            raise AttributeError(f"module 'widemargin' has no attribute {name!r}")
    else:
        raise AttributeError(f"module 'widemargin' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
