"""Softmax in one pass: a running maximum and a running denominator, and how two such pairs merge.

Computes in the dtype it is given, like `softmax`. That dtype is then also the accumulator's: in
bfloat16 a denominator that grows by one key at a time stops at 256, for 256 + 1 rounds to 256.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray

from attention_scaling import _arrays, _checks
from attention_scaling._arrays import Array

__all__ = ["SoftmaxState", "online_softmax", "online_softmax_steps"]


@dataclass(frozen=True)
class SoftmaxState:
    r"""What softmax has to know of the keys it has seen: their maximum and their denominator.

    A state stands for :math:`\sum_j e^{z_j} = e^m \ell`. Merging is associative (up to rounding)
    and commutative, and the state of no keys, (−∞, 0), changes nothing: keys may be split into
    chunks, in any order, and their states merged as a tree.

    Parameters
    ----------
    maximum : tensor
        m, the largest logit seen; −∞ if every key so far is masked.
    denominator : tensor, same shape
        :math:`\ell = \sum_j e^{z_j - m}`, between 1 and the number of keys; 0 if all are masked.

    Raises
    ------
    TypeError, ValueError
        If the two are no floating tensors, or differ in shape, dtype or device.

    References
    ----------
    Milakov and Gimelshein (2018), "Online normalizer calculation for softmax".
    """

    maximum: torch.Tensor
    denominator: torch.Tensor

    def __post_init__(self) -> None:
        m = _checks.floating_tensor("maximum", self.maximum)
        denominator = _checks.floating_tensor("denominator", self.denominator)
        if m.dtype != denominator.dtype or m.device != denominator.device:
            raise TypeError(
                "maximum and denominator must share dtype and device, got "
                f"{m.dtype} on {m.device} and {denominator.dtype} on {denominator.device}; "
                "convert one with .to(other)"
            )
        if m.shape != denominator.shape:
            raise ValueError(
                f"maximum and denominator must have one shape, got {tuple(m.shape)} and "
                f"{tuple(denominator.shape)}; build the state with SoftmaxState.from_logits"
            )

    @classmethod
    def from_logits(cls, logits: torch.Tensor | NDArray[Any], dim: int = -1) -> SoftmaxState:
        """State of all keys along one dimension, which disappears.

        Parameters
        ----------
        logits : tensor or ndarray
            Floating point, at least one dimension; −∞ marks a masked key.
        dim : int
            Dimension that holds the keys; it may be empty, which gives the state of no keys.

        Raises
        ------
        TypeError, ValueError, IndexError
            As for `softmax`.
        """
        z = _arrays.tensor("logits", logits)
        if z.shape[dim] == 0:
            nothing = z.sum(dim=dim)
            return cls(torch.full_like(nothing, -math.inf), nothing)
        # The shift cancels in every result, hence no gradient flows through it.
        m = z.detach().amax(dim=dim)
        return cls(m, (z - _shift(m).unsqueeze(dim)).exp().sum(dim=dim))

    def merge(self, other: SoftmaxState) -> SoftmaxState:
        r"""State of the keys of both: the same sum, counted from the larger maximum.

        .. math:: m = \max(m_1, m_2), \qquad \ell = e^{m_1 - m}\,\ell_1 + e^{m_2 - m}\,\ell_2

        The pair with the smaller maximum is rescaled to the larger one. Shapes broadcast.
        """
        m = torch.maximum(self.maximum, other.maximum)
        shift = _shift(m)
        return SoftmaxState(
            m,
            (self.maximum - shift).exp() * self.denominator
            + (other.maximum - shift).exp() * other.denominator,
        )

    @property
    def log_sum_exp(self) -> torch.Tensor:
        """ln Σ e^z = m + ln ℓ, one number that says as much as the pair; −∞ without keys."""
        return self.maximum + self.denominator.log()


def online_softmax(logits: Array, dim: int = -1, chunk_size: int = 128) -> Array:
    r"""Softmax whose maximum and denominator are found together, in one pass over chunks of keys.

    The ordinary safe softmax reads the logits once for the maximum, again for the denominator and
    a third time for the weights. Here the first two are one. The arithmetic is the same, and so is
    the protection: the largest logit is subtracted before exp, no more and no less. A row with +∞
    or NaN, or of −∞ alone, gives NaN, as from `softmax`.

    Parameters
    ----------
    logits : tensor or ndarray
        Floating point, at least one dimension, no unit.
    dim : int
        Dimension that holds the keys.
    chunk_size : int
        Number of keys looked at together; the last chunk may be shorter.

    Returns
    -------
    tensor or ndarray
        Shape and dtype of `logits`.

    Raises
    ------
    TypeError, ValueError, IndexError
        As for `softmax`; also ValueError if `chunk_size` is no positive integer.
    """
    z = _arrays.tensor("logits", logits)
    chunk_size = _checks.positive_int("chunk_size", chunk_size)
    state = SoftmaxState.from_logits(z.narrow(dim, 0, 0), dim)
    for chunk in torch.split(z, chunk_size, dim=dim):
        state = state.merge(SoftmaxState.from_logits(chunk, dim))
    m, denominator = state.maximum.unsqueeze(dim), state.denominator.unsqueeze(dim)
    return _arrays.like(logits, (z - m).exp() / denominator)


def online_softmax_steps(
    logits: torch.Tensor | NDArray[Any], dim: int = -1
) -> Iterator[SoftmaxState]:
    """Yield the state after the first key, the second, and so on: the recurrence, step by step.

    Parameters
    ----------
    logits : tensor or ndarray
        Floating point, at least one dimension.
    dim : int
        Dimension that holds the keys.

    Yields
    ------
    SoftmaxState
        Of the keys so far, with the shape of `logits` without `dim`; one state per key.

    Raises
    ------
    TypeError, ValueError, IndexError
        As for `softmax`, when called and not only when iterated.
    """
    z = _arrays.tensor("logits", logits)
    state = SoftmaxState.from_logits(z.narrow(dim, 0, 0), dim)

    def steps(state: SoftmaxState) -> Iterator[SoftmaxState]:
        for key in torch.split(z, 1, dim=dim):
            state = state.merge(SoftmaxState.from_logits(key, dim))
            yield state

    return steps(state)


def _shift(m: torch.Tensor) -> torch.Tensor:
    """The maximum as a number that can be subtracted: −∞ − (−∞) would be NaN."""
    return m.masked_fill(m == -math.inf, 0.0)
