"""A generated table like Adult, with every kind of column: numbers, decimal commas, money, words, truth, dates."""

import numpy as np
import pandas as pd


def draw(count, seed):
    """`count` rows with a column `income` of two classes."""
    rng = np.random.default_rng(seed)
    age, hours = rng.integers(17, 80, count), rng.normal(40, 10, count).round(1)
    education = rng.choice(["HS", "BSc", "MSc", "PhD"], count, p=[0.5, 0.3, 0.15, 0.05])
    gain = rng.lognormal(7, 1, count)
    hired = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 1500, count), unit="D")
    degree = np.select([education == "BSc", education == "MSc", education == "PhD"], [1, 1.5, 2.5], 0)
    score = 0.05 * (age - 45) + 0.04 * (hours - 40) + degree + 0.3 * (np.log(gain) - 7) + rng.normal(0, 0.7, count)
    return pd.DataFrame(
        {
            "age": age,
            "hours": [f"{value:.1f}".replace(".", ",") for value in hours],
            "education": education,
            "work": rng.choice(["private", "state", "self", ""], count, p=[0.6, 0.2, 0.15, 0.05]),
            "gain": [f"${value:,.2f}" for value in gain],
            "married": rng.choice([True, False], count),
            "hired": hired.strftime("%d.%m.%Y"),
            "shift": [f"{hour:02d}:30" for hour in rng.integers(0, 24, count)],
            "weight": np.where(rng.random(count) < 0.1, np.nan, rng.normal(size=count)),
            "income": np.where(score > 0.8, ">50K", "<=50K"),
        }
    )


def iris_frame():
    """Iris with the names of its columns and classes."""
    from sklearn.datasets import load_iris

    iris = load_iris()
    names = ["sepal_length", "sepal_width", "petal_length", "petal_width"]
    return pd.DataFrame(iris.data, columns=names), iris.target_names[iris.target]
