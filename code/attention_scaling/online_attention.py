"""Attention in one pass over chunks of keys: the idea of FlashAttention in plain torch."""

from __future__ import annotations

import math
from typing import Literal, overload

import torch

from attention_scaling import _attention_parts as parts
from attention_scaling import _checks
from attention_scaling.attention import MaskedRows, default_scale

__all__ = ["online_attention"]


@overload
def online_attention(
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
    chunk_size: int = ...,
) -> torch.Tensor: ...


@overload
def online_attention(
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
    chunk_size: int = ...,
) -> tuple[torch.Tensor, torch.Tensor]: ...


def online_attention(
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
    chunk_size: int = 128,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    r"""Attention that never holds more than L × `chunk_size` logits.

    Each query carries three things from chunk to chunk: the largest logit m seen so far, the
    denominator ℓ = Σ e^{z−m} and the output o, the attention over the keys seen so far. A chunk
    with logits z and values v moves them to

    .. math::
        m' &= \max(m, \max_j z_j) \\
        \ell' &= e^{m-m'}\,\ell + \textstyle\sum_j e^{z_j-m'} \\
        o' &= \frac{e^{m-m'}\,\ell}{\ell'}\,o + \sum_j \frac{e^{z_j-m'}}{\ell'}\,v_j

    A sink is the state before the first chunk: m = sink, ℓ = 1, o = 0. Without one the state is
    m = −∞, ℓ = 0, o = 0, and a chunk that is masked as a whole leaves any state as it is.

    Results are those of `explicit_attention` for the same arguments, whatever the chunk size, and
    like there nothing of a masked pair leaks. It is one algorithm, not a safer one: the subtracted
    maximum protects e^z as in the ordinary softmax, and nothing protects a product q·k that has
    overflowed before it arrives here.

    The memory bound is that of the forward pass on finite inputs: with gradients, autograd keeps
    every chunk for the backward pass (FlashAttention computes them again instead), and where NaN
    or infinity must be kept apart pair by pair, a chunk has E times the size.

    Parameters
    ----------
    query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
        As for `explicit_attention`.
    softcap, sinks, masked_rows
        As for `explicit_attention`.
    return_weights : bool
        Also return the weights. They are L × S numbers, and the logits behind them are computed a
        second time: when the last m and ℓ are known, the weights are e^{z−m}/ℓ.
    chunk_size : int
        Number of keys looked at together; the last chunk may be shorter.

    Returns
    -------
    output : tensor, shape (…, L, Ev)
    weights : tensor, shape (…, L, S), only with `return_weights`
        Both in the query's dtype; half precision is computed in float32 and rounded at the end.

    Raises
    ------
    TypeError, ValueError
        As for `explicit_attention`; also ValueError if `chunk_size` is no positive integer.

    References
    ----------
    Milakov and Gimelshein (2018) for m and ℓ, Rabe and Staats (2021) for attention in chunks,
    Dao et al. (2022), Algorithm 1, for o kept normalised as here. FlashAttention-2 divides by ℓ
    once, at the end.
    """
    _checks.attention_inputs(query, key, value, attn_mask, is_causal, enable_gqa)
    _checks.attention_options(dropout_p, softcap, masked_rows)
    chunk_size = _checks.positive_int("chunk_size", chunk_size)
    factor = (
        default_scale(query.shape[-1]) if scale is None else _checks.finite_number("scale", scale)
    )
    work = parts.working_dtype(query.dtype)
    q, n_keys = query.to(work), key.shape[-2]
    chunks = [(start, min(start + chunk_size, n_keys)) for start in range(0, n_keys, chunk_size)]

    def columns(tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """One chunk of keys or values, a head for every query head: (…, H, chunk, E or Ev)."""
        chunk = tensor[..., start:stop, :].to(work)
        return parts.repeat_heads(chunk, q) if enable_gqa else chunk

    def masked_logits(start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits of one chunk, scaled, capped, masked, (…, L, chunk), and which are kept."""
        keep, bias = parts.split_mask(attn_mask, is_causal, q, start, stop)
        z = parts.pairwise_logits(q, columns(key, start, stop), keep) * factor
        if softcap is not None:
            z = softcap * (z / softcap).tanh()
        if bias is not None:
            z = z + bias
        return (z if keep is None else torch.where(keep, z, -math.inf)), keep

    # The state before the first key; it takes its full shape (…, L, 1) from the first chunk.
    sink = parts.sink_column(-math.inf if sinks is None else sinks, q)
    m = sink.detach()
    denominator = (sink - _shift(m)).exp()  # 1, or 0 for a sink of −inf
    output = q.new_zeros(())

    for start, stop in chunks:
        z, keep = masked_logits(start, stop)
        # The shift m cancels in the result, hence no gradient flows through it.
        m_new = torch.maximum(m, z.detach().amax(dim=-1, keepdim=True))
        earlier = (m - _shift(m_new)).exp() * denominator  # what was counted, in the new unit
        exponentials = (z - _shift(m_new)).exp()  # masked: exp(−inf) = 0 exactly
        denominator = earlier + exponentials.sum(dim=-1, keepdim=True)
        total = torch.where(m_new == -math.inf, 1.0, denominator)  # no key yet: 0/1, not 0/0
        v = columns(value, start, stop)
        output = output * (earlier / total) + parts.weighted_values(exponentials / total, v, keep)
        m = m_new

    dead = m == -math.inf  # rows without a key: zero already, unless asked otherwise
    if masked_rows == "uniform":
        mean = (value.to(work) / n_keys).sum(dim=-2, keepdim=True)
        output = torch.where(dead, parts.repeat_heads(mean, q) if enable_gqa else mean, output)
    elif masked_rows == "nan":
        output = torch.where(dead, math.nan, output)
    if not return_weights:
        return output.to(query.dtype)

    total = torch.where(dead, 1.0, denominator)
    rows = [(masked_logits(*chunk)[0] - _shift(m)).exp() / total for chunk in chunks]
    weights = torch.cat(rows, dim=-1)
    if masked_rows != "zero":
        weights = torch.where(dead, 1.0 / n_keys if masked_rows == "uniform" else math.nan, weights)
    return output.to(query.dtype), weights.to(query.dtype)


def _shift(m: torch.Tensor) -> torch.Tensor:
    """The maximum as a number that can be subtracted: −inf − (−inf) would be NaN."""
    return m.masked_fill(m == -math.inf, 0.0)
