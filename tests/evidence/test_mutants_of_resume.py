"""The evidence on the résumé advice and its references must notice what is wrong."""

import math

import pytest
import torch

from attention_scaling import explicit_attention, online_softmax, softmax, softmax_jacobian
from attention_scaling import sample_initial_logits as sample
from attention_scaling import scaled_scores as score
from scaling_book.evidence import problems, resume, run
from scaling_book.evidence.saturation import dot_product_rows

curvatures = resume.curvatures


def attention(scale):
    """Attention with another scale than the one asked for."""
    return lambda q, k, v, **kwargs: explicit_attention(q, k, v, scale=scale(kwargs["scale"]))


MUTANTS = {
    "a longer document has wider keys": (
        "dot_product_rows",
        lambda d, n, rows, rng, *, scale: dot_product_rows(4 * n, n, rows, rng, scale=scale),
        "long-documents-need-large-head-dim",
    ),
    "the number of keys is forgotten": (
        "dot_product_rows",
        lambda d, n, rows, rng, *, scale: dot_product_rows(d, 16, rows, rng, scale=scale),
        "long-documents-need-large-head-dim",
    ),
    "the factor does nothing": (
        "dot_product_rows",
        lambda d, n, rows, rng, *, scale: dot_product_rows(d, n, rows, rng, scale=1.0),
        "scaling-stops-few-tokens-dominating",
    ),
    "the factor is 1/d_k": (
        "dot_product_rows",
        lambda d, n, rows, rng, *, scale: dot_product_rows(d, n, rows, rng, scale=scale**2),
        "scaling-stops-few-tokens-dominating",
    ),
    "the ten best depend on the scale": (
        "best_ten",
        lambda scores: resume.np.argsort(-resume.np.floor(scores), axis=-1)[..., :10],
        "tune-the-factor-for-retrieval-precision",
    ),
    "softmax ignores the scale": (
        "softmax",
        lambda z: softmax(z / z.detach().abs().max()),
        "tune-the-factor-for-retrieval-precision",
    ),
    "softmax is linear": (
        "softmax",
        lambda z: z / z.sum(),
        "tune-the-factor-for-retrieval-precision",
    ),
    "the condition number is that of X, not of XᵀX": (
        "curvatures",
        lambda x: tuple(math.sqrt(c) for c in curvatures(x)),
        "unequal-features-make-descent-oscillate",
    ),
    "the loss is blind to the labels": (
        "logistic_loss",
        lambda x: lambda w: (torch.nn.functional.softplus(x @ w)).mean() + (w**2).sum(),
        "unequal-features-make-descent-oscillate",
    ),
    "gradient descent does not turn back": (
        "reversals",
        lambda x, rate, steps: 0,
        "unequal-features-make-descent-oscillate",
    ),
    "one factor for all conditions": (
        "curvatures",
        lambda x: (1.0, 1.0),
        "feature-scaling-analogy",
    ),
    "the Jacobian forgets p pᵀ": (
        "softmax_jacobian",
        lambda p: softmax_jacobian(p) + p[:, None] * p[None, :],
        "feature-scaling-analogy",
    ),
    "every initialisation is that of GPT-2": (
        "sample_initial_logits",
        lambda init, *args, **kwargs: sample("gpt2", *args, **kwargs),
        "small-model-shows-the-difference",
    ),
    "the logits come scaled": (
        "sample_initial_logits",
        lambda init, d_model, head_dim, size, *, generator: sample(
            init, d_model, head_dim, size, generator=generator, scale=head_dim**-0.5
        ),
        "small-model-shows-the-difference",
    ),
    "the factor stays out of the gradient": (
        "explicit_attention",
        attention(lambda s: 1.0),
        "small-model-shows-the-difference",
    ),
    "the factor acts where there are no logits": (
        "explicit_attention",
        lambda q, k, v, *, scale: explicit_attention(q, k, v, scale=scale) * scale,
        "reference-xiong-relates-norm-and-factor",
    ),
    "the factor acts nowhere": (
        "explicit_attention",
        attention(lambda s: 1.0),
        "reference-xiong-relates-norm-and-factor",
    ),
    "the online form survives infinity": (
        "online_softmax",
        lambda z: online_softmax(z).nan_to_num(),
        "reference-dao-solves-overflow",
    ),
    "the scores are kept in float32": (
        "scaled_scores",
        lambda q, k, place, fmt: score(q, k, "float32_scores", fmt),
        "reference-dao-solves-overflow",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_evidence_bites(mutant, monkeypatch):
    name, replacement, slug = MUTANTS[mutant]
    monkeypatch.setattr(resume, name, replacement)
    assert problems(slug, run(slug))


def test_the_head_is_the_head_of_torch():
    generator = torch.Generator().manual_seed(0)
    head = resume.head(generator, std_q=0.1, std_k=0.1)
    again = torch.Generator().manual_seed(0)
    x, _ = torch.randn(2, 16, 128, generator=again, dtype=torch.float64)
    w_q, w_k = torch.randn(2, 128, 64, generator=again, dtype=torch.float64) / 10
    expected = torch.nn.functional.scaled_dot_product_attention(x @ w_q, x @ w_k, x, scale=0.5)
    assert torch.allclose(head(0.5)[0], expected, rtol=0, atol=1e-12)


def test_descent_turns_back_only_beyond_the_inverse_curvature():
    steep = resume.curvatures(resume.FEATURES)[1]
    assert resume.reversals(resume.FEATURES, 1.5 / steep, 10) == 9
    assert resume.reversals(resume.FEATURES, 0.8 / steep, 10) == 0
