"""`python -m benchmarks pairs`, in small."""

import json

import pytest

from benchmarks import pairs
from benchmarks.__main__ import main


def test_times_are_taken_by_turns_and_added_to_a_file(tmp_path, capsys):
    path = tmp_path / "pairs.json"
    words = ["pairs", "--sizes", "16", "--rounds", "2", "--no-memory", "--json", str(path)]
    assert main([*words, "--losses", "supcon", "recall_at_k"]) == 0
    assert "recall_at_k" in capsys.readouterr().out
    assert main([*words, "--losses", "multi_similarity"]) == 0
    rows = {row["loss"]: row for row in json.loads(path.read_text())}
    assert set(rows) == {"supcon", "recall_at_k", "multi_similarity"}
    seconds = rows["supcon"]["seconds"]
    ratios = [a / b for a, b in zip(seconds["ours"], seconds["peer"], strict=True)]
    assert min(ratios) <= rows["supcon"]["ratio"]["median"] <= max(ratios)
    assert "ratio" not in rows["recall_at_k"]
    assert main(["pairs", "--losses", "nosuch"]) == 2
    assert main(["pairs", "--sizes", "6"]) == 2


@pytest.mark.filterwarnings("ignore:Values of Tp or Tn")
@pytest.mark.parametrize("spec", pairs.PEERS)
def test_every_peer_takes_a_step(spec):
    for who in ("ours", "peer"):
        pairs._build(who, spec, 16)()


@pytest.mark.slow
def test_memory_is_measured_in_a_process_of_its_own():
    found = pairs.measure_memory("ours", "supcon", [64, 512])
    assert 0 <= found[64] < found[512] < 500
