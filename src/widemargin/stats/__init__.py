"""Significance tests of methods: over many data sets, and over the folds of one.

Many sets, a score each (J. Demšar, Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 7,
2006): `ranks`, `friedman`, then `nemenyi` with its critical difference, or `wilcoxon` with Holm's correction.
One set, many folds that overlap (Nadeau & Bengio 2003; Bouckaert & Frank 2004): `corrected_t_test`, `interval`,
`methods_not_worse`. `verdict_many_datasets` and `verdict_one_dataset` state the outcome in words and make no claim
without a test.

Scores [sets, methods] are better the higher they are. The package does not need torch.
>>> scores = [[0.91, 0.90, 0.85], [0.80, 0.80, 0.70], [0.99, 0.97, 0.96]]
>>> mean_ranks(scores).round(2).tolist()
[1.17, 1.83, 3.0]
"""

from .fold_tests import CorrectedTResult, corrected_t_test, holm, interval, methods_not_worse
from .rank_tests import (
    FriedmanResult,
    PairTest,
    SignedRankResult,
    Wins,
    cliques,
    critical_difference,
    friedman,
    mean_ranks,
    nemenyi,
    q_alpha,
    ranks,
    signed_rank_test,
    wilcoxon,
    wins,
)
from .verdict import Verdict, verdict_many_datasets, verdict_one_dataset

__all__ = [
    "CorrectedTResult",
    "FriedmanResult",
    "PairTest",
    "SignedRankResult",
    "Verdict",
    "Wins",
    "cliques",
    "corrected_t_test",
    "critical_difference",
    "friedman",
    "holm",
    "interval",
    "mean_ranks",
    "methods_not_worse",
    "nemenyi",
    "q_alpha",
    "ranks",
    "signed_rank_test",
    "verdict_many_datasets",
    "verdict_one_dataset",
    "wilcoxon",
    "wins",
]
