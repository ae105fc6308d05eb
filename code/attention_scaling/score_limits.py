"""What is done to scores to keep them small: a hard clamp, and a soft cap."""

from __future__ import annotations

import math

from attention_scaling import _arrays, _checks
from attention_scaling._arrays import Array
from attention_scaling.attention import default_scale

__all__ = ["clamp_scores", "clamped_weight_ceiling", "soft_cap"]


def clamp_scores(scores: Array, limit: float = 100.0) -> Array:
    """Cut scores off at ±limit.

    Scores beyond the limit become equal, whatever they were, and their gradient is zero. Infinity
    becomes the limit, also the −∞ of a mask that was added before: clamp first, mask later. NaN
    stays NaN.

    Parameters
    ----------
    scores : tensor or ndarray
        Floating point, in the unit of `limit`.
    limit : float
        Positive.

    Returns
    -------
    tensor or ndarray
        Shape and dtype of `scores`.

    Raises
    ------
    TypeError
        If `scores` is no floating-point tensor or array.
    ValueError
        If `limit` is not positive.
    """
    limit = _checks.positive_number("limit", limit)
    return _arrays.like(
        scores, _arrays.tensor("scores", scores, min_dims=0).clamp(min=-limit, max=limit)
    )


def clamped_weight_ceiling(
    limit: float,
    head_dim: int,
    n_keys: int,
    *,
    other_scores: float = 0.0,
    scale: float | None = None,
) -> float:
    r"""The largest weight one key can get when raw scores are clamped *before* they are scaled.

    The key has the score `limit`, each of the n − 1 others the same score b:

    .. math:: p = \frac{1}{1 + (n-1)\,e^{-s\,(\mathrm{limit} - b)}}

    With b = 0, typical of unrelated keys, clamping at 100 with d_k = 512 leaves at most 7.5 % of
    the weight among 1,024 keys. With b = −limit this is the ceiling over all rows of scores; it
    takes every other key at the opposite end.

    Parameters
    ----------
    limit : float
        The clamp, on q·k before the scale. Positive.
    head_dim : int
        d_k, the number of components of one head's query.
    n_keys : int
        Number of keys in the row, the one in question included.
    other_scores : float
        b, raw and already clamped: in [−limit, limit].
    scale : float, optional
        s, positive. None means 1/√d_k. With scale = 1 the limit is one on scaled scores.

    Returns
    -------
    float
        Between 1/n and 1.

    Raises
    ------
    ValueError
        If a count is no positive integer, `limit` or `scale` is not positive, or `other_scores`
        lies beyond the clamp.
    """
    limit = _checks.positive_number("limit", limit)
    head_dim = _checks.positive_int("head_dim", head_dim)
    n_keys = _checks.positive_int("n_keys", n_keys)
    if abs(_checks.finite_number("other_scores", other_scores)) > limit:
        raise ValueError(
            f"other_scores must lie in [-limit, limit] = [-{limit}, {limit}], got {other_scores}; "
            "pass them as the clamp leaves them"
        )
    factor = default_scale(head_dim) if scale is None else _checks.positive_number("scale", scale)
    return 1.0 / (1.0 + (n_keys - 1) * math.exp(-factor * (limit - other_scores)))


def soft_cap(logits: Array, cap: float) -> Array:
    r"""Squeeze logits smoothly into (−cap, cap): :math:`c \tanh(z/c)`.

    Odd, with slope 1 at zero and :math:`1 - \tanh^2(z/c)` elsewhere: order is kept and no two
    logits become equal, until rounding makes them so, at about ±9 c in float32. Belongs after the
    scale and before the mask: a mask of −∞ would become −c, which leaves a masked key at least
    e^{−2c} times the weight of any other.

    Parameters
    ----------
    logits : tensor or ndarray
        Floating point, scaled, not masked.
    cap : float
        c, positive.

    Returns
    -------
    tensor or ndarray
        Shape and dtype of `logits`.

    Raises
    ------
    TypeError
        If `logits` is no floating-point tensor or array.
    ValueError
        If `cap` is not positive.

    References
    ----------
    Gemma Team (2024), "Gemma 2": cap 50 in attention, 30 on the final logits.
    """
    cap = _checks.positive_number("cap", cap)
    return _arrays.like(logits, cap * (_arrays.tensor("logits", logits, min_dims=0) / cap).tanh())
