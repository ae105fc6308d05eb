"""Moments of q·k: the law of an attention logit before any scale."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attention_scaling import _checks

__all__ = [
    "Moments",
    "conditional_row_std",
    "excess_kurtosis",
    "gaussian_moments",
    "iid_moments",
    "sample_dot_products",
]

# Coordinates drawn at once: two blocks of float64, about 4 MB, which stay in cache.
_CHUNK_COORDINATES = 1 << 18


@dataclass(frozen=True)
class Moments:
    """Mean and variance of a scalar random variable, here q·k.

    Parameters
    ----------
    mean, variance : float
        In the unit of q·k and its square.
    """

    mean: float
    variance: float

    @property
    def std(self) -> float:
        """Standard deviation, the square root of the variance."""
        return math.sqrt(self.variance)

    @property
    def second_moment(self) -> float:
        """E[(q·k)²] = variance + mean²: what an aligned pair (mean ≠ 0) makes large."""
        return self.variance + self.mean**2


def sample_dot_products(
    head_dim: int,
    size: int,
    *,
    rng: np.random.Generator,
    mean_q: float = 0.0,
    mean_k: float = 0.0,
    std_q: float = 1.0,
    std_k: float = 1.0,
    correlation: float = 0.0,
) -> NDArray[np.float64]:
    """Draw normal q and k coordinate by coordinate and return their dot products.

    Nothing about the law of the sum is assumed: every one of the ``2 · head_dim · size``
    coordinates is drawn. Memory stays bounded, because only a block of rows exists at a time.

    Parameters
    ----------
    head_dim : int
        d_k, the number of components of one head's query.
    size : int
        Number of independent dot products.
    rng : numpy.random.Generator
        Source of randomness.
    mean_q, mean_k, std_q, std_k : float
        Mean and standard deviation of each component of q and of k.
    correlation : float
        Correlation of q_i with k_i, in [−1, 1]; different coordinates are independent.

    Returns
    -------
    ndarray of float64, shape (size,)

    Raises
    ------
    ValueError
        If a count is no positive integer, a standard deviation is negative, a number is not
        finite or `correlation` leaves [−1, 1].
    TypeError
        If `rng` is no NumPy Generator.
    """
    head_dim = _checks.positive_int("head_dim", head_dim)
    size = _checks.positive_int("size", size)
    rng = _checks.numpy_generator(rng)
    _check_components(mean_q, mean_k, std_q, std_k, correlation)
    independent_part = math.sqrt(1.0 - correlation**2)

    products = np.empty(size)
    rows = max(1, _CHUNK_COORDINATES // head_dim)
    for start in range(0, size, rows):
        block = products[start : start + rows]
        q = rng.standard_normal((block.size, head_dim))
        k = rng.standard_normal((block.size, head_dim))
        if correlation:
            k *= independent_part
            k += correlation * q  # still N(0, 1), now correlated with q
        if (mean_q, std_q) != (0.0, 1.0):
            q = mean_q + std_q * q
        if (mean_k, std_k) != (0.0, 1.0):
            k = mean_k + std_k * k
        np.einsum("nd,nd->n", q, k, out=block)
    return products


def iid_moments(
    head_dim: int,
    *,
    mean_q: float = 0.0,
    mean_k: float = 0.0,
    std_q: float = 1.0,
    std_k: float = 1.0,
    correlation: float = 0.0,
) -> Moments:
    r"""Mean and variance of q·k when the pairs (q_i, k_i) are i.i.d. over coordinates.

    .. math::
        \mathbb{E}[q \cdot k] &= d\,(\mu_q\mu_k + \rho\,\sigma_q\sigma_k) \\
        \operatorname{Var}(q \cdot k) &= d\,\bigl[(1+\rho^2)\,\sigma_q^2\sigma_k^2
            + \sigma_q^2\mu_k^2 + \sigma_k^2\mu_q^2 + 2\rho\,\sigma_q\sigma_k\,\mu_q\mu_k\bigr]

    With zero means, unit variances and ρ = 0 the variance is d: the case of the paper's
    footnote. The mean holds for any law with these moments. The variance at ρ = 0 holds for any
    such law in which q and k are *independent*; uncorrelated is not enough. k = ±q for normal q is
    uncorrelated with q, yet Var(q·k) is d² + 2d with one random sign for the whole vector and 3d
    with a sign per coordinate. The terms in ρ need (q_i, k_i) to be jointly normal.

    Parameters
    ----------
    head_dim, mean_q, mean_k, std_q, std_k, correlation
        As for `sample_dot_products`.

    Returns
    -------
    Moments

    Raises
    ------
    ValueError
        As for `sample_dot_products`.

    References
    ----------
    Vaswani et al. (2017), §3.2.1, footnote 4, for the case of variance d_k.
    """
    d = _checks.positive_int("head_dim", head_dim)
    _check_components(mean_q, mean_k, std_q, std_k, correlation)
    covariance = correlation * std_q * std_k
    return Moments(
        mean=d * (mean_q * mean_k + covariance),
        variance=d
        * (
            (std_q * std_k) ** 2
            + covariance**2
            + (std_q * mean_k) ** 2
            + (std_k * mean_q) ** 2
            + 2 * covariance * mean_q * mean_k
        ),
    )


def gaussian_moments(
    mean_q: ArrayLike,
    mean_k: ArrayLike,
    cov_q: ArrayLike,
    cov_k: ArrayLike,
    cross_cov: ArrayLike | None = None,
) -> Moments:
    r"""Mean and variance of q·k for any means and covariances.

    With :math:`C = \operatorname{Cov}(q, k)`,

    .. math::
        \mathbb{E}[q \cdot k] &= \mu_q^\top\mu_k + \operatorname{tr} C \\
        \operatorname{Var}(q \cdot k) &= \operatorname{tr}(\Sigma_q\Sigma_k)
            + \mu_q^\top\Sigma_k\,\mu_q + \mu_k^\top\Sigma_q\,\mu_k
            + \operatorname{tr}(C\,C) + 2\,\mu_k^\top C\,\mu_q .

    Write q = μ_q + a and k = μ_k + b. The parts linear in a and b give the three terms with
    means; Isserlis' theorem for E[a_i b_i a_j b_j] gives the two traces; the mixed third moments
    of a centred Gaussian vanish.

    Parameters
    ----------
    mean_q, mean_k : array_like, shape (d,)
    cov_q, cov_k : array_like, shape (d, d)
        Symmetric positive semi-definite.
    cross_cov : array_like, shape (d, d), optional
        ``cross_cov[i, j]`` = Cov(q_i, k_j). None means q and k are independent; then no normality
        is needed. Otherwise (q, k) must be jointly normal.

    Returns
    -------
    Moments

    Raises
    ------
    ValueError
        If shapes disagree, a number is not finite, or the joint covariance is not one.
    """
    mu_q, mu_k = _checks.finite_array("mean_q", mean_q), _checks.finite_array("mean_k", mean_k)
    if mu_q.ndim != 1 or mu_q.size == 0 or mu_k.shape != mu_q.shape:
        raise ValueError(
            "mean_q and mean_k must be vectors of one length d >= 1, got shapes "
            f"{mu_q.shape} and {mu_k.shape}; pass np.zeros(d) for a zero mean"
        )
    d = mu_q.size
    sigma_q, sigma_k = _checks.finite_array("cov_q", cov_q), _checks.finite_array("cov_k", cov_k)
    c = np.zeros((d, d)) if cross_cov is None else _checks.finite_array("cross_cov", cross_cov)
    for name, matrix in (("cov_q", sigma_q), ("cov_k", sigma_k), ("cross_cov", c)):
        if matrix.shape != (d, d):
            raise ValueError(
                f"{name} must have shape ({d}, {d}) to fit the means, got {matrix.shape}; "
                "pass the full matrix, for example np.eye(d)"
            )
    _check_covariance(np.block([[sigma_q, c], [c.T, sigma_k]]))

    mean = mu_q @ mu_k + np.trace(c)
    variance = (
        np.sum(sigma_q * sigma_k)  # tr(Σ_q Σ_k), both symmetric
        + mu_q @ sigma_k @ mu_q
        + mu_k @ sigma_q @ mu_k
        + np.sum(c * c.T)  # tr(C C)
        + 2 * mu_k @ c @ mu_q
    )
    return Moments(float(mean), max(0.0, float(variance)))


def conditional_row_std(query: ArrayLike) -> NDArray[np.float64]:
    """Standard deviation of the logits in one softmax row: the norm of its query.

    A row of the logits shares its query. Given q, the raw logits q·k over keys with independent
    components of mean 0 and variance 1 have mean 0 and variance ‖q‖², exactly normal when the
    keys are. ‖q‖² itself is d ± √(2d) for standard normal q, so rows differ in sharpness.

    Parameters
    ----------
    query : array_like, shape (…, d)
        Finite; computed in float64.

    Returns
    -------
    ndarray of float64, shape (…)

    Raises
    ------
    ValueError
        If `query` has no last dimension, an empty one, or a non-finite number.
    """
    q = _checks.finite_array("query", query)
    if q.ndim == 0 or q.shape[-1] == 0:
        raise ValueError(
            f"query must have shape (…, d) with d >= 1, got {q.shape}; pass one vector per row"
        )
    return np.asarray(np.sqrt((q**2).sum(axis=-1)))


def excess_kurtosis(head_dim: int) -> float:
    """Excess kurtosis 6/d of q·k for independent standard normal components.

    A product of two independent standard normals has kurtosis E[q⁴]E[k⁴] = 9, an excess of 6; the
    excess of a sum of d i.i.d. terms is that of one term divided by d. At d = 64 the tails are
    close to normal, at d = 4 they are not.

    Parameters
    ----------
    head_dim : int
        d_k, at least 1.

    Returns
    -------
    float
        No unit.

    Raises
    ------
    ValueError
        If `head_dim` is no positive integer.
    """
    return 6.0 / _checks.positive_int("head_dim", head_dim)


def _check_components(
    mean_q: float, mean_k: float, std_q: float, std_k: float, correlation: float
) -> None:
    _checks.finite_number("mean_q", mean_q)
    _checks.finite_number("mean_k", mean_k)
    _checks.non_negative_number("std_q", std_q)
    _checks.non_negative_number("std_k", std_k)
    if abs(_checks.finite_number("correlation", correlation)) > 1:
        raise ValueError(
            f"correlation must lie in [-1, 1], got {correlation}; divide a covariance by both stds"
        )


def _check_covariance(joint: NDArray[np.float64]) -> None:
    """The joint covariance of (q, k) must be symmetric and have no negative eigenvalue."""
    tolerance = 1e-10 * max(1e-300, float(np.abs(joint).max()))
    if not np.allclose(joint, joint.T, rtol=0, atol=tolerance) or (
        np.linalg.eigvalsh(joint).min() < -tolerance * joint.shape[0]
    ):
        raise ValueError(
            "cov_q, cov_k and cross_cov do not form a covariance: the joint matrix "
            "[[cov_q, cross_cov], [cross_cov.T, cov_k]] must be symmetric positive semi-definite; "
            "lower the cross-covariance or symmetrise with (S + S.T) / 2"
        )
