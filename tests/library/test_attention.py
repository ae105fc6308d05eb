"""Explicit and online attention against a row-by-row reference, torch, and their own laws.

Inputs and the derivation of the tolerance stand in `attention_cases`.
"""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from attention_scaling import (
    SCALE_RULES,
    attention_logits,
    default_scale,
    explicit_attention,
    fused_attention,
    online_attention,
)

from . import reference
from .attention_cases import TOLERANCE, assert_near, build, cases, inputs, masks

#: Chunks of two keys: with the six keys of most cases, a first, a middle and a last one.
both = pytest.mark.parametrize(
    "attention",
    [explicit_attention, partial(online_attention, chunk_size=2)],
    ids=["explicit", "online"],
)


@both
@given(
    cases,
    st.none() | st.floats(0.5, 30),
    st.none() | st.floats(-3, 3),
    st.sampled_from(["zero", "uniform", "nan"]),
)
def test_equals_the_reference(attention, case, softcap, sink, masked_rows):
    tensors, options = build(case)
    heads = tensors[0].shape[1]
    sinks = None if sink is None else torch.linspace(sink, sink + 1, heads, dtype=torch.float64)
    output, weights = attention(
        *tensors,
        **options,
        softcap=softcap,
        sinks=sinks,
        masked_rows=masked_rows,
        return_weights=True,
    )
    mask = options.get("attn_mask")
    boolean = mask is not None and mask.dtype == torch.bool
    expected_output, expected_weights = reference.attention(
        *(t.numpy() for t in tensors),
        keep=mask.numpy() if boolean else None,
        bias=None if mask is None or boolean else mask.numpy(),
        causal=options.get("is_causal", False),
        scale=case["scale"],
        gqa=True,
        softcap=softcap,
        sinks=None if sinks is None else sinks.numpy(),
        masked_rows=masked_rows,
    )
    assert_near(weights, expected_weights)
    assert_near(output, expected_output)


def torch_attention(query, key, value, *, scale, is_causal=False, **options):
    """PyTorch's attention, whose own causal mask stands positive scales only; `fused_attention`."""
    if is_causal and scale is not None and scale <= 0:
        is_causal = False
        shape = (query.shape[-2], key.shape[-2])
        options["attn_mask"] = torch.ones(shape, dtype=torch.bool).tril()
    return scaled_dot_product_attention(
        query, key, value, scale=scale, is_causal=is_causal, **options
    )


@both
@given(cases)
def test_equals_torch_in_value_and_gradient(attention, case):
    (q, k, v), options = build(case)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    ours = attention(*leaves, **options)
    theirs = torch_attention(*leaves, **options)
    assert_near(ours.detach(), theirs.detach())
    upstream = torch.ones_like(ours)
    for mine, other in zip(
        torch.autograd.grad(ours, leaves, upstream),
        torch.autograd.grad(theirs, leaves, upstream),
        strict=True,
    ):
        # dq sums S terms with factors |k|, |v|, |scale| ≤ 2: 50 times the error of a weight.
        assert_near(mine, other, 1e-11)


@both
@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 5), (6, 5), (6, 4)),
        ((7, 3, 5), (7, 6, 5), (7, 6, 4)),
        ((2, 3, 5), (1, 6, 5), (2, 6, 4)),
        ((3, 5), (2, 1, 6, 5), (2, 1, 6, 4)),
        ((2, 2, 2, 3, 5), (2, 2, 2, 6, 5), (2, 2, 2, 6, 4)),
        ((2, 0, 5), (2, 6, 5), (2, 6, 4)),
    ],
    ids=str,
)
def test_leading_dimensions_broadcast_as_in_torch(attention, shapes):
    rng = np.random.default_rng(0)
    tensors = [torch.tensor(rng.uniform(-2, 2, shape)) for shape in shapes]
    mask = torch.tensor(rng.random(6) < 0.7)
    mask[0] = True
    for attn_mask in (None, mask[None, :]):
        ours = attention(*tensors, attn_mask)
        assert_near(ours, scaled_dot_product_attention(*tensors, attn_mask))


@both
@pytest.mark.parametrize("shape", [(), (6,), (3, 1), (4, 1, 1), (2, 1, 3, 6)], ids=str)
def test_masks_broadcast(attention, shape):
    q, k, v = inputs(0)
    mask = torch.ones(shape, dtype=torch.bool)
    if shape:
        mask.view(-1)[0] = False
    full = mask.expand(2, 4, 3, 6)
    assert_near(attention(q, k, v, mask), attention(q, k, v, full))
    k[..., 0, :] = math.nan  # the slow path for poisoned inputs broadcasts too
    if shape == (6,):
        assert attention(q, k, v, mask).isfinite().all()


@both
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": -0.7},
        {"softcap": 1.5},
        {"sinks": 0.3, "softcap": 2.0},
        {"attn_mask": masks(3, dead_row=True)[0]},
        {"attn_mask": masks(3, dead_row=True)[0], "masked_rows": "uniform"},
        {"attn_mask": masks(3, dead_row=True)[1], "softcap": 2.0},
    ],
    ids=lambda options: "+".join(options) or "plain",
)
def test_gradcheck(attention, options):
    leaves = [t.requires_grad_() for t in inputs(1)]
    assert torch.autograd.gradcheck(lambda *t: attention(*t, **options), leaves)


@both
def test_gradients_reach_sinks_and_additive_masks(attention):
    q, k, v = inputs(2)
    bias = masks(2)[1].requires_grad_()
    sinks = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    grads = torch.autograd.grad(attention(q, k, v, bias, sinks=sinks).sum(), (bias, sinks))
    assert all(grad.isfinite().all() and grad.any() for grad in grads)
    assert (grads[0][bias == -math.inf] == 0).all()
    assert torch.autograd.gradcheck(
        lambda s: attention(q, k, v, sinks=s), sinks.detach().requires_grad_()
    )


# --- laws -----------------------------------------------------------------------------------


@both
def test_default_scale_is_one_over_the_root_of_the_head_dimension(attention):
    q, k, v = inputs(4, (1, 1, 3, 8), length=5)
    assert default_scale(64) == 0.125
    assert default_scale(8) == pytest.approx(8**-0.5, rel=1e-15)
    assert_near(attention(q, k, v), attention(q, k, v, scale=8**-0.5))
    rival = attention(q, k, v, scale=1 / 8)
    assert (attention(q, k, v) - rival).abs().max() > 1e-2
    assert {name: rule(64) for name, rule in SCALE_RULES.items()} == {
        "sqrt_head_dim": 1 / 8,
        "head_dim": 1 / 64,
        "none": 1,
    }


@given(st.integers(0, 2**32 - 1), st.none() | st.floats(-1, 1))
def test_attention_logits(seed, scale):
    q, k, _ = inputs(seed)
    expected = np.einsum("bhie,bhje->bhij", q, k) * (5**-0.5 if scale is None else scale)
    assert_near(attention_logits(q, k, scale), expected)
    half = attention_logits(q.half(), k.half(), scale)
    assert torch.equal(half, attention_logits(q.half().float(), k.half().float(), scale).half())


@both
@given(st.integers(0, 2**32 - 1))
def test_weights_are_a_distribution_over_the_kept_keys(attention, seed):
    q, k, v = inputs(seed)
    keep, _ = masks(seed)
    output, weights = attention(q, k, v, keep, return_weights=True)
    assert_near(weights.sum(dim=-1), torch.ones(2, 4, 3, dtype=torch.float64))
    assert (weights[~keep] == 0).all()
    assert (weights[keep] > 0).all()
    low = torch.where(keep[..., None], v[:, :, None], math.inf).amin(dim=-2)
    high = torch.where(keep[..., None], v[:, :, None], -math.inf).amax(dim=-2)
    assert (output >= low - TOLERANCE).all()
    assert (output <= high + TOLERANCE).all()


@both
@given(st.integers(0, 2**32 - 1), st.permutations(range(6)))
def test_order_of_the_keys_does_not_matter(attention, seed, order):
    q, k, v = inputs(seed)
    _, bias = masks(seed)
    permuted = attention(q, k[:, :, order], v[:, :, order], bias[..., order])
    assert_near(permuted, attention(q, k, v, bias))


@both
@given(st.integers(0, 2**32 - 1))
def test_a_vector_added_to_every_key_is_not_seen(attention, seed):
    q, k, v = inputs(seed)
    shift = torch.tensor(np.random.default_rng(seed).uniform(-2, 2, 5))
    assert_near(attention(q, k + shift, v), attention(q, k, v))


@both
@given(st.integers(0, 2**32 - 1))
def test_the_future_does_not_matter(attention, seed):
    q, k, v = inputs(seed, (1, 2, 4, 5), length=4)
    before = attention(q, k, v, is_causal=True)
    k[..., 2:, :], v[..., 2:, :] = 7.0, -9.0
    after = attention(q, k, v, is_causal=True)
    assert torch.equal(before[..., :2, :], after[..., :2, :])
    assert not torch.equal(before[..., 2:, :], after[..., 2:, :])


@both
def test_scale_means_what_it_says(attention):
    q, k, v = inputs(5)
    mean = v.mean(dim=-2, keepdim=True).expand(2, 4, 3, 4)
    assert_near(attention(q, k, v, scale=0.0), mean)
    assert_near(attention(q, k, v, scale=-0.5), attention(-q, k, v, scale=0.5))
    _, weights = attention(q, k, v, scale=1e4, return_weights=True)
    assert torch.equal(weights.argmax(dim=-1), (q @ k.mT).argmax(dim=-1))
    assert_near(weights.amax(dim=-1), torch.ones(2, 4, 3, dtype=torch.float64))


@both
def test_cap_acts_after_the_scale_and_before_the_mask(attention):
    q = torch.tensor([[[2.0]]], dtype=torch.float64)
    k = torch.tensor([[[3.0], [0.0]]], dtype=torch.float64)
    v = torch.tensor([[[1.0], [0.0]]], dtype=torch.float64)

    def first_weight(**options):
        return float(attention(q, k, v, scale=0.5, softcap=2.0, **options))

    def sigmoid(x):
        return 1 / (1 + math.exp(-x))

    capped = 2 * math.tanh(0.5 * 6 / 2)
    assert first_weight() == pytest.approx(sigmoid(capped), abs=1e-15)
    assert abs(first_weight() - sigmoid(0.5 * 2 * math.tanh(6 / 2))) > 0.1  # cap before scale
    bias = torch.tensor([[[0.0, 7.0]]], dtype=torch.float64)
    assert first_weight(attn_mask=bias) == pytest.approx(sigmoid(capped - 7), abs=1e-15)
    masked = torch.tensor([[[0.0, -math.inf]]], dtype=torch.float64)
    assert first_weight(attn_mask=masked) == 1.0  # a capped mask would leak e⁻²
    assert first_weight(attn_mask=masked > -1) == 1.0


@both
@given(st.integers(0, 2**32 - 1), st.floats(-4, 4), st.floats(-1, 1))
def test_a_sink_is_a_key_without_value(attention, seed, sink, scale):
    """Attention with one more key, whose logit is the sink, unscaled, and whose value is 0."""
    q, k, v = inputs(seed)
    keep, bias = masks(seed, dead_row=True)
    more_k = torch.cat([k, torch.zeros_like(k[..., :1, :])], dim=-2)  # its logit is 0 + its bias
    more_v = torch.cat([v, torch.zeros_like(v[..., :1, :])], dim=-2)
    more_bias = torch.cat([bias, torch.full_like(bias[..., :1], sink)], dim=-1)
    expected = scaled_dot_product_attention(q, more_k, more_v, more_bias, scale=scale)
    per_head = torch.full((4,), sink, dtype=torch.float64)
    for sinks in (sink, per_head):
        output, weights = attention(q, k, v, bias, scale=scale, sinks=sinks, return_weights=True)
        assert_near(output, expected)
        assert (weights.sum(dim=-1) < 1).all()
        assert (weights[~keep] == 0).all()
    assert (output[0, 0, 0] == 0).all()  # nothing but the sink
    assert_near(attention(q, k, v, bias, sinks=-math.inf), attention(q, k, v, bias))


@both
def test_sinks_go_to_their_heads(attention):
    q, k, v = inputs(6)
    sinks = torch.tensor([-math.inf, -math.inf, 50.0, -math.inf], dtype=torch.float64)
    output = attention(q, k, v, sinks=sinks)
    plain = attention(q, k, v)
    assert output[:, 2].abs().max() < 1e-12
    assert_near(output[:, [0, 1, 3]], plain[:, [0, 1, 3]])


@both
def test_grouped_queries_use_the_head_of_their_group(attention):
    q, k, v = inputs(7, keys=2)
    output = attention(q, k, v, enable_gqa=True)
    for head in range(4):
        alone = attention(q[:, head], k[:, head // 2], v[:, head // 2])
        assert_near(output[:, head], alone)


# --- rows without a key, and masked entries that are not finite -------------------------------


@both
@pytest.mark.parametrize("which", [0, 1], ids=["boolean", "additive"])
def test_rows_without_a_key(attention, which):
    q, k, v = inputs(8)
    mask = masks(8, dead_row=True)[which]
    zero = attention(q, k, v, mask)
    uniform = attention(q, k, v, mask, masked_rows="uniform")
    nan = attention(q, k, v, mask, masked_rows="nan")
    assert (zero[0, 0, 0] == 0).all()
    assert_near(uniform[0, 0, 0], v[0, 0].mean(dim=0))
    assert nan[0, 0, 0].isnan().all()
    for other in (uniform, nan):
        other[0, 0, 0] = 0
        assert_near(other, zero)


@both
def test_finite_masks_that_cover_a_row_give_the_mean_as_in_torch(attention):
    q, k, v = inputs(9)
    mask = torch.zeros(3, 6, dtype=torch.float64)
    mask[0] = torch.finfo(torch.float64).min
    assert_near(attention(q, k, v, mask), scaled_dot_product_attention(q, k, v, mask))
    assert_near(attention(q, k, v, mask)[:, :, 0], v.mean(dim=-2))


@both
def test_a_row_whose_logits_overflow_to_minus_infinity_counts_as_masked_as_in_torch(attention):
    q = torch.full((1, 1, 1, 2), -1e30)
    k = torch.full((1, 1, 2, 2), 1e30)
    assert (attention(q, k, k) == 0).all()
    assert (scaled_dot_product_attention(q, k, k) == 0).all()


@both
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("kind", ["boolean", "additive", "causal"])
@pytest.mark.parametrize("seen_by_the_last_query", [False, True])
def test_masked_entries_never_leak(attention, kind, softcap, poison, seen_by_the_last_query):
    """Poison reaches exactly the rows that attend to it, in the result and in the gradients."""
    q, k, v = inputs(10)
    keep = torch.ones(2, 4, 3, 6, dtype=torch.bool).tril()
    options = {
        "boolean": {"attn_mask": keep},
        "additive": {"attn_mask": torch.zeros(keep.shape).double().masked_fill(~keep, -math.inf)},
        "causal": {"is_causal": True},
    }[kind]
    clean = [t.clone().requires_grad_() for t in (q, k, v)]
    start = 2 if seen_by_the_last_query else 3  # query i sees keys 0...i
    k[..., start:, :] = poison
    v[..., start:, :] = poison
    dirty = [t.clone().requires_grad_() for t in (q, k, v)]
    results = [attention(*leaves, softcap=softcap, **options) for leaves in (clean, dirty)]
    rows = slice(0, start)  # the queries that must not notice
    assert_near(results[1][:, :, rows].detach(), results[0][:, :, rows].detach())
    assert not results[1][:, :, start:].isfinite().any()
    (dq, dk, dv), (dq_dirty, dk_dirty, dv_dirty) = (
        torch.autograd.grad(result[:, :, rows].sum(), leaves)
        for result, leaves in zip(results, (clean, dirty), strict=True)
    )
    assert_near(dq_dirty[:, :, rows], dq[:, :, rows], 1e-11)
    if not seen_by_the_last_query:  # otherwise that row itself poisons every key it sees
        assert_near(dk_dirty, dk, 1e-11)
        assert_near(dv_dirty, dv, 1e-11)


@both
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_masked_queries_never_leak(attention, softcap):
    q, k, v = inputs(11)
    keep = torch.ones(2, 4, 3, 6, dtype=torch.bool)
    keep[:, :, 1] = False
    q[:, :, 1] = math.nan
    leaves = [t.requires_grad_() for t in (q, k, v)]
    output = attention(*leaves, keep, softcap=softcap)
    assert (output[:, :, 1] == 0).all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(output.sum(), leaves))


@both
def test_torch_does_leak_which_is_where_we_differ(attention):
    q, k, v = inputs(12)
    v[..., -1, :] = math.nan
    keep = torch.ones(3, 6, dtype=torch.bool)
    keep[:, -1] = False
    assert attention(q, k, v, keep).isfinite().all()
    assert scaled_dot_product_attention(q, k, v, keep).isnan().all()


@both
def test_uniform_rows_see_what_they_average(attention):
    q, k, v = inputs(13)
    v[0, 0, 5] = math.nan
    keep = masks(13, dead_row=True)[0]
    keep[..., 5] = False
    keep[..., 0] = True
    keep[0, 0, 0] = False
    output = attention(q, k, v, keep, masked_rows="uniform")
    assert output[0, 0, 0].isnan().all()
    output[0, 0, 0] = 0
    assert output.isfinite().all()


@both
def test_unmasked_infinities_are_not_hidden(attention):
    q, k, v = inputs(14)
    k[0, 0, 0] = math.inf
    assert attention(q, k, v)[0, 0].isnan().any()


# --- number formats -------------------------------------------------------------------------


@both
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32_and_rounded_once(attention, dtype):
    q, k, v = (t.to(dtype) for t in inputs(15, (2, 4, 3, 64), keys=2))
    options = {"enable_gqa": True, "softcap": 5.0, "sinks": 0.5, "return_weights": True}
    for mine, wide in zip(
        attention(q, k, v, **options),
        attention(q.float(), k.float(), v.float(), **options),
        strict=True,
    ):
        assert mine.dtype == dtype
        assert torch.equal(mine, wide.to(dtype))
    large = torch.full((1, 4, 64), 200.0, dtype=torch.float16)  # q·k = 2.56e6 is beyond 65504
    assert attention(large, large, large).isfinite().all()


@both
def test_float32_stays_float32(attention):
    q, k, v = inputs(16, (2, 4, 3, 64), dtype=torch.float32)
    output = attention(q, k, v)
    assert output.dtype == torch.float32
    exact = attention(q.double(), k.double(), v.double())
    # |z| ≤ 32 (64·4/8): a logit is exact to 66·2⁻²⁴·32 = 1.3e-4 at worst, weights to twice that,
    # times |v| = 2. Rounding is random: the observed error is 1e-6.
    assert_near(output.double(), exact, 5e-4)
    assert not torch.equal(output.double(), exact)


@both
@pytest.mark.parametrize("mask_dtype", [torch.float32, torch.float16])
def test_additive_masks_may_be_float32_or_the_dtype_of_the_query(attention, mask_dtype):
    q, k, v = inputs(17, dtype=torch.float16)
    mask = torch.tensor([0.0, 1.0, -math.inf, 0.5, 0.0, -2.0], dtype=mask_dtype).expand(3, 6)
    # float16 has 11 bits: 2⁻¹⁰ of values up to 2.
    assert_near(
        attention(q, k, v, mask).float(),
        scaled_dot_product_attention(q, k, v, mask).float(),
        4e-3,
    )


# --- what it is made of ---------------------------------------------------------------------


class Recorder(TorchDispatchMode):
    """Collects the names of all operations that torch executes."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


MATRIX_AND_REDUCTION = {"bmm", "mm", "amax", "sum", "all"}
ELEMENTWISE = {
    *("exp", "tanh", "mul", "div", "add", "sub", "rsub", "maximum", "where", "masked_fill"),
    *("eq", "ne", "abs", "bitwise_or", "bitwise_not", "bitwise_and", "isfinite"),
}
LAYOUT = {
    *("view", "_unsafe_view", "expand", "transpose", "unsqueeze", "detach", "clone", "_to_copy"),
    *("ones", "tril", "alias", "scalar_tensor", "empty", "fill_", "item", "_local_scalar_dense"),
    *("lift_fresh", "slice", "select", "index_select", "arange", "repeat_interleave", "full"),
    *("new_zeros", "cat"),
}


@both
@pytest.mark.parametrize("poisoned", [False, True])
def test_only_elementary_operations_run(attention, poisoned):
    q, k, v = inputs(18, keys=2, dtype=torch.float16)
    if poisoned:
        k[..., -1, :], v[..., -1, :] = math.nan, math.inf
    keep, bias = masks(18, dtype=torch.float16)
    options = {"enable_gqa": True, "return_weights": True}
    with Recorder() as recorder:
        for mask in (keep, bias):
            attention(q, k, v, mask, softcap=3.0, sinks=0.1, masked_rows="uniform", **options)
        attention(q, k, v, is_causal=True, masked_rows="nan", **options)
    assert recorder.names <= MATRIX_AND_REDUCTION | ELEMENTWISE | LAYOUT
    assert {"exp", "amax", "sum"} <= recorder.names
    assert poisoned or "bmm" in recorder.names


@both
def test_arguments_are_not_modified(attention):
    q, k, v = inputs(19)
    _, bias = masks(19)
    copies = [t.clone() for t in (q, k, v, bias)]
    attention(q, k, v, bias, softcap=2.0, sinks=0.0)
    assert all(torch.equal(a, b) for a, b in zip((q, k, v, bias), copies, strict=True))


@pytest.mark.parametrize("attention", [explicit_attention, online_attention])
def test_nan_for_an_empty_row_stays_in_that_row(attention):
    query, key, value = torch.ones(3, 2, 2, dtype=torch.float64).unbind()
    value = value.clone().requires_grad_()
    mask = torch.tensor([[False, False], [True, True]])
    output = attention(query, key, value, mask, masked_rows="nan")
    assert output[0].isnan().all()
    assert output[1].isfinite().all()
    (gradient,) = torch.autograd.grad(output[1].sum(), value)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("mask", [torch.ones(4).bool(), torch.tensor(True), torch.zeros(4)])
def test_masks_of_fewer_than_two_dimensions_broadcast(mask):
    query, key, value = torch.randn(3, 1, 2, 4, 8, generator=torch.Generator().manual_seed(1))
    for attention in (explicit_attention, online_attention, fused_attention):
        torch.testing.assert_close(attention(query, key, value, mask), attention(query, key, value))
