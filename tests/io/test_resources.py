"""Memory: how much the machine and the container leave, and one line where it is not enough."""

import pytest
import torch


def test_memory_of_machine_and_container(tmp_path, monkeypatch):
    from widemargin.io import resources

    there = resources.available_memory()
    assert there is None or 0 < there < 1 << 50
    monkeypatch.setattr(resources, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(resources, "_CGROUP", tmp_path)
    assert resources.available_memory() is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\n")
    assert resources.available_memory() is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   4 kB\nSwapFree: 3 kB\n")
    assert resources.available_memory() == 7 << 10
    for name, text in (("max", "5000\n"), ("current", "3000\n"), ("stat", "anon 1\ninactive_file 200\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert resources.available_memory() == 2200
    (tmp_path / "memory.max").write_text("max\n")
    assert resources.available_memory() == 7 << 10


def test_memory_that_torch_has_not_is_one_line(capsys, monkeypatch):
    from widemargin.cli.main import main
    from widemargin.viz import loss_listing

    def fails(*_: object) -> None:
        torch.empty(1 << 50)

    monkeypatch.setattr(loss_listing, "print_losses", fails)
    assert main(["losses"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("widemargin: out of memory; use a smaller --batch-size")
    assert said.count("\n") == 1

    def other(*_: object) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(loss_listing, "print_losses", other)
    with pytest.raises(RuntimeError, match="something else"):
        main(["losses"])
