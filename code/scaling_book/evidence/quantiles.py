"""Quantiles with standard errors: for heavy-tailed samples, of which a mean says little."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from attention_scaling import Estimate


def estimate_quantile(samples: NDArray[np.float64], level: float) -> Estimate:
    """Sample quantile; its standard error comes from the order statistics, for any density.

    Of N samples, about N·level ± √(N·level·(1 − level)) lie below the quantile. The standard error
    is half the distance between the sample quantiles at the two ends of this range.

    Parameters
    ----------
    samples
        Independent draws, shape (N,).
    level
        Between 0 and 1: 0.5 for the median.
    """
    error = math.sqrt(level * (1 - level) / samples.size)
    levels = np.clip([level - error, level, level + error], 0.0, 1.0)
    low, middle, high = np.quantile(samples, levels)
    return Estimate(float(middle), float(high - low) / 2, samples.size)
