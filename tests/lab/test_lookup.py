"""The look-up task starts at chance, is learned with 1/√d_k, and each seed stands for itself."""

import pytest
import torch

from scaling_book.lab.lookup import CHANCE, PAIRS, steps_until, train

torch.set_num_threads(1)


def test_a_run_depends_on_its_seed_alone():
    # Batched products of another size may sum in another order, hence not bit for bit.
    together = train(1 / 8, seeds=range(3), steps=30)
    alone = train(1 / 8, seeds=[1], steps=30)
    torch.testing.assert_close(together[1:2], alone, rtol=0, atol=1 / 32)
    assert torch.equal(together, train(1 / 8, seeds=range(3), steps=30))
    assert not torch.equal(together[0], together[1])


def test_it_starts_at_chance():
    # before the first step; 100 runs of 32 answers: s.e. √(p(1 − p)/3200)
    for factor in (0.0, 1 / 8, 1.0):
        start = train(factor, seeds=range(100), steps=1).mean().item()
        # a sharp head that looks at a random pair is right where that is the pair, or by luck
        assert start == pytest.approx(CHANCE, abs=5 * (CHANCE / 3200) ** 0.5 + CHANCE / PAIRS)


def test_it_is_learned_with_the_root():
    accuracy = train(1 / 8, seeds=range(2), steps=260)
    assert accuracy[:, -20:].mean() > 0.95
    assert all(150 < steps < 260 for steps in steps_until(accuracy))


def test_without_attention_it_is_not_learned():
    # p = 1/16 for every pair: the answer is in the sum, but so are 15 others
    assert train(0.0, seeds=range(2), steps=200)[:, -20:].mean() < 0.3


def test_full_factor_with_larger_weights_and_rate_is_the_root():
    # W → W·d^¼ for both and the rate of both · d^¼: the same functions at every step of Adam, up
    # to its eps and to rounding, which a few steps do not amplify yet.
    root = train(1 / 8, seeds=range(2), steps=40)
    full = train(1 / 64, seeds=range(2), steps=40, gain=64**0.25, qk_rate=64**0.25)
    torch.testing.assert_close(full, root, rtol=0, atol=1 / 32)


def test_steps_until():
    accuracy = torch.zeros(2, 30)
    accuracy[0, 20:] = 1.0
    assert steps_until(accuracy) == [29, None]  # nine of the ten before step 29
    assert steps_until(accuracy, level=1.0) == [30, None]
    assert steps_until(accuracy, average_over=1) == [21, None]
