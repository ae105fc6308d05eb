"""The evidence on the follow-up questions must notice a library or a record that is wrong."""

from dataclasses import replace

import pytest
import torch

from attention_scaling import explicit_attention, layer_norm, naive_softmax, rms_norm, softmax
from scaling_book.evidence import (
    cornerstone,
    head_width,
    many_constants,
    norms_and_factor,
    problems,
    run,
    six_layers,
)

torch.set_num_threads(1)
READ_RECORD = many_constants.read_record
SAMPLE = head_width.sample_dot_products
ROWS = head_width.dot_product_rows
TRAIN = six_layers.train_stack


def record_of_roots():
    return [
        replace(line, scale=line.head_dim**-0.5, scale_at_double=(2 * line.head_dim) ** -0.5)
        for line in READ_RECORD()
    ]


def record_that_never_follows():
    return [replace(line, scale_at_double=line.scale) for line in READ_RECORD()]


def train_at_full_size(*args, gain=1.0, **kwargs):
    return TRAIN(*args, **kwargs)


def rows_of_width_64(head_dim, *args, **kwargs):
    return ROWS(64, *args, **kwargs)


def gpt2_norm_without_mean(x, gain, shift, epsilon=1e-5):
    return x * ((x * x).mean(dim=-1, keepdim=True) + epsilon).rsqrt() * gain + shift


MUTANTS = {
    "the twin starts elsewhere": (
        six_layers,
        "train_stack",
        train_at_full_size,
        "six-layers-barely-converge",
    ),
    "the twin of twelve starts elsewhere": (
        six_layers,
        "train_stack",
        train_at_full_size,
        "deep-models-cannot-converge",
    ),
    "the twin diverges": (
        six_layers,
        "train_stack",
        train_at_full_size,
        "twelve-layers-diverge",
    ),
    "GPT-Neo divides": (
        many_constants,
        "read_record",
        record_of_roots,
        "deep-models-cannot-converge",
    ),
    "gradients fade in every layer": (
        six_layers,
        "explicit_attention",
        lambda q, k, v, scale: explicit_attention(q, k, v / 8, scale=scale),
        "deep-models-cannot-converge",
    ),
    "outputs grow with the logits": (
        six_layers,
        "explicit_attention",
        lambda q, k, v, scale: scale * explicit_attention(q, k, v, scale=scale),
        "twelve-layers-diverge",
    ),
    "softmax does not subtract the maximum": (
        six_layers,
        "softmax",
        naive_softmax,
        "unscaled-gives-nan",
    ),
    "the naive softmax is safe": (six_layers, "naive_softmax", softmax, "unscaled-gives-nan"),
    "GPT-2's norm keeps the mean": (
        norms_and_factor,
        "gpt2_norm",
        gpt2_norm_without_mean,
        "gpt-3-uses-rmsnorm",
    ),
    "LayerNorm is RMSNorm": (
        norms_and_factor,
        "layer_norm",
        rms_norm,
        "gpt-3-uses-rmsnorm",
    ),
    "RMSNorm computes a mean too": (
        norms_and_factor,
        "rms_norm",
        lambda x, gain: rms_norm(x - 0 * x.sum(), gain),
        "gpt-3-chose-rmsnorm-for-cost",
    ),
    "RMSNorm replaces the factor": (
        norms_and_factor,
        "rms_norm",
        lambda x, eps: rms_norm(x, eps=eps) * 64**-0.25,
        "norm-and-factor-different-levels",
    ),
    "RMSNorm does nothing": (
        norms_and_factor,
        "rms_norm",
        lambda x, eps: x,
        "norm-and-factor-complementary",
    ),
    "RMSNorm cannot do what LayerNorm does": (
        norms_and_factor,
        "rms_norm",
        lambda x, eps: 1.001 * rms_norm(x, eps=eps),
        "rmsnorm-on-par-with-layernorm",
    ),
    "T5 and Gemma 4 divide": (
        many_constants,
        "read_record",
        record_of_roots,
        "factor-independent-of-norm",
    ),
    "QK-norm has no gains": (
        norms_and_factor,
        "qk_norm",
        lambda q, k, *_, eps: (rms_norm(q, eps=eps), rms_norm(k, eps=eps)),
        "factor-independent-of-norm",
    ),
    "scores do not grow": (
        head_width,
        "sample_dot_products",
        lambda d, *args, **kwargs: SAMPLE(d, *args, **kwargs) * (64 / d) ** 0.5,
        "factor-follows-head-dim",
    ),
    "no class follows its width": (
        many_constants,
        "read_record",
        record_that_never_follows,
        "factor-follows-head-dim",
    ),
    "the divisor is d/8": (head_width, "default_scale", lambda d: 8 / d, "divisor-of-128"),
    "a temperature multiplies": (
        head_width,
        "softmax",
        lambda z: softmax(2 * z),
        "larger-divisor-lowers-temperature",
    ),
    "scores stay as at 64": (
        head_width,
        "dot_product_rows",
        rows_of_width_64,
        "doubling-head-dim-flattens",
    ),
    "τ is a temperature": (
        head_width,
        "sample_dot_products",
        lambda d, *args, **kwargs: SAMPLE(d, *args, **kwargs) / 2,
        "temperature-keeps-sharpness",
    ),
    "T5 divides": (many_constants, "read_record", record_of_roots, "t5-uses-root"),
    "T5's fold is forgotten": (
        head_width,
        "initial_scores",
        lambda d_model, std_q, std_k, size, generator: cornerstone.initial_scores(
            d_model, std_k, std_k, size, generator
        ),
        "init-or-rate-compensates",
    ),
    "one optimiser is like another": (
        head_width,
        "step_ratio",
        lambda make, generator: 1.0,
        "init-or-rate-compensates",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_evidence_bites(mutant, monkeypatch):
    module, name, replacement, slug = MUTANTS[mutant]
    monkeypatch.setattr(module, name, replacement)
    assert problems(slug, run(slug))


def test_the_transcribed_norm_is_that_of_the_class():
    """What the evidence calls GPT-2's norm is what the class in `transformers` does."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=32, n_head=2, n_layer=1, vocab_size=8, n_positions=8)
    norm = transformers.GPT2Model(config).h[0].ln_1.double()
    generator = torch.Generator().manual_seed(0)
    x = 3 + torch.randn(5, 32, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(32, generator=generator))
        norm.bias.copy_(torch.randn(32, generator=generator))
        ours = norms_and_factor.gpt2_norm(x, norm.weight, norm.bias, norm.eps)
        torch.testing.assert_close(ours, norm(x), rtol=0, atol=1e-12)
        assert not torch.allclose(ours, rms_norm(x, norm.weight))
        torch.testing.assert_close(ours, layer_norm(x, norm.weight, norm.bias), rtol=0, atol=1e-12)
