"""Kinds of mistakes that show only where two options meet, or an option and a long row."""

from __future__ import annotations

import torch

from attention_scaling import _conformance_inputs as draw
from attention_scaling._conformance_case import Case
from attention_scaling._conformance_kinds import Kind, kind

#: By name, in the order in which they are tried.
PAIR_KINDS: dict[str, Kind] = {}

MASKS = ("boolean", "additive", "bias")


def _several(g: torch.Generator, dtype: torch.dtype) -> Case:
    """Ordinary inputs with enough heads, queries and keys for any option to make a difference."""
    length, keys = draw.integer(g, 2, 5), draw.integer(g, 3, 7)
    return draw.ordinary(g, dtype, length=length, keys=keys, heads=int(draw.pick(g, 4, 6)))


kind(
    PAIR_KINDS,
    "given scale with masks",
    "An explicit factor is lost on the path that a mask takes, or changes what the mask means.",
    main="scale",
    beside=(*MASKS, "causal"),
    gradients=True,
)(_several)

kind(
    PAIR_KINDS,
    "mask and causal together",
    "One of the two is dropped without a word. PyTorch documents an error, which is right as well.",
    main="causal",
    beside=MASKS,
    gradients=True,
    may_decline=True,
)(_several)

kind(
    PAIR_KINDS,
    "grouped heads with other options",
    "Heads are grouped rightly, but a mask, a factor, a cap or a sink goes to other heads.",
    main="grouped",
    beside=("scale", "low scale", "causal", *MASKS),
    gradients=True,
)(_several)

kind(
    PAIR_KINDS,
    "soft cap with other options",
    "The cap is applied after the mask and lifts −∞ to −c, or is forgotten on one of the paths.",
    main="cap",
    beside=("grouped", "scale", "low scale", "causal", *MASKS),
    gradients=True,
)(_several)

kind(
    PAIR_KINDS,
    "sinks with other options",
    "A sink is capped, masked or lost when another option comes with it.",
    main="sinks",
    beside=("grouped", "scale", "low scale", "cap", "causal", *MASKS),
    gradients=True,
)(_several)


@kind(
    PAIR_KINDS,
    "long rows with other options",
    "Each chunk of keys gets the first chunk's bias, counts the sink again, or starts at query 0.",
    beside=("grouped", "scale", "cap", "causal", "bias", "sinks"),
    queries=3,
)
def _long(g: torch.Generator, dtype: torch.dtype) -> Case:
    n = draw.integer(g, 130, 140)
    case = draw.ordinary(g, dtype, length=n, keys=n, heads=1)
    return case.map(lambda x: x[:1, ..., :1].contiguous())


kind(
    PAIR_KINDS,
    "format of the result",
    "The result has another dtype than the inputs: the next layer declines it, or memory doubles.",
    beside=("grouped", "scale", "cap", "causal", *MASKS, "sinks"),
    format_alone=True,
)(_several)
