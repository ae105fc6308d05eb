"""Statistics of one attention call, per head, from a tile of logits at a time."""

from __future__ import annotations

import math

import torch

from attention_scaling._attention_parts import working_dtype
from attention_scaling._probe_call import Call

#: So many logits are held at a time, or one row of each head if that is more.
TILE = 2**19
#: An additive mask of this value or below hides a pair.
HIDDEN_BELOW = -1e4
# In exponents: exp gives 0 in float32 and float64, and 0 times it is 0.
FAR = -1e4

#: How a statistic of two parts follows from those of each.
SUMS = (
    "nonfinite",
    "rows",
    "rows_without_keys",
    "keys",
    "entropy",
    "effective_keys",
    "top_weight",
    "sink_weight",
)
MAXIMA = ("max_abs_dot", "max_abs_scaled", "max_abs_logit", "max_weight")
MOMENTS = ("dot", "logit")

Sums = dict[str, torch.Tensor]


@torch.no_grad()
def measure(call: Call) -> Sums:
    """Go through all tiles of a call and return its statistics, (H,), float64, on the CPU."""
    batch, heads, length, _ = call.query.shape
    row = heads * call.key.shape[-2]
    batches = max(1, min(batch, TILE // (row * length)))
    lines = length if batches > 1 else max(1, min(length, TILE // row))
    total: Sums = {}
    with torch.autocast(call.query.device.type, enabled=False):
        for b in range(0, batch, batches):
            for start in range(0, length, lines):
                tile = measure_tile(call, slice(b, b + batches), slice(start, start + lines))
                total = merge(total, tile) if total else tile
    return total


def measure_tile(call: Call, batches: slice, lines: slice) -> Sums:
    """Return the statistics of some rows; all keys of a row are there at once."""
    dtype = working_dtype(call.query.dtype)
    q, k = call.query[batches, :, lines].to(dtype), call.key[batches].to(dtype)
    (b, heads, n, width), (kv_heads, s) = q.shape, k.shape[1:3]
    # each key head with its group of query heads below one another: no key is repeated
    dots = (q.reshape(b, kv_heads, -1, width) @ k.mT).reshape(b, heads, n, s)
    keep, added = mask_of(call, batches, lines)
    scale = call.scale.to(dots)
    z = dots * scale
    plain = call.softcap is None and not added
    if call.softcap is not None:
        z.div_(call.softcap).tanh_().mul_(call.softcap)
    for more in added:
        z.add_(more)

    low, high = dots.amin(dim=(0, 2, 3)), dots.amax(dim=(0, 2, 3))
    bad = None
    if not bool((low.isfinite() & high.isfinite() & z.amax().isfinite()).all()):
        finite = dots.isfinite() & z.isfinite()
        bad = ~finite if keep is None else ~finite & keep
        keep = finite if keep is None else finite & keep
        low = dots.where(dots.isfinite(), 0).amin(dim=(0, 2, 3))
        high = dots.where(dots.isfinite(), 0).amax(dim=(0, 2, 3))
    found = {"max_abs_dot": torch.maximum(low.abs(), high.abs())}
    found["max_abs_scaled"] = found["max_abs_dot"] * scale.abs().flatten()
    found |= moments("dot", dots, keep)
    if plain:
        found["pairs_logit"] = found["pairs_dot"]
        found["mean_logit"] = found["mean_dot"] * scale.flatten()
        found["m2_logit"] = found["m2_dot"] * scale.flatten() ** 2
    else:
        found |= moments("logit", z, keep)
    del dots
    sinks = (
        call.sinks if call.sinks is None else part(call.sinks[..., None], batches, lines)[..., 0]
    )
    found |= weights_of(z, keep, bad, sinks)
    names = sorted(found)
    stack = torch.stack([found[name].expand(heads).double() for name in names]).cpu()
    return dict(zip(names, stack, strict=True))


def mask_of(
    call: Call, batches: slice, lines: slice
) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
    """Return which pairs of a tile softmax sees, and what is added to their logits."""
    keep: torch.Tensor | None = None
    added: list[torch.Tensor] = []
    dtype = working_dtype(call.query.dtype)
    if call.bias is not None:
        bias = part(call.bias, batches, lines).to(dtype)
        if bool((bias == -math.inf).any()):
            keep = bias != -math.inf
            bias = bias.where(keep, 0)
        added.append(bias)
    if call.mask is not None:
        seen = part(call.mask, batches, lines)
        if seen.dtype != torch.bool:
            values, seen = seen, ~(seen <= HIDDEN_BELOW)  # NaN hides nothing
            values = values.where(seen, 0)
            if bool(values.any()):
                added.append(values.to(dtype))
        keep = seen if keep is None else keep & seen
    if call.is_causal:
        # query i keeps key j ≤ i
        i = torch.arange(call.query.shape[-2], device=call.query.device)[lines, None]
        below = torch.arange(call.key.shape[-2], device=i.device) <= i
        keep = below if keep is None else keep & below
    return keep, added


def part(x: torch.Tensor, batches: slice, lines: slice) -> torch.Tensor:
    """Cut a tile from what broadcasts against (B, H, L, S) or (B, H, L)."""
    x = x[batches] if x.shape[0] > 1 else x
    return x[:, :, lines] if x.shape[2] > 1 else x


def moments(name: str, x: torch.Tensor, keep: torch.Tensor | None) -> Sums:
    """Count, mean, and sum of squares around the mean, of the pairs that softmax sees."""
    if keep is None:
        count = torch.tensor(float(x[:, 0].numel()), device=x.device)
        mean = x.mean(dim=(0, 2, 3))
        m2 = (x - mean[:, None, None]).square_().sum(dim=(0, 2, 3))
    else:
        count = keep.expand(x.shape).sum(dim=(0, 2, 3))
        mean = x.where(keep, 0).sum(dim=(0, 2, 3)) / count.clamp(min=1)
        m2 = (x - mean[:, None, None]).where(keep, 0).square_().sum(dim=(0, 2, 3))
    return {f"pairs_{name}": count, f"mean_{name}": mean, f"m2_{name}": m2}


def weights_of(
    z: torch.Tensor,
    keep: torch.Tensor | None,
    bad: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> Sums:
    """Entropy and the largest weight of each row, summed; z is overwritten."""
    heads, s = z.shape[1], z.shape[-1]
    if keep is None:
        keys = torch.full((1, 1, 1), float(s), device=z.device)
        largest = torch.maximum(z.amax(dim=(0, 2, 3)), -z.amin(dim=(0, 2, 3)))
    else:
        keys = keep.expand(*keep.shape[:-1], s).sum(dim=-1)
        z.masked_fill_(~keep, 0)
        largest = torch.maximum(z.amax(dim=(0, 2, 3)), -z.amin(dim=(0, 2, 3)))
        z.masked_fill_(~keep, -math.inf)
    top = z.amax(dim=-1, keepdim=True)
    top = top.where(top > -math.inf, 0)
    z.sub_(top).clamp_(min=FAR)
    p = z.exp()
    total = p.sum(dim=-1)
    entropy = (total.log() - p.mul_(z).sum(dim=-1) / total).clamp_(min=0)  # (b, H, n)
    weight = 1 / total  # of the largest logit, among the keys
    sink = torch.zeros((), device=z.device)
    if sinks is not None:
        sink = torch.sigmoid(sinks - top[..., 0] - total.log())
        weight = weight * (1 - sink)
    empty = (keys == 0).expand(entropy.shape)
    use = ~empty
    nonfinite = torch.zeros(heads, device=z.device)
    if bad is not None:
        bad = bad.expand(z.shape)
        nonfinite, use = bad.sum(dim=(0, 2, 3)), use & ~bad.any(dim=-1)
        empty = empty & ~bad.any(dim=-1)

    def summed(x: torch.Tensor) -> torch.Tensor:
        return (
            x.expand(use.shape)
            .where(use, 0)
            .sum(dim=(0, 2), dtype=torch.float64 if x.is_cpu else None)
        )

    return {
        "max_abs_logit": largest,
        "nonfinite": nonfinite,
        "rows": use.sum(dim=(0, 2)),
        "rows_without_keys": empty.sum(dim=(0, 2)),
        "keys": summed(keys),
        "entropy": summed(entropy),
        "effective_keys": summed(entropy.exp()),
        "top_weight": summed(weight),
        "max_weight": weight.where(use, 0).amax(dim=(0, 2)),
        "sink_weight": summed(sink),
    }


def merge(a: Sums, b: Sums) -> Sums:
    """Join the statistics of two parts; means and squares by Chan, Golub and LeVeque (1983)."""
    found = {name: a[name] + b[name] for name in SUMS}
    found |= {name: torch.maximum(a[name], b[name]) for name in MAXIMA}
    for name in MOMENTS:
        count = a[f"pairs_{name}"] + b[f"pairs_{name}"]
        share = b[f"pairs_{name}"] / count.clamp(min=1)
        step = b[f"mean_{name}"] - a[f"mean_{name}"]
        found[f"pairs_{name}"] = count
        found[f"mean_{name}"] = a[f"mean_{name}"] + share * step
        found[f"m2_{name}"] = (
            a[f"m2_{name}"] + b[f"m2_{name}"] + step**2 * a[f"pairs_{name}"] * share
        )
    return found
