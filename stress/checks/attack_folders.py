"""Untrusted run, hub and table-model folders: false headers, endless JSON, paths outside, networks beyond memory."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .. import fixtures
from ..check import CheckContext, Outcome
from ..sandbox import Sandbox, run_cli

TITLE = "run, hub and table-model folders with false headers, endless JSON, paths outside and networks beyond memory"
KIND = "attack"
LONG = False

_GIB = 1 << 30
_WEIGHT_FILES = ("model.safetensors", "training.safetensors")
_UNREACHABLE_PROXY = "http://127.0.0.1:9"  # a download would fail here: nothing listens on it


def run(context: CheckContext) -> Outcome:
    """Test every false statement in a hub folder, and in a run folder."""
    missing = fixtures.fixtures_unavailable_outcome()
    if missing is not None:
        return missing
    sandbox = Sandbox(context, dict.fromkeys(("http_proxy", "https_proxy", "HF_ENDPOINT"), _UNREACHABLE_PROXY))
    images, trained, hub = fixtures.train_fixtures(sandbox, context.folder)
    picture = str(next((images / "test").rglob("*.png")))
    _try_fake_headers(sandbox, trained, hub, picture)
    _try_hostile_json(sandbox, trained, hub, picture)
    _try_hostile_settings(sandbox, hub)
    _try_odd_files(sandbox, trained, hub, picture)
    _try_onnx_external_data(sandbox, trained)
    _try_table_models(sandbox)
    return sandbox.outcome()


def load_hub_offline(folder: str) -> None:
    """`widemargin.load` with every socket forbidden, as an attempt."""
    import sys

    from widemargin.loading import load

    def no_network(event: str, _: Any) -> None:
        if event in ("socket.connect", "socket.getaddrinfo"):
            raise RuntimeError("loading a folder has asked the network")

    sys.addaudithook(no_network)
    load(folder)


# ---------------------------------------------------------------- headers


def _fake_header_writer(header_bytes: int, file_bytes: int) -> Callable[[Path], None]:
    """A sparse safetensors file of this size that claims a header of this length."""

    def make(path: Path) -> None:
        with path.open("wb") as file:
            file.write(header_bytes.to_bytes(8, "little") + b'{"a":')
            file.truncate(file_bytes)

    return make


def _write_overlapping_tensors(path: Path) -> None:
    """Write ten thousand tensors that share the same bytes."""
    count = 1 << 20
    one = {"dtype": "F32", "shape": [count // 4], "data_offsets": [0, count]}
    header = json.dumps({f"t{k}": one for k in range(10_000)}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(count))


def _try_fake_headers(sandbox: Sandbox, trained: Path, hub: Path, picture: str) -> None:
    cases: dict[str, Callable[[Path], None]] = {
        "a header of 2 GiB": _fake_header_writer(2 * _GIB, 3 * _GIB),
        "a header of 2 GiB that is not there": _fake_header_writer(2 * _GIB, 100),
        "a header of 99 MB": _fake_header_writer(99_000_000, 200_000_000),
        "a header beyond all numbers": _fake_header_writer(2**64 - 1, 100),
        "an empty file": Path.touch,
        "tensors that overlap": _write_overlapping_tensors,
    }
    for what, make in cases.items():
        spoiled = fixtures.copy_beside(hub, "spoiled-hub")
        (spoiled / "model.safetensors").unlink()
        make(spoiled / "model.safetensors")
        sandbox.expect_refusal(f"{what}, hub folder", load_hub_offline, str(spoiled))
        run = fixtures.copy_beside(trained, "spoiled")
        (run / "checkpoints" / "last" / "model.safetensors").unlink()
        make(run / "checkpoints" / "last" / "model.safetensors")
        (run / "checkpoints" / "last" / "sha256.json").unlink()
        sandbox.expect_refusal(f"{what}, run", run_cli, "predict", str(run), picture)


# ---------------------------------------------------------------- JSON


def _hostile_json_texts() -> dict[str, bytes]:
    deep = 100_000
    return {
        "lists 100,000 deep": b"[" * deep + b"]" * deep,
        "objects 100,000 deep": b'{"a":' * deep + b"1" + b"}" * deep,
        "lists 500 deep": b"[" * 500 + b"]" * 500,
        "a number of a million digits": b'{"format": ' + b"9" * 1_000_000 + b"}",
        "numbers beyond all": b'{"format": 1, "run": {"epochs": 1e999}, "input_spec": {}}',
        "100 MB of nothing": b" " * 100_000_000,
        "no text at all": bytes(range(256)),
    }


def _try_hostile_json(sandbox: Sandbox, trained: Path, hub: Path, picture: str) -> None:
    last = "checkpoints/last"
    for what, text in _hostile_json_texts().items():
        spoiled = fixtures.copy_beside(hub, "spoiled-hub")
        (spoiled / "widemargin.json").write_bytes(text)
        sandbox.expect_refusal(f"{what} as widemargin.json", load_hub_offline, str(spoiled))
        for name, use in (("run.json", "predict"), (f"{last}/state.json", "predict"), ("record.json", "report")):
            run = fixtures.copy_beside(trained, "spoiled")
            (run / name).write_bytes(text)
            (run / last / "sha256.json").unlink()
            words = ("report", str(run), "--no-images") if use == "report" else ("predict", str(run), picture)
            # Some of these are valid JSON but not a record: a report without metrics is harmless.
            expect = sandbox.expect_harmless if use == "report" else sandbox.expect_refusal
            expect(f"{what} as {name}, {use}", run_cli, *words)


# ---------------------------------------------------------------- what the settings say


def _try_hostile_settings(sandbox: Sandbox, hub: Path) -> None:
    """Settings that name files, addresses, programs or sizes; each must be refused or have no effect."""
    marker, outside = str(sandbox.payload_marker), sandbox.folder / "outside.pth"
    outside.write_bytes(b"\x80\x04cposix\nmkdir\n(V" + marker.encode() + b"\ntR.")
    overlay = {"file": str(outside)}
    refused: dict[str, dict[str, Any]] = {
        "a loss that is a program": {"loss": f"__import__('os').mkdir({marker!r})"},
        "a model that is a program": {"model": f"fast(width=__import__('os').mkdir({marker!r}))"},
        "weights from a path outside": {"model": "timm:resnet18", "model_options": {"checkpoint_path": str(outside)}},
        "an overlay with a path outside": {
            "model": "timm:resnet18(pretrained=True)",
            "model_options": {"pretrained_cfg_overlay": overlay},
        },
        "a description with a path outside": {
            "model": "timm:resnet18(pretrained=True)",
            "model_options": {"pretrained_cfg": overlay},
        },
        "a model of the hub": {"model": "hf-hub:stranger/model"},
        "a model of a folder outside": {"model": f"local-dir:{sandbox.folder}"},
        "another model's weights, fetched": {"model": "timm:resnet18(pretrained=True)"},
        "embeddings of a terabyte": {"embedding_dim": 10**12},
        "embeddings beyond memory": {"embedding_dim": 2**26},
        "a number that no machine has": {"embedding_dim": 10**30},
        "a network of terabytes": {"model": "fast(widths=(100000, 1000000, 1000000))"},
        "a field that nobody knows": {"__class__": "x"},
        "pictures as large as a wall": {"input_size": 65_536},
    }
    for what, changed in refused.items():
        sandbox.expect_refusal(what, load_hub_offline, str(_copy_with_settings(hub, run=changed)))
    for what, changed in {
        "a run begun from a path outside": {"init_from": str(outside)},
        "images in a folder outside": {"data": "../../../../etc"},
    }.items():
        sandbox.expect_harmless(what, load_hub_offline, str(_copy_with_settings(hub, run=changed)))
    images: dict[str, dict[str, Any]] = {
        "pictures of 65,536 pixels": {"size": 65_536, "channels": 4096},
        "pictures of 65,536 pixels in colour": {"size": 65_536},
        "a size that is no number": {"size": "../../etc/passwd"},
        "as many classes as bytes": {"class_names": ["x"] * 1_000_000},
    }
    for what, input_spec in images.items():
        sandbox.expect_refusal(what, load_hub_offline, str(_copy_with_settings(hub, input_spec=input_spec)))


def _copy_with_settings(hub: Path, **parts: dict[str, Any]) -> Path:
    """Copy a hub folder with other settings."""
    spoiled = fixtures.copy_beside(hub, "spoiled-hub")
    path = spoiled / "widemargin.json"
    facts = json.loads(path.read_text(encoding="utf-8"))
    for part, changed in parts.items():
        facts[part].update(changed)
    path.write_text(json.dumps(facts), encoding="utf-8")
    return spoiled


# ---------------------------------------------------------------- files that are none


def _replace_with_non_file(path: Path, replacement: str) -> None:
    """Replace a file by something else."""
    path.unlink(missing_ok=True)
    if replacement == "a folder":
        path.mkdir()
    elif replacement == "a pipe":
        os.mkfifo(path)
    elif replacement == "a link to /dev/zero":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(8 * _GIB)


def _write_sparse_tensor(path: Path) -> None:
    """Write a sparse tensor of 8 GiB in a file with a correct header."""
    size = 8 * _GIB
    header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)


def _try_odd_files(sandbox: Sandbox, trained: Path, hub: Path, picture: str) -> None:
    """Links to devices, pipes without a writer, sparse files: a naive reader would not end."""
    kinds = ("a link to /dev/zero", "a pipe", "a folder", "8 GiB of holes")
    for name in ("widemargin.json", "model.safetensors"):
        for what in kinds:
            spoiled = fixtures.copy_beside(hub, "spoiled-hub")
            _replace_with_non_file(spoiled / name, what)
            sandbox.expect_refusal(f"{what} as {name}", load_hub_offline, str(spoiled))
    last = "checkpoints/last"
    in_last = tuple(f"{last}/{name}" for name in ("state.json", "sha256.json", *_WEIGHT_FILES))
    for name in ("run.json", "metrics.jsonl", "record.json", *in_last):
        words = ("report", "--no-images") if name in ("metrics.jsonl", "record.json") else ("predict", picture)
        for what in kinds:
            run = fixtures.copy_beside(trained, "spoiled")
            _replace_with_non_file(run / name, what)
            sandbox.expect_refusal(f"{what} as {name} of a run", run_cli, words[0], str(run), *words[1:])
    for name in _WEIGHT_FILES:
        run = fixtures.copy_beside(trained, "spoiled")
        (run / last / "sha256.json").unlink()
        _write_sparse_tensor(run / last / name)
        sandbox.expect_refusal(f"a tensor of 8 GiB of holes in {name}", run_cli, "predict", str(run), picture)
    for what in kinds:
        results = sandbox.folder / "compared"
        results.mkdir(exist_ok=True)
        _replace_with_non_file(results / "results.jsonl", what)
        sandbox.expect_refusal(f"{what} as results.jsonl", open_store, str(results))
        shutil.rmtree(results)


def open_store(folder: str) -> None:
    """The results of a comparison, as an attempt."""
    from widemargin.tabular.results import ResultStore

    ResultStore(folder)


# ---------------------------------------------------------------- models of tables


def fit_table_model(folder: Path) -> tuple[Path, Path]:
    """A table with numbers, words and dates, and the model of it that the command writes."""
    table, model = folder / "table.csv", folder / "table-model"
    rows = [f"{k % 7 + k / 100},{'abc'[k % 3]},2024-01-{k % 28 + 1:02d},{'no' if k % 2 else 'yes'}" for k in range(60)]
    table.write_text("x,word,day,y\n" + "\n".join(rows) + "\n", encoding="utf-8")
    run_cli("fit", str(table), "--target", "y", "--out", str(model), "--epochs", "0", "--min-steps", "5", "--quiet")
    return table, model


def hostile_table_settings(marker: str) -> dict[str, dict[str, Any]]:
    """Changes of a model's JSON, each of which must be refused: programs, sizes, and what does not fit together."""
    return {
        "a loss that is a program": {"loss": f"__import__('os').mkdir({marker!r})"},
        "a loss with a billion sub-centres": {"loss": "subcenter_arcface(k=1000000000)"},
        "a loss for other weights": {"loss": "subcenter_arcface(k=3)"},
        "a loss without class weights": {"loss": "triplet"},
        "layers of a terabyte": {"mlp_config": {"hidden": [2**31 - 1, 24]}},
        "layers that are not there": {"mlp_config": {"hidden": [64, 32, 24]}},
        "a field that nobody knows": {"mlp_config": {"__class__": "x"}},
        "a parameter that nobody knows": {"parameters": {"__class__": "x"}},
        "as many classes as bytes": {"classes": [f"{k:07d}" for k in range(1_000_000)]},
        "one class": {"classes": ["no"]},
        "classes that are objects": {"class_dtype": "O"},
        "classes of a gigabyte each": {"class_dtype": "<U1000000000"},
        "classes that are lists": {"classes": [[1], [2]]},
        "a temperature of nothing": {"temperature": 0},
        "a temperature that is a word": {"temperature": "hot"},
        "columns of no kind": {"columns": [{"name": "x", "kind": "pickle", "feature_names": ["x"]}]},
        "columns without names": {"columns": [{}]},
        "a million levels": {
            "columns": [
                {"name": "x", "kind": "category", "feature_names": ["x"], "levels": [str(k) for k in range(1_000_000)]}
            ]
        },
        "fewer columns than numbers": {"columns": [{"name": "x", "kind": "number", "feature_names": ["x"]}]},
        "a seed that is a list": {"seed": []},
        "another format": {"format": 99},
        "a format beyond all numbers": {"format": 10**400},
        "class counts of another length": {"loss": "ldam", "class_counts": [1]},
    }


def change_table_model(model: Path, changed: dict[str, Any]) -> Path:
    """A copy of a model's folder with other settings."""
    spoiled = fixtures.copy_beside(model, "spoiled-model")
    path = spoiled / "widemargin.json"
    facts = json.loads(path.read_text(encoding="utf-8"))
    for name, value in changed.items():
        facts[name] = {**facts[name], **value} if isinstance(facts[name], dict) else value
    path.write_text(json.dumps(facts), encoding="utf-8")
    return spoiled


def _try_table_models(sandbox: Sandbox) -> None:
    """The folder of a table's model: headers, JSON, settings and files as above, by `wm.load` and by the command."""
    table, model = fit_table_model(sandbox.folder)
    sandbox.expect_harmless("a model of a table answers", run_cli, "predict", str(model), str(table))
    headers: dict[str, Callable[[Path], None]] = {
        "a header of 2 GiB": _fake_header_writer(2 * _GIB, 3 * _GIB),
        "a header beyond all numbers": _fake_header_writer(2**64 - 1, 100),
        "an empty file": Path.touch,
        "tensors that overlap": _write_overlapping_tensors,
        "a tensor of 8 GiB of holes": _write_sparse_tensor,
    }
    for what, make in headers.items():
        spoiled = fixtures.copy_beside(model, "spoiled-model")
        (spoiled / "model.safetensors").unlink()
        make(spoiled / "model.safetensors")
        sandbox.expect_refusal(f"{what}, model of a table", run_cli, "predict", str(spoiled), str(table))
    for what, text in _hostile_json_texts().items():
        spoiled = fixtures.copy_beside(model, "spoiled-model")
        (spoiled / "widemargin.json").write_bytes(text)
        sandbox.expect_refusal(f"{what}, model of a table", load_hub_offline, str(spoiled))
    for what, changed in hostile_table_settings(str(sandbox.payload_marker)).items():
        spoiled = change_table_model(model, changed)
        sandbox.expect_refusal(f"{what}, model of a table", load_hub_offline, str(spoiled))
    for name in ("widemargin.json", "model.safetensors"):
        for what in ("a link to /dev/zero", "a pipe", "a folder", "8 GiB of holes"):
            spoiled = fixtures.copy_beside(model, "spoiled-model")
            _replace_with_non_file(spoiled / name, what)
            sandbox.expect_refusal(f"{what} as {name} of a table's model", load_hub_offline, str(spoiled))


# ---------------------------------------------------------------- ONNX


def load_weights_file(path: str) -> None:
    """Class weights out of a file, as an attempt."""
    from widemargin.head.import_weights import read_class_weights

    read_class_weights(path, 8)


def _try_onnx_external_data(sandbox: Sandbox, trained: Path) -> None:
    """A graph with its weights in an external file: our files contain their weights, and we read none."""
    if find_spec("onnx") is None:
        return
    import onnx
    from onnx import TensorProto, helper

    secret = sandbox.folder / "secret.bin"
    secret.write_bytes(bytes(256))
    for what, location in (
        ("outside", "../secret.bin"),
        ("by its whole path", str(secret)),
        ("/etc/passwd", "/etc/passwd"),
    ):
        folder = sandbox.folder / "graph"
        folder.mkdir(exist_ok=True)
        weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[8, 8], data_location=TensorProto.EXTERNAL)
        weight.external_data.add(key="location", value=location)
        flow = [helper.make_node("MatMul", ["x", "w"], ["y"])]
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in "xy"]
        model = helper.make_model(helper.make_graph(flow, "g", ends[:1], ends[1:], [weight]))
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        for name, call in (("load", load_hub_offline), ("weights", load_weights_file)):
            sandbox.expect_refusal(f"ONNX with its weights {what}, {name}", call, str(folder / "model.onnx"))
        sandbox.expect_refusal(f"ONNX with its weights {what}, a folder of it", load_hub_offline, str(folder))
        sandbox.expect_refusal(f"ONNX with its weights {what}, predict", run_cli, "predict", str(folder), str(secret))
    if find_spec("onnxruntime") is None or find_spec("onnxscript") is None:
        return
    out = sandbox.folder / "handed" / "model.onnx"
    sandbox.expect_harmless("a run is exported", run_cli, "export", str(trained), "--onnx", str(out))
    if not out.is_file():
        sandbox.add_result("what we write holds its own weights", "the export has left no file")
        return
    exported = onnx.load(out, load_external_data=False)
    inside = all(one.data_location != TensorProto.EXTERNAL for one in exported.graph.initializer)
    sandbox.add_result("what we write holds its own weights", "" if inside else "it points to another file")
