"""Tensors from files that others wrote: safetensors, or PyTorch's own as plain tensors; nothing is unpickled or run.

Both formats can lie about their size. A safetensors file begins with the length of its header, which a reader may
trust; a PyTorch file is a zip archive whose members may be packed, and unpack to more memory than there is.
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

MAX_HEADER_BYTES = 16 << 20  # bytes; a header has about a hundred for each tensor
MAX_ZIP_DIRECTORY_BYTES = 16 << 20  # bytes of a zip archive's list of members, about a hundred for each


class TensorFileError(InputError):
    """A file that does not hold what its format promises."""


@dataclass(frozen=True)
class SafetensorsFile:
    """A safetensors file whose header was read and nothing else: which tensors it holds, and how large they are."""

    path: Path
    sizes: Mapping[str, int]
    """Bytes of every tensor by its name."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(self.sizes.values())

    @property
    def sources(self) -> dict[str, str]:
        """Of each tensor this file and its name, for messages."""
        return {name: f"{self.path}: {name}" for name in self.sizes}

    def read(self, names: Collection[str] | None = None) -> dict[str, Tensor]:
        """The tensors, or those of these names, if there is memory for them."""
        from safetensors import SafetensorError, safe_open

        wanted = list(self.sizes) if names is None else [name for name in names if name in self.sizes]
        with open_regular(self.path) as file:
            if _read_tensor_sizes(file, self.path) != self.sizes:
                raise TensorFileError(f"{self.path}: has changed while it was read")
            check_memory(sum(self.sizes[name] for name in wanted), str(self.path))
            try:
                # Mapped into memory, as is usual, every tensor leaves some bytes behind (0.8.0), and a file that is
                # replaced meanwhile ends the process.
                with safe_open(_path_of_open_file(file, self.path), framework="pt", backend="pread") as tensors:
                    return {name: tensors.get_tensor(name) for name in wanted}
            except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError, OverflowError) as error:
                raise TensorFileError(f"{self.path}: not a readable safetensors file ({error})") from None


def read_safetensors_header(path: Path) -> SafetensorsFile:
    """What a safetensors file holds, by its header; a file that is not there raises FileNotFoundError."""
    try:
        import safetensors  # noqa: F401
    except ImportError:
        raise InputError(f"{path}: install safetensors to read it (pip install safetensors)") from None
    with open_regular(path) as file:
        return SafetensorsFile(path, _read_tensor_sizes(file, path))


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Every tensor by its name; a file that is not there raises FileNotFoundError."""
    return read_safetensors_header(path).read()


def _read_tensor_sizes(file: BinaryIO, path: Path) -> dict[str, int]:
    """Bytes of every tensor, as the header has it; one that lies about them, or a file of holes, is refused."""
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > size - 8:
        raise TensorFileError(f"{path}: not a readable safetensors file (cut short, or another format)")
    if length > MAX_HEADER_BYTES:
        raise TensorFileError(f"{path}: a header of {length:,} bytes, more than the {MAX_HEADER_BYTES:,} that are read")
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
    """A name for the very file that is open, where the system has such names: another cannot take its place."""
    name = f"/proc/self/fd/{file.fileno()}"
    return name if os.path.exists(name) else str(path)


def all_finite(value: Tensor) -> bool:
    """Whether a tensor holds neither NaN nor infinity: one pass, and no mask as large as the tensor."""
    if not value.is_floating_point() or not value.numel():
        return True
    low, high = (value if value.element_size() > 1 else value.float()).detach().aminmax()
    return bool(low.isfinite() & high.isfinite())


def not_finite_error(where: str, value: Tensor, advice: str) -> InputError:
    """The error for a tensor that is not finite; `where` names the file and the tensor in it."""
    wrong = int((~value.detach().float().isfinite()).sum())
    return InputError(f"{where} is not finite ({wrong:,} of {value.numel():,} numbers are NaN or infinite); {advice}")


def read_torch(path: Path) -> Any:
    """What a PyTorch file holds, if it is plain tensors, numbers and words in plain containers."""
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
        except Exception as error:  # torch raises many kinds; the first line says which
            reason = str(error).splitlines()[0][:120] if str(error).strip() else ""
            # A damaged file may fail with nothing but a number; then the kind of failure says more.
            reason = reason if any(letter.isalpha() for letter in reason) else type(error).__name__
            raise TensorFileError(
                f"{path}: cannot be read as plain tensors, is it a PyTorch file? ({reason})"
            ) from None


def check_uncompressed(file: IO[bytes], where: str) -> None:
    """Refuse a PyTorch archive with packed members: PyTorch never packs, and would unpack whatever size they claim."""
    _check_zip_directory(file, where)
    try:
        with zipfile.ZipFile(file) as archive:
            packed = [entry.filename for entry in archive.infolist() if entry.compress_type != zipfile.ZIP_STORED]
            claimed = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError):
        return  # another format, which torch reads or refuses
    file.seek(0, 2)
    if packed or claimed > file.tell():
        raise TensorFileError(f"{where}: its contents are packed, which PyTorch never does; not read")


def _check_zip_directory(file: IO[bytes], where: str) -> None:
    """Refuse a zip archive whose list of members, which is read as a whole, is very large."""
    file.seek(0, 2)
    last = max(0, file.tell() - (1 << 16) - 22)
    file.seek(last)
    end = file.read()
    place = end.rfind(b"PK\5\6")
    if place >= 0:
        lengths = [int.from_bytes(end[place + 12 : place + 16], "little")]
        locator = end[max(0, place - 20) : place]
        if locator.startswith(b"PK\6\7"):  # sizes in 64 bits, in a record that readers look for in two places
            for start in (last + place - 76, int.from_bytes(locator[8:16], "little")):
                file.seek(max(0, min(start, last + place)))
                record = file.read(56)
                lengths += [int.from_bytes(record[40:48], "little")] if record.startswith(b"PK\6\6") else []
        if max(lengths) > MAX_ZIP_DIRECTORY_BYTES:
            raise TensorFileError(f"{where}: a list of members of {max(lengths):,} bytes; not read")
    file.seek(0)


def clone_contiguous(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor contiguous and with memory of its own, as safetensors wants them."""
    return {name: value.detach().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
