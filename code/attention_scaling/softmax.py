"""Softmax in its naive and its safe form, and how spread its weights are.

Softmax in one pass stands in `online_softmax`, its derivative in `softmax_jacobian`, and when it
saturates in `saturation`.

All functions take torch tensors; NumPy arrays go in and come out as NumPy arrays. They compute in
the dtype they are given, so that the effect of a number format can be seen, and use nothing but
exp, log, max, sum and elementwise operations.
"""

from __future__ import annotations

import torch

from attention_scaling import _arrays
from attention_scaling._arrays import Array

__all__ = ["effective_keys", "entropy", "naive_softmax", "softmax"]


def naive_softmax(logits: Array, dim: int = -1) -> Array:
    r"""Softmax as the formula is written: :math:`p_i = e^{z_i} / \sum_j e^{z_j}`.

    It overflows, and that is its point: one logit above ln of the format's largest number (88.7 in
    float32, 11.1 in float16) makes e^z infinite and inf/inf NaN.

    Parameters
    ----------
    logits : tensor or ndarray
        Floating point, at least one dimension, no unit.
    dim : int
        Dimension that holds the keys.

    Returns
    -------
    tensor or ndarray
        Shape and dtype of `logits`.

    Raises
    ------
    TypeError
        If `logits` is no floating-point tensor or array.
    ValueError
        If it has no dimension.
    IndexError
        If `dim` is not one of its dimensions.
    """
    exponentials = _arrays.tensor("logits", logits).exp()
    return _arrays.like(logits, exponentials / exponentials.sum(dim=dim, keepdim=True))


def softmax(logits: Array, dim: int = -1) -> Array:
    r"""Softmax that cannot overflow: the maximum is subtracted first.

    .. math:: p_i = e^{z_i - m} / \sum_j e^{z_j - m}, \qquad m = \max_j z_j

    Softmax does not see a constant added to all logits, so the shift changes nothing but the range
    of the exponentials, now (0, 1]. A row of −inf alone has no maximum to subtract and gives NaN;
    what such a row should mean is for the attention function to say (`masked_rows`).
    A row with +inf or NaN gives NaN.

    Parameters, return value and errors are those of `naive_softmax`.

    References
    ----------
    Blanchard, Higham and Higham (2021), "Accurately computing the log-sum-exp and softmax
    functions".
    """
    z = _arrays.tensor("logits", logits)
    # The shift cancels, hence no gradient flows through it.
    exponentials = (z - z.detach().amax(dim=dim, keepdim=True)).exp()
    return _arrays.like(logits, exponentials / exponentials.sum(dim=dim, keepdim=True))


def entropy(weights: Array, dim: int = -1) -> Array:
    r"""Shannon entropy :math:`H = -\sum_i p_i \ln p_i` of attention weights, in nats.

    0 · ln 0 counts as 0. H runs from 0 (one key has all the weight) to ln n (uniform). Weights are
    taken as they are: with an attention sink they sum to less than 1, and so does what is counted.

    Parameters
    ----------
    weights : tensor or ndarray
        Not negative, floating point; softmax outputs, not logits.
    dim : int
        Dimension that holds the keys; it is summed away.

    Returns
    -------
    tensor or ndarray
        In nats, dtype of `weights`.

    Raises
    ------
    TypeError
        If `weights` is no floating-point tensor or array.
    ValueError
        If it has no dimension or a negative entry.
    IndexError
        If `dim` is not one of its dimensions.
    """
    p = _arrays.weights(weights)
    # ln 1 = 0 stands in for ln 0, in the value and in the gradient. NaN stays NaN.
    logarithms = torch.where(p > 0, p, 1.0).log()
    # 0 - 0 is 0, while -(0) would print as -0.
    return _arrays.like(weights, 0.0 - (p * logarithms).sum(dim=dim))


def effective_keys(weights: Array, dim: int = -1) -> Array:
    """Number of keys that share the weight: exp(entropy), between 1 and n.

    n equal weights give n. Also called perplexity of the attention row.

    Parameters, return value (a count, no unit) and errors are those of `entropy`.
    """
    h = entropy(_arrays.tensor("weights", weights), dim)
    return _arrays.like(weights, h.exp())
