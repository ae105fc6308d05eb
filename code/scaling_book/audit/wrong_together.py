"""Attention with one thing wrong that shows only beside something else: an option, length, size.

Each of them is right for any option that comes alone in a short row of ordinary numbers; or its
numbers are right, and its gradients, its format or what it leaves of its arguments are not.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from scaling_book.audit.wrong_attention import Chunked, Variant

__all__ = ["MEETINGS", "Meeting"]


class Meeting(Variant):
    """Looks at all arguments at once before the textbook does."""

    def __call__(self, *tensors: Any, **options: Any) -> Tensor:
        """Attend, after `meet` has changed what it is given."""
        query, key, value = self.meet(list(tensors), options)
        return super().__call__(query, key, value, **options)

    def meet(self, tensors: list[Tensor], options: dict[str, Any]) -> list[Tensor]:
        """Query, key and value; and `options`, changed in place."""
        return tensors


class UsualUnderTriangle(Meeting):
    """Does not hand its factor to the causal path, where a test with a factor of 0 was added."""

    name, kind = "1/√E for s > 0, causal", "given scale with masks"

    def meet(self, tensors: list[Tensor], options: dict[str, Any]) -> list[Tensor]:
        """As if none were given."""
        if options.get("is_causal") and (options.get("scale") or 0) > 0:
            del options["scale"]
        return tensors


class EitherOr(Meeting):
    """Builds the triangle if there is no mask."""

    name, kind = "mask else triangle", "mask and causal together"

    def meet(self, tensors: list[Tensor], options: dict[str, Any]) -> list[Tensor]:
        """A model that is padded sees the future."""
        if options.get("attn_mask") is not None:
            options.pop("is_causal", None)
        return tensors


class TiledUnderMask(Meeting):
    """Has a path for masks, which repeats the keys in the other order."""

    name, kind = "groups tiled, masked", "grouped heads with other options"

    def meet(self, tensors: list[Tensor], options: dict[str, Any]) -> list[Tensor]:
        """0 1 0 1 for 0 0 1 1."""
        if options.get("attn_mask") is None or not options.pop("enable_gqa", False):
            return tensors
        query, *others = tensors
        times = query.shape[-3] // others[0].shape[-3]
        return [query, *(torch.cat([x] * times, dim=-3) for x in others)]


class TriangleUnderCap(Meeting):
    """Writes the triangle into the scores, and then caps; masks come later."""

    name, kind = "cap(triangle)", "soft cap with other options"

    def meet(self, tensors: list[Tensor], options: dict[str, Any]) -> list[Tensor]:
        """Remembers the number."""
        self.bound = options.get("softcap") or math.inf
        return tensors

    def triangle(self, z: Tensor, s: float) -> Tensor:
        """Ends at −c, if there is a cap."""
        return _written_over(z, -self.bound)

    bound = math.inf


class SinkUnderCap(Meeting):
    """Treats the sink as one more score."""

    name, kind = "cap(sink)", "sinks with other options"

    def meet(self, tensors: list[Tensor], options: dict[str, Any]) -> list[Tensor]:
        """Within ±c."""
        if "softcap" in options and "sinks" in options:
            options["sinks"] = self.cap(options["sinks"], options["softcap"])
        return tensors


class SinkInEachChunk(Chunked):
    """Adds the sink to the sum of each chunk."""

    name, kind = "a sink for each chunk", "long rows with other options"

    def attended(self, z: Tensor, value: Tensor, column: Tensor | None) -> Tensor:
        """Four chunks of 32 keys have four."""
        if column is not None:
            column = column + math.log(math.ceil(z.shape[-1] / 32))
        return super().attended(z, value, column)


class WideUnderMask(Meeting):
    """Returns what it computed with."""

    name, kind = "float32 out, masked", "format of the result"

    def __call__(self, *tensors: Any, **options: Any) -> Tensor:
        """Rounded, but not stored, in the format of the inputs."""
        output = super().__call__(*tensors, **options)
        return output if options.get("attn_mask") is None else output.float()


class TriangleAtTenThousand(Variant):
    """Fills the triangle with a number that was large enough for one model."""

    name, kind = "−10⁴ for the future", "loud keys in the future"

    def triangle(self, z: Tensor, s: float) -> Tensor:
        """In place of the scores."""
        return _written_over(z, -1e4)


def _written_over(z: Tensor, number: float) -> Tensor:
    """What has to be added for the future to hold a number, but where a mask has hidden it."""
    future = torch.ones_like(z).triu(1) > 0
    return torch.where(future & (z > -math.inf), number - z, 0.0)


class QuotientOfExponentials(Variant):
    """Writes the hyperbolic tangent out."""

    name, kind = "(eˣ − e⁻ˣ)/(eˣ + e⁻ˣ)", "logits far beyond the cap"

    def cap(self, z: Tensor, c: float) -> Tensor:
        """∞/∞ for large x."""
        up, down = (z / c).exp(), (-z / c).exp()
        return c * ((up - down) / (up + down))


class FloorInHalf(Variant):
    """Starts its maximum, for inputs in float16 alone, at a number instead of −∞."""

    name, kind = "max ≥ −10⁴ in float16", "very negative logits"

    def scores(self, query: Tensor, key: Tensor, s: float) -> Tensor:
        """Remembers the format."""
        self.floor = -1e4 if query.dtype == torch.float16 else -math.inf
        return super().scores(query, key, s)

    def shift(self, z: Tensor) -> Tensor:
        """Not below the floor."""
        return super().shift(z).clamp(min=self.floor)

    floor = -math.inf


class HiddenAtTenThousand(Variant):
    """Hides, for inputs in float16 alone, with a number that fits that format."""

    name, kind = "−10⁴ for −∞ in float16", "loud masked keys"

    def scores(self, query: Tensor, key: Tensor, s: float) -> Tensor:
        """Remembers the format."""
        self.half = query.dtype == torch.float16
        return super().scores(query, key, s)

    def mask(self, attn_mask: Tensor, s: float) -> Tensor:
        """Added, not written over the score."""
        added = super().mask(attn_mask, s)
        return added.clamp(min=-1e4) if self.half else added

    half = False


class BiasIsData(Variant):
    """Takes a bias for a constant, which a learned one is not."""

    name, kind = "b without gradient", "bias"

    def mask(self, attn_mask: Tensor, s: float) -> Tensor:
        """Cut off."""
        return super().mask(attn_mask, s).detach()


class SinkGradientTimesFactor(Variant):
    """Has a backward pass of its own, which treats the sink as a score."""

    name, kind = "s·∂/∂sink", "sinks"

    def sink(self, sinks: Tensor, s: float) -> Tensor:
        """The right number with the wrong slope."""
        return s * sinks + (1 - s) * sinks.detach()


class MaskReused(Variant):
    """Saves memory: −∞ becomes a finite number in the caller's own mask."""

    name, kind = "mask overwritten", "rows without a key"

    def mask(self, attn_mask: Tensor, s: float) -> Tensor:
        """The next layer gets another mask."""
        if attn_mask.dtype == torch.bool:
            return super().mask(attn_mask, s)
        with torch.no_grad():
            return attn_mask.clamp_(min=torch.finfo(attn_mask.dtype).min).double()


class BarrenRowBesideSink(Variant):
    """Guards empty rows in the path without sinks."""

    name, kind = "0·∞ beside a sink", "rows without a key"

    def weights(self, z: Tensor, column: Tensor | None) -> Tensor:
        """The maximum is over the keys alone, and there is none."""
        if column is None:
            return super().weights(z, None)
        top = z.amax(dim=-1, keepdim=True)
        e = (z - top).exp()
        return e / (e.sum(dim=-1, keepdim=True) + (column - top).exp())


#: In the order of the kinds, then what those of `VARIANTS` leave of older ones.
MEETINGS: tuple[Variant, ...] = tuple(
    variant()
    for variant in (
        *(UsualUnderTriangle, EitherOr, TiledUnderMask, TriangleUnderCap, SinkUnderCap),
        *(SinkInEachChunk, WideUnderMask, TriangleAtTenThousand, QuotientOfExponentials),
        *(FloorInHalf, HiddenAtTenThousand, BiasIsData, SinkGradientTimesFactor),
        *(MaskReused, BarrenRowBesideSink),
    )
)
