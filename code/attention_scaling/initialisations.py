"""Initialisations of W_Q and W_K: the variance of a weight by law, and real weights drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import nn

from attention_scaling import _checks

__all__ = ["INITIALISATIONS", "Initialisation"]


@dataclass(frozen=True)
class Initialisation:
    """One way to initialise the projections W_Q and W_K, both of shape (d_model, d_model).

    Parameters
    ----------
    name : str
        Key in `INITIALISATIONS`.
    formula : str
        Law of one weight, in symbols.
    variance_law : callable
        (d_model, head_dim) → variance of one weight.
    draw : callable
        (d_model, head_dim) → (W_Q, W_K), drawn by the real initialiser from torch's CPU generator.
        Use `sample_weights`, which shields the global state.
    """

    name: str
    formula: str
    variance_law: Callable[[int, int], float]
    draw: Callable[[int, int], tuple[torch.Tensor, torch.Tensor]]

    def weight_variance(self, d_model: int, head_dim: int) -> float:
        """Variance of one entry of W_Q or W_K, by law.

        Parameters
        ----------
        d_model, head_dim : int
            Width of the model and of one head (d_k).

        Raises
        ------
        ValueError
            If either is no positive integer.
        """
        d_model = _checks.positive_int("d_model", d_model)
        return self.variance_law(d_model, _checks.positive_int("head_dim", head_dim))

    def sample_weights(
        self, d_model: int, head_dim: int, *, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw W_Q and W_K with the real initialiser; the global generator stays as it was.

        Parameters
        ----------
        d_model, head_dim : int
            `head_dim` must divide `d_model`.
        generator : torch.Generator
            Source of randomness (CPU).

        Returns
        -------
        (W_Q, W_K) : tensors, each of shape (heads, head_dim, d_model), float32
            One projection per head; heads = d_model / head_dim.

        Raises
        ------
        ValueError
            If a size is no positive integer or `head_dim` does not divide `d_model`.
        TypeError
            If `generator` is no torch Generator.
        """
        d_model = _checks.positive_int("d_model", d_model)
        head_dim = _checks.positive_int("head_dim", head_dim)
        generator = _checks.torch_generator(generator)
        if d_model % head_dim:
            raise ValueError(
                f"head_dim must divide d_model to split it into heads, got {head_dim} and "
                f"{d_model}; pass for example d_model={head_dim * max(1, d_model // head_dim)}"
            )
        # Modules such as nn.Linear draw from the global generator and take no other: lend it a
        # seed and put its state back. Seeding default_generator alone leaves accelerators alone.
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.device("cpu"):
            torch.default_generator.manual_seed(seed)
            w_q, w_k = self.draw(d_model, head_dim)
        # (d_model, d_model) → (heads, head_dim, d_model)
        split = (d_model // head_dim, head_dim, d_model)
        return w_q.detach().reshape(split), w_k.detach().reshape(split)


def _twice(
    initialise: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[int, int], tuple[torch.Tensor, torch.Tensor]]:
    """Draw W_Q and W_K one after the other with an in-place initialiser."""

    def draw(d_model: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        def one() -> torch.Tensor:
            return initialise(torch.empty(d_model, d_model, dtype=torch.float32))

        return one(), one()

    return draw


def _draw_linear(d_model: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    w_q = nn.Linear(d_model, d_model, bias=False, dtype=torch.float32).weight
    w_k = nn.Linear(d_model, d_model, bias=False, dtype=torch.float32).weight
    return w_q, w_k


def _draw_mha_packed(d_model: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    attention = nn.MultiheadAttention(d_model, d_model // head_dim, dtype=torch.float32)
    w_q, w_k, _ = attention.in_proj_weight.chunk(3)  # (3E, E) → three of (E, E)
    return w_q, w_k


def _draw_xavier_per_head(d_model: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    def one() -> torch.Tensor:
        heads = torch.empty(d_model // head_dim, head_dim, d_model, dtype=torch.float32)
        for head in heads:
            nn.init.xavier_uniform_(head)
        return heads

    return one(), one()


#: Initialisations by name. "Xavier" appears three times: its variance 2/(fan_in + fan_out)
#: depends on which matrix it is given.
INITIALISATIONS: Mapping[str, Initialisation] = MappingProxyType(
    {
        init.name: init
        for init in (
            Initialisation(
                "lecun",
                "N(0, 1/d_model)",
                lambda d_model, head_dim: 1 / d_model,
                # Kaiming with the gain of a linear layer, 1, is LeCun's rule.
                _twice(lambda w: nn.init.kaiming_normal_(w, nonlinearity="linear")),
            ),
            Initialisation(
                "xavier_square",
                "U(±√(6/(d_model + d_model)))",
                lambda d_model, head_dim: 2 / (d_model + d_model),
                _twice(nn.init.xavier_uniform_),
            ),
            Initialisation(
                "xavier_per_head",
                "U(±√(6/(d_model + d_k)))",
                lambda d_model, head_dim: 2 / (d_model + head_dim),
                _draw_xavier_per_head,
            ),
            Initialisation(
                "mha_packed",
                "U(±√(6/(d_model + 3 d_model)))",
                lambda d_model, head_dim: 2 / (d_model + 3 * d_model),
                _draw_mha_packed,
            ),
            Initialisation(
                "torch_linear",
                "U(±1/√d_model)",
                lambda d_model, head_dim: 1 / (3 * d_model),
                _draw_linear,
            ),
            Initialisation(
                "gpt2",
                "N(0, 0.02²)",
                lambda d_model, head_dim: 0.02**2,
                _twice(lambda w: nn.init.normal_(w, std=0.02)),
            ),
        )
    }
)
