"""The web application of `widemargin serve`: a page, and JSON endpoints on a gallery.

It is made for one person on one machine. Requests must name the host the server was started on (against DNS
rebinding); on any other address than loopback they need a token. Changes need the header `X-Widemargin`, which a
page of another origin cannot set without permission that is never given. Uploads are bounded and decoded by the same
reader as image files; they are stored only when they are enrolled.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from ..data.images.decode import read_image_bytes
from ..io.errors import InputError
from ..numerics.angles import unit_and_norm
from ..recognition.gallery import Gallery, Identification
from ..recognition.gallery_files import PICTURES_FOLDER, is_picture_name
from .openapi import OPENAPI, render_api_page

MAX_UPLOAD_BYTES = 20 << 20
MAX_TOP = 50
_COOKIE = "widemargin_token"
_PAGE_FILES = {
    "/": ("page.html", "text/html"),
    "/app.js": ("app.js", "text/javascript"),
    "/app.css": ("app.css", "text/css"),
}
_SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class UploadTooLargeError(InputError):
    """An upload beyond `MAX_UPLOAD_BYTES`."""


class Guard(BaseHTTPMiddleware):
    """Checks host, token and origin of every request before anything else happens."""

    def __init__(self, app: Any, hosts: frozenset[str], token: str | None) -> None:
        super().__init__(app)
        self.hosts, self.token = hosts, token

    async def dispatch(self, request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        refusal = self._refusal(request)
        if refusal is None and self.token and hmac.compare_digest(request.query_params.get("token", ""), self.token):
            response: Response = RedirectResponse("/", status_code=303)  # the token leaves the address bar
            response.set_cookie(_COOKIE, self.token, httponly=True, samesite="strict")
        else:
            response = await call_next(request) if refusal is None else _error(*refusal)
        response.headers.update(_SECURITY_HEADERS)
        return response

    def _refusal(self, request: Request) -> tuple[int, str] | None:
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        if "*" not in self.hosts and host not in self.hosts:
            return 421, "this server answers to the address it was started on only"
        if self.token is not None and not self._has_token(request):
            return 401, "a token is needed: open the address that widemargin serve printed"
        if request.method not in ("GET", "HEAD"):
            origin = request.headers.get("origin")
            same = origin is None or urlsplit(origin).netloc == request.headers.get("host")
            if not same or request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
                return 403, "requests of other sites are refused"
            if "x-widemargin" not in request.headers:
                return 403, "changes and uploads need the header X-Widemargin: 1"
        return None

    def _has_token(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        given = given if scheme.lower() == "bearer" else request.cookies.get(_COOKIE, "")
        is_login = request.method == "GET" and request.url.path == "/"
        given = given or (request.query_params.get("token", "") if is_login else "")
        return hmac.compare_digest(given.encode(), (self.token or "").encode())


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status_code=status)


class GalleryServer:
    """The endpoints; calls of the model and changes of the gallery run one at a time, in a thread."""

    def __init__(self, gallery: Gallery, read_only: bool = False) -> None:
        self.gallery, self.read_only = gallery, read_only
        self.lock = threading.Lock()

    def routes(self) -> list[Route]:
        """All routes."""
        routes = [Route(path, self._page_file(*file)) for path, file in _PAGE_FILES.items()]
        return [
            *routes,
            Route("/api/gallery", self.endpoint(self.describe)),
            Route("/api/identify", self.endpoint(self.identify), methods=["POST"]),
            Route("/api/compare", self.endpoint(self.compare), methods=["POST"]),
            Route("/api/identities/{identity:path}", self.endpoint(self.enrol), methods=["POST"]),
            Route("/api/identities/{identity:path}", self.endpoint(self.remove), methods=["DELETE"]),
            Route("/pictures/{name}", self.picture),
            Route("/openapi.json", self.endpoint(lambda request, body: OPENAPI)),
            Route("/docs", self._api_page),
        ]

    def endpoint(
        self, function: Callable[[Request, bytes], dict[str, Any]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """A route for a function of the request and its body, with errors as one line of JSON."""

        async def handle(request: Request) -> Response:
            try:
                body = await read_bounded_body(request)
                return JSONResponse(await run_in_threadpool(self._call, function, request, body))
            except UploadTooLargeError as error:
                return _error(413, str(error))
            except InputError as error:
                return _error(400, str(error))

        return handle

    def _call(
        self, function: Callable[[Request, bytes], dict[str, Any]], request: Request, body: bytes
    ) -> dict[str, Any]:
        with self.lock:
            return function(request, body)

    # ---------------------------------------------------------------- endpoints

    def describe(self, request: Request, body: bytes) -> dict[str, Any]:
        """Identities with the number of their images and a picture, and the threshold."""
        self.gallery.reload()
        pictures: dict[str, list[str]] = {}
        for entry in self.gallery.entries:
            if entry.picture:
                pictures.setdefault(entry.identity, []).append(f"/pictures/{entry.picture}")
        decision = self.gallery.acceptance_threshold()
        return {
            "name": self.gallery.folder.name,
            "images": len(self.gallery),
            "identities": [
                {"identity": name, "images": count, "pictures": pictures.get(name, [])[:12]}
                for name, count in self.gallery.identities.items()
            ],
            "threshold": None if decision is None else decision.cosine,
            "why": "" if decision is None else decision.why,
            "read_only": self.read_only,
        }

    def identify(self, request: Request, body: bytes) -> dict[str, Any]:
        """The nearest identities of an image."""
        text = request.query_params.get("top", "5")
        if not text.isdigit() or not 1 <= int(text) <= MAX_TOP:
            raise InputError(f"top is a whole number from 1 to {MAX_TOP}")
        image = read_image_bytes(body, "upload")
        if not len(self.gallery):
            return {"identity": None, "matches": [], "threshold": None, "why": "nobody is enrolled"}
        return self._to_json(self.gallery.identify([image], top=int(text))[0])

    def _to_json(self, found: Identification) -> dict[str, Any]:
        return {
            "identity": found.identity,
            "threshold": found.threshold,
            "why": found.why,
            "matches": [
                {
                    "identity": match.identity,
                    "cosine": match.cosine,
                    "picture": None if match.picture is None else f"/pictures/{match.picture.name}",
                }
                for match in found.matches
            ],
        }

    def compare(self, request: Request, body: bytes) -> dict[str, Any]:
        """The cosine of two images, sent one after the other; `first` says how many bytes the first one has."""
        text = request.query_params.get("first", "")
        if not text.isdigit() or not 0 < int(text) < len(body):
            raise InputError("compare takes the bytes of two images, and first=N: the number of bytes of the first")
        pair = [read_image_bytes(part, "upload") for part in (body[: int(text)], body[int(text) :])]
        one, other = unit_and_norm(self.gallery.embedder.embed(pair).float())[0]
        cosine = float(one @ other)
        calibration = self.gallery.calibration
        far = None if calibration is None else calibration.false_accept_rate(cosine)[0]
        return {"cosine": cosine, "far": far}

    def enrol(self, request: Request, body: bytes) -> dict[str, Any]:
        """Enrol an image under an identity."""
        self._check_writable()
        identity = str(request.path_params["identity"])
        report = self.gallery.add({identity: [read_image_bytes(body, "upload")]})
        return {"added": report.added, "notes": list(report.notes), "images": self.gallery.identities.get(identity, 0)}

    def remove(self, request: Request, body: bytes) -> dict[str, Any]:
        """Remove an identity."""
        self._check_writable()
        return {"removed": self.gallery.remove(str(request.path_params["identity"]))}

    def _check_writable(self) -> None:
        if self.read_only:
            raise InputError("the gallery is served read-only")

    async def picture(self, request: Request) -> Response:
        """A small picture; names are hexadecimal digits, never a path."""
        name = request.path_params["name"]
        path = self.gallery.folder / PICTURES_FOLDER / name
        if not name or not is_picture_name(name) or path.is_symlink() or not path.is_file():
            return _error(404, "no such picture")
        return FileResponse(path, media_type="image/jpeg")

    def _page_file(self, name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
        content = files(__package__).joinpath(name).read_bytes()

        async def send(request: Request) -> Response:
            return Response(content, media_type=media_type)

        return send

    async def _api_page(self, request: Request) -> Response:
        return Response(render_api_page(), media_type="text/html")


async def read_bounded_body(request: Request) -> bytes:
    """The body of a request, read no further than `MAX_UPLOAD_BYTES`."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_UPLOAD_BYTES:
            raise UploadTooLargeError(f"an upload has at most {MAX_UPLOAD_BYTES >> 20} MiB")
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
    gallery.embedder  # noqa: B018  (loads the model, so that a problem with it is said before the server starts)
    shown = f"[{host}]" if ":" in host else host
    on_ready(f"http://{shown}:{port}/" + (f"?token={token}" if token else ""))
    config = uvicorn.Config(
        build_app(gallery, hosts, token, read_only), host=host, port=port, log_level="warning", server_header=False
    )
    uvicorn.Server(config).run()
