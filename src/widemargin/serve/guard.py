"""`Guard`: host, token and origin of every request are checked before anything else happens.

Requests must name the host the server was started on (against DNS rebinding); on any other address than loopback they
need a token. Changes and uploads need the header `X-Widemargin`, which a page of another origin cannot set without
permission that is never given.

A plain ASGI middleware: Starlette's `BaseHTTPMiddleware` starts a task group and two streams for every request.
"""

from __future__ import annotations

import hmac
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_COOKIE = "widemargin_token"
STATIC_PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""Content policy of a page without scripts whose styles are in the page."""
_SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def error_response(status: int, message: str) -> JSONResponse:
    """An error as one line of JSON."""
    return JSONResponse({"error": message}, status_code=status)


class Guard:
    """Middleware that answers refused requests itself, and adds the security headers that an answer lacks."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str], token: str | None) -> None:
        self.app, self.hosts, self.token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._answer(Request(scope))
        await (answer or self.app)(scope, receive, send_with_headers)

    def _answer(self, request: Request) -> Response | None:
        """The answer to a request that goes no further: refused, or the token's first use."""
        host = request.headers.get("host", "")
        if "*" not in self.hosts and _split_address(f"//{host}").hostname not in self.hosts:
            return error_response(421, "this server answers to the address it was started on only")
        if self.token is not None:
            has_login = request.method == "GET" and request.url.path == "/" and "token" in request.query_params
            if has_login and self._is_token(request.query_params["token"]):
                response = RedirectResponse("/", status_code=303)  # the token leaves the address bar
                response.set_cookie(_COOKIE, self.token, httponly=True, samesite="strict")
                return response
            if not self._has_token(request):
                return error_response(401, "a token is needed: open the address that widemargin serve printed")
        if request.method not in ("GET", "HEAD"):
            origin = request.headers.get("origin")
            is_same = origin is None or _split_address(origin).netloc == host
            if not is_same or request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
                return error_response(403, "requests of other sites are refused")
            if "x-widemargin" not in request.headers:
                return error_response(403, "changes and uploads need the header X-Widemargin: 1")
        return None

    def _has_token(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        return self._is_token(given if scheme.lower() == "bearer" else request.cookies.get(_COOKIE, ""))

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), (self.token or "").encode())


def _split_address(text: str) -> SplitResult:
    """The parts of an address; empty for one that is malformed."""
    try:
        return urlsplit(text)
    except ValueError:
        return urlsplit("")
