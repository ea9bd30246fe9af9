"""Tables as matrices: what becomes too large is refused."""

import pytest

from widemargin.io.errors import InputError


def test_a_table_that_becomes_too_many_columns_is_refused(tmp_path, monkeypatch):
    from widemargin.data.tabular import table as table_module
    from widemargin.data.tabular.encode import encode
    from widemargin.data.tabular.read import read_table

    path = tmp_path / "levels.csv"
    path.write_text("x,c,label\n" + "".join(f"{k},w{k % 30},{'ab'[k % 2]}\n" for k in range(300)))
    table = read_table(path)
    assert encode(table).x.shape == (300, 31)
    monkeypatch.setattr(table_module, "MAX_CELLS", 300 * 31)
    with pytest.raises(InputError, match=r"300 rows of 32 columns.*9,300"):
        encode(table)
