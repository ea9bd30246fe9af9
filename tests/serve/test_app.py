"""The server of a gallery: answers equal to Python's, and everything hostile refused in one line."""

import io
import socket
import struct
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from gallery_worker import PixelEmbedder
from widemargin.io.errors import InputError
from widemargin.recognition.calibration import Calibration
from widemargin.recognition.gallery import Gallery
from widemargin.serve import app as app_module
from widemargin.serve.app import build_app

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
WRITE = {"X-Widemargin": "1"}


def draw(identity, number=0):
    base = np.random.default_rng(identity).integers(0, 256, (8, 8, 3)).repeat(8, 0).repeat(8, 1)
    noise = np.random.default_rng([identity, number]).integers(-15, 16, base.shape)
    return Image.fromarray(np.clip(base + noise, 0, 255).astype(np.uint8))


def encode(image):
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def gallery(tmp_path):
    model = PixelEmbedder()
    strangers = [draw(100 + k, n) for k in range(40) for n in range(2)]
    model.calibration = Calibration.fit(model.embed(strangers), torch.arange(40).repeat_interleave(2))
    found = Gallery.create(tmp_path / "people", model)
    found.add({f"person {k}": [draw(k, n) for n in range(2)] for k in range(5)})
    return found


def client(gallery, token=None, **options):
    return TestClient(build_app(gallery, LOOPBACK, token, **options), base_url="http://127.0.0.1:8000")


def test_an_upload_is_identified_as_in_python(gallery):
    answer = client(gallery).post("/api/identify?top=3", content=encode(draw(2, 9)), headers=WRITE).json()
    python = gallery.identify([draw(2, 9)], top=3)[0]
    assert answer["identity"] == python.identity == "person 2"
    assert [m["cosine"] for m in answer["matches"]] == pytest.approx([m.cosine for m in python.matches], abs=1e-6)
    picture = client(gallery).get(answer["matches"][0]["picture"])
    assert Image.open(io.BytesIO(picture.content)).size == (64, 64)
    assert len(list(gallery.folder.rglob("*.jpg"))) == 10  # an upload is not kept


def test_two_images_are_compared(gallery):
    one, other = encode(draw(1, 3)), encode(draw(1, 4))
    answer = client(gallery).post(f"/api/compare?first={len(one)}", content=one + other, headers=WRITE).json()
    unit = torch.nn.functional.normalize(PixelEmbedder().embed([draw(1, 3), draw(1, 4)]))
    assert answer["cosine"] == pytest.approx(float(unit[0] @ unit[1]), abs=1e-6)
    assert 0 < answer["far"] < 1
    decision = gallery.calibration.threshold(0.01)  # of one comparison, whatever the size of the gallery
    assert answer["threshold"] == decision.cosine < gallery.acceptance_threshold().cosine
    assert answer["same"] == (answer["cosine"] >= decision.cosine)


def test_enrol_browse_and_remove(gallery):
    here = client(gallery)
    assert here.post("/api/identities/new%20one", content=encode(draw(50)), headers=WRITE).json()["added"] == 1
    listed = {one["identity"]: one for one in here.get("/api/gallery").json()["identities"]}
    assert listed["new one"]["images"] == 1
    assert (
        here.post("/api/identify", content=encode(draw(50, 1)), headers=WRITE).json()["matches"][0]["identity"]
        == "new one"
    )
    assert here.delete("/api/identities/new%20one", headers=WRITE).json() == {"removed": 1}
    assert "new one" not in Gallery(gallery.folder).identities


def test_identities_are_listed_in_part(gallery):
    here = client(gallery)
    listed = here.get("/api/gallery?search=PERSON&limit=2").json()
    assert (listed["num_identities"], listed["num_matching"]) == (5, 5)
    assert [one["identity"] for one in listed["identities"]] == ["person 0", "person 1"]
    assert [len(one["pictures"]) for one in listed["identities"]] == [2, 2]
    assert [one["identity"] for one in here.get("/api/gallery?search=n%203").json()["identities"]] == ["person 3"]
    assert here.get("/api/gallery?limit=0").status_code == 400
    assert here.get("/api/gallery?limit=1001").status_code == 400
    assert here.post("/api/identify?top=²", content=encode(draw(2)), headers=WRITE).status_code == 400
    points = [(point["cosine"], point["far"]) for point in listed["rates"]]
    assert points == [(point.cosine, point.far) for point in gallery.calibration.points]


class SlowEmbedder(PixelEmbedder):
    """Counts its calls, waits in each until told to go on, and fails for a black image."""

    def __init__(self, calibration):
        super().__init__(calibration=calibration)
        self.sizes, self.go_on = [], threading.Event()

    def embed(self, images, **options):
        self.sizes.append(len(images))
        self.go_on.wait(10)
        if any(image.getextrema() == ((0, 0),) * 3 for image in images):
            raise InputError("a black image")
        return super().embed(images, **options)


def test_images_that_wait_are_searched_together_and_one_failure_is_its_own(gallery):
    model = SlowEmbedder(gallery.calibration)
    opened = Gallery(gallery.folder, model)
    bodies = [encode(draw(k, 9)) for k in range(5)] + [encode(Image.new("RGB", (64, 64)))]
    with client(opened) as here, ThreadPoolExecutor(6) as pool:
        first = pool.submit(here.post, "/api/identify?top=1", content=bodies[0], headers=WRITE)
        while not model.sizes:
            time.sleep(0.001)
        rest = [
            pool.submit(here.post, f"/api/identify?top={top}", content=body, headers=WRITE)
            for top, body in enumerate(bodies[1:], 1)
        ]
        time.sleep(0.5)
        model.go_on.set()
        answers = [one.result() for one in (first, *rest)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [400]
    assert answers[5].json() == {"error": "a black image"}
    for k, answer in enumerate(answers[:5]):
        assert answer.json()["identity"] == f"person {k}"
        assert len(answer.json()["matches"]) == max(1, k)
    assert model.sizes == [1, 5, 1, 1, 1, 1, 1]  # together first; then one by one, because one of them failed


def test_changes_of_another_process_are_seen(gallery):
    here = client(gallery)
    assert here.post("/api/identify", content=encode(draw(60, 1)), headers=WRITE).json()["identity"] is None
    other = Gallery(gallery.folder, PixelEmbedder())
    other.add({f"newcomer {k}": [draw(60 + k, n) for n in range(3)] for k in range(4)})
    other.remove("person 1")  # the segment that the server has read is gone
    answer = here.post("/api/identify?top=20", content=encode(draw(60, 1)), headers=WRITE).json()
    assert answer["matches"][0]["identity"] == "newcomer 0"
    assert "person 1" not in {match["identity"] for match in answer["matches"]}


def test_a_read_only_gallery_cannot_be_changed(gallery):
    here = client(gallery, read_only=True)
    assert here.post("/api/identities/x", content=encode(draw(50)), headers=WRITE).status_code == 400
    assert here.delete("/api/identities/person 1", headers=WRITE).status_code == 400
    assert len(Gallery(gallery.folder)) == 10


# ---------------------------------------------------------------- attacks


def png_bomb(width=60_000, height=60_000):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = zlib.compress(b"\0" * 100_000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no picture",
        png_bomb(),
        b"%!PS-Adobe-3.0 EPSF-3.0\n",
        encode(draw(1))[:200],
        b"\xff" * 5000,
    ],
)
def test_hostile_uploads_are_one_line(gallery, body):
    answer = client(gallery).post("/api/identify", content=body, headers=WRITE)
    assert answer.status_code == 400
    assert "\n" not in answer.json()["error"]
    answer = client(gallery).post("/api/identities/x", content=body, headers=WRITE)
    assert answer.status_code == 400
    assert len(Gallery(gallery.folder)) == 10


def test_an_upload_is_read_no_further_than_its_bound(gallery, monkeypatch):
    monkeypatch.setattr(app_module, "MAX_UPLOAD_BYTES", 10_000)
    sent = []

    def body():
        for _ in range(1000):
            sent.append(1)
            yield b"x" * 1000

    answer = client(gallery).post("/api/identify", content=body(), headers=WRITE)
    assert answer.status_code == 413


@pytest.mark.parametrize(
    "path",
    [
        "/pictures/../gallery.json",
        "/pictures/..%2fgallery.json",
        "/pictures/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/pictures/x.jpg",
        "/gallery.json",
        "/model/model.safetensors",
    ],
)
def test_paths_lead_nowhere(gallery, path):
    assert client(gallery).get(path).status_code == 404


@pytest.mark.parametrize("method", ["POST", "DELETE"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Widemargin": "1", "Origin": "http://evil.example"},
        {"X-Widemargin": "1", "Origin": "null"},
        {"X-Widemargin": "1", "Origin": "http://["},
        {"X-Widemargin": "1", "Sec-Fetch-Site": "cross-site"},
    ],
)
def test_other_sites_cannot_change_anything(gallery, method, headers):
    answer = client(gallery).request(method, "/api/identities/person 1", content=encode(draw(9)), headers=headers)
    assert answer.status_code == 403
    preflight = client(gallery).options("/api/identities/x", headers={"Origin": "http://evil.example", **WRITE})
    assert "access-control-allow-origin" not in preflight.headers
    assert len(Gallery(gallery.folder)) == 10


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "[", ""])
def test_another_host_name_is_refused(gallery, host):
    answer = client(gallery).get("/api/gallery", headers={"Host": host})
    assert answer.status_code == 421


def test_a_token_is_needed_and_then_kept_in_a_cookie(gallery):
    here = client(gallery, token="secret")
    for path in ("/", "/api/gallery", "/app.js", "/docs", "/openapi.json", "/?token=wrong"):
        assert here.get(path).status_code == 401
    assert here.get("/api/gallery?token=secret").status_code == 401  # only the page takes it from the address
    assert here.get("/api/gallery", headers={"Authorization": "Bearer secret"}).status_code == 200
    first = here.get("/?token=secret", follow_redirects=False)
    assert first.status_code == 303
    assert first.headers["location"] == "/"
    assert "httponly" in first.headers["set-cookie"].lower()
    assert here.get("/api/gallery").status_code == 200
    assert here.get("/?token=ä").status_code == 200  # the cookie counts


def test_every_answer_forbids_foreign_content(gallery):
    for path in ("/", "/app.js", "/api/gallery", "/docs", "/nothing"):
        headers = client(gallery).get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_the_api_page_lists_every_route(gallery):
    spec = client(gallery).get("/openapi.json").json()
    text = client(gallery).get("/docs").text
    for path in spec["paths"]:
        assert path in text
    served = {
        route.path.replace(":path", "")
        for route in app_module.GalleryServer(gallery).routes()
        if route.path.startswith("/api")
    }
    assert served == set(spec["paths"])


# ---------------------------------------------------------------- in a browser


@pytest.fixture
def address(gallery):
    import uvicorn

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(build_app(gallery, LOOPBACK), port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join(10)


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1200, True)])
def test_a_person_identifies_moves_the_threshold_compares_and_enrols(address, browser, gallery, tmp_path, width, dark):
    picture = tmp_path / "probe.png"
    draw(3, 9).save(picture)
    stranger = tmp_path / "stranger.png"
    draw(70).save(stranger)
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light")
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.goto(address)
    page.set_input_files("#file", str(picture))
    page.wait_for_selector("#matches li")
    assert "person 3" in page.inner_text("#verdict")
    slider = page.locator("#threshold")
    slider.evaluate("slider => { slider.value = 1; slider.dispatchEvent(new Event('input')) }")
    assert "Unknown" in page.inner_text("#verdict")
    page.set_input_files("#file", str(stranger))
    page.locator("#verdict", has_text="Unknown").wait_for()
    page.fill("#name", "visitor")
    page.click("#enrol button")
    page.locator("#message", has_text="visitor").wait_for()
    assert Gallery(gallery.folder).identities["visitor"] == 1
    page.click("[data-view=compare]")
    page.set_input_files("[data-slot='0'] input", str(picture))
    page.set_input_files("[data-slot='1'] input", str(picture))
    page.locator("#comparison", has_text="1.0000").wait_for()
    page.click("[data-view=browse]")
    assert page.locator("#people figure").count() == 6
    page.fill("#filter", "visitor")
    page.locator("#count", has_text="1 match").wait_for()
    assert page.locator("#people figure").count() == 1
    fits = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert page.evaluate(fits)
    page.goto(f"{address}docs")  # its styles are in the page, which the policy of the other answers forbids
    assert page.evaluate(fits)
    assert ("rgb(255, 255, 255)" in page.evaluate("getComputedStyle(document.body).backgroundColor")) is not dark
    assert problems == []
    page.close()
