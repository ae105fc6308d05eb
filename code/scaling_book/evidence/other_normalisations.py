"""Evidence for what the answer says of LayerNorm, RMSNorm and RoPE (§2.4, and Q2 of §4).

Tokens have the width `MODEL_WIDTH` and mean square 25 unless stated; W_Q and W_K have entries of
variance 1/d_model and are drawn afresh for every few token pairs. Rounding bounds are in units of
u = 2⁻⁵³.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from attention_scaling import (
    apply_rotary,
    attention_logits,
    layer_norm,
    qk_norm,
    rms_norm,
    yarn_attention_factor,
)
from scaling_book.evidence import seeds
from scaling_book.evidence.core import Measurement, against_the_answer, evidence
from scaling_book.evidence.operations import Operation, operations_of
from scaling_book.evidence.sampling import std_of, variance_of

SEED = 20160721  # with a number of its own for each claim
HEAD_DIM = 64  # d_k of one head
MODEL_WIDTH = 256  # d_model
UNIT_ROUNDOFF = 2.0**-53
SAMPLE = 20_000
PAIRS_PER_DRAW = 128  # token pairs that meet one draw of W_Q and W_K
HEADS_PER_DRAW = 4

Function = Callable[[torch.Tensor], torch.Tensor]
Matrix = NDArray[np.float64]


def exact_layer_norm(x: torch.Tensor) -> torch.Tensor:
    """LayerNorm without ε, gain and shift."""
    return layer_norm(x, eps=0.0)


def exact_rms_norm(x: torch.Tensor) -> torch.Tensor:
    """RMSNorm without ε and gain."""
    return rms_norm(x, eps=0.0)


def as_is(x: torch.Tensor) -> torch.Tensor:
    """No normalisation, no rotation."""
    return x


# ------------------------------------------------------------------------------------- LayerNorm


@evidence("layernorm-acts-on-hidden-states")
def layernorm_acts_on_hidden_states() -> list[Measurement]:
    """One token, all its features; mean 0 and variance 1 before gain and shift, not after."""
    rng = seeds.rng(SEED, 32)
    tokens, d = 6, MODEL_WIDTH
    x = torch.tensor(3 + 4 * rng.standard_normal((tokens, d)))
    moved = x.clone()
    moved[2, 5] += 1
    changed = layer_norm(moved) != layer_norm(x)
    y = exact_layer_norm(x)
    affine = layer_norm(x, torch.tensor(2.0).double(), torch.tensor(1.0).double(), eps=0.0)
    # |Σ y| and |Σ y² − d| from rounding: d additions of numbers up to max |y| ≤ √d.
    bound = 4 * d * UNIT_ROUNDOFF * math.sqrt(d)
    row = 0
    return [
        Measurement(
            "#{t: ∂y_t/∂x₂₅ ≠ 0}, L = 6",
            int(changed.any(dim=1).sum()),
            expected=1,
            tolerance=0,
            reason="0",
            rival=tokens,
        ),
        Measurement(
            "#{i: ∂y_i/∂x₂₅ ≠ 0}, d = 256",
            int(changed.any(dim=0).sum()),
            expected=d,
            tolerance=0,
            reason="0",
            rival=1,
        ),
        Measurement(
            "Σ y_i / d, x ~ N(3, 4²)",
            y[row].mean().item(),
            expected=0,
            tolerance=bound,
            reason="4 d u √d",
            rival=3,
        ),
        Measurement(
            "Σ y_i² / d, x ~ N(3, 4²)",
            (y[row] ** 2).mean().item(),
            expected=1,
            tolerance=bound,
            reason="4 d u √d",
            rival=16,
        ),
        Measurement(
            "Σ y_i / d, w = 2, b = 1",
            affine[row].mean().item(),
            expected=1,
            tolerance=2 * bound,
            reason="8 d u √d",
            rival=0,
        ),
        Measurement(
            "Σ (y_i − b)² / d, w = 2, b = 1",
            ((affine[row] - 1) ** 2).mean().item(),
            expected=4,
            tolerance=8 * bound,
            reason="32 d u √d",
            rival=1,
        ),
    ]


@evidence("layernorm-solves-covariate-shift")
def layernorm_solves_covariate_shift() -> list[Measurement]:
    """Tokens ±w + a u with orthogonal u, w of zero mean: the shift a u survives LayerNorm.

    ‖x‖² = d(1 + a²) and Σ x_i = 0 for every token, so LayerNorm divides by √(1 + a²) and does no
    more. Over tokens, feature 0 moves from mean 0 and variance 1 to a/√(1 + a²) and 1/(1 + a²).
    """
    d, tokens, a = 64, 32, 1.0
    w = torch.tensor([1.0, -1.0] * (d // 2)).double()
    u = torch.tensor([1.0, 1.0, -1.0, -1.0] * (d // 4)).double()
    sign = torch.tensor([[1.0], [-1.0]] * (tokens // 2)).double()
    y = exact_layer_norm(sign * w + a * u)
    bound = (d + tokens + 8) * UNIT_ROUNDOFF
    size = math.sqrt(1 + a**2)
    return [
        against_the_answer(
            Measurement(
                "E[LN(x_t)₀], x_t = ±w + u",
                y[:, 0].mean().item(),
                expected=a / size,
                tolerance=bound,
                reason="(d + L + 8) u",
                rival=0,  # the shift is gone, as the answer has it
            )
        ),
        Measurement(
            "Var[LN(x_t)₀], x_t = ±w + u",
            y[:, 0].var(correction=0).item(),
            expected=1 / size**2,
            tolerance=4 * bound,
            reason="4 (d + L + 8) u",
            rival=1,
        ),
        Measurement(
            "max |Σ_i LN(x_t)_i| / d, x_t = ±w + u",
            y.mean(dim=1).abs().max().item(),
            expected=0,
            tolerance=bound,
            reason="(d + L + 8) u",
        ),
    ]


@evidence("layernorm-does-not-fix-score-variance")
def layernorm_does_not_fix_score_variance() -> list[Measurement]:
    """√d_k is still there behind LayerNorm, and growing weights are too; the size of x is not."""
    generator = seeds.generator(SEED + 34)
    found = [
        std_of(
            f"σ(q·k), LN(x), d_k = {head_dim}",
            sample_logits(exact_layer_norm, head_dim, generator),
            expected=math.sqrt(head_dim),
            kurtosis=3 + 6 / head_dim,
            rival=rival,
        )
        for head_dim, rival in ((64, 1.0), (256, math.sqrt(64)))
    ]
    x = 5 * torch.randn(2, MODEL_WIDTH, generator=generator, dtype=torch.float64)
    w = torch.randn(2, HEAD_DIM, MODEL_WIDTH, generator=generator, dtype=torch.float64)

    def logit(norm: Function, size: float = 1.0, growth: float = 1.0) -> float:
        q, k = (growth * matrix @ norm(size * token) for matrix, token in zip(w, x, strict=True))
        return float(q @ k)

    # Sums over d_model and d_k with cancellation: relative errors of a few 1e-14.
    rounding = 4 * (MODEL_WIDTH + HEAD_DIM) * UNIT_ROUNDOFF * 100
    for label, ratio, expected, rival in (
        ("z(10x)/z(x)", logit(as_is, size=10) / logit(as_is), 100, 1),
        ("z(10x)/z(x), LN", logit(exact_layer_norm, size=10) / logit(exact_layer_norm), 1, 100),
        ("z(3W)/z(W), LN", logit(exact_layer_norm, growth=3) / logit(exact_layer_norm), 9, 1),
    ):
        found.append(
            Measurement(
                label,
                ratio,
                expected=expected,
                tolerance=expected * rounding,
                reason="400 (d_model + d_k) u",
                rival=rival,
            )
        )
    return found


def sample_logits(
    norm: Function,
    head_dim: int,
    generator: torch.Generator,
    rotate: Function = as_is,
    size: int = SAMPLE,
) -> NDArray[np.float64]:
    """Raw scores q·k with W_Q, W_K ~ N(0, 1/d_model) and tokens of mean square 25.

    Given W, the variance of a score differs from the law by about 2/√(d_k d_model) of it; over the
    heads of all draws this adds less than a tenth to the standard error.
    """
    logits: list[torch.Tensor] = []
    while sum(block.numel() for block in logits) < size:
        shape = (2, HEADS_PER_DRAW, head_dim, MODEL_WIDTH)
        w_q, w_k = torch.randn(shape, generator=generator) / math.sqrt(MODEL_WIDTH)
        x = 5 * torch.randn(2, PAIRS_PER_DRAW, MODEL_WIDTH, generator=generator)
        q, k = norm(x[0]) @ w_q.mT, norm(x[1]) @ w_k.mT  # (heads, pairs, d_k)
        logits.append((rotate(q).double() * k.double()).sum(dim=-1).flatten())
    return torch.cat(logits)[:size].numpy()


# --------------------------------------------------------------------------------------- RMSNorm


@evidence("rmsnorm-is-simplified-layernorm")
def rmsnorm_is_simplified_layernorm() -> list[Measurement]:
    """Equal where the mean is 0; where it is μ, an entry μ + σ becomes (μ + σ)/√(μ² + σ²)."""
    d, mean, spread = 64, 3.0, 4.0
    signs = torch.tensor([1.0, -1.0] * (d // 2)).double()
    rng = seeds.rng(SEED, 35)
    centred = torch.tensor(rng.standard_normal((1000, d)))
    centred -= centred.mean(dim=-1, keepdim=True)
    difference = (exact_rms_norm(centred) - exact_layer_norm(centred)).abs().max().item()
    shifted = exact_rms_norm(mean + spread * signs)
    rescaled = exact_rms_norm(1000 * (mean + spread * signs))
    bound = (2 * d + 8) * UNIT_ROUNDOFF
    return [
        Measurement(
            "max |RMS(x) − LN(x)|, Σ x_i = 0, d = 64",
            difference,
            expected=0,
            # what is left of the mean after it was subtracted, and two roots of two sums
            tolerance=2 * bound * float(exact_layer_norm(centred).abs().max()),
            reason="2 (2d + 8) u max |y|",
        ),
        Measurement(
            "RMS(x)₀, x_i = 3 ± 4",
            shifted[0].item(),
            expected=(mean + spread) / math.hypot(mean, spread),
            tolerance=2 * bound,
            reason="2 (2d + 8) u",
            rival=1.0,  # LayerNorm's
        ),
        Measurement(
            "Σ RMS(x)_i / d, x_i = 3 ± 4",
            shifted.mean().item(),
            expected=mean / math.hypot(mean, spread),
            tolerance=2 * bound,
            reason="2 (2d + 8) u",
            rival=0.0,
        ),
        Measurement(
            "max |RMS(1000x) − RMS(x)|, x_i = 3 ± 4",
            (rescaled - shifted).abs().max().item(),
            expected=0,
            tolerance=4 * bound,
            reason="4 (2d + 8) u",
        ),
    ]


@evidence("rmsnorm-is-cheaper")
def rmsnorm_is_cheaper() -> list[Measurement]:
    """Operations for one token of width d: 3d + 2 instead of 5d + 2, one sum instead of two."""
    d = 512
    x = torch.ones(1, d)
    layer, rms = (operations_of(partial(norm, x)) for norm in (layer_norm, rms_norm))
    # LN: mean (d), minus (d), squares (d), their mean (d), + ε, √, divide (d).
    count_layer, count_rms = 5 * d + 2, 3 * d + 2
    projections = operations_of(partial(torch.nn.functional.linear, x, torch.ones(4 * d, d)))
    multiplications = sum(d * o.written for o in projections)  # Q, K, V and the output, 4d × d
    found = []
    for label, measured, expected, rival in (
        ("#op, LN, d = 512", flops(layer), count_layer, None),
        ("#op, RMS, d = 512", flops(rms), count_rms, count_layer),
        ("#Σ, RMS", sum(o.is_reduction for o in rms), 1, 2),
        ("#Σ, LN", sum(o.is_reduction for o in layer), 2, None),
        (
            "(#op LN − #op RMS) / #op(W_Q, W_K, W_V, W_O), d = 512",
            (flops(layer) - flops(rms)) / (2 * multiplications),
            1 / (4 * d),
            2 / 5,  # the saving as a share of LayerNorm itself
        ),
    ):
        found.append(
            Measurement(label, measured, expected=expected, tolerance=0, reason="0", rival=rival)
        )
    return found


def flops(operations: Sequence[Operation]) -> int:
    """All arithmetic operations together."""
    return sum(operation.flops for operation in operations)


@evidence("rmsnorm-does-not-replace-scaling")
def rmsnorm_does_not_replace_scaling() -> list[Measurement]:
    """On x it leaves √d_k. On q and k, with gains d^(−1/4), it does the work of the factor."""
    generator = seeds.generator(SEED + 37)
    d = HEAD_DIM
    shape = (2, SAMPLE, d)
    q, k = 7 * torch.randn(shape, generator=generator, dtype=torch.float64)
    gain = torch.full((d,), d**-0.25, dtype=torch.float64)
    normal_q, normal_k = qk_norm(q, k, gain, gain, eps=0.0)
    # Two directions in d dimensions: E[cos²] = 1/d, E[cos⁴] = 3/(d(d + 2)).
    kurtosis = 3 * d / (d + 2)
    # The largest logit there can be: k = q, however long.
    long = torch.full((1, d), 1000.0, dtype=torch.float64)
    bounded = attention_logits(*qk_norm(long, long, eps=0.0)).item()
    return [
        std_of(
            "σ(q·k), RMS(x), d_k = 64",
            sample_logits(exact_rms_norm, d, generator),
            expected=math.sqrt(d),
            kurtosis=3 + 6 / d,
            rival=1.0,
        ),
        std_of(
            "σ(q·k), RMS(q), RMS(k), w = d_k^(−1/4), s = 1, d_k = 64",
            (normal_q * normal_k).sum(dim=-1).numpy(),
            expected=1.0,
            kurtosis=kurtosis,
            rival=math.sqrt(d),
        ),
        Measurement(
            "z, RMS(q), RMS(k), q = k = (1000, …), s = 1/√d_k, d_k = 64",
            bounded,
            expected=math.sqrt(d),
            tolerance=8 * (d + 8) * UNIT_ROUNDOFF,
            reason="√d_k (d_k + 8) u",
            rival=1000**2 * math.sqrt(d),
        ),
    ]


# ------------------------------------------------------------------------------------------ RoPE


@evidence("rope-rotates-q-and-k")
def rope_rotates_q_and_k() -> list[Measurement]:
    """The score of q at m and k at n, by complex numbers; only m − n matters."""
    rng = seeds.rng(SEED, 38)
    d, m, n, shift = HEAD_DIM, 9, 4, 1000
    q, k = rng.standard_normal((2, d))
    theta = 10000.0 ** (-np.arange(0, d, 2) / d)
    # Features i and i + d/2 form the complex number that turns by m θ_i.
    q_pairs, k_pairs = (x[: d // 2] + 1j * x[d // 2 :] for x in (q, k))
    by_hand = float((q_pairs * k_pairs.conj() * np.exp(1j * (m - n) * theta)).sum().real)
    here = score_at(q, k, m, n)
    # Angles up to m θ = 1009 carry an error of 1009 u each, twice.
    size = float(np.linalg.norm(q) * np.linalg.norm(k))
    near, far = (2 * (2 * place + d) * UNIT_ROUNDOFF * size for place in (m, m + shift))
    return [
        Measurement(
            "(R₉q)·(R₄k), d_k = 64",
            here,
            expected=by_hand,
            tolerance=near,
            reason="2 (2m + d_k) u ‖q‖‖k‖",
            rival=float(q @ k),
        ),
        Measurement(
            "(R₁₀₀₉q)·(R₁₀₀₄k), d_k = 64",
            score_at(q, k, m + shift, n + shift),
            expected=by_hand,
            tolerance=far,
            reason="2 (2m + d_k) u ‖q‖‖k‖",
            rival=score_at(q, k, m + shift, n),  # another m − n
        ),
    ]


def score_at(q: Matrix, k: Matrix, m: int, n: int) -> float:
    """q·k after both were rotated by their positions."""
    turned = [
        apply_rotary(torch.tensor(x)[None], torch.tensor([place])) for x, place in ((q, m), (k, n))
    ]
    return float((turned[0] * turned[1]).sum())


@evidence("rope-keeps-variance")
def rope_keeps_variance() -> list[Measurement]:
    """It does for white q or k. Not within an uneven pair, and not across correlated pairs."""
    rng = seeds.rng(SEED, 39)
    uneven = np.diag([2.0, 0.0])  # one pair, all its variance in the first feature
    across = np.eye(4)  # pairs (0, 2) and (1, 3), each even, but correlated with one another
    across[[0, 1, 2, 3], [1, 0, 3, 2]] = 0.9
    cases = [
        ("Σ = I, d_k = 64, m − n = 1000", np.eye(64), 1000.0, 10000.0, False),
        ("Σ = 2·e₁e₁ᵀ, 45°", uneven, math.pi / 4, 10000.0, True),
        ("Σ = 2·e₁e₁ᵀ, 60°", uneven, math.pi / 3, 10000.0, True),
    ]
    cases += [(f"ρ₁₂ = 0.9, m − n = {m}", across, float(m), 100.0, True) for m in (1, 2, 3)]
    found = []
    for label, covariance, offset, base, differs in cases:
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(values)
        n = 100_000
        q, k = (rng.standard_normal((n, len(root))) @ root.T for _ in range(2))
        turned = apply_rotary(torch.tensor(q), torch.full((n,), offset), base=base).numpy()
        rotation = rotation_matrix(len(root), offset, base)
        # q·k = Σ s_i u_i v_i with the singular values s of the middle: cumulants add.
        s = np.linalg.svd(root.T @ rotation.T @ root, compute_uv=False)
        found.append(
            variance_of(
                f"Var(Rq·k), {label}",
                (turned * k).sum(axis=1),
                expected=float(np.trace(rotation @ covariance @ rotation.T @ covariance)),
                kurtosis=float(3 + 6 * (s**4).sum() / (s**2).sum() ** 2),
                rival=float(np.trace(covariance @ covariance)) if differs else None,
            )
        )
    return found


def rotation_matrix(head_dim: int, offset: float, base: float) -> Matrix:
    """RoPE's matrix for one position, in NumPy, for pairs (i, i + d/2)."""
    half = head_dim // 2
    matrix = np.zeros((head_dim, head_dim))
    for i in range(half):
        angle = offset * base ** (-2 * i / head_dim)
        matrix[i, i] = matrix[i + half, i + half] = math.cos(angle)
        matrix[i, i + half], matrix[i + half, i] = -math.sin(angle), math.sin(angle)
    return matrix


@evidence("rope-changes-norms")
def rope_changes_norms() -> list[Measurement]:
    """A rotation keeps every norm to the last digit; YaRN's factor does not."""
    rng = seeds.rng(SEED, 40)
    q = torch.tensor(rng.standard_normal((4096, HEAD_DIM)))
    positions = torch.arange(4096)
    stretch = 32
    factor = yarn_attention_factor(stretch)
    plain, yarn = (
        apply_rotary(q, positions, attention_factor=f).norm(dim=-1) / q.norm(dim=-1)
        for f in (1.0, factor)
    )
    by_formula = 0.1 * math.log(stretch) + 1
    # cos² + sin² is 1 up to 4 u, the rotation adds 4 u, and two norms of d_k squares d_k u each
    bound = (HEAD_DIM + 8) * UNIT_ROUNDOFF
    return [
        against_the_answer(
            Measurement(
                "max |‖R_m q‖/‖q‖ − 1|, m < 4096, d_k = 64",
                (plain - 1).abs().max().item(),
                expected=0,
                tolerance=bound,
                reason="(d_k + 8) u",
                # the answer says by no number how much; this is the change that YaRN makes
                rival=by_formula - 1,
            )
        ),
        Measurement(
            "max ‖f R_m q‖/‖q‖, f = 0.1 ln s + 1, s = 32",
            yarn.max().item(),
            expected=by_formula,
            tolerance=2 * bound,
            reason="2 (d_k + 8) u",
            rival=1.0,
        ),
    ]


@evidence("rope-still-needs-scaling")
def rope_still_needs_scaling() -> list[Measurement]:
    """√d_k with RoPE and without it; with YaRN's factor more, by its square."""
    generator = seeds.generator(SEED + 41)
    factor = yarn_attention_factor(32)
    positions = torch.randint(0, 4096, (PAIRS_PER_DRAW,), generator=generator)
    stretched = (0.1 * math.log(32) + 1) ** 2
    rotations: tuple[tuple[str, Function, float, float], ...] = (
        ("q·k", as_is, 1.0, 1.0),
        # By the answer RoPE changes the norms, and the scores with them: as much as YaRN does.
        (
            "R_m q·k",
            partial(apply_rotary, positions=positions),
            1.0,
            stretched * math.sqrt(HEAD_DIM),
        ),
        (
            "f² R_m q·k, f = 0.1 ln 32 + 1",
            # both q and k carry the factor; here q carries it twice
            partial(apply_rotary, positions=positions, attention_factor=factor**2),
            stretched,
            math.sqrt(HEAD_DIM),
        ),
    )
    without, rotated, with_factor = (
        std_of(
            f"σ({label}), RMS(x), d_k = 64",
            sample_logits(exact_rms_norm, HEAD_DIM, generator, rotate),
            expected=growth * math.sqrt(HEAD_DIM),
            kurtosis=3 + 6 / HEAD_DIM,
            rival=rival,
        )
        for label, rotate, growth, rival in rotations
    )
    return [without, against_the_answer(rotated), with_factor]
