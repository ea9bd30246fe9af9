"""Small attacks of every kind: untrusted files, names and servers; all of them are in `python -m stress`."""

import ast
import gzip
import io
import json
import pickle
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stress import check
from stress.checks import attack_archives, attack_folders, attack_pickles, attack_source
from widemargin.data import download
from widemargin.data.images import decode
from widemargin.data.tabular import parquet, table, uci_sets
from widemargin.io import bounded, tensor_files
from widemargin.io.errors import InputError
from widemargin.io.text import escape, escape_markdown, escape_markdown_code, escape_unprintable
from widemargin.training.model import limit_parameter_bytes
from widemargin.viz import page

ATTACKS = [name for name in check.list_check_names() if name.startswith("attack_")]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_is_held_off(name, tmp_path):
    found = check.load_check(name)
    outcome = found.run(check.CheckContext(False, tmp_path))
    assert found.kind == "attack"
    assert outcome.tried > 0
    assert outcome.has_passed, outcome.note


def test_the_source_holds_nothing_that_runs_what_it_reads(tmp_path):
    outcome = attack_source.run(check.CheckContext(False, tmp_path))
    assert outcome.has_passed, outcome.note
    assert outcome.tried > 200
    for text in ("pickle.load(f)", "torch.load(p)", "torch.load(p, weights_only=False)", "eval(x)", "os.system(x)"):
        path = tmp_path / "bad.py"
        path.write_text(text)
        assert list(attack_source._find_violations(path)), text
    path.write_text("subprocess.run(x, shell=True)")
    assert list(attack_source._find_violations(path))


# ---------------------------------------------------------------- pickles


@pytest.fixture
def payload(tmp_path):
    return attack_pickles.Payload(tmp_path / "has-run")


def test_a_payload_runs_where_it_is_unpickled(payload):
    pickle.loads(pickle.dumps(payload))
    assert payload.marker.exists()


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_weights_are_never_unpickled(payload, tmp_path, ending):
    path = tmp_path / f"weights.{ending}"
    for write in (lambda: path.write_bytes(pickle.dumps(payload)), lambda: torch.save({"weight": payload}, path)):
        write()
        with pytest.raises(InputError) as caught:
            attack_pickles.load_weights_file(str(path))
        assert "\n" not in str(caught.value)
    assert not payload.marker.exists()


def test_a_sharded_checkpoint_needs_no_pickle_and_reads_none(payload, tmp_path):
    place = tmp_path / "shards"
    attack_pickles.save_shards(str(place))
    (place / ".metadata").write_bytes(pickle.dumps(payload))
    attack_pickles.load_shards(str(place))
    index = json.loads((place / "index.json").read_text())
    part = index["tensors"]["model.weight"]["parts"][0]
    for changed, words in (
        ({2: "../secret"}, "not a file of a sharded checkpoint"),
        ({2: "__0_1.distcp"}, "missing"),
        ({4: 2**50}, "its files hold"),
        ({3: -1}, "not sizes"),
    ):
        spoiled = json.loads(json.dumps(index))
        for at, value in changed.items():
            spoiled["tensors"]["model.weight"]["parts"][0][at] = value
        (place / "index.json").write_text(json.dumps(spoiled))
        with pytest.raises(InputError, match=words):
            attack_pickles.load_shards(str(place))
    huge = json.loads(json.dumps(index))
    huge["tensors"]["optimizer.0.room"] = {"dtype": "float32", "size": [2**40], "parts": []}
    (place / "index.json").write_text(json.dumps(huge))
    with pytest.raises(InputError, match="its files hold"):
        attack_pickles.load_shards(str(place))
    (place / "index.json").write_text(json.dumps(index))
    with (place / part[2]).open("r+b") as file:
        file.seek(part[3])
        file.write(pickle.dumps(payload))
    with pytest.raises(InputError, match="damaged"):
        attack_pickles.load_shards(str(place))
    (place / "index.json").unlink()
    with pytest.raises(InputError, match="not a sharded checkpoint"):
        attack_pickles.load_shards(str(place))
    assert not payload.marker.exists()


# ---------------------------------------------------------------- bounds


def test_json_is_bounded_in_depth_size_and_digits(tmp_path):
    for text in ("[" * 100_000, "[" * 500 + "]" * 500, '{"a":' * 70 + "1" + "}" * 70, "9" * 5000, "{", b"\xff", "NaN,"):
        with pytest.raises(InputError) as caught:
            bounded.parse_json(text, "it")
        assert str(caught.value).startswith("it: ")
        assert len(str(caught.value)) < 200
    assert bounded.parse_json("[" * 64 + "]" * 64, "it") is not None
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(bounded.MAX_JSON_BYTES + 1)
    with pytest.raises(InputError, match="more than 64 MiB"):
        bounded.read_json(path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(InputError, match="not a file"):
        bounded.read_json(path)


LEAVES = st.none() | st.integers(-9, 9) | st.text(max_size=5)


@given(st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("a"), inner)))
def test_json_within_bounds_is_read_as_it_is(value):
    assert bounded.parse_json(json.dumps(value), "it") == value


def test_headers_of_safetensors_are_believed_within_reason(tmp_path):
    path = tmp_path / "x.safetensors"
    for length, size, words in (
        (2 << 30, 3 << 30, "a header of 2,147,483,648 bytes"),
        (2 << 30, 100, "cut short"),
        (2**64 - 1, 100, "cut short"),
        (0, 4, "cut short"),
    ):
        with path.open("wb") as file:
            file.write(length.to_bytes(8, "little"))
            file.truncate(size)  # with a hole: it takes no disk
        with pytest.raises(tensor_files.TensorFileError, match=words):
            tensor_files.read_safetensors(path)


def test_packed_weights_are_not_unpacked(tmp_path):
    plain, path = io.BytesIO(), tmp_path / "packed.pt"
    torch.save({"weight": torch.zeros(64, 8)}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry))
    with pytest.raises(InputError, match=r"compressed, which torch\.save never does"):
        tensor_files.read_torch(path)
    path.write_bytes(plain.getvalue())
    assert tensor_files.read_torch(path)["weight"].shape == (64, 8)


def test_archives_are_bounded(tmp_path):
    path = tmp_path / "bomb.zip"
    attack_archives._write_zip_of_zeros(path, ("a.csv",), 1 << 28)
    with pytest.raises(InputError, match="unpacks to 268,435,456 bytes"):
        uci_sets.find_zip_members(path.read_bytes(), ("a.csv",))
    attack_archives._write_zip_of_zeros(path, ("a.csv",), 1 << 28, claimed_size=1000)
    with zipfile.ZipFile(path) as archive, pytest.raises(zipfile.BadZipFile):
        bounded.read_zip_member(archive, archive.infolist()[0])
    small = gzip.compress(b"a,b\n" * 1000)
    assert bounded.gunzip_bounded(small, 1 << 20, "it") == b"a,b\n" * 1000
    with pytest.raises(InputError, match="unpacks to more than 0 MiB"):
        bounded.gunzip_bounded(small, 1000, "it")
    with pytest.raises(InputError, match="300 times its size"):
        bounded.gunzip_bounded(attack_archives._gzip_of_zeros(1 << 27), 1 << 30, "it")
    stream = bounded.BoundedReader(io.BytesIO(bytes(100)), 60, "it")
    assert len(stream.read(50)) == 50
    with pytest.raises(InputError, match="more than the 60 bytes"):
        stream.read(50)


def test_members_that_lead_elsewhere_are_not_unpacked(tmp_path):
    secret, folder, archive = tmp_path / "secret", tmp_path / "room", tmp_path / "x.tar.gz"
    secret.write_text("secret")
    folder.mkdir()
    for name, kind in (("../data_batch_1.bin", tarfile.REGTYPE), ("data_batch_1.bin", tarfile.SYMTYPE)):
        with tarfile.open(archive, "w:gz") as pack:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, str(secret)
            pack.addfile(member)
        with pytest.raises(InputError):
            attack_archives.unpack(str(archive), str(folder))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["room", "secret", "x.tar.gz"]


def test_parquet_files_say_how_large_they_are(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(pa.table({"x": [1.0] * 50, "y": ["a"] * 50}), sink)
    monkeypatch.setattr(table, "MAX_CELLS", 99)
    with pytest.raises(InputError, match="50 rows of 2 columns"):
        parquet.read_parquet_grid(sink.getvalue(), table.MemoryBudget("it", 1000))


def test_pictures_are_of_known_formats_whatever_they_are_called(tmp_path):
    path = tmp_path / "x.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EOF\n")
    with pytest.raises(InputError, match="cannot be read as an image"):
        decode.read_image(path)


def test_a_network_is_not_larger_than_its_weights():
    with limit_parameter_bytes(1000, "it"):
        torch.nn.Linear(10, 10)
    for size in (1 << 13, 1 << 40, 10**30):
        with pytest.raises(InputError, match="far larger than its weights"), limit_parameter_bytes(1000, "it"):
            torch.nn.Linear(size, size)


@pytest.mark.parametrize("key", ["pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir"])
def test_models_take_no_files_of_a_strangers_choice(key):
    import widemargin.models.torchvision_compat  # noqa: F401  (first, see there)
    from widemargin.models.build import build_backbone

    pytest.importorskip("timm")

    with pytest.raises(InputError, match=f"{key} cannot be given here"):
        build_backbone("timm:resnet18(pretrained=True)", **{key: {"file": "/nowhere.pth"}})


# ---------------------------------------------------------------- names


@given(st.text())
def test_printable_text_is_one_line_that_moves_nothing(text):
    shown = escape_unprintable(text)
    assert escape_unprintable(shown) == shown
    assert not any(
        one < " " or "\x7f" <= one < "\xa0" or one in "\u2028\u2029\u202d\u202e\u2066\u2067" for one in shown
    )
    assert shown == text or not text.isprintable()


@given(st.text())
def test_escaped_text_has_no_markup(text):
    assert not set("<>\"'") & set(escape(text))
    assert "`" not in escape_markdown_code(text)
    assert all(escape_markdown(text)[k - 1] == "\\" for k, one in enumerate(escape_markdown(text)) if one in "<|`[")


def test_mistakes_are_one_line_whatever_they_quote(capsys):
    from widemargin.cli.main import main

    for word in ("\x1b[31m", "a\nwidemargin: b", "\u202e"):
        assert main(["losses", f"x{word}"]) == 2
        with pytest.raises(SystemExit):
            main(["evaluate", "run", word, word])
        said = capsys.readouterr().err
        assert said.count("\n") == 2
        assert all(line.isprintable() for line in said.splitlines())


def test_pages_forbid_every_script_but_their_own():
    plain = page.html_page("<b>", "sub", ["body"])
    assert "script-src 'none'" in plain
    assert "<script" not in plain
    own = page.html_page("t", "s", [page.json_script("x", {"a": "</script><!--<script>"})], "let a = 1;")
    assert "script-src 'sha256-" in own
    assert own.count("<script") == 2
    held = own.partition('id="x">')[2].partition("</script>")[0]
    assert json.loads(held) == {"a": "</script><!--<script>"}


# ---------------------------------------------------------------- downloads


def test_only_https_or_this_machine():
    for address in (
        "https://host/x",
        "http://127.0.0.1/x",
        "http://localhost:8/x",
        "http://[::1]/x",
        "http://127.9.9.9/",
    ):
        assert download.is_allowed_url(address), address
    for address in (
        "http://host/x",
        "http://127.0.0.1.host/",
        "http://localhost.host/",
        "ftp://localhost/",
        "http://[x/",
        "",
    ):
        assert not download.is_allowed_url(address), address


def test_https_never_leads_to_http():
    import urllib.request

    follow, asked = download._SafeRedirectHandler(), urllib.request.Request("https://host/x")
    for place in ("http://host/x", "http://127.0.0.1/x", "file:///etc/passwd", "ftp://host/x"):
        with pytest.raises(download.FetchError, match="only https"):
            follow.redirect_request(asked, io.BytesIO(), 302, "Found", {}, place)
    assert follow.redirect_request(asked, io.BytesIO(), 302, "Found", {}, "https://other/x") is not None


def test_every_known_address_is_https():
    from widemargin.data.images import originals, sets
    from widemargin.data.tabular import uci_sets

    addresses = [url for entry in originals.IMAGE_SETS.values() for url in entry.urls]
    addresses += [url for places in uci_sets.UCI_SOURCES.values() for place in places for url in place.urls]
    assert all(url.startswith("https://") for url in (*addresses, sets._OMNIGLOT_URL, sets._ORL_URL))


def test_an_import_opens_no_socket():
    code = "import sys\nsys.addaudithook(lambda e, _: e.startswith('socket.') and print('HEARD', e))\n"
    code += "from widemargin.cli.main import main\nmain(['--help'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "HEARD" not in done.stdout
    assert "usage" in done.stdout


# ---------------------------------------------------------------- licences


def test_licences_are_read_and_judged():
    script = Path(__file__).parents[2] / "scripts" / "licences.py"
    ast.parse(script.read_text())
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "torch " in done.stdout
    assert "safetensors" in done.stdout


def test_arrays_with_objects_are_refused(tmp_path, payload):
    from widemargin.data.images import sets

    np.savez(
        tmp_path / sets.OMNIGLOT_ARRAYS_FILE, images=np.array([payload], dtype=object), labels=0, drawer=0, names=0
    )
    with pytest.raises(InputError, match="not Omniglot's arrays"):
        attack_pickles.load_images("omniglot", str(tmp_path))
    assert not payload.marker.exists()


# ---------------------------------------------------------------- models of tables


@pytest.fixture(scope="module")
def table_model(tmp_path_factory):
    return attack_folders.fit_table_model(tmp_path_factory.mktemp("models"))


def test_hostile_models_of_tables_are_refused_in_one_line(table_model, tmp_path):
    from widemargin.loading import load

    _, model = table_model
    marker = tmp_path / "has-run"
    assert load(model).classes_.tolist() == ["no", "yes"]
    for what, changed in attack_folders.hostile_table_settings(str(marker)).items():
        with pytest.raises(InputError) as caught:
            load(attack_folders.change_table_model(model, changed))
        assert "\n" not in str(caught.value), what
        assert len(str(caught.value)) < 700, what
    assert not marker.exists()


def test_weights_of_a_table_model_are_finite_and_of_their_shapes(table_model):
    from safetensors.torch import load_file, save_file

    from widemargin.loading import load

    _, model = table_model
    spoiled = model.with_name("spoiled-weights")
    tensors = load_file(model / "model.safetensors")
    shutil.copytree(model, spoiled)
    for name, value in tensors.items():
        if not value.is_floating_point():
            continue
        for wrong in (torch.full_like(value, torch.nan), value.float(), torch.zeros(3, 3, 3, dtype=torch.float64)):
            save_file({**tensors, name: wrong}, spoiled / "model.safetensors")
            with pytest.raises(InputError):
                load(spoiled)
    for name in tensors:
        rest = {other: value for other, value in tensors.items() if other != name}
        save_file(rest, spoiled / "model.safetensors")
        if name != "preprocessing.decorrelation":  # which a table may do without
            with pytest.raises(InputError):
                load(spoiled)
