"""Section 6 of the answer: retrieval, feature scaling, a first reproduction, and its references.

What a paper says, only the paper can tell; measured is what its setting or its algorithm implies.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from attention_scaling import (
    explicit_attention,
    online_softmax,
    sample_initial_logits,
    scaled_scores,
    softmax,
    softmax_jacobian,
)
from scaling_book.evidence import seeds
from scaling_book.evidence.core import Measurement, against_the_answer, evidence
from scaling_book.evidence.sampling import std_of
from scaling_book.evidence.saturation import (
    concentration_of,
    dot_product_rows,
    laws_of_dot_products,
    squared_weights,
)
from scaling_book.evidence.trainings import all_of, none_of, paired, runs
from scaling_book.evidence.variance_control import kurtosis_of_dot_product

SEED = 20200522  # with a number of its own for each claim
HEAD_DIM = 64
ROOT = 1 / math.sqrt(HEAD_DIM)
UNIT_ROUNDOFF = 2.0**-53

Matrix = NDArray[np.float64]


@evidence("long-documents-need-large-head-dim")
def long_documents_need_large_head_dim() -> list[Measurement]:
    """A document four times as long has four times the keys, of the same width."""
    rng = seeds.rng(SEED, 77)
    short, long = 16, 64
    found = []
    for n, rival in ((short, None), (long, HEAD_DIM * long // short)):
        samples = squared_weights(dot_product_rows(HEAD_DIM, n, 4000, rng, scale=1.0))
        measured = concentration_of(
            f"E[Σp²], q·k, d_k = 64, n = {n}",
            samples,
            laws_of_dot_products(HEAD_DIM, n, 1.0),
            # the answer: with the document d_k has grown, and with it the spread of the scores
            rival=laws_of_dot_products(rival, n, 1.0)[0] if rival else None,
        )
        found.append(against_the_answer(measured) if rival else measured)
    return found


@evidence("scaling-stops-few-tokens-dominating")
def scaling_stops_few_tokens_dominating() -> list[Measurement]:
    """As weights over the tokens of a text, scores are dominated by few without the factor."""
    rng = seeds.rng(SEED, 78)
    n = 64
    laws = {s: laws_of_dot_products(HEAD_DIM, n, s) for s in (ROOT, 1.0)}
    return [
        concentration_of(
            f"E[Σp²], {name}, d_k = 64, n = {n}",
            squared_weights(dot_product_rows(HEAD_DIM, n, 5000, rng, scale=s)),
            laws[s],
            rival=laws[other][0],
        )
        for name, s, other in (("q·k/√d_k", ROOT, 1.0), ("q·k", 1.0, ROOT))
    ]


@evidence("tune-the-factor-for-retrieval-precision")
def tune_the_factor_for_retrieval_precision() -> list[Measurement]:
    """No factor changes the ten best; it changes mixtures, and what a contrastive loss teaches."""
    rng = seeds.rng(SEED, 79)
    width, queries = 384, 200
    documents = rng.standard_normal((1000, width))
    scores = rng.standard_normal((queries, width)) @ documents.T
    found = []
    for name, c in (("10⁻³", 1e-3), ("1/√d", width**-0.5), ("10³", 1e3)):
        changed = (best_ten(c * scores) != best_ten(scores)).any(axis=1)
        found.append(
            against_the_answer(
                Measurement(
                    f"P(top 10 of c·s ≠ top 10 of s), c = {name}, d = {width}, n = 1000",
                    float(changed.mean()),
                    expected=0.0,
                    tolerance=0.0,
                    reason="c s_i > c s_j ⇔ s_i > s_j",
                    rival=1.0,  # the factor is what the precision is tuned with
                )
            )
        )
    # Where scores become weights: two documents whose scores differ by 1
    for name, c in (("1/√384", width**-0.5), ("1", 1.0)):
        found.append(
            Measurement(
                f"p_1, s_1 − s_2 = 1, c = {name}",
                float(softmax(torch.tensor([c, 0.0], dtype=torch.float64))[0]),
                expected=1 / (1 + math.exp(-c)),
                tolerance=8 * UNIT_ROUNDOFF,
                reason="8 u",
                rival=0.5,
            )
        )
    # In training: the loss is −ln p of the right document, at 2; two wrong ones at 1 and 0
    s = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64, requires_grad=True)
    for c, other in ((1.0, 8.0), (8.0, 1.0)):
        (gradient,) = torch.autograd.grad(-softmax(c * s)[0].log(), s)
        found.append(
            Measurement(
                f"∂L/∂s_2 : ∂L/∂s_3, L = −ln p_1, p = softmax(c·(2, 1, 0)), c = {c:g}",
                float(gradient[1] / gradient[2]),
                expected=math.exp(c),
                tolerance=64 * UNIT_ROUNDOFF * math.exp(c),
                reason="64 u e^c",
                rival=math.exp(other),
            )
        )
    return found


def best_ten(scores: Matrix) -> NDArray[np.intp]:
    """The ten documents with the largest scores, best first, for each query."""
    return np.argsort(-scores, axis=-1, kind="stable")[..., :10]


# Two features of standard deviation 1 and 100, uncorrelated; each example with either label, so
# that the minimum of the logistic loss is at 0, where its Hessian is XᵀX/(4n).
FEATURES = torch.tensor(
    [[1.0, 100.0], [-1.0, 100.0], [1.0, -100.0], [-1.0, -100.0]], dtype=torch.float64
)


def logistic_loss(x: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """The mean logistic loss of the examples x, each once with the label 0 and once with 1."""

    def loss(w: torch.Tensor) -> torch.Tensor:
        z = x @ w
        return (torch.nn.functional.softplus(z) + torch.nn.functional.softplus(-z)).mean() / 2

    return loss


def curvatures(x: torch.Tensor) -> tuple[float, float]:
    """Smallest and largest eigenvalue of the Hessian of the logistic loss at its minimum."""
    w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(logistic_loss(x)(w), w, create_graph=True)
    rows = [torch.autograd.grad(g, w, retain_graph=True)[0] for g in gradient]
    low, high = torch.linalg.eigvalsh(torch.stack(rows)).tolist()
    return low, high


def reversals(x: torch.Tensor, rate: float, steps: int) -> int:
    """How often gradient descent on the logistic loss turns back along the second feature."""
    loss = logistic_loss(x)
    w = torch.tensor([0.01, 0.0001], dtype=torch.float64, requires_grad=True)
    moves = []
    for _ in range(steps):
        (gradient,) = torch.autograd.grad(loss(w), w)
        moves.append(float(gradient[1]))
        w = (w - rate * gradient).detach().requires_grad_()
    return sum(a * b < 0 for a, b in itertools.pairwise(moves))


@evidence("unequal-features-make-descent-oscillate")
def unequal_features_make_descent_oscillate() -> list[Measurement]:
    """Condition number 10⁴, a zigzag along the steep feature; after standardising neither."""
    standardised = FEATURES / FEATURES.std(dim=0, correction=0)
    found = []
    for name, x, law, rival in (
        ("σ(x) = (1, 100)", FEATURES, 1e4, 1.0),
        ("x/σ(x)", standardised, 1.0, 1e4),
    ):
        low, high = curvatures(x)
        found.append(
            Measurement(
                f"κ(∇²L), {name}",
                high / low,
                expected=law,
                tolerance=64 * UNIT_ROUNDOFF * law,
                reason="64 u κ",
                rival=rival,
            )
        )
    steep = 100.0**2 / 4
    for name, rate, law, rival in (
        ("1.9/λ₂", 1.9 / steep, 39, 0),
        ("0.5/λ₂", 0.5 / steep, 0, 39),
    ):
        found.append(
            Measurement(
                f"#(g_t g_(t+1) < 0), t < 40, σ(x) = (1, 100), η = {name}",
                reversals(FEATURES, rate, 40),
                expected=law,
                tolerance=0,
                reason="1 − η λ₂ < 0" if law else "1 − η λ₂ > 0",
                rival=rival,
            )
        )
    return found


@evidence("feature-scaling-analogy")
def feature_scaling_analogy() -> list[Measurement]:
    """One factor for all leaves the conditioning as it was; it does move a sigmoid's argument."""
    found = []
    for name, x, law, rival in (
        ("X/√d_k", FEATURES * ROOT, 1e4, 1.0),
        ("x_j/σ_j", FEATURES / torch.tensor([1.0, 100.0]), 1.0, 1e4),
    ):
        low, high = curvatures(x)
        measured = Measurement(
            f"κ(∇²L), {name}, d_k = 64",
            high / low,
            expected=law,
            tolerance=64 * UNIT_ROUNDOFF * law,
            reason="64 u κ",
            rival=rival,
        )
        # the answer: both normalise the range of the input, so both cure the zigzag
        found.append(against_the_answer(measured) if law > 1 else measured)
    # What is alike: two keys are a sigmoid, and a smaller argument brings its slope back.
    for name, z, other in (("8", 8.0, 1.0), ("8/√d_k", 8.0 * ROOT, 8.0)):
        p = softmax(torch.tensor([z, 0.0], dtype=torch.float64))
        found.append(
            Measurement(
                f"∂p_1/∂z_1, z_1 − z_2 = {name}, d_k = 64",
                float(softmax_jacobian(p)[0, 0]),
                expected=slope_of_sigmoid(z),
                tolerance=8 * UNIT_ROUNDOFF,
                reason="8 u",
                rival=slope_of_sigmoid(other),
            )
        )
    return found


def slope_of_sigmoid(z: float) -> float:
    """σ′(z) = 1/(4 cosh²(z/2))."""
    return 1 / (4 * math.cosh(z / 2) ** 2)


@evidence("small-model-shows-the-difference")
def small_model_shows_the_difference() -> list[Measurement]:
    """Where two runs start depends on the initialisation; a gradient differs by √d_k in any."""
    generator = seeds.generator(SEED + 82)
    size = 20_000
    found = []
    for init, name, law, rival in (
        ("gpt2", "N(0, 0.02²)", 8 * 128 * 0.02**2, 8.0),
        ("mha_packed", "nn.MultiheadAttention(128, 2)", 4.0, 8.0),
        ("lecun", "N(0, 1/128)", 8.0, 8 * 128 * 0.02**2),
    ):
        start = sample_initial_logits(init, 128, HEAD_DIM, size, generator=generator)
        found.append(
            std_of(
                f"σ(q·k), d_k = 64, d_model = 128, {name}",
                start.double().numpy(),
                expected=law,
                kurtosis=kurtosis_of_dot_product(HEAD_DIM),
                rival=rival,
            )
        )
    # W_Q = 0: attention is uniform with and without the factor, to the last digit
    one_head = head(generator, std_q=0.0, std_k=128**-0.5)
    with_factor, without = one_head(ROOT), one_head(1.0)
    found.append(
        Measurement(
            "max|o − o′|, s = 1/√d_k, s′ = 1, W_Q = 0",
            float((with_factor[0] - without[0]).abs().max()),
            expected=0.0,
            tolerance=0.0,
            reason="e⁰ = 1",
        )
    )
    found.append(
        Measurement(
            "|∂L/∂W_Q|, s = 1 : s = 1/√d_k, W_Q = 0, d_k = 64",
            float(without[1].norm() / with_factor[1].norm()),
            expected=8.0,
            tolerance=1e-12,
            reason="∂z/∂W_Q ~ s",
            rival=1.0,  # equal outputs, so equal gradients
        )
    )
    # The recorded trainings of two layers: which arm ends higher is a matter of the initialisation
    for init, name, above in (("unit", "σ(q) = 1", True), ("gpt2", "N(0, 0.02²)", False)):
        arms = [runs(layers=2, init=init, scale=scale) for scale in ("none", "sqrt")]
        ends, other_ends = paired(*arms)
        relation = ">" if above else "<"
        found.append(
            all_of(
                f"L {relation} L′, s = 1, s′ = 1/√d_k, {name}, ℓ = 2", (ends > other_ends) == above
            )
        )
        found.append(
            none_of(f"L ∉ ℝ, s = 1, {name}, ℓ = 2", ~np.isfinite(arms[0].series("loss")[:, -1]))
        )
    return found


Head = Callable[[float], tuple[torch.Tensor, torch.Tensor]]


def head(generator: torch.Generator, *, std_q: float, std_k: float) -> Head:
    """Draw tokens and one head, and return its output and |∂L/∂W_Q| as a function of the scale."""
    n, d_model = 16, 128
    x, target = torch.randn(2, n, d_model, generator=generator, dtype=torch.float64)
    w_q, w_k = torch.randn(2, d_model, HEAD_DIM, generator=generator, dtype=torch.float64)

    def run(scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        w = (std_q * w_q).requires_grad_()
        output = explicit_attention(x @ w, x @ (std_k * w_k), x, scale=scale)
        (gradient,) = torch.autograd.grad(((output - target) ** 2).mean(), w)
        return output.detach(), gradient

    return run


@evidence("reference-xiong-relates-norm-and-factor")
def reference_xiong_relates_norm_and_factor() -> list[Measurement]:
    """In the setting of its theory, W_Q = W_K = 0, the factor has no effect, and no gradient."""
    generator = seeds.generator(SEED + 84)
    zero = head(generator, std_q=0.0, std_k=0.0)
    usual = head(generator, std_q=128**-0.5, std_k=128**-0.5)
    found = []
    for name, s in (("1", 1.0), ("8", 8.0)):
        apart = float((usual(s)[0] - usual(ROOT)[0]).abs().max())
        found.append(
            against_the_answer(
                Measurement(
                    f"max|o(s) − o(1/√d_k)|, s = {name}, W_Q = W_K = 0, d_k = 64",
                    float((zero(s)[0] - zero(ROOT)[0]).abs().max()),
                    expected=0.0,
                    tolerance=0.0,
                    reason="e⁰ = 1",
                    rival=apart,  # the factor plays a part, as it does for the usual weights
                )
            )
        )
    found.append(
        Measurement(
            "|∂L/∂W_Q|, s = 1/√d_k, W_Q = W_K = 0, d_k = 64",
            float(zero(ROOT)[1].norm()),
            expected=0.0,
            tolerance=0.0,
            reason="∂z/∂W_Q ~ W_K",
            rival=float(usual(ROOT)[1].norm()),
        )
    )
    return found


@evidence("reference-dao-solves-overflow")
def reference_dao_solves_overflow() -> list[Measurement]:
    """Scores that are infinite in float16 give NaN, in the online form as in the ordinary one."""
    q = torch.full((1, HEAD_DIM), 32.0)
    scores = scaled_scores(q, torch.cat([q, -q]), "after_product", "float16")
    found = []
    for function in (online_softmax, softmax):
        measured = Measurement(
            f"#NaN, fl16(q·k)/√d_k, q = k = (32, …, 32), d_k = 64, {function.__name__}",
            int(function(scores).isnan().any()),
            expected=1,
            tolerance=0,
            reason="64·32² = 65536 ≥ 65520",
            rival=0,
        )
        found.append(against_the_answer(measured) if function is online_softmax else measured)
    return found
