"""Section 4 of the answer, question 1, with the closing words of section 2: six layers, no factor.

What can be decided without a long training is measured here: that softmax of finite logits is
finite, that depth does not make gradients vanish where attention is saturated, and that a stack
without the factor has a twin with it, step by step. What becomes of a training from which the
factor is removed and nothing else is changed was recorded; here its runs are counted.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from attention_scaling import explicit_attention, naive_softmax, softmax
from scaling_book.evidence import seeds
from scaling_book.evidence.core import Measurement, against_the_answer, evidence
from scaling_book.evidence.cornerstone import adam, sgd
from scaling_book.evidence.many_constants import UNIT_ROUNDOFF, recorded_scale
from scaling_book.evidence.trainings import (
    all_of,
    below_unigram,
    jitter,
    none_of,
    not_finite_within,
    paired,
    runs,
    smallest_gradients,
)
from scaling_book.lab.deep_stack import HEAD_DIM, train_stack
from scaling_book.lab.one_head import DIVIDED, MakeOptimiser
from scaling_book.lab.trainings import Runs, read_trainings

SEED = 20170619  # with a number of its own for each claim
#: What W_Q and W_K of the twin are multiplied by: 256^−¼.
GAIN = 1 / 4
#: For each optimiser: of the stack that divides, and of its twin. Gradients of the twin are 4 times
#: as large, so its rate is smaller by 16 for SGD and by 4 for Adam, which has its own ε.
OPTIMISERS: dict[str, tuple[MakeOptimiser, MakeOptimiser]] = {
    "SGD": (sgd(0.02), sgd(0.02 / 16)),
    "Adam": (adam(0.01), adam(0.01 / 4, eps=4e-8)),
}


def fall_of_loss(losses: torch.Tensor) -> float:
    """L(0) − L(T)."""
    return float(losses[0] - losses[-1])


def twin_falls_as_far(layers: int, steps: int, name: str, seed: int) -> Measurement:
    """Measure how far the loss of a stack without the factor falls, beside one that divides.

    The rival is a loss that stays where it is, as of a stack that does not train.
    """
    divided, undivided = OPTIMISERS[name]
    seed = seeds.torch_seed(seed)
    truth = train_stack(layers, DIVIDED, divided, steps=steps, seed=seed).losses
    twin = train_stack(layers, 1.0, undivided, gain=GAIN, steps=steps, seed=seed).losses
    return against_the_answer(
        Measurement(
            f"L(0) − L({steps}), s = 1, W/4, {name}, {layers} × (d_k = {HEAD_DIM})",
            measured=fall_of_loss(twin),
            expected=fall_of_loss(truth),
            tolerance=0.0,
            reason="256^¼ = 2²",
            rival=0.0,
        )
    )


@evidence("six-layers-barely-converge")
def six_layers_barely_converge() -> list[Measurement]:
    """Exactly as well with smaller W_Q and W_K and a smaller rate; as good from a small start."""
    steps, seed = 8, seeds.torch_seed(SEED + 47)
    divided, undivided = OPTIMISERS["Adam"]
    truth = train_stack(6, DIVIDED, divided, steps=steps, seed=seed).losses
    same = train_stack(6, 1.0, undivided, gain=GAIN, steps=steps, seed=seed).losses
    other = train_stack(6, 1.0, divided, gain=GAIN, steps=steps, seed=seed).losses
    return [
        twin_falls_as_far(6, steps, "SGD", SEED + 47),
        Measurement(
            f"max|L(t) − L′(t)|, t ≤ {steps}, Adam, 6 × (d_k = {HEAD_DIM})",
            measured=float((truth - same).abs().max()),
            expected=0.0,
            tolerance=0.0,
            reason="256^¼ = 2²",
            rival=float((truth - other).abs().max()),
        ),
        # GPT-2's initialisation, no other change: it ends lower than with the factor, in every run
        against_the_answer(
            all_of(
                "L < L′, s = 1, s′ = 1/√d_k, N(0, 0.02²), ℓ = 6",
                np.less(*paired(small_start("none"), small_start("sqrt"))),
            )
        ),
        # At unit variance it ends higher, in every run
        all_of(
            "L > L′, s = 1, s′ = 1/√d_k, σ(q) = 1, ℓ = 6",
            np.greater(*paired(unit_start("none"), unit_start("sqrt"))),
        ),
    ]


def unit_start(scale: str, layers: int = 6) -> Runs:
    """Recorded trainings in which q and k begin with unit variance."""
    return runs(layers=layers, init="unit", scale=scale)


def small_start(scale: str, layers: int = 6) -> Runs:
    """Recorded trainings with GPT-2's initialisation."""
    return runs(layers=layers, init="gpt2", scale=scale)


@evidence("unscaled-loss-oscillates")
def unscaled_loss_oscillates() -> list[Measurement]:
    """No wilder from step to step; slower at unit variance, and faster from GPT-2's start."""
    unit, divided = unit_start("none"), unit_start("sqrt")
    return [
        against_the_answer(
            none_of(
                "r > 2 r′, r² = E[(L_(t+1) − L_t)²], s = 1, s′ = 1/√d_k, ℓ = 6",
                jitter(unit) > 2 * jitter(divided),
            )
        ),
        all_of(
            "L(300) > L′(200), s = 1, s′ = 1/√d_k, σ(q) = 1, ℓ = 6",
            unit.final > divided.validation(200),
        ),
        against_the_answer(
            all_of(
                "L(200) < L′(200), s = 1, s′ = 1/√d_k, N(0, 0.02²), ℓ = 6",
                small_start("none").validation(200) < small_start("sqrt").validation(200),
            )
        ),
    ]


@evidence("scaled-loss-decreases")
def scaled_loss_decreases() -> list[Measurement]:
    """With the factor the held-out loss falls in every run: two, six and twelve layers."""
    found = []
    for layers in (2, 6, 12):
        arm = unit_start("sqrt", layers)
        falls = (arm.validation(100) > arm.validation(200)) & (arm.validation(200) > arm.final)
        found.append(all_of(f"L(100) > L(200) > L(300), s = 1/√d_k, σ(q) = 1, ℓ = {layers}", falls))
    return found


def gradient_through_saturated_layers(layers: int, generator: torch.Generator) -> float:
    """‖∂L/∂x_0‖ / ‖∂L/∂x_L‖ through layers whose weights are one-hot, without residuals.

    Layer by layer each token reads one other token, and W_V is orthogonal: what a saturated head
    passes back through its values. Queries and keys are fixed, so nothing else passes.
    """
    n, width = 32, 16
    x = torch.randn(n, width, generator=generator, dtype=torch.float64, requires_grad=True)
    keys = 100 * torch.eye(n, dtype=torch.float64)
    state = x
    for _ in range(layers):
        query = keys[torch.randperm(n, generator=generator)]
        square = torch.randn(width, width, generator=generator, dtype=torch.float64)
        rotation, _ = torch.linalg.qr(square)
        state = explicit_attention(query, keys, state @ rotation, scale=1.0)
    upstream = torch.randn(n, width, generator=generator, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((state * upstream).sum(), x)
    return float(gradient.norm() / upstream.norm())


@evidence("deep-models-cannot-converge")
def deep_models_cannot_converge() -> list[Measurement]:
    """A deep model without a division; twelve saturated layers pass gradients on; twelve train."""
    layers = 12
    return [
        against_the_answer(recorded_scale("GPT-Neo", 1.0, rival=128**-0.5)),
        against_the_answer(
            Measurement(
                f"‖∂L/∂x_0‖/‖∂L/∂x_{layers}‖, p = e_j, W_VᵀW_V = I, ℓ = {layers}",
                measured=gradient_through_saturated_layers(layers, seeds.generator(SEED + 43)),
                expected=1.0,
                # products with orthogonal matrices of width 16, one a layer
                tolerance=layers * 16 * UNIT_ROUNDOFF,
                reason=f"{layers} · 16 u",
                rival=1e-6,
            )
        ),
        twin_falls_as_far(layers, 6, "Adam", SEED + 43),
        against_the_answer(
            all_of(
                "L(300) < H_1, s = 1, σ(q) = 1, ℓ = 12",
                below_unigram(unit_start("none", layers)),
            )
        ),
        against_the_answer(
            none_of(
                "min |∂L/∂W_Q|, |∂L/∂W_K| < 10⁻⁶, t < 300, s = 1, σ(q) = 1, ℓ = 12",
                smallest_gradients(unit_start("none", layers)) < 1e-6,
            )
        ),
    ]


@evidence("twelve-layers-diverge")
def twelve_layers_diverge() -> list[Measurement]:
    """Twelve layers without the factor that train; and an output that no logit can enlarge."""
    values = torch.randn(64, 16, generator=seeds.generator(SEED + 52), dtype=torch.float64)
    query = torch.eye(64, dtype=torch.float64)
    output = explicit_attention(query, query, values, scale=1e30)
    return [
        twin_falls_as_far(12, 6, "SGD", SEED + 52),
        against_the_answer(
            none_of(
                "L(300) > L(0) ∨ L ∉ ℝ, s = 1, σ(q) = 1, ℓ = 12",
                ~(unit_start("none", 12).final < unit_start("none", 12).series("loss")[:, 0]),
            )
        ),
        Measurement(
            "max|o|/max|v|, s = 10³⁰",
            measured=float(output.abs().max() / values.abs().max()),
            expected=1.0,
            tolerance=0.0,
            reason="0",
            rival=1e30,
        ),
    ]


def not_finite(z: torch.Tensor) -> int:
    """How many weights of these rows, and derivatives through them, are no finite numbers."""
    z = z.detach().requires_grad_()
    weights = softmax(z)
    (gradient,) = torch.autograd.grad(weights.diagonal(dim1=-2, dim2=-1).sum(), z)
    return int((~weights.isfinite()).sum() + (~gradient.isfinite()).sum())


@evidence("unscaled-gives-nan")
def unscaled_gives_nan() -> list[Measurement]:
    """Softmax of finite logits is finite at any spread, and so is its derivative."""
    generator = seeds.generator(SEED + 53)
    n, powers = 64, range(0, 37, 4)
    rows = torch.stack([10.0**power * torch.randn(n, n, generator=generator) for power in powers])
    numbers = 2 * rows.numel()
    found = [
        against_the_answer(
            Measurement(
                f"#{{x ∉ ℝ}}, x = p, ∂p/∂z, σ(z) = 1 … 10³⁶, {name}",
                measured=not_finite(rows.to(dtype)),
                expected=0,
                tolerance=0,
                reason="z − max z ≤ 0",
                rival=numbers,
            )
        )
        for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16))
    ]
    # Without the subtraction of max z, e^z overflows: a NaN that needs no training.
    largest = math.log(torch.finfo(torch.float32).max)
    # All recorded trainings on the text with AdamW, without the factor, with a norm and with scores
    # in float32: at the rates that were tried, at the reported ones and at those of the hunt
    wanted = {"workload": "text", "scale": "none", "scores": "float32", "optimiser": "adamw"}
    tried = [r for r in read_trainings().where(**wanted) if r["config"]["norm"] != "none"]
    found.append(
        against_the_answer(
            none_of("L(t) ∉ ℝ, t ≤ 100, s = 1, AdamW, fp32", not_finite_within(100, tried))
        )
    )
    found += [
        Measurement(
            f"#{{e^{{z_i}}/Σe^{{z_j}} ∉ ℝ}}, z = ({z}, 0), ln max = {largest:.2f}, fp32",
            measured=int((~naive_softmax(torch.tensor([z, 0.0])).isfinite()).sum()),
            expected=expected,
            tolerance=0,
            reason="0",
            rival=1 - expected,
        )
        for z, expected in ((88.7, 0), (88.8, 1))
    ]
    return found
