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
    beside=("grouped", "scale"),
    strict=True,
)
def _loud_masked(g: torch.Generator, dtype: torch.dtype) -> Case:
    n = draw.integer(g, 3, 7)
    keep = torch.rand(n, generator=g) < 0.5
    keep[0], keep[1] = True, False
    case = _low_and_loud(g, keep, dtype)
    mask = keep[None] if draw.coin(g) else draw.as_additive(keep[None], dtype)
    return replace(case, attn_mask=mask)


def _low_and_loud(g: torch.Generator, low: torch.Tensor, dtype: torch.dtype) -> Case:
    """Keys far below 0 and others far above, beyond stand-ins of −100, −10⁴, −2¹⁵ and −10⁹.

    Not beyond the most negative number of the format, which may be added to a score. And no further
    than 2³⁰, where a fused multiply-add in an exp2 kernel leaves 2⁶ in the exponent.
    """
    size = 2.0 ** draw.pick(g, 8, 13, *((14,) if dtype == torch.float16 else (17, 30)))
    high = size
    if dtype == torch.float16 and draw.coin(g):
        size, high = 1.5 * 2**15, 0.0  # with more at the top, −65504 would leave too little room
    case = draw.level(torch.where(low, -size, high).double(), g, dtype)
    # equal values where kept, so that the result does not depend on the weights among them
    return replace(case, value=torch.where(low[:, None], case.value[..., :1, :], case.value + 8))


@kind(
    EXTREME_KINDS,
    "loud keys in the future",
    "The causal triangle holds a finite number, and real logits lie below it.",
    needs="is_causal",
    beside=("grouped", "scale"),
    strict=True,
)
def _loud_future(g: torch.Generator, dtype: torch.dtype) -> Case:
    n = draw.integer(g, 2, 5)
    case = _low_and_loud(g, torch.arange(n) == 0, dtype)
    # Only the first query has nothing but the low key; the others see the second, and agree.
    value = torch.cat([case.value[..., :1, :], case.value[..., 1:2, :].expand(1, 1, n - 1, -1)], -2)
    query = case.query.expand(1, 1, n, 1).contiguous()
    return replace(case, query=query, value=value, is_causal=True)


def _size(g: torch.Generator, dtype: torch.dtype) -> float:
    """Enough for exp to underflow; in half precision no more, for there scores become ties."""
    return 2.0**7 if dtype in HALF else 2.0 ** draw.integer(g, 7, 18)


@kind(
    EXTREME_KINDS,
    "large logits",
    "exp overflows, or a clamp makes different logits equal.",
    beside=("grouped", "scale", "causal", "boolean"),
    dtypes=FULL,
    strict=True,
)
def _large(g: torch.Generator, dtype: torch.dtype) -> Case:
    n = draw.integer(g, 2, 6)
    return draw.loud(draw.constant(2.0 ** draw.integer(g, 6, 18), n), draw.gaps(g, n), g, dtype)


@kind(
    EXTREME_KINDS,
    "logits far beyond the cap",
    "tanh is written with exponentials that overflow: ∞/∞ is NaN.",
    needs="softcap",
    beside=("grouped", "scale", "causal"),
)
def _beyond_cap(g: torch.Generator, dtype: torch.dtype) -> Case:
    n = draw.integer(g, 3, 6)
    logits = 2.0 ** (10 + 2 * torch.randint(3, (n,), generator=g, dtype=torch.float64))
    logits[1:] *= draw.normal(g, n - 1).sign()
    logits[0] *= -1 if draw.coin(g) else 1  # the one key of a first row under `is_causal`
    logits[1] = -logits[0]
    case = draw.level(logits, g, dtype)
    return replace(case, softcap=draw.pick(g, 0.5, 1.0, 2.5))


@kind(
    EXTREME_KINDS,
    "very negative logits",
    "A running maximum that starts at 0 or at a finite floor lets every weight underflow.",
    beside=("grouped", "scale", "causal", "boolean"),
    strict=True,
)
def _negative(g: torch.Generator, dtype: torch.dtype) -> Case:
    n = draw.integer(g, 2, 6)
    if draw.coin(g):  # equal logits and values: no format and no rounding makes a difference
        half = dtype == torch.float16
        size = draw.pick(g, 2.0**14, 1.5 * 2**15) if half else 2.0 ** draw.pick(g, 14, 20, 30)
        case = draw.level(draw.constant(-size, n)[0], g, dtype)
        return replace(case, value=case.value[..., :1, :].expand(1, 1, n, -1).contiguous())
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
    beside=("scale", "causal"),
    strict=True,
)
def _sinks_far(g: torch.Generator, dtype: torch.dtype) -> Case:
    size, n = draw.pick(g, 8.0, 32.0, 128.0), draw.integer(g, 2, 5)
    case = draw.loud(draw.constant(-size, n), draw.gaps(g, n), g, dtype)
    return replace(case, sinks=torch.tensor([-size + draw.integer(g, -3, 3)]).to(dtype))
