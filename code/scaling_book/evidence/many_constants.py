"""Sections 1 and 2 of the answer, "one constant": the formula, and the factors of model classes.

The factors come from the record of `scaling_book.lab.model_scales`, which finds them from attention
weights; the laws are the rules that the classes state in their code.
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import scaled_dot_product_attention

from attention_scaling import yarn_attention_factor
from scaling_book.evidence import seeds
from scaling_book.evidence.core import Measurement, against_the_answer, evidence
from scaling_book.evidence.sampling import STANDARD_ERRORS
from scaling_book.lab.model_scales import ModelScale, read_record

SEED = 20170616  # with a number of its own for each claim
UNIT_ROUNDOFF = 2.0**-53

Pair = tuple[torch.Tensor, torch.Tensor]


def slope(
    quantity: str, points: Pair, *, expected: float, error: float, rival: float
) -> Measurement:
    """Measure s in y = s x; `error` bounds the rounding of y, in units of u."""
    x, y = points
    return Measurement(
        quantity,
        measured=float((x * y).sum() / (x * x).sum()),
        expected=expected,
        # |Σ x δ| / Σ x² ≤ max|δ| √N / |x|
        tolerance=error * UNIT_ROUNDOFF * math.sqrt(x.numel()) / float(x.norm()),
        reason=f"{error:.3g} u √{x.numel()} / {float(x.norm()):.3g}",
        rival=rival,
    )


def log_ratios(weights: torch.Tensor) -> torch.Tensor:
    """ln(p_j / p_0), which is z_j − z_0."""
    return (weights[..., 1:] / weights[..., :1]).log()


@evidence("softmax-of-scaled-scores")
def softmax_of_scaled_scores() -> list[Measurement]:
    """PyTorch's two implementations: d_k per head, and a mask that the factor does not touch."""
    generator = seeds.generator(SEED + 4)
    heads, head_dim, n = 4, 48, 8
    d_model = heads * head_dim
    root = head_dim**-0.5

    # An inner product is off by at most (d_k + 2) u Σ|q_i k_i|; then come weights and logarithms.
    def bound(q: torch.Tensor, k: torch.Tensor) -> float:
        sizes = float((q.abs() @ k.abs().mT).max())
        bounded: float = 2 * (head_dim + 4) * sizes * root + 16
        return bounded

    q, k = torch.randn(2, 4, n, head_dim, generator=generator, dtype=torch.float64)
    bias = torch.randn(4, n, n, generator=generator, dtype=torch.float64)
    read_off = torch.eye(n, dtype=torch.float64).expand(4, n, n)  # values that return the weights
    plain = log_ratios(scaled_dot_product_attention(q, k, read_off))
    biased = log_ratios(scaled_dot_product_attention(q, k, read_off, attn_mask=bias))
    scores = q @ k.mT

    layer = torch.nn.MultiheadAttention(d_model, heads, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.in_proj_weight.copy_(
            torch.randn(3 * d_model, d_model, generator=generator) / math.sqrt(d_model)
        )
        x = torch.randn(n, d_model, generator=generator, dtype=torch.float64)
        _, weights = layer(x, x, x, average_attn_weights=False)
        q_heads, k_heads, _ = (
            (x @ part.T).view(n, heads, head_dim).transpose(0, 1)
            for part in layer.in_proj_weight.chunk(3)
        )
    head_scores = q_heads @ k_heads.mT
    return [
        slope(
            "∂z/∂(q·k), scaled_dot_product_attention, d_k = 48",
            (scores[..., 1:] - scores[..., :1], plain),
            expected=root,
            error=bound(q, k),
            rival=1 / head_dim,
        ),
        slope(
            "∂z/∂b, scaled_dot_product_attention, d_k = 48",
            (bias[..., 1:] - bias[..., :1], biased - plain),
            expected=1.0,
            error=2 * bound(q, k),
            rival=root,
        ),
        slope(
            "∂z/∂(q·k), MultiheadAttention, d_model = 192, h = 4",
            (head_scores[..., 1:] - head_scores[..., :1], log_ratios(weights)),
            expected=root,
            # the projections are sums over d_model, made here in another order
            error=bound(q_heads, k_heads) * d_model / head_dim,
            rival=d_model**-0.5,
        ),
    ]


def recorded(name: str) -> ModelScale:
    """Return the line of one architecture in the record."""
    return next(line for line in read_record() if line.name == name)


def recorded_scale(name: str, expected: float, *, rival: float | None) -> Measurement:
    """Measure the factor of one model class.

    No point of its fit is off by more than the misfit, and a constant that the class keeps in
    float32 by no more than 2⁻²⁴ of its value.
    """
    line = recorded(name)
    error = max(line.misfit, 2.0**-24) * line.scale
    return Measurement(
        f"s, {line.model_class}, d_k = {line.head_dim}",
        measured=line.scale,
        expected=expected,
        tolerance=STANDARD_ERRORS * error,
        reason=f"{STANDARD_ERRORS} max({line.misfit:.1g}, 2⁻²⁴) s",
        rival=rival,
        standard_error=error,
    )


@evidence("one-right-constant")
def one_right_constant() -> list[Measurement]:
    """Factors of model classes that are 1/√d_k, and of others that are not."""
    laws = {
        "LLaMA": (128**-0.5, None),
        "Gemma 2, 27B": (144**-0.5, 128**-0.5),
        "Granite Docling": (1 / 64, 64**-0.5),
        "Inkling": (1 / 128, 128**-0.5),
        "T5": (1.0, 64**-0.5),
        "Swin v2": (10.0, 32**-0.5),
        "gpt-oss": (64**-0.5 * yarn_attention_factor(32.0) ** 2, 64**-0.5),
        "Llama 4, NoPE": (128**-0.5 * (1 + 0.1 * math.log(2)), 128**-0.5),
    }
    found = []
    for name, (law, rival) in laws.items():
        measured = recorded_scale(name, law, rival=rival)
        # The rival is 1/√d_k, the one right constant of the question.
        found.append(measured if rival is None else against_the_answer(measured))
    return found
