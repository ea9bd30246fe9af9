"""Statistics of a source tree: files, lines, import cycles, functions named by a bare participle.

    python scripts/code_statistics.py [FOLDER ...]      default: src/widemargin, benchmarks, stress

Import cycles include imports inside functions, but not those for type checkers.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Irregular participles that were used as function names; regular ones end in -ed or -en.
IRREGULAR = frozenset(
    (
        "found",
        "kept",
        "made",
        "seen",
        "told",
        "given",
        "taken",
        "done",
        "said",
        "known",
        "held",
        "drawn",
        "shown",
        "written",
        "begun",
        "lost",
        "sent",
        "left",
        "built",
        "met",
    )
)
OTHER_WORDS = frozenset(
    (
        "embed",
        "seed",
        "speed",
        "need",
        "feed",
        "token",
        "open",
        "even",
        "between",
        "screen",
        "children",
        "whiten",
        "shorten",
        "flatten",
    )
)


def is_participle(name: str) -> bool:
    """True if a function's name is a single participle.

    >>> is_participle("_checked"), is_participle("found"), is_participle("check_labels"), is_participle("embed")
    (True, True, False, False)
    """
    word = name.strip("_")
    return word not in OTHER_WORDS and (word in IRREGULAR or bool(re.fullmatch("[a-z]{2,}(ed|en)", word)))


def is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """True if a function is read as an attribute: there an adjective says what holds."""
    return any(isinstance(node, ast.Name) and node.id == "property" for node in function.decorator_list)


def module_name(path: Path, package: Path) -> str:
    """Dotted name of a file below the package's folder; the package itself is the empty name."""
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(tree: ast.Module, name: str, is_package: bool) -> Iterator[str]:
    """Return the dotted names that a module imports from its own package (relative imports only)."""
    for_type_checkers = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level and id(node) not in for_type_checkers:
            parts = name.split(".") if name else []
            parts = parts[: len(parts) - node.level + is_package] + (node.module.split(".") if node.module else [])
            for alias in node.names:
                yield ".".join([*parts, alias.name])
                yield ".".join(parts)


def import_cycles(package: Path) -> list[list[str]]:
    """Return groups of modules that import each other, directly or indirectly."""
    import numpy as np
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    paths = {module_name(path, package): path for path in package.rglob("*.py")}
    names = sorted(paths)
    index = {name: number for number, name in enumerate(names)}
    edges: list[tuple[int, int]] = []
    for name, path in paths.items():
        targets = set(imported_names(ast.parse(path.read_text("utf-8")), name, path.name == "__init__.py")) & set(paths)
        deepest = {target for target in targets if not any(other.startswith(f"{target}.") for other in targets)}
        edges += [(index[name], index[target]) for target in deepest if target not in ("", name)]
    rows, columns = np.array(edges, dtype=int).reshape(-1, 2).T
    graph = coo_array((np.ones(len(edges)), (rows, columns)), shape=(len(names), len(names)))
    label = connected_components(graph, directed=True, connection="strong")[1]
    groups: dict[int, list[str]] = {}
    for name in names:
        groups.setdefault(int(label[index[name]]), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def print_statistics(package: Path) -> None:
    """Print the statistics of one tree."""
    paths = sorted(package.rglob("*.py"))
    lengths = [len(path.read_text("utf-8").splitlines()) for path in paths]
    losses = [path for path in paths if path.parent.name in ("margins", "pairs", "regularizers", "terms", "classical")]
    at_root = [path for path in package.glob("*.py") if not path.name.startswith("_")]
    functions = [
        f"{module_name(path, package)}.{node.name}"
        for path in paths
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and is_participle(node.name)
        and not is_property(node)
    ]
    cycles = import_cycles(package)
    print(f"{package.name}: {len(paths)} files ({len(losses)} of them in folders of losses), {sum(lengths):,} lines")
    print(f"  median {statistics.median(lengths):g} lines, longest {max(lengths)}; modules at the root: {len(at_root)}")
    print(f"  import cycles: {len(cycles)}" + "".join(f"\n    {', '.join(group)}" for group in cycles))
    print(f"  functions named by a participle: {len(functions)}" + "".join(f"\n    {name}" for name in functions[:10]))


if __name__ == "__main__":
    folders = [Path(word) for word in sys.argv[1:]] or [
        ROOT / "src" / "widemargin",
        ROOT / "benchmarks",
        ROOT / "stress",
    ]
    for folder in folders:
        if not any(folder.rglob("*.py")):
            print(f"{folder}: no Python files; give the folder of a package", file=sys.stderr)
            sys.exit(2)
        print_statistics(folder)
