"""The page and the table of a comparison: one safe file of any size, with the numbers of the results."""

import math
import re
from pathlib import Path

import pytest

from comparison_cases import HOSTILE, check_page, make_result, make_results, noisy_folds
from widemargin.cli.main import main
from widemargin.losses.registry import list_losses
from widemargin.tabular.comparison import build_comparison
from widemargin.tabular.plan import PAPER_LOSSES
from widemargin.viz.comparison_formats import baseline_notes
from widemargin.viz.comparison_page import comparison_page
from widemargin.viz.comparison_terminal import print_comparison


def test_one_method_has_nothing_to_be_compared_with(capsys):
    for names in (["made"], ["made", "other"]):
        found = build_comparison([make_result("softmax", noisy_folds(90), name) for name in names])
        assert found.across_datasets is None
        assert "nothing to compare" in found.verdict
        read = check_page(comparison_page(found))
        text = " ".join(data for _, data in read.texts)
        print_comparison(found)
        out = capsys.readouterr().out
        for one in found.sets:
            assert one.set in text
            assert one.set in out
            assert one.groups == ()
            assert one.ranks == (1.0,)


@pytest.mark.parametrize("sets", [1, 2, 15, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("methods", [1, 2, 7, 14])
def test_a_page_of_any_size_is_one_file_in_order(sets, methods):
    names = list(dict.fromkeys([*PAPER_LOSSES, *list_losses("margins")]))[:methods]
    found = build_comparison(make_results(names, [f"set{k}" for k in range(sets)]))
    read = check_page(comparison_page(found, ["A sentence on the data."], "widemargin compare"))
    text = " ".join(data for _, data in read.texts)
    for word in (*names, f"set{sets - 1}", "A sentence on the data.", "widemargin compare", "95 % interval"):
        assert word in text
    assert ("Critical-difference diagram" in text) == (sets > 1 and methods > 1)
    assert f"{methods} method{'s' * (methods > 1)}, 20 folds each" in text
    assert found.verdict in text


def test_everything_that_comes_from_outside_is_escaped():
    names = [f"a{HOSTILE}", f"b{HOSTILE}", f"c{HOSTILE}"]
    for sets in (1, 3):
        found = build_comparison(make_results(names, [f"{HOSTILE}{k}" for k in range(sets)]))
        text = comparison_page(found, [f"about {HOSTILE}"], f"widemargin {HOSTILE}", title=f"title {HOSTILE}")
        read = check_page(text)
        assert "script" not in read.tags
        assert "b" not in read.tags
        assert "<script" not in text
        assert f"about {HOSTILE}" in [data for _, data in read.texts]
        assert any(HOSTILE in data for tag, data in read.texts if tag == "title")
        assert any(name == "aria-label" and HOSTILE in value for _, name, value in read.attributes)
        assert any(HOSTILE in data for tag, data in read.texts if tag == "td")
        assert any(tag == "pre" and HOSTILE.replace('"', '\\"') in data for tag, data in read.texts)  # settings as JSON


def test_a_table_full_of_markup_from_file_to_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = "<img src=x onerror=alert(1)> & &quot;q"
    header = '"<script>alert(1)</script>","b""&quot;","kind<i>"'
    rows = [f"{k % 7},{(k * 5) % 11},{'<b>no' if k % 2 else '&amp; yes'}" for k in range(30)]
    Path(f"{name}.csv").write_text("\n".join([header, *rows]))
    quick = [
        "--cv-repeats",
        "1",
        "--folds",
        "2",
        "--epochs",
        "0",
        "--min-steps",
        "5",
        "--hidden",
        "4",
        "4",
        "--jobs",
        "1",
    ]
    assert main(["compare", f"{name}.csv", "--losses", "softmax, arcgrad", *quick, "--out", "out"]) == 0
    text = Path("out/report.html").read_text()
    read = check_page(text)
    assert any(name in data for tag, data in read.texts if tag == "h1")
    assert "<img" not in text
    assert name in capsys.readouterr().out


def test_angles_that_are_unknown_are_a_dash():
    unknown = {"wc_intra": math.nan, "w_inter": 1.5}
    rows = [make_result("softmax", noisy_folds(90), angles=unknown), make_result("svm", noisy_folds(80, 1), angles={})]
    read = check_page(comparison_page(build_comparison(rows)))
    assert "–" in [data for tag, data in read.texts if tag == "text"]
    assert "1.50" in [data for tag, data in read.texts if tag == "text"]
    without = comparison_page(
        build_comparison(
            [make_result("svm", noisy_folds(80), angles={}), make_result("mlp", noisy_folds(81, 1), angles={})]
        )
    )
    assert "Compact within" not in without
    nowhere = {"wc_intra": math.nan, "w_inter": math.nan, "c_inter": math.nan}
    check_page(comparison_page(build_comparison([make_result("softmax", noisy_folds(90), angles=nowhere)])))


@pytest.mark.parametrize("folds", [[100.0] * 10, [0.0] * 10, [96.67] * 10])
def test_methods_that_all_agree_are_drawn_on_an_axis_one_can_read(folds):
    found = build_comparison([make_result("softmax", folds), make_result("arcgrad(s=5)", folds)])
    read = check_page(comparison_page(found))
    drawn = [data for tag, data in read.texts if tag == "text" and re.fullmatch(r"-?\d+(\.\d+)?", data)]
    assert found.sets[0].groups == ((0, 1),)
    steps = [float(data) for data in drawn if data != f"{folds[0]:.2f}"]
    assert len(set(steps)) > 2  # not the same number again and again
    assert "no evidence" in found.verdict


def test_numbers_in_the_page_are_those_of_the_results(capsys):
    found = build_comparison(make_results(["softmax", "arcgrad(s=5)"], ["one"]))
    read = check_page(comparison_page(found))
    print_comparison(found)
    out = capsys.readouterr().out
    cells = [data for tag, data in read.texts if tag == "td"]
    for r, (low, high) in zip(found.sets[0].results, found.sets[0].intervals, strict=True):
        assert f"{r.mean:.2f} ± {r.std:.2f}" in cells
        assert f"{low:.2f} – {high:.2f}" in cells
        assert f"{r.mean:.2f}±{r.std:.2f}" in out
    best = max(found.sets[0].results, key=lambda r: r.mean)
    assert f'<td class="best">{best.mean:.2f} ± {best.std:.2f}</td>' in comparison_page(found)


def test_the_terminal_shows_sets_averages_and_marks(capsys):
    found = build_comparison(make_results(["softmax", "adacos"], ["one", "two", "three"]))
    print_comparison(found)
    out = capsys.readouterr().out
    for word in ("one", "two", "three", "average", "mean rank", "wins", "softmax", "adacos", "≈: not significantly"):
        assert word in out
    for average in found.across_datasets.averages:
        assert f"{average:.2f}" in out


def test_long_names_are_cut_in_pictures_only():
    name = "arcface(s=64, m=0.5) + 0.123456*center(alpha=0.25) + triplet"
    found = build_comparison([make_result(name, noisy_folds(90)), make_result("softmax", noisy_folds(91, 1))])
    read = check_page(comparison_page(found))
    assert name in [data for tag, data in read.texts if tag == "td"]
    assert all(len(data) < 45 for tag, data in read.texts if tag == "text" and "arcface" in data)


def test_baselines_on_fewer_folds_and_rows_are_named_with_their_numbers():
    rows = [make_result(loss, noisy_folds(80, k), train=90) for k, loss in enumerate(("softmax", "arcgrad(s=5)"))]
    for loss, count, fit_rows in (("random_forest", 5, 400), ("mlp", 5, 900), ("svm", 3, 400)):
        settings = {"first_folds": count, "fit_rows": fit_rows}
        rows.append(make_result(loss, noisy_folds(70, 9, count), angles={}, train=70, **settings))
    assert baseline_notes(build_comparison(rows)) == [
        "random_forest and mlp: the first 5 of these folds",
        "svm: the first 3 of these folds",
        "random_forest and svm: fitted to 400 rows of every training part",
        "mlp: fitted to 900 rows of every training part",
    ]
