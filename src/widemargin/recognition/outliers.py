"""Outliers: labelled images that look mislabelled or foreign, ranked by their embeddings.

Scores, larger for more suspicious images (θ is the angle to a class, in degrees):

    gap         θ to the own class − θ to the nearest other class: above 0 another class is nearer
    angle       θ to the own class
    norm        −‖x‖: short embeddings first. It does not find wrong labels, and foreign images had the shortest
                embeddings on MNIST but the longest on Omniglot and ORL faces (records/outliers.json)
    subcenter   θ to the dominant sub-centre of the own class (Sub-centre ArcFace's drop rule; k = 1: the same as angle)

Classes are the class weights of a head, or the means of the enrolled images of an identity, each image compared with
the mean of the others. `gap` finds wrong labels best, `angle` images that belong to no class.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..io.errors import InputError, format_value
from ..io.locks import write_text_atomic
from ..io.text import escape
from ..numerics.angles import group_weights, safe_arccos, unit_and_norm
from ..viz import page
from . import gallery_files as files

if TYPE_CHECKING:
    from PIL import Image

    from .gallery import Gallery

OUTLIER_SCORES = ("gap", "angle", "norm", "subcenter")
_BLOCK_ENTRIES = 1 << 22  # cosines computed at once


@dataclass(frozen=True)
class Outlier:
    """An image that looks out of place, with its scores by name."""

    label: str
    source: str
    scores: dict[str, float]
    nearest: str = ""
    """The nearest other class."""
    load_image: Callable[[], Image.Image] | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        said = ", ".join(f"{name} {value:.1f}" for name, value in self.scores.items())
        return f"{self.source or self.label}: labelled {self.label}, nearest other {self.nearest or '–'} ({said})"


def describe_scores(outliers: Sequence[Outlier]) -> str:
    """A line that says how to read the scores: how many images are nearer to another class than to their own.

    >>> describe_scores([Outlier("ann", "1.png", {"gap": 4.0}), Outlier("ann", "2.png", {"gap": -30.0})])
    '2 training images, 1 nearer to another class (gap above 0); the most suspicious first'
    """
    nearer = sum(one.scores["gap"] > 0 for one in outliers)
    return (
        f"{len(outliers):,} training images, {nearer:,} nearer to another class (gap above 0); "
        "the most suspicious first"
    )


def class_outlier_scores(x: Tensor, y: Tensor, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Scores [N] by name of embeddings [N, D] with labels [N] against class weights [C, D] or [C, K, D].

    Also the nearest other class of each [N].
    """
    unit, norm = unit_and_norm(x.detach().float().cpu())
    grouped = group_weights(unit_and_norm(weight.detach().float().cpu())[0])
    num_classes, num_weights, dim = grouped.shape
    if num_classes < 2:
        raise InputError("outliers need at least two classes")
    own, other = torch.empty(len(unit)), torch.empty(len(unit))
    nearest = torch.empty(len(unit), dtype=torch.int64)
    step = max(1, _BLOCK_ENTRIES // (num_classes * num_weights))
    for start in range(0, len(unit), step):
        rows = slice(start, start + step)
        cos = (unit[rows] @ grouped.reshape(-1, dim).T).view(-1, num_classes, num_weights).amax(2)
        own[rows] = cos.gather(1, y[rows].unsqueeze(1)).squeeze(1)
        cos.scatter_(1, y[rows].unsqueeze(1), -torch.inf)
        other[rows], nearest[rows] = cos.max(1)
    own_weights = torch.stack([(unit * grouped[y, k]).sum(1) for k in range(num_weights)], 1)  # [N, K]
    counts = torch.zeros(num_classes, num_weights)
    counts.index_put_((y, own_weights.argmax(1)), torch.ones(len(y)), accumulate=True)
    dominant = own_weights.gather(1, counts.argmax(1)[y].unsqueeze(1)).squeeze(1)
    return {
        "gap": _degrees(own) - _degrees(other),
        "angle": _degrees(own),
        "norm": -norm.flatten(),
        "subcenter": _degrees(dominant),
    }, nearest


def _degrees(cos: Tensor) -> Tensor:
    return torch.rad2deg(safe_arccos(cos))


def rank_outliers(scores: dict[str, Tensor], by: str) -> list[int]:
    """Rows in the order of a score, most suspicious first; rows without one last."""
    if by not in scores:
        raise InputError(f"the score must be one of {', '.join(scores)}, got {format_value(by)}")
    return torch.nan_to_num(scores[by], nan=-torch.inf).argsort(descending=True, stable=True).tolist()


@dataclass(frozen=True)
class GalleryCheck:
    """Result of `check_gallery`: problems of the files, and all images ranked by their gap."""

    problems: list[str]
    outliers: list[Outlier]
    num_suspicious: int
    """Images that are nearer to another identity than to their own."""

    def describe(self, top: int) -> list[str]:
        """Lines for people."""
        lines = [
            f"{len(self.outliers):,} images with others of their identity, {self.num_suspicious:,} nearer to another "
            "(gap above 0)"
        ]
        return lines + [str(one) for one in self.outliers[:top]]


def check_gallery(gallery: Gallery) -> GalleryCheck:
    """Check the files of a gallery, and rank its images against the other images of their identity."""
    problems = _find_file_problems(gallery)
    if problems or len(gallery.identities) < 2:
        return GalleryCheck(problems, [], 0)
    names = {name: k for k, name in enumerate(gallery.identities)}
    y = torch.tensor([names[entry.identity] for entry in gallery.entries])
    counts = torch.bincount(y)
    dim = gallery.state.embedding_dim
    sums = torch.zeros(len(names), dim)
    for start, block in files.iter_vector_blocks(gallery.vectors()):
        sums.index_add_(0, y[start : start + len(block)], block)
    means = unit_and_norm(sums)[0]
    own, other = torch.full((len(y),), torch.nan), torch.empty(len(y))
    nearest = torch.empty(len(y), dtype=torch.int64)
    step = max(1, _BLOCK_ENTRIES // len(names))
    for first, mapped in files.iter_vector_blocks(gallery.vectors()):
        for start in range(0, len(mapped), step):
            block = mapped[start : start + step]
            rows = slice(first + start, first + start + len(block))
            labels = y[rows]
            rest = unit_and_norm(sums[labels] - block)[0]
            own[rows] = torch.where(counts[labels] > 1, (rest * block).sum(1), torch.nan)
            cos = (block @ means.T).scatter(1, labels.unsqueeze(1), -torch.inf)
            other[rows], nearest[rows] = cos.max(1)
    scores = {"gap": _degrees(own) - _degrees(other), "angle": _degrees(own)}
    identities = list(names)
    outliers = [
        Outlier(
            gallery.entries[row].identity,
            gallery.entries[row].source,
            {name: float(values[row]) for name, values in scores.items()},
            identities[int(nearest[row])],
            _picture_loader(gallery.picture_path(gallery.entries[row])),
        )
        for row in rank_outliers(scores, "gap")
        if bool(counts[y[row]] > 1)
    ]
    return GalleryCheck(problems, outliers, sum(one.scores["gap"] > 0 for one in outliers))


def _find_file_problems(gallery: Gallery) -> list[str]:
    """Lines on files that are missing, damaged or left over."""
    problems: list[str] = []
    try:
        parts, entries = gallery.vectors(), gallery.entries
    except InputError as error:
        return [str(error)]
    for segment, part in zip(gallery.state.segments, parts, strict=True):
        norms = torch.from_numpy(part).norm(dim=1)
        if not bool(torch.isclose(norms, torch.ones_like(norms), atol=1e-3).all()):
            problems.append(
                f"{gallery.folder / segment.name}.f32: a vector is not of unit length; restore a copy of it"
            )
    missing = [path for entry in entries if (path := gallery.picture_path(entry)) is not None and not path.is_file()]
    if missing:
        problems.append(f"{missing[0]}: missing, and {len(missing) - 1:,} more pictures")
    return problems


def _picture_loader(path: Path | None) -> Callable[[], Image.Image] | None:
    from ..data.images.decode import read_image

    return None if path is None else lambda: read_image(path)


def write_outlier_page(path: str | Path, outliers: Sequence[Outlier], title: str) -> None:
    """Write a page with the pictures of outliers, most suspicious first."""
    cards = "".join(_card(one) for one in outliers)
    style = (
        "<style>.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(160px,1fr));gap:16px}"
        ".card img{width:100%;border-radius:6px}.card{font-size:13px;overflow-wrap:anywhere}</style>"
    )
    intro = (
        "Images whose label fits worst, first. Gap: angle to the own class less that to the nearest other, in degrees."
    )
    text = page.html_page(title, intro, [style, f'<div class="cards">{cards}</div>'])
    try:
        write_text_atomic(Path(path), text)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None


def _card(one: Outlier) -> str:
    picture = ""
    if one.load_image is not None:
        image = one.load_image()
        image.thumbnail((256, 256))
        buffer = io.BytesIO()
        image.convert("RGB").save(buffer, "JPEG", quality=80)
        data = base64.b64encode(buffer.getvalue()).decode()
        picture = f'<img alt="{escape(one.source or one.label)}" src="data:image/jpeg;base64,{data}">'
    scores = " · ".join(f"{escape(name)} {value:.1f}" for name, value in one.scores.items())
    nearest = f"<br>nearest other: {escape(one.nearest)}" if one.nearest else ""
    return f'<div class="card">{picture}<b>{escape(one.label)}</b>{nearest}<br>{scores}<br>{escape(one.source)}</div>'


def write_outlier_table(path: str | Path, outliers: Sequence[Outlier]) -> None:
    """Write the scores of outliers to a CSV file."""
    rows = [{"source": o.source, "label": o.label, "nearest": o.nearest, **o.scores} for o in outliers]
    write_rows(path, rows)


def check_rows_file(path: str | Path) -> Path:
    """The path of a file that `write_rows` can write, else an InputError: to be called before rows are computed."""
    path = Path(path)
    if path.suffix not in (".csv", ".json"):
        raise InputError(f"{path}: the file must end in .csv or .json")
    return path


def write_rows(path: str | Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows to a .csv or .json file, by its suffix; whole or not at all."""
    path = check_rows_file(path)
    text = json.dumps(rows, indent=1, ensure_ascii=False)
    if path.suffix == ".csv":
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        text = buffer.getvalue()
    try:
        write_text_atomic(path, text)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
