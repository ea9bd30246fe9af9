"""The source of the package: nothing in it unpickles, evaluates, extracts whole archives or starts a shell."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import widemargin

from ..check import CheckContext, Outcome

TITLE = "the package's source: no unpickling, no evaluating, no shell, no blind unpacking"
KIND = "attack"
LONG = False

_CHECKOUT = Path(__file__).resolve().parents[2]
# Calls that run or extract arbitrary input, by their last two names.
_FORBIDDEN_CALLS = {
    "pickle.load", "pickle.loads", "pickle.Unpickler", "dill.load", "joblib.load", "marshal.loads", "shelve.open",
    "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "yaml.load", "pandas.read_pickle",
    "shutil.unpack_archive", "pack.extractall", "archive.extractall", "archive.extract", "pack.extract",
    "archive.read", "pack.read",
}  # fmt: skip
_FORBIDDEN_BUILTINS = {"eval", "exec", "compile", "__import__"}
_REQUIRED_KEYWORDS = {"torch.load": ("weights_only", True), "np.load": ("allow_pickle", False)}
# The attacks verify their own payload, timm is imported by a fixed name, and the source of Triton's functions is made
# from the operations of a loss, never read.
_ALLOWED_CALLS = {
    ("attack_pickles.py", "pickle.loads"),
    ("timm_models.py", "__import__"),
    ("triton_source.py", "exec"),
    ("triton_source.py", "compile"),
}


def run(context: CheckContext) -> Outcome:
    """Check every call in every file of the package, the benchmarks and these checks."""
    del context
    folders = (Path(widemargin.__file__).parent, *(_CHECKOUT / name for name in ("benchmarks", "stress")))
    files = sorted(path for folder in folders for path in folder.rglob("*.py"))
    wrong = [said for path in files for said in _find_violations(path)]
    bad = len({said.partition(":")[0] for said in wrong})
    return Outcome(len(files), len(files) - bad, "see the note" if wrong else "nothing", "; ".join(wrong))


def _find_violations(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = _dotted_name(node.func)
        keywords = {word.arg: word.value for word in node.keywords}
        where = f"{path.name}:{node.lineno}"
        if (path.name, name) in _ALLOWED_CALLS:
            continue
        if name in _FORBIDDEN_CALLS or name in _FORBIDDEN_BUILTINS:
            yield f"{where} calls {name}"
        if name in _REQUIRED_KEYWORDS:
            option, value = _REQUIRED_KEYWORDS[name]
            argument = keywords.get(option)
            if not isinstance(argument, ast.Constant) or argument.value is not value:
                yield f"{where} calls {name} without {option}={value}"
        if name.startswith("subprocess.") and "shell" in keywords:
            yield f"{where} may start a shell"


def _dotted_name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted_name(node.value).rpartition('.')[2]}.{node.attr}"
    return ""
