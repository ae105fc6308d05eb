"""Paths to the same attention on a device, and what low precision makes of each.

A *path* is one way to compute attention. Either it is written out in the device's own arithmetic,
with the factor at one of the `PLACEMENTS`; or it is PyTorch's function, held to one of its back
ends. A back end that declines raises `RefusedError` with PyTorch's reasons.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attention_scaling import (
    PLACEMENTS,
    default_scale,
    explicit_attention,
    float_format,
    overflow_threshold,
)

__all__ = ["BACK_ENDS", "WRITTEN_OUT", "DeviceLostError", "RefusedError"]

Attention = Callable[..., torch.Tensor]
Check = Callable[[], None]
Result = dict[str, Any]

STEPS_PER_OCTAVE = 64  # of the root mean squares that are tried
SEED = 2205


class RefusedError(RuntimeError):
    """A back end does not compute this here; the message says why."""


class DeviceLostError(BaseException):
    """The device answers nothing any more, so that no exception of its says anything.

    Not an Exception, so that nobody takes it for the answer of an attention function.
    """


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def must_answer(device: torch.device) -> None:
    """Raise `DeviceLostError` if the device no longer computes 1 + 1."""
    try:
        answer = float(torch.ones(2, device=device).sum())
    except RuntimeError as error:
        raise DeviceLostError(first_line(error)) from error
    if answer != 2.0:
        raise DeviceLostError(f"1 + 1 gives {answer}")


def first_line(error: BaseException) -> str:
    """The kind of an error and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}".rstrip(": ")


# ---------------------------------------------------------------------------------------- paths


def written_out(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, placement: str
) -> torch.Tensor:
    """Attention in three operations, as the device does them in the format of the inputs."""
    place, s = PLACEMENTS[placement], default_scale(query.shape[-1])
    q, k = query, key
    if place.stores_float32:
        q, k = q.float(), k.float()
    if place.query_power:
        q = q * s**place.query_power
    if place.key_power:
        k = k * s**place.key_power
    if place.product_power and not place.stores_float32:
        # alpha of a matrix product: the device multiplies before it rounds the sum, if it can
        scores = torch.baddbmm(
            q.new_zeros(1, 1, 1),
            q.flatten(0, -3),
            k.flatten(0, -3).mT,
            beta=0,
            alpha=s**place.product_power,
        ).view(*q.shape[:-1], k.shape[-2])
    else:
        scores = q @ k.mT * s**place.product_power if place.product_power else q @ k.mT
    if place.stored_power:
        scores = scores * s**place.stored_power
    return scores.softmax(dim=-1).to(value.dtype) @ value


def fused(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    back_end: SDPBackend | None,
) -> torch.Tensor:
    """PyTorch's function, held to one back end; with None it chooses for itself.

    Raises
    ------
    RefusedError
        If the back end declines, with the error and the warnings in which PyTorch says why.
    """
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            with nullcontext() if back_end is None else sdpa_kernel(back_end):
                return scaled_dot_product_attention(
                    query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
                )
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            must_answer(query.device)
            reasons = [str(warning.message).partition(" (Triggered")[0] for warning in said]
            raise RefusedError("; ".join(dict.fromkeys([first_line(error), *reasons]))) from error


#: The operations written out, by the place of the factor.
WRITTEN_OUT: Mapping[str, Attention] = MappingProxyType(
    {name: partial(written_out, placement=name) for name in PLACEMENTS}
)
#: PyTorch's function, as it chooses and held to each back end; cuDNN, which builds a plan for each
#: new shape, comes last.
BACK_ENDS: Mapping[str, Attention] = MappingProxyType(
    {
        name: partial(fused, back_end=back_end)
        for name, back_end in (
            ("default", None),
            ("math", SDPBackend.MATH),
            ("flash", SDPBackend.FLASH_ATTENTION),
            ("efficient", SDPBackend.EFFICIENT_ATTENTION),
            ("cudnn", SDPBackend.CUDNN_ATTENTION),
        )
    }
)


def chosen_kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str | None:
    """Which back end PyTorch takes for these inputs by itself; None where it does not say."""
    try:
        return str(SDPBackend(torch._fused_sdp_choice(q, k, v)).name)
    except (AttributeError, RuntimeError, ValueError):
        return None


# ------------------------------------------------------------------------------ 1 low precision


def precision(
    check: Check, progress: Result, *, attend: Attention, job: Mapping[str, Any], device: str
) -> Result:
    """Error on ordinary inputs, and the smallest root mean square of q = k that breaks a path.

    Parameters
    ----------
    check
        Called between the steps; it raises where the time is up.
    progress
        Not used: the job is short.
    attend
        The path.
    job
        Its name, `path`, the `format` and the `head_dim`.
    device
        Where to compute.
    """
    name, head_dim = job["format"], job["head_dim"]
    q, k, v = ordinary(name, (1, 4, 256, head_dim))
    out = attend(*(x.to(device) for x in (q, k, v)))
    result: Result = {"error": error(out, q, k, v)}
    if job["path"] == "default":
        result["kernel"] = chosen_kernel(*(x.to(device) for x in (q, k, v)))
    check()
    smallest = smallest_breaking(attend, name, head_dim, device, check)
    result["smallest_rms"] = smallest
    if job["path"] in PLACEMENTS:
        predicted = overflow_threshold(head_dim, name, job["path"])
        result["predicted_rms"] = predicted if math.isfinite(predicted) else None
        result["as_predicted"] = fits(smallest, predicted, float_format(name).eps)
    return result


def ordinary(name: str, shape: tuple[int, ...]) -> list[torch.Tensor]:
    """Query, key and value with independent standard normal entries, rounded to a format."""
    generator = torch.Generator().manual_seed(SEED)
    return list(torch.randn(3, *shape, generator=generator).to(float_format(name).dtype))


def error(out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Result:
    """Distance from float64, relative to its root mean square; and of float64 rounded once."""
    right = explicit_attention(q.double(), k.double(), v.double())
    size = float(right.square().mean().sqrt())
    off = out.cpu().double() - right
    rounding = right.to(v.dtype).double() - right
    return {
        "largest": number(float(off.abs().max()) / size),
        "rms": number(float(off.square().mean().sqrt()) / size),
        "rms_of_rounding_once": number(float(rounding.square().mean().sqrt()) / size),
    }


def number(value: float, digits: int = 6) -> float | None:
    """Round to significant digits; None, which JSON can hold, for what is not finite."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def rms_of(step: int, name: str) -> float:
    """The root mean square number `step`, from 1 upwards, as a number of the format."""
    return float(torch.tensor(2.0 ** (step / STEPS_PER_OCTAVE)).to(float_format(name).dtype))


def smallest_breaking(
    attend: Attention, name: str, head_dim: int, device: str, check: Check
) -> float | None:
    """The smallest root mean square of q = k at which the output is not finite; None if none is.

    The entries are ± the root mean square. So each query's product with its own key is d·rms²,
    no partial sum is larger than that, and the largest score of a row is never −∞. Octaves are
    tried from below up to the first that breaks, and steps within it by halving.
    """
    fmt = float_format(name)
    generator = torch.Generator().manual_seed(SEED)
    signs = torch.randint(2, (1, 1, 64, head_dim), generator=generator).mul(2).sub(1)
    value = torch.randn(1, 1, 64, head_dim, generator=generator).to(device, fmt.dtype)

    def breaks(step: int) -> bool:
        check()
        q = (rms_of(step, name) * signs).to(fmt.dtype).to(device)
        return not bool(attend(q, q, value).isfinite().all())

    top = math.floor(STEPS_PER_OCTAVE * math.log2(fmt.max))
    high = next((s for s in (*range(0, top, STEPS_PER_OCTAVE), top) if breaks(s)), None)
    if high is None:
        return None
    low = max(high - STEPS_PER_OCTAVE, -1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if breaks(middle) else (middle, high)
    return rms_of(high, name)


def fits(measured: float | None, predicted: float, eps: float) -> bool:
    """Whether a threshold lies in the step that ends at the measured one.

    q and k are rounded before the product, each by at most eps/2; √s and the step itself too.
    """
    if measured is None or math.isinf(predicted):
        return measured is None and math.isinf(predicted)
    step = 2.0 ** (1 / STEPS_PER_OCTAVE)
    return bool(measured / step * (1 - 2 * eps) <= predicted <= measured * (1 + 2 * eps))
