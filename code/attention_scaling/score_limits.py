"""What is done to keep scores small: a hard clamp, a soft cap, and QK-clip on the weights."""

from __future__ import annotations

import math

import torch

from attention_scaling import _arrays, _checks
from attention_scaling._arrays import Array
from attention_scaling.attention import default_scale

__all__ = ["clamp_scores", "clamped_weight_ceiling", "qk_clip", "soft_cap"]


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


def qk_clip(
    w_q: torch.Tensor,
    w_k: torch.Tensor,
    max_logits: torch.Tensor,
    threshold: float,
    *,
    alpha: float = 0.5,
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""Shrink the query and key weights of heads whose largest logit exceeds a threshold.

    Head by head, after a training step, with S the largest scaled logit that was seen and τ the
    threshold:

    .. math:: \gamma = \min(1, \tau / S), \qquad
              W_Q \leftarrow \gamma^{\alpha}\, W_Q, \qquad
              W_K \leftarrow \gamma^{1-\alpha}\, W_K

    Logits are bilinear in the two, so that the same inputs now give at most τ. Heads with S ≤ τ
    keep their weights, in particular those whose S is zero or negative, for which τ/S would be
    infinite or would turn signs round.

    With grouped queries (fewer key heads than query heads) a key head serves several heads, of
    which some may need no clip. Then the keys stay as they are and the queries take all of γ,
    whatever `alpha` says: each head is clipped by its own maximum alone.

    Biases of the two projections have to be multiplied like the weights. Where QK-norm follows, the
    clip has no effect: the norm undoes it.

    Parameters
    ----------
    w_q : tensor, shape (H·d, d_model)
        Of ``torch.nn.Linear``: the rows of head h are h·d … (h+1)·d − 1.
    w_k : tensor, shape (H_kv·d, d_model)
        H_kv divides H; query head h uses key head h // (H / H_kv). Same d, dtype and device.
    max_logits : tensor, shape (H,)
        S of each query head, finite: its largest logit after the factor, over the pairs that
        softmax sees, or over all, which is never less and may clip more.
    threshold : float
        τ, positive.
    alpha : float
        Share of the queries in the clip, between 0 and 1.

    Returns
    -------
    w_q, w_k : tensor
        New tensors of the same shapes and dtypes.

    Raises
    ------
    TypeError
        If an argument is no floating-point tensor, or dtypes or devices differ.
    ValueError
        If shapes do not fit, a maximum is not finite, or `threshold` or `alpha` is out of range.

    References
    ----------
    Kimi Team (2025), "Kimi K2: Open Agentic Intelligence", §2, where τ = 100 and α = 1/2. There the
    rotary key that all heads share stays as it is, for the same reason as the grouped keys here.
    """
    threshold = _checks.positive_number("threshold", threshold)
    if not 0 <= _checks.finite_number("alpha", alpha) <= 1:
        raise ValueError(
            f"alpha must lie between 0 and 1, got {alpha}; pass 0.5 to share the clip evenly"
        )
    heads, key_heads = _clipped_heads(w_q, w_k, max_logits)

    too_large = max_logits > threshold
    # No division by a maximum of zero or below; and where nothing is done, exactly 1.
    ratio = threshold / max_logits.double().clamp(min=threshold)
    gamma = torch.where(too_large, ratio, 1.0)  # (H,)
    if key_heads < heads:
        return _scale_heads(w_q, gamma), w_k.clone()
    return _scale_heads(w_q, gamma**alpha), _scale_heads(w_k, gamma ** (1 - alpha))


def _scale_heads(weight: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Multiply the rows of each head by its factor."""
    rows = weight.reshape(len(factors), -1, weight.shape[-1])  # (H, d, d_model)
    return (rows * factors[:, None, None]).to(weight.dtype).reshape(weight.shape)


def _clipped_heads(
    w_q: torch.Tensor, w_k: torch.Tensor, max_logits: torch.Tensor
) -> tuple[int, int]:
    """Check the tensors of `qk_clip` and return H and H_kv."""
    for name, tensor in (("w_q", w_q), ("w_k", w_k), ("max_logits", max_logits)):
        _checks.floating_tensor(name, tensor, min_dims=1)
    if w_k.dtype != w_q.dtype or not w_q.device == w_k.device == max_logits.device:
        raise TypeError(
            f"w_q, w_k and max_logits must live on one device and the weights share a dtype, got "
            f"{w_q.dtype} on {w_q.device}, {w_k.dtype} on {w_k.device} and {max_logits.device}; "
            "convert them with to()"
        )
    heads = max_logits.numel()
    if max_logits.dim() != 1 or heads == 0 or not bool(max_logits.isfinite().all()):
        raise ValueError(
            f"max_logits must hold one finite number for each query head, got shape "
            f"{tuple(max_logits.shape)}: {max_logits.tolist()}; take the maximum before the mask"
        )
    shapes = f"w_q {tuple(w_q.shape)} and w_k {tuple(w_k.shape)} for {heads} query head(s)"
    if w_q.dim() != 2 or w_k.dim() != 2 or w_q.shape[0] == 0 or w_q.shape[0] % heads:
        raise ValueError(
            f"w_q must be (H·d, d_model) and w_k (H_kv·d, d_model), got {shapes}; "
            "pass Linear weights, rows of one head together"
        )
    head_dim = w_q.shape[0] // heads
    key_heads, rest = divmod(w_k.shape[0], head_dim)
    if rest or key_heads == 0 or heads % key_heads:
        raise ValueError(
            f"the key heads must have the queries' d = {head_dim} rows each and their number must "
            f"divide that of the query heads, got {shapes}; check H in max_logits"
        )
    return heads, key_heads
