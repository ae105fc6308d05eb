"""Section 5 of the answer, its corrections of three wrong answers: what each of them claims anew.

Two of its sentences restate section 2 and have their evidence there: `d-makes-attention-uniform`
and `root-normalises-variance-to-one`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from attention_scaling import attention_logits, explicit_attention, layer_norm, softmax
from scaling_book.evidence import seeds
from scaling_book.evidence.core import Measurement, against_the_answer, evidence
from scaling_book.evidence.gradients import rms_gradient_of
from scaling_book.evidence.low_precision import exact, moments_of_slope
from scaling_book.evidence.row_gradients import sample_row_gradients, squared_query_gradient
from scaling_book.evidence.sampling import mean_of
from scaling_book.lab.lookup import steps_until, train

SEED = 20170608  # with a number of its own for each claim
HEAD_DIM = 64
ROOT = HEAD_DIM**-0.5
UNIT_ROUNDOFF = 2.0**-53

Operation = Callable[[torch.Tensor], torch.Tensor]

# Gradient descent on one query, see `descend`. STEEPNESS is rate · ‖k_1 − k_2‖²; without a factor
# the minimum is stable up to 8, and the cycle of period two from there up to about 13.7.
KEY_GAP = math.sqrt(2 * HEAD_DIM)
STEEPNESS = 12.0
DESCENT_STEPS = 600


@evidence("vanishing-gradients-prevent-convergence")
def vanishing_gradients_prevent_convergence() -> list[Measurement]:
    """Without the factor descent can fail with a gradient that stays large, or with none."""
    rng = seeds.rng(SEED, 71)
    x = height_of_cycle(STEEPNESS)
    cycling = KEY_GAP * slope(x)
    _, unscaled = descend(1.0)
    _, scaled = descend(ROOT)
    far, _ = descend(1.0, start=40.0)
    # The cycle contracts by 0.54 a step, the minimum by 1 − 12/(4 · 64), so only rounding is left.
    rounding = 1e-12
    label = "L = ½(p₁ − p₂)², d_k = 64"
    found = [
        against_the_answer(
            Measurement(
                f"‖∂L/∂q‖, t = 600, s = 1, {label}",
                unscaled,
                expected=cycling,
                tolerance=rounding * cycling,
                reason="10⁻¹² ‖∂L/∂q‖",
                rival=0.0,
            )
        ),
        Measurement(
            f"‖∂L/∂q‖, t = 600, s = 1/√d_k, {label}",
            scaled,
            expected=0.0,
            tolerance=rounding,
            reason="(1 − 12/256)⁶⁰⁰ < 10⁻¹²",
            rival=cycling,
        ),
        Measurement(
            f"p₁ − p₂, t = 600, s = 1, q·(k₁ − k₂) = 40, {label}",
            far,
            expected=1.0,
            tolerance=rounding,
            reason="600 · 12 e⁻⁴⁰ < 10⁻¹²",
            rival=0.0,
        ),
    ]
    d, n = 128, 64
    (row,) = sample_row_gradients(d, n, 20_000, scales=[1.0], rng=rng)
    found.append(
        against_the_answer(
            rms_gradient_of(
                f"√E‖∂L/∂q‖², s = 1, d_k = {d}, n = {n}",
                row.query,
                d,
                n,
                scale=1.0,
                rival=math.sqrt(squared_query_gradient(d, n, d**-0.5)),
            )
        )
    )
    return found


def descend(scale: float, start: float = 1.0) -> tuple[float, float]:
    """Let one query learn to read two keys equally, by gradient descent.

    The keys are orthogonal and of length √d_k, their values are 1 and −1, and the loss is half the
    square of the output, so the minimum is p = (½, ½). The query starts with q·(k_1 − k_2) =
    `start`. The logits' gap x then follows x ← x − a/2 · tanh(x/2) sech²(x/2) with
    a = scale² · STEEPNESS.

    Returns
    -------
    tuple of float
        The output, and the norm of the gradient, at the last step.
    """
    keys = math.sqrt(HEAD_DIM) * torch.eye(2, HEAD_DIM, dtype=torch.float64)
    values = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    q = start / KEY_GAP**2 * (keys[:1] - keys[1:])
    output, gradient = torch.zeros(()), torch.zeros(())
    for _ in range(DESCENT_STEPS):
        q.requires_grad_()
        output = explicit_attention(q, keys, values, scale=scale)
        (gradient,) = torch.autograd.grad((output**2).sum() / 2, q)
        q = (q - STEEPNESS / KEY_GAP**2 * gradient).detach()
    return output.item(), gradient.norm().item()


def slope(x: float) -> float:
    """dL/dx for L = ½ tanh²(x/2)."""
    return 0.5 * math.tanh(x / 2) / math.cosh(x / 2) ** 2


def height_of_cycle(steepness: float) -> float:
    """The x > 0 that one step takes to −x: 2x = steepness · dL/dx, by bisection."""
    low, high = 0.1, 10.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if steepness * slope(middle) > 2 * middle else (low, middle)
    return low


@evidence("scores-against-token-vectors")
def scores_against_token_vectors() -> list[Measurement]:
    """One entry of n × n scores, one token of n × d features: who moves, and who divides."""
    rng = seeds.rng(SEED, 74)
    n, d = 6, 32
    # With K = I the products are the entries of Q, so that one of them can be moved.
    scores = torch.tensor(rng.standard_normal((n, n)))
    x = torch.tensor(rng.standard_normal((n, d)))

    def factor(z: torch.Tensor) -> torch.Tensor:
        return attention_logits(z, torch.eye(n, dtype=torch.float64))

    def moved(function: Operation, at: torch.Tensor) -> int:
        changed = at.clone()
        changed[2, 1] += 1
        return int((function(changed) != function(at)).sum())

    def divisors(function: Operation, at: torch.Tensor) -> int:
        """How many numbers differences of entries are divided by."""
        difference = (at[:, 0] - at[:, 1]) / (function(at)[:, 0] - function(at)[:, 1])
        return len(set(difference.round(decimals=9).tolist()))

    longer = x.clone()
    longer[0] *= 10
    passed = [
        float((function(longer) / function(x))[0, 1])
        for function in (exact_layer_norm, lambda y: attention_logits(y, y))
    ]
    # Of a sum of d terms, relative to the result, which is no smaller than a thousandth of them.
    rounding = 1000 * d * UNIT_ROUNDOFF
    return [
        exact(f"#Δ(z/√d_k), z₂₁ + 1, {n} × {n}", moved(factor, scores), 1, rival=n),
        exact(f"#Δ LN(x), x₂₁ + 1, {n} × {d}", moved(layer_norm, x), d, rival=1),
        exact("#{z/(z/√d_k)}", divisors(factor, scores), 1, rival=n),
        exact("#{(x_t0 − x_t1)/(LN(x)_t0 − LN(x)_t1)}", divisors(layer_norm, x), n, rival=1),
        Measurement(
            "LN(10 x₀)/LN(x₀)", passed[0], 1.0, tolerance=rounding, reason="10³ d u", rival=10.0
        ),
        Measurement(
            "(10 x₀)·x₁/(x₀·x₁)",
            passed[1],
            10.0,
            tolerance=10 * rounding,
            reason="10⁴ d u",
            rival=1.0,
        ),
    ]


def exact_layer_norm(x: torch.Tensor) -> torch.Tensor:
    """LayerNorm without ε, gain and shift."""
    return layer_norm(x, eps=0.0)


@evidence("softmax-gradient-against-covariate-shift")
def softmax_gradient_against_covariate_shift() -> list[Measurement]:
    """Neither is solved: grown q and k undo the factor, and shifts over tokens pass LayerNorm."""
    rng = seeds.rng(SEED, 75)
    d, rows = HEAD_DIM, 100_000
    grown = d**0.25
    q = torch.tensor(grown * rng.standard_normal((rows, 1, d)))
    k = torch.tensor(grown * rng.standard_normal((rows, 2, d)))
    p = softmax(attention_logits(q, k)).squeeze(1)
    mean, square = moments_of_slope(1.0, d)
    at_the_start, _ = moments_of_slope(d**-0.5, d)
    # Tokens with entries ±1 of mean zero: LayerNorm leaves them as they are. Then the layer before
    # sets their first two features to +1 and −1.
    tokens, width = 64, 16
    signs = np.repeat([[1.0, -1.0]], width // 2, axis=0).ravel()
    x = torch.tensor(np.stack([rng.permutation(signs) for _ in range(tokens)]))
    rest = np.stack([rng.permutation(signs[2:]) for _ in range(tokens)])
    x[:, 0], x[:, 1], x[:, 2:] = 1.0, -1.0, torch.tensor(rest)
    y = exact_layer_norm(x)[:, 0]
    return [
        against_the_answer(
            mean_of(
                "E[p(1 − p)], n = 2, s = 1/√d_k, q, k ~ N(0, √d_k), d_k = 64",
                (p[:, 0] * p[:, 1]).numpy(),
                expected=mean,
                variance=square - mean**2,
                rival=at_the_start,
            )
        ),
        against_the_answer(
            exact("Σ_t LN(x_t)₀/L, x_t0 = 1, x_t1 = −1", float(y.mean()), 1.0, rival=0.0)
        ),
        exact("Σ_t (LN(x_t)₀ − 1)²/L", float(y.var(correction=0)), 0.0, rival=1.0),
    ]


@evidence("both-are-indispensable")
def both_are_indispensable() -> list[Measurement]:
    """A head that learns with neither, and one that is the same function with the factor in W_Q."""
    rng = seeds.rng(SEED, 76)
    x, w_q, w_k = torch.tensor(rng.standard_normal((3, HEAD_DIM, HEAD_DIM)))

    def head(w: torch.Tensor, factor: float) -> torch.Tensor:
        return explicit_attention(x @ w * ROOT, x @ w_k * ROOT, x, scale=factor)

    divided = head(w_q, ROOT)
    runs = [seeds.torch_seed(SEED + number) for number in range(2)]
    learned = steps_until(train(1.0, gain=HEAD_DIM**-0.25, seeds=runs, steps=300))
    return [
        against_the_answer(
            exact(
                "#{P ≥ 0.9}, t ≤ 300, s = 1, σ(q_i) = d_k^(−1/4), d_k = 64",
                len(runs) - learned.count(None),
                expected=len(runs),
                rival=0,
            )
        ),
        against_the_answer(
            exact(
                "max|A(W_Q/√d_k, 1) − A(W_Q, 1/√d_k)|, d_k = 64",
                float((head(ROOT * w_q, 1.0) - divided).abs().max()),
                expected=0.0,
                reason="√64 = 2³",
                rival=float((head(w_q, 1.0) - divided).abs().max()),
            )
        ),
    ]
