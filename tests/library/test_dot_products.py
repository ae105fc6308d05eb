"""q·k: closed forms against one another, and against simulations that could reject them.

Simulations follow one rule: standard error at most 1 % of the prediction, agreement within
4 standard errors, and the rival law at least 5 away.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention_scaling import (
    conditional_row_std,
    estimate_mean,
    estimate_std,
    estimate_variance,
    excess_kurtosis,
    gaussian_moments,
    iid_moments,
    loglog_slope,
    sample_dot_products,
)


def assert_supports(estimate, predicted, rival):
    assert estimate.standard_error <= 0.01 * abs(predicted)
    assert abs(estimate.z_score(predicted)) < 4, f"{estimate} against {predicted}"
    assert abs(estimate.z_score(rival)) >= 5, f"{estimate} does not reject {rival}"


@pytest.mark.parametrize("head_dim", [4, 64, 512])
def test_variance_is_the_head_dimension(head_dim):
    samples = sample_dot_products(head_dim, 50_000, rng=np.random.default_rng(head_dim))
    assert iid_moments(head_dim).variance == head_dim
    assert iid_moments(head_dim).mean == 0
    assert_supports(estimate_variance(samples), head_dim, rival=head_dim**2)
    assert_supports(estimate_std(samples), math.sqrt(head_dim), rival=head_dim)
    # The mean is zero: no relative error, hence in units of the standard deviation.
    mean = estimate_mean(samples)
    assert abs(mean.z_score(0)) < 4
    assert mean.standard_error <= 0.01 * math.sqrt(head_dim)


def test_scaled_logits_have_unit_std_only_with_the_root():
    samples = sample_dot_products(64, 50_000, rng=np.random.default_rng(1))
    assert_supports(estimate_std(samples / math.sqrt(64)), 1.0, rival=1 / math.sqrt(64))
    assert_supports(estimate_std(samples / 64), 1 / math.sqrt(64), rival=1.0)


def test_std_grows_with_the_square_root():
    rng = np.random.default_rng(2)
    dims = [4, 16, 64, 256, 1024]
    stds = [estimate_std(sample_dot_products(d, 25_000, rng=rng)).value for d in dims]
    assert_supports(loglog_slope(dims, stds), 0.5, rival=1.0)


def test_uncorrelated_is_not_independent():
    """k = ±q is uncorrelated with q, yet its variance is not d: E(q·k)² = E‖q‖⁴, or d E q_i⁴."""
    d, rng = 16, np.random.default_rng(3)
    q = rng.standard_normal((200_000, d))
    sign_per_vector, sign_per_coordinate = rng.choice([-1, 1], (2, len(q), d))
    sign_per_vector[:] = sign_per_vector[:, :1]
    for sign, variance in ((sign_per_vector, d**2 + 2 * d), (sign_per_coordinate, 3 * d)):
        k = sign * q
        assert abs(estimate_mean((q * k)[:, 0]).z_score(0)) < 4  # uncorrelated
        assert_supports(estimate_variance((q * k).sum(axis=1)), variance, iid_moments(d).variance)


@pytest.mark.parametrize(
    ("case", "rivals"),
    [
        # correlation: the mean is dρ, and the variance grows by ρ² rather than shrinks
        ({"correlation": 0.5}, [(0.0, 64.0), (64.0, 64 * 0.75)]),
        ({"correlation": -0.8}, [(64 * 0.8, 64.0)]),
        # means: rivals forget them in the mean, and in the variance
        ({"mean_q": 0.5, "mean_k": 0.5}, [(0.0, 64.0)]),
        ({"mean_q": 0.3, "mean_k": -2.0, "std_q": 0.5}, [(0.0, 64 * 0.25)]),
        ({"mean_q": 0.5, "mean_k": 1.0, "std_k": 2.0, "correlation": 0.6}, [(32.0, 64 * 4 * 1.36)]),
    ],
    ids=str,
)
def test_means_and_correlation(case, rivals):
    moments = iid_moments(64, **case)
    samples = sample_dot_products(64, 60_000, rng=np.random.default_rng(11), **case)
    for rival_mean, rival_variance in rivals:
        assert_supports(estimate_mean(samples), moments.mean, rival_mean)
        assert_supports(estimate_variance(samples), moments.variance, rival_variance)
    assert_supports(estimate_mean(samples**2), moments.second_moment, moments.variance)


def test_aligned_second_moment_grows_like_the_square():
    dims = [2**j for j in range(9, 15)]
    aligned = [iid_moments(d, correlation=0.5).second_moment for d in dims]
    white = [iid_moments(d).second_moment for d in dims]
    assert loglog_slope(dims, aligned).value == pytest.approx(2, abs=0.01)
    assert loglog_slope(dims, white).value == pytest.approx(1, abs=1e-12)


component = st.floats(-3, 3)
deviation = st.floats(0, 3)


@given(st.integers(1, 6), component, component, deviation, deviation, st.floats(-1, 1, width=32))
def test_general_law_contains_the_iid_law(d, mean_q, mean_k, std_q, std_k, rho):
    iid = iid_moments(d, mean_q=mean_q, mean_k=mean_k, std_q=std_q, std_k=std_k, correlation=rho)
    general = gaussian_moments(
        np.full(d, mean_q),
        np.full(d, mean_k),
        std_q**2 * np.eye(d),
        std_k**2 * np.eye(d),
        rho * std_q * std_k * np.eye(d),
    )
    # Sums of at most 36 terms below 500: rounding below 36 * 500 * 2**-52 < 1e-11.
    assert general.mean == pytest.approx(iid.mean, abs=1e-10)
    assert general.variance == pytest.approx(iid.variance, abs=1e-10)


def random_law(seed, d=5):
    """Means and a joint covariance of (q, k), with a proper cross-covariance."""
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((2 * d, 2 * d)) / math.sqrt(2 * d)
    joint = root @ root.T
    mean_q, mean_k = rng.uniform(0.5, 1.5, (2, d))
    return (mean_q, mean_k, joint[:d, :d], joint[d:, d:], joint[:d, d:]), root


@given(st.integers(0, 2**32 - 1))
def test_general_law_is_the_law_of_a_quadratic_form(seed):
    """Independent derivation: x = (q, k) is normal and q·k = xᵀ A x with A = ½[[0, I], [I, 0]].

    E = tr(A S) + mᵀ A m and Var = 2 tr(A S A S) + 4 mᵀ A S A m (Searle 1971, chapter 2).
    """
    (mean_q, mean_k, cov_q, cov_k, cross), root = random_law(seed)
    d = len(mean_q)
    a = 0.5 * np.kron([[0, 1], [1, 0]], np.eye(d))
    s, m = root @ root.T, np.concatenate([mean_q, mean_k])
    moments = gaussian_moments(mean_q, mean_k, cov_q, cov_k, cross)
    # Sums of 10⁴ products below 10: 1e5 * 2**-52 < 1e-10.
    assert moments.mean == pytest.approx(np.trace(a @ s) + m @ a @ m, abs=1e-10)
    assert moments.variance == pytest.approx(
        2 * np.trace(a @ s @ a @ s) + 4 * m @ a @ s @ a @ m, abs=1e-10
    )


def test_general_law_against_simulation():
    law, root = random_law(5)
    mean_q, mean_k, cov_q, cov_k, _ = law
    x = np.random.default_rng(6).standard_normal((250_000, 10)) @ root.T
    x += np.concatenate([mean_q, mean_k])
    samples = (x[:, :5] * x[:, 5:]).sum(axis=1)
    moments = gaussian_moments(*law)
    independent = gaussian_moments(mean_q, mean_k, cov_q, cov_k)
    assert_supports(estimate_mean(samples), moments.mean, independent.mean)
    assert_supports(estimate_variance(samples), moments.variance, independent.variance)


def test_one_white_side_is_enough_but_one_shared_direction_is_not():
    d = 8
    zero, white, shared = np.zeros(d), np.eye(d), np.ones((d, d))  # unit variances everywhere
    assert gaussian_moments(zero, zero, white, shared).variance == pytest.approx(d)
    assert gaussian_moments(zero, zero, shared, shared).variance == pytest.approx(d**2)


def test_zero_means_matter_even_with_one_white_side():
    d = 8
    moments = gaussian_moments(np.ones(d), np.zeros(d), np.eye(d), np.eye(d))
    assert moments.variance == pytest.approx(2 * d)


def test_one_row_sees_the_norm_of_its_query():
    rng = np.random.default_rng(8)
    query = rng.standard_normal(64)
    query *= 12 / np.linalg.norm(query)  # a long query: ‖q‖ = 12, not √64
    logits = rng.standard_normal((50_000, 64)) @ query
    assert_supports(estimate_std(logits), float(conditional_row_std(query)), math.sqrt(64))
    batch = rng.standard_normal((3, 2, 64))
    assert conditional_row_std(batch).shape == (3, 2)
    assert conditional_row_std(batch) == pytest.approx(np.linalg.norm(batch, axis=-1), rel=1e-14)


def test_tails_are_heavier_than_normal():
    samples = sample_dot_products(4, 600_000, rng=np.random.default_rng(9))
    predicted = (3 + excess_kurtosis(4)) * 4**2
    assert_supports(estimate_mean(samples**4), predicted, rival=3 * 4**2)
    assert excess_kurtosis(64) == 6 / 64


def test_chunks_do_not_change_the_law_and_cover_every_sample():
    # 2^18 coordinates per block: at d = 4096 this is 64 rows, so 130 samples need three blocks.
    samples = sample_dot_products(4096, 130, rng=np.random.default_rng(10))
    assert samples.shape == (130,)
    assert samples.dtype == np.float64
    assert len(np.unique(samples)) == 130


def test_std_is_the_root_of_the_variance():
    assert iid_moments(64).std == 8
    assert iid_moments(64, correlation=0.5).second_moment == 80 + 32**2


def test_degenerate_laws_are_exact():
    rng = np.random.default_rng(12)
    constant = sample_dot_products(7, 3, rng=rng, mean_q=2, mean_k=0.5, std_q=0, std_k=0)
    assert constant == pytest.approx(7.0)
    assert iid_moments(7, mean_q=2, mean_k=0.5, std_q=0, std_k=0).variance == 0
    aligned = sample_dot_products(7, 1000, rng=rng, correlation=1)  # q = k: a sum of squares
    assert aligned.min() > 0
    assert (sample_dot_products(7, 1000, rng=rng, correlation=-1) < 0).all()


def test_only_the_given_generator_is_used():
    first = sample_dot_products(16, 5, rng=np.random.default_rng(0))
    np.random.seed(1)
    assert sample_dot_products(16, 5, rng=np.random.default_rng(0)) == pytest.approx(first, abs=0)
