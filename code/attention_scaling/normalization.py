"""LayerNorm, RMSNorm and L2 normalisation, and what they are when applied to q and k."""

from __future__ import annotations

from typing import Literal

import torch

from attention_scaling import _checks
from attention_scaling._attention_parts import working_dtype

__all__ = ["l2_norm", "layer_norm", "qk_norm", "rms_norm"]


def layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    r"""LayerNorm over the last dimension: subtract the mean, divide by the standard deviation.

    .. math:: y_i = \frac{x_i - \mu}{\sqrt{\sigma^2 + \varepsilon}}\, w_i + b_i,
              \qquad \mu = \tfrac1d \sum_i x_i, \quad \sigma^2 = \tfrac1d \sum_i (x_i - \mu)^2

    Without w and b the result has mean 0 and mean square σ²/(σ² + ε), a little below 1: norm √d.
    Neither a constant added to x nor (as far as ε is negligible) a positive factor is seen. That is
    for exact arithmetic: the mean is rounded once, and where σ is no larger than that error, as for
    a constant vector of large numbers in float32, the result is the error divided by √ε.

    Parameters
    ----------
    x : tensor, shape (…, d)
    weight, bias : tensor, optional
        Gain and shift; broadcast against x, usually of shape (d,).
    eps : float
        Added to the variance, inside the root. Not negative.

    Returns
    -------
    tensor, shape (…, d)
        Dtype of `x`. float16 and bfloat16 are computed in float32 and rounded at the end.

    Raises
    ------
    TypeError
        If a tensor is none, not floating, or on another device than `x`.
    ValueError
        If `x` has no last dimension or an empty one, a parameter does not broadcast to its shape,
        or `eps` is negative.

    References
    ----------
    Ba, Kiros and Hinton (2016), "Layer normalization", §3.
    """
    work = _input(x, eps)
    centred = work - _mean(work)
    y = centred / (_mean(centred**2) + eps).sqrt()
    return _affine(y, x, weight, bias)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None = None, eps: float = 1e-6
) -> torch.Tensor:
    r"""RMSNorm over the last dimension: divide by the root mean square, subtract nothing.

    .. math:: y_i = \frac{x_i}{\sqrt{\frac1d \sum_j x_j^2 + \varepsilon}}\, w_i

    Equal to LayerNorm without bias where the mean of x is 0, and only there. ε stands inside the
    root; √ + ε, outside, is another function for small x. Implementations differ in its size
    (T5, LLaMA: 1e-6, LLaMA 2 and 3: 1e-5, ``torch.nn.RMSNorm``: the format's eps), and Gemma
    multiplies by 1 + w.

    Parameters
    ----------
    x : tensor, shape (…, d)
    weight : tensor, optional
        Gain; broadcasts against x, usually of shape (d,).
    eps : float
        Added to the mean square, inside the root. Not negative.

    Returns
    -------
    tensor, shape (…, d)
        Dtype of `x`. float16 and bfloat16 are computed in float32 and rounded at the end.

    Raises
    ------
    TypeError, ValueError
        As for `layer_norm`.

    References
    ----------
    Zhang and Sennrich (2019), "Root mean square layer normalization".
    """
    work = _input(x, eps)
    return _affine(work / (_mean(work**2) + eps).sqrt(), x, weight, None)


def l2_norm(x: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    r"""Divide by the Euclidean norm: :math:`x / \sqrt{\sum_j x_j^2 + \varepsilon}`.

    RMSNorm divided by √d, with d·ε in place of ε: the products of such q and k are cosines.

    Parameters
    ----------
    x : tensor, shape (…, d)
    eps : float
        Added to the squared norm, inside the root. Not negative.

    Returns
    -------
    tensor, shape (…, d)
        Dtype of `x`; its norm is below 1, rounding apart.

    Raises
    ------
    TypeError, ValueError
        As for `layer_norm`.
    """
    work = _input(x, eps)
    return _affine(work / ((work**2).sum(dim=-1, keepdim=True) + eps).sqrt(), x, None, None)


def qk_norm(
    query: torch.Tensor,
    key: torch.Tensor,
    query_weight: torch.Tensor | None = None,
    key_weight: torch.Tensor | None = None,
    *,
    kind: Literal["rms", "layer", "l2"] = "rms",
    full_width: bool = False,
    eps: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""Normalise q and k before their product, which bounds every logit.

    With unit gain and "rms" or "layer", ‖q‖ and ‖k‖ are at most √d, so abs(q·k) ≤ d, and with the
    factor 1/√d a logit is at most √d. With "l2", abs(q·k) ≤ 1: without a factor above 1 a softmax
    over n keys then gives no key more than e²/(e² + n − 1).

    Parameters
    ----------
    query : tensor, shape (…, H, L, E)
    key : tensor, shape (…, H_kv, S, E)
        With `full_width` both need the head dimension, at −3.
    query_weight, key_weight : tensor, optional
        Gains: shape (E,), or (H·E,) and (H_kv·E,) with `full_width`. Not for "l2".
    kind : {"rms", "layer", "l2"}
        `rms_norm` (Qwen 3, Gemma 3), `layer_norm` without bias (an option of Command R), or
        `l2_norm` (Henry et al., 2020).
    full_width : bool
        Normalise all heads of a token together, before they are split (OLMo 2), instead of each
        alone. Heads then keep their relative sizes, and abs(q·k) in one head can reach H·E.
    eps : float
        As for the normalisation chosen.

    Returns
    -------
    (query, key) : tensors
        Shapes and dtype as they came.

    Raises
    ------
    TypeError, ValueError
        As for `layer_norm` and `attention_logits`; also ValueError if `kind` is unknown, a gain is
        given for "l2", or `full_width` meets tensors without heads.

    References
    ----------
    Henry et al. (2020), "Query-key normalization for transformers".
    """
    _checks.query_and_key(query, key)
    if kind not in ("rms", "layer", "l2"):
        raise ValueError(
            f"kind must be 'rms', 'layer' or 'l2', got {kind!r}; most models use 'rms'"
        )
    if kind == "l2" and (query_weight is not None or key_weight is not None):
        raise ValueError(
            "kind='l2' takes no query_weight or key_weight, expected None; its one learned number "
            "is the factor on the logits: pass it as scale to the attention function"
        )
    if full_width and min(query.dim(), key.dim()) < 3:
        raise ValueError(
            f"full_width needs a head dimension at -3, got shapes {tuple(query.shape)} and "
            f"{tuple(key.shape)}; pass (…, H, L, E), or full_width=False"
        )

    def normalise(x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        if kind == "rms":
            return rms_norm(x, weight, eps)
        return layer_norm(x, weight, eps=eps) if kind == "layer" else l2_norm(x, eps)

    def one(x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        if not full_width:
            return normalise(x, weight)
        heads, width = x.shape[-3], x.shape[-1]
        together = x.transpose(-3, -2).flatten(-2)  # (…, H, L, E) → (…, L, H·E)
        normal = normalise(together, weight)
        return normal.reshape(*normal.shape[:-1], heads, width).transpose(-3, -2)

    return one(query, query_weight), one(key, key_weight)


def _input(x: torch.Tensor, eps: float) -> torch.Tensor:
    """Check x and eps and return x in the dtype to compute in."""
    _checks.floating_tensor("x", x, min_dims=1)
    if x.shape[-1] == 0:
        raise ValueError(
            f"x must have features in its last dimension, got shape {tuple(x.shape)}; pass (…, d)"
        )
    _checks.non_negative_number("eps", eps)
    return x.to(working_dtype(x.dtype))


def _mean(x: torch.Tensor) -> torch.Tensor:
    return x.sum(dim=-1, keepdim=True) / x.shape[-1]


def _affine(
    y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
) -> torch.Tensor:
    """Apply gain and shift and return to the dtype of x."""
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is None:
            continue
        _checks.floating_tensor(name, parameter)
        if parameter.device != x.device:
            raise TypeError(
                f"{name} must be on {x.device} like x, got {parameter.device}; move one of them"
            )
        try:
            parameter.expand(x.shape)
        except RuntimeError:
            raise ValueError(
                f"{name} of shape {tuple(parameter.shape)} does not broadcast to x of shape "
                f"{tuple(x.shape)}; pass one number per feature, ({x.shape[-1]},)"
            ) from None
        y = y * parameter.to(y.dtype) if name == "weight" else y + parameter.to(y.dtype)
    return y.to(x.dtype)
