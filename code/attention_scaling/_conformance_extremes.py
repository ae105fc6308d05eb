"""Kinds of mistakes that show in large logits, narrow formats and long rows."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from attention_scaling import _conformance_inputs as draw
from attention_scaling._conformance_case import Case
from attention_scaling._conformance_kinds import FULL, HALF, Kind, kind

#: By name, in the order in which they are tried.
EXTREME_KINDS: dict[str, Kind] = {}


@kind(
    EXTREME_KINDS,
    "rows at the end of the format",
    "A mask of the most negative number overflows when another negative number is added to it.",
    needs="attn_mask",
)
def _sentinel_rows(g: torch.Generator, dtype: torch.dtype) -> Case:
    n = draw.integer(g, 2, 6)
    coarse = torch.full((2, n), -32.0, dtype=torch.float64)
    case = draw.loud(coarse, draw.gaps(g, n).expand(2, n), g, dtype)
    mask = torch.zeros(2, n, dtype=dtype)
    mask[draw.integer(g, 0, 1)] = torch.finfo(dtype).min
    return replace(case, attn_mask=mask)


@kind(
    EXTREME_KINDS,
    "loud masked keys",
    "Masked logits are set to a finite number, and real logits lie below it.",
    needs="attn_mask",
    strict=True,
)
def _loud_masked(g: torch.Generator, dtype: torch.dtype) -> Case:
    n = draw.integer(g, 3, 7)
    # Beyond the usual stand-ins of −100, −10⁴ and −10⁹; in float16 q·k should fit, 4 times that.
    # Not further: at 2³⁰ a fused multiply-add in an exp2 kernel leaves 2⁶ in the exponent.
    size = 2.0 ** (draw.pick(g, 8, 13) if dtype == torch.float16 else draw.pick(g, 8, 13, 30))
    keep = torch.rand(1, n, generator=g) < 0.5
    keep[0, 0], keep[0, 1] = True, False
    coarse = torch.where(keep, -size, size).double()
    case = draw.loud(coarse, torch.zeros_like(coarse), g, dtype)
    # equal values where kept, so that the result does not depend on the weights among them
    value = torch.where(keep[0, :, None], case.value[..., :1, :], case.value + 8)
    mask = keep if draw.coin(g) else draw.as_additive(keep, dtype)
    return replace(case, value=value, attn_mask=mask)


def _size(g: torch.Generator, dtype: torch.dtype) -> float:
    """Enough for exp to underflow; in half precision no more, for there scores become ties."""
    return 2.0**7 if dtype in HALF else 2.0 ** draw.integer(g, 7, 18)


@kind(
    EXTREME_KINDS,
    "large logits",
    "exp overflows, or a clamp makes different logits equal.",
    dtypes=FULL,
    strict=True,
)
def _large(g: torch.Generator, dtype: torch.dtype) -> Case:
    n = draw.integer(g, 2, 6)
    return draw.loud(draw.constant(2.0 ** draw.integer(g, 6, 18), n), draw.gaps(g, n), g, dtype)


@kind(
    EXTREME_KINDS,
    "very negative logits",
    "A running maximum that starts at 0 or at a finite floor lets every weight underflow.",
    strict=True,
)
def _negative(g: torch.Generator, dtype: torch.dtype) -> Case:
    n = draw.integer(g, 2, 6)
    return draw.loud(draw.constant(-_size(g, dtype), n), draw.gaps(g, n), g, dtype)


@kind(
    EXTREME_KINDS,
    "rows of different size",
    "The maximum of the whole matrix is subtracted, and the smaller rows underflow.",
    strict=True,
)
def _rows_apart(g: torch.Generator, dtype: torch.dtype) -> Case:
    n, size = draw.integer(g, 2, 6), _size(g, dtype)
    coarse = torch.stack([draw.constant(size, n)[0], draw.constant(-size, n)[0]])
    return draw.loud(coarse, draw.gaps(g, n).expand(2, n), g, dtype)


@kind(
    EXTREME_KINDS,
    "scores beyond half precision",
    "Scores stored in float16 overflow, in bfloat16 they become ties: NaN, or wrong weights.",
    dtypes=HALF,
    strict=True,
)
def _half_scores(g: torch.Generator, dtype: torch.dtype) -> Case:
    n = draw.integer(g, 2, 6)
    return draw.loud(draw.constant(2.0 ** draw.integer(g, 9, 18), n), draw.gaps(g, n), g, dtype)


@kind(
    EXTREME_KINDS,
    "scores beyond half precision, scaled",
    "The product overflows before the factor is applied to it.",
    dtypes=(torch.float16,),
)
def _half_product(g: torch.Generator, dtype: torch.dtype) -> Case:
    # equal entries: the raw score is E·a·b > 65504, and the factor brings it back
    dim = int(draw.pick(g, 16, 64))
    n = draw.integer(g, 2, 4)
    a = math.sqrt(65536 / dim) * draw.pick(g, 1.0, 1.25)
    shares = 1 - torch.arange(n, dtype=torch.float64) / 8
    q = torch.full((1, 1, 1, dim), a, dtype=torch.float64)
    k = a * shares[:, None].expand(n, dim)[None, None]
    v = draw.normal(g, 1, 1, n, 2).sign() + torch.arange(n)[:, None]
    return Case(q.to(dtype), k.to(dtype), v.to(dtype))


@kind(
    EXTREME_KINDS, "many small weights", "Weights in a narrow format vanish, or their sum is not 1."
)
def _small_weights(g: torch.Generator, dtype: torch.dtype) -> Case:
    n = int(draw.pick(g, 700, 1500, 3000))
    q, k = draw.normal(g, 1, 1, 1, 4), 0.1 * draw.normal(g, 1, 1, n, 4)
    v = torch.ones(1, 1, n, 1)
    return Case(q.to(dtype), k.to(dtype), v.to(dtype))


@kind(
    EXTREME_KINDS,
    "long rows with a rising maximum",
    "An online softmax that does not rescale what it has, when a larger logit comes.",
)
def _rising(g: torch.Generator, dtype: torch.dtype) -> Case:
    n = int(draw.pick(g, 150, 300, 700))
    logits = torch.linspace(-8, draw.pick(g, 4, 8), n, dtype=torch.float64)[None]
    logits = logits if draw.coin(g) else logits.flip(-1)
    logits = (logits * 8).round() / 8
    case = draw.loud(logits, torch.zeros_like(logits), g, dtype)
    return replace(case, value=draw.normal(g, 1, 1, n, 2).to(dtype))


@kind(
    EXTREME_KINDS,
    "long rows with masked chunks",
    "A chunk that is masked as a whole leaves NaN in the running state.",
    needs="attn_mask",
)
def _masked_chunks(g: torch.Generator, dtype: torch.dtype) -> Case:
    n = int(draw.pick(g, 300, 600))
    case = draw.ordinary(g, dtype, keys=n, length=2)
    keep = torch.zeros(2, n, dtype=torch.bool)
    for row in range(2):
        start = draw.integer(g, 0, n - 1)
        keep[row, start : start + draw.integer(g, 1, 140)] = True
    mask = keep if draw.coin(g) else draw.as_additive(keep, dtype)
    return replace(case, attn_mask=mask)


@kind(
    EXTREME_KINDS,
    "sinks beside very negative logits",
    "The maximum is taken over the keys alone, or the sink's 1 is added after the shift.",
    needs="sinks",
    strict=True,
)
def _sinks_far(g: torch.Generator, dtype: torch.dtype) -> Case:
    size, n = draw.pick(g, 8.0, 32.0, 128.0), draw.integer(g, 2, 5)
    case = draw.loud(draw.constant(-size, n), draw.gaps(g, n), g, dtype)
    return replace(case, sinks=torch.tensor([-size + draw.integer(g, -3, 3)]).to(dtype))
