"""`python -m stress`: checks are found, run in folders of their own, counted, recorded; and they can fail."""

import json
import re
import shutil
from pathlib import Path

import pytest

from colours import FAST, draw
from stress import check
from stress.__main__ import main
from stress.check import Check, CheckContext, Outcome
from stress.run import select_checks
from stress.trainings import difference
from widemargin.cli.main import main as widemargin_main
from widemargin.io.errors import InputError

FOLDERS: list[Path] = []


def _run_fine(size: CheckContext) -> Outcome:
    FOLDERS.append(size.folder)
    assert list(size.folder.iterdir()) == []
    (size.folder / "rubbish").mkdir()
    size.on_progress("half")
    return Outcome(3, 3, "nothing", "[bold]as told[/bold]")


def _run_worse(size: CheckContext) -> Outcome:
    FOLDERS.append(size.folder)
    return Outcome(4, 3, "one line", "the second")


def _run_breaking(size: CheckContext) -> Outcome:
    raise RuntimeError("of its own")


FINE = Check("fine", "a fine one", "fault", False, _run_fine)
SLOW = Check("slow", "a slow one", "attack", True, _run_fine)


@pytest.fixture
def use_checks(monkeypatch):
    """Puts other checks in the place of the package's."""

    def put(*checks: Check) -> None:
        monkeypatch.setattr(
            "stress.run.load_checks",
            lambda only=None: [one for one in checks if only is None or one.name in only],
        )

    return put


def test_every_check_says_what_it_is():
    found = check.load_checks()
    assert [one.name for one in found] == sorted(
        (one.name for one in found), key=lambda name: (check.KINDS.index(check.load_check(name).kind), name)
    )
    assert {"killed", "full_disk", "lost_rank", "soak", "two_at_once"} <= {one.name for one in found}
    for one in found:
        assert one.title
        assert "\n" not in one.title
        assert callable(one.run)
        assert isinstance(one.long, bool)


def test_all_is_well(use_checks, capsys, tmp_path):
    use_checks(FINE, SLOW)
    assert main(["--json", str(tmp_path / "record.json")]) == 0
    said = capsys.readouterr()
    assert "[bold]as told[/bold]" in said.out  # text of a check is not markup
    assert "fine: half" in said.err
    record = json.loads((tmp_path / "record.json").read_text())
    assert [line["name"] for line in record["checks"]] == ["fine"]  # slow ones only with --long
    line = record["checks"][0]
    assert (line["tried"], line["survived"], line["lost"], line["kind"]) == (3, 3, "nothing", "fault")
    assert line["command"] == "python -m stress --only fine"
    assert {"torch", "python", "widemargin"} <= set(record["versions"])
    assert record["platform"]
    assert not FOLDERS[-1].exists()


def test_what_did_not_survive_is_code_1_and_the_others_are_run(use_checks, capsys, tmp_path):
    breaks = Check("breaks", "breaks", "input", False, _run_breaking)
    use_checks(breaks, Check("worse", "worse", "input", False, _run_worse), FINE)
    assert main(["--json", str(tmp_path / "record.json")]) == 1
    said = capsys.readouterr().out
    assert "the check itself failed: RuntimeError: of its own" in said
    assert "worse: the second" in said
    lines = {line["name"]: line for line in json.loads((tmp_path / "record.json").read_text())["checks"]}
    assert [(lines[name]["tried"], lines[name]["survived"]) for name in ("breaks", "worse", "fine")] == [
        (1, 0),
        (4, 3),
        (3, 3),
    ]


def test_a_record_is_brought_up_to_date(use_checks, tmp_path, capsys):
    use_checks(FINE, Check("worse", "worse", "input", False, _run_worse))
    path = tmp_path / "record.json"
    assert main(["--json", str(path)]) == 1
    whole = json.loads(path.read_text())
    for line in whole["checks"]:
        line["seconds"] = 1234.5
        del line["version"]  # as in records of older versions
    whole["versions"]["widemargin"] = "0.0.1"
    path.write_text(json.dumps(whole))
    assert main(["--only", "fine", "--json", str(path)]) == 0
    lines = json.loads(path.read_text())["checks"]
    assert [line["name"] for line in lines] == ["fine", "worse"]
    assert [line["seconds"] == 1234.5 for line in lines] == [False, True]
    assert [line["version"] == "0.0.1" for line in lines] == [False, True]
    path.write_text('{"mine": 1}')
    assert main(["--only", "fine", "--json", str(path)]) == 2
    assert "not a record of stress" in capsys.readouterr().err
    assert path.read_text() == '{"mine": 1}'


def test_what_takes_long_must_be_asked_for(use_checks):
    use_checks(FINE, SLOW)
    assert select_checks(None, long=True) == [FINE, SLOW]
    with pytest.raises(InputError, match="slow is a long check: add --long"):
        select_checks(["slow"], long=False)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--only", "kiled"], "unknown check 'kiled'; did you mean 'killed'?"),
        (["--only", "killed", "--json", "nowhere/at/all.json"], "the folder does not exist"),
    ],
)
def test_mistakes_are_one_line(words, says, capsys):
    assert main([*words]) == 2
    said = capsys.readouterr().err.strip()
    assert says in said
    assert "\n" not in said


def test_the_list_names_them_all(capsys):
    assert main(["--list"]) == 0
    said = capsys.readouterr().out
    assert all(re.search(rf"^{name} ", said, re.MULTILINE) for name in check.list_check_names())


def test_an_outcome_cannot_survive_more_than_was_tried():
    with pytest.raises(InputError, match="5 survived of 4"):
        Outcome(4, 5, "nothing")


# ---------------------------------------------------------------- a check must be able to fail


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("run")
    words = ["train", str(draw(place)), *FAST, "--epochs", "2", "--val-fraction", "0.2", "--quiet"]
    assert widemargin_main([*words, "--out", str(place / "run")]) == 0
    return place / "run"


def test_the_same_run_has_no_difference(finished_run, tmp_path):
    shutil.copytree(finished_run, tmp_path / "copy")
    assert difference(finished_run, tmp_path / "copy") == ""


@pytest.mark.parametrize("what", ["bit", "line", "twice", "figure", "rubbish", "gone"])
def test_a_difference_is_seen(what, finished_run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(finished_run, copy)
    log, record, last = copy / "metrics.jsonl", copy / "record.json", copy / "checkpoints" / "last"
    if what == "bit":
        shutil.rmtree(last.with_name("last.old"))
        data = bytearray((last / "model.safetensors").read_bytes())
        data[-1] ^= 1
        (last / "model.safetensors").write_bytes(data)
    elif what == "line":
        log.write_text(log.read_text().splitlines()[0] + "\n")
    elif what == "twice":
        log.write_text(log.read_text() + log.read_text().splitlines()[-1] + "\n")
    elif what == "figure":
        found = json.loads(record.read_text())
        found["test"]["top1"] += 1e-9
        record.write_text(json.dumps(found))
    elif what == "rubbish":
        (copy / "checkpoints" / "last.new").mkdir()
    else:
        record.unlink()
    assert difference(finished_run, copy) != ""


# ---------------------------------------------------------------- the checks themselves


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in check.list_check_names() if check.load_check(name).kind == "fault"])
def test_faults_are_survived(name, tmp_path):
    found = check.load_check(name).run(CheckContext(False, tmp_path, seed=1))
    assert found.has_passed, found.note
    assert found.tried > 0 or "root" in found.note


@pytest.mark.slow
def test_a_killed_run_is_the_same(tmp_path, monkeypatch):
    """The check of 50 kills, with two."""
    from stress.checks import killed

    monkeypatch.setattr(killed, "KILLS", {False: 2, True: 50})
    found = killed.run(CheckContext(False, tmp_path))
    assert (found.tried, found.survived) == (2, 2), found.note
