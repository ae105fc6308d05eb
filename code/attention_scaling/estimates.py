"""Monte-Carlo estimates that carry their standard errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attention_scaling import _checks

__all__ = ["Estimate", "estimate_mean", "estimate_std", "estimate_variance", "loglog_slope"]


@dataclass(frozen=True)
class Estimate:
    """A number measured from samples, and how far it may be off.

    Parameters
    ----------
    value : float
        The estimate, in the unit of the quantity estimated.
    standard_error : float
        Its standard error, in the same unit; not negative.
    n : int
        Number of samples (or points) behind it.

    Raises
    ------
    ValueError
        If `value` is not finite, `standard_error` is negative or `n` is below 1.
    """

    value: float
    standard_error: float
    n: int

    def __post_init__(self) -> None:
        _checks.finite_number("value", self.value)
        _checks.non_negative_number("standard_error", self.standard_error)
        _checks.positive_int("n", self.n)

    def z_score(self, predicted: float) -> float:
        """Distance from a prediction in standard errors, signed like value − predicted.

        Infinite when the standard error is zero and the prediction is missed; zero when it is met.
        """
        difference = self.value - _checks.finite_number("predicted", predicted)
        if self.standard_error == 0:
            return math.copysign(math.inf, difference) if difference else 0.0
        return difference / self.standard_error

    def __str__(self) -> str:
        """Value ± standard error, with decimals up to the error's first digit: ``64.1 ± 0.4``."""
        if self.standard_error == 0:
            return f"{self.value:.6g} ± 0"
        decimals = max(0, -math.floor(math.log10(self.standard_error)))
        if decimals > 6:  # a row of zeros is unreadable
            return f"{self.value:.3g} ± {self.standard_error:.1g}"
        return f"{self.value:.{decimals}f} ± {self.standard_error:.{decimals}f}"


def estimate_mean(samples: ArrayLike) -> Estimate:
    r"""Sample mean with standard error :math:`s/\sqrt n`.

    Parameters
    ----------
    samples : array_like, shape (n,)
        Independent draws, n ≥ 2, finite; computed in float64.

    Returns
    -------
    Estimate
        In the unit of the samples.

    Raises
    ------
    ValueError
        If `samples` is not one-dimensional, holds fewer than 2 numbers or a non-finite one.
    """
    x = _samples("samples", samples, at_least=2)
    return Estimate(float(x.mean()), float(x.std(ddof=1)) / math.sqrt(x.size), x.size)


def estimate_variance(samples: ArrayLike) -> Estimate:
    r"""Unbiased sample variance with a standard error that assumes no normality.

    .. math::
        \operatorname{Var}(s^2) = \frac1n\Bigl(\mu_4 - \frac{n-3}{n-1}\,\sigma^4\Bigr)

    with the fourth central moment :math:`\mu_4` and :math:`\sigma^4` replaced by their sample
    values. For a normal law, where :math:`\mu_4 = 3\sigma^4`, this is the familiar
    :math:`2\sigma^4/(n-1)`; products such as q·k have heavier tails and need the general form.

    Parameters
    ----------
    samples : array_like, shape (n,)
        Independent draws, n ≥ 2, finite; computed in float64.

    Returns
    -------
    Estimate
        In the squared unit of the samples.

    Raises
    ------
    ValueError
        As for `estimate_mean`.

    References
    ----------
    Cramér (1946), *Mathematical Methods of Statistics*, chapter 27 (moments of the sample
    variance).
    """
    x = _samples("samples", samples, at_least=2)
    n = x.size
    squares = (x - x.mean()) ** 2
    variance = float(squares.sum()) / (n - 1)
    fourth_moment = float((squares**2).mean())
    # The plug-in can fall a rounding error below zero, or more for tiny n (n = 2, 3).
    variance_of_variance = max(0.0, fourth_moment - (n - 3) / (n - 1) * variance**2) / n
    return Estimate(variance, math.sqrt(variance_of_variance), n)


def estimate_std(samples: ArrayLike) -> Estimate:
    r"""Sample standard deviation; standard error by the delta method.

    :math:`s = \sqrt{s^2}`, so :math:`\operatorname{se}(s) \approx \operatorname{se}(s^2)/(2s)`.

    Parameters
    ----------
    samples : array_like, shape (n,)
        Independent draws, n ≥ 2, finite; computed in float64.

    Returns
    -------
    Estimate
        In the unit of the samples. Constant samples give 0 ± 0, rounding apart.

    Raises
    ------
    ValueError
        As for `estimate_mean`.
    """
    variance = estimate_variance(samples)
    std = math.sqrt(variance.value)
    return Estimate(std, variance.standard_error / (2 * std) if std else 0.0, variance.n)


def loglog_slope(x: ArrayLike, y: ArrayLike) -> Estimate:
    r"""Exponent b of a power law :math:`y = a\,x^b`, by least squares on the logarithms.

    Parameters
    ----------
    x, y : array_like, shape (n,)
        Positive numbers, n ≥ 3; computed in float64.

    Returns
    -------
    Estimate
        The slope (no unit). Its standard error comes from the residuals, with n − 2 degrees of
        freedom: it covers scatter, and a curve that is no power law shows as a large one.

    Raises
    ------
    ValueError
        If the shapes differ, a number is not positive and finite, or all x are equal.
    """
    horizontal = _samples("x", x, at_least=3)
    vertical = _samples("y", y, at_least=3)
    if horizontal.shape != vertical.shape:
        raise ValueError(
            f"x and y must have equal length, got {horizontal.size} and {vertical.size}; "
            "pass one y for each x"
        )
    if min(horizontal.min(), vertical.min()) <= 0:
        raise ValueError("x and y must be above 0 to have logarithms; drop the other points")
    if np.ptp(horizontal) == 0:
        raise ValueError("x must take at least two values to define a slope, got one repeated")
    u = np.log(horizontal) - np.log(horizontal).mean()
    v = np.log(vertical) - np.log(vertical).mean()
    spread = float(u @ u)
    slope = float(u @ v) / spread
    residuals = v - slope * u
    standard_error = math.sqrt(float(residuals @ residuals) / (u.size - 2) / spread)
    return Estimate(slope, standard_error, u.size)


def _samples(name: str, values: ArrayLike, *, at_least: int) -> NDArray[np.float64]:
    """Return `values` as a finite float64 vector of sufficient length."""
    array = _checks.finite_array(name, values)
    if array.ndim != 1 or array.size < at_least:
        raise ValueError(
            f"{name} must be one-dimensional with at least {at_least} numbers, got shape "
            f"{array.shape}; flatten it with .reshape(-1) or draw more"
        )
    return array
