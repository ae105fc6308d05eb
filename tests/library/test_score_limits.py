"""Clamp, soft cap and QK-clip: ceilings that no row exceeds, gradients, what happens to masks."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_scaling import (
    attention_logits,
    clamp_scores,
    clamped_weight_ceiling,
    qk_clip,
    soft_cap,
    softmax,
)

from .reference import softmax_row


def test_clamp_cuts_ties_and_unmasks():
    scores = torch.tensor([150.0, 5000.0, -3.0, math.inf, -math.inf, math.nan], requires_grad=True)
    clamped = clamp_scores(scores)
    assert clamped.tolist()[:5] == [100, 100, -3, 100, -100]
    assert clamped[5].isnan()
    (gradient,) = torch.autograd.grad(clamped[:3].sum(), scores)
    assert gradient.tolist()[:3] == [0, 0, 1]
    # The order of the source answer, clamp then scale: a tie where the truth is one-hot.
    weights = softmax(clamp_scores(np.array([150.0, 5000.0])) / 8)
    assert weights.tolist() == [0.5, 0.5]


def test_ceiling_of_the_example():
    ceiling = clamped_weight_ceiling(100, 512, 1024)
    assert 100 / math.sqrt(512) == pytest.approx(4.42, abs=0.005)
    assert ceiling == pytest.approx(0.0751, abs=5e-5)
    row = np.zeros(1024)
    row[0] = 5000.0
    assert softmax(clamp_scores(row) / math.sqrt(512))[0] == pytest.approx(ceiling, rel=1e-12)
    assert softmax(row / math.sqrt(512))[0] == 1
    # every other key at the opposite end
    absolute = clamped_weight_ceiling(100, 512, 1024, other_scores=-100)
    assert absolute == pytest.approx(0.871, abs=5e-4)


@given(
    st.integers(0, 2**32 - 1),
    st.floats(0.1, 200),
    st.integers(1, 512),
    st.integers(1, 30),
    st.none() | st.floats(1e-3, 2),
)
def test_no_row_exceeds_the_ceiling(seed, limit, head_dim, n, scale):
    rng = np.random.default_rng(seed)
    factor = head_dim**-0.5 if scale is None else scale
    ceiling = clamped_weight_ceiling(limit, head_dim, n, other_scores=-limit, scale=scale)
    rows = clamp_scores(rng.standard_normal((50, n)) * 1000, limit) * factor
    assert softmax(rows).max() <= ceiling * (1 + 1e-12)
    extreme = np.full(n, -limit * factor)
    extreme[-1] = limit * factor
    # exp of a difference up to 800, exact to 800·2⁻⁵²
    assert softmax_row(extreme)[-1] == pytest.approx(ceiling, rel=1e-12)
    others = rng.uniform(-limit, limit)
    row = np.full(n, others * factor)
    row[-1] = limit * factor
    assert softmax_row(row)[-1] == pytest.approx(
        clamped_weight_ceiling(limit, head_dim, n, other_scores=others, scale=scale), rel=1e-12
    )


@given(st.floats(-200, 200), st.floats(0.5, 60))
def test_soft_cap(z, cap):
    x = torch.tensor([z], dtype=torch.float64, requires_grad=True)
    y = soft_cap(x, cap)
    assert y.item() == pytest.approx(cap * math.tanh(z / cap), rel=1e-14, abs=1e-300)
    assert abs(y.item()) <= cap
    assert soft_cap(-x, cap).item() == -y.item()
    (slope,) = torch.autograd.grad(y.sum(), x)
    # 1 − tanh² cancels to 2⁻⁵³; 1/cosh² does not
    argument = min(abs(z / cap), 300.0)
    assert slope.item() == pytest.approx(1 / math.cosh(argument) ** 2, rel=1e-12, abs=3e-16)


def test_soft_cap_keeps_the_order_and_a_slope_of_one_at_zero():
    z = torch.linspace(-150, 150, 1001, dtype=torch.float64, requires_grad=True)
    y = soft_cap(z, 50.0)
    assert (y.diff() > 0).all()
    (slope,) = torch.autograd.grad(y.sum(), z)
    assert slope[500] == 1
    assert slope.min() > 0
    assert torch.autograd.gradcheck(lambda t: soft_cap(t, 50.0), z)
    # [200, 100] under cap 50, as Gemma 2 would have it
    capped = softmax(soft_cap(np.array([200.0, 100.0]), 50.0))
    assert capped == pytest.approx([0.853846, 0.146154], abs=1e-6)
    # in float32, tanh is 1 from 9 caps on: now there are ties
    assert soft_cap(torch.tensor([460.0, 600.0]), 50.0).tolist() == [50, 50]


def test_a_capped_mask_leaks():
    masked = np.array([0.0, -math.inf])
    assert softmax(soft_cap(masked, 1.0)) == pytest.approx([0.7311, 0.2689], abs=5e-5)
    assert softmax(masked).tolist() == [1, 0]


def test_kinds():
    for function in (clamp_scores, lambda z: soft_cap(z, 2.0)):
        array = np.array([[5.0, -500.0]], dtype=np.float32)
        assert isinstance(function(array), np.ndarray)
        assert function(array).dtype == np.float32
        np.testing.assert_array_equal(function(array), function(torch.tensor(array)).numpy())
        assert function(torch.tensor(3.0, dtype=torch.float16)).dtype == torch.float16


def clipped_maxima(w_q, w_k, x, heads, key_heads):
    """Largest scaled logit of each query head, and the logits."""
    head_dim = len(w_q) // heads
    q = (x @ w_q.mT).unflatten(-1, (heads, head_dim)).transpose(0, 1)
    k = (x @ w_k.mT).unflatten(-1, (key_heads, head_dim)).transpose(0, 1)
    logits = attention_logits(q, k.repeat_interleave(heads // key_heads, dim=0))
    return logits.amax(dim=(-2, -1)), logits


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([(3, 3), (4, 2), (3, 1)]),
    st.sampled_from([0, 0.5, 1]),
)
def test_qk_clip_brings_loud_heads_to_the_threshold_and_leaves_others(seed, heads, alpha):
    heads, key_heads = heads
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    w_q, w_k, x = normal(heads * 4, 6), normal(key_heads * 4, 6), normal(7, 6)
    before, logits = clipped_maxima(w_q, w_k, x, heads, key_heads)
    threshold = float(before.median().clamp(min=0.1))
    new_q, new_k = qk_clip(w_q, w_k, before, threshold, alpha=alpha)
    after, clipped = clipped_maxima(new_q, new_k, x, heads, key_heads)
    loud = before > threshold
    torch.testing.assert_close(after[loud], torch.full_like(after[loud], threshold))
    torch.testing.assert_close(clipped[~loud], logits[~loud])
    spared = (~loud).repeat_interleave(4)
    assert torch.equal(new_q[spared], w_q[spared])
    if key_heads == heads:
        assert torch.equal(new_k[spared], w_k[spared])
    # a clip multiplies by one positive number
    torch.testing.assert_close(clipped[loud], logits[loud] * (after / before)[loud, None, None])


def test_qk_clip_of_maxima_that_are_not_positive():
    weight = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    maxima = torch.tensor([0.0, -0.0, -5.0, -1e30])
    for w_k in (weight, weight[:2]):
        w_q, clipped = qk_clip(weight, w_k, maxima, 1e-3)
        assert torch.equal(w_q, weight)
        assert torch.equal(clipped, w_k)
        assert w_q is not weight
        assert clipped is not w_k


def test_qk_clip_shares_as_told_and_spares_shared_keys():
    ones = torch.ones(4, 1, dtype=torch.bfloat16)
    maxima = torch.tensor([400.0, 50.0])
    w_q, w_k = qk_clip(ones, ones, maxima, 100.0)
    assert w_q.tolist() == w_k.tolist() == [[0.5], [0.5], [1.0], [1.0]]
    assert w_q.dtype == torch.bfloat16
    w_q, w_k = qk_clip(ones, ones, maxima, 100.0, alpha=1.0)
    assert w_q.tolist() == [[0.25], [0.25], [1.0], [1.0]]
    assert torch.equal(w_k, ones)
    # one key head for both: only the queries of the loud head shrink
    w_q, w_k = qk_clip(ones, ones[:2], maxima, 100.0)
    assert w_q.tolist() == [[0.25], [0.25], [1.0], [1.0]]
    assert torch.equal(w_k, ones[:2])
