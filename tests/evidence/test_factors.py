"""The evidence about factors notices a library, a record or a training that is wrong."""

from dataclasses import replace

import pytest
import torch

from scaling_book.evidence import cornerstone, many_constants, problems, root_or_full, run

torch.set_num_threads(1)


def scaled(module, name, power):
    original = getattr(module, name)
    return lambda d, *args, **kwargs: original(d, *args, **kwargs) * d**power


def without(module, name, keyword):
    original = getattr(module, name)

    def mutant(*args, **kwargs):
        kwargs.pop(keyword, None)
        return original(*args, **kwargs)

    return mutant


def unnormalised(query, key, **_):
    return query, key


def rows_without_scale(head_dim, n_keys, rows, rng, *, scale):
    return DOT_PRODUCT_ROWS(head_dim, n_keys, rows, rng, scale=head_dim**-0.5)


def record_of_roots():
    return [replace(line, scale=line.head_dim**-0.5) for line in READ_RECORD()]


def attention_with_scaled_mask(query, key, value, attn_mask=None):
    mask = None if attn_mask is None else attn_mask * query.shape[-1] ** -0.5
    return SDPA(query, key, value, attn_mask=mask)


DOT_PRODUCT_ROWS = root_or_full.dot_product_rows
READ_RECORD = many_constants.read_record
SDPA = many_constants.scaled_dot_product_attention
MUTANTS = {
    "the variance is √d, divided by d": (
        root_or_full,
        "sample_dot_products",
        scaled(root_or_full, "sample_dot_products", -0.25),
        "dividing-by-d-gives-one-over-d",
    ),
    "the standard deviation is d": (
        root_or_full,
        "sample_dot_products",
        scaled(root_or_full, "sample_dot_products", 0.5),
        "root-follows-from-variance",
    ),
    "the variance is d², slopes": (
        root_or_full,
        "sample_dot_products",
        scaled(root_or_full, "sample_dot_products", 0.5),
        "root-is-the-optimum",
    ),
    "aligned vectors are not aligned": (
        root_or_full,
        "sample_dot_products",
        without(root_or_full, "sample_dot_products", "correlation"),
        "root-is-the-optimum",
    ),
    "the Jacobian is 2 % larger": (
        root_or_full,
        "jacobian_frobenius_norm",
        lambda p, original=root_or_full.jacobian_frobenius_norm: 1.02 * original(p),
        "root-is-the-optimum",
    ),
    "rows know only the root": (
        root_or_full,
        "dot_product_rows",
        rows_without_scale,
        "d-makes-attention-uniform",
    ),
    "W_Q absorbs nothing": (
        root_or_full,
        "dot_product_rows",
        lambda d, n, rows, rng, *, scale: DOT_PRODUCT_ROWS(d, n, rows, rng, scale=scale / 2),
        "root-balances",
    ),
    "attention forgets its scale": (
        root_or_full,
        "explicit_attention",
        without(root_or_full, "explicit_attention", "scale"),
        "d-loses-expressiveness",
    ),
    "a norm that lets the size through": (
        root_or_full,
        "qk_norm",
        unnormalised,
        "d-loses-expressiveness",
    ),
    "the mask is scaled": (
        many_constants,
        "scaled_dot_product_attention",
        attention_with_scaled_mask,
        "softmax-of-scaled-scores",
    ),
    "every class divides by the root": (
        many_constants,
        "read_record",
        record_of_roots,
        "one-right-constant",
    ),
    "T5 divides": (many_constants, "read_record", record_of_roots, "cornerstone-of-stability"),
    "QK-norm does not hold the logits": (
        cornerstone,
        "qk_norm",
        unnormalised,
        "cornerstone-of-stability",
    ),
    "the twin starts elsewhere": (
        cornerstone,
        "logits_while_learning",
        without(cornerstone, "logits_while_learning", "gain"),
        "tiny-but-crucial",
    ),
    "one step is like another": (
        cornerstone,
        "step_ratio",
        lambda make, generator: 1.0,
        "tiny-but-crucial",
    ),
}


@pytest.mark.filterwarnings("ignore:invalid value encountered in log")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_evidence_bites(mutant, monkeypatch):
    module, name, replacement, slug = MUTANTS[mutant]
    monkeypatch.setattr(module, name, replacement)
    assert problems(slug, run(slug))
