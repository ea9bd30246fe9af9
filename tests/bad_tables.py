"""Bad and odd tables: each is refused with one line that holds `error`, or must work where `error` is None.

Shared by the tests of the reader and of the command, so that both say the same.
"""

import gzip
import random
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CLASSES = "ab"


@dataclass(frozen=True)
class Case:
    """`write(folder)` gives the path to hand over and the options of the command; `note` is part of a note."""

    write: Callable[[Path], tuple[str, list[str]]]
    error: str | None = None
    note: str = ""


def rows(count: int = 40, seed: int = 0) -> list[list[str]]:
    """Two numbers and a class that depends on them."""
    draw = random.Random(seed)
    found = []
    for row in range(count):
        label = row % 2
        found.append([f"{draw.gauss(label, 0.3):.3f}", f"{draw.gauss(-label, 0.3):.3f}", CLASSES[label]])
    return found


def good(header: str = "x,z,label", **change: object) -> str:
    """A good table; `change` puts cells elsewhere: r5c0="abc" is the first cell of the fifth row of the file."""
    cells = [header.split(","), *rows()]
    for place, value in change.items():
        row, column = place[1:].split("c")
        cells[int(row) - 1][int(column)] = str(value)
    return "".join(",".join(row) + "\n" for row in cells)


def with_column(name: str, values: Callable[[int], str], count: int = 40) -> str:
    """A good table with one more column in front."""
    lines = [f"{name},x,z,label"] + [f"{values(k)},{','.join(row)}" for k, row in enumerate(rows(count))]
    return "\n".join(lines) + "\n"


def file(content: str | bytes, name: str = "data.csv", *options: str) -> Callable[[Path], tuple[str, list[str]]]:
    def write(folder: Path) -> tuple[str, list[str]]:
        path = folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path), list(options)

    return write


def missing_file(name: str, beside: str = "") -> Callable[[Path], tuple[str, list[str]]]:
    def write(folder: Path) -> tuple[str, list[str]]:
        if beside:
            (folder / beside).write_text(good())
        return str(folder / name), []

    return write


def folder_itself(folder: Path) -> tuple[str, list[str]]:
    return str(folder), []


def zip_file(member: str, name: str) -> Callable[[Path], tuple[str, list[str]]]:
    def write(folder: Path) -> tuple[str, list[str]]:
        with zipfile.ZipFile(folder / name, "w") as pack:
            pack.writestr(member, good())
        return str(folder / name), []

    return write


def wide(folder: Path) -> tuple[str, list[str]]:
    """10,000 columns, 200 rows."""
    draw = random.Random(0)
    lines = [",".join([f"c{k}" for k in range(10_000)] + ["label"])]
    for row in range(200):
        lines.append(",".join([str(draw.randrange(1000) / 8) for _ in range(10_000)] + [CLASSES[row % 2]]))
    return file("\n".join(lines))(folder)


def with_decimal_commas(text: str) -> str:
    """Semicolons between fields and commas in numbers."""
    return text.replace(",", ";").replace(".", ",")


def labels(values: Callable[[int], str], count: int = 120) -> str:
    return "x,label\n" + "".join(f"{(k * 37) % 101},{values(k)}\n" for k in range(count))


JUNK = random.Random(1).randbytes(2000)
ESSAY = "a long sentence that says something else about every row but nothing about its class, number"
ID_NOTE = "(a running number or an id"

CASES: dict[str, Case] = {
    # no table at all
    "empty": Case(file(""), "the file is empty"),
    "blank lines": Case(file("\n  \n\n"), "the file is empty"),
    "byte order mark only": Case(file(b"\xef\xbb\xbf"), "the file is empty"),
    "zero bytes": Case(file(bytes(100)), "zero bytes"),
    "header only": Case(file("x,z,label\n"), "a header but no rows"),
    "one column": Case(file("label\na\nb\n"), "one column only"),
    "separated by blanks": Case(file(good().replace(",", " ")), "one column only"),
    "binary junk": Case(file(JUNK), "is not text in UTF-8"),
    "zero byte in a row": Case(file(good().replace("b\n", "b\0\n", 1)), "row 3 contains a zero byte"),
    "control characters": Case(file("x,label\n" + "\x01\x02\x03,a\n\x04,b\n" * 9), "control characters"),
    "folder": Case(folder_itself, "a folder"),
    "missing file": Case(missing_file("nowhere.csv"), "no such file"),
    "file name mistyped": Case(missing_file("dat.csv", beside="data.csv"), "did you mean 'data.csv'?"),
    "set name mistyped": Case(missing_file("habermann"), "did you mean 'haberman'?"),
    "file in a file": Case(missing_file("data.csv/inner.csv", beside="data.csv"), "cannot be read"),
    "Excel of 1997": Case(file(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + JUNK, "data.xls"), "Excel workbook"),
    "Excel": Case(zip_file("[Content_Types].xml", "data.xlsx"), "Excel workbook"),
    "zip": Case(zip_file("data.csv", "data.zip"), "a zip archive"),
    "bzip2": Case(file(b"BZh91AY" + JUNK, "data.csv.bz2"), "bzip2"),
    "web page": Case(file("<!DOCTYPE html>\n<html><body>404</body></html>"), "a web page"),
    "ARFF": Case(file("@RELATION x\n@attribute a real\n@data\n1,a\n"), "an ARFF file"),
    "JSON": Case(file('[{"x": 1, "label": "a"}]'), "a JSON file"),
    "damaged gzip": Case(file(gzip.compress(good().encode())[:-20], "data.csv.gz"), "damaged gzip"),
    "damaged Parquet": Case(file(b"PAR1" + JUNK + b"PAR1", "data.parquet"), "damaged Parquet"),
    "damaged UTF-16": Case(file(b"\xff\xfe" + good().encode("utf-16-le") + b"x"), "damaged UTF-16"),
    # rows and header
    "row too short": Case(file(good().replace(",b\n", "\n", 1)), "row 3 has 2 fields, the first row 3"),
    "row too long": Case(file(good().replace("b\n", "b,c\n", 1)), "row 3 has 4 fields"),
    "ragged after a field of two lines": Case(
        file('x,note,label\n1,p,a\n2,"q\nr",b\n3,a\n'), "row 5 has 2 fields, the first row 3"
    ),
    "names twice": Case(file(good("x,x,label")), "columns 1 and 2 are both named 'x'"),
    "quote left open": Case(file(good(r5c0='"1')), "row 5: a quote is opened and never closed"),
    "endless field": Case(file(good(r5c0='"1') + "x\n" * 200_000), "row 5: a field of more than"),
    "text after a quote": Case(file(good(r7c1='"1"2')), "row 7: wrong quotes"),
    # the target
    "target mistyped": Case(file(good(), "data.csv", "--target", "lable"), "did you mean 'label'?"),
    "target unknown": Case(file(good(), "data.csv", "--target", "qqqqqq"), "(its columns: 'x', 'z', 'label')"),
    "target in other case": Case(file(good(), "data.csv", "--target", "LABEL"), "did you mean 'label'?"),
    "one class": Case(file(good().replace(",b\n", ",a\n")), "only the class 'a'"),
    "no labels": Case(file("x,label\n1,\n2,?\n3,NA\n"), "has no label in any row"),
    "a quantity as target": Case(file(labels(lambda k: f"{k * 0.37:.2f}")), "looks like a number to be predicted"),
    "a price as target": Case(
        file(labels(lambda k: str(1000 * (k % 40) + 50 * (k // 70)), 130)), "(80 different values in 130 rows)"
    ),
    "an age as target": Case(file(labels(lambda k: str(18 + k * 7 % 61), 2000)), ", or bin it first"),
    "an id as target": Case(file(labels(lambda k: f"p{k}")), "they are not classes"),
    "one class left": Case(file("x,label\n1,a\n2,a\n3,a\n4,b\n"), "only the class 'a' with two rows or more"),
    # columns
    "infinite number": Case(file(good(r9c0="inf")), "row 9, column 'x': an infinite number"),
    "number too large": Case(file(good(r9c1="1e999")), "row 9, column 'z': an infinite number"),
    "word among numbers": Case(file(good(r17c0="abc")), "row 17, column 'x': 'abc' is not a number"),
    "only an id": Case(
        file("id,label\n" + "".join(f"{k},{CLASSES[k % 2]}\n" for k in range(30))), "no column to learn from"
    ),
    "only constants": Case(file("x,z,label\n" + "1,u,a\n1,u,b\n" * 9), "no column to learn from"),
    "two readings of a comma": Case(
        file(with_column("price", lambda k: f"{k % 7 + 1}#{k:03d}").replace(",", ";").replace("#", ",")),
        "column 'price': '1,000' may be 1 or 1000",
    ),
    "a day that is none": Case(
        file(with_column("day", lambda k: f"2024-02-{k % 30 + 1:02d}")), "'2024-02-30' is not a date"
    ),
    "a letter as separator": Case(file("sep=x\n" + good()), "row 1: 'x' cannot separate fields"),
    # odd but fine
    "good": Case(file(good())),
    "byte order mark": Case(file(b"\xef\xbb\xbf" + good().encode())),
    "UTF-16": Case(file(good().encode("utf-16"))),
    "Windows text": Case(file(good("größe,z,label").encode("cp1252")), note="Windows-1252"),
    "gzip": Case(file(gzip.compress(good().encode()), "data.csv.gz")),
    "semicolons": Case(file(good().replace(",", ";"))),
    "semicolons and decimal commas": Case(file(with_decimal_commas(good())), note="'x', 'z': decimal commas"),
    "thousands": Case(
        file(with_column("price", lambda k: f'"{k % 7 + 1},{k:03d}"')), note="'price': commas between thousands"
    ),
    "prices": Case(file(with_column("price", lambda k: f'"$1,{k:03d}.50"')), note="the currency sign $ was taken out"),
    "dates": Case(
        file(with_column("day", lambda k: f"{k % 28 + 1:02d}.11.2024")), note="'day': dates (day first) became"
    ),
    "Excel's first line": Case(file("sep=;\n" + good().replace(",", ";"))),
    "tabs": Case(file(good().replace(",", "\t"), "data.tsv")),
    "pipes": Case(file(good().replace(",", "|"))),
    "Windows line ends": Case(file(good().replace("\n", "\r\n"))),
    "old Mac line ends": Case(file(good().replace("\n", "\r"))),
    "no line end at the end": Case(file(good().rstrip())),
    "blank lines between": Case(file(good().replace("\n", "\n\n"))),
    "blanks around": Case(file(good().replace(",", " , "))),
    "quotes and line ends in fields": Case(file(good(r4c0='"1.5"', r6c2='"a\nb"', r8c2='"a\nb"'))),
    "no header": Case(file(good().split("\n", 1)[1]), note="named c1 to c3"),
    "names are numbers": Case(file(good("0,1,2"))),
    "index without a name": Case(file(with_column("", str)), note="left out 'unnamed_1'"),
    "id": Case(file(with_column("PassengerId", lambda k: str(1000 + k))), note="left out 'PassengerId'"),
    "names of people": Case(file(with_column("name", lambda k: f"person {k}")), note=f"left out 'name' {ID_NOTE}"),
    "free text": Case(file(with_column("essay", lambda k: f'"{ESSAY} {k % 9}"')), note="left out 'essay' (free text"),
    "constant": Case(file(with_column("c", lambda k: "7")), note="left out 'c' (one value only)"),
    "empty column": Case(file(with_column("c", lambda k: "NA")), note="left out 'c' (no values in it)"),
    "categories": Case(
        file(with_column("colour", lambda k: ("red", "green", "?")[k % 3])), note="13 missing values in 'colour'"
    ),
    "grades with a letter": Case(file(with_column("grade", lambda k: "A" if k == 7 else str(k % 4)))),
    "missing numbers": Case(file(good(r3c0="", r4c0="NA", r5c1="null", r6c1="-")), note="4 missing values in 'x', 'z'"),
    "labels missing": Case(file(good(r3c2="", r9c2="nan")), note="2 rows without a label (the first is row 3)"),
    "class of one": Case(file(good(r3c2="c")), note="single row: 'c'"),
    "classes are numbers": Case(file(good().replace(",a\n", ",10\n").replace(",b\n", ",9\n"))),
    "a class called none": Case(file(good().replace(",a\n", ",None\n"))),
    "target first": Case(file(good("label,z,x").replace("label", "kind"), "data.csv", "--target", "x")),
    "separator at each line's end": Case(file(good().replace("\n", ",\n"))),
    "10,000 columns": Case(wide),
}
