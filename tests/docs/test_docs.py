"""Every block of the docs runs, and every command that they and README print: in small, or at least through the parser.

The Python of README and CONTRIBUTING runs in test_readme.py.
"""

import contextlib
import importlib
import io
import re
import shlex
import sys
from pathlib import Path

import pytest
from PIL import Image

import colours
import image_formats
import shades
from widemargin.cli.main import build_parser, main
from widemargin.losses.grammar import parse_list

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ("losses/", "losses.md", "reproduce.md", "add-a-loss.md", "api.md")
PAGES = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))
WRITTEN = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "records/README.md"]
WRITTEN += [f"docs/{page}" for page in PAGES if not page.startswith(GENERATED)]
FENCE = re.compile(r"^``` ?(\S*|\{[^}]*\})\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CELL = re.compile(r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)

# Shell commands of other programs, and where they are run.
OTHERS = {
    "pip": ".ci/run",
    "pytest": ".ci/run",
    "ruff": ".ci/run",
    "mypy": ".ci/run",
    "lint-imports": ".ci/run",
    ".ci/run": "whoever changes something",
    "pre-commit": "pre-commit",
    "python scripts/docs.py": ".ci/run, test_site.py",
    "zensical": ".ci/run, test_site.py",
    "python scripts/check_site.py": ".ci/run, test_site.py",
    "python scripts/screenshots.py": "whoever changes a page",
    "python scripts/readme.py": "tests/docs/test_readme.py",
    "python scripts/licences.py": ".ci/run, test_attacks.py",
    "python scripts/test_torch_versions.py": "whoever changes the versions that pyproject.toml claims",
    "python scripts/code_statistics.py": "tests/scripts/test_code_statistics.py",
    "python examples/million_classes.py": "tests/benchmarks/test_head.py, in small",
}
# Commands that take long: their options are parsed here; their own tests run them, in small where that takes hours.
LONG = ("reproduce", "lab", "tour", "calibrate", "gallery", "identify", "serve", "outliers")
# Commands of the checkout, and where their parsers are: always parsed only.
CHECKOUT = {"benchmarks": "benchmarks.__main__", "stress": "stress.__main__"}


def fences(text: str) -> list[tuple[str, str]]:
    return [(found[1], found[2]) for found in FENCE.finditer(text)]


def commands(text: str) -> list[str]:
    """The commands of a page's bash blocks, one by one and without their comments."""
    lines = [line for kind, block in fences(text) if kind == "bash" for line in block.splitlines()]
    plain = [shlex.join(shlex.split(line, comments=True)) for line in lines]
    return [one for line in plain if line for one in line.replace("'&&'", "&&").split(" && ")]


RUN_ELSEWHERE = ("Faces of people who were not trained on",)
"""Sections whose commands another test runs on images of their own (test_faces_path.py)."""


def own_commands(page: str) -> list[list[str]]:
    """The words behind `widemargin` of the commands that a page prints in blocks; others have to be known.

    Commands of the checkout keep their `python -m`.
    """
    found = []
    text = (ROOT / page).read_text(encoding="utf-8")
    for section in RUN_ELSEWHERE:
        text = re.sub(rf"^## {section}\n.*?(?=^## |\Z)", "", text, flags=re.DOTALL | re.MULTILINE)
    for command in commands(text):
        words = shlex.split(command)
        if words[0] == "widemargin":
            found.append(words[1:])
        elif words[:2] == ["python", "-m"]:
            found.append(words)
        else:
            assert any(command.startswith(known) for known in OTHERS), command
    return found


@pytest.mark.parametrize("page", WRITTEN)
def test_every_block_is_of_a_kind_that_is_tested(page):
    kinds = {kind for kind, _ in fences((ROOT / page).read_text(encoding="utf-8"))}
    assert kinds <= {"python", "bash", "text", "bibtex"}  # text: diagrams and terminal output


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow) if page.endswith(("/python.md", "/sklearn.md")) else page
        for page in WRITTEN
        if page not in ("README.md", "CONTRIBUTING.md")
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning:lightning.*", "ignore:.*:FutureWarning:lightning.*")
@pytest.mark.filterwarnings("ignore:.*schedule is that of:UserWarning")  # a page continues with more epochs
def test_python_runs_one_block_after_the_other(page, tmp_path, monkeypatch):
    """As the cells of a notebook; a text block directly behind a cell is what it prints ("…": anything)."""
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {"__name__": "page"}
    for code, shown in cells((ROOT / page).read_text(encoding="utf-8")):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page, "exec"), space)
        assert shown is None or looks_like(printed.getvalue(), shown), (code, printed.getvalue())


def cells(text: str) -> list[tuple[str, str | None]]:
    """The Python blocks of a page, each with the text block directly behind it."""
    return [(found[1], found[2]) for found in CELL.finditer(text)]


def looks_like(printed: str, shown: str) -> bool:
    """Whether a text is the one shown, but for the places shown as "…" and the spaces at the ends of lines."""
    lines = [re.escape(line.rstrip()).replace("…", ".*") for line in shown.strip().splitlines()]
    return re.fullmatch("\n".join(lines), "\n".join(line.rstrip() for line in printed.strip().splitlines())) is not None


@pytest.mark.parametrize(
    ("printed", "shown", "alike"),
    [("a 12.5 \nb\n", "a …\nb", True), ("a\nc", "a\nb", False), ("a\nb\nc", "a\n…", False), ("(1)", "(1)", True)],
)
def test_what_a_cell_prints_is_compared_line_by_line(printed, shown, alike):
    assert looks_like(printed, shown) is alike
    assert cells("```python\nx = 1\n```\n\n```text\n1\n```\n") == [("x = 1\n", "1\n")]
    assert cells("```python\nx = 1\n```\nprose\n```text\n1\n```\n") == [("x = 1\n", None)]


@pytest.mark.parametrize("page", WRITTEN)
def test_commands_in_sentences_are_known(page):
    text = FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    for command in re.findall(r"`((?:widemargin|python -m \w+) [^`…]+?|python -m \w+)(?: …)?`", text):
        words = shlex.split(command)
        if not {"NAME", "--help", "…"} & set(words):
            assert_parsed(words[1:] if words[0] == "widemargin" else words)


def assert_parsed(words: list[str]) -> None:
    """Accepted by the real parser, and the losses in it by the real grammar."""
    if words[:2] == ["python", "-m"]:
        module = importlib.import_module(CHECKOUT[words[2]])
        options = module.build_parser().parse_args(words[3:])
    else:
        options = build_parser(words).parse_args(words)
    for name in ("losses", "loss"):
        given = getattr(options, name, None)
        if isinstance(given, str):
            assert parse_list(given)


class Desk:
    """A folder with everything the pages name, and the runs that were trained there."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.done: dict[str, str] = {}
        self.runs: list[str] = []
        colours.draw(place)
        shades.draw(place)
        for name in ("picture.png", "a.png", "b.png", "who.png"):
            Image.open(place / "Shades" / "shade1" / f"{len(name) % 3}.png").save(place / name)
        (place / "photos").mkdir()
        Image.open(place / "a.png").save(place / "photos" / "one.png")
        rows = [f"Shades/shade{k}/0.png,Shades/shade{k + j}/1.png,{int(j == 0)}" for k in range(7) for j in (0, 1)]
        (place / "pairs.csv").write_text("\n".join(["a,b,same", *rows]) + "\n")
        for name in ("data", "elsewhere"):
            image_formats.write_folder(place / name / "faces" / "train", [6] * 4)
            image_formats.write_folder(place / name / "faces" / "test", [4] * 6, first_label=20)
        image_formats.write_lfw(place)
        (place / "faces_emore").mkdir()
        some = [data for data, _ in image_formats.encoded_pictures([4] * 6)]
        pairs = [(some[k], some[(k + 1 + 3 * (k % 2)) % len(some)], k % 4 == 0) for k in range(len(some))]
        image_formats.write_bin(place / "faces_emore" / "lfw.bin", pairs)
        sets = [
            f"Shades/shade{k}/{j}.png,{'dark;' * (k < 4)}{'even' * (k % 2 == 0)}" for k in range(7) for j in range(3)
        ]
        (place / "labels.csv").write_text("\n".join(["path,label", *sets]) + "\n")
        for name, target in (("my.csv", "species"), ("data.csv", "label")):
            lines = [f"{k % 7},{k * k % 11},{'abc'[k % 3]}" for k in range(60)]
            (place / name).write_text("\n".join([f"width,height,{target}", *lines]) + "\n")
        (place / "new.csv").write_text("height,width\n3,4\n5,6\n")

    def run(self, words: list[str]) -> None:
        """A command in small; once, however often pages print it."""
        command = shlex.join(words)
        if words[0] in LONG or words[0] == "python":
            assert_parsed(words)
        elif command not in self.done or words[0] == "train":
            here = [self.replace_name(word, words[0]) for word in words]
            if command not in self.done:
                self.done[command] = f"runs/run{len(self.runs)}"
                assert main([*here, *self.small_options(words)]) == 0, command
            if words[0] == "train":
                self.runs.append(self.done[command])

    def replace_name(self, word: str, command: str) -> str:
        if command == "train":
            return {"cifar10": "Colours", "omniglot": "Shades", "fast": "fast(width=0.125)"}.get(word, word)
        return word.replace("runs/NAME", self.runs[-1]).replace("runs/OTHER", self.runs[0]) if self.runs else word

    def small_options(self, words: list[str]) -> list[str]:
        if words[0] == "compare":
            target = [] if "--target" in words or len(words) == 1 else ["--target", "species"]
            return [*target, "--cv-repeats", "1", "--folds", "3", "--epochs", "0.1", "--min-steps", "5", "--jobs", "1"]
        if words[0] == "fit":
            trials = ["--tune-trials", "2"] if "--tune-trials" in words else []
            return [*trials, "--epochs", "0.1", "--min-steps", "5", "--quiet"]
        if words[0] == "train":
            more = ["--epochs", "1", "--batch-size", "12", "--opt", "sgd", "--lr", "0.05", "--quiet"]
            return [*more, "--input-size", "16", "--augment", "fast", "--out", self.done[shlex.join(words)]]
        # Ten false alarms or accepts are needed, and so few images show no smaller rate.
        return ["--target-far", "0.25"] if "--target-far" in words or words[0] == "verify" else []


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    return Desk(tmp_path_factory.mktemp("desk"))


@pytest.mark.parametrize("page", [page for page in WRITTEN if own_commands(page)])
def test_commands_run_one_after_the_other(page, desk, monkeypatch):
    monkeypatch.chdir(desk.place)
    for words in own_commands(page):
        desk.run(words)


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """The generated pages, freshly written."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import docs

        place = tmp_path_factory.mktemp("docs")
        docs.main(place)
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    return place


def test_examples_of_generated_pages_are_doctests_of_the_package(generated):
    """Those run with every test run (--doctest-modules)."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    known = "\n".join("\n".join(line.strip() for line in text.splitlines()) for text in sources)
    count = 0
    for path in generated.rglob("*.md"):
        for kind, block in fences(path.read_text(encoding="utf-8")):
            if kind == "pycon":
                count += 1
                assert "\n".join(line.strip() for line in block.strip().splitlines()) in known, (path, block)
            else:
                assert kind == "{ .python .signature }" or path.name == "add-a-loss.md", (path, kind)
    assert count > 40


def test_every_loss_has_a_whole_page(generated):
    import widemargin as wm

    overview = (generated / "losses.md").read_text(encoding="utf-8")
    for name in wm.list_losses():
        page = (generated / "losses" / f"{name}.md").read_text(encoding="utf-8")
        for part in ("Formula", "When to use it", "Its curve", "Example", "Reference"):
            assert f"\n## {part}\n" in page, (name, part)
        assert "<polyline" in page
        assert "nan" not in page.partition("<svg")[2]
        assert f"losses/{name}.md" in overview


def test_reproduce_has_ours_beside_the_papers(generated):
    page = (generated / "reproduce.md").read_text(encoding="utf-8")
    assert "**85.28**<br>*82.50*" in page  # the averages of ArcGrad (s=5) that records/README.md names
    for record in (ROOT / "records").glob("*.jsonl"):
        assert f"`records/{record.name}`" in page


def test_the_api_page_has_every_public_name(generated):
    import widemargin as wm

    page = (generated / "api.md").read_text(encoding="utf-8")
    assert [name for name in wm.__all__ if not name.startswith("__") and f"### `wm.{name}`\n" not in page] == []


def test_every_page_of_the_docs_is_in_their_menu():
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [page for page in WRITTEN if page.startswith("docs/") and page.removeprefix("docs/") not in menu] == []
