"""The page of docs/reliability.md: generated from a record, complete or not."""

import importlib.util
import json
from pathlib import Path

import pytest

from stress.check import load_checks

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("reliability", ROOT / "scripts" / "reliability.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def line(name: str, **changes) -> dict:
    plain = {"name": name, "title": "old", "kind": "fault", "tried": 5, "survived": 5, "lost": "nothing", "note": ""}
    return {**plain, "seconds": 1.0, "command": f"python -m stress --only {name} --long", **changes}


def write_page(script, tmp_path, checks: list[dict] | None) -> str:
    record, page = tmp_path / "stress.json", tmp_path / "page.md"
    if checks is not None:
        facts = {"versions": {"torch": "2"}, "platform": "Linux", "cores": 2, "commit": None, "long": True}
        record.write_text(json.dumps({**facts, "checks": checks}))
    script.main(record, page)
    return page.read_text()


def test_without_a_record_every_check_is_listed_as_not_run(script, tmp_path, capsys):
    text = write_page(script, tmp_path, None)
    assert text.count("not run yet") == len(load_checks())
    assert "No tests were run yet." in text
    assert "killed" in capsys.readouterr().err


def test_what_did_not_hold_is_listed_as_such(script, tmp_path):
    lines = [line("killed"), line("soak", survived=3, note="memory +2 % | <b>"), line("gone_since")]
    text = write_page(script, tmp_path, lines)
    assert "| 5 | 5 | nothing | `python -m stress --only killed --long` |" in text
    assert "| 5 | **3** |" in text
    assert "- `soak`: memory +2 % \\| &lt;b>" in text.partition("### Failures")[2]
    assert text.count("not run yet") == len(load_checks()) - 2
    assert "\nNone.\n" not in text


def test_the_page_in_the_docs_is_made_from_the_record(script, tmp_path):
    page = (ROOT / "docs" / "reliability.md").read_text()
    assert page.startswith(script.PROMISES)
    if script.RECORD.exists():
        script.main(script.RECORD, tmp_path / "page.md")
        assert (tmp_path / "page.md").read_text() == page
