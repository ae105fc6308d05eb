"""The summary of section 2 of the answer: is the factor the cornerstone of stable training?

No deep model is trained here. What is measured: what models without a division start with, what a
constant factor leaves open, and that training cannot tell it from an initialisation with learning
rates of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from attention_scaling import qk_norm
from scaling_book.evidence import seeds
from scaling_book.evidence.core import Measurement, against_the_answer, evidence
from scaling_book.evidence.many_constants import UNIT_ROUNDOFF, recorded_scale
from scaling_book.evidence.sampling import std_of, variance_of
from scaling_book.evidence.variance_control import kurtosis_of_dot_product
from scaling_book.lab.one_head import DIVIDED, MakeOptimiser, logits_while_learning

SEED = 20170617  # with a number of its own for each claim
HEAD_DIM = 64

OptimiserClass = Callable[..., torch.optim.Optimizer]


def initial_scores(
    d_model: int, std_q: float, std_k: float, size: int, generator: torch.Generator
) -> torch.Tensor:
    """Draw W_Q and W_K and return the scores of `size` pairs of tokens of mean square 1.

    Token j is √d_model times the j-th unit vector: its q is a column of W_Q, so the pairs of one
    draw are independent.
    """
    scores = []
    for _ in range(math.ceil(size / d_model)):
        w_q, w_k = torch.randn(2, HEAD_DIM, d_model, generator=generator, dtype=torch.float64)
        scores.append(d_model * std_q * std_k * (w_q * w_k).sum(dim=0))
    return torch.cat(scores)[:size]


@evidence("cornerstone-of-stability")
def cornerstone_of_stability() -> list[Measurement]:
    """Models without a division, their start, and logits that grow in spite of one."""
    generator = seeds.generator(SEED + 42)
    d_model, size = 512, 24_576
    folded = initial_scores(d_model, (d_model * HEAD_DIM) ** -0.5, d_model**-0.5, size, generator)

    # W_Q and W_K that have grown eightfold, with the factor in place; and with normalised q and k
    growth, n = 8.0, 25_000
    q, k = growth * torch.randn(2, n, HEAD_DIM, generator=generator, dtype=torch.float64)
    plain = (q * k).sum(dim=-1) / math.sqrt(HEAD_DIM)
    normal_q, normal_k = qk_norm(q, k)
    normalised = (normal_q * normal_k).sum(dim=-1) / math.sqrt(HEAD_DIM)
    label = "d_k = 64"
    return [
        # By the answer a model that trains divides.
        against_the_answer(recorded_scale("T5", 1.0, rival=64**-0.5)),
        against_the_answer(recorded_scale("GPT-Neo", 1.0, rival=128**-0.5)),
        against_the_answer(recorded_scale("Gemma 4", 1.0, rival=256**-0.5)),
        variance_of(
            f"Var(q·k), σ(W_Q) = (d_model d_k)^−½, σ(W_K) = d_model^−½, {label}",
            folded.numpy(),
            expected=1.0,
            kurtosis=kurtosis_of_dot_product(HEAD_DIM),
            rival=HEAD_DIM,
        ),
        std_of(
            f"σ((8q)·(8k)/√d_k), {label}",
            plain.numpy(),
            expected=growth**2,
            kurtosis=kurtosis_of_dot_product(HEAD_DIM),
            rival=1.0,
        ),
        std_of(
            f"σ(r(8q)·r(8k)/√d_k), r(x) = √d_k x/|x|, {label}",
            normalised.numpy(),
            # √d_k times the cosine of two random directions: E cos² = 1/d, E cos⁴ = 3/(d(d + 2))
            expected=1.0,
            kurtosis=3 * HEAD_DIM / (HEAD_DIM + 2),
            rival=growth**2,
        ),
    ]


def sgd(rate: float) -> MakeOptimiser:
    """Plain gradient descent with a rate of its own for W_Q and W_K."""
    return lambda qk, rest: torch.optim.SGD(
        [{"params": qk, "lr": rate}, {"params": rest, "lr": 0.02}]
    )


def adam(rate: float, eps: float = 1e-8) -> MakeOptimiser:
    """Adam with a rate and an ε of its own for W_Q and W_K."""
    return lambda qk, rest: torch.optim.Adam(
        [{"params": qk, "lr": rate, "eps": eps}, {"params": rest, "lr": 0.01}]
    )


def step_ratio(make: OptimiserClass, generator: torch.Generator) -> float:
    """By how much more the first step of W_Q moves the scores when 1/√d_k is folded into it.

    The scores are linear in W_Q, so their move is exact and not a derivative.
    """
    n, d_model = 16, 64
    x, target = torch.randn(2, n, d_model, generator=generator, dtype=torch.float64)
    w_q, w_k = torch.randn(2, d_model, HEAD_DIM, generator=generator, dtype=torch.float64)
    moves = []
    for weight, factor in ((1.0, HEAD_DIM**-0.5), (HEAD_DIM**-0.5, 1.0)):
        w = (weight * w_q / math.sqrt(d_model)).requires_grad_()
        k = x @ w_k / math.sqrt(d_model)
        loss = (((factor * x @ w @ k.T).softmax(dim=-1) @ x - target) ** 2).mean()
        loss.backward()
        before = w.detach().clone()
        make([w]).step()
        moves.append((factor * x @ (w.detach() - before) @ k.T).norm())
    return float(moves[1] / moves[0])


@evidence("tiny-but-crucial")
def tiny_but_crucial() -> list[Measurement]:
    """Training cannot tell the factor from smaller weights with their own learning rate."""
    generator = seeds.generator(SEED + 44)
    found = []
    # d_k = 256: W_Q and W_K shrink by d_k^¼ = 4. Gradients grow by 4, so a step of SGD needs a rate
    # smaller by 16, and one of Adam, which ignores the size of gradients, a rate smaller by 4.
    for name, divided, folded, unadjusted in (
        ("SGD", sgd(0.02), sgd(0.02 / 16), sgd(0.02)),
        ("Adam", adam(0.01), adam(0.01 / 4, eps=4e-8), adam(0.01)),
    ):
        head = partial(logits_while_learning, seed=seeds.torch_seed(0))
        truth = head(DIVIDED, divided)
        same = head(1.0, folded, gain=0.25)
        other = head(1.0, unadjusted, gain=0.25)
        # By the answer the factor is crucial: without it, training takes another way.
        found.append(
            against_the_answer(
                Measurement(
                    f"max|z(t) − z′(t)|, t ≤ 20, {name}, d_k = 256",
                    measured=float((truth - same).abs().max()),
                    expected=0.0,
                    tolerance=0.0,
                    reason="256^¼ = 2²",
                    rival=float((truth - other).abs().max()),
                )
            )
        )
    # The same seed for each, hence the same head. Adam's ε and Adafactor's floors are out of reach.
    for name, make, law, rival in (
        ("SGD", lambda w: torch.optim.SGD(w, lr=0.1), 64.0, 1.0),
        ("Adam", lambda w: torch.optim.Adam(w, lr=0.01, eps=1e-30), 8.0, 1.0),
        ("Adafactor", lambda w: torch.optim.Adafactor(w, lr=0.01), 1.0, 8.0),
    ):
        generator.manual_seed(seeds.torch_seed(SEED))
        found.append(
            Measurement(
                f"|Δz′|/|Δz|, W_Q/√d_k, {name}, d_k = 64",
                measured=step_ratio(make, generator),
                expected=law,
                # sums of 64 terms, a softmax and its derivative, twice
                tolerance=2**12 * UNIT_ROUNDOFF * law,
                reason="2¹² u x",
                rival=rival,
            )
        )
    return found
