"""Image files that are ribbons, large, or no files: bounded memory, one line."""

import time

import pytest

from refusals import FILE_KINDS, read_picture, refusal_message, replace_with, write_black_png


@pytest.mark.parametrize("sides", [(1, 30_000_000), (30_000_000, 1), (65_536, 1)])
def test_a_ribbon_is_refused_by_its_header(tmp_path, sides):
    write_black_png(tmp_path / "ribbon.png", *sides)
    said = refusal_message(read_picture, str(tmp_path / "ribbon.png"), tmp_path=tmp_path)
    assert f"{sides[0]:,} × {sides[1]:,} pixels, more than 65,535 along a side" in said


def test_a_long_picture_within_the_bounds_is_read(tmp_path):
    write_black_png(tmp_path / "ribbon.png", 65_535, 2)
    read_picture(str(tmp_path / "ribbon.png"))


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_a_picture_that_is_no_file_is_refused(tmp_path, kind):
    replace_with(tmp_path / "picture.webp", kind)
    assert "picture.webp" in refusal_message(read_picture, str(tmp_path / "picture.webp"), tmp_path=tmp_path)


def test_large_pictures_are_decoded_one_at_a_time(tmp_path, monkeypatch):
    from concurrent.futures import ThreadPoolExecutor

    from widemargin.data.images import decode

    write_black_png(tmp_path / "picture.png", 64, 64)
    held = []

    def use(_: int) -> int:
        with decode.open_decoded_image(tmp_path / "picture.png"):
            held.append(1)
            time.sleep(0.02)
            most = len(held)
            held.pop()
        return most

    with ThreadPoolExecutor(4) as pool:
        assert max(pool.map(use, range(8))) > 1
        monkeypatch.setattr(decode, "_SERIAL_DECODE_PIXELS", 1000)
        assert max(pool.map(use, range(8))) == 1
