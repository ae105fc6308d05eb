"""A small stack of Transformer blocks that learns a few sentences by heart, in float64.

Small enough to follow every step of a training, and deep enough to ask what depth does: pre-norm
blocks of causal attention and a feed-forward part, with residuals, as in GPT-2. The text is random,
so there is nothing to learn but the text itself. Where a question is about real text and about
convergence, this is not the model to ask.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy, gelu

from attention_scaling import explicit_attention, layer_norm
from scaling_book.lab.one_head import MakeOptimiser

__all__ = ["HEAD_DIM", "DeepStack", "Training", "train_stack"]

#: d_k of the one head in each block. Of 256 even the fourth root is a power of two, so multiplying
#: by it rounds nothing.
HEAD_DIM = 256
WIDTH = 32
SYMBOLS, SENTENCES, LENGTH = 32, 4, 16


class DeepStack:
    """The weights of the blocks, and what they compute.

    Parameters
    ----------
    layers
        Number of blocks.
    factor
        The factor on q·k.
    gain
        Multiplies W_Q and W_K; with 1 their entries are N(0, 1/d_model), so that q and k have unit
        variance behind the normalisation.
    generator
        Source of the weights.
    """

    def __init__(
        self, layers: int, factor: float, *, gain: float = 1.0, generator: torch.Generator
    ) -> None:
        def weight(*shape: int, size: float = 1.0) -> torch.Tensor:
            drawn = torch.randn(*shape, generator=generator, dtype=torch.float64)
            scaled: torch.Tensor = size * drawn / shape[-2] ** 0.5
            return scaled.requires_grad_()

        self.factor = factor
        branch = (2 * layers) ** -0.5  # of what is added to the residual stream, as in GPT-2
        self.w_qk = [weight(2, WIDTH, HEAD_DIM, size=gain) for _ in range(layers)]
        self.w_v = [weight(WIDTH, WIDTH) for _ in range(layers)]
        self.w_o = [weight(WIDTH, WIDTH, size=branch) for _ in range(layers)]
        self.w_up = [weight(WIDTH, 4 * WIDTH) for _ in range(layers)]
        self.w_down = [weight(4 * WIDTH, WIDTH, size=branch) for _ in range(layers)]
        self.embedding = weight(SYMBOLS, WIDTH, size=SYMBOLS**0.5)
        self.unembedding = weight(WIDTH, SYMBOLS)

    def rest(self) -> list[torch.Tensor]:
        """All weights but W_Q and W_K."""
        ends = [self.embedding, self.unembedding]
        return self.w_v + self.w_o + self.w_up + self.w_down + ends

    def loss(self, text: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of the next symbol, in nats, averaged over the text."""
        x = self.embedding[text[:, :-1]]
        for w_qk, w_v, w_o, up, down in zip(
            self.w_qk, self.w_v, self.w_o, self.w_up, self.w_down, strict=True
        ):
            q, k, v = (layer_norm(x) @ w for w in (*w_qk, w_v))
            x = x + explicit_attention(q, k, v, is_causal=True, scale=self.factor) @ w_o
            x = x + gelu(layer_norm(x) @ up) @ down
        logits = layer_norm(x) @ self.unembedding
        return cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


@dataclass(frozen=True)
class Training:
    """What was seen during a training.

    Parameters
    ----------
    losses
        Before each step and after the last, shape (steps + 1,).
    gradients
        ‖∂L/∂(W_Q, W_K)‖ before each step, shape (steps, layers).
    """

    losses: torch.Tensor
    gradients: torch.Tensor


def train_stack(
    layers: int,
    factor: float,
    make_optimiser: MakeOptimiser,
    *,
    gain: float = 1.0,
    steps: int = 20,
    seed: int = 0,
) -> Training:
    """Let a stack learn one random text by heart.

    Parameters
    ----------
    layers, factor, gain
        As for `DeepStack`.
    make_optimiser
        Called with the weights of all queries and keys, and with all others.
    steps
        Of the optimiser.
    seed
        Of weights and text; the same numbers for each `factor` and `gain`.
    """
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(SYMBOLS, (SENTENCES, LENGTH + 1), generator=generator)
    stack = DeepStack(layers, factor, gain=gain, generator=generator)
    optimiser = make_optimiser(stack.w_qk, stack.rest())
    losses, gradients = [], []
    for _ in range(steps):
        loss = stack.loss(text)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        losses.append(loss.detach())
        gradients.append(torch.stack([w.grad.norm() for w in stack.w_qk if w.grad is not None]))
        optimiser.step()
    with torch.no_grad():
        losses.append(stack.loss(text))
    return Training(torch.stack(losses), torch.stack(gradients))
