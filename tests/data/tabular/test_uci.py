"""The 15 UCI sets: shapes and classes, download from a server on loopback, cleaning to the exact hash, the cache."""

import re

import numpy as np
import pytest

from file_server import FileServer
from originals import originals, pack
from widemargin.data import download
from widemargin.data.download import FetchError
from widemargin.data.tabular.uci import TABLE1_SET_NAMES, UCI_SETS, load_uci_set, uci_set_names
from widemargin.io.errors import InputError
from widemargin.reproduce import paper

COUNTS = {
    "pima_indians_diabetes": {"0": 262, "1": 130},
    "hayes_roth": {"1": 65, "2": 64, "3": 31},
    "hayes_roth_with_hobby": {"1": 65, "2": 64, "3": 31},
    "user_knowledge_modeling": {"High": 102, "Low": 129, "Middle": 122, "very_low": 50},
    "breast_cancer_wisconsin": {"N": 148, "R": 46},
    "wholesale_customers": {"1": 298, "2": 142},
    "teaching_assistant_evaluation": {"1": 49, "2": 50, "3": 52},
    "banknote_authentication": {"0": 762, "1": 610},
    "congressional_voting_records": {"democrat": 124, "republican": 108},
    "website_phishing": {"-1": 702, "0": 103, "1": 548},
    "haberman": {"1": 225, "2": 81},
    "iris_uci": {"Iris-setosa": 50, "Iris-versicolor": 50, "Iris-virginica": 50},
    "iris": {"setosa": 50, "versicolor": 50, "virginica": 50},
    "breast_tissue": {"adi": 22, "car": 21, "con": 14, "fad": 15, "gla": 16, "mas": 18},
    "vertebral_column": {"Hernia": 60, "Normal": 100, "Spondylolisthesis": 150},
    "forest_type_mapping": {"d": 159, "h": 86, "o": 83, "s": 195},
    "balance_scale": {"B": 49, "L": 288, "R": 288},
}
pytestmark = pytest.mark.usefixtures("empty_cache")
DOWNLOADED = [name for name in UCI_SETS if UCI_SETS[name].sources]


@pytest.fixture(scope="session")
def files(data_dir):
    return originals(data_dir / "uci")


@pytest.fixture
def server(files, monkeypatch):
    running = FileServer(files)
    monkeypatch.setenv("WIDEMARGIN_MIRROR", f"{running.address}/")
    yield running
    running.stop()


@pytest.mark.parametrize("name", uci_set_names())
def test_every_set_has_its_shape_and_classes(data_dir, name):
    table = load_uci_set(name, data_dir)
    sizes = np.bincount(table.y)
    assert dict(zip(table.class_names, sizes.tolist(), strict=True)) == COUNTS[name]
    classes, features, rows = UCI_SETS["iris_uci" if name == "iris" else name].shape
    assert (len(table.class_names), len(table.columns), len(table)) == (classes, features, rows)
    for column in table.columns:
        assert column.levels is None
        assert column.values.dtype == np.float64
        assert column.values.flags["C_CONTIGUOUS"]
        assert np.isfinite(column.values).all()
    assert table.name == name
    assert table.source


def test_the_two_irises_differ_in_two_rows(data_dir):
    ours = np.stack([column.values for column in load_uci_set("iris").columns])
    theirs = np.stack([column.values for column in load_uci_set("iris_uci", data_dir).columns])
    assert np.flatnonzero((ours != theirs).any(axis=0)).tolist() == [34, 37]
    assert [column.name for column in load_uci_set("iris").columns] == [
        column.name for column in load_uci_set("iris_uci", data_dir).columns
    ]


def test_shapes_and_order_are_the_papers():
    assert {name: UCI_SETS[name].shape for name in TABLE1_SET_NAMES} == paper.paper_table2()
    assert tuple(paper.paper_table2()) == TABLE1_SET_NAMES
    assert len(TABLE1_SET_NAMES) == 15
    assert set(paper.paper_table1()) == {(name, method) for name in TABLE1_SET_NAMES for method in paper.PAPER_METHODS}
    assert paper.paper_table1()["haberman", "soft"] == (71.84, 1.09)
    assert [row["method"] for row in paper.read_paper_table(4)][-1] == "arcgrad"
    assert all(paper.read_paper_table(number) for number in paper.PAPER_TABLE_FILES)


def test_every_set_names_its_licence_citation_and_places():
    for entry in UCI_SETS.values():
        assert entry.licence.startswith("CC")
        assert re.search(r"\b(19|20)\d\d\b", entry.citation)
        for source in entry.sources:
            assert all(url.startswith("https://") and " " not in url for url in source.urls)
    assert [name for name in UCI_SETS if not UCI_SETS[name].sources] == ["balance_scale"]


def test_the_folder_may_be_the_one_with_uci_or_uci_itself(data_dir, monkeypatch):
    assert len(load_uci_set("haberman", data_dir / "uci")) == 306
    monkeypatch.setenv("WIDEMARGIN_DATA", str(data_dir))
    assert len(load_uci_set("haberman")) == 306


def test_balance_scale_is_generated():
    table = load_uci_set("balance_scale")
    assert table.source == "generated from its definition"
    assert dict(zip(table.class_names, np.bincount(table.y).tolist(), strict=True)) == COUNTS["balance_scale"]


@pytest.mark.parametrize("name", DOWNLOADED)
def test_download_clean_check_keep(server, empty_cache, name):
    entry = UCI_SETS[name]
    table = load_uci_set(name)
    assert len(table) == entry.shape[2]
    kept = empty_cache / "uci" / entry.file_name
    assert download.sha256_hex(kept.read_bytes()) == entry.sha256
    assert [path.name for path in kept.parent.iterdir()] == [entry.file_name]
    asked = len(server.asked)
    again = load_uci_set(name)
    assert len(server.asked) == asked
    assert again.source == str(kept)
    np.testing.assert_array_equal(again.y, table.y)
    for one, other in zip(table.columns, again.columns, strict=True):
        np.testing.assert_array_equal(one.values, other.values)


def test_once_kept_a_set_needs_no_server(files, monkeypatch):
    running = FileServer(files)
    monkeypatch.setenv("WIDEMARGIN_MIRROR", running.address)
    load_uci_set("haberman")
    running.stop()
    assert len(load_uci_set("haberman")) == 306


def test_a_damaged_file_in_the_cache_is_fetched_again(server, empty_cache):
    load_uci_set("haberman")
    (empty_cache / "uci" / "haberman.csv").write_text("age,label\n1,1\n")
    assert len(load_uci_set("haberman")) == 306


def test_a_server_that_falters_is_asked_again(server):
    server.answers = [500, 503]
    load_uci_set("pima_indians_diabetes")
    assert len(server.asked) == 3


def test_a_server_that_keeps_failing_is_one_line(server):
    server.answers = [500] * 9
    with pytest.raises(InputError, match=r"'pima_indians_diabetes': cannot download .*: the server answers 500"):
        load_uci_set("pima_indians_diabetes")
    assert len(server.asked) == 3


def test_a_file_cut_short_is_asked_for_again(server):
    server.cut = 100
    load_uci_set("pima_indians_diabetes")
    assert len(server.asked) == 2


def test_a_changed_original_is_refused_and_not_kept(server, empty_cache):
    path = next(path for path in server.files if "pima" in path)
    server.files[path] = server.files[path].replace(b"33.6", b"33.7").replace(b"28.1", b"28.2")
    with pytest.raises(
        InputError, match=r"not the data set 'pima_indians_diabetes': SHA-256 is \w{64}, expected a037727"
    ):
        load_uci_set("pima_indians_diabetes")
    assert not empty_cache.exists()


@pytest.mark.parametrize("content", [b"", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1junk", b"<html>moved</html>", b"1,2\n"])
@pytest.mark.parametrize("name", ["breast_tissue", "haberman", "vertebral_column"])
def test_a_damaged_original_is_one_line(server, name, content):
    server.files = dict.fromkeys([path for path in server.files if re.search("00192|haberman|00212", path)], content)
    with pytest.raises(InputError) as caught:
        load_uci_set(name)
    assert "\n" not in str(caught.value)
    assert "not the original of" in str(caught.value) or "SHA-256" in str(caught.value)


def test_an_archive_without_the_file_says_so(server):
    server.files["/ml/machine-learning-databases/00212/vertebral_column_data.zip"] = pack({"other.txt": b"x"})
    with pytest.raises(InputError, match=r"no column_3C_weka\.arff in the archive"):
        load_uci_set("vertebral_column")


def test_offline_is_one_line_with_the_address_and_what_to_do():
    with pytest.raises(InputError) as caught:
        load_uci_set("haberman")
    message = str(caught.value)
    assert "cannot download http://127.0.0.1:9/static/public/43/haberman+s+survival.zip: no connection" in message
    assert message.endswith("give the folder that holds 'haberman+s+survival.zip' as data_dir")
    assert "\n" not in message


def test_originals_fetched_by_hand_are_cleaned(files, tmp_path):
    (tmp_path / "BreastTissue.xls").write_bytes(files["/ml/machine-learning-databases/00192/BreastTissue.xls"])
    (tmp_path / "forest+type+mapping.zip").write_bytes(files["/static/public/333/forest+type+mapping.zip"])
    assert len(load_uci_set("breast_tissue", tmp_path)) == 106
    assert len(load_uci_set("forest_type_mapping", tmp_path)) == 523


def test_a_wrong_file_in_the_folder_is_refused(tmp_path):
    (tmp_path / "haberman.csv").write_text("age,label\n1,1\n")
    with pytest.raises(
        InputError, match=r"haberman\.csv: not the data set 'haberman': SHA-256 is .* expected afe09706"
    ):
        load_uci_set("haberman", tmp_path)


def test_names_and_folders_that_do_not_exist_are_one_line(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="did you mean 'haberman'"):
        load_uci_set("habermann")
    with pytest.raises(InputError, match=r"data_dir: .* is not a folder"):
        load_uci_set("haberman", tmp_path / "nowhere")
    monkeypatch.setenv("WIDEMARGIN_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"WIDEMARGIN_DATA: .* is not a folder"):
        load_uci_set("haberman")


def test_a_cache_that_cannot_be_written_is_one_line(server, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WIDEMARGIN_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"cannot be written .* set WIDEMARGIN_CACHE"):
        load_uci_set("haberman")


def test_the_cache_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("WIDEMARGIN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert download.cache_dir() == tmp_path / "widemargin"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert download.cache_dir() == tmp_path / ".cache" / "widemargin"


def test_only_https_is_fetched_also_after_a_redirect(server, tmp_path, monkeypatch):
    server.answers = [302]
    with pytest.raises(FetchError, match="ftp"):
        download.fetch("https://host/file", tmp_path / "got")
    monkeypatch.delenv("WIDEMARGIN_MIRROR")
    for address in ("file:///etc/passwd", "ftp://host/file", "data:,x", "http://host/file", "http://127.0.0.1.host/x"):
        with pytest.raises(FetchError, match="only https"):
            download.fetch(address, tmp_path / "got")
    assert list(tmp_path.glob("got*")) == []


def test_a_fetched_file_is_checked_bounded_and_fetched_once(server, tmp_path):
    server.files["/file"] = b"content"
    path, right = tmp_path / "got", download.sha256_hex(b"content")
    with pytest.raises(FetchError, match="7 bytes, more than"):
        download.fetch("https://host/file", path, max_bytes=6)
    with pytest.raises(FetchError, match=f"its SHA-256 is {right}, expected 00; deleted"):
        download.fetch("https://host/file", path, sha256="00")
    assert not path.exists()
    assert download.fetch("https://host/file", path, sha256=right).read_bytes() == b"content"
    asked = len(server.asked)
    download.fetch("https://host/file", path, sha256=right)
    assert len(server.asked) == asked
    path.write_bytes(b"damaged")
    assert download.fetch("https://host/file", path, sha256=right).read_bytes() == b"content"
    assert [entry.name for entry in tmp_path.iterdir()] == ["got"]
