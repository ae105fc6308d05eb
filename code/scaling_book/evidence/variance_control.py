"""Section 2.1 of the answer, "variance control": the law of q·k before any scale.

The samplers draw coordinates or real weights and know no law; the laws come from the closed forms
of `attention_scaling`, or stand here where they are one line.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from attention_scaling import (
    conditional_row_std,
    gaussian_moments,
    iid_moments,
    initial_logit_std,
    initial_query_variance,
    sample_dot_products,
    sample_initial_logits,
)
from attention_scaling.initialisations import INITIALISATIONS
from scaling_book.evidence import seeds
from scaling_book.evidence.core import Measurement, against_the_answer, evidence
from scaling_book.evidence.sampling import (
    loglog_slope_of,
    mean_of,
    share_of,
    slope_weights,
    std_of,
    variance_of,
)

SEED = 20170612  # with a number of its own for each claim
HEAD_DIM = 64  # d_k of one head in the base and the big model of the paper
MODEL_WIDTH = 512  # d_model of its base model
KURTOSIS_OF_TWO_NORMALS = 9.0  # of a product s·t of independent normals: 3 · 3

Vectors = NDArray[np.float64]


@evidence("entries-iid-unit-variance")
def entries_iid_unit_variance() -> list[Measurement]:
    """One white vector is enough; unit variances alone are not."""
    rng = seeds.rng(SEED, 5)
    d, n = HEAD_DIM, 100_000
    zeros, ones, white = np.zeros(d), np.ones((d, d)), np.eye(d)

    # Independent entries of three laws, each with mean 0 and variance 1: not identically
    # distributed. Fourth moments E[q_i⁴]: ±1 → 1, uniform → 9/5, normal → 3.
    thirds = (22, 21, 21)
    draws: tuple[Callable[[tuple[int, int]], Vectors], ...] = (
        lambda shape: rng.choice([-1.0, 1.0], shape),
        lambda shape: rng.uniform(-math.sqrt(3), math.sqrt(3), shape),
        rng.standard_normal,
    )
    q = np.concatenate([draw((n, count)) for draw, count in zip(draws, thirds, strict=True)], 1)
    k = rng.standard_normal((n, d))
    mixed_fourth = sum(c * m for c, m in zip(thirds, (1, 9 / 5, 3), strict=True))
    mixed_kurtosis = 3 + (3 * mixed_fourth - 3 * d) / d**2

    # Entries that are all equal: mean 0, variance 1, and as dependent as can be.
    white_q, one_k = rng.standard_normal((n, d)), rng.standard_normal((n, 1))
    one_q = rng.standard_normal((n, 1))
    equal_k = np.broadcast_to(one_k, (n, d))
    equal_q = np.broadcast_to(one_q, (n, d))
    # k = ±q is uncorrelated with q, but not independent: q·k = ±‖q‖², and ‖q‖² is χ² with
    # E‖q‖⁴ = d(d + 2) and E‖q‖⁸ = d(d + 2)(d + 4)(d + 6).
    sign = rng.choice([-1.0, 1.0], (n, 1))
    sign_kurtosis = (d + 4) * (d + 6) / (d * (d + 2))
    law = "d_k = 64"
    return [
        variance_of(
            f"Var(q·k), q_i ~ ±1 | U(±√3) | N(0, 1), {law}",
            (q * k).sum(1),
            expected=gaussian_moments(zeros, zeros, white, white).variance,
            kurtosis=mixed_kurtosis,
        ),
        variance_of(
            f"Var(q·k), Σ_q = I, Σ_k = 1·1ᵀ, {law}",
            (white_q * equal_k).sum(1),
            expected=gaussian_moments(zeros, zeros, white, ones).variance,
            kurtosis=KURTOSIS_OF_TWO_NORMALS,
            rival=d**2,
        ),
        variance_of(
            f"Var(q·k), Σ_q = Σ_k = 1·1ᵀ, {law}",
            (equal_q * equal_k).sum(1),
            expected=gaussian_moments(zeros, zeros, ones, ones).variance,
            kurtosis=KURTOSIS_OF_TWO_NORMALS,
            rival=d,
        ),
        variance_of(
            f"Var(q·k), k = ±q, {law}",
            (white_q * (sign * white_q)).sum(1),
            expected=d * (d + 2),
            kurtosis=sign_kurtosis,
            rival=d,
        ),
    ]


# An initialisation, d_model, and its name in code and symbols.
INITIAL_STATES = (
    ("xavier_square", 512, "xavier_uniform_(512 × 512)"),
    ("xavier_per_head", 512, "xavier_uniform_(64 × 512)"),
    ("mha_packed", 512, "nn.MultiheadAttention(512, 8)"),
    ("torch_linear", 512, "nn.Linear(512, 512)"),
    ("gpt2", 768, "N(0, 0.02²), d_model = 768"),
    ("gpt2", 1600, "N(0, 0.02²), d_model = 1600"),
)


@evidence("unit-variance-after-common-init")
def unit_variance_after_common_init() -> list[Measurement]:
    """Var(q_i) and the spread of the raw logits, from weights that real initialisers drew."""
    generator = seeds.generator(SEED)
    found = []
    for name, d_model, label in INITIAL_STATES:
        # The rival is the answer's sentence; the first initialisation meets it.
        meets = name == "xavier_square"
        # Given the input, q_i is a sum over d_model independent weights: normal, to well under a
        # per cent in its fourth moment. So κ = 3 for q_i, and 3 + 6/d_k for q·k.
        entries = variance_of(
            f"Var(q_i), {label}",
            sample_query_entries(name, d_model, 25_000, generator),
            expected=initial_query_variance(name, d_model, HEAD_DIM),
            kurtosis=3.0,
            rival=None if meets else 1.0,
        )
        found.append(entries if meets else against_the_answer(entries))
        logits = sample_initial_logits(name, d_model, HEAD_DIM, 10_000, generator=generator)
        found.append(
            std_of(
                f"σ(q·k), {label}, d_k = 64",
                logits.numpy(),
                expected=initial_logit_std(name, d_model, HEAD_DIM),
                kurtosis=3 + 6 / HEAD_DIM,
                rival=None if meets else math.sqrt(HEAD_DIM),
            )
        )
    return found


def sample_query_entries(
    name: str, d_model: int, size: int, generator: torch.Generator
) -> NDArray[np.float64]:
    """Draw independent entries of q and k: each row of W_Q and W_K meets an input of its own.

    The input is a random direction with mean square 1, as RMSNorm returns it.
    """
    entries: list[torch.Tensor] = []
    while sum(block.numel() for block in entries) < size:
        weights = INITIALISATIONS[name].sample_weights(d_model, HEAD_DIM, generator=generator)
        rows = torch.cat(weights).reshape(-1, d_model)  # (2 d_model, d_model)
        x = torch.randn(rows.shape, generator=generator)
        x *= math.sqrt(d_model) / x.norm(dim=1, keepdim=True)
        entries.append(torch.linalg.vecdot(rows, x).double())
    return torch.cat(entries)[:size].numpy()


@evidence("sum-of-head-dim-products")
def sum_of_head_dim_products() -> list[Measurement]:
    """d_k products of 2 d_k variables; d_k variables would give half the variance."""
    rng = seeds.rng(SEED, 7)
    d, n = HEAD_DIM, 40_000
    q = torch.tensor(rng.standard_normal((8, d)), requires_grad=True)
    k = torch.tensor(rng.standard_normal((8, d)), requires_grad=True)
    gradients = torch.autograd.grad((q @ k.T)[2, 5], (q, k))
    involved = sum(int(gradient.count_nonzero()) for gradient in gradients)
    return [
        Measurement(
            "#{∂(QKᵀ)_ij ≠ 0}, d_k = 64", involved, expected=2 * d, tolerance=0, reason="0", rival=d
        ),
        variance_of(
            "Var(Σ q_i k_i), d_k = 64",
            sample_dot_products(d, n, rng=rng),
            expected=iid_moments(d).variance,
            kurtosis=kurtosis_of_dot_product(d),
            rival=d / 2,
        ),
    ]


@evidence("dot-product-mean-zero")
def dot_product_mean_zero() -> list[Measurement]:
    """Zero for one centred and uncorrelated partner; otherwise of order d_k."""
    rng = seeds.rng(SEED, 8)
    d, n = HEAD_DIM, 40_000
    found = []
    for label, parameters, rival in (
        ("μ_q = μ_k = 0, ρ = 0", {}, None),
        ("μ_q = 1, μ_k = 0, ρ = 0", {"mean_q": 1.0}, None),
        ("μ_q = μ_k = 0.5, ρ = 0", {"mean_q": 0.5, "mean_k": 0.5}, 0.0),
        ("μ_q = μ_k = 0, ρ = 0.5", {"correlation": 0.5}, 0.0),
    ):
        law = iid_moments(d, **parameters)
        found.append(
            mean_of(
                f"E[q·k], {label}, d_k = 64",
                sample_dot_products(d, n, rng=rng, **parameters),
                expected=law.mean,
                variance=law.variance,
                rival=rival,
            )
        )
    return found


@evidence("dot-product-variance-is-head-dim")
def dot_product_variance_is_head_dim() -> list[Measurement]:
    """d_k under the premise; other values with means, with correlation, and within one row."""
    rng = seeds.rng(SEED, 9)
    d, n = HEAD_DIM, 40_000
    found = []
    # The usual mistake is to take d_k for the standard deviation, d_k² for the variance.
    for label, parameters, rival in (
        ("μ_q = μ_k = 0, ρ = 0", {}, d**2),
        ("μ_q = μ_k = 0.5, ρ = 0", {"mean_q": 0.5, "mean_k": 0.5}, d),
        ("μ_q = μ_k = 0, ρ = 0.5", {"correlation": 0.5}, d),
    ):
        found.append(
            variance_of(
                f"Var(q·k), {label}, d_k = 64",
                sample_dot_products(d, n, rng=rng, **parameters),
                expected=iid_moments(d, **parameters).variance,
                kurtosis=kurtosis_of_dot_product(d, **parameters),
                rival=rival,
            )
        )
    # One row of the logits: q stays, the keys vary. A query two standard deviations too long.
    query = rng.standard_normal(d)
    query *= math.sqrt(d + 2 * math.sqrt(2 * d)) / np.linalg.norm(query)
    found.append(
        variance_of(
            "Var(q·k | q), ‖q‖² = d_k + 2√(2d_k), d_k = 64",
            rng.standard_normal((n, d)) @ query,
            expected=float(conditional_row_std(query)) ** 2,
            kurtosis=3.0,
            rival=d,
        )
    )
    return found


@evidence("variance-grows-linearly")
def variance_grows_linearly() -> list[Measurement]:
    """Exponent 1 when q and k are independent; the mean square of correlated ones grows faster."""
    rng = seeds.rng(SEED, 10)
    dims, n, rho = (16, 32, 64, 128, 256, 512, 1024), 20_000, 0.5
    independent = [sample_dot_products(d, n, rng=rng) for d in dims]
    aligned = [sample_dot_products(d, n, rng=rng, correlation=rho) for d in dims]
    aligned_law = [iid_moments(d, correlation=rho).second_moment for d in dims]
    return [
        loglog_slope_of(
            "d ln Var(q·k) / d ln d_k, ρ = 0",
            dims,
            [float(z.var(ddof=1)) for z in independent],
            expected=1.0,
            relative_errors=[math.sqrt((kurtosis_of_dot_product(d) - 1) / n) for d in dims],
            rival=2.0,
        ),
        loglog_slope_of(
            "d ln E[(q·k)²] / d ln d_k, ρ = 0.5",
            dims,
            [float((z**2).mean()) for z in aligned],
            expected=float(slope_weights(dims) @ np.log(aligned_law)),
            relative_errors=[relative_error_of_mean_square(d, n, correlation=rho) for d in dims],
            rival=1.0,
        ),
    ]


@evidence("five-hundred-twelve")
def five_hundred_twelve() -> list[Measurement]:
    """The arithmetic at d_k = 512, and the logits of eight heads cut from a width of 512."""
    rng = seeds.rng(SEED, 11)
    wide, heads, n = MODEL_WIDTH, 8, 40_000
    products = sample_dot_products(wide, n, rng=rng)
    # (tokens, 512) → (tokens, heads, 64), as multi-head attention cuts its projections
    q = rng.standard_normal((n // heads, wide)).reshape(-1, heads, HEAD_DIM)
    k = rng.standard_normal((n // heads, wide)).reshape(-1, heads, HEAD_DIM)
    per_head = (q * k).sum(-1).ravel()
    return [
        variance_of(
            "Var(q·k), d_k = 512",
            products,
            expected=iid_moments(wide).variance,
            kurtosis=kurtosis_of_dot_product(wide),
        ),
        std_of(
            "σ(q·k), d_k = 512",
            products,
            expected=iid_moments(wide).std,
            kurtosis=kurtosis_of_dot_product(wide),
        ),
        std_of(
            "σ(q·k), d_model = 512, h = 8",
            per_head,
            expected=iid_moments(wide // heads).std,
            kurtosis=kurtosis_of_dot_product(wide // heads),
            rival=iid_moments(wide).std,
        ),
    ]


@evidence("three-sigma-range")
def three_sigma_range() -> list[Measurement]:
    """What lies within ±3σ, what already within ±σ, and what a single product does."""
    rng = seeds.rng(SEED, 12)
    n = 40_000
    wide = sample_dot_products(MODEL_WIDTH, n, rng=rng)
    single = sample_dot_products(1, n, rng=rng)
    sigma = math.sqrt(MODEL_WIDTH)
    return [
        share_of(
            "P(|q·k| ≤ 68), d_k = 512",
            abs(wide) <= 68,
            expected=probability_within(68, MODEL_WIDTH),
        ),
        # Read as a typical size, [−68, 68] would hold a third of the values within a third of it.
        share_of(
            "P(|q·k| ≤ √d_k), d_k = 512",
            abs(wide) <= sigma,
            expected=probability_within(sigma, MODEL_WIDTH),
            rival=1 / 3,
        ),
        share_of(
            "P(|q·k| ≤ 3√d_k), d_k = 1",
            abs(single) <= 3,
            expected=probability_within(3, 1),
            rival=math.erf(3 / math.sqrt(2)),
        ),
    ]


def probability_within(bound: float, head_dim: int) -> float:
    """P(|q·k| ≤ bound) for independent standard normal entries, by quadrature.

    Given q, q·k is N(0, ‖q‖²), and ‖q‖ follows the χ law with d_k degrees of freedom.
    """
    radius = np.linspace(1e-9, math.sqrt(head_dim) + 12, 20_001)
    log_density = (head_dim - 1) * np.log(radius) - radius**2 / 2
    weight = np.exp(log_density - log_density.max())
    inside = np.array([math.erf(bound / (math.sqrt(2) * r)) for r in radius])
    return float((weight * inside).sum() / weight.sum())


def cumulants_of_one_product(
    *, mean_q: float = 0.0, mean_k: float = 0.0, correlation: float = 0.0
) -> Vectors:
    """First four cumulants of one product q_i k_i of unit-variance normals.

    Exact: the moments are integrals of polynomials of degree 8 at most, for which the
    Gauss–Hermite rule with five nodes has no error.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    u, v = np.meshgrid(nodes, nodes)
    weight = np.outer(weights, weights) / weights.sum() ** 2
    q = mean_q + u
    k = mean_k + correlation * u + math.sqrt(1 - correlation**2) * v
    mean = (weight * q * k).sum()
    second, third, fourth = ((weight * (q * k - mean) ** power).sum() for power in (2, 3, 4))
    return np.array([mean, second, third, fourth - 3 * second**2])


def kurtosis_of_dot_product(head_dim: int, **parameters: float) -> float:
    """Kurtosis of q·k: cumulants of independent terms add, so the excess falls like 1/d_k."""
    _, variance, _, fourth = head_dim * cumulants_of_one_product(**parameters)
    return float(3 + fourth / variance**2)


def relative_error_of_mean_square(head_dim: int, n: int, **parameters: float) -> float:
    """Standard error of the mean of n values (q·k)², divided by E[(q·k)²]."""
    mean, variance, third, fourth = head_dim * cumulants_of_one_product(**parameters)
    second_moment = variance + mean**2
    # E[z⁴] in terms of the cumulants
    fourth_moment = fourth + 4 * third * mean + 3 * variance**2 + 6 * variance * mean**2 + mean**4
    return float(math.sqrt((fourth_moment - second_moment**2) / n) / second_moment)
