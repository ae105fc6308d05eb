"""Sections 2.2 and 3 of the answer, "√d_k or d_k": what each leaves, and what only looks different.

Samples come from real vectors, laws from closed forms and from the integrals of `normal_rows`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from attention_scaling import (
    entropy,
    explicit_attention,
    jacobian_frobenius_norm,
    qk_norm,
    sample_dot_products,
    sample_initial_logits,
    softmax,
)
from scaling_book.evidence import seeds
from scaling_book.evidence.core import Measurement, against_the_answer, evidence
from scaling_book.evidence.normal_rows import NormalRows, over_query_norms
from scaling_book.evidence.sampling import loglog_slope_of, mean_of, std_of, variance_of
from scaling_book.evidence.saturation import (
    concentration_of,
    dot_product_rows,
    laws_of_dot_products,
    laws_of_normal_rows,
    normal_rows,
    squared_weights,
)
from scaling_book.evidence.variance_control import (
    kurtosis_of_dot_product,
)

SEED = 20170615  # with a number of its own for each claim
HEAD_DIM = 64
WIDTHS = (16, 64, 256)

Samples = NDArray[np.float64]


@evidence("dividing-by-d-gives-one-over-d")
def dividing_by_d_gives_one_over_d() -> list[Measurement]:
    """Variance 1/d_k, which is a standard deviation of 1/√d_k, and less for real starts."""
    rng = seeds.rng(SEED, 18)
    generator = seeds.generator(SEED + 18)
    size = 25_000
    found = [
        variance_of(
            f"Var(q·k/d_k), d_k = {d}",
            sample_dot_products(d, size, rng=rng) / d,
            expected=1 / d,
            kurtosis=kurtosis_of_dot_product(d),
            rival=1 / d**2,
        )
        for d in WIDTHS
    ]
    # nn.MultiheadAttention starts with q and k of variance ½
    start = sample_initial_logits("mha_packed", 512, HEAD_DIM, 10_000, generator=generator)
    found.append(
        std_of(
            "σ(q·k/d_k), nn.MultiheadAttention(512, 8), d_k = 64",
            start.double().numpy() / HEAD_DIM,
            expected=0.5 / math.sqrt(HEAD_DIM),
            kurtosis=kurtosis_of_dot_product(HEAD_DIM),
            rival=1 / math.sqrt(HEAD_DIM),
        )
    )
    return found


def entropy_deficits(blocks: Iterator[Samples], n_keys: int) -> Samples:
    """ln n − H of each row."""
    return math.log(n_keys) - np.concatenate([entropy(softmax(z)) for z in blocks])


def variance_of_deficit(head_dim: int, n_keys: int, scale: float) -> float:
    """Variance of ln n − H for small logits, where it is half the variance within the row.

    Given q, n times that variance is (scale ‖q‖)² χ²_{n−1}; and E‖q‖⁴ = d(d + 2).
    """
    freedom = n_keys - 1
    second = scale**4 * head_dim * (head_dim + 2) * freedom * (freedom + 2)
    first = scale**2 * head_dim * freedom
    return (second - first**2) / (2 * n_keys) ** 2


@evidence("d-makes-attention-uniform")
def d_makes_attention_uniform() -> list[Measurement]:
    """Nearly uniform at the start, by (1 − 1/n)/(2 d_k) nat; not for aligned q and k."""
    rng = seeds.rng(SEED, 19)
    found = []
    for d, n in ((16, 64), (64, 16), (64, 256), (256, 64)):
        rows = 4000
        samples = entropy_deficits(dot_product_rows(d, n, rows, rng, scale=1 / d), n)

        def law(scale: float, d: int = d, n: int = n) -> float:
            return over_query_norms(d, scale, lambda row: math.log(n) - row.entropy(n))

        found.append(
            mean_of(
                f"ln n − E[H], q·k/d_k, d_k = {d}, n = {n}",
                samples,
                expected=law(1 / d),
                variance=variance_of_deficit(d, n, 1 / d),
                rival=law(d**-0.5),
            )
        )
    keys = rng.standard_normal((20_000, HEAD_DIM))
    found.append(
        mean_of(
            "E[q·k/d_k], q = k, d_k = 64",
            (keys**2).sum(axis=1) / HEAD_DIM,
            expected=1.0,
            variance=2 / HEAD_DIM,
            rival=0.0,
        )
    )
    return found


def difference_from_root(
    gain: float, scale: float, *, head_dim: int = HEAD_DIM, normalised: bool = False
) -> float:
    """The largest difference of a head's output from that with 1/√d_k, W_Q multiplied by a gain."""
    generator = seeds.generator(SEED + 20)
    x, w_q, w_k = torch.randn(3, head_dim, head_dim, generator=generator, dtype=torch.float64)

    def output(w: torch.Tensor, factor: float) -> torch.Tensor:
        q, k = x @ w / math.sqrt(head_dim), x @ w_k / math.sqrt(head_dim)
        if normalised:
            q, k = qk_norm(q, k, eps=0.0)
        return explicit_attention(q, k, x, scale=factor)

    return float((output(gain * w_q, scale) - output(w_q, head_dim**-0.5)).abs().max())


@evidence("d-loses-expressiveness")
def d_loses_expressiveness() -> list[Measurement]:
    """W_Q absorbs a constant, to the last bit for d_k = 64; a normalised q does not let it."""
    rng = seeds.rng(SEED, 20)
    root, full = HEAD_DIM**-0.5, 1 / HEAD_DIM
    # q = c √d e_1 and n orthogonal keys √d e_j: with 1/d_k the logits are c, 0, …, 0.
    gain, n = 12.0, HEAD_DIM
    keys = math.sqrt(HEAD_DIM) * torch.eye(HEAD_DIM, dtype=torch.float64)
    _, weights = explicit_attention(gain * keys[:1], keys, keys, scale=full, return_weights=True)
    # Between unit-gain norms q·k is d_k times a cosine: E cos² = 1/d, E cos⁴ = 3/(d(d + 2)).
    q, k = torch.tensor(rng.standard_normal((2, 25_000, HEAD_DIM)))
    q, k = qk_norm(math.sqrt(HEAD_DIM) * q, k)
    return [
        Measurement(
            "max|A(√d_k W_Q, 1/d_k) − A(W_Q, 1/√d_k)|, d_k = 64",
            measured=difference_from_root(1 / root, full),
            expected=0.0,
            tolerance=0.0,
            reason="√64 = 2³",
            rival=difference_from_root(1.0, full),
        ),
        # By the answer the head cannot focus, so that every key gets the same.
        against_the_answer(
            Measurement(
                "p_1, q = 12 k_1, k_i·k_j = d_k δ_ij, q·k/d_k, n = 64",
                measured=float(weights[0, 0]),
                expected=math.exp(gain) / (math.exp(gain) + n - 1),
                # the logit 12 is off by a few units in the last place, 1 − p by as much times 12
                tolerance=64 * 2.0**-53,
                reason="64 u",
                rival=1 / n,
            )
        ),
        variance_of(
            "Var(r(√d_k q)·r(k)/d_k), r(x) = √d_k x/|x|, d_k = 64",
            (q * k).sum(dim=-1).numpy() / HEAD_DIM,
            expected=1 / HEAD_DIM,
            kurtosis=3 * HEAD_DIM / (HEAD_DIM + 2),
            rival=1.0,
        ),
    ]


@evidence("root-is-the-optimum")
def root_is_the_optimum() -> list[Measurement]:
    """The only power that stands still for independent vectors; for aligned ones it is another."""
    rng = seeds.rng(SEED, 21)
    dims, size, rho = (16, 32, 64, 128, 256, 512, 1024), 16_000, 0.5
    samples = [sample_dot_products(d, size, rng=rng) for d in dims]
    errors = [math.sqrt((kurtosis_of_dot_product(d) - 1) / size) for d in dims]
    found = [
        loglog_slope_of(
            f"d ln Var(q·k/d_k^{name}) / d ln d_k",
            dims,
            [float((x / d**power).var(ddof=1)) for x, d in zip(samples, dims, strict=True)],
            expected=1 - 2 * power,
            relative_errors=errors,
            rival=rival,
        )
        # each power against what its neighbour would give
        for name, power, rival in (("¼", 0.25, 0.0), ("½", 0.5, -1.0), ("1", 1.0, 0.0))
    ]
    aligned = [sample_dot_products(d, size, rng=rng, correlation=rho) for d in dims]
    errors = [math.sqrt((1 + rho**2) / (d * size)) / rho for d in dims]
    growth_with_root, growth_with_full = (
        loglog_slope_of(
            f"d ln E[q·k/d_k^{name}] / d ln d_k, ρ = 0.5",
            dims,
            [float((x / d**power).mean()) for x, d in zip(aligned, dims, strict=True)],
            expected=1 - power,
            relative_errors=errors,
            rival=rival,
        )
        # bounded with the root, or vanishing with d_k, as for independent vectors
        for name, power, rival in (("½", 0.5, 0.0), ("1", 1.0, -0.5))
    )
    # By the answer logits are normalised with the root, at any width.
    found += [against_the_answer(growth_with_root), growth_with_full]
    # "Neither saturated nor uniform" at σ = 1: how far depends on n. And the Jacobian of softmax is
    # larger at another σ.
    few = laws_of_normal_rows(1.0, 16)
    for n, rows, rival in ((16, 20_000, None), (4096, 2000, few[0])):
        samples_of_n = squared_weights(normal_rows(1.0, n, rows, rng))
        laws = laws_of_normal_rows(1.0, n)
        found.append(concentration_of(f"E[Σp²], σ = 1, n = {n}", samples_of_n, laws, rival))
    n = 1024
    squares = np.concatenate(
        [jacobian_frobenius_norm(softmax(z)) ** 2 for z in normal_rows(5.0, n, 9000, rng)]
    )
    row = NormalRows(5.0)
    first, second_moment = row.squared_jacobian(n), row.fourth_power_of_jacobian(n)
    found.append(
        mean_of(
            "E‖∂p/∂z‖²_F, σ = 5, n = 1024",
            squares,
            expected=first,
            variance=second_moment - first**2,
            rival=NormalRows(1.0).squared_jacobian(n),
        )
    )
    return found


@evidence("root-follows-from-variance")
def root_follows_from_variance() -> list[Measurement]:
    """The divisor that makes the variance 1 is √d_k under the premise, and another without it."""
    rng = seeds.rng(SEED, 22)
    generator = seeds.generator(SEED + 22)
    found = [
        std_of(
            f"σ(q·k), d_k = {d}",
            sample_dot_products(d, 20_000, rng=rng),
            expected=math.sqrt(d),
            kurtosis=kurtosis_of_dot_product(d),
            rival=d,
        )
        for d in WIDTHS
    ]
    start = sample_initial_logits("mha_packed", 512, HEAD_DIM, 10_000, generator=generator)
    found.append(
        std_of(
            "σ(q·k), nn.MultiheadAttention(512, 8), d_k = 64",
            start.double().numpy(),
            expected=0.5 * math.sqrt(HEAD_DIM),
            kurtosis=kurtosis_of_dot_product(HEAD_DIM),
            rival=math.sqrt(HEAD_DIM),
        )
    )
    return found


@evidence("root-balances")
def root_balances() -> list[Measurement]:
    """Between saturation and the mean over all keys lies a range, and W_Q moves along it."""
    rng = seeds.rng(SEED, 45)
    n, rows = 256, 3000
    root, full = HEAD_DIM**-0.5, 1 / HEAD_DIM
    # Given q, the row is N(0, ‖q‖²): enough rows for the heavier tail above the root.
    norms = np.linalg.norm(rng.standard_normal((15_000, 1, HEAD_DIM)), axis=2)
    above = (1.5 * root * r * rng.standard_normal((1, n)) for r in norms)
    root_law = laws_of_dot_products(HEAD_DIM, n, root)
    unscaled = over_query_norms(HEAD_DIM, 1.0, lambda row: row.squared_weights(n))
    unfolded = over_query_norms(HEAD_DIM, full, lambda row: row.squared_weights(n))
    at_root = dot_product_rows(HEAD_DIM, n, rows, rng, scale=root)
    folded = dot_product_rows(HEAD_DIM, n, rows, rng, scale=math.sqrt(HEAD_DIM) * full)
    label = "d_k = 64, n = 256"
    return [
        concentration_of(
            f"E[Σp²], q·k/√d_k, {label}", squared_weights(at_root), root_law, rival=unscaled
        ),
        # By the answer, what lies above the root saturates, and with d_k a head stays uniform.
        against_the_answer(
            concentration_of(
                f"E[Σp²], 1.5 q·k/√d_k, {label}",
                squared_weights(above),
                laws_of_dot_products(HEAD_DIM, n, 1.5 * root),
                rival=unscaled,
            )
        ),
        against_the_answer(
            concentration_of(
                f"E[Σp²], (√d_k q)·k/d_k, {label}",
                squared_weights(folded),
                root_law,
                rival=unfolded,
            )
        ),
    ]
