"""The evidence on the answer's corrections must notice a wrong library."""

import pytest
import torch

from attention_scaling import attention_logits, explicit_attention, layer_norm
from scaling_book.evidence import problems, run
from scaling_book.evidence import wrong_answers as section
from scaling_book.lab.lookup import train

VANISHING = "vanishing-gradients-prevent-convergence"
SCOPES = "scores-against-token-vectors"
PROBLEMS = "softmax-gradient-against-covariate-shift"
BOTH = "both-are-indispensable"


def always_divided(q, k, v, *, scale):
    return explicit_attention(q, k, v)


def standardised(q, k):
    z = attention_logits(q, k)
    return (z - z.mean(dim=-1, keepdim=True)) / z.std(dim=-1, keepdim=True)


def over_tokens(x, eps=1e-12):
    return (x - x.mean(dim=0)) / (x.var(dim=0, correction=0) + eps).sqrt()


MUTANTS = {
    "attention ignores its scale": ("explicit_attention", always_divided, VANISHING),
    "attention passes no gradient to q": (
        "explicit_attention",
        lambda q, k, v, *, scale: explicit_attention(q.detach(), k, v, scale=scale) + 0 * q.sum(),
        VANISHING,
    ),
    "the sampler divides by √d_k": (
        "sample_row_gradients",
        lambda *args, scales, rng: _sample(*args, scales=[args[0] ** -0.5], rng=rng),
        VANISHING,
    ),
    "the factor standardises each row": ("attention_logits", standardised, SCOPES),
    "LayerNorm does nothing": ("layer_norm", lambda x, eps=0.0: x, SCOPES),
    "LayerNorm works over tokens": ("layer_norm", over_tokens, SCOPES),
    "logits are not divided": (
        "attention_logits",
        lambda q, k: attention_logits(q, k, scale=1.0),
        PROBLEMS,
    ),
    "LayerNorm fixes each feature": (
        "layer_norm",
        lambda x, eps: over_tokens(x, eps=1e-300),
        PROBLEMS,
    ),
    "LayerNorm halves": ("layer_norm", lambda x, eps: layer_norm(x, eps=eps) / 2, PROBLEMS),
    "softmax is flat": ("softmax", lambda z: torch.full_like(z, 0.5), PROBLEMS),
    "attention always divides": ("explicit_attention", always_divided, BOTH),
    "nothing is learned": (
        "train",
        lambda *args, steps, **kwargs: train(*args, steps=20, **kwargs),
        BOTH,
    ),
}
_sample = section.sample_row_gradients


@pytest.mark.parametrize("mutant", MUTANTS)
def test_evidence_bites(mutant, monkeypatch):
    name, replacement, slug = MUTANTS[mutant]
    monkeypatch.setattr(section, name, replacement)
    assert problems(slug, run(slug))


def test_the_predicted_cycle_is_one():
    # One step of descent takes x to −x, and the next one takes it back.
    x = section.height_of_cycle(section.STEEPNESS)
    assert x - section.STEEPNESS * section.slope(x) == pytest.approx(-x, abs=1e-14)
    assert 1 < x < 1.3
