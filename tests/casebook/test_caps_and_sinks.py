"""The cases of chapters/casebook/caps-sinks-and-norms.md, on every path of the library."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attention_scaling as scaling

from .scores import CHUNKS, assert_weights, by_scores, paths, softmax, two_keys

INF = math.inf
NOTHING = [[False, False]]


def capped(logits, cap):
    return [cap * math.tanh(z / cap) for z in logits]


@pytest.mark.parametrize("cap", [1e-3, 1.0, 50.0])
def test_the_cap_never_reaches_a_mask(cap):
    expected = [1.0, 0.0]
    for mask in ([[True, False]], [[0.0, -INF]]):
        for name, found in paths(*by_scores([0.0, 0.0]), softcap=cap, attn_mask=mask).items():
            assert found.tolist() == expected, name
    assert_weights(*by_scores([5.0, -3.0]), [0.0, 0.0], softcap=cap, attn_mask=NOTHING)


def test_a_bias_is_added_after_the_cap():
    bias = torch.tensor([[0.0, 3.0]], dtype=torch.float64)
    expected = softmax([0.0, 3.0])
    assert_weights(*by_scores([0.0, 0.0]), expected, softcap=1.0, scale=1.0, attn_mask=bias)


@pytest.mark.parametrize("raw", [[200.0, 100.0], [-10.0, 0.0], [-200.0, 200.0, 0.0]])
def test_the_cap_is_applied_and_is_odd(raw):
    assert_weights(*by_scores(raw), softmax(capped(raw, 50.0)), softcap=50.0, scale=1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("raw", [5000.0, 60000.0])
def test_a_logit_of_any_size_is_capped_and_makes_no_nan(dtype, raw):
    raw = torch.tensor([raw, 100.0, -raw]).to(dtype).tolist()
    expected = softmax(capped(raw, 50.0))
    # float32 logits near 50 are exact to 50 · 2⁻²³; the result is rounded to the dtype
    tolerance = 2e-5 + torch.finfo(dtype).eps / 2
    assert_weights(
        *by_scores(raw), expected, dtype=dtype, softcap=50.0, scale=1.0, tolerance=tolerance
    )


def test_the_factor_stands_inside_the_cap():
    expected = softmax(capped([100.0, 0.0], 50.0))
    assert_weights(*by_scores([1600.0, 0.0]), expected, softcap=50.0, scale=0.0625)
    # and a negative one, whose capped logit is odd in it
    expected = softmax(capped([-100.0, 0.0], 50.0))
    assert_weights(*by_scores([1600.0, 0.0]), expected, softcap=50.0, scale=-0.0625)


@pytest.mark.parametrize("cap", [0.0, -0.0, -50.0, math.nan])
def test_what_is_no_cap_is_refused(cap):
    with pytest.raises(ValueError, match="softcap"):
        paths(*by_scores([1.0, 2.0]), softcap=cap)


def test_the_fused_path_refuses_what_it_cannot_do():
    x = torch.ones(1, 1, 2, 4)
    for options in ({"softcap": 50.0}, {"sinks": 0.0}, {"masked_rows": "nan"}):
        with pytest.raises(NotImplementedError):
            scaling.fused_attention(x, x, x, **options)


@pytest.mark.parametrize("z", [-1000.0, -10.0, 0.0, 10.0, 1000.0])
def test_the_one_of_an_off_by_one_softmax_is_shifted_too(z):
    for n in (1, 4):
        expected = softmax([z] * n, sink=0.0)
        assert_weights(*by_scores([z] * n), expected, scale=1.0, sinks=0.0)


def test_the_sink_is_counted_once_however_keys_are_cut():
    assert_weights(*by_scores([0.0, 0.0]), [1 / 3, 1 / 3], sinks=0.0)
    raw = [0.5, -1.0, 2.0, 0.0, 1.0, -0.5, 3.0]
    assert_weights(*by_scores(raw), softmax(raw, sink=1.5), scale=1.0, sinks=1.5)
    # first chunks that are empty
    keep = [[False] * 5 + [True] * 2]
    expected = [0.0] * 5 + softmax(raw[5:], sink=1.5).tolist()
    assert_weights(*by_scores(raw), expected, scale=1.0, sinks=1.5, attn_mask=keep)
    assert_weights(*by_scores([1.0, 2.0]), [0.0, 0.0], sinks=0.0, attn_mask=NOTHING)


@pytest.mark.parametrize("sink", [-INF, -3.0, 0.0, 2.0, 80.0, 1e4])
def test_the_sink_is_neither_scaled_nor_capped(sink):
    expected = softmax([0.0, 1.0], sink=sink)
    assert_weights(*two_keys_with_gap(2.0), expected, scale=0.5, sinks=sink)
    expected = softmax(capped([0.0, 1.0], 1.0), sink=sink)
    assert_weights(*two_keys_with_gap(2.0), expected, scale=0.5, softcap=1.0, sinks=sink)


def two_keys_with_gap(raw):
    query, key = two_keys(raw, 4)
    return query, key[::-1].copy()


@pytest.mark.parametrize("chunk_size", [None, *CHUNKS])
def test_the_gradient_goes_through_the_sink(chunk_size):
    q, sink = torch.ones(1, 1, 1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    q.requires_grad_()
    sink.requires_grad_()
    k, v = torch.ones_like(q), torch.full_like(q, 2.0)
    if chunk_size is None:
        out = scaling.explicit_attention(q, k, v, scale=1.0, sinks=sink)
    else:
        out = scaling.online_attention(q, k, v, scale=1.0, sinks=sink, chunk_size=chunk_size)
    p = math.e / (math.e + 1)
    assert out.item() == pytest.approx(2 * p, rel=1e-14)
    by_q, by_sink = torch.autograd.grad(out.sum(), (q, sink))
    assert by_q.item() == pytest.approx(2 * p * (1 - p), rel=1e-13)
    assert by_sink.item() == pytest.approx(-2 * p * (1 - p), rel=1e-13)


def test_each_head_has_its_own_sink():
    sinks = [0.0, 2.0, -1.0]
    q, k = torch.ones(1, 3, 1, 1, dtype=torch.float64), torch.zeros(1, 3, 2, 1, dtype=torch.float64)
    v = torch.eye(2, dtype=torch.float64).expand(1, 3, 2, 2)
    for size in CHUNKS:
        out = scaling.online_attention(q, k, v, sinks=torch.tensor(sinks), chunk_size=size)
        expected = [softmax([0.0, 0.0], sink=sink) for sink in sinks]
        np.testing.assert_allclose(out[0, :, 0].numpy(), expected, rtol=0, atol=1e-15)


numbers = st.floats(-1e3, 1e3)


@given(
    st.lists(numbers, min_size=1, max_size=6),
    st.floats(-2, 2),
    st.none() | st.floats(0.1, 100),
    st.none() | numbers,
    st.lists(st.sampled_from([0.0, -INF, 1.0, -2.5]), min_size=6, max_size=6),
)
def test_the_whole_order(raw, scale, cap, sink, bias):
    z = [scale * x for x in raw]
    z = z if cap is None else capped(z, cap)
    z = [a + b for a, b in zip(z, bias, strict=False)]
    expected = softmax(z, sink=-INF if sink is None else sink)
    mask = torch.tensor([bias[: len(raw)]], dtype=torch.float64)
    # logits of up to 2,000, exact to 2⁻⁵³ · 4 · 2,000
    assert_weights(
        *by_scores(raw),
        expected,
        tolerance=2e-12,
        scale=scale,
        softcap=cap,
        sinks=sink,
        attn_mask=mask,
    )


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_qk_clip_leaves_heads_without_a_positive_maximum(alpha):
    largest = torch.tensor([200.0, -3.0, 0.0, -0.0, -1e30, 100.0], dtype=torch.float64)
    w_q, w_k = torch.ones(2, 6, 1, dtype=torch.float64)
    q, k = scaling.qk_clip(w_q, w_k, largest, threshold=100.0, alpha=alpha)
    expected = np.array([0.5, 1, 1, 1, 1, 1.0])
    np.testing.assert_allclose(q.flatten(), expected**alpha, rtol=1e-15)
    np.testing.assert_allclose(k.flatten(), expected ** (1 - alpha), rtol=1e-15)
    clipped = (q * k).flatten() * largest
    np.testing.assert_allclose(clipped.numpy(), largest.clamp(max=100).numpy(), rtol=1e-15)


def test_qk_norm_per_head_and_over_the_full_width():
    x = torch.tensor([[3.0, 3.0], [4.0, 4.0]], dtype=torch.float64)[None, :, None]
    per_head, _ = scaling.qk_norm(x, x, eps=0.0)
    full, _ = scaling.qk_norm(x, x, full_width=True, eps=0.0)
    assert per_head.flatten().tolist() == pytest.approx([1.0] * 4, rel=1e-15)
    rms = math.sqrt((9 + 9 + 16 + 16) / 4)
    assert full.flatten().tolist() == pytest.approx([3 / rms] * 2 + [4 / rms] * 2, rel=1e-15)
    with pytest.raises(ValueError, match="weight"):  # a gain of the other kind does not fit
        scaling.qk_norm(x, x, torch.ones(4, dtype=torch.float64))
