"""Online softmax: the algebra of its states, any chunking, and where a narrow format ends."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from attention_scaling import SoftmaxState, online_softmax, online_softmax_steps, softmax

from .reference import softmax_row

#: As in test_softmax, with one more rescaling per chunk, at most 20: 20·2⁻⁵² + 2e-14.
RELATIVE = 3e-14
logits = st.floats(-50, 50) | st.just(-math.inf)
rows = hnp.arrays(np.float64, st.integers(1, 20), elements=logits)
parts = hnp.arrays(np.float64, st.integers(0, 5), elements=logits)


def state_of(z):
    return SoftmaxState.from_logits(torch.tensor(z))


def assert_same(one, other, relative=RELATIVE):
    assert torch.equal(one.maximum, other.maximum)
    torch.testing.assert_close(one.denominator, other.denominator, rtol=relative, atol=0)


@given(rows, st.integers(1, 25))
def test_any_chunking_equals_the_reference(z, chunk_size):
    p = online_softmax(z, chunk_size=chunk_size)
    if (z == -math.inf).all():
        assert np.isnan(p).all()
        assert np.isnan(softmax(z)).all()
    else:
        assert p == pytest.approx(softmax_row(z), rel=RELATIVE, abs=0)


@given(parts, parts, parts)
def test_states_form_a_commutative_monoid(x, y, z):
    a, b, c = state_of(x), state_of(y), state_of(z)
    nothing = state_of(np.empty(0))
    assert_same(a.merge(b), b.merge(a), relative=0)
    assert_same(a.merge(b).merge(c), a.merge(b.merge(c)))
    assert_same(a.merge(nothing), a, relative=0)
    assert_same(nothing.merge(a), a, relative=0)
    assert_same(a.merge(b).merge(c), state_of(np.concatenate([x, y, z])))


@given(parts, st.integers(1, 4))
def test_a_masked_chunk_is_the_identity(x, n):
    masked = state_of(np.full(n, -math.inf))
    assert masked.maximum == -math.inf
    assert masked.denominator == 0
    assert_same(masked.merge(state_of(x)), state_of(x), relative=0)
    assert_same(state_of(x).merge(masked), state_of(x), relative=0)


@given(rows)
def test_log_sum_exp(z):
    expected = torch.logsumexp(torch.tensor(z), dim=-1)
    torch.testing.assert_close(state_of(z).log_sum_exp, expected, rtol=0, atol=1e-13)


@given(rows)
def test_steps_are_the_states_of_the_prefixes(z):
    steps = list(online_softmax_steps(z))
    assert len(steps) == len(z)
    for j, step in enumerate(steps, start=1):
        assert_same(step, state_of(z[:j]))
    # the denominator is between 1 and the number of keys that count
    for j, step in enumerate(steps, start=1):
        kept = np.isfinite(z[:j]).sum()
        assert min(1, kept) - 1e-12 <= float(step.denominator) <= kept + 1e-12


def test_steps_by_hand():
    steps = list(online_softmax_steps(np.array([1.0, -math.inf, 3.0, 2.0])))
    assert [float(s.maximum) for s in steps] == [1, 1, 3, 3]
    expected = [1, 1, 1 + math.exp(-2), 1 + math.exp(-2) + math.exp(-1)]
    assert [float(s.denominator) for s in steps] == pytest.approx(expected, rel=1e-15)


def test_dimensions_are_those_of_softmax():
    z = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for dim in (-1, 0, 1, 2):
        for chunk_size in (1, 2, 100):
            p = online_softmax(z, dim, chunk_size)
            torch.testing.assert_close(p, torch.softmax(z, dim), rtol=RELATIVE, atol=0)
        assert SoftmaxState.from_logits(z, dim).maximum.shape == z.sum(dim).shape
        assert len(list(online_softmax_steps(z, dim))) == z.shape[dim]


def test_gradients():
    z = torch.tensor(3 * np.random.default_rng(0).standard_normal((2, 7)), requires_grad=True)
    for chunk_size in (1, 3, 7):
        assert torch.autograd.gradcheck(lambda t, c=chunk_size: online_softmax(t, -1, c), z)
    z.data[0, :3] = -math.inf
    (gradient,) = torch.autograd.grad(online_softmax(z, -1, 3)[0, 4], z)
    assert gradient.isfinite().all()


def test_no_more_protection_than_the_ordinary_softmax():
    for row in ([math.inf, 3.0, 0.0], [math.nan, 0.0, 0.0]):
        z = torch.tensor(row)
        for chunk_size in (1, 2, 3):
            assert online_softmax(z, -1, chunk_size).isnan().all()
            assert softmax(z).isnan().all()
    huge = torch.tensor([3e38, -3e38, 3e38])
    assert online_softmax(huge, -1, 1).tolist() == [0.5, 0, 0.5]


def test_a_narrow_accumulator_stops():
    """1,024 equal keys: in bfloat16 the running denominator sticks at 256 if keys come singly."""
    z = torch.zeros(1024, dtype=torch.bfloat16)
    *_, last = online_softmax_steps(z)
    assert last.denominator == 256
    assert SoftmaxState.from_logits(z).denominator == 1024
    *_, last = online_softmax_steps(z.float())
    assert last.denominator == 1024
