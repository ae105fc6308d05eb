"""What the attention functions share: masks by columns, grouped heads, sinks, safe products."""

from __future__ import annotations

import math

import torch


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 stays, everything narrower is computed in float32."""
    return dtype if dtype == torch.float64 else torch.float32


def repeat_heads(tensor: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Repeat each key or value head for its group of query heads: (…, H_kv, …) → (…, H, …)."""
    return tensor.repeat_interleave(q.shape[-3] // tensor.shape[-3], dim=-3)


def split_mask(
    attn_mask: torch.Tensor | None, is_causal: bool, q: torch.Tensor, start: int, stop: int
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """For the keys from start to stop: which pairs are kept, boolean, and what is added to them."""
    length, n = q.shape[-2], stop - start
    if is_causal:
        # Query i keeps key j ≤ i: True on and below a diagonal that starts at the top left.
        return torch.ones(length, n, dtype=torch.bool, device=q.device).tril(-start), None
    if attn_mask is None:
        return None, None
    if attn_mask.dim() and attn_mask.shape[-1] > 1:
        attn_mask = attn_mask[..., start:stop]
    if attn_mask.dtype == torch.bool:
        return attn_mask, None
    return attn_mask != -math.inf, attn_mask.to(q.dtype)


def pairwise_logits(q: torch.Tensor, k: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
    """q kᵀ, with masked pairs free of NaN and infinity (their value is of no account)."""
    if keep is None:
        return q @ k.mT
    if q.isfinite().all() and k.isfinite().all():
        return torch.where(keep, q @ k.mT, 0.0)  # the product may overflow, even to inf − inf
    # The backward pass multiplies a zero gradient by k_j, and 0 · NaN is NaN. Zeros in place of
    # masked vectors, pair by pair, keep it out; slow, but only non-finite inputs come here.
    q_pairs = torch.where(keep[..., None], q[..., :, None, :], 0.0)  # (…, L, S, E)
    k_pairs = torch.where(keep[..., None], k[..., None, :, :], 0.0)  # (…, L, S, E)
    return (q_pairs * k_pairs).sum(dim=-1)


def weighted_values(
    weights: torch.Tensor, v: torch.Tensor, keep: torch.Tensor | None
) -> torch.Tensor:
    """Weights times values, with masked pairs left out rather than multiplied by 0."""
    if keep is None:
        return weights @ v
    if v.isfinite().all():
        # Masked weights are 0 already; their gradient, a product with v, may overflow and is cut.
        return torch.where(keep, weights, 0.0) @ v
    v_pairs = torch.where(keep[..., None], v[..., None, :, :], 0.0)  # (…, L, S, Ev)
    return (weights[..., None] * v_pairs).sum(dim=-2)


def sink_column(sinks: torch.Tensor | float, q: torch.Tensor) -> torch.Tensor:
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
