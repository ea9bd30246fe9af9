"""`python -m benchmarks head --device`: what is said without a CUDA device, and the checks, which run on any device."""

import pytest
import torch

from benchmarks import head_device
from benchmarks.__main__ import main


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_without_a_cuda_device_the_command_ends_with_one_line(device, capsys):
    assert main(["head", "--device", device, "--dtype", "bfloat16"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert f"--device {device}: torch {torch.__version__} finds no CUDA device" in printed.err


@pytest.mark.parametrize("words", [["--device", "tpu"], ["--device", "mps"], ["--device", "cuda:x"]])
def test_other_devices_are_refused_in_one_line(words, capsys):
    assert main(["head", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("backend", ["stream", "dense"])
def test_a_check_has_errors_against_fp64_and_counts_equal_repeats(backend):
    row = head_device.check_head("arcface", backend, torch.device("cpu"), torch.float32, (20, 16, 50), repeats=3)
    assert row["active_backend"] == backend
    assert row["equal_repeats"] == 3
    assert all(0 < error < 2e-6 for error in row["errors"].values())


def test_a_check_names_the_backend_that_was_used_instead(monkeypatch):
    monkeypatch.setattr("widemargin.head.backends.triton_backend.find_spec", lambda name: None)
    monkeypatch.setattr("widemargin.head.backends.triton_backend._warnings_given", set())
    with pytest.warns(UserWarning, match="Triton is not installed"):
        row = head_device.check_head("arcface", "triton", torch.device("cpu"), torch.float32, (20, 16, 50), repeats=1)
    assert (row["backend"], row["active_backend"]) == ("triton", "stream")


def test_repeats_with_other_bits_are_not_counted(monkeypatch):
    run_step, calls = head_device._run_step, []

    def noisy(*given):
        results, used = run_step(*given)
        calls.append(given)
        return [tensor + len(calls) % 2 for tensor in results], used

    monkeypatch.setattr(head_device, "_run_step", noisy)
    row = head_device.check_head("arcface", "dense", torch.device("cpu"), torch.float32, (4, 8, 5), repeats=4)
    assert row["equal_repeats"] == 2


def test_a_refused_loss_is_left_out_of_the_checks(monkeypatch, capsys):
    monkeypatch.setattr(head_device, "CHECK_SHAPES", ((4, 8, 20),))
    rows = head_device.check_heads(["p2sgrad"], ["triton", "stream"], torch.device("cpu"), torch.float32)
    assert [(row["loss"], row["backend"]) for row in rows] == [("p2sgrad", "stream")]
    assert "does not compute p2sgrad" in " ".join(capsys.readouterr().out.split())
    head_device.print_checks(rows)
    assert "p2sgrad" in capsys.readouterr().out
