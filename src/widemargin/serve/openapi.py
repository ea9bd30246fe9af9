"""The endpoints of `widemargin serve` as OpenAPI, and a page that lists them without anything from the network."""

from __future__ import annotations

import json
from typing import Any

from .. import __version__
from ..io.text import escape
from ..viz import page

_IMAGE_BODY = {
    "required": True,
    "content": {"image/*": {"schema": {"type": "string", "format": "binary"}}},
    "description": "the bytes of an image file, at most 20 MiB",
}
_ERRORS = {
    "400": {"description": 'a mistake in the request: {"error": one line}'},
    "401": {"description": "the token is missing"},
    "403": {"description": "a request of another site, or without the header X-Widemargin"},
    "413": {"description": "the upload is too large"},
}
_HEADER = {"name": "X-Widemargin", "in": "header", "required": True, "schema": {"type": "string"}, "description": "1"}
_IDENTITY = {"name": "identity", "in": "path", "required": True, "schema": {"type": "string"}}


def _operation(summary: str, result: str, **more: Any) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": {"description": result}, **_ERRORS}, **more}


OPENAPI: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "widemargin gallery", "version": __version__},
    "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    "paths": {
        "/api/gallery": {
            "get": _operation(
                "The threshold, and identities with pictures",
                "num_identities, num_matching, identities with images and pictures, threshold, rates",
                parameters=[
                    {
                        "name": "search",
                        "in": "query",
                        "schema": {"type": "string"},
                        "description": "a part of the name",
                    },
                    {
                        "name": "limit",
                        "in": "query",
                        "schema": {"type": "integer", "default": 200, "maximum": 1000},
                        "description": "identities to list",
                    },
                ],
            )
        },
        "/api/identify": {
            "post": _operation(
                "The nearest identities of an image",
                "identity (null: unknown), matches with identity, cosine and picture, threshold",
                requestBody=_IMAGE_BODY,
                parameters=[_HEADER, {"name": "top", "in": "query", "schema": {"type": "integer", "default": 5}}],
            )
        },
        "/api/compare": {
            "post": _operation(
                "The cosine of two images, sent one after the other",
                "cosine, its false accept rate, the threshold of one comparison, and whether it is reached",
                requestBody=_IMAGE_BODY,
                parameters=[
                    _HEADER,
                    {
                        "name": "first",
                        "in": "query",
                        "required": True,
                        "schema": {"type": "integer"},
                        "description": "number of bytes of the first image",
                    },
                ],
            )
        },
        "/api/identities/{identity}": {
            "post": _operation(
                "Enrol an image under an identity",
                "added, images",
                requestBody=_IMAGE_BODY,
                parameters=[_HEADER, _IDENTITY],
            ),
            "delete": _operation("Remove an identity and its pictures", "removed", parameters=[_HEADER, _IDENTITY]),
        },
    },
}


def render_api_page() -> str:
    """A page with the endpoints, their parameters and answers, and the OpenAPI text."""
    body = [page.heading("Endpoints")]
    for path, methods in OPENAPI["paths"].items():
        for method, operation in methods.items():
            names = ", ".join(parameter["name"] for parameter in operation.get("parameters", []))
            body.append(page.subheading(f"{method.upper()} {path}", operation["summary"]))
            body.append(page.paragraph(f"Parameters: {names}. Answer: {operation['responses']['200']['description']}."))
    body += [
        page.heading("Example"),
        page.code("curl -H 'X-Widemargin: 1' --data-binary @new.jpg 'http://127.0.0.1:8000/api/identify?top=3'"),
        page.details("openapi.json", f"<pre>{escape(json.dumps(OPENAPI, indent=1))}</pre>"),
    ]
    return page.html_page("widemargin gallery: JSON API", f"version {__version__}", body)
