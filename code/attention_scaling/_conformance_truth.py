"""What a case must give in float64, and how far rounding may carry a faithful implementation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from attention_scaling._conformance_case import Case
from attention_scaling.attention import default_scale

#: Below this distance from the largest logit a weight is 0 in the format.
UNDERFLOW = {torch.float64: 745.2, torch.float32: 103.98}


@dataclass(frozen=True)
class Truth:
    """What a case must give, and the largest distance from it that rounding explains.

    Parameters
    ----------
    output, tolerance : tensor, shape (…, L, Ev)
        float64.
    dead : tensor, shape (…, L, Ev)
        Rows without a key to attend to, or whose keys are all at the end of a number format.
        There the result is a matter of policy, and `tolerance` means nothing.
    """

    output: torch.Tensor
    tolerance: torch.Tensor
    dead: torch.Tensor


def truth(case: Case, *, strict: bool) -> Truth:
    r"""Compute a case in float64, and bound the error of a faithful implementation.

    Faithful is one that computes in a format of unit roundoff u (float32, or float64 for float64),
    in any order, in chunks or not, with the factor on the query, on both sides or on the product,
    with exp or exp2. To first order in u, a logit z = s Σ qᵢkᵢ + b misses by at most

    - (m + 6) u |s| Σ|qᵢkᵢ| for m products that are not zero (m for the sum, 4 for √s on both
      sides and its own rounding, the rest for log₂ e), and by nothing where no step rounds;
    - 4 ũ |s| Σ|qᵢkᵢ| + 2 ũ |b| more, where scores may be stored in the inputs' format of roundoff
      ũ (not `strict`): factor on both sides, product, mask; and ũ (m − z) in a shift by the largest
      number m of the row, a sink included, for z and for the sink;
    - 8 u c in a cap, and 4 ũ times the smaller of its argument and c where scores may be stored;
      an error of what is capped counts by what the cap leaves of it;
    - 3 u (|s Σ qᵢkᵢ| + |b|) in the addition of a bias;
    - 3 u |z_max| + 4 u (z_max − z) in the shift, which may be done on multiples by log₂ e, and
      3 u |sink| where that is larger.

    A weight then lies between those that z ± δ give at the worst. Weights that sum to 1 count their
    errors times v − o, beside a sink times v. Then come 8 (S + 8) u for sums and rescaling over S
    keys and for an exp of 20 ulp; ũ for weights that are rounded before they meet the values; and ũ
    for the result. Not among the faithful is exp(z − lse) with a rounded logarithm of the sum: the
    error of a large lse is common to all weights of a row, whose sum is then not 1.

    Parameters
    ----------
    strict
        Whether the scores must be kept in float32 for inputs in half precision.
    """
    dtype = case.query.dtype
    work = torch.float64 if dtype == torch.float64 else torch.float32
    u, u_in = (torch.finfo(d).eps / 2 for d in (work, dtype))
    stored = u_in if dtype != work and not strict else 0.0
    wide = case.in_float64()
    q, k, v = wide.query, wide.key, wide.value
    if case.enable_gqa:
        group = q.shape[-3] // k.shape[-3]
        k, v = (t.repeat_interleave(group, dim=-3) for t in (k, v))
    keep, bias = _mask(wide)
    k, v = _without_hidden(k, keep), _without_hidden(v, keep)

    # logits, and by how much they may be off
    scale = default_scale(q.shape[-1]) if case.scale is None else case.scale
    raw = q @ k.mT
    size = abs(scale) * (q.abs() @ k.abs().mT)
    products = (q != 0).double() @ (k != 0).double().mT
    exact = _exact(q, k, raw, products, scale, work)
    z = scale * raw
    delta = torch.where(exact, 0.0, (products + 6) * u * size) + 4 * stored * size
    if case.softcap is not None:
        z, delta = _capped(z, delta, case.softcap)
        delta = delta + 8 * u * case.softcap + 4 * stored * size.clamp(max=case.softcap)
    delta = delta + torch.where(bias == 0, 0.0, 3 * u * (z.abs() + bias.abs()))
    delta = delta + 2 * stored * bias.abs()
    z = torch.where(keep, z + bias, -math.inf)
    top = z.amax(dim=-1, keepdim=True)
    delta = delta + 3 * u * top.masked_fill(top == -math.inf, 0.0).abs()
    delta = delta + 4 * u * (top - z).nan_to_num(0.0, 0.0, 0.0).clamp(max=UNDERFLOW[work])

    # weights, and by how much they may be off
    sink = None
    if wide.sinks is not None:
        sink = wide.sinks[:, None, None].expand(*z.shape[:-1], 1)
        delta = delta + 3 * u * sink.abs()
    highest = top if sink is None else torch.maximum(top, sink)
    delta = delta + stored * (highest - z).nan_to_num(0.0, 0.0, 0.0)
    if sink is not None:
        delta = delta + stored * (highest - sink)
    shift = top.masked_fill(top == -math.inf, 0.0)  # so that float64 is exact enough here
    p, spread = _weights(z - shift, delta, None if sink is None else sink - shift)

    output = p @ v
    centre = output if sink is None else torch.zeros_like(output)
    away = v[..., None, :, :] - centre[..., :, None, :]  # (…, L, S, Ev)
    half = u_in if dtype != work else 0.0
    flushed = torch.finfo(work).tiny + torch.finfo(dtype).tiny * u_in
    tolerance = (
        (spread[..., None] * away.abs()).sum(dim=-2)
        + (8 * (z.shape[-1] + 8) * u + half) * (p @ v.abs())
        + u_in * output.abs()
        + flushed * (1 + v.abs().sum(dim=-2, keepdim=True))
    )
    dead = (top == -math.inf) | (top < 0.99 * torch.finfo(dtype).min)
    return Truth(output, tolerance, dead.expand(output.shape))


def _capped(z: torch.Tensor, delta: torch.Tensor, cap: float) -> tuple[torch.Tensor, torch.Tensor]:
    """c tanh(z/c), and how far it can get with an argument within z ± delta."""

    def bend(x: torch.Tensor) -> torch.Tensor:
        return cap * (x / cap).tanh()

    middle = bend(z)
    return middle, torch.maximum(bend(z + delta) - middle, middle - bend(z - delta))


def _mask(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Which pairs are kept, of shape (…, L, S), and what is added to their logits."""
    shape = (*case.query.shape[:-1], case.key.shape[-2])
    keep, bias = torch.ones(shape, dtype=torch.bool), torch.zeros((), dtype=torch.float64)
    if case.is_causal:
        keep = keep.tril()
    if case.attn_mask is None:
        return keep, bias
    if case.attn_mask.dtype == torch.bool:
        return keep & case.attn_mask, bias
    masked = case.attn_mask == -math.inf
    return keep & ~masked, case.attn_mask.masked_fill(masked, 0.0)


def _without_hidden(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Keys or values with zeros where they are not finite and no query sees them."""
    shown = keep.any(dim=-2)[..., None]  # (…, S, 1)
    if bool((shown & ~x.isfinite()).any()):
        raise ValueError("a key or value that is not masked must be finite")
    return x.nan_to_num(0.0, 0.0, 0.0)


def _exact(
    q: torch.Tensor,
    k: torch.Tensor,
    raw: torch.Tensor,
    products: torch.Tensor,
    scale: float,
    work: torch.dtype,
) -> torch.Tensor:
    """Whether s·q·k is computed without rounding, in any order and with s or √s anywhere.

    Either one product alone is not zero, or all entries are multiples of 1/2 and the sizes of the
    products add up to less than 1/(8u), so that each partial sum fits. And √|s| is a power of two.
    """
    mantissa, exponent = math.frexp(scale)
    if scale != 0 and (abs(mantissa) != 0.5 or exponent % 2 == 0):
        return torch.zeros_like(raw, dtype=torch.bool)
    halves_q, halves_k = (((2 * x) == (2 * x).round()).all(dim=-1) for x in (q, k))
    halves = halves_q[..., :, None] & halves_k[..., None, :]
    small = q.abs() @ k.abs().mT < 1 / (4 * torch.finfo(work).eps)
    fits = (scale * raw).to(work).double() == scale * raw
    return ((products <= 1) | (halves & small)) & fits


def _weights(
    z: torch.Tensor, delta: torch.Tensor, sink: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax of z, and how far a weight can get from it with logits within z ± delta."""

    def log_total(logits: torch.Tensor) -> torch.Tensor:
        full = logits if sink is None else torch.cat([logits, sink], dim=-1)
        return full.logsumexp(dim=-1, keepdim=True)

    def weight(own: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        # own against the others without their own entry: p = 1/(1 + e^{log rest − own})
        total = log_total(others)
        rest = total + torch.log1p(-(others - total).exp().clamp(max=1 - 2**-53))
        return torch.sigmoid(own - rest)

    p = (z - log_total(z)).exp()
    lowest, highest = weight(z - delta, z + delta), weight(z + delta, z - delta)
    spread = torch.maximum(highest - p, p - lowest)
    live = z != -math.inf
    return torch.where(live, p, 0.0), torch.where(live, spread, 0.0)
