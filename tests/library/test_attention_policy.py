"""The library's policy for attention, over drawn shapes, formats, masks and chunkings.

What is masked is of no account, whatever it holds; masks and biases are neither scaled nor capped;
a scale of zero or below means what it says; half precision is computed in float32. All against the
reference in NumPy, which sees the inputs in float64.
"""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_scaling import check_attention, explicit_attention, online_attention

from . import reference
from .attention_cases import inputs, masks

# By how much results may differ. |z| ≤ 2·2·5·1 + 2 = 22 and |v| ≤ 2: a logit is exact to 8·22 u,
# a weight to twice that, the result to 2·2·8·22 u < 800 u and its own rounding to ũ·2.
TOLERANCES = {
    torch.float64: 800 * 2.0**-53,
    torch.float32: 800 * 2.0**-24,
    torch.bfloat16: 800 * 2.0**-24 + 2 * 2.0**-8,
    torch.float16: 800 * 2.0**-24 + 2 * 2.0**-11,
}

drawn = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32 - 1),
        "dtype": st.sampled_from(list(TOLERANCES)),
        "mask": st.sampled_from(["boolean", "additive"]),
        "scale": st.none() | st.sampled_from([0.0, -1.0, -0.3, 1.0]),
        "softcap": st.none() | st.sampled_from([1.0, 6.0]),
        "sink": st.none() | st.floats(-3, 3),
        "chunk": st.none() | st.integers(1, 7),
        "dead_row": st.booleans(),
    }
)


def call(drawn_case, tensors, keep, bias):
    chunk = drawn_case["chunk"]
    attention = explicit_attention if chunk is None else partial(online_attention, chunk_size=chunk)
    sink = drawn_case["sink"]
    return attention(
        *tensors,
        keep if drawn_case["mask"] == "boolean" else bias,
        scale=drawn_case["scale"],
        softcap=drawn_case["softcap"],
        sinks=None if sink is None else torch.full((4,), sink, dtype=torch.float64),
    )


@given(drawn)
def test_equals_the_reference_in_every_format(drawn_case):
    dtype = drawn_case["dtype"]
    tensors = inputs(drawn_case["seed"], dtype=dtype)
    keep, bias = masks(drawn_case["seed"], dtype=dtype, dead_row=drawn_case["dead_row"])
    got = call(drawn_case, tensors, keep, bias)
    assert got.dtype == dtype
    sink = drawn_case["sink"]
    wide = bias.double().masked_fill(~keep, 0.0) if drawn_case["mask"] == "additive" else None
    expected, _ = reference.attention(
        *(x.double().numpy() for x in tensors),
        keep=keep.numpy(),
        bias=None if wide is None else wide.numpy(),
        scale=drawn_case["scale"],
        softcap=drawn_case["softcap"],
        sinks=None if sink is None else np.full(4, sink),
    )
    np.testing.assert_allclose(got.double().numpy(), expected, rtol=0, atol=TOLERANCES[dtype])


@given(drawn, st.sampled_from([math.nan, math.inf, -math.inf, "large", "huge"]))
def test_what_hides_behind_a_mask_is_of_no_account(drawn_case, poison):
    """Keys and values that no query sees change no bit of the results or of the gradients."""
    dtype = drawn_case["dtype"]
    if isinstance(poison, str):
        poison = torch.finfo(dtype).max / (1 if poison == "huge" else 16)
    q, k, v = inputs(drawn_case["seed"], dtype=dtype)
    keep, bias = masks(drawn_case["seed"], dtype=dtype, dead_row=drawn_case["dead_row"])
    hidden = torch.arange(6) % 3 == 1
    keep = keep & ~hidden
    bias = bias.masked_fill(hidden, -math.inf)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])  # inf − inf in q·k where products overflow
    results = []
    for key, value in (
        (k, v),
        (
            torch.where(hidden[:, None], (poison * signs).to(dtype), k),
            torch.where(hidden[:, None], torch.tensor(poison).to(dtype), v),
        ),
    ):
        leaves = [x.clone().requires_grad_() for x in (q, key, value)]
        output = call(drawn_case, leaves, keep, bias)
        gradients = torch.autograd.grad(output.double().cos().sum(), leaves)
        results.append((output.detach(), *gradients))
    for clean, dirty in zip(*results, strict=True):
        assert clean.isfinite().all()
        # another summation order where the slow, pairwise path is taken
        torch.testing.assert_close(dirty, clean, rtol=0, atol=64 * TOLERANCES[dtype])


@pytest.mark.parametrize("attention", [explicit_attention, online_attention])
def test_masked_products_that_overflow_reach_no_gradient_through_the_cap(attention):
    """q·k = inf − inf is NaN in float32, of finite inputs."""
    q = torch.full((1, 2), 1e30)
    k = torch.tensor([[1e-30, 0.0], [1e30, -1e30]])
    leaves = [x.requires_grad_() for x in (q, k, torch.ones(2, 1))]
    keep = torch.tensor([[True, False]])
    output = attention(*leaves, keep, softcap=2.0)
    assert output.item() == 1
    assert all(g.isfinite().all() for g in torch.autograd.grad(output.sum(), leaves))


@pytest.mark.parametrize("chunk", [None, 1, 2, 5])
def test_the_conformance_check_finds_nothing_at_all(chunk):
    attention = explicit_attention if chunk is None else partial(online_attention, chunk_size=chunk)
    report = check_attention(attention, examples=2, dtypes=list(TOLERANCES), seed=1)
    assert not report.findings, str(report)
    assert not report.refused
    assert not report.not_applicable
