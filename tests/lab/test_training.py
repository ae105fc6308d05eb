"""Trainings depend on their configuration alone, learn what can be learnt, and watch truthfully."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling_book.lab import corpus
from scaling_book.lab.training import DEFAULTS, MATRICES, WORKLOADS, complete, make_model, train

torch.set_num_threads(1)

LOOKUP = {"workload": "lookup", "length": 16, "batch": 16, "layers": 2, "width": 64, "heads": 1}


def test_a_run_depends_on_its_configuration_alone():
    torch.manual_seed(1)
    first = train({**LOOKUP, "steps": 4, "seed": 3})
    torch.manual_seed(2)
    again = train({**LOOKUP, "steps": 4, "seed": 3})
    other = train({**LOOKUP, "steps": 4, "seed": 4})
    assert torch.equal(first.loss, again.loss)
    assert torch.equal(first.gradients, again.gradients)
    assert not torch.equal(first.loss, other.loss)


def test_arms_with_one_seed_see_the_same_batches():
    # With W_Q = 0 the factor cannot matter before the first step; what differs is the data alone
    losses = {
        s: train({**LOOKUP, "steps": 1, "scale": s, "init": "gpt2"}).loss for s in ("none", "full")
    }
    assert losses["none"].item() == pytest.approx(losses["full"].item(), abs=1e-3)
    assert losses["none"].item() == pytest.approx(math.log(72), abs=0.1)  # chance among 72 symbols


def test_the_lookup_task_is_learnt_with_the_root():
    trace = train({**LOOKUP, "steps": 150, "rate": 3e-3, "seed": 0})
    assert trace.loss[-20:].mean() < 0.3  # from 4.3; guessing among the eight values: ln 8 = 2.1
    assert not trace.nonfinite


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_answers_of_the_lookup_task_are_in_the_context(seed):
    c = complete(LOOKUP)
    symbols, draw = WORKLOADS["lookup"](c, None)
    tokens, targets = draw(torch.Generator().manual_seed(seed), 5)
    assert symbols == 72
    assert tokens.max() < symbols
    for row, target in zip(tokens.tolist(), targets.tolist(), strict=True):
        pairs, questions = row[:8], row[8:]
        assert sorted(pair // 8 for pair in pairs) == list(range(8))
        assert sorted(questions) == list(range(64, 72))
        assert target[:8] == [-100] * 8
        by_key = {pair // 8: pair for pair in pairs}
        assert target[8:] == [by_key[question - 64] for question in questions]


def test_gradients_are_those_of_the_loss():
    c = complete({**LOOKUP, "steps": 1, "seed": 5, "batch": 4})
    trace = train(c)
    symbols, draw = WORKLOADS["lookup"](c, None)
    tokens, targets = draw(torch.Generator().manual_seed(5 + 2**32), 4)
    model = make_model(c, symbols)
    kept = targets != -100
    loss = torch.nn.functional.cross_entropy(model(tokens)[kept], targets[kept])
    weights = dict(model.named_parameters())
    grads = dict(zip(weights, torch.autograd.grad(loss, weights.values()), strict=True))
    assert trace.loss.item() == pytest.approx(loss.item(), rel=1e-6)
    total = sum(float((g.double() ** 2).sum()) for g in grads.values()) ** 0.5
    assert trace.gradient.item() == pytest.approx(total, rel=1e-5)
    for layer in range(2):
        for place, name in enumerate(MATRICES):
            path = f"blocks.{layer}.{'attention.' if name.startswith('w_') else ''}{name}.weight"
            expected = grads[path].norm().item()
            assert trace.gradients[0, layer, place].item() == pytest.approx(expected, rel=1e-5)


def test_clipping_warm_up_and_rates_act_as_they_say():
    one = {**LOOKUP, "steps": 2, "optimiser": "sgd", "rate": 0.1, "warmup": 0}
    plain = train(one)
    # SGD is linear in the gradient: clipping to half its norm is half the rate, and so is a warm-up
    # of two steps at the first one
    half = train({**one, "rate": 0.05}).loss[1].item()
    clipped = train({**one, "clip": plain.gradient[0].item() / 2}).loss[1].item()
    warm = train({**one, "warmup": 2}).loss[1].item()
    assert half != pytest.approx(plain.loss[1].item(), abs=1e-5)
    assert clipped == pytest.approx(half, abs=1e-5)
    assert warm == pytest.approx(half, abs=1e-5)
    still = train({**one, "steps": 1, "qk_rate": 0.0})
    assert torch.equal(still.loss, plain.loss[:1])


def test_a_loss_that_is_not_finite_ends_the_run_and_is_dated():
    trace = train(
        {**LOOKUP, "steps": 50, "optimiser": "sgd", "rate": 1e4, "norm": "none", "warmup": 0}
    )
    assert "loss" in trace.nonfinite
    assert len(trace.loss) == trace.nonfinite["loss"] + 1
    assert trace.loss[:-1].isfinite().all()
    assert min(trace.nonfinite.values()) <= trace.nonfinite["loss"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"learning_rate": 1e-3}, "unknown settings: learning_rate"),
        ({"workload": "images"}, "workload must be one of text, lookup"),
        ({"optimiser": "lion"}, "optimiser must be one of adamw, sgd"),
        ({"workload": "lookup", "length": 64}, "look-up task has length 16"),
    ],
)
def test_wrong_configurations_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        train({**wrong, "steps": 1})


def test_progress_is_reported():
    seen = []
    train({**LOOKUP, "steps": 3}, progress=lambda step, loss: seen.append((step, loss)))
    assert [step for step, _ in seen] == [0, 1, 2]
    assert seen[0][1] == pytest.approx(4.3, abs=0.2)


def test_the_plays_are_read_without_markup():
    text = corpus.read_plays()
    read = corpus.read_corpus()
    assert len(text) == len(read.train) + len(read.validation)
    assert read.decode(read.train[:60]) == text[:60]
    assert text.startswith("First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:")
    assert not set("#*_\\") & set(text)
    # tiny Shakespeare has 65 characters and 1.1 million of them
    assert 60 <= len(read.characters) <= 70
    assert 1.1e6 < len(text) < 1.3e6
    assert "Exeunt" not in text[:100_000]


def test_a_text_of_ones_own(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("abcab" * 4000, "utf8")
    read = corpus.read_corpus(str(file))
    assert read.characters == "abc"
    assert (len(read.train), len(read.validation)) == (18000, 2000)
    trace = train({**LOOKUP, "workload": "text", "steps": 100, "rate": 1e-2}, text=str(file))
    assert trace.validation.keys() == {100}
    assert trace.validation[100] < 0.3  # a text of period five; guessing: ln 3
    file.write_text("abc", "utf8")
    corpus.read_corpus.cache_clear()
    with pytest.raises(ValueError, match="at least 10,000"):
        corpus.read_corpus(str(file))


def test_an_unclosed_emphasis_swallows_its_paragraph_only():
    play = "# T\n\n**A**  \nOne _Exit\n\n**B**  \nTwo _Enter\nC_\n"
    assert corpus.clean(play) == "A:\nOne Exit\n\nB:\nTwo\n"


def test_defaults_are_a_complete_configuration():
    assert complete({}) == dict(DEFAULTS)


def test_losses_of_counting_are_entropies_for_a_text_that_only_counts():
    # A text of independent characters: both losses are its entropy, up to the sampling of 2,000
    # characters, σ(−ln p) = 0.55 here, and to 9 counts that are added
    p = torch.tensor([0.5, 0.3, 0.2])
    numbers = torch.multinomial(
        p, 20_000, replacement=True, generator=torch.Generator().manual_seed(1)
    )
    made = corpus.Corpus("abc", numbers[:18_000], numbers[18_000:])
    entropy = -float((p * p.log()).sum())
    error = float((p * (p.log() + entropy) ** 2).sum()) ** 0.5 / 2000**0.5
    assert corpus.count_losses(made) == pytest.approx(
        (entropy, entropy), abs=4 * error + 9 / 18_000
    )
    # a text of period two: the second character is certain
    made = corpus.Corpus("ab", torch.arange(18_000) % 2, torch.arange(2_000) % 2)
    unigram, bigram = corpus.count_losses(made)
    assert unigram == pytest.approx(math.log(2), abs=1e-3)
    assert bigram == pytest.approx(0, abs=2e-3)
