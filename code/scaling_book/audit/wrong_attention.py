"""Attention with one thing wrong, a variant for each kind of mistake that `check_attention` tries.

`Textbook` is right, and slow. Each variant exchanges one of its steps for one that looks harmless.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["VARIANTS", "Textbook", "Variant"]


class Textbook:
    """softmax(cap(s·q·kᵀ) + mask)·v in float64, where a row without any key gives 0."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attend, with PyTorch's meaning of the arguments and the library's cap and sinks."""
        if enable_gqa:
            key, value = (self.spread(x, query.shape[-3]) for x in (key, value))
        s = self.factor(query, scale)
        z = self.scores(query, key, s)
        if softcap is not None:
            z = self.cap(z, softcap)
        if attn_mask is not None:
            z = z + self.mask(attn_mask, s)
        if is_causal:
            z = z + self.triangle(z, s)
        column = None if sinks is None else self.sink(sinks.double()[:, None, None], s)
        return self.attended(z, value.double(), column).to(query.dtype)

    def spread(self, x: Tensor, heads: int) -> Tensor:
        """Keys or values for each head of the queries."""
        return x.repeat_interleave(heads // x.shape[-3], dim=-3)

    def factor(self, query: Tensor, scale: float | None) -> float:
        """The number that q·k is multiplied by."""
        return float(query.shape[-1] ** -0.5) if scale is None else scale

    def scores(self, query: Tensor, key: Tensor, s: float) -> Tensor:
        """s·q·k for all pairs."""
        return s * (query.double() @ key.double().mT)

    def cap(self, z: Tensor, c: float) -> Tensor:
        """Scores within ±c."""
        return c * (z / c).tanh()

    def mask(self, attn_mask: Tensor, s: float) -> Tensor:
        """What is added to the scores; −∞ hides a pair."""
        if attn_mask.dtype == torch.bool:
            return torch.where(attn_mask, 0.0, -math.inf).double()
        return attn_mask.double()

    def triangle(self, z: Tensor, s: float) -> Tensor:
        """The same for a causal model."""
        return torch.full_like(z, -math.inf).triu(1)

    def sink(self, sinks: Tensor, s: float) -> Tensor:
        """The logit of what every query may attend to besides the keys."""
        return sinks

    def attended(self, z: Tensor, value: Tensor, column: Tensor | None) -> Tensor:
        """The values weighted by the softmax of z; `column` counts in its sum only."""
        return self.weights(z, column) @ value

    def weights(self, z: Tensor, column: Tensor | None) -> Tensor:
        """Softmax, with a zero row for one of −∞ alone."""
        top = self.shift(z)
        e = (z - top).exp()
        total = e.sum(dim=-1, keepdim=True)
        if column is not None:
            total = total + (column - top).exp()
        return e / total.clamp(min=1e-300)

    def shift(self, z: Tensor) -> Tensor:
        """What is subtracted from a row: any number would do, if numbers had no ends."""
        top = z.amax(dim=-1, keepdim=True)
        return top.masked_fill(top == -math.inf, 0.0)


class Variant(Textbook):
    """A wrong one: its name for people, and the kind of mistake that it must be accused of."""

    name: str
    kind: str


class AllHeadsTogether(Variant):
    """Takes the width of all heads for that of one."""

    name, kind = "1/√(h·E) for 1/√E", "plain"

    def factor(self, query: Tensor, scale: float | None) -> float:
        """1/√(h·E)."""
        return float((query.shape[-3] * query.shape[-1]) ** -0.5) if scale is None else scale


class BothFactors(Variant):
    """Takes the argument for a temperature."""

    name, kind = "s/√E for s", "given scale"

    def factor(self, query: Tensor, scale: float | None) -> float:
        """One factor times the other."""
        return float(query.shape[-1] ** -0.5) * (1.0 if scale is None else scale)


class SignDropped(Variant):
    """Puts √|s| on both sides, and forgets the sign."""

    name, kind = "|s| for s", "scale of zero or below"

    def factor(self, query: Tensor, scale: float | None) -> float:
        """Never below zero."""
        return abs(super().factor(query, scale))


class HiddenBeforeFactor(Variant):
    """Writes −∞ into q·k and then multiplies."""

    name, kind = "s·(−∞) for a mask", "scale of zero or below with a mask"

    def mask(self, attn_mask: Tensor, s: float) -> Tensor:
        """Only what hides is multiplied; a bias comes later."""
        added = super().mask(attn_mask, s)
        return torch.where(added == -math.inf, s * added, added)


class TriangleBeforeFactor(Variant):
    """Does so with the causal mask."""

    name, kind = "s·(−∞) for the triangle", "scale of zero or below, causal"

    def triangle(self, z: Tensor, s: float) -> Tensor:
        """0·(−∞) is NaN."""
        return (s * torch.full_like(z, -math.inf)).triu(1)


class BooleansAdded(Variant):
    """Knows additive masks only."""

    name, kind = "z + True", "boolean mask"

    def mask(self, attn_mask: Tensor, s: float) -> Tensor:
        """True is 1."""
        return attn_mask.double()


class YesOrNo(Variant):
    """Makes every mask a boolean one."""

    name, kind = "b > −∞ for b", "bias"

    def mask(self, attn_mask: Tensor, s: float) -> Tensor:
        """A finite bias is lost."""
        return super().mask(
            attn_mask != -math.inf if attn_mask.dtype != torch.bool else attn_mask, s
        )


class OneAhead(Variant):
    """Is off by one."""

    name, kind = "j ≤ i + 1 for j ≤ i", "causal"

    def triangle(self, z: Tensor, s: float) -> Tensor:
        """Each query sees the next key."""
        return torch.full_like(z, -math.inf).triu(2)


class FirstGroup(Variant):
    """Has been tested with a single head of keys."""

    name, kind = "first group for all", "grouped heads"

    def spread(self, x: Tensor, heads: int) -> Tensor:
        """One for all."""
        return x[..., :1, :, :].expand(*x.shape[:-3], heads, *x.shape[-2:])


class ZeroOverNaN(Variant):
    """Repairs the row after the softmax: forward it is right, the gradient is NaN."""

    name, kind = "0 over NaN", "rows without a key"

    def weights(self, z: Tensor, column: Tensor | None) -> Tensor:
        """0·NaN in the backward pass."""
        if column is not None:
            z = torch.cat([z, column.expand(*z.shape[:-1], 1)], dim=-1)
        p = torch.softmax(z, dim=-1)
        p = torch.where((z == -math.inf).all(dim=-1, keepdim=True), 0.0, p)
        return p if column is None else p[..., :-1]


class OneLongSequence(Variant):
    """Merges the first two axes, which are batch and heads if there are four."""

    name, kind = "(h·L, E) for (h, L, E)", "other layouts"

    def scores(self, query: Tensor, key: Tensor, s: float) -> Tensor:
        """Of three axes it merges heads and tokens."""
        if query.dim() == 3:
            query, key = query.flatten(0, 1), key.flatten(0, 1)
        return super().scores(query, key, s)

    def attended(self, z: Tensor, value: Tensor, column: Tensor | None) -> Tensor:
        """All heads together."""
        if value.dim() != 3:
            return super().attended(z, value, column)
        output = super().attended(z, value.flatten(0, 1), column)
        return output.reshape(value.shape[0], -1, value.shape[-1])


class CutNotBent(Variant):
    """Clamps."""

    name, kind = "clamp(z, −c, c)", "soft cap"

    def cap(self, z: Tensor, c: float) -> Tensor:
        """Has the same range."""
        return z.clamp(-c, c)


class SinkTimesFactor(Variant):
    """Puts the sink among the scores too early."""

    name, kind = "s·sink", "sinks"

    def sink(self, sinks: Tensor, s: float) -> Tensor:
        """Scaled."""
        return s * sinks


class MaskTimesLog2E(Variant):
    """Turns to base 2 in the format of the mask, whose most negative number has no room."""

    name, kind = "log₂ e·mask", "rows at the end of the format"

    def mask(self, attn_mask: Tensor, s: float) -> Tensor:
        """Becomes −∞."""
        if attn_mask.dtype == torch.bool:
            return super().mask(attn_mask, s)
        return (attn_mask * math.log2(math.e)).double() / math.log2(math.e)

    def shift(self, z: Tensor) -> Tensor:
        """Not guarded: −∞ − (−∞) is NaN."""
        return z.amax(dim=-1, keepdim=True)


class MinusAMillion(Variant):
    """Hides with a number that no logit was expected to reach."""

    name, kind = "−10⁶ for −∞", "loud masked keys"

    def mask(self, attn_mask: Tensor, s: float) -> Tensor:
        """Added, not written over the score."""
        return super().mask(attn_mask, s).clamp(min=-1e6)


class MaximumInHalf(Variant):
    """Saves memory on the running maximum."""

    name, kind = "max in float16", "large logits"

    def shift(self, z: Tensor) -> Tensor:
        """Infinite beyond the format; less precise would do no harm."""
        return super().shift(z).half().double()


class SizeOfMaximum(Variant):
    """Subtracts |max|, which is the maximum as long as one logit is positive."""

    name, kind = "|max| for max", "very negative logits"

    def shift(self, z: Tensor) -> Tensor:
        """Twice as far down for negative rows."""
        return super().shift(z).abs()


class FirstRow(Variant):
    """Shares the shift of the first row."""

    name, kind = "max of the first row", "rows of different size"

    def shift(self, z: Tensor) -> Tensor:
        """Mathematically all the same."""
        return super().shift(z)[..., :1, :]


class ScoresStored(Variant):
    """Keeps the scores in the inputs' format."""

    name, kind = "s·q·k stored", "scores beyond half precision"

    def scores(self, query: Tensor, key: Tensor, s: float) -> Tensor:
        """Infinite or tied."""
        return super().scores(query, key, s).to(query.dtype).double()


class ProductStored(Variant):
    """Multiplies by the factor after that."""

    name, kind = "q·k stored, then s", "scores beyond half precision, scaled"

    def scores(self, query: Tensor, key: Tensor, s: float) -> Tensor:
        """Infinite before it becomes small."""
        return s * super().scores(query, key, 1.0).to(query.dtype).double()


class SmallDropped(Variant):
    """Skips weights that seem too small to matter."""

    name, kind = "0 for p < 1/1000", "many small weights"

    def weights(self, z: Tensor, column: Tensor | None) -> Tensor:
        """Many of them do matter."""
        p = super().weights(z, column)
        return p.masked_fill(p < 1e-3, 0.0)


class Chunked(Variant):
    """Online softmax, right as it stands."""

    def attended(self, z: Tensor, value: Tensor, column: Tensor | None) -> Tensor:
        """Chunk after chunk."""
        top = torch.full_like(z[..., :1], -math.inf) if column is None else column
        total = torch.full_like(top, 0.0 if column is None else 1.0)
        output = torch.zeros((), dtype=z.dtype)
        for chunk, part in zip(torch.split(z, 32, -1), torch.split(value, 32, -2), strict=True):
            if self.skips(chunk):
                continue
            new = torch.maximum(top, chunk.amax(dim=-1, keepdim=True))
            shift = new.masked_fill(new == -math.inf, 0.0)
            carry, e = (top - shift).exp(), (chunk - shift).exp()
            total = carry * total + e.sum(dim=-1, keepdim=True)
            output = self.carried(output, carry) + e @ part
            top = new
        return (output / total.clamp(min=1e-300)).expand(*z.shape[:-1], value.shape[-1])

    def skips(self, chunk: Tensor) -> bool:
        """Whether nobody needs a chunk."""
        return False

    def carried(self, output: Tensor, carry: Tensor) -> Tensor:
        """The output so far, for the new maximum."""
        return carry * output


class SumAloneRescaled(Chunked):
    """Rescales one of the two."""

    name, kind = "rescales Σ, not the output", "long rows with a rising maximum"

    def carried(self, output: Tensor, carry: Tensor) -> Tensor:
        """As it was."""
        return output


class SkippedForAll(Chunked):
    """Skips a chunk that one row does not see."""

    name, kind = "any row for all rows", "long rows with masked chunks"

    def skips(self, chunk: Tensor) -> bool:
        """The other rows did."""
        return bool((chunk == -math.inf).all(dim=-1).any())


class SinkClipped(Variant):
    """Keeps sinks in a range that seems wide enough."""

    name, kind = "sink ≥ −30", "sinks beside very negative logits"

    def sink(self, sinks: Tensor, s: float) -> Tensor:
        """In units of the logits there is no such range."""
        return sinks.clamp(min=-30.0)


#: In the order of the kinds.
VARIANTS: tuple[Variant, ...] = tuple(
    variant()
    for variant in (
        *(AllHeadsTogether, BothFactors, SignDropped, HiddenBeforeFactor, TriangleBeforeFactor),
        *(BooleansAdded, YesOrNo, OneAhead, FirstGroup, ZeroOverNaN, OneLongSequence),
        *(CutNotBent, SinkTimesFactor, MaskTimesLog2E, MinusAMillion, MaximumInHalf),
        *(SizeOfMaximum, FirstRow, ScoresStored, ProductStored, SmallDropped),
        *(SumAloneRescaled, SkippedForAll, SinkClipped),
    )
)
