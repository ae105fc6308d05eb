"""Estimates: closed forms, coverage of the standard errors, and what they print."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention_scaling import (
    Estimate,
    estimate_mean,
    estimate_std,
    estimate_variance,
    loglog_slope,
)

finite_lists = st.lists(st.floats(-100, 100), min_size=4, max_size=30)


@pytest.mark.parametrize(
    ("value", "standard_error", "text"),
    [
        (64.13, 0.42, "64.1 ± 0.4"),
        (0.49987, 0.0021, "0.500 ± 0.002"),
        (4096.4, 12.3, "4096 ± 12"),
        (-3.0, 1.0, "-3 ± 1"),
        (2.5, 0.0, "2.5 ± 0"),
        (1.234e-9, 2e-11, "1.23e-09 ± 2e-11"),
    ],
)
def test_estimate_prints_rounded_numbers(value, standard_error, text):
    assert str(Estimate(value, standard_error, 10)) == text


def test_z_score_counts_standard_errors():
    assert Estimate(5.0, 0.5, 10).z_score(4.0) == 2.0
    assert Estimate(5.0, 0.0, 10).z_score(5.0) == 0.0
    assert Estimate(5.0, 0.0, 10).z_score(6.0) == -math.inf


@given(finite_lists)
def test_values_equal_numpy(samples):
    # One pass over at most 30 numbers below 100: errors below 30 * 100**2 * 2**-52 < 1e-10.
    assert estimate_mean(samples).value == pytest.approx(np.mean(samples), abs=1e-10)
    assert estimate_variance(samples).value == pytest.approx(np.var(samples, ddof=1), abs=1e-10)


@given(finite_lists, st.floats(-50, 50), st.floats(0.1, 10))
def test_affine_laws(samples, shift, factor):
    x = np.array(samples)
    moved = estimate_variance(shift + factor * x)
    original = estimate_variance(x)
    assert moved.value == pytest.approx(factor**2 * original.value, rel=1e-9, abs=1e-8)
    # A square root of a difference: rounding of 1e-9 in its square is 3e-5 in itself.
    scale = factor**2 * max(1.0, original.value)
    assert moved.standard_error == pytest.approx(
        factor**2 * original.standard_error, abs=3e-5 * scale
    )


def test_constant_samples_have_no_error():
    assert estimate_std(np.full(5, 3.0)) == Estimate(0.0, 0.0, 5)


@pytest.mark.parametrize(
    ("draw", "kurtosis"),
    [
        (lambda rng, shape: rng.standard_normal(shape), 3.0),
        (lambda rng, shape: rng.uniform(-1, 1, shape), 1.8),
        (lambda rng, shape: rng.standard_normal(shape) * rng.standard_normal(shape), 9.0),
    ],
    ids=["normal", "uniform", "product"],
)
def test_standard_errors_cover_the_spread_of_repetitions(draw, kurtosis):
    """The s.e. claimed by one sample is the spread of the estimate over 4000 samples.

    The spread of m repetitions is known to about 1/√(2m) = 1.1 %; four of these are the tolerance,
    plus 2 % for the plug-in moments of 2000 draws.
    """
    rng = np.random.default_rng(7)
    n, repetitions = 2000, 4000
    samples = draw(rng, (repetitions, n))
    for function in (estimate_mean, estimate_variance, estimate_std):
        estimates = [function(row) for row in samples]
        spread = np.std([e.value for e in estimates], ddof=1)
        claimed = np.sqrt(np.mean([e.standard_error**2 for e in estimates]))
        assert claimed == pytest.approx(spread, rel=0.065)
    # The rival, 2σ⁴/(n - 1), holds for normal samples only and misses by this factor.
    variances = samples.var(axis=1, ddof=1)
    normal_theory = variances.mean() * math.sqrt(2 / (n - 1))
    assert variances.std() / normal_theory == pytest.approx(
        math.sqrt((kurtosis - 1) / 2), rel=0.065
    )


def test_variance_error_of_three_points_by_hand():
    # {0, 0, 3}: mean 1, s² = 3, μ₄ = (1 + 1 + 16)/3 = 6; (μ₄ - 0·s⁴)/3 = 2.
    estimate = estimate_variance([0.0, 0.0, 3.0])
    assert estimate.value == pytest.approx(3.0)
    assert estimate.standard_error == pytest.approx(math.sqrt(2.0))
    std = estimate_std([0.0, 0.0, 3.0])
    assert std.standard_error == pytest.approx(math.sqrt(2.0) / (2 * math.sqrt(3.0)))


@given(st.floats(-3, 3), st.floats(0.01, 100))
def test_loglog_slope_finds_the_exponent(exponent, factor):
    x = np.array([1.0, 2.0, 4.0, 64.0, 512.0])
    slope = loglog_slope(x, factor * x**exponent)
    assert slope.value == pytest.approx(exponent, abs=1e-12)  # logs below 30, error 30 * 2**-52
    assert slope.standard_error < 1e-12


def test_loglog_slope_error_covers_its_spread():
    rng = np.random.default_rng(3)
    x = 2.0 ** np.arange(2, 13)
    slopes = [loglog_slope(x, x**0.5 * np.exp(0.1 * rng.standard_normal(11))) for _ in range(4000)]
    spread = np.std([s.value for s in slopes])
    assert np.sqrt(np.mean([s.standard_error**2 for s in slopes])) == pytest.approx(
        spread, rel=0.065
    )


def test_equal_x_define_no_slope_whatever_the_rounding_of_their_mean():
    with pytest.raises(ValueError, match="at least two values"):
        loglog_slope([0.1] * 10, range(1, 11))
