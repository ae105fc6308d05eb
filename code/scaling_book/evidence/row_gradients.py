"""Gradients that one row of attention passes on at initialisation: an exact sampler, and a law.

One query q, n keys k_j and values v_j, all entries N(0, 1), and o = Σ p_j v_j with the weights
p = softmax(s q·k_j). The gradient g that comes from above has entries N(0, 1/d_k), so that
E‖g‖² = 1, and L = g·o. With u_j = g·v_j and J = diag(p) − p pᵀ,

    ∂L/∂z = J u,   ∂L/∂q = s Kᵀ J u,   ‖∂L/∂K‖ = s ‖q‖ ‖J u‖,   ‖∂L/∂V‖ = ‖p‖ ‖g‖.

The n · d_k entries of K and of V need not be drawn. Given q and g, the components a_j of the keys
along q are N(0, 1), the u_j are N(0, ‖g‖²), and all of these are independent. What is left of K is
orthogonal to q and independent of p, so Kᵀ J u has the component Σ_j (J u)_j a_j along q, and
across it a normal vector of length ‖J u‖ χ with d_k − 1 degrees of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scaling_book.evidence.normal_rows import NormalRows, over_query_norms

Samples = NDArray[np.float64]

_CHUNK = 1 << 16  # logits drawn at once: a few arrays of 0.5 MB, which stay in cache


@dataclass(frozen=True)
class RowGradients:
    """Norms of the gradients of many rows, and their largest weights.

    Parameters
    ----------
    logits, query, keys, values
        ‖∂L/∂z‖, ‖∂L/∂q‖, ‖∂L/∂K‖ and ‖∂L/∂V‖, each of shape (size,).
    top
        max p, of the same shape.
    """

    logits: Samples
    query: Samples
    keys: Samples
    values: Samples
    top: Samples


def sample_row_gradients(
    head_dim: int,
    n_keys: int,
    size: int,
    *,
    scales: Sequence[float],
    rng: np.random.Generator,
) -> list[RowGradients]:
    """Draw gradients of independent rows; each draw meets every scale.

    Parameters
    ----------
    head_dim, n_keys
        d_k, at least 2, and the number of keys.
    size
        Number of rows.
    scales
        The factors on q·k.
    rng
        Source of randomness.

    Returns
    -------
    list of RowGradients
        One for each scale.
    """
    found = [np.empty((5, size)) for _ in scales]
    rows = max(1, _CHUNK // n_keys)
    for start in range(0, size, rows):
        count = min(rows, size - start)
        a, u = rng.standard_normal((2, count, n_keys))
        q, g = np.sqrt(rng.chisquare(head_dim, (2, count)))
        across = np.sqrt(rng.chisquare(head_dim - 1, count))
        g /= math.sqrt(head_dim)
        top = a.argmax(axis=1, keepdims=True)
        a_top = np.take_along_axis(a, top, axis=1)
        # J does not see a constant added to u. With u = 0 at the largest weight, no digit is lost
        # when that weight is close to 1.
        u -= np.take_along_axis(u, top, axis=1)
        for scale, result in zip(scales, found, strict=True):
            p = np.exp((scale * q)[:, None] * (a - a_top))
            p /= p.sum(axis=1, keepdims=True)
            mean = np.einsum("ij,ij->i", p, u)
            passed = p * (u - mean[:, None])  # J u
            length = np.linalg.norm(passed, axis=1)
            along = np.einsum("ij,ij->i", passed, a)
            result[:, start : start + count] = (
                g * length,
                scale * g * np.hypot(along, length * across),
                scale * g * q * length,
                g * np.linalg.norm(p, axis=1),
                np.take_along_axis(p, top, axis=1)[:, 0],
            )
    return [RowGradients(*result) for result in found]


def squared_query_gradient(head_dim: int, n_keys: int, scale: float) -> float:
    """E‖∂L/∂q‖² = s² E[(d_k − 1) ‖J‖²_F + Σ p²(a − p·a)²], by quadrature.

    The mean over u of ‖J u‖² is ‖J‖²_F, and that of (Σ (J u)_j a_j)² is ‖J a‖².
    """

    def given_query(rows: NormalRows) -> float:
        along = (
            rows.mean_product(n_keys, (2, 2))
            - 2 * rows.mean_product(n_keys, (1, 1), (2, 1))
            + rows.mean_product(n_keys, (1, 1), (1, 1), (2, 0))
        )
        return (head_dim - 1) * rows.squared_jacobian(n_keys) + along

    return scale**2 * over_query_norms(head_dim, scale, given_query)


def fourth_power_of_query_gradient(head_dim: int, n_keys: int, scale: float) -> float:
    """E‖∂L/∂q‖⁴ to leading order in 1/d_k: what the error of an estimate of the square needs.

    The mean over u of ‖J u‖⁴ is ‖J‖⁴_F + 2 tr J⁴. The component along q is left out.
    """

    def given_query(rows: NormalRows) -> float:
        return rows.fourth_power_of_jacobian(n_keys) + 2 * rows.trace_of_fourth_power(n_keys)

    across, upstream = head_dim**2 - 1, (head_dim + 2) / head_dim  # E χ⁴ and E‖g‖⁴
    return scale**4 * upstream * across * over_query_norms(head_dim, scale, given_query)
