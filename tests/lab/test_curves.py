"""The loss lab: what it embeds is what the package says, at every place of the sliders that is tried."""

import base64
import json
import math
import re
import zlib

import numpy as np
import pytest
import torch

from widemargin.cli.main import main
from widemargin.lab import curves
from widemargin.lab.curves import CLASS_COUNTS, SCALES, Family, list_families
from widemargin.losses.grammar import parse, parse_margin
from widemargin.losses.margin import Margin, split_softmax
from widemargin.losses.registry import list_losses
from widemargin.theory import (
    boundary_angle,
    decision_function,
    gap_gradient,
    gap_loss,
    gradient_curve,
    loss_curve,
    suggest_scale,
    target_curve,
)

FAMILIES = list_families()


def decode_curves(text: str, *shape: int) -> np.ndarray:
    upper, lower = np.frombuffer(zlib.decompress(base64.b64decode(text)), "u1").reshape(2, -1).astype(np.uint16)
    bits = np.cumsum((upper * 256 + lower).reshape(shape), axis=-1, dtype=np.uint16)
    return bits.view(np.float16).astype(np.float64)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_place_is_a_loss_of_the_package(family):
    for scale in family.scales:
        for margin in family.margins or (None,):
            assert isinstance(parse(family.loss_spec(scale, margin)), Margin)


def test_every_margin_of_the_package_is_there_with_its_sliders():
    families = {family.name: family for family in FAMILIES}
    assert sorted(families) == sorted(list_losses("margins"))
    assert families["softmax"].scale_input == families["a_softmax"].scale_input == "length"
    assert families["adacos"].scale_input == families["p2sgrad"].scale_input == "nothing"
    assert families["arcgrad"].margins == ()  # its m is rarely set
    assert (families["ldam"].margin_option, families["magface"].margin_option) == ("max_m", "u_m")
    assert families["cosface"].margins[5] == pytest.approx(0.35)
    assert families["sphereface_r"].margins[0] == 1.0  # no margin: the cosine itself
    assert families["l_softmax"].loss_spec(5.0, 2.0) == "l_softmax(m=2, lam=0)"


def test_numbers_survive_the_packing():
    values = torch.randn(3, 4, len(curves.ANGLES_DEG), dtype=torch.float64) * 1000
    found = decode_curves(curves.encode_curves(values), *values.shape)
    assert np.array_equal(found, values.to(torch.float16).double().numpy())


@pytest.mark.filterwarnings("ignore:adacos with 2 classes:UserWarning")
@pytest.mark.parametrize("name", ["sphereface2", "mv_softmax", "circle", "lm_softmax", "adacos"])
def test_curves_of_other_ends_are_the_theorys(name):
    family = next(family for family in FAMILIES if family.name == name)
    margin = family.margins[2] if family.margins else None
    spec = family.loss_spec(SCALES[3], margin)
    found = curves.loss_curves(parse_margin(spec), 1.0)
    theta = torch.tensor(curves.ANGLES_DEG, dtype=torch.float64).deg2rad()
    for row, num_classes in zip(found[1:], CLASS_COUNTS[1:], strict=True):
        torch.testing.assert_close(row[0], loss_curve(spec, theta, num_classes))
        torch.testing.assert_close(row[1], gradient_curve(spec, theta, num_classes).abs())


@pytest.fixture(scope="module")
def arcface():
    return Family("arcface", (0.0, 0.3))


def test_curves_are_the_margins_own(arcface):
    found = curves.compute_family_curves(arcface)
    targets = decode_curves(found["targets"], len(SCALES), 2, len(curves.ANGLES_DEG))
    s, m, c = 4, 1, 2
    spec = arcface.loss_spec(SCALES[s], 0.3)
    theta = torch.tensor(curves.ANGLES_DEG, dtype=torch.float64).deg2rad()
    np.testing.assert_allclose(targets[s, m], target_curve(spec, theta)[0].numpy(), rtol=1e-3, atol=1e-3)
    shape = (len(SCALES), 2, len(CLASS_COUNTS), len(curves.CURVE_KINDS), len(curves.ANGLES_DEG))
    drawn = dict(zip(curves.CURVE_KINDS, decode_curves(found["curves"], *shape)[s, m, c], strict=True))
    lead = decision_function(spec, theta, torch.full_like(theta, math.pi / 2), num_classes=CLASS_COUNTS[c])
    loss = split_softmax(lead, torch.full_like(lead, math.log(CLASS_COUNTS[c] - 1)))
    np.testing.assert_allclose(drawn["loss"], loss.numpy(), rtol=1e-3, atol=1e-6)
    slope = np.gradient(loss.numpy(), theta.numpy())
    np.testing.assert_allclose(drawn["pull"][5:-15], slope[5:-15], rtol=0.1, atol=0.1)  # before ArcFace bends
    assert found["edges"][s * 2 + m][1][0] == pytest.approx(math.degrees(boundary_angle(spec, math.pi / 2)), abs=0.01)


def test_regions_of_a_plain_softmax_halve_the_circle():
    for spec in ("normface(s=16)", "adacos"):
        for (inner, outer), between in zip(
            curves.class_boundary_angles(parse_margin(spec), 1.0), curves.CLASS_SEPARATIONS_DEG, strict=True
        ):
            assert inner == pytest.approx(between / 2, abs=0.01)
            assert inner + outer == pytest.approx(180, abs=0.02)


def test_arcgrads_gap_is_the_theorys():
    found = curves.compute_family_curves(Family("arcgrad"))
    shape = (len(SCALES), len(CLASS_COUNTS), len(curves.CURVE_KINDS), len(curves.ANGLES_DEG))
    drawn = dict(zip(curves.CURVE_KINDS, decode_curves(found["curves"], *shape)[3, 3], strict=True))
    radians = [math.radians(g) for g in curves.GAPS_DEG]
    wanted = [gap_loss(g, SCALES[3], CLASS_COUNTS[3]) for g in radians]
    np.testing.assert_allclose(drawn["gap_loss"], wanted, rtol=1e-3, atol=1e-5)
    pulls = [gap_gradient(g, SCALES[3], CLASS_COUNTS[3]) for g in radians]
    np.testing.assert_allclose(drawn["gap_pull"], pulls, rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def page(made_once):
    return made_once("lab.html", "lab").read_text()


def test_the_page_is_whole_and_small(page):
    assert len(page.encode()) < 6 << 20
    assert not re.search(r'(src|href)="(?!data:)', page)  # nothing is fetched
    found = {name: json.loads(text) for name, text in re.findall(r'id="(facts|colours|films)">(.*?)</script>', page)}
    assert list(found["facts"]["families"]) == [family.name for family in FAMILIES]
    assert found["facts"]["suggested"][2][9] == pytest.approx(suggest_scale(10, math.radians(50)))
    assert set(found["colours"]) == set(found["facts"]["families"])
    assert [film["s"] for film in found["films"]] == [1.0, 40.0]
    last = found["films"][0]["frames"][-1]
    assert last["gap"] > found["films"][1]["frames"][-1]["gap"]  # a small scale drives further apart
    for panel in ("target", "loss", "pull", "gap_loss", "gap_pull", "regions", "answer"):
        assert f'id="{panel}"' in page


def test_a_place_that_cannot_be_written_is_one_line(tmp_path, capsys):
    assert main(["lab", "--out", str(tmp_path / "none" / "lab.html")]) == 2
    assert main(["lab", "--out", str(tmp_path / "lab.txt")]) == 2
    assert capsys.readouterr().err.count("\n") == 2
