"""LayerNorm, RMSNorm and QK-norm: an exactly summed reference, torch, and their laws."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from attention_scaling import attention_logits, l2_norm, layer_norm, qk_norm, rms_norm

from .reference import normalise

#: Numbers in [-3, 3], 2 ≤ d ≤ 16, spread above 1e-2 or so: x − μ is exact to 16·2⁻⁵³·3 = 5e-15,
#: which a spread of 1e-2 magnifies to 5e-13.
NEAR = 1e-12
vectors = st.tuples(st.integers(0, 2**32 - 1), st.integers(2, 16)).map(
    lambda drawn: np.random.default_rng(drawn[0]).uniform(-3, 3, drawn[1])
)
epsilons = st.sampled_from([0.0, 1e-6, 1e-5, 0.1])


def t(array):
    return torch.tensor(array, dtype=torch.float64)


@given(vectors, epsilons)
def test_equal_the_reference(x, eps):
    assert layer_norm(t(x), eps=eps).numpy() == pytest.approx(
        normalise(x, eps, centre=True), abs=NEAR
    )
    assert rms_norm(t(x), eps=eps).numpy() == pytest.approx(
        normalise(x, eps, centre=False), abs=NEAR
    )
    expected = normalise(x, eps / len(x), centre=False) / math.sqrt(len(x))
    assert l2_norm(t(x), eps).numpy() == pytest.approx(expected, abs=NEAR)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_equal_torch(dtype):
    generator = torch.Generator().manual_seed(0)
    x = (3 * torch.randn(4, 5, 32, generator=generator) + 1).to(dtype)
    weight, bias = (torch.randn(32, generator=generator).to(dtype) for _ in range(2))
    # one step of the format at results up to 8, two for the orders of rounding
    near = {torch.float64: 1e-14, torch.float32: 4e-6}.get(dtype, 16 * torch.finfo(dtype).eps)
    for mine, other in (
        (layer_norm(x, weight, bias), functional.layer_norm(x, (32,), weight, bias)),
        (layer_norm(x), functional.layer_norm(x, (32,))),
        (rms_norm(x, weight, 1e-6), functional.rms_norm(x, (32,), weight, 1e-6)),
        (rms_norm(x), functional.rms_norm(x, (32,), eps=1e-6)),
    ):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine, other, rtol=0, atol=near)


def test_half_precision_is_computed_in_float32_and_rounded_once():
    x = (300 * torch.randn(3, 64, generator=torch.Generator().manual_seed(1))).half()
    for function in (layer_norm, rms_norm, l2_norm):
        assert torch.equal(function(x), function(x.float()).half())  # squares overflow float16


@given(vectors, epsilons)
def test_layer_norm_has_mean_zero_and_a_mean_square_just_below_one(x, eps):
    y = layer_norm(t(x), eps=eps).numpy()
    assert y.mean() == pytest.approx(0, abs=NEAR)
    variance = x.var()
    assert (y**2).mean() == pytest.approx(variance / (variance + eps), abs=NEAR)
    if eps:
        assert (y**2).mean() < 1


@given(vectors, st.floats(-5, 5), st.floats(0.1, 10))
def test_what_is_not_seen(x, shift, factor):
    assert layer_norm(t(factor * x + shift), eps=0.0).numpy() == pytest.approx(
        layer_norm(t(x), eps=0.0).numpy(), abs=100 * NEAR
    )
    assert rms_norm(t(factor * x), eps=0.0).numpy() == pytest.approx(
        rms_norm(t(x), eps=0.0).numpy(), abs=NEAR
    )
    assert rms_norm(t(-x)).numpy() == pytest.approx(-rms_norm(t(x)).numpy(), abs=0)


@given(vectors)
def test_rms_norm_is_layer_norm_if_and_only_if_the_mean_is_zero(x):
    centred = x - x.mean()
    assert rms_norm(t(centred), eps=1e-5).numpy() == pytest.approx(
        layer_norm(t(centred)).numpy(), abs=NEAR
    )
    assert layer_norm(t(x)).numpy() == pytest.approx(layer_norm(t(centred)).numpy(), abs=NEAR)
    shifted = centred + 1.0
    difference = rms_norm(t(shifted), eps=1e-5) - layer_norm(t(shifted))
    assert difference.abs().max() > 1e-2


@given(vectors)
def test_normalising_twice_changes_nothing(x):
    for function in (rms_norm, layer_norm, l2_norm):
        once = function(t(x), eps=0.0)
        assert function(once, eps=0.0).numpy() == pytest.approx(once.numpy(), abs=NEAR)


def test_eps_stands_inside_the_root():
    x = torch.full((4,), 1e-3, dtype=torch.float64)
    assert rms_norm(x, eps=1e-6).tolist() == pytest.approx([math.sqrt(0.5)] * 4, rel=1e-12)
    assert pytest.approx(0.999, abs=1e-5) == 1e-3 / (1e-3 + 1e-6)  # the rival, outside
    pair = t([-1e-3, 1e-3])
    assert layer_norm(pair, eps=3e-6).tolist() == pytest.approx([-0.5, 0.5], rel=1e-12)
    assert l2_norm(t([3e-3, 4e-3]), eps=75e-6).tolist() == pytest.approx([0.3, 0.4], rel=1e-12)
    for function in (layer_norm, rms_norm, l2_norm):
        assert (function(torch.zeros(4)) == 0).all()


def test_a_constant_vector_becomes_the_bias():
    """LayerNorm, as in GPT-2 and GPT-3; RMSNorm would give gain times sign."""
    bias = torch.tensor([0.5, -1.0, 2.0])
    assert torch.equal(layer_norm(torch.full((3,), 7.0), torch.ones(3), bias), bias)
    assert rms_norm(torch.full((3,), -7.0)).tolist() == pytest.approx([-1, -1, -1])


def test_gradients():
    x = t(np.random.default_rng(0).uniform(-2, 2, (2, 5))).requires_grad_()
    weight, bias = t([1.0, 2, 3, 4, 5]).requires_grad_(), torch.ones(5).double().requires_grad_()
    assert torch.autograd.gradcheck(layer_norm, (x, weight, bias))
    assert torch.autograd.gradcheck(rms_norm, (x, weight))
    assert torch.autograd.gradcheck(l2_norm, (x,))


# --- q and k --------------------------------------------------------------------------------


def heads(seed, query=(2, 4, 3, 8), key=(2, 2, 5, 8)):
    rng = np.random.default_rng(seed)
    return t(10 ** rng.uniform(-2, 3) * rng.standard_normal(query)), t(rng.standard_normal(key))


@given(st.integers(0, 2**32 - 1))
def test_bounds_on_the_logits(seed):
    q, k = heads(seed, key=(2, 4, 5, 8))
    for kind in ("rms", "layer"):
        normal_q, normal_k = qk_norm(q, k, kind=kind)
        assert attention_logits(normal_q, normal_k).abs().max() <= math.sqrt(8)  # with 1/√d
        assert (normal_q @ normal_k.mT).abs().max() <= 8
    normal_q, normal_k = qk_norm(q, k, kind="l2")
    assert (normal_q @ normal_k.mT).abs().max() <= 1


def test_bounds_are_reached_by_aligned_vectors():
    q = t([[3.0, -1.0, 2.0, 5.0]])
    for kind, limit in (("rms", 2.0), ("layer", 2.0), ("l2", 0.5)):
        normal, same = qk_norm(q, 7 * q, kind=kind, eps=0.0)
        assert attention_logits(normal, same).item() == pytest.approx(limit, rel=1e-12)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["rms", "layer", "l2"]))
def test_per_head_is_the_norm_of_each_head(seed, kind):
    q, k = heads(seed)
    single = {"rms": rms_norm, "layer": layer_norm, "l2": l2_norm}[kind]
    normal_q, normal_k = qk_norm(q, k, kind=kind, eps=1e-6)
    assert torch.equal(normal_q, single(q, eps=1e-6))
    assert torch.equal(normal_k, single(k, eps=1e-6))


@given(st.integers(0, 2**32 - 1), st.sampled_from(["rms", "layer"]))
def test_full_width_is_the_norm_of_the_projection_before_the_split(seed, kind):
    q, k = heads(seed)
    weights = [t(np.random.default_rng(seed).uniform(0.5, 2, n)) for n in (32, 16)]
    single = {"rms": rms_norm, "layer": lambda x, w, eps: layer_norm(x, w, eps=eps)}[kind]
    for x, normal, weight in zip(
        (q, k), qk_norm(q, k, *weights, kind=kind, full_width=True), weights, strict=True
    ):
        for batch, token in np.ndindex(x.shape[0], x.shape[2]):
            projection = torch.cat(list(x[batch, :, token]))  # head after head
            expected = single(projection, weight, 1e-6)
            assert torch.equal(torch.cat(list(normal[batch, :, token])), expected)


def test_per_head_and_full_width_differ_for_unequal_heads():
    q = t([[[3.0, 3.0]], [[4.0, 4.0]]])  # (H = 2, L = 1, E = 2)
    per_head, _ = qk_norm(q, q, eps=0.0)
    full, _ = qk_norm(q, q, full_width=True, eps=0.0)
    assert per_head.flatten().tolist() == pytest.approx([1, 1, 1, 1], rel=1e-12)
    expected = [3 / math.sqrt(12.5)] * 2 + [4 / math.sqrt(12.5)] * 2
    assert full.flatten().tolist() == pytest.approx(expected, rel=1e-12)


def test_gains_multiply_after_the_norm():
    q, k = heads(3)
    weights = t(np.linspace(0.5, 2, 8)), t(np.linspace(-1, 1, 8))
    plain, gained = qk_norm(q, k), qk_norm(q, k, *weights)
    for before, after, weight in zip(plain, gained, weights, strict=True):
        assert torch.equal(before * weight, after)
