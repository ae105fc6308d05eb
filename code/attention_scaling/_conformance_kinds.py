"""One kind of mistake that attention functions make, and how it is described.

Each kind draws inputs on which a faithful implementation and a mistaken one differ by more than
rounding. The laws behind them: masked pairs contribute nothing; a mask or bias is neither scaled
nor capped; softmax depends on differences of logits alone, whatever their size; the factor is
1/√E unless a number is given, and then it is that number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from attention_scaling._conformance_case import Case

HALF = (torch.float16, torch.bfloat16)
FULL = (torch.float32, torch.float64)
Draw = Callable[[torch.Generator, torch.dtype], Case]


@dataclass(frozen=True)
class Kind:
    """One kind of mistake.

    Parameters
    ----------
    name
        What is tried.
    why
        What goes wrong in practice when it fails.
    draw
        Makes inputs from a generator and a dtype.
    needs
        Options that the function must take; without them the kind does not apply.
    dtypes
        Where the kind makes sense.
    strict
        The scores must be kept in float32 for inputs in half precision.
    hardening
        PyTorch itself does not promise this: a failure is reported and accuses nobody.
    gradients
        Gradients are compared too (in float64).
    """

    name: str
    why: str
    draw: Draw
    needs: frozenset[str] = frozenset()
    dtypes: tuple[torch.dtype, ...] = HALF + FULL
    strict: bool = False
    hardening: bool = False
    gradients: bool = False


def kind(
    registry: dict[str, Kind],
    name: str,
    why: str,
    *,
    needs: str = "",
    dtypes: tuple[torch.dtype, ...] = HALF + FULL,
    strict: bool = False,
    hardening: bool = False,
    gradients: bool = False,
) -> Callable[[Draw], Draw]:
    """Enter the decorated function into `registry`; `needs` are names with spaces between."""

    def register(draw: Draw) -> Draw:
        options = frozenset(needs.split())
        registry[name] = Kind(name, why, draw, options, dtypes, strict, hardening, gradients)
        return draw

    return register
