"""The web application of `widemargin serve`: a page, and JSON endpoints on a gallery.

It is made for one person or a small group. `guard` refuses requests of other sites and those without a token; uploads
are bounded, decoded by the same reader as image files, and stored only when they are enrolled. Images are decoded in a
pool of threads; everything with the model and the gallery runs in one thread (`gallery_thread`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from ..data.images.decode import read_image_bytes
from ..io.errors import InputError
from ..numerics.angles import unit_and_norm
from ..recognition.gallery import Gallery
from ..recognition.gallery_files import PICTURES_FOLDER, is_picture_name
from .gallery_thread import GalleryThread
from .guard import STATIC_PAGE_POLICY, Guard, error_response
from .openapi import OPENAPI, render_api_page

if TYPE_CHECKING:
    from PIL import Image

MAX_UPLOAD_BYTES = 20 << 20
MAX_TOP = 50
MAX_LISTED = 1000
_MAX_DECODED = 8  # uploads that are images in memory at a time; one of the largest takes 270 MB
_MAX_CONNECTIONS = 100
_PICTURES_OF_AN_IDENTITY = 12
_PAGE_FILES = {
    "/": ("page.html", "text/html"),
    "/app.js": ("app.js", "text/javascript"),
    "/app.css": ("app.css", "text/css"),
}


class UploadTooLargeError(InputError):
    """An upload beyond `MAX_UPLOAD_BYTES`."""


class GalleryServer:
    """The endpoints on a gallery."""

    def __init__(self, gallery: Gallery, read_only: bool = False) -> None:
        self.gallery, self.read_only = gallery, read_only
        self.thread = GalleryThread(gallery)
        self.decoded = asyncio.Semaphore(_MAX_DECODED)

    def routes(self) -> list[Route]:
        """All routes."""
        routes = [Route(path, self._page_file(*file)) for path, file in _PAGE_FILES.items()]
        return [
            *routes,
            Route("/api/gallery", _endpoint(self.describe)),
            Route("/api/identify", _endpoint(self.identify), methods=["POST"]),
            Route("/api/compare", _endpoint(self.compare), methods=["POST"]),
            Route("/api/identities/{identity:path}", _endpoint(self.enrol), methods=["POST"]),
            Route("/api/identities/{identity:path}", _endpoint(self.remove), methods=["DELETE"]),
            Route("/pictures/{name}", self.picture),
            Route("/openapi.json", self._openapi),
            Route("/docs", self._api_page),
        ]

    # ---------------------------------------------------------------- endpoints

    async def describe(self, request: Request) -> dict[str, Any]:
        """The threshold, and identities with the number of their images and some pictures."""
        word = request.query_params.get("search", "").casefold()
        limit = _whole_number(request, "limit", 200, MAX_LISTED)
        return await self.thread.run(lambda: self._describe(word, limit))

    def _describe(self, word: str, limit: int) -> dict[str, Any]:
        gallery = self.gallery
        matching = [name for name in gallery.identities if word in name.casefold()]
        pictures: dict[str, list[str]] = {name: [] for name in matching[:limit]}
        for entry in gallery.entries:
            shown = pictures.get(entry.identity)
            if shown is not None and entry.picture and len(shown) < _PICTURES_OF_AN_IDENTITY:
                shown.append(_picture_address(entry.picture))
        decision, calibration = gallery.acceptance_threshold(), gallery.calibration
        points = [] if calibration is None else calibration.points
        return {
            "name": gallery.folder.name,
            "images": len(gallery),
            "num_identities": len(gallery.identities),
            "num_matching": len(matching),
            "identities": [
                {"identity": name, "images": gallery.identities[name], "pictures": shown}
                for name, shown in pictures.items()
            ],
            "threshold": None if decision is None else decision.cosine,
            "why": "" if decision is None else decision.why,
            "comparisons": gallery.num_comparisons,
            "rates": [{"cosine": point.cosine, "far": point.far} for point in points],
            "read_only": self.read_only,
        }

    async def identify(self, request: Request) -> dict[str, Any]:
        """The nearest identities of an image."""
        top = _whole_number(request, "top", 5, MAX_TOP)
        body = await read_bounded_body(request)
        async with self.decoded:
            image = await run_in_threadpool(read_image_bytes, body, "upload")
            if not len(self.gallery):
                return {"identity": None, "matches": [], "threshold": None, "why": "nobody is enrolled"}
            found = await self.thread.identify(image, top)
        return {
            "identity": found.identity,
            "threshold": found.threshold,
            "why": found.why,
            "matches": [
                {
                    "identity": match.identity,
                    "cosine": match.cosine,
                    "picture": None if match.picture is None else _picture_address(match.picture.name),
                }
                for match in found.matches
            ],
        }

    async def compare(self, request: Request) -> dict[str, Any]:
        """The cosine of two images, sent one after the other; `first` says how many bytes the first one has."""
        body = await read_bounded_body(request)
        text = request.query_params.get("first", "")
        if not _is_number(text) or not 0 < int(text) < len(body):
            raise InputError("compare takes the bytes of two images, and first=N: the number of bytes of the first")
        parts = (body[: int(text)], body[int(text) :])
        async with self.decoded:
            pair = [await run_in_threadpool(read_image_bytes, part, "upload") for part in parts]
            return await self.thread.run(lambda: self._compare(pair))

    def _compare(self, pair: list[Image.Image]) -> dict[str, Any]:
        one, other = unit_and_norm(self.gallery.embedder.embed(pair).float())[0]
        cosine = float(one @ other)
        decision, calibration = self.gallery.acceptance_threshold(num_comparisons=1), self.gallery.calibration
        return {
            "cosine": cosine,
            "far": None if calibration is None else calibration.false_accept_rate(cosine)[0],
            "threshold": None if decision is None else decision.cosine,
            "same": None if decision is None else cosine >= decision.cosine,
        }

    async def enrol(self, request: Request) -> dict[str, Any]:
        """Enrol an image under an identity."""
        self._check_writable()
        identity, body = str(request.path_params["identity"]), await read_bounded_body(request)
        async with self.decoded:
            image = await run_in_threadpool(read_image_bytes, body, "upload")
            return await self.thread.run(lambda: self._enrol(identity, image))

    def _enrol(self, identity: str, image: Image.Image) -> dict[str, Any]:
        report = self.gallery.add({identity: [image]})
        return {"added": report.added, "notes": list(report.notes), "images": self.gallery.identities.get(identity, 0)}

    async def remove(self, request: Request) -> dict[str, Any]:
        """Remove an identity."""
        self._check_writable()
        return {"removed": await self.thread.run(lambda: self.gallery.remove(str(request.path_params["identity"])))}

    def _check_writable(self) -> None:
        if self.read_only:
            raise InputError("the gallery is served read-only")

    async def picture(self, request: Request) -> Response:
        """A small picture; names are hexadecimal digits, never a path."""
        name = request.path_params["name"]
        path = self.gallery.folder / PICTURES_FOLDER / name
        if not name or not is_picture_name(name) or path.is_symlink() or not path.is_file():
            return error_response(404, "no such picture")
        return FileResponse(path, media_type="image/jpeg")

    def _page_file(self, name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
        content = files(__package__).joinpath(name).read_bytes()

        async def send(request: Request) -> Response:
            return Response(content, media_type=media_type)

        return send

    async def _openapi(self, request: Request) -> Response:
        return JSONResponse(OPENAPI)

    async def _api_page(self, request: Request) -> Response:
        return Response(
            render_api_page(), media_type="text/html", headers={"Content-Security-Policy": STATIC_PAGE_POLICY}
        )


def _endpoint(
    function: Callable[[Request], Awaitable[dict[str, Any]]],
) -> Callable[[Request], Awaitable[Response]]:
    """A route for a function of the request, with errors as one line of JSON."""

    async def handle(request: Request) -> Response:
        try:
            return JSONResponse(await function(request))
        except UploadTooLargeError as error:
            return error_response(413, str(error))
        except InputError as error:
            return error_response(400, str(error))

    return handle


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _whole_number(request: Request, name: str, default: int, high: int) -> int:
    text = request.query_params.get(name, str(default))
    if not _is_number(text) or not 1 <= int(text) <= high:
        raise InputError(f"{name} is a whole number from 1 to {high:,}")
    return int(text)


def _picture_address(name: str) -> str:
    return f"/pictures/{name}"


async def read_bounded_body(request: Request) -> bytes:
    """The body of a request, read no further than `MAX_UPLOAD_BYTES`."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_UPLOAD_BYTES:
            raise UploadTooLargeError(f"an upload may have at most {MAX_UPLOAD_BYTES >> 20} MiB")
        parts.append(part)
    return b"".join(parts)


def build_app(gallery: Gallery, hosts: frozenset[str], token: str | None = None, read_only: bool = False) -> Starlette:
    """The application; `hosts` are the names it answers to ("*": any)."""
    server = GalleryServer(gallery, read_only)
    return Starlette(routes=server.routes(), middleware=[Middleware(Guard, hosts=hosts, token=token)])


def serve_gallery(
    gallery: Gallery,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    read_only: bool = False,
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve a gallery until it is interrupted; on another address than loopback with a token."""
    import secrets

    import uvicorn

    is_loopback = host in ("127.0.0.1", "localhost", "::1")
    token = token or (None if is_loopback else secrets.token_urlsafe(24))
    hosts = frozenset(
        {"127.0.0.1", "localhost", "::1"} if is_loopback else {"*"} if host in ("0.0.0.0", "::") else {host}
    )
    gallery.embedder  # noqa: B018  (loads the model, so that an error is raised before the server starts)
    shown = f"[{host}]" if ":" in host else host
    on_ready(f"http://{shown}:{port}/" + (f"?token={token}" if token else ""))
    config = uvicorn.Config(
        build_app(gallery, hosts, token, read_only),
        host=host,
        port=port,
        log_level="warning",
        server_header=False,
        limit_concurrency=_MAX_CONNECTIONS,
    )
    uvicorn.Server(config).run()
