"""One attention call in one form, whether PyTorch, `transformers` or somebody by hand made it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from attention_scaling import _checks
from attention_scaling._attention_parts import working_dtype

#: Of transformers' implementations, those whose arguments can be read.
READABLE = ("eager", "sdpa", None)


@dataclass(frozen=True)
class Call:
    """One attention call in one form, all tensors detached: what is measured.

    Parameters
    ----------
    query, key
        (B, H, L, E) and (B, H_kv, S, E), where H is a multiple of H_kv.
    scale
        One number, (1, 1, 1), or one for each head, (H, 1, 1); float64, on the CPU.
    mask, bias
        Boolean or additive, and additive; they broadcast against (B, H, L, S), or None. The bias
        belongs to the logits even where it is very negative.
    sinks
        Broadcasts against (B, H, L), or None.
    """

    query: torch.Tensor
    key: torch.Tensor
    scale: torch.Tensor
    mask: torch.Tensor | None
    bias: torch.Tensor | None
    is_causal: bool
    softcap: float | None
    sinks: torch.Tensor | None


def prepare(
    query: Any,
    key: Any,
    *,
    attn_mask: Any = None,
    bias: Any = None,
    is_causal: bool = False,
    scale: Any = None,
    softcap: float | None = None,
    sinks: Any = None,
) -> Call:
    """Check what a call was given, and bring it into one form."""
    _checks.floating_tensor("query", query, min_dims=2)
    _checks.floating_tensor("key", key, min_dims=2)
    if query.is_nested or key.is_nested:
        raise NotImplementedError("nested tensors cannot be measured; pass padded ones and a mask")
    if query.shape[-1] != key.shape[-1] or 0 in query.shape or 0 in key.shape:
        raise ValueError(
            "query and key must share a last dimension E and hold numbers, got shapes "
            f"{tuple(query.shape)} and {tuple(key.shape)}; pass query (…, L, E) and key (…, S, E)"
        )
    q, k = four_dimensions(query.detach()), four_dimensions(key.detach())
    if q.shape[1] % k.shape[1]:
        raise ValueError(
            f"the heads of query, {q.shape[1]}, are no multiple of those of key, {k.shape[1]} "
            "(dimension -3); regroup the heads"
        )
    batch = max(q.shape[0], k.shape[0])
    q, k = q.expand(batch, -1, -1, -1), k.expand(batch, -1, -1, -1)
    softcap = None if softcap is None else _checks.positive_number("softcap", softcap)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    factor = torch.as_tensor(scale, dtype=torch.float64, device="cpu").detach()
    if factor.numel() not in (1, q.shape[1]):
        raise ValueError(
            f"scale must be a number, or one for each of {q.shape[1]} heads, got shape "
            f"{tuple(factor.shape)}; multiply query by what depends on more"
        )
    return Call(
        query=q,
        key=k,
        scale=factor.reshape(-1, 1, 1),
        mask=None if attn_mask is None else four_dimensions(attn_mask.detach(), pairs=True),
        bias=None if bias is None else four_dimensions(bias.detach(), pairs=True),
        is_causal=bool(is_causal),
        softcap=softcap,
        sinks=None if sinks is None else sink_logits(sinks, q),
    )


def four_dimensions(x: torch.Tensor, *, pairs: bool = False) -> torch.Tensor:
    """(…, L, E) → (B, H, L, E); of pairs (L, S) less than two dimensions will do."""
    while x.dim() < 4:
        x = x[None]
    return x.flatten(0, -4) if x.dim() > 4 else x


def sink_logits(sinks: Any, q: torch.Tensor) -> torch.Tensor:
    """One number, one for each head, or (B, H, L, 1), in a shape that fits (B, H, L)."""
    sink = torch.as_tensor(sinks).detach().to(q.device, working_dtype(q.dtype))
    if sink.numel() in (1, q.shape[1]):
        return sink.reshape(1, -1, 1)
    if sink.dim() == 4 and sink.shape[-1] == 1:
        return sink[..., 0]
    raise ValueError(
        f"sinks must be a number, or one for each of {q.shape[1]} heads, got shape "
        f"{tuple(sink.shape)}; pass one logit per head"
    )


def from_torch(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `prepare` from those of ``scaled_dot_product_attention``."""
    kept = ("query", "key", "attn_mask", "is_causal", "scale")
    return {name: arguments[name] for name in kept if name in arguments}


def from_transformers(
    module: torch.nn.Module, implementation: str | None, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Arguments of `prepare` from those of a function of transformers' attention interface."""
    if implementation not in READABLE:
        raise NotImplementedError(
            f"attention implementation {implementation!r} cannot be read by AttentionProbe; "
            "call model.set_attn_implementation('sdpa'), or 'eager', first"
        )
    query, key, mask = (arguments[name] for name in ("query", "key", "attention_mask"))
    bias, causal = arguments.get("position_bias"), False
    sinks = arguments.get("s_aux", arguments.get("sinks"))
    if implementation == "sdpa":
        # as sdpa_attention_forward does: a mask, if there is one, is all that counts
        asked = arguments.get("is_causal")
        asked = getattr(module, "is_causal", True) if asked is None else asked
        causal, sinks = bool(asked) and mask is None and query.shape[-2] > 1, None
        if causal and key.shape[-2] > query.shape[-2]:
            key = key[..., : query.shape[-2], :]
            bias = None if bias is None else bias[..., : query.shape[-2]]
    return {
        "query": query,
        "key": key,
        "attn_mask": mask,
        "bias": bias,
        "is_causal": causal,
        "scale": arguments.get("scaling"),
        "softcap": arguments.get("softcap"),
        "sinks": sinks,
    }
