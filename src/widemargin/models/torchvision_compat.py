"""Import this before torchvision or timm: it makes torchvision importable with a CPU build of torch.

The registry's torchvision wheel is linked to CUDA; with a CPU torch its import fails because two
operators are missing. On exactly that error the half-imported modules are dropped, the two schemas
are registered, and the import is tried again. A healthy install takes the first branch.
"""

from __future__ import annotations

import importlib
import sys

import torch

_libraries: list[torch.library.Library] = []  # the schemas live as long as this library does


def ensure_torchvision() -> None:
    """Make `import torchvision` work; does nothing where it works already."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for operator in ("nms", "qnms"):
            schema = f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            library.define(schema)  # type: ignore[no-untyped-call]
        _libraries.append(library)
        importlib.import_module("torchvision")


ensure_torchvision()
