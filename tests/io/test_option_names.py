"""Messages name options as the caller spells them: by one function, and never by a flag written into a message."""

import ast
import re
from pathlib import Path

import pytest
import torch

import widemargin as wm
from widemargin.cli.main import main
from widemargin.io.errors import option_style, spell_option, writes_flags

SOURCE = Path(wm.__file__).parent
# The command line itself, pages and recipes that print commands, and the seeds' own flags.
PRINT_COMMANDS = {"cli", "reproduce", "tour", "lab"}
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


@pytest.mark.parametrize(
    ("option", "in_python", "as_flag"),
    [
        (("val_fraction",), "val_fraction", "--val-fraction"),
        (("resume", True), "resume=True", "--resume"),
        (("sync_bn", False), "sync_bn=False", "--no-sync-bn"),
        (("hidden", (64, 24)), "hidden=(64, 24)", "--hidden 64 24"),
        (("out", "my runs/a"), "out='my runs/a'", "--out 'my runs/a'"),
        (("lr", 0.1), "lr=0.1", "--lr 0.1"),
        (("imbalance", 100.0), "imbalance=100", "--imbalance 100"),
    ],
)
def test_an_option_is_spelled_as_the_caller_does(option, in_python, as_flag):
    assert spell_option(*option) == in_python
    with option_style(command_line=True):
        assert spell_option(*option) == as_flag
        with option_style(command_line=False):
            assert not writes_flags()
        assert writes_flags()
    assert not writes_flags()


def test_the_style_ends_with_an_error():
    with pytest.raises(KeyError), option_style(command_line=True):
        raise KeyError
    assert not writes_flags()


def test_the_same_mistake_is_named_twice(tmp_path, monkeypatch, capsys):
    """Once by a function, which names the argument, and once by the command, which names the flag."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(wm.InputError, match=r"^lr must be"):
        wm.TrainConfig(lr=-1.0)
    assert main(["train", "mnist", "fast", "arcgrad", "--lr", "-1"]) == 2
    assert capsys.readouterr().err.startswith("widemargin: --lr must be")
    with pytest.raises(wm.InputError, match=r"^folds must be"):
        wm.compare("iris", folds=1)
    assert main(["compare", "iris", "--folds", "1"]) == 2
    assert "--folds must be" in capsys.readouterr().err


def test_a_run_in_the_way_is_continued_by_the_callers_own_option(tmp_path):
    x = torch.randn(40, 4)
    config = wm.TrainConfig(loss="softmax", epochs=1, batch_size=20)
    given = {"train": (x, torch.arange(40) % 2), "model": torch.nn.Linear(4, 4), "at": None, "quiet": True}
    wm.train(config, out=tmp_path / "run", **given)
    with pytest.raises(wm.InputError, match="resume=True") as caught:
        wm.train(config, out=tmp_path / "run", **given)
    assert "--" not in str(caught.value)
    with option_style(command_line=True), pytest.raises(wm.InputError, match="--resume"):
        wm.train(config, out=tmp_path / "run", **given)


def test_a_file_is_read_with_the_names_of_python():
    with option_style(command_line=True), pytest.raises(wm.InputError) as caught:
        wm.TrainConfig.from_json('{"lr": -1}', "run.json")
    assert "run.json: lr must be" in str(caught.value)


def docstrings(tree: ast.AST) -> set[int]:
    """The ids of strings that stand alone as statements."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def is_command(call: ast.AST) -> bool:
    """Whether a call declares a flag."""
    return isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument"


def flags_in_messages(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = docstrings(tree) | {id(part) for call in ast.walk(tree) if is_command(call) for part in ast.walk(call)}
    texts = [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped
    ]
    return [
        f"{path.relative_to(SOURCE)}:{line}: {flag}"
        for line, text in texts
        if " " in text and not any(word in text for word in ("widemargin ", "curl ", "var(--", "{"))  # sentences
        for flag in FLAG.findall(text)
    ]


def test_no_message_below_the_command_line_spells_a_flag():
    paths = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] not in PRINT_COMMANDS]
    assert [line for path in paths for line in flags_in_messages(path)] == []
