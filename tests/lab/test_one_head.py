"""The head that learns in float64: it learns, and its twin in other units follows bit by bit."""

import pytest
import torch
from torch.optim import SGD, Adam, AdamW

from scaling_book.lab.one_head import DIVIDED, TOKENS, logits_while_learning

torch.set_num_threads(1)


def make(optimiser, rate, **more):
    return lambda qk, rest: optimiser(
        [{"params": qk, "lr": rate, **more}, {"params": rest}], lr=0.01
    )


def test_shapes_start_and_seeds():
    logits = logits_while_learning(DIVIDED, make(SGD, 0.01), steps=3)
    assert logits.shape == (4, TOKENS, TOKENS)
    assert logits.dtype == torch.float64
    assert torch.equal(logits, logits_while_learning(DIVIDED, make(SGD, 0.01), steps=3))
    other = logits_while_learning(DIVIDED, make(SGD, 0.01), steps=0, seed=1)
    assert not torch.equal(logits[:1], other)
    # unit variance: d_k = 256, factor 1/16, tokens of mean square 1 on average
    assert logits[0].std() == pytest.approx(1.0, abs=0.5)


@pytest.mark.parametrize(
    ("optimiser", "rate", "more"),
    [
        (SGD, 0.01 / 16, {}),
        (Adam, 0.01 / 4, {"eps": 4e-8}),
        (AdamW, 0.01 / 4, {"eps": 4e-8, "weight_decay": 0.04}),
    ],
)
def test_smaller_weights_with_their_own_rate_are_the_factor(optimiser, rate, more):
    divided = logits_while_learning(DIVIDED, make(optimiser, 0.01), seed=3)
    twin = logits_while_learning(1.0, make(optimiser, rate, **more), gain=0.25, seed=3)
    assert torch.equal(divided, twin)
    assert (divided[-1] - divided[0]).abs().max() > 1  # it moved


def test_adam_needs_its_eps_adapted_too():
    divided = logits_while_learning(DIVIDED, make(Adam, 0.01))
    twin = logits_while_learning(1.0, make(Adam, 0.01 / 4), gain=0.25)
    assert 0 < (divided - twin).abs().max() < 1e-3


def test_a_width_that_is_no_power_of_two_agrees_up_to_rounding():
    quarter = 144**0.25
    divided = logits_while_learning(1 / 12, make(SGD, 0.01), head_dim=144, steps=5)
    twin = logits_while_learning(1.0, make(SGD, 0.01 / 12), gain=1 / quarter, head_dim=144, steps=5)
    torch.testing.assert_close(twin, divided, rtol=0, atol=1e-9)
