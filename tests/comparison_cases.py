"""Hand-made results of a comparison, with and without baselines, and a reader of pages that says what is in them."""

import re
from html.parser import HTMLParser

import numpy as np

from widemargin.tabular.results import Result
from widemargin.viz.comparison_page import comparison_page
from widemargin.viz.comparison_terminal import print_comparison

ANGLES = {"wc_intra": 0.2, "w_inter": 2.0, "c_inter": 1.9}
HOSTILE = """<script>alert(1)</script>"&quot;'&amp;<b"""
VOID = {"meta", "br", "img", "link", "input", "hr"}
CLOSED = {"line", "circle", "rect", "polyline", "polygon", "path"}  # of SVG, which may close themselves
UNDERFIT = {"softmax": (30, 31), "arcgrad(s=30)": (38, 40)}
FITTED = {"softmax": (75, 90), "arcgrad(s=30)": (90, 97)}


def make_result(loss, folds, name="made", num_folds=10, angles=ANGLES, train=None, **settings):
    folds = [float(fold) for fold in folds]
    std = float(np.std(folds, ddof=1))
    versions = {"widemargin": "0", "torch": HOSTILE}
    settings = {"cv_repeats": len(folds) // num_folds, "folds": num_folds, **settings}
    fitted = [] if train is None else [float(train)] * len(folds)
    return Result(name, loss, float(np.mean(folds)), std, folds, 0, 1.5, versions, settings, angles, fitted)


def noisy_folds(mean, seed=0, count=20):
    return mean + np.random.default_rng(seed).normal(0, 1, count).round(2)


def make_results(methods, sets, num_folds=10):
    return [
        make_result(method, np.clip(noisy_folds(80 + 2 * m + s, 31 * m + s), 0, 100), name, num_folds)
        for s, name in enumerate(sets)
        for m, method in enumerate(methods)
    ]


def with_baselines(losses, forest, name="made", majority=20.0, line=30.0, **settings):
    """Results of losses {name: (test, train)} on 20 folds with baselines, two of them on ten; no fold is special."""
    rows = [
        make_result(loss, noisy_folds(test, 7 * k), name, train=train, mlp_config={"dropout": 0.2}, **settings)
        for k, (loss, (test, train)) in enumerate(losses.items())
    ]
    rows.append(make_result("majority", noisy_folds(majority, 40), name, angles={}, train=majority))
    for loss, mean in {"logistic_regression": line, "random_forest": forest}.items():
        rows.append(make_result(loss, noisy_folds(mean, 41, 10), name, angles={}, train=mean, first_folds=10))
    return rows


def print_and_render(found, capsys):
    """What is printed, and the page's words and cells."""
    print_comparison(found)
    text = comparison_page(found, [], "widemargin compare")
    return capsys.readouterr().out, check_page(text), text


class PageReader(HTMLParser):
    """Balanced tags, and all that is in the page."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.texts = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in CLOSED | VOID, tag
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))


def check_page(text):
    """A page that opens offline, runs nothing, and can be read without seeing its pictures."""
    read = PageReader(text)
    assert text.startswith("<!doctype html>")
    assert not {"script", "link", "iframe", "img", "object", "embed", "base", "form"} & set(read.tags)
    assert not [name for _, name, _ in read.attributes if name.startswith("on") or name in ("src", "href", "action")]
    outside = re.sub(r'xmlns="http://www\.w3\.org/2000/svg"', "", text)
    assert not re.search(r"https?://|url\(|@import|javascript:", outside)
    assert len(text.encode()) < 1 << 20
    of_pictures = [(name, value) for tag, name, value in read.attributes if tag == "svg"]
    count = read.tags.count("svg")
    assert of_pictures.count(("role", "img")) == count
    assert sum(name == "aria-label" and bool(value) for name, value in of_pictures) == count
    assert not re.search(r'="[^"]*\b(nan|inf)\b[^"]*"', text)
    assert "lang" in {name for tag, name, _ in read.attributes if tag == "html"}
    return read
