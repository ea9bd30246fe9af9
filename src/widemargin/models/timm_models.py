"""Every model of timm as a backbone: without its classifier, for the images at hand, options passed through.

What timm would ignore is refused here: a misspelt option must not train another network than the one asked for.
timm is imported when a model is built, and only then.
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..io.errors import InputError, unknown_name_error

_INSTALL_HINT = 'pip install "widemargin[vision]"'
# Arguments of timm's that are not the model's options, and who decides about them.
_RESERVED_OPTIONS = {
    "num_classes": "the head holds the classes",
    "in_chans": "the data says how many channels there are",
    "features_only": "a backbone gives one embedding",
    "checkpoint_path": "weights come from a run or from pretrained=True",
    # These name files and addresses that weights come from; a model string may come from an untrusted source.
    "pretrained_cfg": "timm's own weights are taken, or none",
    "pretrained_cfg_overlay": "timm's own weights are taken, or none",
    "cache_dir": "HF_HOME says where timm keeps its weights",
}
_PROBE_OPTION = "an_option_that_no_model_has"


class TimmBackbone(nn.Module):
    """A timm model under `.model`, with the size of its embeddings as `.embedding_dim`."""

    def __init__(self, model: nn.Module, embedding_dim: int) -> None:
        super().__init__()
        self.model = model
        self.embedding_dim = embedding_dim

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.model(x))

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that the model excludes from weight decay, such as position embeddings."""
        asked = getattr(self.model, "no_weight_decay", None)
        wanted = {f"model.{name}" for name in asked()} if callable(asked) else set()
        return wanted.intersection(name for name, _ in self.named_parameters())


def build_timm(
    name: str, channels: int, size: tuple[int, int], options: dict[str, Any], builtin_names: Sequence[str]
) -> TimmBackbone:
    """The timm model `name` for images of this size; `builtin_names` are listed when it is unknown."""
    timm = _import_timm(name, builtin_names)
    plain = name.removeprefix("timm:")
    if not timm.is_model(plain) or ":" in plain:
        raise _unknown_model_error(name, [*builtin_names, *timm.list_models()], len(timm.list_models()))
    for key, value in options.items():
        if key in _RESERVED_OPTIONS:
            raise InputError(f"{plain}: {key} cannot be given here, {_RESERVED_OPTIONS[key]}")
        if value is None:
            raise InputError(f"{plain}: {key}=None is not a value, omit the option")
    asked = dict(options)
    try:
        known = timm.get_pretrained_cfg(plain)
    except RuntimeError as error:  # a tag behind the dot that the model does not have
        raise InputError(f"{name}:{_first_line(str(error))[1:]}") from None
    if getattr(known, "fixed_input_size", False):  # made for one size of image: ask for this one
        asked.setdefault("img_size", size)
    model = _create_model(timm, plain, {**asked, "in_chans": channels})
    _check_ignored_options(timm, plain, model, options)
    return TimmBackbone(model, _measure_embedding_dim(plain, model, channels, size))


def _import_timm(name: str, builtin_names: Sequence[str]) -> Any:
    try:
        from . import torchvision_compat  # noqa: F401  (first, see there)

        return __import__("timm")
    except ImportError:
        known = ", ".join(builtin_names)
        raise InputError(f"{name} needs timm: {_INSTALL_HINT} (without timm: {known})") from None


def _unknown_model_error(name: str, known: Sequence[str], count: int) -> InputError:
    near = get_close_matches(name.removeprefix("timm:").lower(), known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return InputError(f"unknown model {name!r}{hint} (known: {', '.join(known[:-count])} and {count} of timm's)")


def _create_model(timm: Any, name: str, options: dict[str, Any]) -> nn.Module:
    try:
        with _silence_hub_logging():
            model = timm.create_model(name, num_classes=0, **options)
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        raise _creation_error(timm, name, options, error) from None
    return cast(nn.Module, model)


def _creation_error(timm: Any, name: str, options: dict[str, Any], error: Exception) -> InputError:
    """Why timm did not make the model, in one line. Its constructors raise errors of every kind."""
    said = str(error)
    strange = re.search(r"unexpected keyword argument '(\w+)'", said)
    if isinstance(error, TypeError) and strange is not None and strange[1] in options:
        owner = re.search(r"(\w+)\.__init__\(\)", said)
        module = sys.modules[timm.model_entrypoint(name).__module__]
        found = getattr(module, owner[1], None) if owner else None
        return unknown_name_error(
            f"option of timm's {name}", strange[1], _constructor_options(found)[0] if found else []
        )
    if options.get("pretrained") and isinstance(error, OSError):
        return InputError(f"{name}: pretrained weights cannot be fetched (no connection to the model hub?)")
    given = ", ".join(f"{key}={value!r}" for key, value in options.items() if key != "in_chans")
    return InputError(f"timm cannot create {name}({given}){_first_line(said)}")


def _constructor_options(cls: type) -> tuple[list[str], bool]:
    """Names of a class's options, and whether it takes any others."""
    parameters = inspect.signature(cls).parameters.values()
    names = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name not in _RESERVED_OPTIONS]
    return names, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _check_ignored_options(timm: Any, name: str, model: nn.Module, options: dict[str, Any]) -> None:
    """Raise an InputError for an option that the model accepted silently and did not use."""
    known, takes_any = _constructor_options(type(model))
    strange = [key for key in options if key not in known and key != "pretrained"]
    if takes_any and strange:
        try:
            with torch.device("meta"):
                timm.create_model(name, num_classes=0, **{_PROBE_OPTION: 1})
        except Exception:
            strange = []  # it looks at the others too, and has accepted these
        if strange:
            raise unknown_name_error(f"option of timm's {name}", strange[0], known)
    stems = ("", "deep", "deep_tiered")
    if type(model).__name__ == "ResNet" and options.get("stem_type", "") not in stems:
        raise InputError(f"{name}: stem_type={options['stem_type']!r} is not one of {', '.join(map(repr, stems))}")


def _measure_embedding_dim(name: str, model: nn.Module, channels: int, size: tuple[int, int]) -> int:
    """The size of the embeddings, from one blank image: the only answer that holds for all of timm's models."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            x = model(torch.zeros(1, channels, *size))
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        said = _first_line(str(error))
        raise InputError(f"{name} cannot take images of {size[0]}×{size[1]} pixels{said}") from None
    model.train(training)
    if not isinstance(x, Tensor) or x.ndim != 2:
        shape = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"{name} returns {shape} instead of one embedding per image; keep its default pooling")
    return x.shape[1]


def _first_line(message: str) -> str:
    lines = message.strip().splitlines()
    return f": {lines[0][:160]}" if lines else ""


@contextmanager
def _silence_hub_logging() -> Iterator[None]:
    """Silence the log lines of huggingface_hub about every attempt; a failure is reported once, by us."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
