"""Options that are added to a case one by one or together, so that a mistake of two shows.

A function can treat every option rightly as long as it comes alone, and still drop the cap on its
causal path. So options are tried in pairs: each value below, a level, beside each of the others.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import replace
from types import MappingProxyType

import torch

from attention_scaling import _conformance_inputs as draw
from attention_scaling._conformance_case import Case
from attention_scaling.attention import default_scale

#: The option that each level sets, in the order in which they can be added to a case.
LEVELS = MappingProxyType(
    {
        "grouped": "enable_gqa",
        "scale": "scale",
        "low scale": "scale",
        "cap": "softcap",
        "causal": "is_causal",
        "boolean": "attn_mask",
        "additive": "attn_mask",
        "bias": "attn_mask",
        "sinks": "sinks",
    }
)


def fits(level: str, chosen: Iterable[str]) -> bool:
    """Whether a level may join others at random.

    An option has one value; a mask beside `is_causal` may be declined; and a factor of zero or
    below beside a mask is tried by kinds of its own.
    """
    masks, low = {"attn_mask", "is_causal"}, "low scale"
    for other in chosen:
        options = {LEVELS[level], LEVELS[other]}
        if len(options) == 1 or options == masks or (low in (level, other) and options & masks):
            return False
    return True


def beside(g: torch.Generator, case: Case, levels: Collection[str]) -> Case:
    """Add levels to a case. Its logits stay what they are, but for the cap and the low scale."""
    dtype = case.query.dtype
    for level in (level for level in LEVELS if level in levels):
        if level == "grouped":
            case = _grouped(case)
        elif level == "scale":  # four times the usual one, for queries of a quarter: both exact
            case = replace(
                case, query=case.query / 4, scale=4 * default_scale(case.query.shape[-1])
            )
        elif level == "low scale":
            # with a factor of 0 nobody would see whether there is a cap
            negative = (-0.25, -1.0) if "cap" in levels else (0.0, -0.25, -1.0)
            case = replace(case, scale=draw.pick(g, *negative))
        elif level == "cap":
            case = replace(case, query=4 * case.query, softcap=draw.pick(g, 1.0, 2.5, 5.0))
        elif level == "causal":
            case = replace(case, is_causal=True)
        elif level == "sinks":
            # in a row of n keys near 0, a sink counts if it is not far from log n
            sinks = draw.pick(g, 1.0, 4.0) * draw.normal(g, case.query.shape[-3])
            case = replace(case, sinks=(sinks + math.log(case.key.shape[-2])).to(dtype))
        else:
            case = replace(case, attn_mask=_mask(g, case, level))
    return case


def _grouped(case: Case) -> Case:
    """Fewer key heads, two if possible; a single head becomes two of queries."""
    heads = case.query.shape[-3]
    if heads == 1:
        query = torch.cat([case.query, case.query], dim=-3)
        return replace(case, query=query, enable_gqa=True)
    key_heads = 2 if heads > 2 and heads % 2 == 0 else 1
    k, v = (x[..., :key_heads, :, :].contiguous() for x in (case.key, case.value))
    return replace(case, key=k, value=v, enable_gqa=True)


def _mask(g: torch.Generator, case: Case, level: str) -> torch.Tensor:
    """A mask under which each row has a key and the last one loses a key that it would see."""
    keep, n = draw.keep_some(g, case), case.key.shape[-2]
    first = 0 if case.is_causal else draw.integer(g, 0, n - 1)
    keep[..., first] = True
    if n > 1:
        keep[..., -1, 1 if first == 0 else 0] = False
    if level == "boolean":
        return keep
    if level == "additive":
        return draw.as_additive(keep, case.query.dtype)
    bias = 2 * draw.normal(g, *draw.shape_of_logits(case))
    if draw.coin(g):
        bias = bias.masked_fill(~keep, -math.inf)
    return bias.to(case.query.dtype)
