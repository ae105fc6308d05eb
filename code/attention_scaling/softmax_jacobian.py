"""The derivative of softmax: its Jacobian, and norms of it that need no matrix.

All functions take the weights p = softmax(z), as torch tensors or NumPy arrays, and compute in the
dtype they are given. With an attention sink the weights sum to less than 1: J = diag(p) − p pᵀ and
its norms stay right, but J·1 = 0 no longer holds.
"""

from __future__ import annotations

import torch

from attention_scaling import _arrays
from attention_scaling._arrays import Array

__all__ = [
    "jacobian_frobenius_norm",
    "jacobian_spectral_bounds",
    "jacobian_trace",
    "jacobian_vector_product",
    "softmax_jacobian",
]


def softmax_jacobian(weights: Array) -> Array:
    r"""Jacobian of softmax at its output p: :math:`J = \operatorname{diag}(p) - p\,p^\top`.

    J is symmetric, positive semi-definite and J·1 = 0; its trace is :math:`1 - \sum_i p_i^2` and
    its spectral norm at most ½. It is zero where p is one-hot: saturation.

    Parameters
    ----------
    weights : tensor or ndarray, shape (…, n)
        Softmax outputs.

    Returns
    -------
    tensor or ndarray, shape (…, n, n)
        ``J[i, j]`` = ∂p_i/∂z_j, dtype of `weights`.

    Raises
    ------
    TypeError, ValueError
        As for `entropy`.
    """
    p = _arrays.weights(weights)
    return _arrays.like(weights, torch.diag_embed(p) - p[..., :, None] * p[..., None, :])


def jacobian_vector_product(weights: Array, vector: Array) -> Array:
    r"""J v without J: :math:`(J v)_i = p_i\,(v_i - p \cdot v)`, in O(n).

    J is symmetric, so this is also what the backward pass computes: with v = ∂L/∂p it is ∂L/∂z,
    the weights times the deviation of v from its weighted mean.

    Parameters
    ----------
    weights : tensor or ndarray, shape (…, n)
        Softmax outputs.
    vector : tensor or ndarray, shape (…, n)
        Broadcasts against `weights`.

    Returns
    -------
    tensor or ndarray, shape (…, n)

    Raises
    ------
    TypeError
        If an argument is no floating-point tensor or array.
    ValueError
        If it has no dimension, weights are negative or the shapes do not fit.
    """
    p, v = _arrays.weights(weights), _arrays.tensor("vector", vector)
    if v.shape[-1] != p.shape[-1]:
        raise ValueError(
            "vector must have one entry per key like weights, got shapes "
            f"{tuple(v.shape)} and {tuple(p.shape)}; pass (…, n) and (…, n)"
        )
    return _arrays.like(weights, p * (v - (p * v).sum(dim=-1, keepdim=True)))


def jacobian_trace(weights: Array) -> Array:
    r"""Trace of J: :math:`\sum_i p_i (1 - p_i)`, which is :math:`1 - \sum_i p_i^2` without a sink.

    All eigenvalues are at least 0, so the trace bounds the largest of them from above.

    Parameters
    ----------
    weights : tensor or ndarray, shape (…, n)
        Softmax outputs.

    Returns
    -------
    tensor or ndarray, shape (…)
        Between 0 (one-hot) and 1 − 1/n (uniform).

    Raises
    ------
    TypeError, ValueError
        As for `entropy`.
    """
    p = _arrays.weights(weights)
    return _arrays.like(weights, (p * (1.0 - p)).sum(dim=-1))


def jacobian_frobenius_norm(weights: Array) -> Array:
    r"""Frobenius norm of J, the root of the sum of its squared entries, in O(n).

    .. math::
        \lVert J \rVert_F^2 = \sum_i p_i^2 - 2 \sum_i p_i^3 + \Bigl(\sum_i p_i^2\Bigr)^2

    Near one-hot weights these three terms cancel, to a negative number even, so the sum is taken
    over parts that do not: the diagonal :math:`p_i^2 (1-p_i)^2` and, off it, twice the largest
    weight's square times the other squares, plus the pairs among the others.

    Parameters
    ----------
    weights : tensor or ndarray, shape (…, n)
        Softmax outputs.

    Returns
    -------
    tensor or ndarray, shape (…)
        Between 0 (one-hot) and ½ (two equal weights). For n equal weights √(n − 1)/n.

    Raises
    ------
    TypeError, ValueError
        As for `entropy`.
    """
    p = _arrays.weights(weights)
    squares = p * p
    top = squares.amax(dim=-1)
    others = squares.scatter(-1, squares.argmax(dim=-1, keepdim=True), 0.0)
    rest = others.sum(dim=-1)
    diagonal = (squares * (1.0 - p) ** 2).sum(dim=-1)
    off_diagonal = 2.0 * top * rest + rest**2 - (others**2).sum(dim=-1)
    return _arrays.like(weights, (diagonal + off_diagonal).sqrt())


def jacobian_spectral_bounds(weights: Array) -> tuple[Array, Array]:
    r"""Bounds on the largest eigenvalue of J, which is also its spectral norm, in O(n).

    .. math::
        \max_i p_i(1-p_i) \;\le\; \lVert J \rVert_2 \;\le\; 2 \max_i p_i(1-p_i) \;\le\; \tfrac12

    The lower bound is the largest diagonal entry. The upper one is Gershgorin's: row i has the
    diagonal p_i(1−p_i), and the moduli of its other entries sum to no more than that again. Equal
    weights on two keys reach ½.

    Parameters
    ----------
    weights : tensor or ndarray, shape (…, n)
        Softmax outputs.

    Returns
    -------
    (lower, upper) : tensors or ndarrays, shape (…)

    Raises
    ------
    TypeError, ValueError
        As for `entropy`.
    """
    p = _arrays.weights(weights)
    lower = (p * (1.0 - p)).amax(dim=-1)
    return _arrays.like(weights, lower), _arrays.like(weights, 2.0 * lower)
