"""PyTorch's own attention behind the signature of this library, and one front door to all paths."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch.nn import functional

from attention_scaling import _checks
from attention_scaling.attention import MaskedRows, explicit_attention
from attention_scaling.online_attention import online_attention

__all__ = ["fused_attention", "scaled_dot_product_attention"]


def fused_attention(
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
) -> torch.Tensor:
    """Attention by ``torch.nn.functional.scaled_dot_product_attention``, never by anything else.

    The arguments are those of `explicit_attention`. Four of them PyTorch's kernels have no notion
    of; they are refused instead of being computed on another path under this name.
    `scaled_dot_product_attention` of this library chooses a path that can.

    On finite inputs with finite logits the results are those of `explicit_attention`, rounding
    apart: in float16 and bfloat16 a kernel may round the weights to half precision before they
    meet the values. What differs by choice: PyTorch multiplies the values of masked keys by 0, so
    NaN or infinity among them reaches the output.

    Parameters
    ----------
    query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
        As for `explicit_attention`.
    softcap, sinks
        None only.
    masked_rows : {"zero"}
        PyTorch returns zeros for a row without a key.
    return_weights : bool
        False only: the weights never exist as a whole.

    Returns
    -------
    tensor, shape (…, L, Ev)
        In the query's dtype.

    Raises
    ------
    NotImplementedError
        If `softcap`, `sinks`, another policy for `masked_rows`, or the weights are asked for.
    TypeError, ValueError
        As for `explicit_attention`.
    """
    _checks.attention_inputs(query, key, value, attn_mask, is_causal, enable_gqa)
    _checks.attention_options(dropout_p, softcap, masked_rows)
    asked = {
        "softcap": softcap is not None,
        "sinks": sinks is not None,
        "masked_rows": masked_rows != "zero",
        "return_weights": return_weights,
    }
    if any(asked.values()):
        names = ", ".join(name for name, is_asked in asked.items() if is_asked)
        raise NotImplementedError(
            f"PyTorch's fused kernels cannot do what was asked for by {names}; call "
            "online_attention or explicit_attention with the same arguments"
        )
    if scale is not None:
        scale = _checks.finite_number("scale", scale)
        if scale <= 0:
            # PyTorch's causal kernel for the CPU multiplies its mask by the scale as well, and
            # 0·(−∞) is NaN. With the sign, or the zero, on the query it is the same attention.
            query, scale = (-query, -scale) if scale < 0 else (query * 0.0, 1.0)
    if attn_mask is not None and attn_mask.dim() < 2:
        attn_mask = attn_mask.expand(query.shape[-2], key.shape[-2])  # the kernels want two
    if attn_mask is not None and query.dtype == torch.float64 and attn_mask.is_floating_point():
        attn_mask = attn_mask.to(query.dtype)  # PyTorch wants one dtype; float32 fits into float64
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
    )


@overload
def scaled_dot_product_attention(
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
def scaled_dot_product_attention(
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


def scaled_dot_product_attention(
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
    """Attention by the leanest path that can do what is asked for.

    ================================================  =====================
    asked for                                         path
    ================================================  =====================
    the weights too                                   `explicit_attention`
    `softcap`, `sinks` or another `masked_rows`       `online_attention`
    nothing that PyTorch cannot do                    `fused_attention`
    ================================================  =====================

    On finite inputs the paths agree; use one by name when its way of computing matters, for
    example to keep NaN in masked values out of the result.

    Parameters, return value and errors are those of `explicit_attention`.
    """
    if return_weights:
        return explicit_attention(
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            scale,
            enable_gqa,
            softcap=softcap,
            sinks=sinks,
            masked_rows=masked_rows,
            return_weights=True,
        )
    if softcap is not None or sinks is not None or masked_rows != "zero":
        return online_attention(
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            scale,
            enable_gqa,
            softcap=softcap,
            sinks=sinks,
            masked_rows=masked_rows,
        )
    return fused_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
