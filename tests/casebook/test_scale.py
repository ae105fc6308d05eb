"""The cases of chapters/casebook/the-scale-factor.md, on every path of the library.

Tolerance in float64: logits of at most 110 are exact to 2⁻⁵³ · 4 · 110 = 5e-14, which a weight
takes over as a relative error; weights whose logits differ by more are 0 or 1.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attention_scaling as scaling

from .scores import assert_weights, paths, softmax, two_keys

TOLERANCE = 1e-13

# name: width, raw score beside 0, the argument, the right factor
FACTORS = {
    "scaled before": (64, 8.0, 1.0, 1.0),
    "root switched off": (64, 8.0, 1.0, 1.0),
    "divided by the layer": (64, 8.0, 0.03125, 1 / 32),
    "default on every path": (64, 16.0, None, 1 / 8),
    "one is meant": (256, 4.0, 1.0, 1.0),
    "width of the head": (64, 24.0, None, 1 / 8),
    "Gemma-2-9B": (256, 40.0, 256**-0.5, 1 / 16),
    "Gemma-2-27B": (128, 40.0, 144**-0.5, 1 / 12),
    "Gemma-3-27B": (128, 40.0, 168**-0.5, 1 / math.sqrt(168)),
    "DeepSeek-V2": (192, 30.0, 0.11472137989, 0.11472137989),
    "not divided by the reciprocal": (192, 2.0, None, 1 / math.sqrt(192)),
    "folded into the init": (64, 8.0, 1.0, 1.0),
    "unset": (64, 8.0, None, 1 / 8),
    "zero": (64, 8.0, 0.0, 0.0),
    "negative": (64, 8.0, -0.5, -0.5),
    "layer number and back": (64, 800.0, None, 1 / 8),
    "no factor in T5 and GPT-Neo": (64, 3.0, 1.0, 1.0),
}


@pytest.mark.parametrize("name", FACTORS)
def test_the_factor_is_applied_once_and_is_the_one_asked_for(name):
    dim, raw, scale, right = FACTORS[name]
    expected = softmax([right * raw, 0.0])
    assert_weights(*two_keys(raw, dim), expected, scale=scale, tolerance=TOLERANCE)


@pytest.mark.parametrize("scale", [0.0, -0.0, -1.0, -0.125, 1e-30])
def test_a_factor_that_is_not_positive_leaves_masks_alone(scale):
    query, key = two_keys(4.0, 2)
    # the mask would become NaN or +inf if it were scaled
    assert_weights(query, key, [1.0, 0.0], scale=scale, attn_mask=[[True, False]])
    assert_weights(query, key, [0.0, 1.0], scale=scale, attn_mask=[[-math.inf, 0.0]])
    right = softmax([4 * scale + 1, -2.0])
    bias = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    assert_weights(query, key, right, scale=scale, attn_mask=bias, tolerance=TOLERANCE)


@pytest.mark.parametrize("width", [2, 3])  # with equal widths PyTorch takes its fused kernel
@pytest.mark.parametrize("scale", [0.0, -1.0, 0.5])
@pytest.mark.parametrize("chunk_size", [None, 1, 2])
def test_a_causal_mask_is_not_scaled(width, scale, chunk_size):
    x = torch.tensor([[1.0, 0.0], [2.0, 0.0]], dtype=torch.float64)[None, None]
    v = torch.eye(2, width, dtype=torch.float64)[None, None]
    if chunk_size is None:
        out = scaling.scaled_dot_product_attention(x, x, v, is_causal=True, scale=scale)
    else:
        out = scaling.online_attention(x, x, v, is_causal=True, scale=scale, chunk_size=chunk_size)
    expected = np.stack([[1.0, 0.0], softmax([2 * scale, 4 * scale])])
    np.testing.assert_allclose(out[0, 0, :, :2].numpy(), expected, rtol=0, atol=TOLERANCE)


def test_absorbing_a_matrix_changes_the_width_and_not_the_weights():
    rng = np.random.default_rng(29)
    w, latent = rng.integers(-1, 2, (3, 8)), rng.integers(-1, 2, (2, 8))
    q, q_rope, k_rope = np.array([2, 1, 2]), np.array([1]), np.array([[1], [-1]])
    raw = [
        math.fsum(q * (w @ c)) + math.fsum(q_rope * r) for c, r in zip(latent, k_rope, strict=True)
    ]
    expected = softmax([z / 2 for z in raw])
    naive = np.hstack([q, q_rope]), np.hstack([latent @ w.T, k_rope])
    absorbed = np.hstack([q @ w, q_rope]), np.hstack([latent, k_rope])
    assert_weights(*naive, expected)
    assert_weights(*absorbed, expected, scale=0.5)
    wrong = softmax([z / 3 for z in raw])
    assert_weights(*absorbed, wrong)  # the default goes by the width it sees


def test_yarn_in_the_scale_and_in_the_rotary_table():
    # values computed by hand from 0.1 · m · ln s + 1
    for m, square, right in ((0.707, 1.589626, 0.1147214), (1.0, 1.873854, 0.1352338)):
        factor = scaling.yarn_attention_factor(40.0, m)
        assert factor**2 == pytest.approx(square, abs=5e-7)
        assert factor**2 * 192**-0.5 == pytest.approx(right, abs=5e-8)
    plain = scaling.yarn_attention_factor(16)
    assert plain == pytest.approx(1.277259, abs=5e-7)
    query, key = two_keys(4.0, 4)

    def turned(x):
        x = torch.as_tensor(np.atleast_2d(x))
        return scaling.apply_rotary(x, torch.zeros(len(x)), attention_factor=plain)

    expected = softmax([2 * (0.1 * math.log(16) + 1) ** 2, 0.0])
    assert_weights(turned(query), turned(key), expected)


def test_one_key_hides_every_factor():
    query, key = two_keys(30.0, 192)
    for scale in (None, 0.0, 1.0, -3.0):
        assert_weights(query, key[:1], [1.0], scale=scale)


def test_two_fourth_roots_are_one_root():
    query, key = two_keys(64.0, 64)
    quarter = 64**-0.25
    assert_weights(query * quarter, key * quarter, softmax([8.0, 0.0]), scale=1.0)


def test_half_precision_needs_no_detour_through_the_layer_number():
    # q·k = 1e6 does not fit into float16, nor does 1e6/8; the logits are 125,000 and 124,992
    query = [1000.0, 1.0]
    key = [[1000.0, 0.0], [1000.0, -64.0]]
    assert_weights(
        query, key, softmax([8.0, 0.0]), dtype=torch.float16, scale=0.125, tolerance=2**-11
    )


@given(
    st.integers(1, 300),
    st.none() | st.floats(-4, 4, allow_subnormal=False),
    st.floats(-8, 8),
)
def test_the_measured_factor_is_the_one_asked_for(dim, scale, raw):
    right = raw * (1 / math.sqrt(dim) if scale is None else scale)
    for name, found in paths(*two_keys(raw, dim), scale=scale).items():
        np.testing.assert_allclose(
            found, softmax([right, 0.0]), rtol=0, atol=TOLERANCE, err_msg=name
        )


@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf])
def test_what_is_no_factor_is_refused(scale):
    with pytest.raises(ValueError, match="scale"):
        paths(*two_keys(1.0, 4), scale=scale)
