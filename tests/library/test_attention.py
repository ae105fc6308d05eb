"""Explicit attention against a row-by-row reference, against torch, and against its own laws.

Tolerance in float64. Inputs lie in [-2, 2], E ≤ 8 and |scale| ≤ 1, so |z| ≤ 32 and a logit is
exact to (E + 2)·2⁻⁵³·32 = 4e-14. exp turns this into a relative error of a weight, twice (numerator
and denominator), and |v| ≤ 2 and two implementations leave 4 · 2 · 4e-14 < 4e-13.
"""

import math

import numpy as np
import pytest
import torch
from attention_scaling import SCALE_RULES, attention_logits, default_scale, explicit_attention
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from . import reference

TOLERANCE = 1e-12


def assert_near(actual, expected, tolerance=TOLERANCE):
    torch.testing.assert_close(
        torch.as_tensor(actual), torch.as_tensor(expected), rtol=0, atol=tolerance, equal_nan=True
    )


def inputs(seed, query=(2, 4, 3, 5), keys=None, length=6, width=4, dtype=torch.float64):
    """Query (B, H, L, E), key and value with `keys` heads (as many as the query by default)."""
    rng = np.random.default_rng(seed)
    heads = query[1] if keys is None else keys
    shapes = (query, (query[0], heads, length, query[3]), (query[0], heads, length, width))
    return tuple(torch.tensor(rng.uniform(-2, 2, shape), dtype=dtype) for shape in shapes)


def masks(seed, shape=(2, 4, 3, 6), dtype=torch.float64, dead_row=False):
    """A boolean mask and an additive one with some -inf; each row keeps a key, or one does not."""
    rng = np.random.default_rng(seed + 1)
    keep = rng.random(shape) < 0.6
    keep[..., 0] |= ~keep.any(axis=-1)
    bias = rng.uniform(-2, 2, shape)
    if dead_row:
        keep[0, 0, 0] = False
    bias[~keep] = -math.inf
    return torch.tensor(keep), torch.tensor(bias, dtype=dtype)


cases = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32 - 1),
        "batch": st.integers(1, 2),
        "kv_heads": st.integers(1, 2),
        "group": st.integers(1, 3),
        "length": st.integers(1, 4),
        "keys": st.integers(1, 6),
        "dim": st.integers(1, 8),
        "width": st.integers(1, 4),
        "mask": st.sampled_from(["none", "boolean", "additive", "causal"]),
        "dead_row": st.booleans(),
        "scale": st.none() | st.floats(-1, 1),
    }
)


def build(case):
    """Tensors and keyword arguments of one drawn case, for us and for torch."""
    heads = case["kv_heads"] * case["group"]
    q, k, v = inputs(
        case["seed"],
        (case["batch"], heads, case["length"], case["dim"]),
        case["kv_heads"],
        case["keys"],
        case["width"],
    )
    shape = (case["batch"], heads, case["length"], case["keys"])
    keep, bias = masks(case["seed"], shape, dead_row=case["dead_row"])
    options = {"scale": case["scale"], "enable_gqa": True}
    if case["mask"] == "causal":
        options["is_causal"] = True
    elif case["mask"] != "none":
        options["attn_mask"] = keep if case["mask"] == "boolean" else bias
    return (q, k, v), options


@given(
    cases,
    st.none() | st.floats(0.5, 30),
    st.none() | st.floats(-3, 3),
    st.sampled_from(["zero", "uniform", "nan"]),
)
def test_equals_the_reference(case, softcap, sink, masked_rows):
    tensors, options = build(case)
    heads = tensors[0].shape[1]
    sinks = None if sink is None else torch.linspace(sink, sink + 1, heads, dtype=torch.float64)
    output, weights = explicit_attention(
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


@given(cases)
def test_equals_torch_in_value_and_gradient(case):
    (q, k, v), options = build(case)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    ours = explicit_attention(*leaves, **options)
    theirs = scaled_dot_product_attention(*leaves, **options)
    assert_near(ours.detach(), theirs.detach())
    upstream = torch.ones_like(ours)
    for mine, other in zip(
        torch.autograd.grad(ours, leaves, upstream),
        torch.autograd.grad(theirs, leaves, upstream),
        strict=True,
    ):
        # dq sums S terms with factors |k|, |v|, |scale| ≤ 2: 50 times the error of a weight.
        assert_near(mine, other, 1e-11)


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
def test_leading_dimensions_broadcast_as_in_torch(shapes):
    rng = np.random.default_rng(0)
    tensors = [torch.tensor(rng.uniform(-2, 2, shape)) for shape in shapes]
    mask = torch.tensor(rng.random(6) < 0.7)
    mask[0] = True
    for attn_mask in (None, mask[None, :]):
        ours = explicit_attention(*tensors, attn_mask)
        assert_near(ours, scaled_dot_product_attention(*tensors, attn_mask))


@pytest.mark.parametrize("shape", [(), (6,), (3, 1), (4, 1, 1), (2, 1, 3, 6)], ids=str)
def test_masks_broadcast(shape):
    q, k, v = inputs(0)
    mask = torch.ones(shape, dtype=torch.bool)
    if shape:
        mask.view(-1)[0] = False
    full = mask.expand(2, 4, 3, 6)
    assert_near(explicit_attention(q, k, v, mask), explicit_attention(q, k, v, full))
    k[..., 0, :] = math.nan  # the slow path for poisoned inputs broadcasts too
    if shape == (6,):
        assert explicit_attention(q, k, v, mask).isfinite().all()


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
    ids=str,
)
def test_gradcheck(options):
    leaves = [t.requires_grad_() for t in inputs(1)]
    assert torch.autograd.gradcheck(lambda *t: explicit_attention(*t, **options), leaves)


def test_gradients_reach_sinks_and_additive_masks():
    q, k, v = inputs(2)
    bias = masks(2)[1].requires_grad_()
    sinks = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    grads = torch.autograd.grad(explicit_attention(q, k, v, bias, sinks=sinks).sum(), (bias, sinks))
    assert all(grad.isfinite().all() and grad.any() for grad in grads)
    assert (grads[0][bias == -math.inf] == 0).all()
    assert torch.autograd.gradcheck(
        lambda s: explicit_attention(q, k, v, sinks=s), sinks.detach().requires_grad_()
    )


# --- laws -----------------------------------------------------------------------------------


def test_default_scale_is_one_over_the_root_of_the_head_dimension():
    q, k, v = inputs(4, (1, 1, 3, 8), length=5)
    assert default_scale(64) == 0.125
    assert default_scale(8) == pytest.approx(8**-0.5, rel=1e-15)
    assert_near(explicit_attention(q, k, v), explicit_attention(q, k, v, scale=8**-0.5))
    rival = explicit_attention(q, k, v, scale=1 / 8)
    assert (explicit_attention(q, k, v) - rival).abs().max() > 1e-2
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


@given(st.integers(0, 2**32 - 1))
def test_weights_are_a_distribution_over_the_kept_keys(seed):
    q, k, v = inputs(seed)
    keep, _ = masks(seed)
    output, weights = explicit_attention(q, k, v, keep, return_weights=True)
    assert_near(weights.sum(dim=-1), torch.ones(2, 4, 3, dtype=torch.float64))
    assert (weights[~keep] == 0).all()
    assert (weights[keep] > 0).all()
    low = torch.where(keep[..., None], v[:, :, None], math.inf).amin(dim=-2)
    high = torch.where(keep[..., None], v[:, :, None], -math.inf).amax(dim=-2)
    assert (output >= low - TOLERANCE).all()
    assert (output <= high + TOLERANCE).all()


@given(st.integers(0, 2**32 - 1), st.permutations(range(6)))
def test_order_of_the_keys_does_not_matter(seed, order):
    q, k, v = inputs(seed)
    _, bias = masks(seed)
    permuted = explicit_attention(q, k[:, :, order], v[:, :, order], bias[..., order])
    assert_near(permuted, explicit_attention(q, k, v, bias))


@given(st.integers(0, 2**32 - 1))
def test_a_vector_added_to_every_key_is_not_seen(seed):
    q, k, v = inputs(seed)
    shift = torch.tensor(np.random.default_rng(seed).uniform(-2, 2, 5))
    assert_near(explicit_attention(q, k + shift, v), explicit_attention(q, k, v))


@given(st.integers(0, 2**32 - 1))
def test_the_future_does_not_matter(seed):
    q, k, v = inputs(seed, (1, 2, 4, 5), length=4)
    before = explicit_attention(q, k, v, is_causal=True)
    k[..., 2:, :], v[..., 2:, :] = 7.0, -9.0
    after = explicit_attention(q, k, v, is_causal=True)
    assert torch.equal(before[..., :2, :], after[..., :2, :])
    assert not torch.equal(before[..., 2:, :], after[..., 2:, :])


def test_scale_means_what_it_says():
    q, k, v = inputs(5)
    mean = v.mean(dim=-2, keepdim=True).expand(2, 4, 3, 4)
    assert_near(explicit_attention(q, k, v, scale=0.0), mean)
    assert_near(explicit_attention(q, k, v, scale=-0.5), explicit_attention(-q, k, v, scale=0.5))
    _, weights = explicit_attention(q, k, v, scale=1e4, return_weights=True)
    assert torch.equal(weights.argmax(dim=-1), (q @ k.mT).argmax(dim=-1))
    assert_near(weights.amax(dim=-1), torch.ones(2, 4, 3, dtype=torch.float64))


def test_cap_acts_after_the_scale_and_before_the_mask():
    q = torch.tensor([[[2.0]]], dtype=torch.float64)
    k = torch.tensor([[[3.0], [0.0]]], dtype=torch.float64)
    v = torch.tensor([[[1.0], [0.0]]], dtype=torch.float64)

    def first_weight(**options):
        return float(explicit_attention(q, k, v, scale=0.5, softcap=2.0, **options))

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


@given(st.integers(0, 2**32 - 1), st.floats(-4, 4), st.floats(-1, 1))
def test_a_sink_is_a_key_without_value(seed, sink, scale):
    """Attention with one more key, whose logit is the sink, unscaled, and whose value is 0."""
    q, k, v = inputs(seed)
    keep, bias = masks(seed, dead_row=True)
    more_k = torch.cat([k, torch.zeros_like(k[..., :1, :])], dim=-2)  # its logit is 0 + its bias
    more_v = torch.cat([v, torch.zeros_like(v[..., :1, :])], dim=-2)
    more_bias = torch.cat([bias, torch.full_like(bias[..., :1], sink)], dim=-1)
    expected = scaled_dot_product_attention(q, more_k, more_v, more_bias, scale=scale)
    per_head = torch.full((4,), sink, dtype=torch.float64)
    for sinks in (sink, per_head):
        output, weights = explicit_attention(
            q, k, v, bias, scale=scale, sinks=sinks, return_weights=True
        )
        assert_near(output, expected)
        assert (weights.sum(dim=-1) < 1).all()
        assert (weights[~keep] == 0).all()
    assert (output[0, 0, 0] == 0).all()  # nothing but the sink
    assert_near(
        explicit_attention(q, k, v, bias, sinks=-math.inf), explicit_attention(q, k, v, bias)
    )


def test_sinks_go_to_their_heads():
    q, k, v = inputs(6)
    sinks = torch.tensor([-math.inf, -math.inf, 50.0, -math.inf], dtype=torch.float64)
    output = explicit_attention(q, k, v, sinks=sinks)
    plain = explicit_attention(q, k, v)
    assert output[:, 2].abs().max() < 1e-12
    assert_near(output[:, [0, 1, 3]], plain[:, [0, 1, 3]])


def test_grouped_queries_use_the_head_of_their_group():
    q, k, v = inputs(7, keys=2)
    output = explicit_attention(q, k, v, enable_gqa=True)
    for head in range(4):
        alone = explicit_attention(q[:, head], k[:, head // 2], v[:, head // 2])
        assert_near(output[:, head], alone)


# --- rows without a key, and masked entries that are not finite -------------------------------


@pytest.mark.parametrize("which", [0, 1], ids=["boolean", "additive"])
def test_rows_without_a_key(which):
    q, k, v = inputs(8)
    mask = masks(8, dead_row=True)[which]
    zero = explicit_attention(q, k, v, mask)
    uniform = explicit_attention(q, k, v, mask, masked_rows="uniform")
    nan = explicit_attention(q, k, v, mask, masked_rows="nan")
    assert (zero[0, 0, 0] == 0).all()
    assert_near(uniform[0, 0, 0], v[0, 0].mean(dim=0))
    assert nan[0, 0, 0].isnan().all()
    for other in (uniform, nan):
        other[0, 0, 0] = 0
        assert_near(other, zero)


def test_finite_masks_that_cover_a_row_give_the_mean_as_in_torch():
    q, k, v = inputs(9)
    mask = torch.zeros(3, 6, dtype=torch.float64)
    mask[0] = torch.finfo(torch.float64).min
    assert_near(explicit_attention(q, k, v, mask), scaled_dot_product_attention(q, k, v, mask))
    assert_near(explicit_attention(q, k, v, mask)[:, :, 0], v.mean(dim=-2))


def test_a_row_whose_logits_overflow_to_minus_infinity_counts_as_masked_as_in_torch():
    q = torch.full((1, 1, 1, 2), -1e30)
    k = torch.full((1, 1, 2, 2), 1e30)
    assert (explicit_attention(q, k, k) == 0).all()
    assert (scaled_dot_product_attention(q, k, k) == 0).all()


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("kind", ["boolean", "additive", "causal"])
@pytest.mark.parametrize("seen_by_the_last_query", [False, True])
def test_masked_entries_never_leak(kind, softcap, poison, seen_by_the_last_query):
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
    results = [explicit_attention(*leaves, softcap=softcap, **options) for leaves in (clean, dirty)]
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


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_masked_queries_never_leak(softcap):
    q, k, v = inputs(11)
    keep = torch.ones(2, 4, 3, 6, dtype=torch.bool)
    keep[:, :, 1] = False
    q[:, :, 1] = math.nan
    leaves = [t.requires_grad_() for t in (q, k, v)]
    output = explicit_attention(*leaves, keep, softcap=softcap)
    assert (output[:, :, 1] == 0).all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(output.sum(), leaves))


def test_torch_does_leak_which_is_where_we_differ():
    q, k, v = inputs(12)
    v[..., -1, :] = math.nan
    keep = torch.ones(3, 6, dtype=torch.bool)
    keep[:, -1] = False
    assert explicit_attention(q, k, v, keep).isfinite().all()
    assert scaled_dot_product_attention(q, k, v, keep).isnan().all()


def test_uniform_rows_see_what_they_average():
    q, k, v = inputs(13)
    v[0, 0, 5] = math.nan
    keep = masks(13, dead_row=True)[0]
    keep[..., 5] = False
    keep[..., 0] = True
    keep[0, 0, 0] = False
    output = explicit_attention(q, k, v, keep, masked_rows="uniform")
    assert output[0, 0, 0].isnan().all()
    output[0, 0, 0] = 0
    assert output.isfinite().all()


def test_unmasked_infinities_are_not_hidden():
    q, k, v = inputs(14)
    k[0, 0, 0] = math.inf
    assert explicit_attention(q, k, v)[0, 0].isnan().any()


# --- number formats -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32_and_rounded_once(dtype):
    q, k, v = (t.to(dtype) for t in inputs(15, (2, 4, 3, 64), keys=2))
    options = {"enable_gqa": True, "softcap": 5.0, "sinks": 0.5, "return_weights": True}
    for mine, wide in zip(
        explicit_attention(q, k, v, **options),
        explicit_attention(q.float(), k.float(), v.float(), **options),
        strict=True,
    ):
        assert mine.dtype == dtype
        assert torch.equal(mine, wide.to(dtype))
    large = torch.full((1, 4, 64), 200.0, dtype=torch.float16)  # q·k = 2.56e6 is beyond 65504
    assert explicit_attention(large, large, large).isfinite().all()


def test_float32_stays_float32():
    q, k, v = inputs(16, (2, 4, 3, 64), dtype=torch.float32)
    output = explicit_attention(q, k, v)
    assert output.dtype == torch.float32
    exact = explicit_attention(q.double(), k.double(), v.double())
    # |z| ≤ 32 (64·4/8): a logit is exact to 66·2⁻²⁴·32 = 1.3e-4 at worst, weights to twice that,
    # times |v| = 2. Rounding is random: the observed error is 1e-6.
    assert_near(output.double(), exact, 5e-4)
    assert not torch.equal(output.double(), exact)


@pytest.mark.parametrize("mask_dtype", [torch.float32, torch.float16])
def test_additive_masks_may_be_float32_or_the_dtype_of_the_query(mask_dtype):
    q, k, v = inputs(17, dtype=torch.float16)
    mask = torch.tensor([0.0, 1.0, -math.inf, 0.5, 0.0, -2.0], dtype=mask_dtype).expand(3, 6)
    # float16 has 11 bits: 2⁻¹⁰ of values up to 2.
    assert_near(
        explicit_attention(q, k, v, mask).float(),
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
}


@pytest.mark.parametrize("poisoned", [False, True])
def test_only_elementary_operations_run(poisoned):
    q, k, v = inputs(18, keys=2, dtype=torch.float16)
    if poisoned:
        k[..., -1, :], v[..., -1, :] = math.nan, math.inf
    keep, bias = masks(18, dtype=torch.float16)
    with Recorder() as recorder:
        for mask in (keep, bias):
            explicit_attention(
                q, k, v, mask, enable_gqa=True, softcap=3.0, sinks=0.1, masked_rows="uniform"
            )
        explicit_attention(q, k, v, is_causal=True, enable_gqa=True, masked_rows="nan")
    assert recorder.names <= MATRIX_AND_REDUCTION | ELEMENTWISE | LAYOUT
    assert {"exp", "amax", "sum"} <= recorder.names
    assert poisoned or "bmm" in recorder.names


def test_arguments_are_not_modified():
    q, k, v = inputs(19)
    _, bias = masks(19)
    copies = [t.clone() for t in (q, k, v, bias)]
    explicit_attention(q, k, v, bias, softcap=2.0, sinks=0.0)
    assert all(torch.equal(a, b) for a, b in zip((q, k, v, bias), copies, strict=True))
