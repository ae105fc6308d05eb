"""A look-up task that one attention head learns in seconds, with any factor on q·k.

The context holds 16 pairs of a key and a value, the question is one of the keys, and the answer is
its value. Tokens are fixed random vectors; only W_Q, W_K and W_V learn:

    x_j = key + value                                  a pair, mean square 1
    x_0 = √2 · key                                     the question, mean square 1
    logits of the answer = Σ_j p_j x_j W_V,  p = softmax over j of factor · (x_0 W_Q)·(x_j W_K)

To find the pair, the head has to align W_Q with W_K on the keys and to ignore the values.

Several seeds run side by side, as the first dimension of every tensor. They do not see each other:
each has a generator of its own, their losses are added, and Adam treats every weight by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import cross_entropy

__all__ = ["CHANCE", "PAIRS", "steps_until", "train"]

PAIRS = 16  # in the context
KEYS = 32  # to draw them from
VALUES = 16
WIDTH = 64  # d_model
BATCH = 32
CHANCE = 1 / VALUES


def train(
    factor: float,
    *,
    head_dim: int = 64,
    gain: float = 1.0,
    seeds: Sequence[int] = range(8),
    steps: int = 400,
    learning_rate: float = 1e-3,
    qk_rate: float = 1.0,
) -> torch.Tensor:
    """Train one head with Adam, once for each seed.

    Parameters
    ----------
    factor
        The factor on q·k.
    head_dim
        d_k.
    gain
        Standard deviation of the components of q and of k at initialisation.
    seeds
        One run for each: weights, tokens and batches.
    steps
        Of the optimiser; each sees a new batch.
    learning_rate
        Of W_V.
    qk_rate
        The learning rate of W_Q and W_K, in units of `learning_rate`.

    Returns
    -------
    tensor, shape (runs, steps)
        The share of right answers in each batch, before the step that learns from it.
    """
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    keys = _normal((KEYS, WIDTH), 0.5**0.5, generators)
    values = _normal((VALUES, WIDTH), 0.5**0.5, generators)
    w_q = _normal((WIDTH, head_dim), gain / WIDTH**0.5, generators).requires_grad_()
    w_k = _normal((WIDTH, head_dim), gain / WIDTH**0.5, generators).requires_grad_()
    w_v = _normal((WIDTH, VALUES), 1 / WIDTH**0.5, generators).requires_grad_()
    groups = [
        {"params": [w_q, w_k], "lr": learning_rate * qk_rate},
        {"params": [w_v], "lr": learning_rate},
    ]
    optimiser = torch.optim.Adam(groups)

    run = torch.arange(len(generators))[:, None, None]
    accuracy = []
    for _ in range(steps):
        pair_keys, pair_values = _batch(generators)  # (runs, BATCH, PAIRS)
        x = keys[run, pair_keys] + values[run, pair_values]  # (runs, BATCH, PAIRS, WIDTH)
        # The question is about the first pair; without positions, no pair knows that it is first.
        question, answer = 2**0.5 * keys[run, pair_keys[..., :1]], pair_values[..., 0]

        q = question @ w_q[:, None]  # (runs, BATCH, 1, d_k)
        k = x.flatten(1, 2) @ w_k  # one product for the whole batch is faster
        k = k.view(-1, BATCH, PAIRS, head_dim)  # (runs, BATCH, PAIRS, d_k)
        p = (factor * (q @ k.mT)).softmax(dim=-1)  # (runs, BATCH, 1, PAIRS)
        logits = (p @ x).squeeze(2) @ w_v  # (runs, BATCH, VALUES)

        accuracy.append((logits.detach().argmax(dim=-1) == answer).float().mean(dim=-1))
        loss = cross_entropy(logits.flatten(0, 1), answer.flatten(), reduction="sum") / BATCH
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return torch.stack(accuracy, dim=1)


def steps_until(
    accuracy: torch.Tensor, level: float = 0.9, average_over: int = 10
) -> list[int | None]:
    """After how many steps the moving average of the accuracy is at `level`; None if never.

    Parameters
    ----------
    accuracy
        From `train`.
    level
        The share of right answers to reach.
    average_over
        The number of batches in the average.
    """
    reached = accuracy.unfold(1, average_over, 1).mean(dim=-1) >= level - 1e-6
    return [int(row.int().argmax()) + average_over if bool(row.any()) else None for row in reached]


def _normal(
    shape: tuple[int, ...], size: float, generators: Sequence[torch.Generator]
) -> torch.Tensor:
    return torch.stack([size * torch.randn(shape, generator=g) for g in generators])


def _batch(generators: Sequence[torch.Generator]) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw pairs: keys that differ within a context, and a value for each."""
    keys = [torch.rand(BATCH, KEYS, generator=g).argsort(dim=1)[:, :PAIRS] for g in generators]
    values = [torch.randint(VALUES, (BATCH, PAIRS), generator=g) for g in generators]
    return torch.stack(keys), torch.stack(values)
