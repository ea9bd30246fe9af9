"""Tables of scores [sets, methods] for the tests of statistics: a published one, random ones, and all that hypothesis
thinks of.
"""

import numpy as np
from hypothesis import strategies as st

# Demšar 2006, Table 6: AUC of C4.5 without and with m, cf and both tuned. On the 13th set his ranks tell
# the last two apart, which three printed decimals do not.
DEMSAR = np.array(
    [
        [0.763, 0.768, 0.771, 0.798],
        [0.599, 0.591, 0.590, 0.569],
        [0.954, 0.971, 0.968, 0.967],
        [0.628, 0.661, 0.654, 0.657],
        [0.882, 0.888, 0.886, 0.898],
        [0.936, 0.931, 0.916, 0.931],
        [0.661, 0.668, 0.609, 0.685],
        [0.583, 0.583, 0.563, 0.625],
        [0.775, 0.838, 0.866, 0.875],
        [1.000, 1.000, 1.000, 1.000],
        [0.940, 0.962, 0.965, 0.962],
        [0.619, 0.666, 0.614, 0.669],
        [0.972, 0.981, 0.9751, 0.975],
        [0.957, 0.978, 0.946, 0.970],
    ]
)
NAMES = ["C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf"]

coarse_scores = st.integers(0, 8).map(lambda i: i / 8)  # so that ties are common


@st.composite
def score_tables(draw, sets=(1, 12), methods=(2, 6)):
    n, k = draw(st.integers(*sets)), draw(st.integers(*methods))
    return np.array(draw(st.lists(st.lists(coarse_scores, min_size=k, max_size=k), min_size=n, max_size=n)))


def random_table(seed, n, k, decimals=1):
    return np.random.default_rng(seed).random((n, k)).round(decimals)
