"""How well a ranking finds the one right document, with intervals; and a ranking without a model.

All of it is plain arithmetic on a matrix of scores, one row a query, one column a document.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Interval",
    "best_documents",
    "bm25_scores",
    "bootstrap_interval",
    "paired_difference",
    "ranks_of",
    "recall_interval",
    "reciprocal",
]

Matrix = NDArray[np.float64]
Z_95 = 1.959963984540054  # the 97.5 % quantile of the normal law
RESAMPLES = 10_000


@dataclass(frozen=True)
class Interval:
    """An estimate with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high


def ranks_of(scores: ArrayLike, right: ArrayLike) -> NDArray[np.int64]:
    """Return the place of the right document of each query, 1 for the best.

    A document with an equal score stands before the right one: ties never help.

    Parameters
    ----------
    scores : array_like, shape (queries, documents)
        Without NaN.
    right : array_like, shape (queries,)
        The column of the right document.

    Raises
    ------
    ValueError
        If a score is NaN, which has no place in an order.
    """
    table = np.asarray(scores)
    if np.isnan(table).any():
        raise ValueError("scores must not be NaN: it has no place in an order; find out why")
    own = np.take_along_axis(table, np.asarray(right)[:, None], axis=1)
    ranks: NDArray[np.int64] = (table >= own).sum(axis=1)
    return ranks


def best_documents(scores: ArrayLike, k: int) -> NDArray[np.int64]:
    """Return the k best documents of each query, the best first; of equals, the first."""
    order: NDArray[np.int64] = np.argsort(-np.asarray(scores), axis=1, kind="stable")[:, :k]
    return order


def reciprocal(ranks: ArrayLike) -> Matrix:
    """Return 1/rank of each query. Their mean is the mean reciprocal rank, MRR."""
    found: Matrix = 1.0 / np.asarray(ranks, dtype=np.float64)
    return found


def recall_interval(ranks: ArrayLike, k: int) -> Interval:
    r"""Share of queries whose right document is among the k best, with Wilson's interval.

    .. math::
        \frac{\hat p + z^2/2n \pm z\sqrt{\hat p (1 - \hat p)/n + z^2/4n^2}}{1 + z^2/n}

    Raises
    ------
    ValueError
        If there is no query.
    """
    hits = np.asarray(ranks) <= k
    n = hits.size
    if n == 0:
        raise ValueError("ranks must hold at least one query")
    p = float(hits.mean())
    centre = p + Z_95**2 / (2 * n)
    half = Z_95 * math.sqrt(p * (1 - p) / n + Z_95**2 / (4 * n * n))
    low, high = ((centre + sign * half) / (1 + Z_95**2 / n) for sign in (-1, 1))
    # for no hit, and for hits only, one end is p itself, rounding apart
    return Interval(p, low if p > 0 else p, high if p < 1 else p)


def bootstrap_interval(values: ArrayLike, seed: int, resamples: int = RESAMPLES) -> Interval:
    """Mean over queries, with the percentile interval of the bootstrap over queries.

    Parameters
    ----------
    values : array_like, shape (queries,)
        One number for each query.
    seed
        Of the resampling. The same seed draws the same queries.
    resamples
        How often as many queries are drawn with replacement.

    Raises
    ------
    ValueError
        If there is no query.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.size == 0:
        raise ValueError("values must hold at least one query")
    rng = np.random.default_rng(seed)
    means = x[rng.integers(x.size, size=(resamples, x.size), dtype=np.int32)].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975)).tolist()
    return Interval(float(x.mean()), low, high)


def paired_difference(
    values: ArrayLike, baseline: ArrayLike, seed: int, resamples: int = RESAMPLES
) -> Interval:
    """Mean of values − baseline, query by query, as `bootstrap_interval` does.

    What makes a query hard is hard for both and cancels, so this interval is narrower than the
    two others suggest.
    """
    difference = np.asarray(values, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    return bootstrap_interval(difference, seed, resamples)


def words_in(text: str) -> list[str]:
    """Return the words and numbers of a text in lower case."""
    return re.findall(r"[a-z0-9]+", text.lower())


def bm25_scores(
    queries: Sequence[str], documents: Sequence[str], k1: float = 1.2, b: float = 0.75
) -> Matrix:
    r"""Scores by shared words, without any model.

    .. math::
        \sum_{w \in q} \ln\Bigl(1 + \frac{N - n_w + \frac12}{n_w + \frac12}\Bigr)
        \frac{f_w (k_1 + 1)}{f_w + k_1 (1 - b + b\,|d| / \overline{|d|})}

    with N documents, of which :math:`n_w` have the word w, and :math:`f_w` times w in d.
    """
    bags = [Counter(words_in(text)) for text in documents]
    lengths = np.array([bag.total() for bag in bags], dtype=np.float64)
    norm = k1 * (1 - b + b * lengths / lengths.mean())
    scores = np.zeros((len(queries), len(documents)))
    columns: dict[str, Matrix] = {}
    for row, query in zip(scores, queries, strict=True):
        for word in words_in(query):
            if word not in columns:
                f = np.array([bag[word] for bag in bags], dtype=np.float64)
                having = np.count_nonzero(f)
                idf = math.log1p((len(bags) - having + 0.5) / (having + 0.5))
                columns[word] = idf * f * (k1 + 1) / (f + norm)
            row += columns[word]
    return scores
