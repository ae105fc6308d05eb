"""Evidence for what the answer says of FlashAttention's online softmax (§2.3).

Where a NaN counts, `measured` counts NaNs. Rounding bounds are worst cases for float64, in units of
u = 2⁻⁵³: n − 1 additions, the arguments of exp up to the range of the logits, and for each of K
blocks a product, a sum and two exponentials; see `rounding_bound`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import torch

from attention_scaling import (
    FORMATS,
    explicit_attention,
    online_attention,
    online_softmax,
    scaled_scores,
    softmax,
)
from scaling_book.evidence import seeds
from scaling_book.evidence.core import Measurement, against_the_answer, evidence
from scaling_book.evidence.operations import operations_of

SEED = 20180508  # with a number of its own for each claim
HEAD_DIM = 64  # d_k of one head
UNIT_ROUNDOFF = 2.0**-53
FLOAT16 = FORMATS["float16"]

Softmax = Callable[[torch.Tensor], torch.Tensor]


@evidence("flash-avoids-overflow")
def flash_avoids_overflow() -> list[Measurement]:
    """The same scores, the same NaN; what differs is the format that the scores are stored in."""
    functions: tuple[Softmax, ...] = (softmax, online_softmax)
    # The first q = k whose product d r² rounds to infinity, on the grid of float16 between 16
    # and 32: r = √(B/d), rounded up.
    step = 16 * FLOAT16.eps
    first = math.ceil(math.sqrt(FLOAT16.overflow_boundary / HEAD_DIM) / step) * step
    safe, online = (
        Measurement(
            f"min r: NaN, q = k = (r, …, r), d_k = 64, fl16(q·k)/√d_k, {function.__name__}",
            first_nan(function, "after_product"),
            expected=first,
            tolerance=0,
            reason="⌈√(65520/64)⌉, r ∈ f16",
            # the answer: the online form eases it, so that no q of the format overflows
            rival=FLOAT16.max if function is online_softmax else None,
        )
        for function in functions
    )
    found = [safe, against_the_answer(online)]
    # Float32 scores: the ordinary softmax needs no help. The rival says that it does.
    sizes = torch.linspace(32, 4096, 128)
    scores = torch.cat([two_scores(float(r), "float32_scores") for r in sizes])
    for function in functions:
        weights = function(scores)
        found.append(
            Measurement(
                f"#NaN, r = 32 … 4096, fl32(q·k)/√d_k, {function.__name__}",
                int(weights.isnan().any(dim=-1).sum()),
                expected=0,
                tolerance=0,
                reason="0",
                rival=len(sizes),
            )
        )
    # Not a law: the same products, summed in float16, leave its range on the way to 0.
    q = torch.full((1, HEAD_DIM), 60.0)
    k = torch.cat([q[:, : HEAD_DIM // 2], -q[:, HEAD_DIM // 2 :]], dim=-1)
    on_the_way = scaled_scores(q, k, "float32_scores", "float16", accumulate="format")
    found.append(
        Measurement(
            "#NaN, fl16(Σ 60·60 − Σ 60·60), online_softmax",
            int(online_softmax(on_the_way).isnan().sum()),
            expected=1,
            tolerance=0,
            reason="18·3600 < 65520 ≤ 19·3600",
            rival=0,
        )
    )
    # The exponent c z − fl(c m) of the largest score, c = fl(log₂e/√d_k), by one fused
    # multiply–add: a rounding error, and 2 to its power is infinite in float32 from 128 on.
    largest = HEAD_DIM * 133120**2
    c = np.float32(math.log2(math.e) / math.sqrt(HEAD_DIM))
    exact = Fraction(float(c)) * largest
    m = torch.tensor(float(largest))
    product = m.double() * float(c)
    found.append(
        Measurement(
            "fma(c, m, −fl32(c·m)), m = 64·133120², d_k = 64",
            float(product - (m * torch.tensor(c)).double()),
            expected=float(exact - round_to_float32(exact)),
            tolerance=0,
            reason="13 + 24 ≤ 53",
            rival=0,
        )
    )
    return found


def two_scores(size: float, placement: str) -> torch.Tensor:
    """Scores of q = (r, …, r) with k = q and with a k whose first entry is smaller."""
    q = torch.full((1, HEAD_DIM), size)
    k = q.repeat(2, 1)
    k[1, 0] -= size / 128
    return scaled_scores(q, k, placement, "float16")


def first_nan(function: Softmax, placement: str) -> float:
    """The smallest positive number r of float16 for which the weights are NaN, by bisection."""
    low, high = 1, 0x7BFF  # positive floats are ordered like their bits
    while high - low > 1:
        middle = (low + high) // 2
        size = float(np.array(middle, np.uint16).view(np.float16))
        is_nan = bool(function(two_scores(size, placement)).isnan().any())
        low, high = (low, middle) if is_nan else (middle, high)
    return float(np.array(high, np.uint16).view(np.float16))


def round_to_float32(x: Fraction) -> Fraction:
    """Round a positive rational number to 24 bits, ties to even, in whole numbers."""
    exponent = math.floor(math.log2(x)) - 23
    return Fraction(round(x / Fraction(2) ** exponent)) * Fraction(2) ** exponent


@evidence("flash-rescales-block-by-block")
def flash_rescales_block_by_block() -> list[Measurement]:
    """Logits j ln 2, for which sums are known: with rescaling right, without it wrong."""
    n, block = 8, 2
    blocks = n // block
    z = torch.arange(n, dtype=torch.float64) * math.log(2)
    total = 2**n - 1  # Σ 2^j
    bound = rounding_bound(n, blocks, (n - 1) * math.log(2))
    # Each block by itself: a denominator of 1 + ½, and a mean of 2b + Σ j 2^j / 3.
    local = 2 - 2.0 ** (1 - block)
    local_mean = sum(j * 2**j for j in range(block)) / (2**block - 1)

    # One query 1 with keys j ln 2 and values j: attention returns Σ j 2^j / Σ 2^j.
    one, keys = torch.ones(1, 1, dtype=torch.float64), z[:, None]
    values = torch.arange(n, dtype=torch.float64)[:, None]
    mean = online_attention(one, keys, values, scale=1.0, chunk_size=block).item()
    exact_mean = ((n - 2) * 2**n + 2) / total

    rng = seeds.rng(SEED, 30)
    q, k, v = (torch.tensor(rng.standard_normal((96, HEAD_DIM))) for _ in range(3))
    reference = attention_in_numpy(q.numpy(), k.numpy(), v.numpy())
    spread = float((q @ k.mT).max() - (q @ k.mT).min()) / math.sqrt(HEAD_DIM)
    found = [
        Measurement(
            "max p, z_j = j ln 2, n = 8, 2 × 4",
            online_softmax(z, chunk_size=block).max().item(),
            expected=2 ** (n - 1) / total,
            tolerance=bound,
            reason="u (3R + 4K + 2n + 4)",
            rival=1 / (blocks * local),
        ),
        Measurement(
            "Σ p_j j, z_j = j ln 2, n = 8, 2 × 4",
            mean,
            expected=exact_mean,
            tolerance=2 * bound * (n - 1),
            reason="2u (3R + 4K + 2n + 4) max v",
            rival=sum(block * b + local_mean for b in range(blocks)) / blocks,
        ),
    ]
    for size in (1, 32):
        o = online_attention(q, k, v, chunk_size=size).numpy()
        # Both paths sum 64 products for each logit; both then weigh and sum n values.
        logit = 2 * (HEAD_DIM + 2) * UNIT_ROUNDOFF * float((q.abs() @ k.abs().mT).max()) / 8
        allowed = 2 * (rounding_bound(96, 96 // size, spread) + logit + 96 * UNIT_ROUNDOFF)
        found.append(
            Measurement(
                f"max |o − softmax(QKᵀ/√d_k)V|, n = 96, {size} × {96 // size}",
                float(np.abs(o - reference).max()),
                expected=0,
                tolerance=allowed * float(v.abs().max()),
                reason="2 (u (3R + 4K + 2n + 4) + ε_z + nu) max |v|",
            )
        )
    length, chunk = 512, 64
    x = torch.ones(length, 32)
    for function, expected, rival in (
        (online_attention, length * chunk, length * length),
        (explicit_attention, length * length, None),
    ):
        options = {"chunk_size": chunk} if function is online_attention else {}
        done = operations_of(partial(function, x, x, x, **options))
        found.append(
            Measurement(
                f"max #A, L = S = 512, d_k = 32, {function.__name__}",
                max(operation.written for operation in done),
                expected=expected,
                tolerance=0,
                reason="0",
                rival=rival,
            )
        )
    return found


def rounding_bound(n: int, blocks: int, spread: float) -> float:
    """Largest relative difference of one weight between online and safe softmax, in float64.

    Numerators are the same. Both denominators add n − 1 times; the online one also multiplies and
    adds in each block, and takes two exponentials there, each good to 2u and to u times the
    argument, and the arguments of the rescalings add up to the range R of the logits. Products of
    small errors are dropped; all factors here are rounded up.
    """
    return UNIT_ROUNDOFF * (3 * spread + 4 * blocks + 2 * n + 4)


def attention_in_numpy(q: Any, k: Any, v: Any) -> Any:
    """softmax(QKᵀ/√d_k)V in float64, nothing of ours in it."""
    z = q @ k.T / math.sqrt(q.shape[-1])
    p = np.exp(z - z.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v
