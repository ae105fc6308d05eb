"""The softmax Jacobian against automatic differentiation, and its norms in exact arithmetic."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_scaling import (
    jacobian_frobenius_norm,
    jacobian_spectral_bounds,
    jacobian_trace,
    jacobian_vector_product,
    softmax,
    softmax_jacobian,
)

from .reference import frobenius_norm_of_jacobian

random_logits = st.integers(0, 2**32 - 1).map(
    lambda seed: 3 * np.random.default_rng(seed).standard_normal(8)
)


@given(random_logits)
def test_jacobian(z):
    p = softmax(z)
    jacobian = softmax_jacobian(p)
    automatic = torch.autograd.functional.jacobian(
        lambda t: torch.softmax(t, dim=-1), torch.tensor(z)
    )
    # Entries below 1/4 made of a few operations: 1e-15; sums of 8 of them, 1e-14.
    assert jacobian == pytest.approx(np.asarray(automatic), abs=1e-15)
    assert (jacobian == jacobian.T).all()
    assert jacobian.sum(axis=0) == pytest.approx(np.zeros(8), abs=1e-14)
    assert np.trace(jacobian) == pytest.approx(1 - (p**2).sum(), abs=1e-14)
    frobenius_squared = (p**2).sum() - 2 * (p**3).sum() + (p**2).sum() ** 2
    assert (jacobian**2).sum() == pytest.approx(frobenius_squared, abs=1e-14)
    eigenvalues = np.linalg.eigvalsh(jacobian)
    largest = (p * (1 - p)).max()
    assert eigenvalues[0] > -1e-14
    assert largest - 1e-14 <= eigenvalues[-1] <= min(0.5, 2 * largest) + 1e-14


def test_jacobian_keeps_leading_dimensions_and_reaches_one_half():
    assert softmax_jacobian(torch.full((2, 3, 4), 0.25)).shape == (2, 3, 4, 4)
    half = softmax_jacobian(np.array([0.5, 0.5, 0.0]))
    assert np.linalg.eigvalsh(half)[-1] == pytest.approx(0.5)
    assert (softmax_jacobian(np.array([0.0, 1.0])) == 0).all()


#: Logits with a spread from 0.1 to 1000: almost uniform to one-hot.
spread_logits = st.tuples(st.integers(0, 2**32 - 1), st.floats(-1, 3), st.integers(1, 12)).map(
    lambda drawn: 10 ** drawn[1] * np.random.default_rng(drawn[0]).standard_normal(drawn[2])
)


@given(spread_logits)
def test_norms_are_those_of_the_matrix(z):
    p = softmax(z)
    jacobian = softmax_jacobian(p)
    # p − p² of the matrix cancels to 2⁻⁵³; the closed forms lose no more than n roundings.
    assert jacobian_trace(p) == pytest.approx(np.trace(jacobian), abs=1e-14)
    assert jacobian_frobenius_norm(p) == pytest.approx(np.linalg.norm(jacobian), abs=1e-14)
    assert jacobian_frobenius_norm(p) == pytest.approx(
        frobenius_norm_of_jacobian(p), rel=1e-14, abs=1e-160
    )
    lower, upper = jacobian_spectral_bounds(p)
    assert lower - 1e-14 <= np.linalg.norm(jacobian, 2) <= upper + 1e-14
    assert upper <= 0.5
    assert jacobian_frobenius_norm(p) <= 0.5 + 1e-15


def test_norm_near_one_hot_where_the_textbook_form_cancels():
    p = softmax(np.array([0.0, -25.0, -26.0]))
    textbook = (p**2).sum() - 2 * (p**3).sum() + (p**2).sum() ** 2
    exact = frobenius_norm_of_jacobian(p)
    assert jacobian_frobenius_norm(p) == pytest.approx(exact, rel=1e-14, abs=0)
    assert textbook <= 0 < exact**2


def test_norms_of_known_weights():
    for n in (1, 2, 5, 1000):
        uniform = np.full(n, 1 / n)
        assert jacobian_trace(uniform) == pytest.approx(1 - 1 / n, abs=1e-14)
        assert jacobian_frobenius_norm(uniform) == pytest.approx(np.sqrt(n - 1) / n, abs=1e-14)
        assert jacobian_spectral_bounds(uniform)[0] == pytest.approx((1 - 1 / n) / n, abs=1e-15)
    one_hot = torch.tensor([0.0, 1.0, 0.0])
    assert jacobian_trace(one_hot) == jacobian_frobenius_norm(one_hot) == 0
    assert jacobian_spectral_bounds(one_hot) == (0, 0)
    half = np.array([0.5, 0.5, 0.0])
    assert jacobian_frobenius_norm(half) == 0.5
    assert jacobian_spectral_bounds(half) == (0.25, 0.5)
    # A sink took 40 %: trace Σp(1 − p), not 1 − Σp².
    with_sink = np.array([0.5, 0.1])
    assert jacobian_trace(with_sink) == pytest.approx(0.34, abs=1e-15)
    assert jacobian_frobenius_norm(with_sink) == pytest.approx(
        np.linalg.norm(softmax_jacobian(with_sink)), abs=1e-15
    )


@given(random_logits, random_logits)
def test_product_with_a_vector_needs_no_matrix(z, v):
    p = softmax(z)
    assert jacobian_vector_product(p, v) == pytest.approx(softmax_jacobian(p) @ v, abs=1e-14)
    tensor = torch.tensor(z, requires_grad=True)
    (backward,) = torch.autograd.grad(softmax(tensor), tensor, torch.tensor(v))
    assert jacobian_vector_product(p, v) == pytest.approx(backward.numpy(), abs=1e-14)
    # J 1 = 0: a constant added to v is not seen
    assert jacobian_vector_product(p, v + 5) == pytest.approx(
        jacobian_vector_product(p, v), abs=1e-14
    )


def test_batches_and_kinds():
    p = torch.softmax(torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0)), dim=-1)
    for function in (jacobian_trace, jacobian_frobenius_norm):
        assert function(p).shape == (3, 4)
        assert function(p).dtype == torch.float32
        np.testing.assert_array_equal(function(p.numpy()), function(p).numpy())
    lower, upper = jacobian_spectral_bounds(p.numpy())
    assert isinstance(lower, np.ndarray)
    assert upper.shape == (3, 4)
    assert jacobian_vector_product(p, p[0, 0]).shape == (3, 4, 5)
    assert isinstance(jacobian_vector_product(p.numpy(), p.numpy()), np.ndarray)
