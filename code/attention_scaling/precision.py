"""Attention scores in low precision: where the scale goes, and from which q and k on q·k overflows.

The formats themselves are in `formats`, what is done to scores to keep them small in
`score_limits`, and the hunt for the first NaN in `nonfinite`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch

from attention_scaling import _checks
from attention_scaling.attention import default_scale
from attention_scaling.formats import FloatFormat, float_format, round_to_format

__all__ = ["PLACEMENTS", "Placement", "overflow_threshold", "scaled_scores"]


@dataclass(frozen=True)
class Placement:
    """A place for the scale s in s·(q·k): without rounding every place gives the same number.

    Parameters
    ----------
    name : str
        Key in `PLACEMENTS`.
    formula : str
        In symbols; fl(·) rounds to the format.
    query_power, key_power : float
        q and k are multiplied by s to these powers, and rounded, before the product.
    product_power : float
        The product is multiplied by s to this power, in the accumulator.
    stored_power : float
        So is the stored product, after it was rounded.
    stores_float32 : bool
        The scores are kept in float32 and not rounded to the format.

    Raises
    ------
    ValueError
        If the powers do not add up to 1: the scores would be scaled twice, or not at all.
    """

    name: str
    formula: str
    query_power: float = 0.0
    key_power: float = 0.0
    product_power: float = 0.0
    stored_power: float = 0.0
    stores_float32: bool = False

    def __post_init__(self) -> None:
        total = self.query_power + self.key_power + self.product_power + self.stored_power
        if not math.isclose(total, 1.0):
            raise ValueError(
                f"the powers of the scale in {self.name!r} must add up to 1, got {total}; "
                "divide one scale among q, k, the product and what is stored"
            )


#: Where the scale can go. The first four store the scores in the format of q and k.
PLACEMENTS: Mapping[str, Placement] = MappingProxyType(
    {
        place.name: place
        for place in (
            # Eq. 1 read from left to right; most eager code
            Placement("after_product", "fl(fl(q·k)·s)", stored_power=1.0),
            # tensor2tensor, OPT
            Placement("on_query", "fl(fl(s·q)·k)", query_power=1.0),
            # d^(-1/4) each: Whisper, PyTorch's own math path
            Placement("on_both", "fl(fl(√s·q)·fl(√s·k))", query_power=0.5, key_power=0.5),
            # alpha of a matrix product: Megatron-LM, BLOOM
            Placement("in_accumulator", "fl(s·(q·k))", product_power=1.0),
            # FlashAttention; the scores never leave float32
            Placement("float32_scores", "s·(q·k)", product_power=1.0, stores_float32=True),
        )
    }
)


def scaled_scores(
    query: torch.Tensor,
    key: torch.Tensor,
    placement: str | Placement,
    fmt: str | torch.dtype | FloatFormat,
    *,
    scale: float | None = None,
    accumulate: Literal["float32", "format"] = "float32",
    layer_number: int = 1,
) -> torch.Tensor:
    """Scores s·(q·k) as a low-precision kernel computes them, every rounding done on purpose.

    q and k are rounded to the format, multiplied by their share of the scale in float32 and
    rounded again. Their products are summed in float32 and rounded once, which is what matrix
    units do by default; the order of the sum is not specified there, nor here. Or they are summed
    in the format, coordinate by coordinate, each step one fused multiply–add: then partial sums
    can overflow even where the result would not.

    Parameters
    ----------
    query : tensor, shape (…, L, E)
    key : tensor, shape (…, S, E)
        Same floating dtype; leading dimensions broadcast.
    placement : str or Placement
        A key of `PLACEMENTS` or an own one.
    fmt : str, torch.dtype or FloatFormat
        Format of q, k and, unless the placement keeps float32, of the scores.
    scale : float, optional
        Positive. None means 1/√E.
    accumulate : {"float32", "format"}
        What the products are summed in.
    layer_number : int
        Counted from 1. The scale is divided by it, and the stored scores are multiplied by it
        again in float32, in which softmax reads them: Megatron-LM's option
        ``apply_query_key_layer_scaling``, which keeps the float16 scores of deep layers in range.
        1 changes nothing.

    Returns
    -------
    tensor, shape (…, L, S), float32
        Numbers of the format (of float32 for scores kept there) times `layer_number`; without it
        `.to(dtype)` is exact. Infinite or NaN where the kernel's would be.

    Raises
    ------
    TypeError, ValueError
        As for `attention_logits`; also ValueError if `scale` is not positive, `accumulate` is
        unknown or `layer_number` no positive integer.
    KeyError
        If `placement` or `fmt` names none.
    """
    _checks.query_and_key(query, key)
    place, fmt = _find(placement), float_format(fmt)
    s = _scale(scale, query.shape[-1]) / _checks.positive_int("layer_number", layer_number)
    if accumulate not in ("float32", "format"):
        raise ValueError(
            f"accumulate must be 'float32' or 'format', got {accumulate!r}; "
            "matrix units use 'float32' by default"
        )
    q, k = (round_to_format(t.detach().float(), fmt) for t in (query, key))
    if place.query_power:
        q = round_to_format(q * s**place.query_power, fmt)
    if place.key_power:
        k = round_to_format(k * s**place.key_power, fmt)
    # (…, L, E) @ (…, E, S) → (…, L, S)
    scores = q @ k.mT if accumulate == "float32" else _sum_in_format(q, k, fmt)
    if place.product_power:
        scores = scores * s**place.product_power
    if not place.stores_float32:
        scores = round_to_format(scores, fmt)
    if place.stored_power:
        scores = round_to_format(scores * s**place.stored_power, fmt)
    return scores * layer_number


def overflow_threshold(
    head_dim: int,
    fmt: str | torch.dtype | FloatFormat,
    placement: str | Placement,
    *,
    scale: float | None = None,
) -> float:
    r"""Root mean square of the entries of q = k from which some stored number overflows.

    For q = k with root mean square r the product is d·r², the largest that entries of this size
    can make. Stored before the scale it overflows at :math:`r = \sqrt{B/d}`, stored after it at
    :math:`r = \sqrt{B/(d\,s)}`, where B is the format's `overflow_boundary` (65520 for float16;
    there the threshold itself overflows). For s = 1/√d and d = 64 in float16: 32.0 and 90.5.
    Sums are made in float32, whose own limit is counted too: in bfloat16 it is about the same, and
    the place of the scale makes little difference. Roundings before the last one can move the
    threshold by their relative error, `eps`.

    Parameters
    ----------
    head_dim : int
        d_k, the number of components of one head's query.
    fmt : str, torch.dtype or FloatFormat
        Format of q, k and, unless the placement keeps float32, of the scores.
    placement : str or Placement
        A key of `PLACEMENTS` or an own one.
    scale : float, optional
        Positive. None means 1/√d.

    Returns
    -------
    float
        Infinite if no q and k of the format can overflow: float32 scores of float16 inputs.

    Raises
    ------
    ValueError
        If `head_dim` is no positive integer or `scale` is not positive.
    KeyError
        If `placement` or `fmt` names none.
    """
    head_dim = _checks.positive_int("head_dim", head_dim)
    place, fmt = _find(placement), float_format(fmt)
    s = _scale(scale, head_dim)
    float32 = float_format("float32")
    stored_in = float32 if place.stores_float32 else fmt
    accumulated = head_dim * s ** (place.query_power + place.key_power)  # times r²
    stored = accumulated * s**place.product_power
    threshold = min(
        # entries of q and k after their share of the scale
        fmt.overflow_boundary / s**place.query_power,
        fmt.overflow_boundary / s**place.key_power,
        # the product in the accumulator, as it is stored, and after the rest of the scale
        math.sqrt(float32.overflow_boundary / accumulated),
        math.sqrt(stored_in.overflow_boundary / stored),
        math.sqrt(stored_in.overflow_boundary / (stored * s**place.stored_power)),
    )
    return threshold if threshold <= fmt.max else math.inf


def _sum_in_format(q: torch.Tensor, k: torch.Tensor, fmt: FloatFormat) -> torch.Tensor:
    """q kᵀ, one coordinate after the other, the sum rounded to the format at each step."""
    total = torch.zeros((), dtype=torch.float64, device=q.device)
    for q_i, k_i in zip(q.double().unbind(-1), k.double().unbind(-1), strict=True):
        # (…, L, 1) · (…, 1, S): exact in float64 for formats of up to 24 bits of mantissa
        total = round_to_format(total + q_i[..., :, None] * k_i[..., None, :], fmt)
    return total.float()


def _scale(scale: float | None, head_dim: int) -> float:
    hint = "put the sign into q: a root of it is taken"
    return (
        default_scale(head_dim) if scale is None else _checks.positive_number("scale", scale, hint)
    )


def _find(placement: str | Placement) -> Placement:
    if isinstance(placement, Placement):
        return placement
    if placement not in PLACEMENTS:
        raise KeyError(
            f"placement must be a Placement or one of {', '.join(PLACEMENTS)}, got {placement!r}"
        )
    return PLACEMENTS[placement]
