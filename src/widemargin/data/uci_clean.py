"""The originals of the 15 sets → cleaned tables: comma-separated, one header, digits as in the source, label last.

A cleaner takes the bytes of the originals in order and gives the text whose SHA-256 the catalogue knows,
so that a changed original is noticed whatever it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO, StringIO
from itertools import product
from zipfile import ZipFile

from ..errors import InputError
from .bounded import check_zip_size, read_zip_member
from .cells import parse_number

Cleaner = Callable[[Sequence[bytes]], str]
UciRow = list[str]

MAX_UCI_BYTES = 64 << 20  # bytes of the originals of a set, unpacked
VOTE_CODES = {"y": "1", "n": "0"}
CLASS_SPELLINGS = {"Very Low": "very_low"}  # one class, written in two ways in the two sheets of its workbook


def text_cleaner(
    header: str, width: int, features: Sequence[int], label: int, keep_row: Callable[[UciRow], bool] | None = None
) -> Cleaner:
    """A cleaner for text: of rows with so many fields, these as features and that one as label, if they are to keep."""

    def clean(files: Sequence[bytes]) -> str:
        rows = []
        for data in files:
            for place, fields in enumerate(_iter_uci_rows(data)):
                if len(fields) < width:
                    raise InputError(f"a line has {len(fields)} fields, {width} are expected")
                values = [VOTE_CODES.get(fields[feature], fields[feature]) for feature in features]
                if place == 0 and any(parse_number(value) is None and value != "?" for value in values):
                    continue  # a header
                rows.append([*values, fields[label]])
        return _join_csv(header, (row for row in rows if keep_row is None or keep_row(row)))

    return clean


def is_complete(row: UciRow) -> bool:
    """Whether no field is missing."""
    return "?" not in row


def has_all_measurements(row: UciRow) -> bool:
    """Whether no measurement of Pima Indians Diabetes is zero, which stands for missing there."""
    return all(float(value) != 0 for value in row[1:6])


def workbook_cleaner(header: str, sheets: Sequence[str], features: Sequence[int], label: int) -> Cleaner:
    """A cleaner for .xls: the same of the sheets named; numbers in the shortest form that gives them back."""

    def clean(files: Sequence[bytes]) -> str:
        import xlrd

        rows = []
        with xlrd.open_workbook(file_contents=files[0], logfile=StringIO()) as book:
            for sheet in map(book.sheet_by_name, sheets):
                for cells in map(sheet.row_values, range(sheet.nrows)):
                    values = [cells[feature] for feature in features]
                    if all(isinstance(value, float) for value in values):  # no header and no empty line
                        name = str(cells[label]).strip()
                        rows.append([*map(repr, values), CLASS_SPELLINGS.get(name, name)])
        return _join_csv(header, rows)

    return clean


def generate_balance_scale(files: Sequence[bytes] = ()) -> str:
    """Balance Scale needs no original: every weight and distance from 1 to 5 on both arms, and which arm goes down."""
    rows = []
    for left, left_distance, right, right_distance in product(range(1, 6), repeat=4):
        pull = left * left_distance - right * right_distance
        label = "L" if pull > 0 else "R" if pull < 0 else "B"
        rows.append([*map(str, (left, left_distance, right, right_distance)), label])
    return _join_csv("left_weight,left_distance,right_weight,right_distance,label", rows)


def find_zip_members(archive: bytes, names: Sequence[str], is_nested: bool = False) -> list[bytes]:
    """Files of a zip archive by their names, wherever they lie in it, also in an archive inside (and no deeper)."""
    found: dict[str, bytes] = {}
    with ZipFile(BytesIO(archive)) as pack:
        for entry in check_zip_size(pack, MAX_UCI_BYTES, "the archive").infolist():
            name = entry.filename.rpartition("/")[2]
            if name in names:
                found.setdefault(name, read_zip_member(pack, entry))
            elif name.lower().endswith(".zip") and not is_nested:
                inner = read_zip_member(pack, entry)
                with ZipFile(BytesIO(inner)) as inside:
                    if {inside_name.rpartition("/")[2] for inside_name in inside.namelist()} >= set(names):
                        return find_zip_members(inner, names, is_nested=True)
    for name in names:
        if name not in found:
            raise InputError(f"no {name} in the archive")
    return [found[name] for name in names]


def _iter_uci_rows(data: bytes) -> Iterator[UciRow]:
    """Fields of the lines of comma- or semicolon-separated text or ARFF, without blank lines and comments."""
    lines = [line.strip() for line in data.decode("utf-8", "replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith("%")]
    begins = next((place + 1 for place, line in enumerate(lines) if line.lower() == "@data"), 0)
    for line in lines[begins:]:
        yield [field.strip() for field in re.split("[,;]", line)]


def _join_csv(header: str, rows: Iterable[UciRow]) -> str:
    return "".join(f"{line}\n" for line in (header, *(",".join(row) for row in rows)))
