"""One attention head that learns a random target: short enough to follow every step in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

__all__ = ["DIVIDED", "MakeOptimiser", "logits_while_learning"]

TOKENS, WIDTH = 6, 32
#: The factor with which `gain` = 1 starts at unit variance: 1/√d_k for d_k = 256.
DIVIDED = 1 / 16

#: Makes an optimiser of W_Q and W_K, and of all other weights.
MakeOptimiser = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], torch.optim.Optimizer]


def logits_while_learning(
    factor: float,
    make_optimiser: MakeOptimiser,
    *,
    gain: float = 1.0,
    head_dim: int = 256,
    steps: int = 20,
    seed: int = 0,
) -> torch.Tensor:
    """Minimise ½‖softmax(factor · QKᵀ) X W_V − target‖² and return the logits on the way.

    Parameters
    ----------
    factor
        The factor on q·k.
    make_optimiser
        Called with [W_Q, W_K] and [W_V].
    gain
        Multiplies the initial W_Q and W_K, whose entries are N(0, 1/WIDTH) without it.
    head_dim
        d_k. Of 256 even the fourth root is a power of two, so multiplying by it rounds nothing.
    steps
        Of the optimiser.
    seed
        Of weights, tokens and target; the same numbers for each `factor` and `gain`.

    Returns
    -------
    tensor, shape (steps + 1, TOKENS, TOKENS)
        Before the first step and after each, in float64.
    """
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(4, WIDTH, max(head_dim, WIDTH), generator=generator, dtype=torch.float64)
    w_q, w_k = (gain / WIDTH**0.5 * draw[:2, :, :head_dim]).unbind()
    w_v = draw[2, :, :WIDTH] / WIDTH**0.5
    x, target = draw[3, :, :WIDTH].view(2, -1, WIDTH)[:, :TOKENS]
    for weight in (w_q, w_k, w_v):
        weight.requires_grad_()
    optimiser = make_optimiser([w_q, w_k], [w_v])

    found = []
    for step in range(steps + 1):
        logits = factor * (x @ w_q) @ (x @ w_k).T
        found.append(logits.detach())
        if step < steps:
            loss = ((logits.softmax(dim=-1) @ x @ w_v - target) ** 2).sum() / 2
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return torch.stack(found)
