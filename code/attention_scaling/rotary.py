"""Rotary position embedding: pairs of features turn by angles that grow with the position."""

from __future__ import annotations

import math

import torch

from attention_scaling import _checks
from attention_scaling._attention_parts import working_dtype

__all__ = ["apply_rotary", "rotary_frequencies", "yarn_attention_factor"]


def rotary_frequencies(head_dim: int, base: float = 10000.0) -> torch.Tensor:
    r"""Angle by which pair i turns per position: :math:`\theta_i = \mathrm{base}^{-2i/d}`.

    Parameters
    ----------
    head_dim : int
        d, the number of features that turn; even.
    base : float
        Positive. 10,000 in the paper, 500,000 in Llama 3.

    Returns
    -------
    tensor, shape (d / 2,), float64
        In radians per position, from 1 down to a little above 1/base.

    Raises
    ------
    ValueError
        If `head_dim` is no positive even integer or `base` is not positive.

    References
    ----------
    Su et al. (2021), "RoFormer", §3.2.2.
    """
    head_dim = _checks.positive_int("head_dim", head_dim, minimum=2)
    base = _checks.positive_number("base", base)
    if head_dim % 2:
        raise ValueError(f"head_dim must be even to form pairs, got {head_dim}; rotate fewer")
    return base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)


def apply_rotary(
    x: torch.Tensor,
    positions: torch.Tensor,
    *,
    base: float = 10000.0,
    interleaved: bool = False,
    rotary_dim: int | None = None,
    attention_factor: float = 1.0,
) -> torch.Tensor:
    r"""Rotate the feature pairs of queries or keys by their positions.

    Pair (a, b) of the token at position m becomes

    .. math:: (a \cos m\theta_i - b \sin m\theta_i,\; a \sin m\theta_i + b \cos m\theta_i)

    Two pairings are in use and not interchangeable: a checkpoint trained with one gives wrong
    logits with the other, though each is the other with features permuted in q and k alike.

    A rotation keeps norms, and the product of q at m and k at n depends on m − n only. An
    `attention_factor` other than 1 changes norms: it multiplies q and k, their product twice.

    Parameters
    ----------
    x : tensor, shape (…, L, E)
    positions : tensor, shape (L,) or broadcastable to (…, L)
        Integer or floating; in tokens.
    base : float
        As for `rotary_frequencies`.
    interleaved : bool
        False: feature i pairs with i + d/2 (GPT-NeoX, LLaMA as in Hugging Face's checkpoints).
        True: 2i pairs with 2i + 1 (RoFormer, GPT-J).
    rotary_dim : int, optional
        d, even: only the first d features turn, the rest pass (GPT-J: 64 of 256). None means all.
    attention_factor : float
        Multiplies cosine and sine, as YaRN does; see `yarn_attention_factor`. Features that do not
        turn are not multiplied.

    Returns
    -------
    tensor, shape (…, L, E)
        Dtype of `x`. Angles are computed in float64; float16 and bfloat16 are rotated in float32
        and rounded at the end.

    Raises
    ------
    TypeError
        If `x` is no floating tensor, or `positions` no tensor of real numbers.
    ValueError
        If `positions` does not broadcast, the number of features to turn is odd or larger than E,
        `base` is not positive or `attention_factor` not finite.

    References
    ----------
    Su et al. (2021), "RoFormer", §3.2.2 and §3.4.2. Peng et al. (2023), "YaRN", for the factor.
    """
    _checks.floating_tensor("x", x, min_dims=2)
    width = x.shape[-1] if rotary_dim is None else _checks.positive_int("rotary_dim", rotary_dim)
    if width > x.shape[-1] or width % 2 or width == 0:
        raise ValueError(
            f"the number of features to rotate must be even and at most {x.shape[-1]}, got "
            f"{width}; pass rotary_dim to rotate the first ones only"
        )
    _positions(positions, x)
    factor = _checks.finite_number("attention_factor", attention_factor)

    angles = positions.double().cpu()[..., None] * rotary_frequencies(width, base)  # (…, L, d/2)
    work = working_dtype(x.dtype)
    cos = (factor * angles.cos()).to(x.device, work)
    sin = (factor * angles.sin()).to(x.device, work)
    turning, passing = x[..., :width].to(work), x[..., width:]
    # (…, L, d) → pairs along a dimension of their own, the last one or the one before
    half = (width // 2, 2) if interleaved else (2, width // 2)
    pairs = turning.reshape(*x.shape[:-1], *half)
    a, b = pairs.unbind(-1 if interleaved else -2)  # each (…, L, d/2)
    turned = torch.stack(
        (a * cos - b * sin, a * sin + b * cos), dim=-1 if interleaved else -2
    ).flatten(-2)
    return torch.cat((turned.to(x.dtype), passing), dim=-1)


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    r"""YaRN's correction for a context stretched by a factor s: :math:`0.1\,m \ln s + 1`.

    It multiplies q and k each (by way of cosine and sine), so logits are multiplied by its square:
    at s = 32 by 1.3466² = 1.813. It is the exception to "RoPE keeps norms". DeepSeek-V2 and V3
    put the square into the attention scale instead, with m = 0.707 and 1.

    Parameters
    ----------
    factor : float
        s, the length of the context over the length trained on. Positive; up to 1 nothing is
        stretched and the result is 1.
    mscale : float
        m, 1 in the paper.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If `factor` is not positive or `mscale` not finite.

    References
    ----------
    Peng et al. (2023), "YaRN: Efficient context window extension of large language models".
    """
    factor = _checks.positive_number("factor", factor)
    mscale = _checks.finite_number("mscale", mscale)
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _positions(positions: torch.Tensor, x: torch.Tensor) -> None:
    """Check that there is one real position per token."""
    if (
        not isinstance(positions, torch.Tensor)
        or positions.dtype == torch.bool
        or positions.is_complex()
    ):
        raise TypeError(
            "positions must be a tensor of integers or floats, got "
            f"{getattr(positions, 'dtype', type(positions).__name__)}; pass torch.arange(L)"
        )
    try:
        positions.expand(x.shape[:-1])
    except RuntimeError:
        raise ValueError(
            f"positions of shape {tuple(positions.shape)} does not broadcast to x without its "
            f"features, {tuple(x.shape[:-1])}; pass one position per token, shape (L,)"
        ) from None
