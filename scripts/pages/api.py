"""The API page: every public name with its signature, docstring and methods, module by module."""

from __future__ import annotations

import importlib
import inspect
import re
from types import ModuleType
from typing import Any, ForwardRef

import widemargin as wm

# In the order of the page.
_MODULES = (
    "tabular.compare", "tabular.comparison", "tabular.config", "training.train", "training.config", "training.run",
    "training.run_results", "training.callbacks", "training.lr_finder", "training.evaluation", "training.report",
    "loading", "tabular.estimator", "head.head", "head.objective", "head.functional", "models.attach",
    "losses.registry", "losses.grammar", "losses.margin", "losses.pair_loss", "losses.criterion", "losses.schedule",
    "losses.class_counts",
    "theory", "metrics.angles", "metrics.verification", "metrics.retrieval", "metrics.fewshot", "metrics.openset",
    "head.row_optimizer", "head.sharded_checkpoint", "io.errors",
)  # fmt: skip
_WIDTH = 88


def render_api_page() -> str:
    """Return the whole page."""
    modules = wm._PUBLIC_NAMES
    missing = sorted(set(modules.values()) - set(_MODULES))
    words = "Every public name, after `import widemargin as wm`; names without `wm.` are imported from the module "
    words += "in the heading of their section."
    parts = ["# API", "", words, ""]
    for path in (*_MODULES, *missing):
        module = importlib.import_module(f"widemargin.{path}")
        names = sorted(name for name, where in modules.items() if where == path)
        names += sorted(set(_public_names(module)) - set(names)) if path.startswith(("metrics", "theory")) else []
        parts += [f"## widemargin.{path}", "", (inspect.getdoc(module) or "").partition("\n\n")[0], ""]
        for name in names:
            parts += _render_entry(f"wm.{name}" if name in modules else name, getattr(module, name), 3)
    return "\n".join(parts)


def _public_names(module: ModuleType) -> list[str]:
    """Return the public classes and functions that a module defines."""
    return [
        name
        for name, found in vars(module).items()
        if not name.startswith("_") and callable(found) and getattr(found, "__module__", "") == module.__name__
    ]


def _render_entry(name: str, value: Any, level: int) -> list[str]:
    """A heading, the signature, the docstring; then the methods of a class."""
    parts = [f"{'#' * level} `{name}`", "", "``` { .python .signature }", _format_signature(name, value), "```", ""]
    prose, _, example = (inspect.getdoc(value) or "").partition("\n>>> ")
    parts += [_arguments_as_list(prose), ""]
    if example:
        parts += ["```pycon", f">>> {example}", "```", ""]
    if inspect.isclass(value) and not issubclass(value, Exception):
        parts += _render_methods(value)
    return parts


def _arguments_as_list(prose: str) -> str:
    """Convert the arguments of a docstring (`Args:` or underlined) to a list."""
    lines: list[str] = []
    inside = False
    for line in re.sub(r"^(\w+)\n-{3,}$", r"\1:", prose, flags=re.MULTILINE).splitlines():
        head = re.fullmatch(r"(Args|Parameters|Attributes|Examples):", line)
        entry = re.match(r"(?:    )?([a-z_]\w*(?:, \w+)*) ?: (.*)", line) if inside else None
        if head:
            inside = head[1] != "Examples"
            lines += ["", f"**{ {'Args': 'Parameters'}.get(head[1], head[1]) }**", ""] if inside else []
        elif entry:
            lines.append(f"- **{entry[1]}**: {entry[2]}")
        else:
            inside = inside and bool(line.strip())
            lines.append("  " + line.strip() if inside else line)
    return "\n".join(lines).strip()


def _render_methods(kind: type) -> list[str]:
    """Return one line per public method and property of a class."""
    lines = []
    for name, raw in vars(kind).items():
        if name.startswith("_") or not (
            inspect.isfunction(raw) or isinstance(raw, property | classmethod | staticmethod)
        ):
            continue
        sentence = (inspect.getdoc(raw) or "").partition("\n\n")[0]
        if not sentence:
            continue
        if isinstance(raw, property):
            shown = name
        else:
            shown = _format_signature(name, getattr(kind, name), wrap=False, drop_self=inspect.isfunction(raw))
        lines.append(f"- `{shown}`: {' '.join(sentence.split())}")
    return [*lines, ""] if lines else []


def _format_signature(name: str, value: Any, wrap: bool = True, drop_self: bool = False) -> str:
    """Format a signature as in the source, on several lines if it is long."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    plain = [_format_parameter(parameter) for parameter in list(signature.parameters.values())[drop_self:]]
    marked: list[str] = []
    for parameter, written in zip(list(signature.parameters.values())[drop_self:], plain, strict=True):
        if parameter.kind is parameter.KEYWORD_ONLY and not any(mark.startswith("*") for mark in marked):
            marked.append("*")
        marked.append(written)
    result = "" if inspect.isclass(value) else _format_annotation(signature.return_annotation, " -> ")
    line = f"{name}({', '.join(marked)}){result}"
    if not wrap or len(line) <= _WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {one},\n" for one in marked) + f"){result}"


def _format_parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    annotation = _format_annotation(parameter.annotation, ": ")
    if parameter.default is inspect.Parameter.empty:
        return f"{stars}{parameter.name}{annotation}"
    default = re.sub(r"<(?:class )?'?([\w.]+)'?.*>", r"\1", repr(parameter.default))
    return f"{parameter.name}{annotation}{' = ' if annotation else '='}{default}"


def _format_annotation(annotation: Any, before: str) -> str:
    if annotation is inspect.Signature.empty or annotation in ("None", None):
        return ""
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    return before + (annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation)))
