"""A picture that matplotlib has written as SVG, made to follow the page it stands on: light or dark."""

from __future__ import annotations

from pathlib import Path

_DARK_MODE_CSS = (
    "@media (prefers-color-scheme: dark) { "
    'path[style*="fill: #ffffff"] { fill: #15181d !important } '
    '[id^="text_"] { fill: #e8eaee } '
    '[style*="stroke: #000000"] { stroke: #a3acb9 !important } }'
)


def add_dark_mode(path: Path) -> None:
    """Add the rules to the file's own."""
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("</style>", f"{_DARK_MODE_CSS}</style>", 1), encoding="utf-8")
