"""Kinds of mistakes in what the options mean: factor, masks, groups, cap, sinks, layouts."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from attention_scaling import _conformance_inputs as draw
from attention_scaling._conformance_case import Case
from attention_scaling._conformance_kinds import Kind, kind

#: By name, in the order in which they are tried.
OPTION_KINDS: dict[str, Kind] = {}


@kind(
    OPTION_KINDS, "plain", "The factor is not 1/√E, or the formula is another one.", gradients=True
)
def _plain(g: torch.Generator, dtype: torch.dtype) -> Case:
    return draw.ordinary(g, dtype)


@kind(
    OPTION_KINDS,
    "given scale",
    "An explicit factor is ignored, or applied on top of 1/√E.",
    needs="scale",
    gradients=True,
)
def _given_scale(g: torch.Generator, dtype: torch.dtype) -> Case:
    return replace(draw.ordinary(g, dtype), scale=draw.pick(g, 1.0, 0.25, 0.037, 0.7, 1.7))


@kind(
    OPTION_KINDS,
    "scale of zero or below",
    "A zero or negative factor is taken for “not given”; a mask times the factor turns to NaN.",
    needs="scale",
    gradients=True,
)
def _low_scale(g: torch.Generator, dtype: torch.dtype) -> Case:
    return replace(draw.ordinary(g, dtype), scale=draw.pick(g, 0.0, -0.25, -1.0))


@kind(
    OPTION_KINDS,
    "scale of zero or below with a mask",
    "The mask is multiplied by the factor: 0·(−∞) is NaN, and a negative factor turns it round.",
    needs="scale attn_mask",
    gradients=True,
)
def _low_scale_masked(g: torch.Generator, dtype: torch.dtype) -> Case:
    case = replace(draw.ordinary(g, dtype), scale=draw.pick(g, 0.0, -0.25, -1.0))
    if draw.coin(g):
        return draw.masked(g, case)
    bias = draw.normal(g, *draw.shape_of_logits(case))
    return replace(case, attn_mask=bias.to(dtype))


@kind(
    OPTION_KINDS,
    "scale of zero or below, causal",
    "The causal mask is multiplied by the factor: 0·(−∞) is NaN.",
    needs="scale is_causal",
    gradients=True,
)
def _low_scale_causal(g: torch.Generator, dtype: torch.dtype) -> Case:
    case = draw.ordinary(g, dtype, length=draw.integer(g, 2, 5))
    return replace(case, scale=draw.pick(g, 0.0, -0.25, -1.0), is_causal=True)


@kind(
    OPTION_KINDS,
    "boolean mask",
    "True must keep; a mask with the other meaning hides what it should show.",
    needs="attn_mask",
    gradients=True,
)
def _boolean(g: torch.Generator, dtype: torch.dtype) -> Case:
    return draw.masked(g, draw.ordinary(g, dtype), additive=False)


@kind(
    OPTION_KINDS,
    "bias",
    "A bias on the logits is multiplied by the factor, or lost.",
    needs="attn_mask",
    gradients=True,
)
def _bias(g: torch.Generator, dtype: torch.dtype) -> Case:
    case = draw.ordinary(g, dtype)
    bias = 2 * draw.normal(g, *draw.shape_of_logits(case))
    if draw.coin(g):
        bias = bias.masked_fill(~draw.keep_some(g, case), -math.inf)
    return replace(case, attn_mask=bias.to(dtype))


@kind(
    OPTION_KINDS,
    "causal",
    "The triangle is aligned or cut wrongly, and the future leaks.",
    needs="is_causal",
    gradients=True,
)
def _causal(g: torch.Generator, dtype: torch.dtype) -> Case:
    return replace(draw.ordinary(g, dtype), is_causal=True)


@kind(
    OPTION_KINDS,
    "grouped heads",
    "Query heads meet the keys of another group.",
    needs="enable_gqa",
    gradients=True,
)
def _grouped(g: torch.Generator, dtype: torch.dtype) -> Case:
    case = draw.ordinary(g, dtype, heads=draw.integer(g, 2, 3))
    heads = case.key.shape[-3] * draw.integer(g, 2, 3)
    q = draw.normal(g, case.query.shape[0], heads, *case.query.shape[-2:])
    return replace(case, query=q.to(dtype), enable_gqa=True)


@kind(
    OPTION_KINDS,
    "rows without a key",
    "NaN appears in rows of padding, and spreads to all gradients.",
    needs="attn_mask",
    beside=("grouped", "scale", "low scale", "cap", "sinks"),
    gradients=True,
)
def _dead_rows(g: torch.Generator, dtype: torch.dtype) -> Case:
    case = draw.ordinary(g, dtype, length=draw.integer(g, 2, 5))
    keep = draw.keep_some(g, case).expand(draw.shape_of_logits(case)).clone()
    keep[..., draw.integer(g, 0, keep.shape[-2] - 1), :] = False
    mask = keep if draw.coin(g) else draw.as_additive(keep, dtype)
    return replace(case, attn_mask=mask)


@kind(
    OPTION_KINDS,
    "NaN or infinity behind the mask",
    "0·NaN is NaN: what padding holds reaches the output. PyTorch lets it through.",
    needs="attn_mask",
    hardening=True,
)
def _nonfinite(g: torch.Generator, dtype: torch.dtype) -> Case:
    case = draw.ordinary(g, dtype, keys=draw.integer(g, 2, 6))
    n = case.key.shape[-2]
    keep = torch.ones(n, dtype=torch.bool)
    hidden = draw.integer(g, 0, n - 1)
    keep[hidden] = False
    key, value = case.key.clone(), case.value.clone()
    (value if draw.coin(g) else key)[..., hidden, :] = draw.pick(g, math.nan, math.inf, -math.inf)
    return replace(
        case, key=key, value=value, attn_mask=keep.expand(draw.shape_of_logits(case)[-2:])
    )


@kind(
    OPTION_KINDS,
    "other layouts",
    "Shapes other than four dimensions and L = S, or strided inputs.",
    beside=("grouped", "causal", "boolean", "bias"),
)
def _layouts(g: torch.Generator, dtype: torch.dtype) -> Case:
    case = draw.ordinary(g, dtype, keys=draw.integer(g, 1, 7))
    q, k, v = case.query, case.key, case.value
    choice = draw.integer(g, 0, 2)
    if choice == 0:
        return Case(q[0], k[0], v[0])
    if choice == 1:
        return case.map(lambda x: x.mT.contiguous().mT)
    return Case(q[:1], k[:1], v[:1])


@kind(
    OPTION_KINDS,
    "soft cap",
    "The cap is ignored, or has another formula.",
    needs="softcap",
    gradients=True,
)
def _cap(g: torch.Generator, dtype: torch.dtype) -> Case:
    case = draw.ordinary(g, dtype)
    return replace(case, query=4 * case.query, softcap=draw.pick(g, 1.0, 2.5, 5.0))


@kind(
    OPTION_KINDS,
    "sinks",
    "A sink is scaled, counted twice, or added after the shift by the maximum.",
    needs="sinks",
    gradients=True,
)
def _sinks(g: torch.Generator, dtype: torch.dtype) -> Case:
    case = draw.ordinary(g, dtype)
    sinks = draw.pick(g, 1.0, 4.0) * draw.normal(g, case.query.shape[-3])
    return replace(case, sinks=sinks.to(dtype))
