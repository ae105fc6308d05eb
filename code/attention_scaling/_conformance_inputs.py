"""What the kinds of mistakes are made of: random shapes, masks, and scores known exactly."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from attention_scaling._conformance_case import Case

#: The number of components of `loud`'s queries: 1/√E = 1/4 is exact, and so is the root of that.
LOUD_DIM = 16


def pick(g: torch.Generator, *choices: float) -> float:
    return choices[int(torch.randint(len(choices), (), generator=g))]


def integer(g: torch.Generator, low: int, high: int) -> int:
    return int(torch.randint(low, high + 1, (), generator=g))


def coin(g: torch.Generator) -> bool:
    return bool(torch.randint(2, (), generator=g))


def normal(g: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def ordinary(
    g: torch.Generator,
    dtype: torch.dtype,
    *,
    length: int | None = None,
    keys: int | None = None,
    heads: int | None = None,
) -> Case:
    """Ordinary inputs of a random shape."""
    batch, heads = integer(g, 1, 2), heads or integer(g, 1, 3)
    length, keys = length or integer(g, 1, 5), keys or integer(g, 2, 7)
    dim = integer(g, 1, 16)
    width = dim if coin(g) else integer(g, 1, 5)  # fused kernels may want them equal
    q = normal(g, batch, heads, length, dim)
    k, v = normal(g, batch, heads, keys, dim), normal(g, batch, heads, keys, width)
    return Case(q.to(dtype), k.to(dtype), v.to(dtype))


def shape_of_logits(case: Case) -> tuple[int, ...]:
    return (*case.query.shape[:-1], case.key.shape[-2])


def keep_some(g: torch.Generator, case: Case) -> torch.Tensor:
    """A random mask that leaves each row a key, sometimes shared between heads or rows."""
    shape = list(shape_of_logits(case))
    for axis in range(len(shape) - 1):
        if coin(g):
            shape[axis] = 1
    keep = torch.rand(shape, generator=g) < 0.6
    keep[..., integer(g, 0, shape[-1] - 1)] |= ~keep.any(dim=-1)
    return keep


def as_additive(keep: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(keep.shape, dtype=dtype).masked_fill(~keep, -math.inf)


def masked(g: torch.Generator, case: Case, *, additive: bool | None = None) -> Case:
    keep = keep_some(g, case)
    if coin(g) if additive is None else additive:
        return replace(case, attn_mask=as_additive(keep, case.query.dtype))
    return replace(case, attn_mask=keep)


def loud(coarse: torch.Tensor, fine: torch.Tensor, g: torch.Generator, dtype: torch.dtype) -> Case:
    """A case of one head whose logits are `coarse` + `fine` (L, S), exactly; L is at most 8.

    Row i has two components of its own: r, a power of two, against which the keys carry coarse/r,
    and 1, against which they carry the small integer of `fine`. So the inputs fit their format,
    and the logit does not have to. The query makes up for the factor 1/√E.
    """
    length, n = coarse.shape
    r = 2.0 ** math.ceil(math.log2(max(float(coarse.abs().max()), 1.0)) / 2)
    q = torch.zeros(1, 1, length, LOUD_DIM, dtype=torch.float64)
    k = torch.zeros(1, 1, n, LOUD_DIM, dtype=torch.float64)
    for i in range(length):
        q[..., i, 2 * i], q[..., i, 2 * i + 1] = r, 1.0
        k[..., :, 2 * i], k[..., :, 2 * i + 1] = coarse[i] / r, fine[i]
    q = q * math.sqrt(LOUD_DIM)
    width = LOUD_DIM if coin(g) else integer(g, 1, 3)
    v = integer(g, 1, 3) * normal(g, 1, 1, n, width).sign() + torch.arange(n)[:, None]
    return Case(q.to(dtype), k.to(dtype), v.to(dtype))


def level(logits: torch.Tensor, g: torch.Generator, dtype: torch.dtype) -> Case:
    """One query of one component, whose logits (S,) are given; both factors fit the format."""
    r = 2.0 ** math.ceil(math.log2(max(float(logits.abs().max()), 1.0)) / 2)
    q, k = torch.full((1, 1, 1, 1), r, dtype=torch.float64), (logits / r)[None, None, :, None]
    width = integer(g, 1, 3)
    v = integer(g, 1, 3) * normal(g, 1, 1, len(logits), width).sign()
    v = v + torch.arange(len(logits))[:, None]
    return Case(q.to(dtype), k.to(dtype), torch.where(v == 0, 1.0, v).to(dtype))


def constant(size: float, n: int) -> torch.Tensor:
    return torch.full((1, n), size, dtype=torch.float64)


def gaps(g: torch.Generator, n: int) -> torch.Tensor:
    """Small integers, the first two of which differ by one."""
    gaps = torch.randint(0, 4, (1, n), generator=g, dtype=torch.float64)
    gaps[0, 0], gaps[0, 1] = 3.0, 2.0
    return gaps
