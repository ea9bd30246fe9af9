"""Tensors from untrusted files: safetensors, or PyTorch files restricted to plain tensors; nothing is unpickled or run.

Both formats can misstate their size. A safetensors file begins with the length of its header, which a naive reader
trusts; a PyTorch file is a zip archive whose members may be compressed and unpack to more than fits into memory.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

import torch
from torch import Tensor

from . import bounded
from .bounded import check_not_sparse, open_regular
from .errors import InputError
from .resources import check_memory

MAX_HEADER_BYTES = 16 << 20  # bytes; about a hundred per tensor
MAX_ZIP_DIRECTORY_BYTES = 16 << 20  # bytes of a zip archive's central directory, about a hundred per member


class TensorFileError(InputError):
    """The file does not match its format."""


@dataclass(frozen=True)
class SafetensorsFile:
    """Header of a safetensors file: names and sizes of its tensors, without their values."""

    path: Path
    sizes: Mapping[str, int]
    """Bytes of every tensor by name."""

    @property
    def nbytes(self) -> int:
        """Total bytes of all tensors."""
        return sum(self.sizes.values())

    @property
    def sources(self) -> dict[str, str]:
        """Map each tensor to "file: name", for messages."""
        return {name: f"{self.path}: {name}" for name in self.sizes}

    def read(self, names: Collection[str] | None = None) -> dict[str, Tensor]:
        """Read all tensors or those named, if there is enough memory."""
        from safetensors import SafetensorError, safe_open

        selected = list(self.sizes) if names is None else [name for name in names if name in self.sizes]
        with open_regular(self.path) as file:
            if _read_tensor_sizes(file, self.path) != self.sizes:
                raise TensorFileError(f"{self.path}: changed while it was read; try again")
            check_memory(sum(self.sizes[name] for name in selected), str(self.path))
            try:
                # Read, not mapped into memory: mapping leaks some bytes per tensor (safetensors 0.8.0), and the process
                # dies if the file is truncated meanwhile.
                with safe_open(_path_of_open_file(file, self.path), framework="pt", backend="pread") as tensors:
                    return {name: tensors.get_tensor(name) for name in selected}
            except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError, OverflowError) as error:
                raise TensorFileError(f"{self.path}: not a readable safetensors file ({error})") from None


def read_safetensors_header(path: Path) -> SafetensorsFile:
    """Read the header of a safetensors file; a missing file raises FileNotFoundError."""
    try:
        import safetensors  # noqa: F401
    except ImportError:
        raise InputError(f"{path}: needs safetensors: pip install safetensors") from None
    with open_regular(path) as file:
        return SafetensorsFile(path, _read_tensor_sizes(file, path))


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read every tensor by name; a missing file raises FileNotFoundError."""
    return read_safetensors_header(path).read()


def _read_tensor_sizes(file: BinaryIO, path: Path) -> dict[str, int]:
    """Read the size of every tensor from the header; refuse inconsistent sizes and sparse files."""
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > size - 8:
        raise TensorFileError(f"{path}: not a readable safetensors file (cut short, or another format)")
    if length > MAX_HEADER_BYTES:
        raise TensorFileError(f"{path}: a header of {length:,} bytes, above the limit of {MAX_HEADER_BYTES:,}")
    try:
        header = bounded.parse_json(file.read(length), "its header")
        header.pop("__metadata__", None)
        places = {name: tuple(facts["data_offsets"]) for name, facts in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TensorFileError(f"{path}: not a readable safetensors file ({error})") from None
    for name, place in places.items():
        whole = len(place) == 2 and all(type(one) is int for one in place)
        if not whole or not 0 <= place[0] <= place[1] <= size - 8 - length:
            raise TensorFileError(f"{path}: not a readable safetensors file ({name!r} lies outside of it)")
    sizes = {name: end - begin for name, (begin, end) in places.items()}
    if sum(sizes.values()) > size:
        raise TensorFileError(f"{path}: not a readable safetensors file (its tensors overlap)")
    check_not_sparse(file, path)
    return sizes


def _path_of_open_file(file: BinaryIO, path: Path) -> str:
    """Return a path of the open file itself, where the system has one (/proc), so that no other file can replace it."""
    name = f"/proc/self/fd/{file.fileno()}"
    return name if os.path.exists(name) else str(path)


def all_finite(value: Tensor) -> bool:
    """Return True if a tensor holds neither NaN nor infinity; one pass, without a mask of the tensor's size."""
    if not value.is_floating_point() or not value.numel():
        return True
    low, high = (value if value.element_size() > 1 else value.float()).detach().aminmax()
    return bool(low.isfinite() & high.isfinite())


def not_finite_error(where: str, value: Tensor, advice: str) -> InputError:
    """Return the error for a tensor that is not finite; `where` names the file and the tensor."""
    wrong = int((~value.detach().float().isfinite()).sum())
    return InputError(f"{where} is not finite ({wrong:,} of {value.numel():,} numbers are NaN or infinite); {advice}")


def read_torch(path: Path) -> Any:
    """Load a PyTorch file that holds only tensors, numbers and strings in plain containers."""
    try:
        file = open_regular(path)
    except OSError:
        raise TensorFileError(f"{path}: no such file") from None
    with file:
        check_not_sparse(file, path)
        check_uncompressed(file, str(path))
        check_memory(os.fstat(file.fileno()).st_size, str(path))
        file.seek(0)
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many types; the first line of the message says which
            reason = str(error).splitlines()[0][:120] if str(error).strip() else ""
            # A damaged file may fail with only a number as message; the type of the error then says more.
            reason = reason if any(letter.isalpha() for letter in reason) else type(error).__name__
            raise TensorFileError(
                f"{path}: cannot be read as plain tensors; is it a PyTorch file? ({reason})"
            ) from None


def check_uncompressed(file: IO[bytes], where: str) -> None:
    """Refuse a PyTorch archive with compressed members: PyTorch never compresses, and would unpack any claimed size."""
    _check_zip_directory(file, where)
    try:
        with zipfile.ZipFile(file) as archive:
            packed = [entry.filename for entry in archive.infolist() if entry.compress_type != zipfile.ZIP_STORED]
            claimed = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError):
        return  # another format, which torch reads or refuses
    file.seek(0, 2)
    if packed or claimed > file.tell():
        raise TensorFileError(f"{where}: its members are compressed, which torch.save never does; not read")


def _check_zip_directory(file: IO[bytes], where: str) -> None:
    """Refuse a zip archive with a very large central directory, because it is read as a whole."""
    file.seek(0, 2)
    last = max(0, file.tell() - (1 << 16) - 22)
    file.seek(last)
    end = file.read()
    place = end.rfind(b"PK\5\6")
    if place >= 0:
        lengths = [int.from_bytes(end[place + 12 : place + 16], "little")]
        locator = end[max(0, place - 20) : place]
        if locator.startswith(b"PK\6\7"):  # zip64: sizes in 64 bits, in a record that readers look for in two places
            for start in (last + place - 76, int.from_bytes(locator[8:16], "little")):
                file.seek(max(0, min(start, last + place)))
                record = file.read(56)
                lengths += [int.from_bytes(record[40:48], "little")] if record.startswith(b"PK\6\6") else []
        if max(lengths) > MAX_ZIP_DIRECTORY_BYTES:
            raise TensorFileError(f"{where}: a zip directory of {max(lengths):,} bytes, above the limit; not read")
    file.seek(0)


def clone_contiguous(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous copies that do not share memory, as safetensors requires."""
    return {name: value.detach().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
