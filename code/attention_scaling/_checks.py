"""Argument checks shared by the library: what was wrong, what was expected, what to do."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

FLOATING_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def positive_int(name: str, value: Any, *, minimum: int = 1) -> int:
    """Return `value` as an int of at least `minimum`, or say why it is none."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if number < minimum:
        raise ValueError(
            f"{name} must be an integer of at least {minimum}, got {value!r}; "
            f"pass a count, for example {name}={max(64, minimum)}"
        )
    return number


def finite_number(name: str, value: Any) -> float:
    """Return `value` as a finite float, or say why it is none."""
    try:
        number = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{name} must be one finite number, got {value!r}; pass a float")
    return number


def non_negative_number(name: str, value: Any) -> float:
    """Return `value` as a finite float that is not below zero."""
    number = finite_number(name, value)
    if number < 0:
        raise ValueError(f"{name} must not be negative, got {number}; pass {name} >= 0")
    return number


def positive_number(name: str, value: Any, hint: str = "pass a number above 0") -> float:
    """Return `value` as a finite float above zero."""
    number = finite_number(name, value)
    if number <= 0:
        raise ValueError(f"{name} must be above 0, got {number}; {hint}")
    return number


def finite_array(name: str, values: Any) -> NDArray[np.float64]:
    """Return `values` as a float64 array of finite numbers."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} must be an array of numbers: {error}; pass floats") from None
    if not np.isfinite(array).all():
        raise ValueError(
            f"{name} must be finite, got NaN or infinity among its numbers; find where they arise"
        )
    return array


def numpy_generator(rng: Any) -> np.random.Generator:
    """Return `rng` if it is a NumPy Generator."""
    if not isinstance(rng, np.random.Generator):
        raise TypeError(
            f"rng must be a numpy.random.Generator, got {type(rng).__name__}; "
            "pass numpy.random.default_rng(seed)"
        )
    return rng


def torch_generator(generator: Any) -> torch.Generator:
    """Return `generator` if it is a torch Generator."""
    if not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator must be a torch.Generator, got {type(generator).__name__}; "
            "pass torch.Generator().manual_seed(seed)"
        )
    return generator


def floating_tensor(name: str, value: Any, *, min_dims: int = 0) -> torch.Tensor:
    """Return `value` if it is a floating-point tensor with at least `min_dims` dimensions."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(
            f"{name} must be a torch.Tensor, got {type(value).__name__}; "
            f"convert it with torch.as_tensor({name})"
        )
    if value.dtype not in FLOATING_DTYPES:
        raise TypeError(
            f"{name} must be float16, bfloat16, float32 or float64, got {value.dtype}; "
            f"convert it with {name}.float()"
        )
    if value.dim() < min_dims:
        raise ValueError(
            f"{name} must have at least {min_dims} dimension(s), got shape {tuple(value.shape)}; "
            "add the missing ones in front with unsqueeze(0)"
        )
    return value


def query_and_key(query: Any, key: Any) -> None:
    """Check the pair that makes logits: (…, L, E) and (…, S, E), one dtype, one device."""
    floating_tensor("query", query, min_dims=2)
    floating_tensor("key", key, min_dims=2)
    same_kind("key", key, query)
    if query.shape[-1] != key.shape[-1] or query.shape[-1] == 0:
        raise ValueError(
            "query and key must share a last dimension E of at least 1, got shapes "
            f"{tuple(query.shape)} and {tuple(key.shape)}; pass query (…, L, E) and key (…, S, E)"
        )


def same_kind(name: str, tensor: torch.Tensor, query: torch.Tensor) -> None:
    """Check that `tensor` has the query's dtype and lives on its device."""
    if tensor.dtype != query.dtype or tensor.device != query.device:
        raise TypeError(
            f"{name} must match query in dtype and device, got {tensor.dtype} on {tensor.device} "
            f"against {query.dtype} on {query.device}; convert it with {name}.to(query)"
        )


def attention_inputs(
    query: Any, key: Any, value: Any, attn_mask: Any, is_causal: bool, enable_gqa: bool
) -> None:
    """Check the tensors of one attention call: dtypes, devices and every shape rule."""
    query_and_key(query, key)
    floating_tensor("value", value, min_dims=2)
    same_kind("value", value, query)
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if key.shape[-2] != value.shape[-2] or key.shape[-2] == 0:
        raise ValueError(
            f"key and value must share a length S of at least 1, got {shapes}; "
            "pass key (…, S, E) and value (…, S, Ev)"
        )
    batches = [tuple(tensor.shape[:-2]) for tensor in (query, key, value)]
    if enable_gqa:
        if not all(batches):
            raise ValueError(
                f"enable_gqa needs a head dimension at -3 in every tensor, got {shapes}; "
                "add one with unsqueeze(-3) or leave enable_gqa=False"
            )
        heads, key_heads, value_heads = (batch[-1] for batch in batches)
        if key_heads != value_heads or key_heads == 0 or heads % key_heads:
            raise ValueError(
                "with enable_gqa the key and value heads must be equal and divide the query heads, "
                f"got {heads} query, {key_heads} key and {value_heads} value heads"
                " (dimension -3); regroup the heads"
            )
        batches = [(*batch[:-1], heads) for batch in batches]
    try:
        np.broadcast_shapes(*batches)
    except ValueError:
        raise ValueError(
            f"the leading dimensions do not broadcast: {shapes}; "
            "make them equal or 1, or group heads with enable_gqa=True"
        ) from None
    if attn_mask is not None:
        logits_shape = (*np.broadcast_shapes(*batches[:2]), query.shape[-2], key.shape[-2])
        _mask(attn_mask, query, logits_shape, is_causal)


def attention_options(dropout_p: float, softcap: float | None, masked_rows: str) -> None:
    """Check the options of one attention call."""
    if dropout_p != 0.0:
        raise ValueError(
            f"dropout_p must be 0, got {dropout_p!r}: dropped weights cannot be measured; "
            "apply dropout outside, to the weights from return_weights=True"
        )
    if softcap is not None:
        positive_number("softcap", softcap, "pass None for no cap")
    if masked_rows not in ("zero", "uniform", "nan"):
        raise ValueError(
            f"masked_rows must be 'zero', 'uniform' or 'nan', got {masked_rows!r}; "
            "'zero' is what PyTorch does"
        )


def _mask(
    attn_mask: Any, query: torch.Tensor, logits_shape: tuple[int, ...], is_causal: bool
) -> None:
    if is_causal:
        raise ValueError(
            "attn_mask and is_causal=True were both given, expected at most one; "
            "combine them yourself: attn_mask & torch.ones(L, S, dtype=torch.bool).tril()"
        )
    if not isinstance(attn_mask, torch.Tensor) or attn_mask.dtype not in (
        torch.bool,
        torch.float32,
        query.dtype,
    ):
        raise TypeError(
            "attn_mask must be a boolean tensor (True keeps) or an additive one of dtype float32 "
            f"or {query.dtype}, got {getattr(attn_mask, 'dtype', type(attn_mask).__name__)}; "
            "turn a 0/1 mask into a boolean one with attn_mask.bool()"
        )
    if attn_mask.device != query.device:
        raise TypeError(
            f"attn_mask is on {attn_mask.device}, expected {query.device} as the query; move it"
        )
    try:
        attn_mask.expand(logits_shape)
    except RuntimeError:
        raise ValueError(
            f"attn_mask of shape {tuple(attn_mask.shape)} does not broadcast to the logits' shape "
            f"{logits_shape}; pass (…, L, S), with 1 where a dimension is shared"
        ) from None
