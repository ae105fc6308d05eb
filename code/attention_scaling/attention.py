"""Scaled dot-product attention, every operation written out, and the rules for its scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, overload

import torch

from attention_scaling import _attention_parts as parts
from attention_scaling import _checks

__all__ = [
    "SCALE_RULES",
    "MaskedRows",
    "attention_logits",
    "default_scale",
    "explicit_attention",
]

#: What a query row without a single key to attend to returns.
MaskedRows = Literal["zero", "uniform", "nan"]

#: The factor on q·k as a function of head_dim (d_k): 1/√d_k, 1/d_k and 1.
SCALE_RULES: Mapping[str, Callable[[int], float]] = MappingProxyType(
    {
        "sqrt_head_dim": lambda head_dim: 1.0 / math.sqrt(head_dim),
        "head_dim": lambda head_dim: 1.0 / head_dim,
        "none": lambda head_dim: 1.0,
    }
)


def default_scale(head_dim: int) -> float:
    """The paper's factor 1/√d_k.

    Parameters
    ----------
    head_dim : int
        d_k, the number of components of one head's query; not d_model.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If `head_dim` is no positive integer.

    References
    ----------
    Vaswani et al. (2017), Eq. 1 and §3.2.1.
    """
    return SCALE_RULES["sqrt_head_dim"](_checks.positive_int("head_dim", head_dim))


def attention_logits(
    query: torch.Tensor, key: torch.Tensor, scale: float | None = None
) -> torch.Tensor:
    """Scaled logits z = scale · q kᵀ, the argument of softmax in Eq. 1 of the paper.

    Parameters
    ----------
    query : tensor, shape (…, L, E)
    key : tensor, shape (…, S, E)
        Same floating dtype as `query`; leading dimensions broadcast.
    scale : float, optional
        Any finite number, zero and negative ones included. None means 1/√E.

    Returns
    -------
    tensor, shape (…, L, S)
        Dtype of `query`. float16 and bfloat16 are computed in float32 and rounded at the end.

    Raises
    ------
    TypeError
        If an argument is no floating tensor, or dtypes or devices differ.
    ValueError
        If shapes do not fit or `scale` is not finite.
    """
    _checks.query_and_key(query, key)
    factor = (
        default_scale(query.shape[-1]) if scale is None else _checks.finite_number("scale", scale)
    )
    work = parts.working_dtype(query.dtype)
    # (…, L, E) @ (…, E, S) → (…, L, S)
    return (query.to(work) @ key.to(work).mT * factor).to(query.dtype)


@overload
def explicit_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = ...,
    dropout_p: float = ...,
    is_causal: bool = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    *,
    softcap: float | None = ...,
    sinks: torch.Tensor | float | None = ...,
    masked_rows: MaskedRows = ...,
    return_weights: Literal[False] = ...,
) -> torch.Tensor: ...


@overload
def explicit_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = ...,
    dropout_p: float = ...,
    is_causal: bool = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    *,
    softcap: float | None = ...,
    sinks: torch.Tensor | float | None = ...,
    masked_rows: MaskedRows = ...,
    return_weights: Literal[True],
) -> tuple[torch.Tensor, torch.Tensor]: ...


def explicit_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    softcap: float | None = None,
    sinks: torch.Tensor | float | None = None,
    masked_rows: MaskedRows = "zero",
    return_weights: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    r"""Attention from matmul, exp, max, sum and elementwise operations alone.

    .. math:: \operatorname{softmax}(\mathrm{scale}\cdot q k^\top + \mathrm{mask})\,v

    The arguments up to `enable_gqa` are those of PyTorch's ``scaled_dot_product_attention``, and
    on finite inputs whose logits are finite the results agree. float16 and bfloat16 inputs are
    computed in float32 and rounded once, at the end; float32 and float64 stay what they are.

    A masked pair never leaks: NaN or infinity in a masked key or value reaches neither the results
    nor the gradients of the rows that mask it (PyTorch lets 0 · NaN through).

    Parameters
    ----------
    query : tensor, shape (…, L, E)
    key : tensor, shape (…, S, E)
    value : tensor, shape (…, S, Ev)
        One floating dtype and device for all three; L, S, E ≥ 1 (L = 0 gives an empty result).
        Leading dimensions broadcast.
    attn_mask : tensor, optional
        Broadcasts to (…, L, S). Boolean: True keeps. Floating (float32 or the query's dtype):
        added to the logits, neither scaled nor capped; −inf masks.
    dropout_p : float
        Must be 0: this function is for measuring.
    is_causal : bool
        Query i sees keys 0…i, aligned at the top left also for L ≠ S. Not together with
        `attn_mask`, as PyTorch's documentation says (some of its kernels combine the two).
    scale : float, optional
        Any finite number, zero and negative ones included. None means 1/√E.
    enable_gqa : bool
        Grouped queries: dimension −3 holds H query heads and H_kv key and value heads, H_kv
        divides H, and query head h uses key head h // (H / H_kv).
    softcap : float, optional
        c > 0 replaces a logit z by c·tanh(z/c), after the scale and before the mask.
    sinks : tensor of shape (H,) or (), or float, optional
        One logit per head that joins the denominator only, neither scaled nor capped. The weights
        then sum to less than 1, and a row without keys gives all its weight to the sink.
    masked_rows : {"zero", "uniform", "nan"}
        What a row whose logits are all −inf (and which has no sink) gives: zeros as PyTorch does;
        the mean over all S values as a mask of large finite numbers does; or NaN as the bare
        formula does.
    return_weights : bool
        Also return the weights.

    Returns
    -------
    output : tensor, shape (…, L, Ev)
    weights : tensor, shape (…, L, S), only with `return_weights`
        Both in the query's dtype.

    Raises
    ------
    TypeError
        If an argument is no floating tensor, or dtypes or devices differ.
    ValueError
        If shapes do not fit, `dropout_p` is not 0, `softcap` is not positive, `scale` is not
        finite, `masked_rows` is unknown, or a mask comes together with `is_causal`.

    References
    ----------
    Vaswani et al. (2017), Eq. 1. Ainslie et al. (2023) for grouped queries. Gemma Team (2024),
    "Gemma 2", for the cap.
    """
    _checks.attention_inputs(query, key, value, attn_mask, is_causal, enable_gqa)
    _checks.attention_options(dropout_p, softcap, masked_rows)
    factor = (
        default_scale(query.shape[-1]) if scale is None else _checks.finite_number("scale", scale)
    )
    work = parts.working_dtype(query.dtype)
    q, k, v = query.to(work), key.to(work), value.to(work)

    if enable_gqa:
        k = parts.repeat_heads(k, q)  # (…, H_kv, S, E)  → (…, H, S, E)
        v = parts.repeat_heads(v, q)  # (…, H_kv, S, Ev) → (…, H, S, Ev)

    keep, bias = parts.split_mask(attn_mask, is_causal, q, 0, k.shape[-2])

    # 1. Logits, scaled, capped, masked: in this order. (…, L, E) @ (…, E, S) → (…, L, S)
    logits = parts.pairwise_logits(q, k, keep) * factor
    if softcap is not None:
        logits = softcap * (logits / softcap).tanh()
    if bias is not None:
        logits = logits + bias
    if keep is not None:
        logits = torch.where(keep, logits, -math.inf)

    # 2. Softmax over the keys. The shift m cancels, hence no gradient flows through it.
    m = logits.detach().amax(dim=-1, keepdim=True)  # (…, L, 1)
    sink = None if sinks is None else parts.sink_column(sinks, q)  # () or (H, 1, 1)
    if sink is not None:
        m = torch.maximum(m, sink.detach())
    dead = m == -math.inf  # nothing to attend to: no shift, and no 0/0 below
    m = m.masked_fill(dead, 0.0)
    exponentials = (logits - m).exp()  # masked: exp(−inf) = 0 exactly
    denominator = exponentials.sum(dim=-1, keepdim=True)  # (…, L, 1)
    if sink is not None:
        denominator = denominator + (sink - m).exp()
    weights = exponentials / torch.where(dead, 1.0, denominator)  # (…, L, S)

    # 3. Rows without a key: zero already, unless asked otherwise.
    if masked_rows == "uniform":
        weights = torch.where(dead, 1.0 / weights.shape[-1], weights)
        keep = None if keep is None else keep | dead

    # 4. Weighted mean of the values. (…, L, S) @ (…, S, Ev) → (…, L, Ev)
    output = parts.weighted_values(weights, v, keep)
    if masked_rows == "nan":
        # On the results, not before: 0 · NaN in the backward pass would reach every value.
        output, weights = (torch.where(dead, math.nan, result) for result in (output, weights))
    output = output.to(query.dtype)
    return (output, weights.to(query.dtype)) if return_weights else output
