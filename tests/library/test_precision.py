"""Scores in low precision against PyTorch's own half-precision operations, and their thresholds."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_scaling import (
    FORMATS,
    PLACEMENTS,
    Placement,
    attention_logits,
    overflow_threshold,
    scaled_scores,
    softmax,
)

HALVES = (torch.float16, torch.bfloat16)


def real_scores(q, k, placement, scale):
    """The same placement in PyTorch's half precision, operation by operation."""
    if placement == "after_product":
        return (q @ k.mT) * scale
    if placement == "on_query":
        return (q * scale) @ k.mT
    if placement == "on_both":
        return (q * scale**0.5) @ (k * scale**0.5).mT
    if placement == "in_accumulator":
        nothing = torch.zeros((), dtype=q.dtype)
        return torch.baddbmm(nothing, q, k.mT, beta=0, alpha=scale)
    return q.float() @ k.float().mT * scale


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("scale", [0.25, 64**-0.5, 128**-0.5])
@pytest.mark.parametrize("size", [1, 40])
def test_equals_torch_bit_by_bit_where_sums_are_exact(placement, dtype, scale, size):
    """One coordinate: the sum is one product, exact in float32, and no order of adding matters."""
    generator = torch.Generator().manual_seed(0)
    q = (size * torch.randn(3, 40, 1, generator=generator)).to(dtype)
    k = (size * torch.randn(3, 50, 1, generator=generator)).to(dtype)
    real = real_scores(q, k, placement, scale)
    assert torch.equal(scaled_scores(q, k, placement, dtype, scale=scale), real.float())


@pytest.mark.parametrize("placement", ["after_product", "on_query", "on_both"])
@pytest.mark.parametrize("dtype", HALVES)
def test_equals_torch_to_one_step_where_the_order_matters(placement, dtype):
    generator = torch.Generator().manual_seed(1)
    q, k = (3 * torch.randn(40, 128, generator=generator) for _ in range(2))
    real = real_scores(q.to(dtype), k.to(dtype), placement, 128**-0.5).float()
    model = scaled_scores(q, k, placement, dtype)
    # Sums of 128 float32 products, wrong by 128·2⁻²⁴ of their largest partial sum, can fall on the
    # other side of a rounding boundary: one step of the format, or two roundings of it.
    step = 2 * torch.finfo(dtype).eps * real.abs()
    assert ((model - real).abs() <= step + 1e-3).all()
    assert (model == real).float().mean() > 0.98


@pytest.mark.parametrize("dtype", HALVES)
def test_integers_are_exact_and_overflow_where_torch_does(dtype):
    """Integers below 2²⁴ add up exactly in any order, also beyond float16's range."""
    generator = torch.Generator().manual_seed(2)
    q, k = (torch.randint(-60, 61, (64, 64), generator=generator).to(dtype) for _ in range(2))
    k[:8] = q[:8]  # aligned rows overflow float16: 64·35² = 78,400
    real = q @ k.mT
    model = scaled_scores(q, k, "after_product", dtype, scale=1.0)
    assert torch.equal(model, real.float())
    assert real.isinf().any() == (dtype == torch.float16)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_float32_has_nothing_to_round(placement):
    generator = torch.Generator().manual_seed(3)
    q, k = (torch.randn(2, 5, 64, generator=generator) for _ in range(2))
    # |z| < 6; the scale rounds q or z to 2⁻²⁴ relatively, the sum of 64 products to 64·2⁻²⁴·8.
    torch.testing.assert_close(
        scaled_scores(q, k, placement, "float32"), attention_logits(q, k), rtol=0, atol=5e-5
    )


@given(st.sampled_from(sorted(PLACEMENTS)), st.integers(0, 2**32 - 1))
def test_placements_are_one_number_in_real_arithmetic(placement, seed):
    """Half precision differs from it by its roundings: at most four, each of 2⁻¹¹."""
    rng = np.random.default_rng(seed)
    q, k = (torch.tensor(rng.uniform(1, 2, (3, 16)), dtype=torch.float16) for _ in range(2))
    scores = scaled_scores(q, k, placement, torch.float16)
    exact = q.double() @ k.double().mT / 4
    assert (scores.double() / exact - 1).abs().max() < 4 * 2.0**-11


def test_the_product_overflows_before_the_division():
    q = torch.full((1, 64), 32.0)
    scores = {name: float(scaled_scores(q, q, name, "float16")) for name in PLACEMENTS}
    assert scores == {
        "after_product": math.inf,
        "on_query": 8192,
        "on_both": 8192,
        "in_accumulator": 8192,
        "float32_scores": 8192,
    }
    for name in PLACEMENTS:  # 31²·64 = 61504 fits
        q = torch.full((1, 64), 31.0)
        assert scaled_scores(q, q, name, "float16").item() == pytest.approx(7688, rel=1e-3)
    row = torch.tensor([scores["after_product"], 3.0])
    assert softmax(row).isnan().all()


def test_bfloat16_rounds_where_float16_overflows():
    k = torch.tensor([[256.0, 1.0], [256.0, 0.0]])
    q = torch.tensor([[1.0, 1.0]])
    scores = scaled_scores(q, k, "after_product", torch.bfloat16, scale=1.0)
    assert scores.tolist() == [[256, 256]]  # 257 has no number of its own
    kept = scaled_scores(q, k, "float32_scores", torch.bfloat16, scale=1.0)
    assert kept.tolist() == [[257, 256]]


def test_exact_boundary():
    """240·273 = 65520 ties to infinity; one less is 65504."""
    q, k = torch.tensor([[240.0, -1.0]]), torch.tensor([[273.0, 0.0], [273.0, 1.0]])
    scores = scaled_scores(q, k, "after_product", "float16", scale=1.0)
    assert scores.tolist() == [[math.inf, 65504]]
    assert torch.equal(scores, (q.half() @ k.half().T).float())


def test_accumulation_in_the_format():
    half = torch.full((32,), 60.0)
    q, k = torch.cat([half, half])[None], torch.cat([half, -half])[None]  # the sum is 0
    assert scaled_scores(q, k, "after_product", "float16") == 0
    narrow = scaled_scores(q, k, "after_product", "float16", accumulate="format")
    assert narrow == math.inf  # 19 products of 3600 are beyond the range, and infinity stays
    # Small products are lost against a large sum: 2048 + 1 = 2048.
    q = torch.ones(1, 4096)
    assert scaled_scores(q, q, "after_product", "float16", accumulate="format", scale=1.0) == 2048
    assert scaled_scores(q, q, "after_product", "float16", scale=1.0) == 4096


@given(st.integers(0, 2**32 - 1))
def test_accumulation_in_the_format_equals_a_loop(seed):
    rng = np.random.default_rng(seed)
    q, k = (rng.standard_normal((2, 9)).astype(np.float16) for _ in range(2))
    expected = np.zeros((2, 2), dtype=np.float16)
    for i, j in np.ndindex(2, 2):
        for x, y in zip(q[i], k[j], strict=True):
            expected[i, j] = np.float16(float(expected[i, j]) + float(x) * float(y))
    scores = scaled_scores(
        torch.tensor(q), torch.tensor(k), "after_product", "float16", scale=1.0, accumulate="format"
    )
    np.testing.assert_array_equal(scores.numpy(), expected.astype(np.float32))


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("layer", [4, 16])
def test_the_number_of_the_layer_is_multiplied_back(placement, layer):
    """Powers of two round nothing, nor do roots of powers of four: only the range can differ."""
    generator = torch.Generator().manual_seed(5)
    q, k = torch.randn(3, 16, generator=generator), torch.randn(4, 16, generator=generator)
    plain = scaled_scores(q, k, placement, "bfloat16", scale=0.25)
    divided = scaled_scores(q, k, placement, "bfloat16", scale=0.25, layer_number=layer)
    assert torch.equal(divided, plain)


def test_the_number_of_the_layer_keeps_deep_layers_in_range():
    q = torch.full((1, 64), 304.0)  # q·k/√d = 739328, and 46208 in layer 16
    assert scaled_scores(q, q, "in_accumulator", "float16").item() == math.inf
    assert scaled_scores(q, q, "in_accumulator", "float16", layer_number=16).item() == 739328
    # Stored before the scale, the product is out of range whatever comes later.
    assert scaled_scores(q, q, "after_product", "float16", layer_number=16).item() == math.inf


# --- thresholds -----------------------------------------------------------------------------


def test_known_thresholds():
    table = {
        64: {"after_product": 32.0, "on_query": 90.5},
        128: {"after_product": 22.6, "on_query": 76.1},
        512: {"after_product": 11.3, "on_query": 53.8},
    }
    for d, row in table.items():
        for placement, value in row.items():
            assert overflow_threshold(d, "float16", placement) == pytest.approx(value, abs=0.05)
        query = overflow_threshold(d, "float16", "on_query")
        assert overflow_threshold(d, "float16", "on_both") == pytest.approx(query, rel=1e-15)
        assert overflow_threshold(d, "float16", "in_accumulator") == pytest.approx(query, rel=1e-15)
        assert overflow_threshold(d, "float16", "float32_scores") == math.inf
    assert overflow_threshold(64, "float16", "after_product") == math.sqrt(65520 / 64)
    # a scale above 1 overflows last, after it was applied; fp8 ends at 464
    assert overflow_threshold(4, "float16", "after_product", scale=30.0) == math.sqrt(65520 / 120)
    assert overflow_threshold(4, "float8_e4m3fn", "on_query", scale=0.5) == math.sqrt(464 / 2)
    # q itself overflows before the product of one tiny coordinate does
    assert overflow_threshold(1, "float16", "on_query", scale=1e6) == 65520 / 1e6


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(
    ("d", "scale"), [(1, None), (64, None), (512, None), (16, 0.01), (4, 30.0)]
)
def test_thresholds_separate_finite_from_overflow(fmt, placement, d, scale):
    """Just below it every number is finite, just above it the score is not: eps is the error."""
    fmt = FORMATS[fmt]
    threshold = overflow_threshold(d, fmt, placement, scale=scale)
    # q, its share of the scale, the sum and the score: four roundings of half a step each.
    margin = 2 * fmt.eps
    if threshold == math.inf:
        entries = torch.full((1, d), fmt.max)
        assert scaled_scores(entries, entries, placement, fmt, scale=scale).isfinite().all()
        return
    below = torch.full((1, d), threshold * (1 - margin))
    above = torch.full((1, d), threshold * (1 + margin))
    assert scaled_scores(below, below, placement, fmt, scale=scale).isfinite().all()
    if threshold * (1 + margin) < fmt.max:
        assert not scaled_scores(above, above, placement, fmt, scale=scale).isfinite().all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("placement", ["after_product", "on_query", "on_both"])
def test_thresholds_are_those_of_torch(dtype, placement):
    for d in (64, 128, 512):
        threshold = overflow_threshold(d, dtype, placement)
        for factor, finite in ((1 - 2 * torch.finfo(dtype).eps, True), (1.02, False)):
            q = torch.full((1, d), threshold * factor).to(dtype)
            assert real_scores(q, q, placement, d**-0.5).isfinite().item() == finite


def test_a_placement_of_ones_own():
    own = Placement("key", "fl(q·fl(s·k))", key_power=1.0)
    q = torch.full((1, 64), 32.0)
    assert scaled_scores(q, q, own, "float16").item() == 8192
    assert overflow_threshold(64, "float16", own) == overflow_threshold(64, "float16", "on_query")


def test_scale_none_is_the_default_and_shapes_broadcast():
    generator = torch.Generator().manual_seed(4)
    q, k = torch.randn(2, 1, 3, 64, generator=generator), torch.randn(4, 5, 64, generator=generator)
    scores = scaled_scores(q, k, "on_query", "bfloat16")
    assert scores.shape == (2, 4, 3, 5)
    assert scores.dtype == torch.float32
    assert torch.equal(scores, scaled_scores(q, k, "on_query", "bfloat16", scale=1 / 8))
    assert torch.equal(scores, scores.bfloat16().float())
    narrow = scaled_scores(q, k, "on_query", "bfloat16", accumulate="format")
    assert narrow.shape == scores.shape
