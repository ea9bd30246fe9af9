"""`widemargin reproduce table2`: the data sets have the sizes that the paper prints."""

from widemargin.cli.main import main
from widemargin.data.tabular.uci import TABLE1_SET_NAMES


def test_table2_agrees_with_the_paper(data_dir, capsys):
    assert main(["reproduce", "table2", "--data-dir", str(data_dir)]) == 0
    out = capsys.readouterr().out
    for name in TABLE1_SET_NAMES:
        assert name in out
    assert out.count(" yes ") == len(TABLE1_SET_NAMES) == 15
    assert "NO" not in out
