"""Published numbers of the ArcGrad paper: its tables as printed, and its methods as our losses.

>>> paper_table1()["iris_uci", "arcgrad5"], paper_table2()["iris_uci"]
((96.93, 4.26), (3, 4, 150))
"""

from __future__ import annotations

import csv
from importlib.resources import files

PAPER_METHODS = ("soft", "center", "m_soft", "arcface", "adacos", "arcgrad30", "arcgrad5")
PAPER_TABLE_FILES = {
    1: "table1_uci_accuracy",
    2: "table2_uci_sets",
    4: "table4_cifar10_accuracy",
    5: "table5_cifar100_accuracy",
    6: "table6_cifar10_angles",
    7: "table7_cifar10_epochs",
}
# The methods of Table I as our losses.
TABLE1_LOSSES = {
    "soft": "softmax",
    "center": "softmax + 0.02*center(alpha=0.5)",
    "m_soft": "m_softmax(m=0.5)",
    "arcface": "arcface(s=20, m=0.1)",
    "adacos": "adacos",
    "arcgrad30": "arcgrad(s=30)",
    "arcgrad5": "arcgrad(s=5)",
}
ADACOS_WITH_FLOOR = "adacos(floor=2)"
TABLE1_ARCGRAD = "arcgrad(s=5)"


def read_paper_table(number: int) -> list[dict[str, str]]:
    """Read the rows of a table by its number: 1, 2, 4, 5, 6 or 7."""
    text = (files(__package__) / "paper_tables" / f"{PAPER_TABLE_FILES[number]}.csv").read_text("utf-8")
    return list(csv.DictReader(text.splitlines()))


def paper_table1() -> dict[tuple[str, str], tuple[float, float]]:
    """Accuracy in percent, mean and standard deviation, by our name of the set and the paper's name of the method."""
    names = _set_name_by_paper_name()
    return {
        (names[row["dataset"]], row["method"]): (float(row["mean"]), float(row["std"])) for row in read_paper_table(1)
    }


def paper_table2() -> dict[str, tuple[int, int, int]]:
    """Classes, features and rows of each set, by our name."""
    names = _set_name_by_paper_name()
    return {
        names[row["dataset"]]: (int(row["classes"]), int(row["features"]), int(row["instances"]))
        for row in read_paper_table(2)
    }


def _set_name_by_paper_name() -> dict[str, str]:
    from ..data.tabular.uci_sets import UCI_SETS

    return {entry.paper_name: entry.name for entry in UCI_SETS.values() if entry.paper_name}
