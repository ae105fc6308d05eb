"""The evidence on online softmax and on the other normalisations must notice a wrong library."""

import pytest
import torch

from attention_scaling import apply_rotary as rotate
from attention_scaling import explicit_attention, layer_norm, online_softmax, rms_norm, softmax
from attention_scaling import scaled_scores as score
from scaling_book.evidence import online_softmax as flash
from scaling_book.evidence import other_normalisations as norms
from scaling_book.evidence import problems, run


def without_rescaling(z, chunk_size=128):
    parts = [(c - c.max()).exp() for c in z.split(chunk_size, dim=-1)]
    return torch.cat(parts, dim=-1) / sum(p.sum() for p in parts)


def over_tokens(x, weight=1.0, bias=0.0, eps=0.0):
    return weight * (x - x.mean(dim=0)) / (x.var(dim=0, correction=0) + eps).sqrt() + bias


def times(factor):
    return lambda *args, **kwargs: factor * rotate(*args, **kwargs)


MUTANTS = {
    "the online form survives infinity": (
        flash,
        "online_softmax",
        lambda z: online_softmax(z).nan_to_num(),
        "flash-avoids-overflow",
    ),
    "all scores are stored in half precision": (
        flash,
        "scaled_scores",
        lambda q, k, place, fmt, **_: score(q, k, "after_product", fmt),
        "flash-avoids-overflow",
    ),
    "sums are always float32": (
        flash,
        "scaled_scores",
        lambda q, k, place, fmt, **_: score(q, k, place, fmt),
        "flash-avoids-overflow",
    ),
    "nothing is rescaled": (
        flash,
        "online_softmax",
        without_rescaling,
        "flash-rescales-block-by-block",
    ),
    "the whole matrix is written out": (
        flash,
        "online_attention",
        lambda *args, chunk_size=0, **kwargs: explicit_attention(*args, **kwargs),
        "flash-rescales-block-by-block",
    ),
    "LayerNorm keeps the mean": (
        norms,
        "layer_norm",
        lambda x, w=None, b=None, eps=0.0: rms_norm(x, w, eps),
        "layernorm-acts-on-hidden-states",
    ),
    "LayerNorm mixes tokens": (
        norms,
        "layer_norm",
        over_tokens,
        "layernorm-acts-on-hidden-states",
    ),
    "LayerNorm fixes each feature": (
        norms,
        "layer_norm",
        lambda x, eps: over_tokens(x, eps=1e-300),
        "layernorm-solves-covariate-shift",
    ),
    "LayerNorm does nothing": (
        norms,
        "layer_norm",
        lambda x, eps: x,
        "layernorm-does-not-fix-score-variance",
    ),
    "LayerNorm divides by √d": (
        norms,
        "layer_norm",
        lambda x, eps: layer_norm(x, eps=eps) / x.shape[-1] ** 0.5,
        "layernorm-does-not-fix-score-variance",
    ),
    "RMSNorm is LayerNorm": (
        norms,
        "rms_norm",
        lambda x, eps: layer_norm(x, eps=eps),
        "rmsnorm-is-simplified-layernorm",
    ),
    "RMSNorm computes a mean too": (
        norms,
        "rms_norm",
        lambda x: rms_norm(x - 0 * x.sum()),
        "rmsnorm-is-cheaper",
    ),
    "RMSNorm replaces the factor": (
        norms,
        "rms_norm",
        lambda x, eps: rms_norm(x, eps=eps) * 64**-0.25,
        "rmsnorm-does-not-replace-scaling",
    ),
    "QK-norm does nothing": (
        norms,
        "qk_norm",
        lambda q, k, *_, eps: (q, k),
        "rmsnorm-does-not-replace-scaling",
    ),
    "RoPE does nothing": (
        norms,
        "apply_rotary",
        lambda x, *_, **__: x,
        "rope-rotates-q-and-k",
    ),
    "RoPE pairs other features": (
        norms,
        "apply_rotary",
        lambda x, positions: rotate(x, positions, interleaved=True),
        "rope-rotates-q-and-k",
    ),
    "RoPE does nothing, variance": (
        norms,
        "apply_rotary",
        lambda x, *_, **__: x,
        "rope-keeps-variance",
    ),
    "RoPE stretches": (norms, "apply_rotary", times(1.0001), "rope-changes-norms"),
    "YaRN does not": (norms, "yarn_attention_factor", lambda s: 1.0, "rope-changes-norms"),
    "RoPE shrinks q by √d_k": (norms, "apply_rotary", times(1 / 8), "rope-still-needs-scaling"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_evidence_bites(mutant, monkeypatch):
    module, name, replacement, slug = MUTANTS[mutant]
    monkeypatch.setattr(module, name, replacement)
    assert problems(slug, run(slug))


def test_the_mutants_are_mutants():
    z = torch.arange(8.0)
    assert not torch.allclose(without_rescaling(z, 2), softmax(z))
    assert torch.allclose(without_rescaling(z, 8), softmax(z))
