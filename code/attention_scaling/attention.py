"""Scaled dot-product attention, every operation written out, and the rules for its scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, overload

import torch

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
    work = _working_dtype(query.dtype)
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
    on finite inputs the results agree. float16 and bfloat16 inputs are computed in float32 and
    rounded once, at the end; float32 and float64 stay what they are.

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
    work = _working_dtype(query.dtype)
    q, k, v = query.to(work), key.to(work), value.to(work)

    if enable_gqa:
        group = query.shape[-3] // key.shape[-3]
        k = k.repeat_interleave(group, dim=-3)  # (…, H_kv, S, E)  → (…, H, S, E)
        v = v.repeat_interleave(group, dim=-3)  # (…, H_kv, S, Ev) → (…, H, S, Ev)

    keep, bias = _split_mask(attn_mask, is_causal, q, k)

    # 1. Logits, scaled, capped, masked: in this order. (…, L, E) @ (…, E, S) → (…, L, S)
    logits = _pairwise_logits(q, k, keep) * factor
    if softcap is not None:
        logits = softcap * (logits / softcap).tanh()
    if bias is not None:
        logits = logits + bias
    if keep is not None:
        logits = torch.where(keep, logits, -math.inf)

    # 2. Softmax over the keys. The shift m cancels, hence no gradient flows through it.
    m = logits.detach().amax(dim=-1, keepdim=True)  # (…, L, 1)
    sink = None if sinks is None else _sink_column(sinks, q)  # () or (H, 1, 1)
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
    elif masked_rows == "nan":
        weights = torch.where(dead, math.nan, weights)

    # 4. Weighted mean of the values. (…, L, S) @ (…, S, Ev) → (…, L, Ev)
    output = _weighted_values(weights, v, keep).to(query.dtype)
    return (output, weights.to(query.dtype)) if return_weights else output


def _working_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype == torch.float64 else torch.float32


def _split_mask(
    attn_mask: torch.Tensor | None, is_causal: bool, q: torch.Tensor, k: torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return which pairs are kept, (…, L, S) boolean, and what is added to their logits."""
    if is_causal:
        # True on and below the diagonal that starts at the top left.
        return torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril(), None
    if attn_mask is None:
        return None, None
    if attn_mask.dtype == torch.bool:
        return attn_mask, None
    return attn_mask != -math.inf, attn_mask.to(q.dtype)


def _pairwise_logits(q: torch.Tensor, k: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
    """q kᵀ, with masked pairs free of NaN and infinity (their value is of no account)."""
    if keep is None or (q.isfinite().all() and k.isfinite().all()):
        return q @ k.mT
    # The backward pass multiplies a zero gradient by k_j, and 0 · NaN is NaN. Zeros in place of
    # masked vectors, pair by pair, keep it out; slow, but only non-finite inputs come here.
    q_pairs = torch.where(keep[..., None], q[..., :, None, :], 0.0)  # (…, L, S, E)
    k_pairs = torch.where(keep[..., None], k[..., None, :, :], 0.0)  # (…, L, S, E)
    return (q_pairs * k_pairs).sum(dim=-1)


def _weighted_values(
    weights: torch.Tensor, v: torch.Tensor, keep: torch.Tensor | None
) -> torch.Tensor:
    """Weights times values, with masked pairs left out rather than multiplied by 0."""
    if keep is None or v.isfinite().all():
        return weights @ v
    v_pairs = torch.where(keep[..., None], v[..., None, :, :], 0.0)  # (…, L, S, Ev)
    return (weights[..., None] * v_pairs).sum(dim=-2)


def _sink_column(sinks: torch.Tensor | float, q: torch.Tensor) -> torch.Tensor:
    """Sink logits in a shape that broadcasts against (…, H, L, 1)."""
    sink = torch.as_tensor(sinks, dtype=q.dtype, device=q.device)
    if sink.dim() == 0:
        return sink
    if q.dim() < 3 or sink.shape != q.shape[-3:-2]:
        heads = f"({q.shape[-3]},)" if q.dim() >= 3 else "() as there is no head dimension"
        raise ValueError(
            f"sinks must hold one logit per query head, shape {heads}, got {tuple(sink.shape)}; "
            "pass one number to share it among the heads"
        )
    return sink[:, None, None]  # (H,) → (H, 1, 1)
