"""Float64 references in NumPy, one row at a time; imports nothing of the library under test."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np


def softmax_row(logits: np.ndarray, sink: float = -math.inf) -> np.ndarray:
    """Weights of one row as exp(z - ln Σ exp z), with exactly rounded sums; zeros if no logit."""
    finite = [float(z) for z in (*logits, sink) if z != -math.inf]
    if not finite:
        return np.zeros(len(logits))
    top = max(finite)
    log_total = top + math.log(math.fsum(math.exp(z - top) for z in finite))
    return np.array([0.0 if z == -math.inf else math.exp(z - log_total) for z in logits])


def attention(
    query,
    key,
    value,
    *,
    keep=None,
    bias=None,
    causal=False,
    scale=None,
    gqa=False,
    softcap=None,
    sinks=None,
    masked_rows="zero",
):
    """Attention for query (B, H, L, E), key (B, Hk, S, E), value (B, Hk, S, Ev).

    Returns output and weights. `keep` and `bias` must have the full shape (B, H, L, S).
    """
    batch, heads, length, dim = query.shape
    group = heads // key.shape[1] if gqa else 1
    n = key.shape[2]
    scale = dim**-0.5 if scale is None else scale
    output = np.zeros((batch, heads, length, value.shape[-1]))
    weights = np.zeros((batch, heads, length, n))
    for b, h, i in np.ndindex(batch, heads, length):
        row = np.full(n, -math.inf)
        for j in range(n):
            if (causal and j > i) or (keep is not None and not keep[b, h, i, j]):
                continue
            z = scale * math.fsum(query[b, h, i] * key[b, h // group, j])
            if softcap is not None:
                z = softcap * math.tanh(z / softcap)
            row[j] = z + (0.0 if bias is None else bias[b, h, i, j])
        sink = -math.inf if sinks is None else sinks[h]
        p = softmax_row(row, sink)
        if sink == -math.inf and (row == -math.inf).all():
            p = np.full(n, {"zero": 0.0, "uniform": 1 / n, "nan": math.nan}[masked_rows])
        weights[b, h, i] = p
        output[b, h, i] = p @ value[b, h // group]
    return output, weights


def frobenius_norm_of_jacobian(weights: np.ndarray) -> float:
    """Norm of diag(p) - p pᵀ in exact rational arithmetic on the given floats."""
    p = [Fraction(float(w)) for w in weights]
    squared = sum(
        (p_i * (i == j) - p_i * p_j) ** 2 for i, p_i in enumerate(p) for j, p_j in enumerate(p)
    )
    # The root of a rational that may lie below the smallest float: an integer root, scaled.
    bits = squared.denominator.bit_length() + 64
    return float(
        Fraction(math.isqrt((squared.numerator << 2 * bits) // squared.denominator), 2**bits)
    )


def nearest_even(x: float, mantissa_bits: int, min_exponent: int) -> Fraction:
    """The multiple of the spacing at x that is nearest to it, ties to even, unbounded above."""
    exponent = max(math.frexp(x)[1] - 1, min_exponent)
    spacing = Fraction(2) ** (exponent - mantissa_bits)
    return round(Fraction(x) / spacing) * spacing  # Python rounds rationals half to even


def rotate(x: np.ndarray, positions: np.ndarray, base: float, interleaved: bool) -> np.ndarray:
    """Rotary embedding of x (L, d) as multiplication of complex numbers by unit ones."""
    half = x.shape[1] // 2
    a, b = (x[:, 0::2], x[:, 1::2]) if interleaved else (x[:, :half], x[:, half:])
    result = np.empty_like(x)
    for m, position in enumerate(positions):
        for i in range(half):
            angle = position * math.exp(-2 * i / x.shape[1] * math.log(base))
            turned = complex(a[m, i], b[m, i]) * complex(math.cos(angle), math.sin(angle))
            first, second = (2 * i, 2 * i + 1) if interleaved else (i, half + i)
            result[m, first], result[m, second] = turned.real, turned.imag
    return result


def normalise(x: np.ndarray, eps: float, *, centre: bool) -> np.ndarray:
    """LayerNorm (centre) or RMSNorm of one vector with exactly rounded sums, no gain."""
    values = [float(v) for v in x]
    mean = math.fsum(values) / len(values) if centre else 0.0
    mean_square = math.fsum((v - mean) ** 2 for v in values) / len(values)
    return np.array([(v - mean) / math.sqrt(mean_square + eps) for v in values])
