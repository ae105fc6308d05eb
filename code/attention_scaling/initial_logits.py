"""What an initialisation makes of q and of the logits: variances by law, logits by sampling.

"q and k have unit variance" is a premise about W_Q, W_K and their input. Here it can be checked.
"""

from __future__ import annotations

import math

import torch

from attention_scaling import _checks
from attention_scaling.initialisations import INITIALISATIONS, Initialisation

__all__ = ["initial_logit_std", "initial_query_variance", "sample_initial_logits"]

# Logits drawn per head and weight draw. Small enough that several draws of W enter an estimate.
_TOKEN_PAIRS_PER_DRAW = 256


def initial_query_variance(
    init: str | Initialisation,
    d_model: int,
    head_dim: int,
    *,
    input_second_moment: float = 1.0,
) -> float:
    """Variance of one component of q (or k) at initialisation: d_model · Var(W) · E[x²].

    Parameters
    ----------
    init : str or Initialisation
        A key of `INITIALISATIONS` or an own one.
    d_model, head_dim : int
        Width of the model and of one head (d_k).
    input_second_moment : float
        Mean square of the components of the input x; 1 after LayerNorm or RMSNorm with unit gain.

    Returns
    -------
    float

    Raises
    ------
    KeyError
        If `init` names no initialisation.
    ValueError
        If a size is no positive integer or `input_second_moment` is negative.
    """
    init = _find(init)
    _checks.non_negative_number("input_second_moment", input_second_moment)
    return d_model * init.weight_variance(d_model, head_dim) * input_second_moment


def initial_logit_std(
    init: str | Initialisation,
    d_model: int,
    head_dim: int,
    *,
    input_second_moment: float = 1.0,
    scale: float = 1.0,
) -> float:
    r"""Standard deviation of a logit at initialisation: √d_k · Var(q_i) times the absolute scale.

    With Var(q_i) = Var(k_i) = d_model · Var(W) · E[x²] this is √d_k · d_model · Var(W) · E[x²] for
    the raw logit (`scale` = 1). The probability runs over the weights: for any two inputs with
    mean square `input_second_moment`, however alike, q and k are independent, white and have mean
    zero over draws of W_Q and W_K. No assumption on the tokens is needed.

    Parameters
    ----------
    init, d_model, head_dim, input_second_moment
        As for `initial_query_variance`.
    scale : float
        Factor on the raw logit, for example 1/√d_k. 1 gives the raw logit.

    Returns
    -------
    float

    Raises
    ------
    KeyError, ValueError
        As for `initial_query_variance`.
    """
    variance = initial_query_variance(
        init, d_model, head_dim, input_second_moment=input_second_moment
    )
    return abs(_checks.finite_number("scale", scale)) * math.sqrt(head_dim) * variance


def sample_initial_logits(
    init: str | Initialisation,
    d_model: int,
    head_dim: int,
    size: int,
    *,
    generator: torch.Generator,
    input_second_moment: float = 1.0,
    scale: float = 1.0,
) -> torch.Tensor:
    """Draw logits at initialisation: real weights, normalised random tokens, q·k.

    Each token is a random direction of exactly the mean square asked for, as RMSNorm returns it.
    Logits made with one W share it: given W their variance is ‖W_Qᵀ W_K‖²_F (up to the mean
    squares) and not exactly the law. Its relative spread over draws of W, about 2/√(d_k d_model)
    per head, does not shrink with the number of tokens. So every head counts as a draw of its own
    and fresh weights are drawn after every 256 token pairs: the sample averages over W too, its
    members are uncorrelated, and estimates have the standard errors of an independent sample to
    within a few per cent.

    Parameters
    ----------
    init, d_model, head_dim, input_second_moment, scale
        As for `initial_logit_std`; `head_dim` must divide `d_model`.
    size : int
        Number of logits.
    generator : torch.Generator
        Source of randomness (CPU).

    Returns
    -------
    tensor, shape (size,), float64

    Raises
    ------
    KeyError, ValueError, TypeError
        As for `initial_logit_std` and `Initialisation.sample_weights`.
    """
    init = _find(init)
    size = _checks.positive_int("size", size)
    _checks.finite_number("scale", scale)
    _checks.non_negative_number("input_second_moment", input_second_moment)

    def tokens() -> torch.Tensor:
        x = torch.randn(_TOKEN_PAIRS_PER_DRAW, d_model, generator=generator, dtype=torch.float32)
        mean_square = x.square().sum(dim=-1, keepdim=True) / d_model
        return x * (input_second_moment / mean_square).sqrt()  # (pairs, d_model)

    logits: list[torch.Tensor] = []
    drawn = 0
    while drawn < size:
        w_q, w_k = init.sample_weights(d_model, head_dim, generator=generator)
        q = tokens() @ w_q.mT  # (pairs, d_model) @ (heads, d_model, d_k) → (heads, pairs, d_k)
        k = tokens() @ w_k.mT
        logits.append(scale * (q.double() * k.double()).sum(dim=-1).flatten())
        drawn += logits[-1].numel()
    return torch.cat(logits)[:size]


def _find(init: str | Initialisation) -> Initialisation:
    if isinstance(init, Initialisation):
        return init
    if init not in INITIALISATIONS:
        raise KeyError(
            f"init must be an Initialisation or one of {', '.join(INITIALISATIONS)}, got {init!r}"
        )
    return INITIALISATIONS[init]
