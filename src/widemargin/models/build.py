"""build: a backbone by its name, with its options checked. Names are known without importing torch.

A bare name is ours if we have it, else timm's; `timm:NAME` is always timm's. `resnet18` and `resnet34` are both:
ours are the paper's for small images, and an option that only timm's have (`stem_type`, `output_stride`,
`pretrained`) asks for timm's.
"""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any, TypeAlias

from ..io.errors import InputError, unknown_name_error
from ..losses.grammar import parse_call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn


ImageSize: TypeAlias = "int | tuple[int, int]"

# Name → module with a function of this name that builds the network.
_BUILTIN_MODULES = {"fast": "fast", "resnet18": "resnet", "resnet34": "resnet"}
_BUILTIN_MODULES |= dict.fromkeys(
    ("iresnet18", "iresnet34", "iresnet50", "iresnet100", "mobilefacenet"), "face_networks"
)
_ALSO_IN_TIMM = ("resnet18", "resnet34")
_DATA_OPTIONS = ("channels", "size")


def builtin_backbones() -> list[str]:
    """Names of the built-in backbones; timm's come in addition.

    >>> builtin_backbones()
    ['fast', 'iresnet100', 'iresnet18', 'iresnet34', 'iresnet50', 'mobilefacenet', 'resnet18', 'resnet34']
    """
    return sorted(_BUILTIN_MODULES)


def parse_model(text: str) -> tuple[str, dict[str, Any]]:
    """Name and options of a model as it is written; nothing is evaluated, nothing built.

    >>> parse_model("fast(width=0.5)"), parse_model("timm:resnet18.a1_in1k(stem_type=deep)")
    (('fast', {'width': 0.5}), ('timm:resnet18.a1_in1k', {'stem_type': 'deep'}))
    """
    if not isinstance(text, str):
        raise InputError(f"a model must be a string such as 'fast(width=0.5)', got {type(text).__name__}")
    if not text.strip():
        raise InputError(
            f"the model is an empty string; write a name such as {', '.join(builtin_backbones())} or one of timm's"
        )
    name, options = parse_call(text, "the model")
    return name.lower() if name.lower() in _BUILTIN_MODULES else name, options


def strip_pretrained(text: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name and all options of the same model with no weights fetched for it: they come from a checkpoint.

    >>> strip_pretrained("resnet18(pretrained=True)", {}), strip_pretrained("fast", {"width": 0.5})
    (('timm:resnet18', {}), ('fast', {'width': 0.5}))
    """
    name, given = parse_model(text)
    for key in options:
        if key in given:
            raise InputError(f"{name}: {key} is given twice")
    given.update(options)
    asked = bool(given.pop("pretrained", False))
    return f"timm:{name}" if asked and name in _ALSO_IN_TIMM else name, given


def build_backbone(name: str, /, *, channels: int = 3, size: ImageSize | None = None, **options: Any) -> nn.Module:
    """A module from images [N, channels, H, W] to embeddings [N, D] with attribute `embedding_dim` = D.

    `size` is the side of the images, or (height, width); without it `img_size` among the options, or 32.
    Options may stand in the name as well: `build_backbone("fast(width=0.5)")`.

    >>> build_backbone("fast(width=0.25)", channels=1, size=28).embedding_dim
    64
    """
    name, given = parse_model(name)
    for key, value in options.items():
        if key in given:
            raise InputError(f"{name}: {key} is given twice")
        given[key] = value
    if given.get("pretrained") is False:
        del given["pretrained"]
    channels, height_width = _check_channels(channels), _height_width(size, given)
    if name in _BUILTIN_MODULES:
        make: Callable[..., nn.Module] = getattr(
            importlib.import_module(f"{__package__}.{_BUILTIN_MODULES[name]}"), name
        )
        known = [key for key in inspect.signature(make).parameters if key not in _DATA_OPTIONS]
        unknown_options = [key for key in given if key not in known]
        if not unknown_options:
            return make(channels=channels, size=height_width, **given)
        if name not in _ALSO_IN_TIMM:
            if "pretrained" in unknown_options:
                raise InputError(f"{name} has no pretrained weights; timm's models do")
            raise unknown_name_error(f"option of {name}", unknown_options[0], known)
    from .timm_models import build_timm

    return build_timm(name, channels, height_width, given, builtin_backbones())


def _check_channels(channels: int) -> int:
    if isinstance(channels, bool) or not isinstance(channels, int) or not 1 <= channels <= 4096:
        raise InputError(f"channels={channels!r} must be a whole number from 1 to 4096")
    return channels


def _height_width(size: ImageSize | None, options: dict[str, Any]) -> tuple[int, int]:
    """(height, width) of the images, from `size`, else from the model's own `img_size`, else 32."""
    given = size if size is not None else options.get("img_size", 32)
    pair = given if isinstance(given, tuple | list) else (given, given)
    whole = all(isinstance(side, int) and not isinstance(side, bool) and 1 <= side <= 65_536 for side in pair)
    if len(pair) != 2 or not whole:
        raise InputError(f"an image size of {given!r} is invalid; give pixels, such as 32 or (32, 48)")
    return pair[0], pair[1]
