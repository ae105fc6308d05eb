"""The saturation threshold against simulations on both sides of it."""

import math

import numpy as np
import pytest

from attention_scaling import (
    effective_keys,
    entropy,
    estimate_mean,
    random_energy_entropy,
    saturation_ratio,
    saturation_threshold,
    softmax,
)


def test_threshold_values():
    expected = {1: 0.0, 16: 2.3548, 64: 2.8841, 256: 3.3302, 1024: 3.7233}
    for n, value in expected.items():
        assert saturation_threshold(n) == pytest.approx(value, abs=5e-5)


def test_threshold_separates_two_behaviours():
    """Effective keys from n = 256 to 16384: grow with n at σ_c/2, stay put at 2σ_c."""

    def mean_effective_keys(n, times_threshold, seed):
        rng = np.random.default_rng(seed)
        sigma = times_threshold * saturation_threshold(n)
        return estimate_mean(effective_keys(softmax(sigma * rng.standard_normal((400, n)))))

    below = [mean_effective_keys(n, 0.5, 1) for n in (256, 16384)]
    above = [mean_effective_keys(n, 2.0, 2) for n in (256, 16384)]
    # Below: e^H ≈ n·e^{-σ²/2} = n^{3/4} at half the threshold: a factor 64^{3/4} = 22.6, less at
    # finite n. Above: bounded.
    assert below[1].value - 5 * below[1].standard_error > 10 * below[0].value
    assert above[1].value + 5 * above[1].standard_error < 1.5 * above[0].value
    assert above[1].value < 5


def test_unit_logits_leave_attention_almost_uniform():
    """At σ = 1: H → ln n - ½, so 0.61 n effective keys; the rival is a focused row."""
    n = 2048
    rng = np.random.default_rng(3)
    estimate = estimate_mean(entropy(softmax(rng.standard_normal((500, n)))))
    # Correction of order e/n: ln mean e^z loses (e - 1)/(2n), about 4e-4.
    assert estimate.value == pytest.approx(
        math.log(n) - 0.5, abs=4 * estimate.standard_error + 2e-3
    )
    assert estimate.standard_error < 0.01 * math.log(n)


def test_ratio_is_one_at_the_threshold():
    for n in (2, 16, 1024):
        assert saturation_ratio(saturation_threshold(n), n) == 1
        assert saturation_ratio(0.0, n) == 0
        assert saturation_ratio(3.0, n) == pytest.approx(3 / math.sqrt(2 * math.log(n)), rel=1e-15)
    # d_k = 64 without a scale, unit variance: σ = 8, above the threshold of any real context
    assert saturation_ratio(8.0, 10**6) > 1.5


def mean_entropy(sigma, n, draws, seed):
    rng = np.random.default_rng(seed)
    return estimate_mean(entropy(softmax(sigma * rng.standard_normal((draws, n)))))


def test_entropy_law_far_below_the_threshold():
    for n in (1024, 4096):
        estimate = mean_entropy(1.0, n, 1000, n)
        predicted = random_energy_entropy(1.0, n)
        assert predicted == pytest.approx(math.log(n) - 0.5, abs=1e-14)
        assert estimate.standard_error <= 0.01 * predicted
        # The next term is (e − 1)/(2n) or less: 0.001 at n = 1024. The docstring promises 0.01.
        assert abs(estimate.value - predicted) < 0.01
        assert abs(estimate.z_score(math.log(n))) > 5  # the rival: uniform


def test_entropy_law_has_a_corner_where_nature_has_a_crossover():
    estimate = mean_entropy(saturation_threshold(1024), 1024, 2000, 3)
    assert random_energy_entropy(saturation_threshold(1024), 1024) == pytest.approx(0, abs=1e-12)
    assert estimate.value == pytest.approx(2.6, abs=0.1)
    assert random_energy_entropy(100.0, 1024) == 0
    assert random_energy_entropy(0.0, 1) == 0


def test_entropy_law_sharpens_with_n():
    """At one ratio to the threshold, ½, entropy per ln n approaches 1 − ¼ from above."""
    excess = []
    for n in (64, 1024, 16384):
        sigma = 0.5 * saturation_threshold(n)
        assert random_energy_entropy(sigma, n) == pytest.approx(0.75 * math.log(n), rel=1e-12)
        excess.append(mean_entropy(sigma, n, 400, n).value / math.log(n) - 0.75)
    assert excess[0] > excess[1] > excess[2] > 0
    assert excess[2] < 0.01
