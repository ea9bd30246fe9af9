"""Tensors from files of strangers: safetensors, or PyTorch's own as plain tensors; nothing is unpickled or evaluated.

Both formats can lie about their size. A safetensors file begins with the length of its header, which a reader may
trust; a PyTorch file is a zip archive whose members may be packed, and unpack to more memory than there is.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from .errors import InputError

LARGEST_HEADER = 16 << 20  # bytes; a header has about a hundred for each tensor


class TensorFileError(InputError):
    """A file that does not hold what its format promises."""


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Every tensor by its name; a file that is not there raises FileNotFoundError."""
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError:
        raise InputError(f"{path}: install safetensors to read it (pip install safetensors)") from None
    check_header(path)
    try:
        # Mapped into memory, as is usual, every tensor leaves some bytes behind (0.8.0), and a file that is replaced
        # meanwhile ends the process.
        return dict(load_file(path, backend="pread"))
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise TensorFileError(f"{path}: not a readable safetensors file ({error})") from None


def check_header(path: Path) -> None:
    """That the length of the header, which comes first, fits the file and stays within reason."""
    size = path.stat().st_size
    if not path.is_file():  # a pipe or device would never end
        raise TensorFileError(f"{path}: not a file")
    with path.open("rb") as file:
        start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > size - 8:
        raise TensorFileError(f"{path}: not a readable safetensors file (cut short, or another format)")
    if length > LARGEST_HEADER:
        raise TensorFileError(f"{path}: a header of {length:,} bytes, more than the {LARGEST_HEADER:,} that are read")


def all_finite(value: Tensor) -> bool:
    """Whether a tensor holds neither NaN nor infinity: one pass, and no mask as large as the tensor."""
    if not value.is_floating_point() or not value.numel():
        return True
    low, high = (value if value.element_size() > 1 else value.float()).detach().aminmax()
    return bool(low.isfinite() & high.isfinite())


def not_finite_error(where: str, value: Tensor, advice: str) -> InputError:
    """What to say of a tensor that is not; `where` names the file and the tensor in it."""
    wrong = int((~value.detach().float().isfinite()).sum())
    return InputError(f"{where} is not finite ({wrong:,} of {value.numel():,} numbers are NaN or infinite); {advice}")


def read_torch(path: Path) -> Any:
    """What a PyTorch file holds, if it is plain tensors, numbers and words in plain containers."""
    if not path.is_file():
        raise TensorFileError(f"{path}: no such file")
    with path.open("rb") as file:
        check_unpacked(file, str(path))
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds; the first line says which
        reason = str(error).splitlines()[0][:120] if str(error).strip() else ""
        # A damaged file may fail with nothing but a number; then the kind of failure says more.
        reason = reason if any(letter.isalpha() for letter in reason) else type(error).__name__
        raise TensorFileError(f"{path}: cannot be read as plain tensors, is it a PyTorch file? ({reason})") from None


def check_unpacked(file: IO[bytes], where: str) -> None:
    """That no member of a PyTorch archive is packed: PyTorch never packs, and would unpack whatever size it says."""
    try:
        with zipfile.ZipFile(file) as archive:
            packed = [entry.filename for entry in archive.infolist() if entry.compress_type != zipfile.ZIP_STORED]
            claimed = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError):
        return  # another format, which torch reads or refuses
    file.seek(0, 2)
    if packed or claimed > file.tell():
        raise TensorFileError(f"{where}: its contents are packed, which PyTorch never does; not read")
