"""The integrals and the sampler behind the evidence on saturation and gradients.

Both save work: a row of logits stands for vectors, an integral for many rows. Here they meet
closed forms, a slow integral that shares nothing with them, and autograd on full vectors.
"""

import math

import numpy as np
import pytest
import torch

from attention_scaling import explicit_attention, jacobian_frobenius_norm, softmax_jacobian
from scaling_book.evidence import gradients, problems, run, saturation
from scaling_book.evidence.normal_rows import NormalRows, moments_of_maximum, over_query_norms
from scaling_book.evidence.quantiles import estimate_quantile
from scaling_book.evidence.row_gradients import (
    fourth_power_of_query_gradient,
    sample_row_gradients,
    squared_query_gradient,
)

torch.set_num_threads(1)


# Two keys: everything is a function of the gap of the two logits, which is N(0, 2σ²).


def mean_over_gaps(sigma, function):
    gap = np.linspace(0, 17 * sigma, 2_000_001)
    density = np.exp(-((gap / (2 * sigma)) ** 2)) / (sigma * math.sqrt(math.pi))
    values = density * function(np.exp(-gap) / (1 + np.exp(-gap)), 1 / (1 + np.exp(-gap)))
    return np.trapezoid(values, gap)


@pytest.mark.parametrize("sigma", [0.05, 1.0, 8.0, 22.6])
def test_two_keys(sigma):
    rows = NormalRows(sigma)

    def h(q, p):
        return -p * np.log(p) - q * np.log(np.where(q > 0, q, 1))

    for integral, function in (
        (rows.entropy(2), h),
        (rows.squared_weights(2), lambda q, p: p**2 + q**2),
        (rows.squared_weights(2, power=2), lambda q, p: (p**2 + q**2) ** 2),
        (rows.squared_jacobian(2), lambda q, p: 4 * (p * q) ** 2),
        (rows.fourth_power_of_jacobian(2), lambda q, p: 16 * (p * q) ** 4),
        (rows.trace_of_fourth_power(2), lambda q, p: 16 * (p * q) ** 4),
    ):
        assert integral == pytest.approx(mean_over_gaps(sigma, function), abs=1e-9)
    fine = NormalRows(sigma, step=0.1)
    for power in (1, 2):
        expected = mean_over_gaps(sigma, lambda q, p, power=power: p**power)
        assert fine.max_weight(2, power) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("n", [1, 2, 7, 64])
def test_equal_weights_are_the_limit_of_small_spread(n):
    # The corrections are of order σ² = 1e-6.
    rows = NormalRows(1e-3)
    assert rows.entropy(n) == pytest.approx(math.log(n), abs=2e-6)
    assert rows.squared_weights(n) == pytest.approx(1 / n, rel=2e-6)
    assert rows.squared_jacobian(n) == pytest.approx((n - 1) / n**2, rel=1e-5, abs=1e-11)
    assert rows.max_weight(n) == pytest.approx(1 / n, rel=1e-2)


@pytest.mark.parametrize(("sigma", "n"), [(0.5, 64), (3.0, 64), (22.6, 1024)])
def test_weights_add_up_to_one(sigma, n):
    rows = NormalRows(sigma)
    for factors in ([(1, 0)], [(1, 0), (1, 0)], [(1, 0)] * 3):
        assert rows.mean_product(n, *factors) == pytest.approx(1, abs=1e-12)
    assert rows.mean_product(n, (2, 0), (1, 0)) == pytest.approx(rows.squared_weights(n), rel=1e-10)


@pytest.mark.parametrize(("sigma", "n"), [(1.0, 16), (3.0, 64), (8.0, 256)])
def test_integrals_agree_with_samples(sigma, n):
    rng = np.random.default_rng([7, n])
    a = rng.standard_normal((6000, n))
    p = np.exp(sigma * (a - a.max(axis=1, keepdims=True)))
    p /= p.sum(axis=1, keepdims=True)
    rows = NormalRows(sigma, step=0.1)
    jacobian = jacobian_frobenius_norm(p)
    fourth = [np.trace(np.linalg.matrix_power(j, 4)) for j in softmax_jacobian(p[:400])]
    for samples, integral in (
        (-(p * np.log(np.where(p > 0, p, 1))).sum(axis=1), rows.entropy(n)),
        (p.max(axis=1), rows.max_weight(n)),
        (p.max(axis=1) ** 2, rows.max_weight(n, 2)),
        (jacobian**2, rows.squared_jacobian(n)),
        (jacobian**4, rows.fourth_power_of_jacobian(n)),
        (np.array(fourth), rows.trace_of_fourth_power(n)),
        ((p * a).sum(axis=1) ** 2, rows.mean_product(n, (1, 1), (1, 1))),
        ((p**2 * a**2).sum(axis=1), rows.mean_product(n, (2, 2))),
    ):
        error = samples.std(ddof=1) / math.sqrt(samples.size)
        assert abs(samples.mean() - integral) < 4.5 * error


def test_the_average_over_query_norms():
    # E‖q‖² = d and E‖q‖⁴ = d(d + 2), and the factor enters as it should
    for d in (2, 64, 512):
        square = over_query_norms(d, 0.5, lambda rows: rows.sigma**2)
        fourth = over_query_norms(d, 0.5, lambda rows: rows.sigma**4)
        assert square == pytest.approx(d / 4, rel=1e-12)
        assert fourth == pytest.approx(d * (d + 2) / 16, rel=1e-12)


def test_moments_of_the_maximum():
    assert moments_of_maximum(1) == pytest.approx((0, 1), abs=1e-9)
    assert moments_of_maximum(2) == pytest.approx((math.pi**-0.5, 1 - 1 / math.pi), abs=1e-9)
    assert moments_of_maximum(1024)[0] == pytest.approx(3.248, abs=5e-4)


# The sampler


def autograd_gradients(head_dim, n_keys, size, scale, generator):
    """Norms of ∂L/∂z, ∂L/∂q, ∂L/∂K, ∂L/∂V and max p, from full vectors."""
    k, v = torch.randn(2, size, n_keys, head_dim, generator=generator, dtype=torch.float64)
    q, g = torch.randn(2, size, 1, head_dim, generator=generator, dtype=torch.float64)
    g /= math.sqrt(head_dim)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    output, weights = explicit_attention(*leaves, scale=scale, return_weights=True)
    to_q, to_k, to_v = torch.autograd.grad((g * output).sum(), leaves)
    # A logit bias b would get the gradient ∂L/∂z, and k_j gets s ∂L/∂z_j q.
    to_z = to_k.flatten(1).norm(dim=1) / (scale * q.detach().flatten(1).norm(dim=1))
    norms = [to_z, *(x.flatten(1).norm(dim=1) for x in (to_q, to_k, to_v))]
    return [x.detach().numpy() for x in (*norms, weights.amax(dim=-1).flatten())]


@pytest.mark.parametrize(
    ("head_dim", "n_keys", "scale"),
    [(2, 3, 1.0), (4, 5, 0.5), (4, 2, 4.0), (16, 16, 1.0), (64, 16, 1.0), (64, 16, 1 / 64)],
)
def test_the_sampler_draws_what_autograd_finds(head_dim, n_keys, scale):
    size = 8000
    generator = torch.Generator().manual_seed(11)
    full = autograd_gradients(head_dim, n_keys, size, scale, generator)
    rng = np.random.default_rng(12)
    (rows,) = sample_row_gradients(head_dim, n_keys, size, scales=[scale], rng=rng)
    ours = (rows.logits, rows.query, rows.keys, rows.values, rows.top)
    for mine, theirs in zip(ours, full, strict=True):
        # Kolmogorov–Smirnov: the two empirical distributions, 1e-4 of which lie further apart
        grid = np.concatenate([mine, theirs])
        share = [np.searchsorted(np.sort(x), grid, side="right") / size for x in (mine, theirs)]
        assert np.abs(share[0] - share[1]).max() < 2.2 * math.sqrt(2 / size)
        # and the joint behaviour: the ratio of two norms of one draw
    for i, j in ((1, 0), (2, 1), (3, 4)):
        a, b = (np.log(x[i] / x[j]) for x in (ours, full))
        error = math.hypot(a.std(), b.std()) / math.sqrt(size)
        assert abs(a.mean() - b.mean()) < 4.5 * error + 1e-12


def test_every_scale_meets_the_same_draw():
    many = sample_row_gradients(8, 4, 50, scales=[1.0, 0.1, 1.0], rng=np.random.default_rng(0))
    (alone,) = sample_row_gradients(8, 4, 50, scales=[0.1], rng=np.random.default_rng(0))
    assert np.array_equal(many[0].query, many[2].query)
    assert np.array_equal(many[1].query, alone.query)


def test_small_gradients_keep_their_digits():
    # At σ = 50 gradients of 1e-60 occur; rounding in 1 − p would leave none between 0 and 1e-17.
    (rows,) = sample_row_gradients(2500, 2, 2000, scales=[1.0], rng=np.random.default_rng(0))
    assert (rows.query > 0).all()
    assert rows.query.min() < 1e-60


@pytest.mark.parametrize(("head_dim", "n_keys", "scale"), [(4, 5, 1.0), (16, 16, 0.25)])
def test_the_mean_square_is_the_integral(head_dim, n_keys, scale):
    generator = torch.Generator().manual_seed(13)
    square = autograd_gradients(head_dim, n_keys, 40_000, scale, generator)[1] ** 2
    error = square.std() / math.sqrt(square.size)
    assert error < 0.03 * square.mean()
    assert abs(square.mean() - squared_query_gradient(head_dim, n_keys, scale)) < 4.5 * error


def test_the_fourth_power_is_the_integral_to_leading_order():
    (rows,) = sample_row_gradients(64, 64, 60_000, scales=[1.0], rng=np.random.default_rng(14))
    fourth = rows.query**4
    law = fourth_power_of_query_gradient(64, 64, 1.0)
    assert abs(fourth.mean() - law) < 3 * fourth.std() / math.sqrt(fourth.size) + 0.05 * law


def test_quantiles_and_their_errors():
    x = np.random.default_rng(15).exponential(size=40_000)
    for level in (0.1, 0.5, 0.9):
        estimate = estimate_quantile(x, level)
        # the density of the law at its quantile −ln(1 − level) is 1 − level
        error = math.sqrt(level * (1 - level) / x.size) / (1 - level)
        assert abs(estimate.value + math.log(1 - level)) < 4 * error
        assert estimate.standard_error == pytest.approx(error, rel=0.2)
    assert estimate_quantile(x[:5], 0.0).value == x[:5].min()


# The evidence must notice a wrong library or a wrong sampler.

softmax, attention = saturation.softmax, gradients.explicit_attention
sampler, dots = gradients.sample_row_gradients, saturation.sample_dot_products


def without_factor_in_the_gradient(head_dim, n_keys, size, *, scale, generator):
    drawn = gradients_of_autograd(head_dim, n_keys, size, scale=scale, generator=generator)
    return drawn / math.sqrt(head_dim)


gradients_of_autograd = gradients.autograd_query_gradients
MUTANTS = {
    "softmax of half the logits, C01": (
        saturation, "softmax", lambda z: softmax(z / 2), "scaling-prevents-saturation",
    ),
    "softmax with a range": (
        saturation, "softmax", lambda z: softmax(z.clip(-5, 5)), "effective-working-range",
    ),
    "softmax with a range, C14": (
        saturation, "softmax", lambda z: softmax(z.clip(-5, 5)), "sixty-eight-means-saturation",
    ),
    "argmax for softmax": (
        saturation, "softmax", lambda z: np.eye(z.shape[1])[z.argmax(1)],
        "sixty-eight-means-saturation",
    ),
    "the variance is √d": (
        saturation, "sample_dot_products", lambda d, *args, **kwargs: dots(d, *args, **kwargs) / 2,
        "root-normalises-variance-to-one",
    ),
    "every initialisation gives 1": (
        saturation, "initial_logit_std", lambda *args, **kwargs: 1.0,
        "root-normalises-variance-to-one",
    ),
    "logits of spread 1.05": (
        saturation, "normal_rows",
        lambda s, n, rows, rng: iter([1.05 * rng.standard_normal((rows, n))]),
        "logits-return-to-three",
    ),
    "uniform attention": (
        saturation, "softmax", lambda z: softmax(0 * z), "non-extreme-and-discriminative",
    ),
    "a tenth more spread": (
        saturation, "softmax", lambda z: softmax(1.1 * z), "non-extreme-and-discriminative",
    ),
    "the chain rule forgets the factor": (
        gradients, "autograd_query_gradients", without_factor_in_the_gradient,
        "saturation-causes-vanishing-gradients",
    ),
    "attention with the default scale": (
        gradients, "explicit_attention",
        lambda q, k, v, scale: attention(q, k, v), "saturation-causes-vanishing-gradients",
    ),
    "attention with the default scale, C51": (
        gradients, "explicit_attention",
        lambda q, k, v, scale: attention(q, k, v), "gradient-norm-below-one-millionth",
    ),
    "the sampler vanishes": (
        gradients, "sample_row_gradients",
        lambda d, n, size, scales, rng: sampler(d, n, size, scales=[d**-0.5], rng=rng),
        "gradient-norm-below-one-millionth",
    ),
    "softmax of half the logits, C49": (
        gradients, "softmax", lambda z: softmax(z / 2), "unscaled-is-one-hot",
    ),
    "every initialisation gives √d_k": (
        gradients, "initial_logit_std", lambda *args: 8.0, "unscaled-is-one-hot",
    ),
    "a Jacobian without its second term": (
        gradients, "softmax_jacobian", torch.diag, "one-hot-kills-gradient",
    ),
    "a norm of the diagonal alone": (
        gradients, "jacobian_frobenius_norm",
        lambda p: np.linalg.norm(p * (1 - p), axis=1), "one-hot-kills-gradient",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_evidence_bites(mutant, monkeypatch):
    module, name, replacement, slug = MUTANTS[mutant]
    monkeypatch.setattr(module, name, replacement)
    assert problems(slug, run(slug))
