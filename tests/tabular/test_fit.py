"""A model to take home: the same predictions from the command, from Python and from a second process."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import adult_like
import widemargin as wm
from widemargin.cli.main import main
from widemargin.tabular import fit as fit_module
from widemargin.tabular.predictions import predict_file

CSV, NEW = adult_like.draw(500, seed=0), adult_like.draw(60, seed=1)
QUICK = {"epochs": 1, "min_steps": 80}
CLEAN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
"""Without what makes the package importable here: an environment finds its own."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table with every kind of column, new rows of it, and a model of it that the command wrote."""
    place = tmp_path_factory.mktemp("home")
    CSV.to_csv(place / "my.csv", index=False)
    NEW.drop(columns="income").to_csv(place / "new.csv", index=False)
    words = ["fit", str(place / "my.csv"), "--target", "income", "--loss", "cosface(s=8, m=0.1)", "--quiet"]
    assert main([*words, "--epochs", "1", "--min-steps", "80", "--seed", "3", "--out", str(place / "model")]) == 0
    return place


def probabilities(table):
    return table[[name for name in table.columns if name.startswith("p_")]].to_numpy()


def test_the_same_predictions_from_the_command_from_python_and_from_another_process(folder):
    out = folder / "command.csv"
    assert main(["predict", str(folder / "model"), str(folder / "new.csv"), "--out", str(out)]) == 0
    from_command = pd.read_csv(out)
    fitted = wm.fit(
        folder / "my.csv", target="income", loss="cosface(s=8, m=0.1)", mlp_config=QUICK, seed=3, quiet=True
    )
    loaded = wm.load(folder / "model")
    code = (
        "import sys, json, pandas as pd, widemargin as wm; m = wm.load(sys.argv[1]);"
        "x = pd.read_csv(sys.argv[2]); json.dump([m.predict(x).tolist(), m.predict_proba(x).tolist()], sys.stdout)"
    )
    words = [sys.executable, "-c", code, str(folder / "model"), str(folder / "new.csv")]
    done = subprocess.run(words, check=True, capture_output=True, timeout=120)
    labels, shares = json.loads(done.stdout)
    assert from_command["prediction"].tolist() == labels
    for found in (
        shares,
        fitted.predict_proba(NEW),
        loaded.predict_proba(NEW),
        loaded.predict_proba(folder / "new.csv"),
    ):
        np.testing.assert_allclose(probabilities(from_command), found, rtol=0, atol=1e-12)
    assert loaded.score(NEW.drop(columns="income"), NEW["income"]) > 0.7
    assert loaded.get_params()["loss__m"] == 0.1


def modules_beyond_the_dependencies():
    """Importable modules here that `pip install widemargin` without extras would not bring."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted, known = [Requirement(line) for line in project["dependencies"]], set()
    while wanted:
        name = canonicalize_name(wanted.pop().name)
        if name not in known:
            known.add(name)
            requirements = [Requirement(line) for line in metadata.distribution(name).requires or []]
            wanted += [one for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]
    return [
        module
        for module, packages in metadata.packages_distributions().items()
        if module != "widemargin" and not {canonicalize_name(package) for package in packages} & known
    ]


@pytest.mark.slow
def test_a_model_needs_nothing_but_its_folder_and_the_package_without_extras(tmp_path):
    """As in a second environment: the files of the package, the model and new rows in another folder, no variables."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    CSV.to_csv(first / "my.csv", index=False)
    fitted = wm.fit(first / "my.csv", target="income", mlp_config=QUICK, out=first / "model", quiet=True)
    shutil.move(first / "model", second / "model")
    shutil.rmtree(first)
    NEW.drop(columns="income").to_csv(second / "new.csv", index=False)
    shutil.copytree(
        Path(wm.__file__).parent, tmp_path / "site" / "widemargin", ignore=shutil.ignore_patterns("__pycache__")
    )
    missing = modules_beyond_the_dependencies()
    assert "pyarrow" in missing
    assert "torch" not in missing
    code = (
        "import json, sys; sys.modules.update(dict.fromkeys(json.loads(sys.argv[1])));"
        "from widemargin.cli.main import main; model = 'predict model new.csv --out predictions.csv'.split();"
        "sys.exit(main(model) or main('fit iris --min-steps 5 --epochs 0 --quiet --out iris-model'.split()))"
    )
    variables = {"PYTHONPATH": str(tmp_path / "site"), "HOME": str(second), "PATH": "/usr/bin:/bin"}
    words = [sys.executable, "-c", code, json.dumps(missing)]
    done = subprocess.run(words, cwd=second, env=variables, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(second / "predictions.csv")
    assert table["prediction"].tolist() == fitted.predict(NEW).tolist()
    np.testing.assert_allclose(probabilities(table), fitted.predict_proba(NEW), rtol=0, atol=1e-12)
    assert (second / "iris-model" / "model.safetensors").is_file()


def test_columns_are_found_by_name_and_unseen_levels_are_counted(folder, capsys):
    model = wm.load(folder / "model")
    shuffled = NEW[list(reversed(NEW.columns))].assign(more=1.5)
    np.testing.assert_array_equal(model.predict_proba(shuffled), model.predict_proba(NEW))
    strange = NEW.drop(columns="income")
    strange.loc[[3, 7], "education"] = "none of these"
    strange.to_csv(folder / "strange.csv", index=False)
    assert main(["predict", str(folder / "model"), str(folder / "strange.csv"), "--out", str(folder / "s.csv")]) == 0
    assert "2 values of 'education' were not in the training table" in capsys.readouterr().err
    x = model.encoder_.transform(strange)
    columns = [name.startswith("education=") for name in model.encoder_.get_feature_names_out()]
    assert x[[3, 7]][:, columns].sum() == 0
    assert (x[:3][:, columns].sum(1) == 1).all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x.drop(columns=["age", "hours"]), "no column 'age', 'hours'"),
        (lambda x: x.assign(age=["old"] * len(x)), "row 2, column 'age': 'old' is not a number"),
        (lambda x: x.assign(hours="40.5"), "'40.5' is not a number as in training (decimal sign ,)"),
        (lambda x: x.assign(hired="12/31/2024"), "'12/31/2024' is not a date"),
        (lambda x: x.assign(gain="€ 5"), "'€ 5' is not a number"),
    ],
)
def test_what_cannot_be_read_as_in_training_is_one_line(folder, capsys, change, said):
    change(NEW.drop(columns="income")).to_csv(folder / "wrong.csv", index=False)
    assert main(["predict", str(folder / "model"), str(folder / "wrong.csv"), "--out", str(folder / "w.csv")]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert said in lines[0]
    assert not (folder / "w.csv").exists()


def test_embeddings_rejection_parquet_and_standard_streams(folder, capsys):
    model = wm.load(folder / "model")
    far = pd.concat([NEW, NEW.assign(age=999)]).drop(columns="income")
    out = folder / "far.parquet"
    found = predict_file(model, far, out, embeddings=True, target_far=0.05)
    table = pd.read_parquet(out)
    assert len(table) == found.num_rows == 120
    np.testing.assert_allclose(np.stack(table["embedding"]), model.transform(far), atol=1e-12)
    assert table["is_unknown"][60:].all()
    assert table["is_unknown"][:60].mean() < 0.2
    assert (table["prediction"][table["is_unknown"]] == "unknown").all()
    assert (model.is_unknown(far, 0.05) == table["is_unknown"]).all()
    pq = folder / "new.parquet"
    NEW.drop(columns="income").to_parquet(pq)
    assert main(["predict", str(folder / "model"), str(pq)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("prediction,p_<=50K")
    assert len(lines) == 61
    assert main(["predict", str(folder / "model"), str(pq), "--target-far", "0.001"]) == 2
    assert "needs at least 10 false alarms: 10,000 held-out rows; there are 500" in capsys.readouterr().err


def test_the_rate_of_false_alarms_is_that_of_new_rows():
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((4_000, 6)), np.arange(4_000) % 2
    x[:, 0] += 2 * y
    model = wm.MarginClassifier(random_state=0, epochs=0, min_steps=3, hidden=(4,)).fit(x[:2_000], y[:2_000])
    for far in (0.02, 0.1):
        assert abs(model.is_unknown(x[2_000:], far).mean() - far) < 4 * np.sqrt(far / 2_000)
    assert model.is_unknown(x[2_000:] + 20).all()
    for wrong in (0, 1, -0.1, True, "x"):
        with pytest.raises(wm.InputError, match="target_far"):
            model.is_unknown(x, wrong)


# ---------------------------------------------------------------- which loss


def test_the_best_loss_of_a_comparison_with_its_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    CSV.to_csv("my.csv", index=False)
    losses = ["softmax", "arcface(s=20, m=0.1)"]
    quick = {"cv_repeats": 1, "folds": 3, "mlp_config": {**QUICK, "lr": 0.02}, "jobs": 1, "quiet": True}
    report = wm.compare(
        "my.csv", target="income", losses=losses, baselines=False, out="compare-my", tune_trials=2, **quick
    )
    best = report.sets[0].results[report.sets[0].order[0]]
    chosen = best.settings["tuning"]["chosen"]
    for loss in ("compare-my", "best"):
        model = wm.fit("my.csv", target="income", loss=loss, quiet=True)
        assert wm.parse(model.loss_).name == wm.parse(best.loss).name
        assert model.config_.lr == pytest.approx(np.median([fold["lr"] for fold in chosen]))
        assert model.config_.min_steps == 80
    changed = CSV.assign(age=CSV["age"] + 1)
    with pytest.raises(wm.InputError, match="has no results for table as it is now"):
        wm.fit(changed, target="income", loss="compare-my", quiet=True)
    with pytest.raises(wm.InputError, match="not a comparison"):
        wm.fit("my.csv", target="income", loss=str(tmp_path), quiet=True)
    # The page and the terminal say what to use, and the command does it.
    assert report.recommendation.commands == ("widemargin fit my.csv --target income --loss compare-my --out model-my",)
    page = (tmp_path / "compare-my" / "report.html").read_text()
    assert page.index("What to use") > page.index("How this was made")
    assert json.loads((tmp_path / "compare-my" / "verdict.json").read_text())["recommendation"].startswith("Use ")


def test_a_comparison_that_no_loss_wins_says_so(tmp_path, capsys):
    words = ["compare", "iris", "--losses", "softmax", "--cv-repeats", "1", "--folds", "3", "--jobs", "1"]
    assert main([*words, "--epochs", "0", "--min-steps", "1", "--out", str(tmp_path / "c")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Nothing here beats" in said
    assert f"widemargin fit iris --loss {tmp_path / 'c'} --out model-iris" in said


def test_best_without_a_comparison_makes_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = []

    def compare(table, **options):
        asked.append(options)
        return wm.compare(table, losses=["softmax", "arcgrad(s=5)"], mlp_config=QUICK, jobs=1, **options)

    monkeypatch.setattr(fit_module, "compare", compare)
    model = wm.fit("iris", loss="best", quiet=True)
    assert asked[0]["cv_repeats"] == 1
    assert model.score(*adult_like.iris_frame()) > 0.9


def test_tuned_and_weighted(tmp_path):
    model = wm.fit(CSV, target="income", tune_trials=2, class_weight="balanced", mlp_config=QUICK, quiet=True)
    assert set(model.tuned_) == {"lr", "weight_decay", "s"}
    assert wm.parse(model.loss_).s == model.tuned_["s"]
    model.save(tmp_path / "m")
    twin = wm.load(tmp_path / "m")
    assert twin.tuned_ == model.tuned_
    assert twin.class_weight == "balanced"
    assert (twin.predict_proba(NEW) == model.predict_proba(NEW)).all()


# ---------------------------------------------------------------- streamed tables


def test_a_streamed_table_is_fitted_and_answered_block_by_block(tmp_path, monkeypatch):
    from widemargin.data.tabular import parquet_stream

    CSV.to_parquet(tmp_path / "my.parquet", row_group_size=130)
    whole = wm.fit(tmp_path / "my.parquet", target="income", mlp_config=QUICK, quiet=True)
    monkeypatch.setattr(fit_module, "MAX_STATISTICS_ROWS", 400)
    monkeypatch.setattr(parquet_stream, "MAX_BLOCK_ROWS", 37)
    streamed = wm.fit(tmp_path / "my.parquet", target="income", mlp_config=QUICK, quiet=True)
    np.testing.assert_array_equal(streamed.predict_proba(NEW), whole.predict_proba(NEW))
    predict_file(streamed, tmp_path / "my.parquet", tmp_path / "p.parquet")
    expected = whole.predict_proba(CSV)
    np.testing.assert_allclose(probabilities(pd.read_parquet(tmp_path / "p.parquet")), expected, atol=1e-12)
    monkeypatch.setattr(fit_module, "ENCODER_ROWS", 200)
    monkeypatch.setattr(fit_module, "MAX_STREAMED_VALUES", 300 * len(whole.encoder_.is_numeric_))
    sampled = wm.fit(tmp_path / "my.parquet", target="income", mlp_config=QUICK, quiet=True)
    assert sum(sampled.class_counts_) == 300
    assert sampled.score(CSV, CSV["income"]) > 0.7
    with pytest.raises(wm.InputError, match="name the loss"):
        wm.fit(tmp_path / "my.parquet", target="income", loss="best", quiet=True)


# ---------------------------------------------------------------- the folder


def test_a_folder_is_replaced_only_if_asked(tmp_path):
    model = wm.fit("iris", mlp_config=QUICK, quiet=True)
    place = model.save(tmp_path / "m")
    assert sorted(path.name for path in place.iterdir()) == ["model.safetensors", "widemargin.json"]
    with pytest.raises(wm.InputError, match="overwrite"):
        model.save(place)
    model.save(place, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    (place / "mine.txt").write_text("x")
    with pytest.raises(wm.InputError, match="other than a table model"):
        model.save(place, overwrite=True)
    with pytest.raises(wm.InputError, match="exists already"):
        wm.fit("iris", out=place, quiet=True)
    facts = json.loads((place / "widemargin.json").read_text())
    assert facts["kind"] == "table_model"
    assert facts["versions"]["widemargin"] == wm.__version__


@pytest.mark.parametrize("labels", [[0, 1, 2], [1.5, 2.5, 9.0], ["a", "b", "c"], [True, False, True]])
def test_classes_keep_their_type(tmp_path, labels):
    x, y = np.random.default_rng(0).standard_normal((60, 3)), np.array(labels)[np.arange(60) % 3]
    if y.dtype.kind == "f":
        y = y.round()
    model = wm.MarginClassifier(random_state=0, calibrate=False, **QUICK).fit(x, y)
    model.save(tmp_path / "m")
    twin = wm.load(tmp_path / "m")
    assert twin.classes_.dtype == model.classes_.dtype
    assert (twin.predict(x) == model.predict(x)).all()
    with pytest.raises(wm.InputError, match="without column names"):
        predict_file(twin, "iris.csv", "-")


@pytest.mark.exhaustive
def test_the_same_file_from_a_model_carried_to_a_second_fresh_environment(folder, tmp_path):
    """Two environments with the package and its dependencies alone; only the model and the rows go to the second."""
    root, written = Path(__file__).parents[2], []
    source = tmp_path / "source"  # a build writes into the folder that it is made from
    shutil.copytree(root, source, ignore=shutil.ignore_patterns(".*", "runs", "site", "build", "*.egg-info"))
    for name in ("first", "second"):
        python = tmp_path / name / "venv" / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", str(tmp_path / name / "venv")], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "-c", str(root / "constraints.txt"), str(source)]
        subprocess.run(install, check=True)
        here, command = tmp_path / name, [str(python.with_name("widemargin"))]
        shutil.copy(folder / "new.csv", here)
        if name == "first":
            shutil.copy(folder / "my.csv", here)
            words = ["fit", "my.csv", "--target", "income", "--loss", "arcgrad", "--tune-trials", "2", "--out", "model"]
            subprocess.run([*command, *words, "--quiet"], check=True, cwd=here, env=CLEAN)
        else:
            shutil.copytree(tmp_path / "first" / "model", here / "model")
        subprocess.run([*command, "predict", "model", "new.csv", "--out", "out.csv"], check=True, cwd=here, env=CLEAN)
        written.append((here / "out.csv").read_bytes())
    assert written[0] == written[1]
    in_python = wm.load(tmp_path / "first" / "model").predict_proba(tmp_path / "first" / "new.csv")
    np.testing.assert_allclose(
        probabilities(pd.read_csv(tmp_path / "first" / "out.csv")), in_python, rtol=0, atol=1e-12
    )
