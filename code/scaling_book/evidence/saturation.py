"""Sections 1 and 2.1 of the answer, "saturation": what makes softmax sharp, and what does not.

Σp² measures how concentrated a row is: 1/n for equal weights, 1 for one-hot weights. Unlike the
entropy it has exact moments at every n (`normal_rows`), and so the tolerances need no sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from attention_scaling import (
    entropy,
    iid_moments,
    initial_logit_std,
    sample_dot_products,
    sample_initial_logits,
    softmax,
)
from scaling_book.evidence import seeds
from scaling_book.evidence.core import Measurement, against_the_answer, evidence
from scaling_book.evidence.normal_rows import NormalRows, moments_of_maximum, over_query_norms
from scaling_book.evidence.sampling import mean_of, share_of, variance_of
from scaling_book.evidence.variance_control import kurtosis_of_dot_product, probability_within

SEED = 20170613  # with a number of its own for each claim
HEAD_DIM = 64

Samples = NDArray[np.float64]


def normal_rows(
    sigma: float, n_keys: int, rows: int, rng: np.random.Generator, shift: float = 0.0
) -> Iterator[Samples]:
    """Draw rows of independent logits N(shift, σ²), some at a time."""
    at_once = max(1, (1 << 18) // n_keys)
    for start in range(0, rows, at_once):
        size = (min(at_once, rows - start), n_keys)
        yield shift + sigma * rng.standard_normal(size)


def dot_product_rows(
    head_dim: int,
    n_keys: int,
    rows: int,
    rng: np.random.Generator,
    *,
    scale: float,
    growth: float = 1.0,
) -> Iterator[Samples]:
    """Draw queries and keys, `growth` times as long as normal ones, and return rows of logits."""
    for _ in range(rows):
        q = growth * rng.standard_normal(head_dim)
        yield scale * (growth * rng.standard_normal((n_keys, head_dim)) @ q)[None]


def squared_weights(blocks: Iterator[Samples]) -> Samples:
    """Σp² of each row."""
    return np.concatenate([(softmax(z) ** 2).sum(axis=1) for z in blocks])


def concentration_of(
    quantity: str, samples: Samples, laws: tuple[float, float], rival: float | None = None
) -> Measurement:
    """Measure E[Σp²]; `laws` are the first two moments of Σp²."""
    first, second = laws
    return mean_of(quantity, samples, expected=first, variance=second - first**2, rival=rival)


def laws_of_normal_rows(sigma: float, n_keys: int) -> tuple[float, float]:
    """E[Σp²] and E[(Σp²)²] for independent N(0, σ²) logits."""
    rows = NormalRows(sigma)
    return rows.squared_weights(n_keys), rows.squared_weights(n_keys, power=2)


def laws_of_dot_products(head_dim: int, n_keys: int, scale: float) -> tuple[float, float]:
    """E[Σp²] and E[(Σp²)²] for scale · q·k with standard normal q and k."""
    return (
        over_query_norms(head_dim, scale, lambda rows: rows.squared_weights(n_keys)),
        over_query_norms(head_dim, scale, lambda rows: rows.squared_weights(n_keys, power=2)),
    )


@evidence("scaling-prevents-saturation")
def scaling_prevents_saturation() -> list[Measurement]:
    """At the start it does; q and k that have grown undo it, with the factor still in place."""
    rng = seeds.rng(SEED, 1)
    n, rows, root = 64, 5000, 1 / math.sqrt(HEAD_DIM)
    scaled = laws_of_dot_products(HEAD_DIM, n, root)
    unscaled = laws_of_dot_products(HEAD_DIM, n, 1.0)
    start = squared_weights(dot_product_rows(HEAD_DIM, n, rows, rng, scale=root))
    # ‖q‖² and ‖k‖² grown by √d_k each: the logits are as large as unscaled ones at the start
    growth = HEAD_DIM**0.25
    later = squared_weights(dot_product_rows(HEAD_DIM, n, rows, rng, scale=root, growth=growth))
    label = "d_k = 64, n = 64"
    return [
        concentration_of(f"E[Σp²], q·k/√d_k, {label}", start, scaled, rival=unscaled[0]),
        concentration_of(
            f"E[Σp²], (cq)·(ck)/√d_k, c = d_k^¼, {label}", later, unscaled, rival=scaled[0]
        ),
    ]


@evidence("effective-working-range")
def effective_working_range() -> list[Measurement]:
    """Saturated inside [−5, 5], not saturated far outside, and different for different n."""
    rng = seeds.rng(SEED, 13)
    pairs = 40_000
    inside = softmax(rng.uniform(-5, 5, (pairs, 2))).max(axis=1)
    outside = squared_weights(normal_rows(1.0, 256, 4000, rng, shift=1000.0))
    found = [
        # max p > 0.99 if |z_1 − z_2| > ln 99, and |z_1 − z_2| has a triangular law on [0, 10].
        # By the answer no row within the range is saturated, and one far outside it is.
        against_the_answer(
            share_of(
                "P(max p > 0.99), z ~ U[−5, 5], n = 2",
                inside > 0.99,
                expected=(1 - math.log(99) / 10) ** 2,
                rival=0.0,
            )
        ),
        against_the_answer(
            concentration_of(
                "E[Σp²], z ~ N(1000, 1), n = 256", outside, laws_of_normal_rows(1.0, 256), rival=1.0
            )
        ),
    ]
    few = laws_of_normal_rows(2.0, 16)
    for n, rows, rival in ((16, 8000, None), (1024, 17_000, few[0])):
        samples = squared_weights(normal_rows(2.0, n, rows, rng))
        laws = laws_of_normal_rows(2.0, n)
        found.append(concentration_of(f"E[Σp²], z ~ N(0, 4), n = {n}", samples, laws, rival))
    return found


@evidence("sixty-eight-means-saturation")
def sixty_eight_means_saturation() -> list[Measurement]:
    """At σ = √512 rows are condensed for any usual n, and yet not one-hot."""
    rng = seeds.rng(SEED, 14)
    found = []
    for n, rows in ((16, 1500), (1024, 5000)):
        # Real vectors where that is cheap; else z given q, which is N(0, ‖q‖²).
        if n == 16:
            blocks = dot_product_rows(512, n, rows, rng, scale=1.0)
        else:
            blocks = (
                math.sqrt(rng.chisquare(512)) * rng.standard_normal((1, n)) for _ in range(rows)
            )
        found.append(
            concentration_of(
                f"E[Σp²], q·k, d_k = 512, n = {n}",
                squared_weights(blocks),
                laws_of_dot_products(512, n, 1.0),
                rival=1.0,
            )
        )
    return found


@evidence("root-normalises-variance-to-one")
def root_normalises_variance_to_one() -> list[Measurement]:
    """1 under the premise; the initialisations of two code bases do not meet it."""
    rng = seeds.rng(SEED, 15)
    generator = seeds.generator(SEED)
    found = []
    for d in (64, 512):
        found.append(
            variance_of(
                f"Var(q·k/√d_k), d_k = {d}",
                sample_dot_products(d, 25_000, rng=rng) / math.sqrt(d),
                expected=iid_moments(d).variance / d,
                kurtosis=kurtosis_of_dot_product(d),
                rival=math.sqrt(d),  # d/√d: a factor acts on the variance by its square
            )
        )
    for name, d_model, label in (
        ("gpt2", 768, "N(0, 0.02²), d_model = 768"),
        ("mha_packed", 512, "nn.MultiheadAttention(512, 8)"),
    ):
        logits = sample_initial_logits(name, d_model, 64, 25_000, generator=generator, scale=1 / 8)
        found.append(
            variance_of(
                f"Var(q·k/√d_k), {label}, d_k = 64",
                logits.numpy(),
                expected=initial_logit_std(name, d_model, 64, scale=1 / 8) ** 2,
                kurtosis=3 + 6 / 64,
                rival=1.0,
            )
        )
    return found


@evidence("logits-return-to-three")
def logits_return_to_three() -> list[Measurement]:
    """True of one logit; a row of many keys has its largest logit beyond 3."""
    rng = seeds.rng(SEED, 16)
    entries = sample_dot_products(HEAD_DIM, 40_000, rng=rng) / math.sqrt(HEAD_DIM)
    below = 0.5 * math.erfc(-3 / math.sqrt(2))  # P(z < 3)
    found = [
        share_of(
            "P(|q·k/√d_k| ≤ 3), d_k = 64",
            abs(entries) <= 3,
            expected=probability_within(3 * math.sqrt(HEAD_DIM), HEAD_DIM),
        )
    ]
    for n, rows in ((128, 60_000), (1024, 6000)):
        largest = np.concatenate([z.max(axis=1) for z in normal_rows(1.0, n, rows, rng)])
        found.append(
            share_of(f"P(max z > 3), n = {n}", largest > 3, expected=1 - below**n, rival=1 - below)
        )
    mean, variance = moments_of_maximum(1024)
    found.append(
        mean_of(
            "E[max z], n = 1024",
            largest,
            expected=mean,
            variance=variance,
            rival=math.sqrt(2 * math.log(1024)),
        )
    )
    return found


@evidence("non-extreme-and-discriminative")
def non_extreme_and_discriminative() -> list[Measurement]:
    """At σ = 1 a row is not uniform, but no key stands out: its largest weight falls with n."""
    rng = seeds.rng(SEED, 17)
    n, rows = 1024, 4000
    weights = [softmax(z) for z in normal_rows(1.0, n, rows, rng)]
    law = NormalRows(1.0, step=0.1)
    top, top_squared = law.max_weight(n), law.max_weight(n, power=2)
    return [
        mean_of(
            "E[H], σ = 1, n = 1024",
            np.concatenate([entropy(p) for p in weights]),
            expected=law.entropy(n),
            variance=(math.e - 1) / n,
            rival=math.log(n),
        ),
        # The answer names the variance alone: it would discriminate among 1024 keys as among 64.
        against_the_answer(
            mean_of(
                "E[max p], σ = 1, n = 1024",
                np.concatenate([p.max(axis=1) for p in weights]),
                expected=top,
                variance=top_squared - top**2,
                rival=law.max_weight(64),
            )
        ),
    ]
