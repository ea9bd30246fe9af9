"""Originals of the UCI sets, made again from the cleaned tables: what cleaning takes away is put back in.

The formats are the archive's: headers or none, ARFF, workbooks, archives, line ends, rows with gaps.
"""

import io
import struct
import zipfile
from pathlib import Path

from widemargin.data.tabular.uci import UCI_SETS


def originals(folder: Path) -> dict[str, bytes]:
    """Every original by its path on the server; `folder` holds the cleaned tables."""
    rows = {
        name: [line.split(",") for line in (folder / UCI_SETS[name].file_name).read_text().split()[1:]]
        for name in UCI_SETS
    }
    old, new = "/ml/machine-learning-databases", "/static/public"
    pima = "/" + UCI_SETS["pima_indians_diabetes"].sources[0].urls[0].split("/", 3)[3]
    hayes = rows["hayes_roth_with_hobby"]
    votes = [[row[-1], *("ny"[int(vote)] for vote in row[:-1])] for row in rows["congressional_voting_records"]]
    knowledge = rows["user_knowledge_modeling"]
    knowledge[258:] = [[*row[:-1], "Very Low" if row[-1] == "very_low" else row[-1]] for row in knowledge[258:]]
    forest = [[f"{row[-1]} ", *row[:-1]] for row in rows["forest_type_mapping"]]
    return {
        pima: text(with_gaps(rows["pima_indians_diabetes"], 376, 1, "0")),
        f"{old}/hayes-roth/hayes-roth.data": text([str(k), *row] for k, row in enumerate(hayes[:132])),
        f"{old}/hayes-roth/hayes-roth.test": text(hayes[132:]),
        f"{new}/257/user+knowledge+modeling.zip": pack(
            {
                "Data_User_Modeling_Dataset_Hamdi Tolga KAHRAMAN.xls": workbook(
                    {
                        "Information": [["About"]],
                        "Training_Data": [["STG", "SCG", "STR", "LPR", "PEG", " UNS"], *knowledge[:258]],
                        "Test_Data": [["STG", "SCG", "STR", "LPR", "PEG", " UNS"], *knowledge[258:], ["", "note"]],
                    }
                )
            }
        ),
        f"{old}/breast-cancer-wisconsin/wpbc.data": text(
            [str(k), row[-1], *row[:-1]]
            for k, row in enumerate(with_gaps(rows["breast_cancer_wisconsin"], 4, 32, "?"), 8423)
        ),
        f"{new}/292/wholesale+customers.zip": pack(
            {
                "Wholesale customers data.csv": b"Channel,Region,Fresh,Milk,Grocery,Frozen,Detergents_Paper,Deli\r\n"
                + text(([row[-1], *row[:-1]] for row in rows["wholesale_customers"]), "\r\n")
            }
        ),
        f"{old}/tae/tae.data": text(rows["teaching_assistant_evaluation"]),
        f"{old}/00267/data_banknote_authentication.txt": text(rows["banknote_authentication"], "\r\n").rstrip(),
        f"{old}/voting-records/house-votes-84.data": text(with_gaps(votes, 203, 5, "?")),
        f"{old}/00379/PhishingData.arff": b"@relation phishing\n\n@attribute SFH {1,-1,0}\n@attribute Result {0,1,-1}\n"
        b"\n@data\n" + text(rows["website_phishing"]),
        f"{old}/haberman/haberman.data": text(rows["haberman"]),
        f"{old}/iris/iris.data": text(rows["iris_uci"]) + b"\n",
        f"{old}/00192/BreastTissue.xls": workbook(
            {
                "Description": [["Case #"]],
                "Data": [
                    ["Case #", "Class", "I0", "PA500", "HFS", "DA", "Area", "A/DA", "Max IP", "DR", "P"],
                    *([str(k), row[-1], *row[:-1]] for k, row in enumerate(rows["breast_tissue"], 1)),
                ],
            }
        ),
        f"{old}/00212/vertebral_column_data.zip": pack(
            {
                "column_2C.dat": b"63.03 22.55 39.61 40.48 98.67 -0.25 AB\n",
                "column_3C_weka.arff": b"@relation column_3C_weka\n\n@attribute pelvic_incidence numeric\n@data\n"
                + text(rows["vertebral_column"]),
            }
        ),
        f"{new}/333/forest+type+mapping.zip": pack(
            {
                "ForestTypes.zip": pack(
                    {
                        f"ForestTypes/{name}.csv": text([["class", *(f"b{k}" for k in range(27))], *part], "\r\n")
                        for name, part in (("testing", forest[198:]), ("training", forest[:198]))
                    }
                )
            }
        ),
    }


def with_gaps(rows: list[list[str]], count: int, place: int, gap: str) -> list[list[str]]:
    """The rows with so many more between them that have a gap at one place."""
    mixed = list(rows)
    for k in range(count):
        row = list(rows[k % len(rows)])
        row[place] = gap
        mixed.insert(k * len(mixed) // count, row)
    return mixed


def text(rows, end="\n") -> bytes:
    return "".join(",".join(row) + end for row in rows).encode()


def pack(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


def workbook(sheets: dict[str, list[list[str]]]) -> bytes:
    """The smallest Excel 97 stream (BIFF8) that holds numbers and words."""

    def record(kind: int, data: bytes = b"") -> bytes:
        return struct.pack("<HH", kind, len(data)) + data

    def begin(kind: int) -> bytes:
        return record(0x809, struct.pack("<HHHHII", 0x600, kind, 0xDBB, 0x7CC, 0, 6))

    def cell(row: int, column: int, word: str) -> bytes:
        where = struct.pack("<HHH", row, column, 0)
        try:
            return record(0x203, where + struct.pack("<d", float(word)))
        except ValueError:
            return record(0x204, where + struct.pack("<HB", len(word), 0) + word.encode("latin-1"))

    def sheet(rows: list[list[str]]) -> bytes:
        cells = (cell(i, j, word) for i, row in enumerate(rows) for j, word in enumerate(row) if word)
        return begin(0x10) + b"".join(cells) + record(0x0A)

    bodies = {name: sheet(rows) for name, rows in sheets.items()}
    place = len(begin(5)) + sum(12 + len(name) for name in bodies) + len(record(0x0A))
    head = begin(5)
    for name, body in bodies.items():
        head += record(0x85, struct.pack("<IBBBB", place, 0, 0, len(name), 0) + name.encode())
        place += len(body)
    return head + record(0x0A) + b"".join(bodies.values())
