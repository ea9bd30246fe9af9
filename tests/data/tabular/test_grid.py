"""Cells of tables in text: each is read back, whatever separates, quotes and ends rows, with the line it stands in."""

import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from widemargin.data.tabular.grid import parse_grid
from widemargin.data.tabular.table import MISSING_TOKENS, MemoryBudget
from widemargin.data.tabular.text import EncodedText

PLAIN = ["1", "-2.5e3", "7 ", "", "?", "NA", "none", "inf", "007", "1e400"]
CELLS = [
    *PLAIN,
    "1_000",
    "18446744073709551616",
    "True",
    "red",
    "a b",
    "x,y",
    "p;q",
    "l|r",
    "p¦q",
    'say "hi"',
    "#1",
    "'",
]
CELLS += ["two\nlines", "two\r\nlines", "zażółć", "5\u00a0", "٣"]


@given(
    st.lists(st.tuples(*[st.sampled_from(CELLS)] * 3), min_size=1, max_size=60),
    st.sampled_from([",", ";", "\t", "|", "¦"]),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
    st.dictionaries(st.integers(0, 59), st.sampled_from(["", "  ", '""', '" "', "\u2003"]), max_size=3),
)
def test_every_cell_and_line_is_read_back(rows, separator, line_end, quote_all, blank_lines):
    lines = [f"sep={separator}{line_end}", separator.join(["one", "two", "three"]) + line_end]
    starts = []
    for place, row in enumerate(rows):
        if place in blank_lines:
            lines.append(blank_lines[place] + line_end)
        starts.append(1 + sum(len(re.findall(r"\r\n|\r|\n", line)) for line in lines))
        is_quoted = [quote_all or any(sign in cell for sign in f'{separator}"\r\n') for cell in row]
        quoted = [cell.replace('"', '""').join('""') if has else cell for cell, has in zip(row, is_quoted, strict=True)]
        lines.append(separator.join(quoted) + line_end)
    data = "".join(lines).encode()
    grid = parse_grid(EncodedText(data, "utf-8"), MemoryBudget("f", len(data)))
    assert grid.column_names == ["one", "two", "three"]
    assert list(grid.line_numbers) == starts
    for place, words in enumerate(grid.column_words(range(3))):
        wanted = [row[place].strip() for row in rows]
        assert list(words) == wanted
        cells = grid.columns[place]
        assert isinstance(cells, np.ndarray) == all(row[place] in PLAIN for row in rows)
        if isinstance(cells, np.ndarray):
            expected = [np.nan if word.lower() in MISSING_TOKENS else float(word) for word in wanted]
            np.testing.assert_array_equal(cells, expected)
