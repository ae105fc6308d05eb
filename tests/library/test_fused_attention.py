"""PyTorch's attention behind our signature, and the front door that chooses a path."""

import inspect
import math
from importlib import import_module

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_scaling import (
    explicit_attention,
    fused_attention,
    online_attention,
    scaled_dot_product_attention,
)

from .attention_cases import assert_near, build, cases, inputs, masks

# The package's attribute of this name is the function.
MODULE = import_module("attention_scaling.fused_attention")
PATHS = {
    "fused_attention": fused_attention,
    "online_attention": online_attention,
    "explicit_attention": explicit_attention,
}


def test_one_signature():
    expected = inspect.signature(explicit_attention).parameters
    for function in (fused_attention, scaled_dot_product_attention, online_attention):
        own = dict(inspect.signature(function).parameters)
        own.pop("chunk_size", None)
        assert own == dict(expected), function.__name__


def test_the_first_arguments_are_those_of_torch():
    ours = list(inspect.signature(explicit_attention).parameters)[:8]
    documented = "query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa"
    assert ours == documented.split(", ")
    theirs = torch.nn.functional.scaled_dot_product_attention.__doc__
    assert all(name in theirs for name in ours)


@pytest.mark.parametrize("scale", [0.0, -0.125])
@pytest.mark.parametrize("shape", [(3, 4), (1, 1, 3, 4)], ids=["math", "flash"])
def test_a_causal_mask_is_not_scaled(scale, shape):
    # PyTorch 2.13's causal kernel for the CPU multiplies −∞ by the scale: NaN where it is not > 0.
    query, key, value = torch.randn(
        3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    fused = fused_attention(query, key, value, is_causal=True, scale=scale)
    explicit = explicit_attention(query, key, value, is_causal=True, scale=scale)
    assert_near(fused.detach(), explicit.detach(), 1e-12)
    for mine, other in zip(
        torch.autograd.grad(fused.sum(), (query, key, value)),
        torch.autograd.grad(explicit.sum(), (query, key, value)),
        strict=True,
    ):
        assert_near(mine, other, 1e-12)


@given(cases, st.sampled_from([torch.float64, torch.float32]))
def test_fused_equals_explicit_in_value_and_gradient(case, dtype):
    tensors, options = build(case)
    tensors = [t.to(dtype).requires_grad_() for t in tensors]
    if options.get("attn_mask") is not None and options["attn_mask"].is_floating_point():
        options["attn_mask"] = options["attn_mask"].to(dtype)
    # float32: the logit's error 66·2⁻²⁴·32 of test_attention with E ≤ 8: 10·2⁻²⁴·32 = 2e-5, then
    # as in attention_cases four times |v| ≤ 2; gradients are 50 times worse.
    near, near_gradient = (1e-12, 1e-11) if dtype == torch.float64 else (1.6e-4, 1e-3)
    fused = fused_attention(*tensors, **options)
    explicit = explicit_attention(*tensors, **options)
    assert fused.dtype == dtype
    assert_near(fused.detach(), explicit.detach(), near)
    for mine, other in zip(
        torch.autograd.grad(fused.sum(), tensors),
        torch.autograd.grad(explicit.sum(), tensors),
        strict=True,
    ):
        assert_near(mine, other, near_gradient)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_half_precision_within_its_rounding(dtype, causal):
    q, k, v = (t.to(dtype) for t in inputs(1, (2, 4, 8, 64), keys=2, length=8))
    fused = fused_attention(q, k, v, is_causal=causal, enable_gqa=True)
    explicit = explicit_attention(q, k, v, is_causal=causal, enable_gqa=True)
    assert fused.dtype == dtype
    # Weights and result are rounded once each, |v| ≤ 2: two half steps at 2, and the float32 part.
    assert_near(fused.float(), explicit.float(), 2 * torch.finfo(dtype).eps + 1e-3)


def test_float32_masks_are_taken_with_every_query():
    mask = masks(2)[1].float()
    for dtype, near in ((torch.float64, 1e-12), (torch.float16, 4e-3)):
        q, k, v = (t.to(dtype) for t in inputs(2))
        assert_near(
            fused_attention(q, k, v, mask).double(),
            explicit_attention(q, k, v, mask).double(),
            near,
        )


def test_fused_hands_over_to_torch(monkeypatch):
    calls = []
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *args, **kwargs: calls.append((args, kwargs)) or args[0],
    )
    q, k, v = inputs(3)
    keep, _ = masks(3)
    fused_attention(q, k, v, keep, scale=0.5, enable_gqa=True)
    fused_attention(q, k, v, is_causal=True)
    (masked, options), (causal, defaults) = calls
    assert masked[3] is keep
    assert masked[4:] == (0.0, False)
    assert options == {"scale": 0.5, "enable_gqa": True}
    assert causal[3:] == (None, 0.0, True)
    assert defaults == {"scale": None, "enable_gqa": False}


def test_non_finite_masked_values_are_where_fused_differs():
    q, k, v = inputs(4)
    v[..., -1, :] = math.nan
    keep = torch.ones(3, 6, dtype=torch.bool)
    keep[:, -1] = False
    assert fused_attention(q, k, v, keep).isnan().all()
    assert explicit_attention(q, k, v, keep).isfinite().all()
    assert online_attention(q, k, v, keep).isfinite().all()


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({}, "fused_attention"),
        ({"is_causal": True, "scale": 0.3}, "fused_attention"),
        ({"attn_mask": masks(5, dead_row=True)[0]}, "fused_attention"),
        ({"softcap": 2.0}, "online_attention"),
        ({"sinks": 0.5}, "online_attention"),
        ({"sinks": torch.zeros(4, dtype=torch.float64)}, "online_attention"),
        ({"attn_mask": masks(5, dead_row=True)[1], "masked_rows": "uniform"}, "online_attention"),
        ({"softcap": 2.0, "sinks": 0.5, "return_weights": True}, "explicit_attention"),
    ],
    ids=lambda case: case if isinstance(case, str) else "+".join(case) or "plain",
)
def test_front_door(options, path, monkeypatch):
    q, k, v = inputs(5)
    expected = explicit_attention(q, k, v, **options)
    taken = []
    for name, function in PATHS.items():

        def recorded(*args, name=name, function=function, **kwargs):
            taken.append(name)
            return function(*args, **kwargs)

        monkeypatch.setattr(MODULE, name, recorded)
    result = scaled_dot_product_attention(q, k, v, **options)
    assert taken == [path]
    if options.get("return_weights"):
        for mine, other in zip(result, expected, strict=True):
            assert_near(mine, other)
    else:
        assert_near(result, expected)
