"""Float64 references in NumPy, one row at a time; imports nothing of the library under test."""

from __future__ import annotations

import math

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
