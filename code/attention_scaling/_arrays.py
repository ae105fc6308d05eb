"""NumPy arrays in, NumPy arrays out: what the functions of logits and weights share."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from attention_scaling import _checks

Array = TypeVar("Array", torch.Tensor, NDArray[Any])


def tensor(name: str, values: torch.Tensor | NDArray[Any], *, min_dims: int = 1) -> torch.Tensor:
    """Return the argument as a checked tensor."""
    if isinstance(values, np.ndarray):
        # torch refuses views with negative strides and foreign byte orders
        native = values.dtype.newbyteorder("=")
        values = torch.tensor(np.ascontiguousarray(values, dtype=native)).reshape(values.shape)
    return _checks.floating_tensor(name, values, min_dims=min_dims)


def like(argument: Array, result: torch.Tensor) -> Array:
    """Return the result as the kind of array that came in."""
    return result.numpy() if isinstance(argument, np.ndarray) else result


def weights(values: torch.Tensor | NDArray[Any]) -> torch.Tensor:
    """Return attention weights as a tensor, or say that they cannot be weights."""
    p = tensor("weights", values)
    if (p < 0).any():
        raise ValueError(
            f"weights must not be negative, got a minimum of {float(p.min()):.3g}; "
            "pass softmax outputs, not logits"
        )
    return p
