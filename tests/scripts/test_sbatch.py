"""scripts/train.sbatch under a stand-in for SLURM: words arrive as they were, tasks follow the GPUs, requeues go on."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from colours import draw
from runs import lines

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "train.sbatch"
WORDS = ["cifar10", "fast(width=0.5)", "arcgrad(s=10) + 0.02*center", "--name", "a 'b' \"c\" $(touch x) *", "--gin"]
WORDS += ["build_transform.scale=(0.8, 1)", "", "\\"]


@pytest.fixture
def cluster(tmp_path):
    """A folder for PATH with a fake srun and scontrol, and an environment without anything of SLURM's."""
    place = tmp_path / "bin"
    place.mkdir()
    for name in ("srun", "scontrol"):
        (place / name).write_text(
            f"#!{sys.executable}\n"
            "import json, os, sys\n"
            f"with open({str(tmp_path)!r} + '/{name}.json', 'w') as file:\n"
            "    json.dump({'words': sys.argv[1:], 'environment': dict(os.environ)}, file)\n"
            f"exec(os.environ.get('FAKE_{name.upper()}', ''))\n"
        )
        (place / name).chmod(0o755)
    (place / "widemargin").symlink_to(Path(sys.executable).with_name("widemargin"))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SRUN", "OMP"))}
    return tmp_path, {**kept, "PATH": f"{place}:/usr/bin:/bin"}


def submit(cluster, words, **environment) -> tuple[list[str], dict[str, str]]:
    """The words srun was given, and its environment."""
    place, usual = cluster
    done = subprocess.run(
        ["bash", str(SCRIPT), *words],
        env={**usual, **environment},
        cwd=place,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((place / "srun.json").read_text())
    return found["words"], found["environment"]


def test_bash_can_read_it():
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    assert os.access(SCRIPT, os.X_OK)


def test_words_arrive_as_they_were(cluster):
    words, _ = submit(cluster, WORDS)
    assert words[words.index("widemargin") :] == ["widemargin", "train", *WORDS]
    assert not (cluster[0] / "x").exists()
    words, _ = submit(cluster, [])
    assert words[-2:] == ["widemargin", "train"]


@pytest.mark.parametrize(
    ("environment", "tasks", "per_node"),
    [
        ({}, 1, 1),
        ({"SLURM_GPUS_ON_NODE": "4"}, 4, 4),
        ({"SLURM_GPUS_ON_NODE": "4", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "2"}, 8, 4),
        ({"SLURM_GPUS_ON_NODE": "0", "SLURM_NTASKS_PER_NODE": "3"}, 3, 3),
        ({"SLURM_JOB_GPUS": "0,3"}, 2, 2),
        ({"SLURM_NTASKS_PER_NODE": "3", "SLURM_JOB_NUM_NODES": "2"}, 6, 3),
        ({"SLURM_NTASKS": "6", "SLURM_JOB_NUM_NODES": "2"}, 6, 3),
        ({"SLURM_NTASKS": "1"}, 1, 1),
    ],
    ids=str,
)
def test_a_task_per_gpu_else_what_was_asked_for(environment, tasks, per_node, cluster):
    words, _ = submit(cluster, WORDS, **environment)
    assert f"--ntasks={tasks}" in words
    assert f"--ntasks-per-node={per_node}" in words


def test_tasks_have_the_cores_they_were_given(cluster, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    _, environment = submit(cluster, WORDS, SLURM_CPUS_PER_TASK="8")
    assert (environment["SRUN_CPUS_PER_TASK"], environment["OMP_NUM_THREADS"]) == ("8", "8")
    _, environment = submit(cluster, WORDS)
    assert "OMP_NUM_THREADS" not in environment


@pytest.mark.parametrize(
    ("restarts", "words", "resumes"),
    [
        ("", WORDS, 0),
        ("0", WORDS, 0),
        ("1", WORDS, 1),
        ("2", ["mnist", "--resume"], 1),
        ("0", ["mnist", "--resume"], 1),
        ("1", ["mnist", "--find-lr"], 0),
        ("1", [], 1),
    ],
)
def test_only_a_requeued_job_goes_on(restarts, words, resumes, cluster):
    found, _ = submit(cluster, words, **({"SLURM_RESTART_COUNT": restarts} if restarts else {}))
    assert found.count("--resume") == resumes


@pytest.mark.parametrize(("restarts", "requeued"), [("0", True), ("50", False)])
def test_a_job_short_of_time_is_put_back(restarts, requeued, cluster):
    place, usual = cluster
    environment = {**usual, "SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": restarts}
    environment["FAKE_SRUN"] = "import time; time.sleep(1.5); sys.exit(7)"
    job = subprocess.Popen(
        ["bash", str(SCRIPT), "mnist"], env=environment, cwd=place, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 30
    while not (place / "srun.json").exists() and time.monotonic() < until:
        time.sleep(0.02)
    job.send_signal(signal.SIGUSR1)
    said = job.communicate(timeout=30)[1]
    assert job.returncode == 7  # the step's own code, not the signal's
    assert "nearly up" in said
    assert (place / "scontrol.json").exists() == requeued
    if requeued:
        assert json.loads((place / "scontrol.json").read_text())["words"] == ["requeue", "4711"]


def test_a_failed_step_is_a_failed_job_and_a_missing_command_is_told(cluster):
    place, usual = cluster
    environment = {**usual, "FAKE_SRUN": "sys.exit(2)"}
    assert subprocess.run(["bash", str(SCRIPT), "mnist"], env=environment, cwd=place, check=False).returncode == 2
    (place / "bin" / "widemargin").unlink()
    done = subprocess.run(
        ["bash", str(SCRIPT)], env=usual, cwd=place, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 127
    assert "not on PATH" in done.stderr


# What srun does, on one node: so many processes, each with its number.
TASKS = """
import subprocess
count = next(word for word in sys.argv if word.startswith("--ntasks=")).partition("=")[2]
words = sys.argv[sys.argv.index("widemargin"):]
environment = {"SLURM_NTASKS": count, "SLURM_NTASKS_PER_NODE": count, "SLURM_STEP_NUM_TASKS": count}
environment |= {"SLURM_NNODES": "1", "SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0"}
environment |= {"SLURM_NODELIST": "localhost", "SLURM_JOB_NAME": "train"}
tasks = []
for number in range(int(count)):
    own = {"SLURM_PROCID": str(number), "SLURM_LOCALID": str(number)}
    tasks.append(subprocess.Popen(words, env={**os.environ, **environment, **own}))
sys.exit(max(task.wait() for task in tasks))
"""


@pytest.mark.distributed
def test_two_tasks_train_one_run(cluster, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    model = "vit_tiny_patch16_224(patch_size=8, depth=1, embed_dim=24, num_heads=2)"
    words = [str(draw(tmp_path)), model, "arcgrad(s=10)", "--input-size", "16", "--batch-size", "16", "--epochs", "2"]
    words += ["--out", str(tmp_path / "run")]
    submit(
        cluster,
        words,
        SLURM_NTASKS_PER_NODE="2",
        SLURM_JOB_ID="4711",
        SLURM_CPUS_PER_TASK="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=port,
        FAKE_SRUN=TASKS,
    )
    assert [line["epoch"] for line in lines(tmp_path / "run")] == [1, 2]
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["processes"] == 2
    assert shlex.split(record["command"]) == ["widemargin", "train", *words]
