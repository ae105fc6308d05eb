"""Sections 2 and 4 of the answer, "vanishing gradients": what reaches q, k and v at the start.

The laws are integrals (`normal_rows`, `row_gradients`) or closed forms for two keys. What is
measured comes from autograd on full vectors, from the library, or from the sampler of
`row_gradients`, which knows no law.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from attention_scaling import (
    explicit_attention,
    initial_logit_std,
    jacobian_frobenius_norm,
    softmax,
    softmax_jacobian,
)
from scaling_book.evidence import seeds
from scaling_book.evidence.core import Measurement, against_the_answer, evidence
from scaling_book.evidence.normal_rows import NormalRows, over_query_norms
from scaling_book.evidence.row_gradients import (
    fourth_power_of_query_gradient,
    sample_row_gradients,
    squared_query_gradient,
)
from scaling_book.evidence.sampling import STANDARD_ERRORS, mean_of, share_of
from scaling_book.evidence.trainings import none_of, runs, smallest_gradients

SEED = 20170614  # with a number of its own for each claim
HEAD_DIM = 64
MEDIAN_OF_ABSOLUTE_NORMAL = 0.6744897501960817

Samples = NDArray[np.float64]


def autograd_query_gradients(
    head_dim: int, n_keys: int, size: int, *, scale: float, generator: torch.Generator
) -> Samples:
    """‖∂L/∂q‖ for independent queries, each with its own keys, values and upstream gradient."""
    found = []
    for start in range(0, size, 2000):
        count = min(2000, size - start)
        k, v = torch.randn(2, count, n_keys, head_dim, generator=generator, dtype=torch.float64)
        q, g = torch.randn(2, count, 1, head_dim, generator=generator, dtype=torch.float64)
        q.requires_grad_()
        output = explicit_attention(q, k, v, scale=scale)
        (gradient,) = torch.autograd.grad((g * output).sum() / math.sqrt(head_dim), q)
        found.append(gradient.norm(dim=-1).flatten())
    return torch.cat(found).numpy()


def rms_gradient_of(
    quantity: str, norms: Samples, head_dim: int, n_keys: int, *, scale: float, rival: float
) -> Measurement:
    """Measure √E‖∂L/∂q‖² against its integral; by the delta method its error is halved."""
    square = squared_query_gradient(head_dim, n_keys, scale)
    expected = math.sqrt(square)
    variance = fourth_power_of_query_gradient(head_dim, n_keys, scale) - square**2
    size = norms.size
    measured = math.sqrt((norms**2).mean())
    return Measurement(
        quantity,
        measured=measured,
        expected=expected,
        tolerance=STANDARD_ERRORS * math.sqrt(variance / size) / (2 * expected),
        reason=f"{STANDARD_ERRORS} √({variance:.4g}/{size}) / (2 · {expected:.3g})",
        rival=rival,
        standard_error=float((norms**2).std(ddof=1)) / math.sqrt(size) / (2 * measured),
    )


def two_keys(sigma: float, pairs: int, rng: np.random.Generator) -> Samples:
    """p(1 − p) for two independent logits N(0, σ²), without loss of digits where p is near 1."""
    gap = abs(sigma * np.diff(rng.standard_normal((pairs, 2)), axis=1)[:, 0])
    product: Samples = np.exp(-gap) / (1 + np.exp(-gap)) ** 2
    return product


def mean_of_two_keys(sigma: float, power: int = 1) -> float:
    """E[(p(1 − p))^power]: the gap of the two logits is N(0, 2σ²)."""
    gap = np.linspace(-80.0, 80.0, 32_001)
    density = np.exp(-((gap / (2 * sigma)) ** 2)) / (2 * sigma * math.sqrt(math.pi))
    product = np.exp(-abs(gap)) / (1 + np.exp(-abs(gap))) ** 2
    return float((product**power * density).sum() * (gap[1] - gap[0]))


def log_median_of_two_keys(sigma: float) -> float:
    """−ln of the median of p(1 − p), which falls as the absolute gap grows."""
    gap = MEDIAN_OF_ABSOLUTE_NORMAL * math.sqrt(2) * sigma
    return gap + 2 * math.log1p(math.exp(-gap))


@evidence("saturation-causes-vanishing-gradients")
def saturation_causes_vanishing_gradients() -> list[Measurement]:
    """The typical softmax gradient vanishes exponentially, the mean one does not; q's grows."""
    rng = seeds.rng(SEED, 3)
    generator = seeds.generator(SEED)
    sigma = math.sqrt(512)
    mean, median = mean_of_two_keys(sigma), math.exp(-log_median_of_two_keys(sigma))
    pairs = 200_000
    products = two_keys(sigma, pairs, rng)
    # −ln p(1−p) is the gap up to a constant; the density of the gap at its median gives the error.
    density = math.exp(-(MEDIAN_OF_ABSOLUTE_NORMAL**2) / 2) / (sigma * math.sqrt(math.pi))
    error = 0.5 / math.sqrt(pairs) / density
    n = 16
    norms = autograd_query_gradients(HEAD_DIM, n, 24_000, scale=1.0, generator=generator)
    wide = sample_row_gradients(HEAD_DIM, 256, 20_000, scales=[1.0], rng=rng)[0].query
    return [
        mean_of(
            "E[p(1−p)], σ = √512, n = 2",
            products,
            expected=mean,
            variance=mean_of_two_keys(sigma, power=2) - mean**2,
            rival=median,
        ),
        Measurement(
            "−ln Q½[p(1−p)], σ = √512, n = 2",
            measured=float(-np.log(np.median(products))),
            expected=-math.log(median),
            tolerance=STANDARD_ERRORS * error,
            reason=f"{STANDARD_ERRORS} / (2 f √{pairs}), f = {density:.3g}",
            rival=-math.log(mean),
            standard_error=error,
        ),
        *(
            rms_gradient_of(
                f"√E‖∂L/∂q‖², s = 1, d_k = 64, n = {n_keys}",
                samples,
                HEAD_DIM,
                n_keys,
                scale=1.0,
                rival=math.sqrt(squared_query_gradient(HEAD_DIM, n_keys, HEAD_DIM**-0.5)),
            )
            for n_keys, samples in ((n, norms), (256, wide))
        ),
    ]


@evidence("unscaled-is-one-hot")
def unscaled_is_one_hot() -> list[Measurement]:
    """At unit variance most of the weight is on one key, not all; at GPT-2's start much less."""
    rng = seeds.rng(SEED, 49)
    n, rows = 256, 3000
    top = np.empty(rows)
    for row in range(rows):
        q, k = rng.standard_normal(HEAD_DIM), rng.standard_normal((n, HEAD_DIM))
        top[row] = softmax(k @ q).max()
    mean = over_query_norms(HEAD_DIM, 1.0, lambda rows: rows.max_weight(n))
    square = over_query_norms(HEAD_DIM, 1.0, lambda rows: rows.max_weight(n, power=2))

    sigma = initial_logit_std("gpt2", 768, HEAD_DIM)
    law = NormalRows(sigma, step=0.1)
    gentle, gentle_square = law.max_weight(n), law.max_weight(n, power=2)
    z = sigma * rng.standard_normal((12_000, n))
    return [
        mean_of(
            "E[max p], σ(q_i) = 1, d_k = 64, n = 256",
            top,
            expected=mean,
            variance=square - mean**2,
            rival=1.0,
        ),
        mean_of(
            f"E[max p], σ(q·k) = {sigma:.2f}, n = 256",
            softmax(z).max(axis=1),
            expected=gentle,
            variance=gentle_square - gentle**2,
            rival=mean,
        ),
    ]


@evidence("one-hot-kills-gradient")
def one_hot_kills_gradient() -> list[Measurement]:
    """Exactly for one-hot weights, but not for the values, and not for rows of large spread."""
    rng = seeds.rng(SEED, 50)
    n = 64
    z = torch.zeros(n, dtype=torch.float64)
    z[0] = 1000.0  # exp(−1000) is 0 in float64
    one_hot = softmax(z)
    value = torch.zeros(1, n, 2, dtype=torch.float64, requires_grad=True)
    query = torch.tensor([[[1.0]]], dtype=torch.float64, requires_grad=True)
    output = explicit_attention(query, z[None, :, None], value, scale=1.0)
    upstream = torch.tensor([3.0, 4.0], dtype=torch.float64)
    to_value, to_query = torch.autograd.grad((output * upstream).sum(), (value, query))
    jacobian = jacobian_frobenius_norm(softmax(8 * rng.standard_normal((14_000, n))))
    rows, gentle = NormalRows(8.0), NormalRows(1.0)
    law = rows.squared_jacobian(n)
    return [
        Measurement(
            "‖J(e₁)‖, n = 64",
            float(softmax_jacobian(one_hot).norm()),
            expected=0.0,
            tolerance=0.0,
            reason="0",
            rival=math.sqrt(n - 1) / n,
        ),
        Measurement(
            "‖∂L/∂q‖, p = e₁, n = 64",
            float(to_query.norm()),
            expected=0.0,
            tolerance=0.0,
            reason="0",
        ),
        Measurement(
            "‖∂L/∂V‖, p = e₁, ‖g‖ = 5, n = 64",
            float(to_value.norm()),
            expected=5.0,
            tolerance=0.0,
            reason="0",
            rival=0.0,
        ),
        mean_of(
            "E‖J‖²_F, σ = 8, n = 64",
            jacobian**2,
            expected=law,
            variance=rows.fourth_power_of_jacobian(n) - law**2,
            rival=gentle.squared_jacobian(n),
        ),
    ]


@evidence("gradient-norm-below-one-millionth")
def gradient_norm_below_one_millionth() -> list[Measurement]:
    """Its root mean square is above 1 at the start; some rows fall below 10⁻⁶; no matrix does."""
    rng = seeds.rng(SEED, 51)
    generator = seeds.generator(SEED + 1)
    (row,) = sample_row_gradients(HEAD_DIM, 64, 20_000, scales=[1.0], rng=rng)
    label = "√E‖∂L/∂q‖², s = 1, d_k = 64, n = 64"
    found = [
        against_the_answer(rms_gradient_of(label, row.query, HEAD_DIM, 64, scale=1.0, rival=1e-6))
    ]
    for head_dim, size in ((64, 60_000), (512, 8000)):
        norms = autograd_query_gradients(head_dim, 2, size, scale=1.0, generator=generator)
        found.append(
            share_of(
                f"P(‖∂L/∂q‖ < 10⁻⁶), s = 1, d_k = {head_dim}, n = 2",
                norms < 1e-6,
                expected=share_below(1e-6, head_dim),
                rival=1.0,
            )
        )
    # In the recorded trainings: of whole matrices, in any layer, at any step
    for layers in (2, 6, 12):
        least = smallest_gradients(runs(layers=layers, init="unit", scale="none"))
        found.append(
            against_the_answer(
                none_of(
                    f"min |∂L/∂W_Q|, |∂L/∂W_K| < 10⁻⁶, t < 300, s = 1, ℓ = {layers}", least < 1e-6
                )
            )
        )
    return found


def share_below(bound: float, head_dim: int) -> float:
    """P(‖∂L/∂q‖ < bound) for two keys and no factor, by quadrature.

    ‖∂L/∂q‖ = p(1 − p) · |u_1 − u_2| · ‖k_1 − k_2‖. Given q and g, u_1 − u_2 is N(0, 2‖g‖²), and
    k_1 − k_2 has a component √2 x along q, x ~ N(0, 1), and √2 χ across it, χ² with d_k − 1
    degrees of freedom. The gap is √2 ‖q‖ |x|. All but x and ‖q‖ enter the bound on |u_1 − u_2|
    only, where ‖g‖ and χ vary so little that their means of squares stand for them.
    """
    x = np.linspace(-9.0, 9.0, 3601)
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi) * (x[1] - x[0])

    def given_query(rows: NormalRows) -> float:
        gap = math.sqrt(2) * rows.sigma * abs(x)
        product = np.exp(-gap) / (1 + np.exp(-gap)) ** 2
        length = np.sqrt(2 * (x**2 + head_dim - 1))
        limits = bound / (product * length * math.sqrt(2))
        below = np.array([math.erf(limit / math.sqrt(2)) for limit in limits])
        return float((density * below).sum())

    return over_query_norms(head_dim, 1.0, given_query)
