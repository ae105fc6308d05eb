"""Where all random numbers of the evidence come from, so that they can all be drawn afresh.

A claim's verdict must not depend on the draw. `another_draw` gives every measurement new numbers;
draw 0 is the one that the book shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

# Keeps the torch seeds of two draws apart; those of the claims differ by less.
STRIDE = 10**9

_draw = 0


def rng(seed: int, claim: int) -> np.random.Generator:
    """Return NumPy's generator for one claim in the present draw."""
    return np.random.default_rng([seed, claim, _draw] if _draw else [seed, claim])


def generator(seed: int) -> torch.Generator:
    """Return torch's generator for a seed in the present draw."""
    return torch.Generator().manual_seed(torch_seed(seed))


def torch_seed(seed: int) -> int:
    """Return the seed that stands for `seed` in the present draw."""
    return seed + _draw * STRIDE


@contextmanager
def another_draw(number: int) -> Iterator[None]:
    """Give everything that draws within the block other random numbers.

    Parameters
    ----------
    number
        Which draw; 0 is the one that the book shows.

    Raises
    ------
    ValueError
        If the number is negative.
    """
    global _draw
    if number < 0:
        raise ValueError(f"a draw is numbered from 0, got {number}")
    before, _draw = _draw, number
    try:
        yield
    finally:
        _draw = before
