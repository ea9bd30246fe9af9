"""`widemargin serve GALLERY`: a local web page to identify, compare, enrol and browse."""

from __future__ import annotations

import argparse

from ..io.text import print_escaped


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("gallery", metavar="GALLERY", help="folder of the gallery")
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (default 127.0.0.1)"
    )
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="port (default 8000)")
    parser.add_argument(
        "--token",
        metavar="TEXT",
        help="required in every request; generated if the server is reachable from other machines",
    )
    parser.add_argument("--read-only", action="store_true", help="no enrolling or removing")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Serve until interrupted."""
    from ..io.errors import InputError, option_style
    from ..loading import load_gallery

    try:
        from ..serve.app import serve_gallery
    except ImportError as error:
        raise InputError(f'serve needs {error.name}: pip install "widemargin[serve]"') from None
    if not 1 <= options.port <= 65535:
        raise InputError(f"--port must be from 1 to 65535, got {options.port}")
    gallery = load_gallery(options.gallery)
    with option_style(command_line=False):  # its clients send JSON with the names of Python
        serve_gallery(
            gallery,
            options.host,
            options.port,
            options.token,
            options.read_only,
            on_ready=lambda address: print_escaped(f"open {address} (Ctrl+C ends it)"),
        )
