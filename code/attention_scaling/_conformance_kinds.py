"""One kind of mistake that attention functions make, and how it is described.

Each kind draws inputs on which a faithful implementation and a mistaken one differ by more than
rounding. The laws behind them: masked pairs contribute nothing; a mask or bias is neither scaled
nor capped; softmax depends on differences of logits alone, whatever their size; the factor is
1/√E unless a number is given, and then it is that number; and an option means the same beside
another option.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations

import torch

from attention_scaling import _conformance_inputs as inputs
from attention_scaling._conformance_case import Case
from attention_scaling._conformance_levels import LEVELS, beside, fits

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
    base
        Makes inputs from a generator and a dtype.
    needs
        Options that the function must take; without them the kind does not apply.
    main
        Levels added to every input.
    beside
        Levels added one after the other, each in an example of its own.
    queries
        How many queries are left of those drawn, unless `is_causal` needs them all; 0 for all.
    dtypes
        Where the kind makes sense.
    strict
        The scores must be kept in float32 for inputs in half precision.
    hardening
        PyTorch itself does not promise this: a failure is reported and accuses nobody.
    gradients
        Gradients are compared too (in float64).
    may_decline
        PyTorch's documentation calls for an error; one that answers all the same must be right.
    format_alone
        The dtype of the result is looked at, and nothing else.
    """

    name: str
    why: str
    base: Draw
    needs: frozenset[str] = frozenset()
    main: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    queries: int = 0
    dtypes: tuple[torch.dtype, ...] = HALF + FULL
    strict: bool = False
    hardening: bool = False
    gradients: bool = False
    may_decline: bool = False
    format_alone: bool = False

    def choices(self, takes: frozenset[str]) -> list[tuple[str, ...]]:
        """What is added to the inputs, one example after the other; nothing to try if empty."""
        if not self.needs <= takes:
            return []
        levels = [level for level in self.beside if LEVELS[level] in takes]
        choices: list[tuple[str, ...]] = [(level,) for level in levels]
        if self.format_alone:
            choices += [pair for pair in combinations(levels, 2) if fits(pair[0], pair[1:])]
        return choices if self.main else [(), *choices]

    def draw(
        self, g: torch.Generator, dtype: torch.dtype, takes: frozenset[str], number: int
    ) -> Case:
        """Example `number`: each choice once in the first round, later with others beside it."""
        choices = self.choices(takes)
        chosen = [*self.main, *choices[number % len(choices)]]
        if self.main and number >= len(choices):
            for level in (level for choice in choices for level in choice):
                if inputs.coin(g) and fits(level, chosen):
                    chosen.append(level)
        case = self.base(g, dtype)
        if self.queries and "causal" not in chosen:
            case = replace(case, query=case.query[..., : self.queries, :].contiguous())
        return beside(g, case, chosen)


def kind(
    registry: dict[str, Kind],
    name: str,
    why: str,
    *,
    needs: str = "",
    main: str = "",
    beside: tuple[str, ...] = (),
    queries: int = 0,
    dtypes: tuple[torch.dtype, ...] = HALF + FULL,
    strict: bool = False,
    hardening: bool = False,
    gradients: bool = False,
    may_decline: bool = False,
    format_alone: bool = False,
) -> Callable[[Draw], Draw]:
    """Enter the decorated function into `registry`; `needs` are names with spaces between."""

    def register(draw: Draw) -> Draw:
        registry[name] = Kind(
            name,
            why,
            draw,
            frozenset(needs.split()) | {LEVELS[level] for level in [main] if level},
            (main,) if main else (),
            beside,
            queries,
            dtypes,
            strict,
            hardening,
            gradients,
            may_decline,
            format_alone,
        )
        return draw

    return register
