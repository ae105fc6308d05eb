"""One call of an attention function: its arguments, as data that can be copied, shown and run."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

Attention = Callable[..., torch.Tensor]

#: What may follow query, key and value.
OPTIONS = ("attn_mask", "is_causal", "scale", "enable_gqa", "softcap", "sinks")


@dataclass(frozen=True)
class Case:
    """The arguments of one call, named as PyTorch names them.

    Parameters
    ----------
    query, key, value, attn_mask, is_causal, scale, enable_gqa
        As for PyTorch's ``scaled_dot_product_attention``.
    softcap, sinks
        As for `attention_scaling.explicit_attention`.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    attn_mask: torch.Tensor | None = None
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False
    softcap: float | None = None
    sinks: torch.Tensor | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The arguments after value that are not at their default."""
        rest = {name: getattr(self, name) for name in OPTIONS}
        return {name: x for name, x in rest.items() if x is not None and x is not False}

    def run(self, attention: Attention) -> torch.Tensor:
        """Call `attention` with these arguments; the first three by position."""
        return attention(self.query, self.key, self.value, **self.options)

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Case:
        """A copy with each tensor x replaced by function(x)."""
        tensors: dict[str, Any] = {
            f.name: function(x)
            for f in fields(self)
            if isinstance(x := getattr(self, f.name), torch.Tensor)
        }
        return replace(self, **tensors)

    def clone(self) -> Case:
        """A copy with tensors of its own."""
        return self.map(torch.clone)

    def in_float64(self) -> Case:
        """The same numbers, exactly, as float64; a boolean mask stays one."""
        return self.map(lambda x: x.double() if x.is_floating_point() else x)

    def with_one_mask(self) -> Case:
        """A copy in which the mask holds the causal triangle too."""
        if self.attn_mask is None or not self.is_causal:
            return self
        shape = self.query.shape[-2], self.key.shape[-2]
        keep, mask = torch.ones(shape, dtype=torch.bool).tril(), self.attn_mask
        joint = keep & mask if mask.dtype == torch.bool else mask.masked_fill(~keep, -math.inf)
        return replace(self, attn_mask=joint, is_causal=False)

    def describe(self) -> str:
        """The arguments as text: numbers where there are few, shapes where there are many."""
        shown = {"query": self.query, "key": self.key, "value": self.value, **self.options}
        return "\n".join(f"{name} = {_text(x)}" for name, x in shown.items())


def _text(x: Any) -> str:
    if not isinstance(x, torch.Tensor):
        return _numbers(x)
    head = f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"
    return head if x.numel() > 12 else f"{head} {_numbers(x.tolist())}"


def _numbers(x: Any) -> str:
    if isinstance(x, list):
        return "[" + ", ".join(_numbers(y) for y in x) + "]"
    return str(x) if isinstance(x, bool) else f"{x:.9g}"


def accepted_options(attention: Attention) -> frozenset[str]:
    """Which of `OPTIONS` a callable takes by name."""
    try:
        parameters = inspect.signature(attention).parameters.values()
    except (TypeError, ValueError):  # torch's builtins have no signature to look at
        return frozenset(OPTIONS) - {"softcap", "sinks"}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return frozenset(OPTIONS)
    return frozenset(OPTIONS) & {p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY}
