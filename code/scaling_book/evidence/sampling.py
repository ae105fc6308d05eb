"""Measurements of means, variances and shares, with tolerances predicted before sampling.

A tolerance is five standard errors of the estimate *under the right law*: its variance and its
kurtosis enter, the sample does not. A sampler that is wrong cannot widen its own tolerance.

Of N independent values with variance Var and kurtosis κ, the mean has the standard error √(Var/N)
and the sample variance Var √((κ−1)/N); reasons print these with the numbers put in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from attention_scaling import estimate_mean, estimate_std, estimate_variance
from scaling_book.evidence.core import Measurement

Samples = NDArray[np.float64]
STANDARD_ERRORS = 5


def mean_of(
    quantity: str,
    samples: Samples,
    *,
    expected: float,
    variance: float,
    rival: float | None = None,
) -> Measurement:
    """Measure a mean; `variance` is that of one sample under the right law."""
    estimate = estimate_mean(samples)
    return Measurement(
        quantity,
        measured=estimate.value,
        expected=expected,
        tolerance=STANDARD_ERRORS * math.sqrt(variance / samples.size),
        reason=f"{STANDARD_ERRORS} √({variance:.4g}/{samples.size})",
        rival=rival,
        standard_error=estimate.standard_error,
    )


def variance_of(
    quantity: str,
    samples: Samples,
    *,
    expected: float,
    kurtosis: float,
    rival: float | None = None,
) -> Measurement:
    """Measure a variance; `kurtosis` κ = E[z⁴]/Var² (3 for a normal law) is the right law's."""
    estimate = estimate_variance(samples)
    return Measurement(
        quantity,
        measured=estimate.value,
        expected=expected,
        tolerance=STANDARD_ERRORS * expected * math.sqrt((kurtosis - 1) / samples.size),
        reason=f"{STANDARD_ERRORS} Var √({kurtosis - 1:.3g}/{samples.size})",
        rival=rival,
        standard_error=estimate.standard_error,
    )


def std_of(
    quantity: str,
    samples: Samples,
    *,
    expected: float,
    kurtosis: float,
    rival: float | None = None,
) -> Measurement:
    """Measure a standard deviation; by the delta method its error is half that of the variance."""
    estimate = estimate_std(samples)
    return Measurement(
        quantity,
        measured=estimate.value,
        expected=expected,
        tolerance=STANDARD_ERRORS * expected * math.sqrt((kurtosis - 1) / samples.size) / 2,
        reason=f"{STANDARD_ERRORS} σ √({kurtosis - 1:.3g}/{samples.size}) / 2",
        rival=rival,
        standard_error=estimate.standard_error,
    )


def share_of(
    quantity: str,
    hits: NDArray[np.bool_],
    *,
    expected: float,
    rival: float | None = None,
) -> Measurement:
    """Measure a probability p by the share of hits; the binomial law gives the tolerance."""
    share, n = float(hits.mean()), hits.size
    return Measurement(
        quantity,
        measured=share,
        expected=expected,
        tolerance=STANDARD_ERRORS * math.sqrt(expected * (1 - expected) / n),
        reason=f"{STANDARD_ERRORS} √(p(1−p)/{n})",
        rival=rival,
        standard_error=math.sqrt(share * (1 - share) / n),
    )


def loglog_slope_of(
    quantity: str,
    x: Sequence[int],
    y: Sequence[float],
    *,
    expected: float,
    relative_errors: Sequence[float],
    rival: float | None = None,
) -> Measurement:
    """Measure an exponent; `relative_errors` are the predicted standard errors of log y.

    The least-squares slope is Σ w_i log y_i with w_i = u_i / Σu², u = log x minus its mean, so the
    predicted errors of the points add in quadrature.
    """
    weights = slope_weights(x)
    error = float(np.linalg.norm(weights * np.asarray(relative_errors)))
    return Measurement(
        quantity,
        measured=float(weights @ np.log(y)),
        expected=expected,
        tolerance=STANDARD_ERRORS * error,
        reason=f"{STANDARD_ERRORS} √Σ(w_i s_i)², d_k = {x[0]} … {x[-1]}",
        rival=rival,
        standard_error=error,
    )


def slope_weights(x: Sequence[int]) -> Samples:
    """Return the weights w with which Σ w_i log y_i is the least-squares log–log slope."""
    u = np.log(np.asarray(x, dtype=np.float64))
    u -= u.mean()
    weights: Samples = u / (u @ u)
    return weights
