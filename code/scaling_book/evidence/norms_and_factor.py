"""Section 4 of the answer, question 2: RMSNorm, GPT-3, and whether the factor has to do with it.

Which norm a released model has is a question for its source. What its lines compute, what each norm
reaches and what it leaves to the factor are measured here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.nn.functional import gelu

from attention_scaling import explicit_attention, layer_norm, qk_norm, rms_norm
from scaling_book.evidence import seeds
from scaling_book.evidence.core import Measurement, against_the_answer, evidence
from scaling_book.evidence.many_constants import UNIT_ROUNDOFF, recorded_scale
from scaling_book.evidence.operations import operations_of
from scaling_book.evidence.sampling import std_of
from scaling_book.evidence.variance_control import kurtosis_of_dot_product

SEED = 20170620  # with a number of its own for each claim
MODEL_WIDTH = 512  # d_model
DRAWS = 16  # of W_Q and W_K, each of which meets MODEL_WIDTH pairs of tokens

Norm = Callable[[torch.Tensor], torch.Tensor]


def gpt2_norm(
    x: torch.Tensor, gain: torch.Tensor, shift: torch.Tensor, epsilon: float = 1e-5
) -> torch.Tensor:
    """The function ``norm`` of GPT-2's ``src/model.py``, line by line in torch."""
    mean = x.mean(dim=-1, keepdim=True)
    centred = x - mean
    variance = (centred * centred).mean(dim=-1, keepdim=True)
    return centred * (variance + epsilon).rsqrt() * gain + shift


def unit_gpt2_norm(x: torch.Tensor) -> torch.Tensor:
    """GPT-2's norm as it is initialised: gain 1, shift 0."""
    return gpt2_norm(x, torch.ones_like(x), torch.zeros_like(x))


@evidence("gpt-3-uses-rmsnorm")
def gpt_3_uses_rmsnorm() -> list[Measurement]:
    """GPT-2's norm, which GPT-3's paper takes over, is LayerNorm and not RMSNorm."""
    d = 64
    generator = seeds.generator(SEED + 55)
    x = 3 + torch.randn(100, d, generator=generator, dtype=torch.float64)
    y = unit_gpt2_norm(x)
    constant = torch.full((1, d), 3.0, dtype=torch.float64)
    return [
        against_the_answer(
            Measurement(
                "max|y_i|, x = 3 · (1, …, 1), d = 64",
                measured=float(unit_gpt2_norm(constant).abs().max()),
                expected=0.0,
                tolerance=0.0,
                reason="0",
                rival=float(rms_norm(constant, eps=0.0).max()),
            )
        ),
        against_the_answer(
            Measurement(
                "max|y − (x − μ)/√(σ² + ε)|, d = 64",
                measured=float((y - layer_norm(x)).abs().max()),
                expected=0.0,
                # sums of 64 terms, a root and a division
                tolerance=2 * d * UNIT_ROUNDOFF * float(y.abs().max()),
                reason="2d u max|y|",
                rival=float((rms_norm(x) - layer_norm(x)).abs().max()),
            )
        ),
    ]


@evidence("gpt-3-chose-rmsnorm-for-cost")
def gpt_3_chose_rmsnorm_for_cost() -> list[Measurement]:
    """What GPT-2 and GPT-3 have takes a mean: two sums over the features, RMSNorm takes one."""
    x = torch.ones(7, 64)
    gain, shift = torch.ones(64), torch.zeros(64)

    def sums(call: Callable[[], torch.Tensor]) -> int:
        return sum(operation.is_reduction for operation in operations_of(call))

    return [
        against_the_answer(
            Measurement(
                "#Σ, y = g(x − μ)/√(σ² + ε) + b",
                measured=sums(lambda: gpt2_norm(x, gain, shift)),
                expected=2,
                tolerance=0,
                reason="0",
                rival=1,
            )
        ),
        Measurement(
            "#Σ, y = g x/√(x·x/d + ε)",
            measured=sums(lambda: rms_norm(x, gain)),
            expected=1,
            tolerance=0,
            reason="0",
            rival=2,
        ),
    ]


def raw_scores(norm: Norm, size: float, head_dim: int, generator: torch.Generator) -> torch.Tensor:
    """q·k of tokens of root mean square `size`, with W_Q and W_K of variance 1/d_model.

    Token j has all of its size in feature j, so that its q is a row of W_Q and the pairs of one
    draw are independent.
    """
    tokens = norm(size * math.sqrt(MODEL_WIDTH) * torch.eye(MODEL_WIDTH, dtype=torch.float64))
    found = []
    for _ in range(DRAWS):
        w = torch.randn(2, MODEL_WIDTH, head_dim, generator=generator, dtype=torch.float64)
        q, k = tokens @ w / math.sqrt(MODEL_WIDTH)
        found.append((q * k).sum(dim=-1))
    return torch.cat(found)


def as_is(x: torch.Tensor) -> torch.Tensor:
    """No normalisation."""
    return x


def exact_rms_norm(x: torch.Tensor) -> torch.Tensor:
    """RMSNorm without ε and gain."""
    return rms_norm(x, eps=0.0)


@evidence("norm-and-factor-different-levels")
def norm_and_factor_different_levels() -> list[Measurement]:
    """RMSNorm leaves √d_k to the factor; it makes gradients independent of the token's size."""
    generator = seeds.generator(SEED + 56)
    found = [
        std_of(
            f"σ(q·k), q = W_Q r(5x), r(x) = √d x/|x|, d_k = {d}",
            raw_scores(exact_rms_norm, 5.0, d, generator).numpy(),
            expected=math.sqrt(d),
            kurtosis=kurtosis_of_dot_product(d),
            rival=1.0,
        )
        for d in (64, 256)
    ]
    x = torch.randn(16, generator=generator, dtype=torch.float64)
    small, large = (torch.func.jacrev(exact_rms_norm)(factor * x).norm() for factor in (1.0, 8.0))
    found.append(
        Measurement(
            "‖∂r(8x)‖/‖∂r(x)‖, d = 16",
            measured=float(large / small),
            expected=1 / 8,
            tolerance=64 * UNIT_ROUNDOFF,
            reason="64 u",
            rival=1.0,
        )
    )
    return found


@evidence("norm-and-factor-complementary")
def norm_and_factor_complementary() -> list[Measurement]:
    """The norm takes out the size of the token, the factor takes out d_k; each alone leaves one."""
    generator = seeds.generator(SEED + 57)
    d, size = 64, 5.0
    plain = raw_scores(as_is, size, d, generator)
    normed = raw_scores(exact_rms_norm, size, d, generator)
    cases = (
        ("σ(q·k), q = W_Q(5x)", plain, size**2 * math.sqrt(d), 1.0),
        ("σ(q·k/√d_k), q = W_Q(5x)", plain / math.sqrt(d), size**2, 1.0),
        ("σ(q·k), q = W_Q r(5x)", normed, math.sqrt(d), 1.0),
        ("σ(q·k/√d_k), q = W_Q r(5x)", normed / math.sqrt(d), 1.0, size**2),
    )
    return [
        std_of(
            f"{name}, d_k = 64",
            scores.numpy(),
            expected=law,
            kurtosis=kurtosis_of_dot_product(d),
            rival=rival,
        )
        for name, scores, law, rival in cases
    ]


def pre_norm_stack(norm: Norm, generator: torch.Generator, *, centred: bool) -> torch.Tensor:
    """Three pre-norm blocks; `centred` takes the mean out of all that is written to the stream."""
    n, d, layers = 8, 32, 3
    centring = torch.eye(d, dtype=torch.float64)
    if centred:
        centring = centring - 1 / d

    def weight(rows: int, columns: int) -> torch.Tensor:
        drawn = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
        return drawn / math.sqrt(rows)

    x = (1 + math.sqrt(d) * weight(d, d)[:n]) @ centring
    for _ in range(layers):
        q, k, v = (norm(x) @ weight(d, d) for _ in range(3))
        x = x + explicit_attention(q, k, v) @ weight(d, d) @ centring
        x = x + gelu(norm(x) @ weight(d, 4 * d)) @ weight(4 * d, d) @ centring
    return norm(x)


@evidence("rmsnorm-on-par-with-layernorm")
def rmsnorm_on_par_with_layernorm() -> list[Measurement]:
    """A pre-norm model with LayerNorm is one with RMSNorm whose writing matrices are centred."""
    seed = SEED + 60
    with_mean = pre_norm_stack(layer_norm, seeds.generator(seed), centred=False)

    def root_mean_square(x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, eps=1e-5)  # LayerNorm's ε

    def with_rms(*, centred: bool) -> torch.Tensor:
        return pre_norm_stack(root_mean_square, seeds.generator(seed), centred=centred)

    return [
        Measurement(
            "max|f(x; (x − μ)/σ, W) − f(x; x/√(x·x/d), (I − 11ᵀ/d)W)|, L = 3",
            measured=float((with_mean - with_rms(centred=True)).abs().max()),
            expected=0.0,
            # sums of up to 128 terms in 3 blocks, of numbers of size 1, each used a few times
            tolerance=2.0**14 * UNIT_ROUNDOFF,
            reason="2¹⁴ u",
            rival=float((with_mean - with_rms(centred=False)).abs().max()),
        )
    ]


@evidence("factor-independent-of-norm")
def factor_independent_of_norm() -> list[Measurement]:
    """Models that have RMSNorm and no division; gains of QK-norm and the factor are one number."""
    generator = seeds.generator(SEED + 61)
    d = 256
    q, k, v = torch.randn(3, 16, d, generator=generator, dtype=torch.float64)

    def attend(gain: float, factor: float) -> torch.Tensor:
        weight = torch.full((d,), gain, dtype=torch.float64)
        return explicit_attention(*qk_norm(q, k, weight, weight, eps=0.0), v, scale=factor)

    root = attend(1.0, d**-0.5)
    return [
        against_the_answer(recorded_scale("T5", 1.0, rival=64**-0.5)),
        against_the_answer(recorded_scale("Gemma 4", 1.0, rival=256**-0.5)),
        Measurement(
            "max|A(g = d_k^−¼, s = 1) − A(g = 1, s = 1/√d_k)|, d_k = 256",
            measured=float((attend(d**-0.25, 1.0) - root).abs().max()),
            expected=0.0,
            tolerance=0.0,
            reason="256^¼ = 2²",
            rival=float((attend(1.0, 1.0) - root).abs().max()),
        ),
    ]
