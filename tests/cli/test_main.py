"""The command as a person meets it: real processes, real files, one line for a mistake."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console

import widemargin
from benchmarks.__main__ import main as benchmarks_main
from widemargin import theory
from widemargin.cli.main import main
from widemargin.losses.registry import LOSS_GROUPS
from widemargin.viz import curves, loss_listing

ROOT = Path(__file__).parents[2]


def run(*arguments: str, module: str = "widemargin", **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def run_here(command, arguments: list[str], folder: Path, monkeypatch, capsys) -> subprocess.CompletedProcess[str]:
    """What a command does in a folder, in this process, as `run` gives it."""
    monkeypatch.chdir(folder)
    try:
        code = command(arguments)
    except SystemExit as left:  # as argparse leaves
        code = left.code
    said = capsys.readouterr()
    return subprocess.CompletedProcess(arguments, code, said.out, said.err)


def test_help_and_version_do_not_wait_for_torch():
    code = (
        "import sys, widemargin.cli.main as c\n"
        "try: c.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('torch', 'numpy', 'matplotlib', 'rich', 'scipy') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "losses" in out
    assert "curves" in out
    assert out.strip().endswith("[]")
    version = run("--version")
    assert version.returncode == 0
    assert version.stdout.strip() == f"widemargin {widemargin.__version__}"


def test_installed_command_is_there():
    script = Path(sys.executable).with_name("widemargin")
    assert subprocess.run([script, "--version"], capture_output=True, text=True, check=True).stdout.startswith(
        "widemargin"
    )


def test_no_command_shows_the_help(capsys):
    assert main([]) == 0
    assert "COMMAND" in capsys.readouterr().out


def test_losses_lists_every_loss(capsys):
    assert main(["losses"]) == 0
    out = capsys.readouterr().out
    for name in widemargin.list_losses():
        assert name in out


def test_losses_are_listed_by_group_with_state_and_needs(capsys):
    assert main(["losses"]) == 0
    out = capsys.readouterr().out
    places = [out.index(f"\n{group}: ") if group != "softmax" else 0 for group in LOSS_GROUPS]
    assert places == sorted(places)
    assert main(["losses", "--group", "long-tail"]) == 0
    out = capsys.readouterr().out
    assert "class counts" in out
    assert "arcface" not in out
    assert main(["losses", "--group", "quality", "--format", "json"]) == 0
    adaface, magface = json.loads(capsys.readouterr().out)
    assert (adaface["name"], magface["name"]) == ("adaface", "magface")
    assert adaface["state"] == ["from batches: mean, std", "per sample: quality"]


def test_losses_fold_on_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setattr(loss_listing, "console", lambda: Console(width=50))
    loss_listing.print_losses(group="speakers")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 50
    text = " ".join(" ".join(lines).split())
    assert "aam_softmax: ArcFace with sub-centres" in text
    assert "numbers s=32, m=0.2, k=1, topk=0, penalty=0.06. state per sample: threshold." in text


def test_one_loss_is_explained(capsys):
    assert main(["losses", "sphereface"]) == 0
    out = capsys.readouterr().out
    assert "a_softmax" in out
    assert "1704.08063" in out
    assert "whole number" in out


def test_losses_as_json_and_markdown(capsys):
    assert main(["losses", "--format", "json"]) == 0
    pages = json.loads(capsys.readouterr().out)
    assert [page["name"] for page in pages] == widemargin.list_losses()
    assert main(["losses", "arcface", "--format=md"]) == 0
    assert "| `m` | `0.5` | 0 ≤ value ≤ 1.5708 | margin in radians |" in capsys.readouterr().out


def test_theory_prints_the_papers_angles(capsys):
    assert main(["theory", "--num-classes", "3", "--scale", "1", "40"]) == 0
    out = capsys.readouterr().out
    assert "83.8°" in out
    assert "2.1°" in out
    assert main(["theory", "--num-classes", "3", "--gap", "1.4631"]) == 0
    assert " 1 " in capsys.readouterr().out
    assert main(["theory", "--num-classes", "1000"]) == 0


def test_theory_says_which_scale_to_take(capsys):
    assert main(["theory", "--num-classes", "1000"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    (advised,) = re.findall(r"s = (\S+) for arcgrad with 1,000 classes \(gap 0\.5\)", out)
    assert float(advised) == pytest.approx(theory.suggest_scale(1000, 0.5), rel=5e-3)
    assert theory.SCALE_EVIDENCE in out
    assert main(["theory", "--num-classes", "10", "--gap", "0.25", "1"]) == 0
    out = capsys.readouterr().out
    assert re.findall(r"s = (\S+) for arcgrad with 10 classes \(gap (\S+)\)", out) == [
        ("8.4", "0.25"),
        ("2.1", "1"),
    ]


def test_theory_notes_a_gap_above_pi(capsys):
    assert main(["theory", "--num-classes", "1000", "--scale", "1"]) == 0
    assert "above π" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_curves_draws(tmp_path, capsys, suffix):
    out = tmp_path / f"curves.{suffix}"
    assert main(["curves", "--out", str(out), "--losses", "arcgrad(s=5), arcface + 0.1*triplet, l2, focal"]) == 0
    assert str(out) in capsys.readouterr().out
    assert out.stat().st_size > 5000


@pytest.mark.filterwarnings("ignore:.*without counts:UserWarning")
def test_curves_of_all_losses_have_the_points_of_each_margin(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(curves, "figure_to_svg", lambda figure, *_, **__: figures.append(figure) or "")
    assert main(["curves", "--out", str(tmp_path / "all.svg")]) == 0
    drawn = [line for axes in figures[0].axes if axes.get_ylabel() == "ψ(θ)" for line in axes.lines]
    for margin in map(widemargin.parse, widemargin.list_losses("margins")):
        named = rf"(^|, ){re.escape(repr(margin))}(,|$)"  # losses of one curve share a line
        (line,) = (line for line in drawn if re.search(named, " ".join(line.get_label().split())))
        theta = torch.deg2rad(torch.as_tensor(line.get_xdata()))
        expected = theory.target_curve(margin, theta, 10)[0] / curves._final_scale(margin, 10)
        torch.testing.assert_close(torch.as_tensor(line.get_ydata()), expected, atol=1e-6, rtol=1e-6)


def test_options_with_underscore_or_dash():
    from widemargin.io.text import normalize_flag

    assert normalize_flag("--data_set=a_b") == "--data-set=a_b"
    assert normalize_flag("-x_y") == "-x_y"
    assert normalize_flag("a_softmax") == "a_softmax"


def test_main_takes_underscores(monkeypatch, capsys):
    from widemargin.cli import main as command

    real = command.build_parser

    def with_long_option(argv):
        top = real(argv)
        top.add_argument("--two-words", default="no")
        top.set_defaults(command="x", run=lambda options: print(options.two_words))
        return top

    monkeypatch.setattr(command, "build_parser", with_long_option)
    assert main(["--two_words", "yes_no"]) == 0
    assert capsys.readouterr().out.strip() == "yes_no"


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion_script(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("losses", "curves", "theory", "table1", "embedding-dim"):
        assert word in script


def test_bash_accepts_the_completion_script(capsys, tmp_path):
    main(["completion", "bash"])
    script = tmp_path / "complete.bash"
    script.write_text(capsys.readouterr().out)
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["losse"], ["losse", "losses"]),
        (["losses", "arcfase"], ["unknown loss 'arcfase'", "did you mean 'arcface'?"]),
        (["losses", "arcface(m=9)"], ["arcface: m=9 is outside its domain"]),
        (["losses", "--group", "long_tail"], ["--group", "'long_tail'", "did you mean 'long-tail'?"]),
        (["losses", "arcface", "--group", "margin"], ["names of losses or --group"]),
        (["losses", "--fromat", "md"], ["--fromat", "--format"]),
        (["theory"], ["--num-classes"]),
        (["theory", "--num-classes", "1"], ["num_classes=1 must be a whole number of at least 2"]),
        (["theory", "--num-classes", "many"], ["--num-classes", "many"]),
        (["theory", "--num-classes", "3", "--gap", "-1"], ["gap=-1.0 must be a number of radians above 0"]),
        (["theory", "--num-classes", "3", "--scale", "0"], ["scale=0.0 must be a number above 0"]),
        (["curves", "--out", "curves.gif"], ["curves.gif: the file must end in .svg, .png, .pdf"]),
        (["curves", "--out", "no/such/folder/c.svg"], ["no/such/folder/c.svg: the folder does not exist"]),
        (["curves", "--losses", "arcface("], ["cannot read 'arcface('"]),
        (["curves", "--num-classes", "1"], ["--num-classes must be a whole number from 2"]),
        (["curves", "--losses", ""], ["an empty loss"]),
        (["loses"], ["loses", "did you mean 'losses'?"]),
        (["theory", "--num-class", "10"], ["unknown option --num-class", "did you mean --num-classes?"]),
        (["theory", "--num-classes", "1" + "0" * 400], ["must be a whole number"]),
        (["trian", "--lr", "0.1"], ["trian", "did you mean 'train'?"]),
        (["--epoch", "3"], ["unknown option --epoch", "did you mean --epochs?"]),
        (["reproduce"], ["RECIPE"]),
        (["reproduce", "tabel1", "--jobs", "2"], ["tabel1", "did you mean 'table1'?"]),
        (["reproduce", "table1", "--jbos", "2"], ["unknown option --jbos", "did you mean --jobs?"]),
        (["completion", "powershell"], ["powershell"]),
    ],
)
def test_a_mistake_is_one_line_and_code_2(arguments, words, tmp_path, monkeypatch, capsys):
    check_mistake(run_here(main, arguments, tmp_path, monkeypatch, capsys), words, tmp_path)


def test_a_mistake_of_a_process_is_one_line_and_code_2(tmp_path):
    check_mistake(run("theory", "--num-classes", "1", cwd=tmp_path), ["num_classes=1"], tmp_path)
    check_mistake(run("theory", "--num-classes", "many", cwd=tmp_path), ["--num-classes", "many"], tmp_path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["numerics", "--json", "."], [".: cannot be written"]),
        (["numerics", "--json", "no/such/folder/x.json"], ["the folder does not exist"]),
        (["numerics", "--losses", "triplet"], ["'triplet", "is not a margin"]),
        (["numeric"], ["BENCHMARK", "did you mean 'numerics'?"]),
    ],
)
def test_a_mistake_at_a_benchmark_is_one_line_and_code_2(arguments, words, tmp_path, monkeypatch, capsys):
    check_mistake(run_here(benchmarks_main, arguments, tmp_path, monkeypatch, capsys), words, tmp_path)


def check_mistake(result: subprocess.CompletedProcess[str], words: list[str], folder: Path) -> None:
    """Code 2, one line that holds the words, and no file."""
    assert result.returncode == 2, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr
    assert list(folder.iterdir()) == []


def test_a_terminal_without_greek_gets_no_traceback():
    result = run("theory", "--num-classes", "3", "--scale", "1", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert result.returncode == 0
    assert "83.8?" in result.stdout


def test_a_full_disk_is_one_line():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "widemargin", "theory", "--num-classes", "3"]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert "cannot write the output" in result.stderr


@pytest.mark.slow
def test_two_classes_are_drawn_with_one_note_each(tmp_path):
    losses = "adaacos, adacos, ldam, logit_adjusted, arcface, softmax"
    result = run("curves", "--num-classes", "2", "--losses", losses, "--out", str(tmp_path / "two.svg"))
    assert result.returncode == 0
    notes = result.stderr.strip().splitlines()
    assert len(notes) == len(set(notes)) == 4
    assert sorted(note.split()[1] for note in notes) == ["adaacos", "adacos", "ldam", "logit_adjusted"]


def test_unwritable_place_is_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "curves.svg").mkdir()
    result = run_here(main, ["curves", "--losses", "l1"], tmp_path, monkeypatch, capsys)
    assert result.returncode == 2
    assert "curves.svg: cannot be written" in result.stderr


@pytest.mark.slow
def test_an_interrupt_is_one_line_and_code_130(tmp_path):
    command = [sys.executable, "-m", "benchmarks", "numerics", "--json", str(tmp_path / "x.json")]
    slow = {**os.environ, "OMP_NUM_THREADS": "1"}  # still at work after five seconds, and long past its imports
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=slow, cwd=ROOT
    ) as process:
        time.sleep(5)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.strip().startswith("python -m benchmarks: interrupted")
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_leaves_early_is_no_error():
    command = [sys.executable, "-m", "widemargin", "theory", "--num-classes", "10"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
        assert process.wait(timeout=60) == 0


@pytest.mark.exhaustive
def test_numerics_benchmark_prints_ours_beside_the_peer(tmp_path):
    out = tmp_path / "numerics.json"
    words = ["numerics", "--losses", "arcface", "--json", str(out)]
    result = run(*words, module="benchmarks", cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert result.returncode == 0, result.stderr
    assert "arcface(s=64, m=0.5)" in result.stdout
    assert "ArcFaceLoss" in result.stdout
    rows = {row["name"]: row for row in json.loads(out.read_text())["rows"]}
    ours, peer = rows["arcface(s=64, m=0.5)"], rows["ArcFaceLoss"]
    assert ours["initial"] <= 2e-6
    assert max(ours["trained"]) <= 2e-5
    assert all(ours["finite"].values())
    assert peer["trained"][-1] > 100 * ours["trained"][-1]
    assert not all(peer["finite"].values())  # which of its dtypes fail depends on the rounding of the machine


def test_a_warning_is_one_line_of_words():
    script = (
        "import warnings, widemargin.cli.losses, widemargin.cli.main as cli\n"
        "widemargin.cli.losses._run_theory = lambda options: warnings.warn('class \\x1b[31mred\\nof two lines')\n"
        "before = warnings.formatwarning\n"
        "assert cli.main(['theory', '--num-classes', '10']) == 0\n"
        "assert warnings.formatwarning is before\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stderr == "widemargin: note: class \\x1b[31mred of two lines\n"


def every_command():
    """Words that name a command or one below it, and the parser of each."""
    import argparse

    from widemargin.cli.main import build_parser

    def below(found, words):
        yield words, found
        for action in found._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, inner in action.choices.items():
                    yield from below(inner, [*words, name])

    return list(below(build_parser(), []))


@pytest.mark.parametrize("words", [words for words, _ in every_command()], ids=" ".join)
def test_every_command_explains_itself(words, capsys):
    with pytest.raises(SystemExit) as left:
        main([*words, "--help"])
    said = capsys.readouterr()
    assert (left.value.code, said.err) == (0, "")
    assert said.out.startswith(f"usage: {' '.join(['widemargin', *words])}")
    assert "%(" not in said.out
    assert "%%" not in said.out


def test_help_holds_every_word_of_every_option():
    import argparse
    import re

    for words, found in every_command():
        shown = re.sub(r"\s+", "", found.format_help())
        for action in found._actions:
            help_text = "" if action.help == argparse.SUPPRESS else action.help or ""
            assert re.sub(r"\s+", "", help_text) in shown, (words, action.dest)


# ---------------------------------------------------------------- folders of another kind


@pytest.fixture(scope="module")
def table_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "iris-model"
    widemargin.fit("iris", out=folder, quiet=True)
    return folder


@pytest.mark.parametrize(
    "words",
    [
        "export {} --onnx x.onnx",
        "embed {} iris --out x.npz",
        "verify {} a.png b.png",
        "calibrate {}",
        "evaluate {}",
        "outliers {}",
        "report {}",
        "gallery create people --model {} photos",
        "gallery list {}",
        "identify {} a.png",
    ],
)
def test_a_folder_of_another_kind_is_named_and_refused(words, table_model, tmp_path, monkeypatch, capsys):
    done = run_here(main, words.format(table_model).split(), tmp_path, monkeypatch, capsys)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert str(table_model) in line
    assert "table" in line


def test_an_unexpected_word_points_to_the_help_of_its_command(tmp_path, monkeypatch, capsys):
    done = run_here(main, ["curves", "arcface"], tmp_path, monkeypatch, capsys)
    assert done.returncode == 2
    assert "'arcface' (see widemargin curves --help)" in done.stderr
    shards = [f"train-{k:04d}.tar" for k in range(4)]  # as a shell writes train-{0000..0003}.tar
    done = run_here(main, ["train", *shards, "fast", "softmax"], tmp_path, monkeypatch, capsys)
    assert done.returncode == 2
    assert "quotes" in done.stderr
