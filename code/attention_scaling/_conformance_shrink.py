"""Simpler versions of a case, for the search for the smallest one that still fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from attention_scaling._conformance_case import Case


def smaller(case: Case) -> Iterator[Case]:
    """Simpler cases, the boldest first: fewer of everything, then rounder numbers."""
    yield from _fewer(case)
    yield from _rounder(case)


def _parts(size: int) -> Iterator[list[int]]:
    """Indices to keep of a dimension: a half, then all but one."""
    every = list(range(size))
    if size > 1:
        yield every[: size // 2]
        yield every[size // 2 :]
    if 2 < size <= 8:
        yield from ([j for j in every if j != i] for i in every)


def _fewer(case: Case) -> Iterator[Case]:
    if case.attn_mask is not None:
        yield replace(case, attn_mask=None)
    for change in (
        replace(case, scale=None),
        replace(case, softcap=None),
        replace(case, sinks=None),
    ):
        if len(change.options) < len(case.options):
            yield change
    if case.enable_gqa:
        yield _ungrouped(case)
    dims = case.query.dim()
    heads = -3 if dims > 2 else None
    for axis in range(-dims, -2):
        if not (case.enable_gqa and axis == heads):
            for part in _parts(case.query.shape[axis]):
                yield _cut(case, axis, part, "query", "key", "value")
    if case.enable_gqa:
        yield from _fewer_groups(case)
    for part in _parts(case.query.shape[-2]):
        yield _cut(case, -2, part, "query")
    for part in _parts(case.key.shape[-2]):
        shorter = replace(case, attn_mask=_take(case.attn_mask, -1, part))
        yield _cut(shorter, -2, part, "key", "value", mask=False)
    if case.query.shape[-1] == case.value.shape[-1]:  # fused kernels may want them equal
        for part in _parts(case.query.shape[-1]):
            yield _cut(case, -1, part, "query", "key", "value", mask=False)
    for part in _parts(case.query.shape[-1]):
        yield _cut(case, -1, part, "query", "key", mask=False)
    for part in _parts(case.value.shape[-1]):
        yield _cut(case, -1, part, "value", mask=False)
    if case.is_causal:
        yield replace(case, is_causal=False)


def _ungrouped(case: Case) -> Case:
    """The same heads, with keys and values repeated."""
    group = case.query.shape[-3] // case.key.shape[-3]
    k, v = (x.repeat_interleave(group, dim=-3) for x in (case.key, case.value))
    return replace(case, key=k, value=v, enable_gqa=False)


def _fewer_groups(case: Case) -> Iterator[Case]:
    """Drop key heads together with their query heads."""
    group = case.query.shape[-3] // case.key.shape[-3]
    for part in _parts(case.key.shape[-3]):
        queries = [group * head + i for head in part for i in range(group)]
        yield _cut(_cut(case, -3, queries, "query"), -3, part, "key", "value", mask=False)


def _cut(case: Case, axis: int, part: list[int], *names: str, mask: bool = True) -> Case:
    """Keep a part of one dimension of the arguments named, and of mask and sinks."""
    changes: dict[str, Any] = {name: _take(getattr(case, name), axis, part) for name in names}
    if mask:
        changes["attn_mask"] = _take(case.attn_mask, axis, part)
        if case.sinks is not None and axis == -3:
            changes["sinks"] = case.sinks[part]
    return replace(case, **changes)


def _take(x: torch.Tensor | None, axis: int, part: list[int]) -> torch.Tensor | None:
    if x is None or x.dim() < -axis or x.shape[axis] == 1:  # shared along this dimension
        return x
    return x.index_select(axis, torch.tensor(part))


def _rounder(case: Case) -> Iterator[Case]:
    for name in ("value", "key", "query"):
        x = getattr(case, name)
        for y in (x.sign(), x.round(), (4 * x).round() / 4):
            if not torch.equal(x, y):
                yield replace(case, **{name: y})
        if x.numel() <= 16:
            for i in x.flatten().nonzero().flatten().tolist():
                y = x.flatten().clone()
                y[i] = 0
                yield replace(case, **{name: y.reshape(x.shape)})
