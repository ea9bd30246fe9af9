"""Error lines, notes and warnings are short for any quoted input."""

import sys

import pytest


@pytest.mark.parametrize("letter", ["z", "\U000e0001", "\x1b", "\n"])
def test_error_lines_are_short_whatever_they_quote(letter, capsys, tmp_path, monkeypatch):
    from widemargin.cli.main import main

    monkeypatch.chdir(tmp_path)
    name = letter * 100_000
    for words in (["report", name], ["compare", name], ["train", "mnist", "--out", name], ["losses", name]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert said.startswith("widemargin: ")
        assert len(said) <= 1001, words


def test_notes_and_warnings_are_short_too(capsys):
    import warnings

    from widemargin.io.text import plain_warnings, print_escaped

    print_escaped("x" * 10**6, to_stderr=True)
    with plain_warnings():
        print(warnings.formatwarning("y" * 10**6, UserWarning, "file.py", 1), file=sys.stderr)
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    assert [line[-1] for line in lines] == ["x", "y"]
    assert all(len(line) <= 1000 for line in lines)


def test_quoted_values_are_far_shorter():
    from widemargin.data.tabular.table import quote_cell
    from widemargin.io.errors import shorten, unknown_name_error

    for text in ("x" * 10**6, "\x1b" * 10**6, "\U000e0001" * 10**6, "\n" * 10**6):
        assert len(shorten(text)) <= 80
        assert len(quote_cell(text)) <= 82
        assert len(str(unknown_name_error("loss", text, ["softmax"]))) < 300
    many = str(unknown_name_error("field", "margni", [f"name_{k}_of_many" for k in range(60)] + ["margin"]))
    assert "did you mean 'margin'" in many
    assert "61 are known" in many
    assert len(many) < 400
