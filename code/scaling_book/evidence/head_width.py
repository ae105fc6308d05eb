"""Section 4 of the answer, question 3: d_k from 64 to 128, the factor, and "temperature"."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from attention_scaling import default_scale, entropy, sample_dot_products, softmax
from scaling_book.evidence import seeds
from scaling_book.evidence.core import Measurement, against_the_answer, evidence
from scaling_book.evidence.cornerstone import initial_scores, step_ratio
from scaling_book.evidence.many_constants import UNIT_ROUNDOFF, recorded, recorded_scale
from scaling_book.evidence.normal_rows import NormalRows, over_query_norms
from scaling_book.evidence.sampling import STANDARD_ERRORS, mean_of, std_of, variance_of
from scaling_book.evidence.saturation import (
    concentration_of,
    dot_product_rows,
    laws_of_dot_products,
    normal_rows,
    squared_weights,
)
from scaling_book.evidence.variance_control import kurtosis_of_dot_product

SEED = 20170621  # with a number of its own for each claim
KEYS, ROWS = 256, 600

Samples = NDArray[np.float64]


def recorded_ratio(name: str, expected: float, *, rival: float) -> Measurement:
    """Measure by what the factor of a model class changes when its d_k is doubled."""
    line = recorded(name)
    ratio = line.scale_at_double / line.scale
    error = 2 * max(line.misfit, 2.0**-24) * ratio
    return Measurement(
        f"s(2d_k)/s(d_k), {line.model_class}, d_k = {line.head_dim}",
        measured=ratio,
        expected=expected,
        tolerance=STANDARD_ERRORS * error,
        reason=f"{STANDARD_ERRORS} · 2 max({line.misfit:.1g}, 2⁻²⁴) s",
        rival=rival,
        standard_error=error,
    )


@evidence("factor-follows-head-dim")
def factor_follows_head_dim() -> list[Measurement]:
    """A divisor left at 8 gives σ = √2 at d_k = 128; classes with the root adapt by themselves."""
    rng = seeds.rng(SEED, 62)
    scores = sample_dot_products(128, 20_000, rng=rng)
    return [
        std_of(
            "σ(q·k/8), d_k = 128",
            scores / 8,
            expected=math.sqrt(2),
            kurtosis=kurtosis_of_dot_product(128),
            rival=1.0,
        ),
        std_of(
            "σ(q·k/√128), d_k = 128",
            scores / math.sqrt(128),
            expected=1.0,
            kurtosis=kurtosis_of_dot_product(128),
            rival=math.sqrt(2),
        ),
        recorded_ratio("GPT-2", 2**-0.5, rival=1.0),
        recorded_ratio("LLaMA", 2**-0.5, rival=1.0),
        recorded_ratio("Gemma 2", 1.0, rival=2**-0.5),
    ]


@evidence("divisor-of-128")
def divisor_of_128() -> list[Measurement]:
    """√128 = 8√2, and not 16."""
    return [
        Measurement(
            f"1/s, d_k = {d}",
            measured=1 / default_scale(d),
            expected=law,
            tolerance=4 * UNIT_ROUNDOFF * law,
            reason="4 u x",
            rival=rival,
        )
        for d, law, rival in ((64, 8.0, 64.0), (128, 11.313708498984761, 16.0))
    ]


def variance_of_entropy(sigma: float, n_keys: int) -> float:
    """Variance of H for independent logits N(0, σ²), to leading order in 1/n.

    With m_0 and m_1 the means over the keys of e^z and z e^z, H = ln n + ln m_0 − m_1/m_0; the
    delta method then needs E[e^{2z}(1 + σ² − z)²], in which z is N(2σ², σ²).
    """
    square = math.exp(sigma**2) * ((1 - sigma**2) ** 2 + sigma**2)
    return (square - 1) / n_keys


@evidence("larger-divisor-lowers-temperature")
def larger_divisor_lowers_temperature() -> list[Measurement]:
    """The same scores, divided by more: T rises, and the entropy with it."""
    rng = seeds.rng(SEED, 64)
    spread, colder = 8.0, NormalRows(math.sqrt(2)).entropy(KEYS)  # T = 8/√2
    found = []
    for label, divisor, rival in (("8", 8.0, None), ("√128", math.sqrt(128), colder)):
        sigma = spread / divisor
        rows = np.concatenate(
            [entropy(softmax(z / divisor)) for z in normal_rows(spread, KEYS, 3000, rng)]
        )
        measurement = mean_of(
            f"E[H(z/T)], σ(z) = 8, T = {label}, n = {KEYS}",
            rows,
            expected=NormalRows(sigma).entropy(KEYS),
            variance=variance_of_entropy(sigma, KEYS),
            rival=rival,
        )
        found.append(measurement if rival is None else against_the_answer(measurement))
    return found


def entropies(head_dim: int, divisor: float, rows: int, rng: np.random.Generator) -> Samples:
    """H of rows of q·k/divisor with standard normal q and k."""
    blocks = dot_product_rows(head_dim, KEYS, rows, rng, scale=1 / divisor)
    return np.concatenate([entropy(softmax(z)) for z in blocks])


@cache
def mean_entropy(head_dim: int, divisor: float) -> float:
    """The law of the above."""
    return over_query_norms(head_dim, 1 / divisor, lambda row: row.entropy(KEYS))


def variance_over_queries(head_dim: int, divisor: float) -> float:
    """Variance of the above: within the rows of one query, and between queries."""
    scale = 1 / divisor
    within = over_query_norms(head_dim, scale, lambda row: variance_of_entropy(row.sigma, KEYS))
    squares = over_query_norms(head_dim, scale, lambda row: row.entropy(KEYS) ** 2)
    return within + squares - mean_entropy(head_dim, divisor) ** 2


@evidence("doubling-head-dim-flattens")
def doubling_head_dim_flattens() -> list[Measurement]:
    """With √d_k the entropy at the start is the same at 128 as at 64; the answer forgets q·k."""
    rng = seeds.rng(SEED, 65)
    found = []
    for d in (64, 128):
        root = math.sqrt(d)
        measurement = mean_of(
            f"E[H], q·k/√d_k, d_k = {d}, n = {KEYS}",
            entropies(d, root, ROWS, rng),
            expected=mean_entropy(d, root),
            variance=variance_over_queries(d, root),
            # the divisor √2 times as large, and scores as large as before
            rival=mean_entropy(d, math.sqrt(2) * root),
        )
        found.append(measurement if d == 64 else against_the_answer(measurement))
    return found


@evidence("temperature-keeps-sharpness")
def temperature_keeps_sharpness() -> list[Measurement]:
    """q·k/√(d_k/τ) has variance τ: no temperature, but the inverse of its square."""
    rng = seeds.rng(SEED, 66)
    d = 128
    found = []
    for label, tau in (("¼", 0.25), ("2", 2.0), ("4", 4.0)):
        measurement = variance_of(
            f"Var(q·k/√(d_k/τ)), d_k = 128, τ = {label}",
            sample_dot_products(d, 25_000, rng=rng) / math.sqrt(d / tau),
            expected=tau,
            kurtosis=kurtosis_of_dot_product(d),
            rival=tau**-2,  # of z/τ, with z of variance 1
        )
        found.append(against_the_answer(measurement))
    # Given q, the row of q·k/8 is N(0, ‖q‖²/64).
    spreads = np.sqrt(rng.chisquare(d, 10_000)) / 8
    found.append(
        concentration_of(
            f"E[Σp²], q·k/√(d_k/τ), τ = 2, d_k = 128, n = {KEYS}",
            squared_weights(sigma * rng.standard_normal((1, KEYS)) for sigma in spreads),
            laws_of_dot_products(d, KEYS, 1 / 8),
            rival=laws_of_dot_products(d, KEYS, d**-0.5)[0],
        )
    )
    return found


@evidence("t5-uses-root")
def t5_uses_root() -> list[Measurement]:
    """T5 multiplies by 1, at any d_k; GPT-2 is one of the many that have the root."""
    return [
        against_the_answer(recorded_scale("T5", 1.0, rival=64**-0.5)),
        against_the_answer(recorded_ratio("T5", 1.0, rival=2**-0.5)),
        recorded_scale("GPT-2", 64**-0.5, rival=1.0),
    ]


@evidence("init-or-rate-compensates")
def init_or_rate_compensates() -> list[Measurement]:
    """T5's initialisation gives variance 1 without a factor; steps agree under Adafactor only."""
    generator = seeds.generator(SEED + 68)
    d_model, d = 512, 64
    folded = initial_scores(d_model, (d_model * d) ** -0.5, d_model**-0.5, 24_576, generator)
    found = [
        variance_of(
            "Var(q·k), σ(W_Q) = (d_model d_k)^−½, d_k = 64",
            folded.numpy(),
            expected=1.0,
            kurtosis=kurtosis_of_dot_product(d),
            rival=d,
        )
    ]
    for name, make, law, rival in (
        ("Adafactor", lambda w: torch.optim.Adafactor(w, lr=0.01), 1.0, 8.0),
        ("Adam", lambda w: torch.optim.Adam(w, lr=0.01, eps=1e-30), 8.0, 1.0),
    ):
        generator.manual_seed(seeds.torch_seed(SEED + 68))
        found.append(
            Measurement(
                f"|Δz′|/|Δz|, W_Q/√d_k, {name}, d_k = 64",
                measured=step_ratio(make, generator),
                expected=law,
                # sums of 64 terms, a softmax and its derivative, twice
                tolerance=2**12 * UNIT_ROUNDOFF * law,
                reason="2¹² u x",
                rival=rival,
            )
        )
    return found
