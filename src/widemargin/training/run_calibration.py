"""Thresholds of a run: fitted once on identities it never trained on, stored next to its weights.

`calibration.json` lies in the run folder, or in the folder that `export --hub` wrote. It names the fingerprint of the
model it belongs to: a run that was trained on, or another checkpoint, is not calibrated by it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..io.bounded import read_json
from ..io.errors import InputError, spell_option
from ..io.locks import write_text_atomic
from ..recognition.calibration import CALIBRATION_FILE, Calibration
from ..recognition.gallery_images import find_identity_images

if TYPE_CHECKING:
    from .run import Run


def compute_fingerprint(run: Run) -> str:
    """SHA-256 of what decides an embedding: the weights of the backbone and the preprocessing of its inputs."""
    digest = hashlib.sha256()
    spec = {name: value for name, value in run.input_spec.items() if name != "class_names"}
    digest.update(json.dumps(spec, sort_keys=True).encode())
    for name, value in sorted(run.model.backbone.state_dict().items()):
        digest.update(f"{name} {value.dtype} {list(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def calibration_folder(run: Run) -> Path:
    """The folder in which the calibration of a run is stored."""
    return run.folder or run.weights_path.parent


def load_calibration(run: Run) -> Calibration | None:
    """The stored calibration; None if there is none, or if it belongs to other weights."""
    path = calibration_folder(run) / CALIBRATION_FILE
    try:
        raw = read_json(path)
    except OSError:
        return None
    found = Calibration.from_dict(raw, str(path))
    return found if raw.get("fingerprint") == run.fingerprint else None


def store_calibration(run: Run, calibration: Calibration, folder: Path | None = None) -> Path:
    """Write a calibration next to the weights it belongs to, or to another folder with a copy of them."""
    path = (folder or calibration_folder(run)) / CALIBRATION_FILE
    text = json.dumps({**calibration.to_dict(), "fingerprint": run.fingerprint}, indent=1, ensure_ascii=False)
    try:
        write_text_atomic(path, text)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
    return path


def fit_calibration(
    run: Run, images: str | Path | Mapping[str, Any] | None = None, data_dir: str | Path | None = None
) -> Calibration:
    """Fit thresholds on `images` by identity, or on the classes that the run kept unseen."""
    if images is not None:
        groups = find_identity_images(images)
        names = set(groups) & set(run.class_names)
        if names:
            raise InputError(
                f"{images}: {len(names):,} of its identities are training classes of the run, such as "
                f"{min(names)!r}; calibrate on others"
            )
        files = [(path, k) for k, paths in enumerate(groups.values()) for path in paths]
        x = run.embed([path for path, _ in files])
        source = f"{len(groups):,} identities of {Path(images).name}" if isinstance(images, str | Path) else ""
        return Calibration.fit(x, torch.tensor([k for _, k in files]), source)
    if not run.is_open_set:
        raise InputError(
            f"the run has no classes that it never trained on: train with {spell_option('unseen_classes')} or a test "
            f"folder of other classes, or give images of other identities with {spell_option('images')}"
        )
    x, y = run.embed_test_images(data_dir)
    return Calibration.fit(x, y, f"classes of {run.config.data_name} unseen in training")
