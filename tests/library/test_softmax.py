"""Softmax and entropy: laws, an exactly summed reference, and where the naive form breaks."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from attention_scaling import effective_keys, entropy, naive_softmax, online_softmax, softmax

from .reference import softmax_row

#: |z| ≤ 50 and n ≤ 20. A difference of logits is exact to 100·2⁻⁵³, exp turns this absolute error
#: into a relative one, and the sum adds n·2⁻⁵³: below 2e-14 in all.
RELATIVE = 2e-14
logits_rows = hnp.arrays(np.float64, st.integers(1, 20), elements=st.floats(-50, 50))
random_logits = st.integers(0, 2**32 - 1).map(
    lambda seed: 3 * np.random.default_rng(seed).standard_normal(8)
)


@given(logits_rows)
def test_equals_the_reference(z):
    assert softmax(z) == pytest.approx(softmax_row(z), rel=RELATIVE, abs=0)
    # The naive form has no cancellation to fear either while exp stays in range.
    assert naive_softmax(z) == pytest.approx(softmax_row(z), rel=RELATIVE, abs=0)


@given(logits_rows, st.floats(-1000, 1000))
def test_a_constant_added_to_all_logits_is_not_seen(z, shift):
    # z + shift rounds to 2⁻⁵³·1050 absolutely, twice.
    assert softmax(z + shift) == pytest.approx(softmax(z), rel=1e-12, abs=1e-300)


@given(logits_rows)
def test_is_a_distribution_in_the_order_of_the_logits(z):
    p = softmax(z)
    assert p.sum() == pytest.approx(1, rel=RELATIVE)
    assert (p > 0).all()
    order = np.argsort(z)
    assert (np.diff(p[order]) >= 0).all()
    assert softmax(z[order]) == pytest.approx(p[order], rel=RELATIVE)


def test_torch_agrees_along_every_dimension():
    z = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for dim in (-1, 0, 1, 2):
        for function in (softmax, naive_softmax):
            torch.testing.assert_close(
                function(z, dim), torch.softmax(z, dim), rtol=RELATIVE, atol=0
            )


@pytest.mark.parametrize(
    ("dtype", "largest"), [(torch.float16, 11.0), (torch.float32, 88.0), (torch.float64, 709.0)]
)
def test_naive_overflows_where_safe_does_not(dtype, largest):
    fits = torch.tensor([largest, 0.0], dtype=dtype)
    assert naive_softmax(fits).isfinite().all()
    too_large = fits + torch.tensor([2.0, 0.0], dtype=dtype)
    assert naive_softmax(too_large)[0].isnan()
    assert softmax(too_large).tolist() == pytest.approx([1.0, 0.0], abs=2e-5)
    assert softmax(torch.tensor([-1e4, -1e4 + 8], dtype=dtype)).isfinite().all()


def test_rows_without_a_maximum_are_nan():
    z = torch.tensor([[-math.inf, -math.inf], [-math.inf, 3.0], [math.inf, 0.0]])
    p = softmax(z)
    assert p[0].isnan().all()
    assert p[1].tolist() == [0.0, 1.0]
    assert p[2].isnan().all()


def test_dtype_and_kind_are_kept():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert softmax(torch.zeros(3, dtype=dtype)).dtype == dtype
    for function in (softmax, naive_softmax, online_softmax, entropy, effective_keys):
        array = np.full((2, 4), 0.25, dtype=np.float32)
        result = function(array)
        assert isinstance(result, np.ndarray)
        assert result.dtype == np.float32
        np.testing.assert_array_equal(result, function(torch.tensor(array)).numpy())


@given(random_logits)
def test_gradients(z):
    tensor = torch.tensor(z, requires_grad=True)
    assert torch.autograd.gradcheck(softmax, tensor)
    assert torch.autograd.gradcheck(lambda t: entropy(softmax(t)), tensor)


def test_entropy_of_known_distributions():
    for n in (1, 2, 7, 1024):
        uniform = np.full(n, 1 / n)
        assert entropy(uniform) == pytest.approx(math.log(n), abs=1e-13)
        assert effective_keys(uniform) == pytest.approx(n, rel=1e-13)
    one_hot = torch.tensor([0.0, 1.0, 0.0], requires_grad=True)
    assert f"{entropy(one_hot).item():.1f}" == "0.0"  # and not -0.0
    entropy(one_hot).backward()
    assert one_hot.grad is not None
    assert one_hot.grad.isfinite().all()
    assert effective_keys(one_hot).item() == 1
    assert entropy(np.array([0.5, 0.25, 0.25])) == pytest.approx(1.5 * math.log(2))
    # A sink took half of the weight: what is left is counted as it is.
    assert entropy(np.array([0.25, 0.25])) == pytest.approx(math.log(2))
    assert math.isnan(entropy(np.array([math.nan, 0.5])))


@given(random_logits, random_logits)
def test_entropy_adds_for_independent_choices(y, z):
    p, q = softmax(y), softmax(z)
    joint = (p[:, None] * q[None, :]).ravel()
    # 64 terms, each |p ln p| < 0.37 with a few rounding errors: below 1e-13.
    assert entropy(joint) == pytest.approx(entropy(p) + entropy(q), abs=1e-12)


def test_entropy_sums_the_dimension_asked_for():
    p = softmax(torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1)), dim=1)
    assert entropy(p, dim=1).shape == (3, 5)
    torch.testing.assert_close(entropy(p, dim=1), entropy(p.transpose(1, 2)))


def test_views_of_numpy_arrays_are_taken():
    z = np.arange(6.0).reshape(2, 3)
    for view in (z[:, ::-1], z.T, z.astype(">f8")):
        np.testing.assert_array_equal(softmax(view), softmax(np.array(view, dtype=np.float64)))
