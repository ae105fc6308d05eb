"""The stack that learns by heart: it learns, and its twin without a factor follows bit by bit."""

import math

import pytest
import torch
from torch.optim import SGD, Adam

from scaling_book.lab.deep_stack import HEAD_DIM, SYMBOLS, WIDTH, DeepStack, train_stack
from scaling_book.lab.one_head import DIVIDED

torch.set_num_threads(1)


def make(optimiser, rate, **more):
    return lambda qk, rest: optimiser(
        [{"params": qk, "lr": rate, **more}, {"params": rest}], lr=0.003
    )


def test_it_starts_at_unit_variance_and_at_chance():
    generator = torch.Generator().manual_seed(2)
    stack = DeepStack(3, DIVIDED, generator=generator)
    for w_q, w_k in stack.w_qk:
        assert w_q.shape == w_k.shape == (WIDTH, HEAD_DIM)
        assert w_q.var().item() * WIDTH == pytest.approx(1, abs=0.1)
    text = torch.randint(SYMBOLS, (4, 9), generator=generator)
    # a guess costs ln 32, and unit-variance logits half a nat more
    assert stack.loss(text).item() == pytest.approx(math.log(SYMBOLS) + 0.5, abs=0.5)


def test_it_is_causal():
    generator = torch.Generator().manual_seed(3)
    stack = DeepStack(2, DIVIDED, generator=generator)
    # Two predictions of one text: twice their mean, less the first, is the second.
    short, long, other = (
        torch.tensor([[0, 1]]),
        torch.tensor([[0, 1, 2]]),
        torch.tensor([[0, 1, 3]]),
    )
    second = [2 * stack.loss(text) - stack.loss(short) for text in (long, other)]
    logits = torch.stack(second)  # −ln p of two symbols behind the same two
    assert (torch.exp(-logits) > 0).all()
    assert torch.exp(-logits).sum() < 1
    # What follows is predicted, and heard by nobody.
    (gradient,) = torch.autograd.grad(stack.loss(long), stack.embedding)
    assert gradient[:2].norm() > 0
    assert gradient[2:].norm() == 0


def test_it_learns_and_says_what_happened():
    run = train_stack(2, DIVIDED, make(Adam, 0.003), steps=5)
    assert run.losses.shape == (6,)
    assert run.gradients.shape == (5, 2)
    assert run.losses[-1] < run.losses[0] - 0.5
    again = train_stack(2, DIVIDED, make(Adam, 0.003), steps=5)
    assert torch.equal(run.losses, again.losses)
    other = train_stack(2, DIVIDED, make(Adam, 0.003), steps=1, seed=1)
    assert other.losses[0] != run.losses[0]


@pytest.mark.parametrize(
    ("optimiser", "rate", "more"), [(SGD, 0.1 / 16, {}), (Adam, 0.1 / 4, {"eps": 4e-8})]
)
@pytest.mark.parametrize("layers", [1, 6])
def test_smaller_weights_with_their_own_rate_are_the_factor(layers, optimiser, rate, more):
    divided = train_stack(layers, DIVIDED, make(optimiser, 0.1), steps=4)
    twin = train_stack(layers, 1.0, make(optimiser, rate, **more), gain=0.25, steps=4)
    assert torch.equal(divided.losses, twin.losses)
    assert torch.equal(4 * divided.gradients, twin.gradients)
    other = train_stack(layers, 1.0, make(optimiser, 0.1), gain=0.25, steps=4)
    assert not torch.equal(divided.losses, other.losses)
