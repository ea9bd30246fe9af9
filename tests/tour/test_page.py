"""The tour: its numbers are the package's and the ones the slides print; every section has a picture that moves."""

import math
import re

import pytest

from widemargin.cli.main import main
from widemargin.losses.registry import LOSS_GROUPS, list_losses
from widemargin.theory import angular_margin
from widemargin.tour import classical, margins, pairs
from widemargin.tour.gallery import LOSSES, gallery_html, load_gallery
from widemargin.tour.page import build_sections, tour_page


@pytest.fixture(scope="module")
def sections():
    return {section.key: section for section in build_sections()}


def find_frame(section, label):
    return next(frame for frame in section.slider.frames if frame.label == label)


def test_the_tour_is_complete(sections):
    wanted = ["outliers", "surprise", "answers", "focal", "contrastive", "siamese", "triplet", "lengths", "bisector"]
    wanted += ["psi", "a_softmax", "cosface", "arcface", "adacos", "adaacos", "arcgrad", "groups"]
    assert list(sections) == wanted
    for section in sections.values():
        assert section.static_html or len({f.picture for f in section.slider.frames}) == len(section.slider.frames)


def test_numbers_are_those_of_the_slides(sections):
    said = find_frame(sections["surprise"], "0.1").caption
    assert re.findall(r"-?\d+\.\d+", said) == ["0.81", "-1.8", "2.30", "-10.0"]
    assert "l1: minimum at 2.00" in find_frame(sections["outliers"], "8").caption
    assert "starts with s = √2 log(C−1) = 0.00" in find_frame(sections["adacos"], "2").caption
    assert "at 60° the target's cosine 0.5 counts as -0.50" in find_frame(sections["psi"], "2").caption
    assert find_frame(sections["contrastive"], "1").caption == "different classes have no loss from 60° on"
    assert "semi-hard: loss" in find_frame(sections["triplet"], "32°").caption
    assert "keeps 0" in find_frame(sections["triplet"], "80°").caption


def test_every_margin_is_drawn_in_its_group(sections):
    frames = sections["groups"].slider.frames
    assert [frame.label for frame in frames] == [group for group in LOSS_GROUPS if list_losses("margins", group=group)]
    for frame in frames:
        names = list_losses("margins", group=frame.label)
        assert frame.caption.endswith(": " + ", ".join(names))
        assert all(f">{name}<" in frame.picture for name in names)
        assert "nan" not in frame.picture


def test_bands_are_the_theorys(sections):
    width = math.degrees(angular_margin("a_softmax(m=3, lam=0)", math.radians(90)))
    assert width == pytest.approx(45, abs=1e-6)
    assert f"{width:.1f}° between classes 90° apart" in find_frame(sections["a_softmax"], "3").caption
    assert find_frame(sections["arcface"], "0.3").caption.count("17.2°") == 3  # 0.3 rad for any distance


def test_the_page_is_one_file(made_once, tmp_path):
    page = made_once("tour.html", "tour").read_text()
    assert len(page.encode()) < 6 << 20
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert page.count("data-live=") == 16
    assert main(["tour", "--out", str(tmp_path / "tour.txt")]) == 2
    assert main(["tour", "--out", str(tmp_path / "tour.html"), "--json", str(tmp_path / "x.json")]) == 2


def test_the_gallery_shows_every_loss():
    seen = {"x": [[0.1, 0.2], [0.3, -0.4]], "y": [0, 1], "right": 97.5, "what": "test accuracy"}
    seen |= {"w": [[1.0, 0.0], [0.0, 2.0]], "on_circle": True}
    html = gallery_html({"losses": dict.fromkeys(LOSSES, seen)})
    assert html.count("<figure>") == len(LOSSES)
    assert "97.5 %" in html
    found = load_gallery()
    page = tour_page([classical.focal(), pairs.siamese(), margins.bisector()], found)
    assert ('id="gallery"' in page) == (found is not None)
