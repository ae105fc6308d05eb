"""What `AttentionProbe` found, as records, a table and plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import torch

from attention_scaling._probe_call import Call
from attention_scaling._probe_measure import Sums, measure, merge
from attention_scaling.formats import FORMATS

FP16_MAX = FORMATS["float16"].max


@dataclass(frozen=True)
class HeadAttention:
    """One head of one layer, over all calls. NaN stands where there was nothing to measure.

    Pairs are those of a query and a key that softmax sees; rows are queries that see a key and
    none of whose logits is NaN or infinite. Logits are what softmax is given: scaled, capped, with
    the bias, without the mask.

    Parameters
    ----------
    head : int
    scale : float
        The factor on q·k; NaN if it was not the same in all calls.
    scale_ratio : float
        The factor times √d_k: 1 for the usual one.
    logit_mean, logit_std, max_abs_logit : float
        Over pairs; the variance is the mean square around the mean.
    dot_mean, dot_std : float
        The same of q·k, before the factor.
    max_abs_dot : float
        Largest finite :math:`|q·k|`, hidden pairs included: a product comes before its mask.
    fp16_share, fp16_share_scaled : float
        max_abs_dot, and the factor times it, as a share of float16's largest number, 65504. Above
        1 a product that is stored in float16 is infinite.
    entropy : float
        Mean over rows, in nats, of the weights among the keys (with a sink: divided by their sum).
    effective_keys : float
        Mean over rows of exp(entropy): so many keys with equal weights would have this entropy.
    keys : float
        Mean over rows of the number of keys that are seen.
    top_weight, max_weight : float
        Largest weight of a row: mean and maximum over rows.
    sink_weight : float
        Mean weight that a sink takes; 0 without one.
    pairs, rows, rows_without_keys : int
        How many.
    nonfinite : int
        Pairs whose logit is NaN or infinite; they are left out of all else.
    """

    head: int
    scale: float
    scale_ratio: float
    logit_mean: float
    logit_std: float
    max_abs_logit: float
    dot_mean: float
    dot_std: float
    max_abs_dot: float
    fp16_share: float
    fp16_share_scaled: float
    entropy: float
    effective_keys: float
    keys: float
    top_weight: float
    max_weight: float
    sink_weight: float
    pairs: int
    rows: int
    rows_without_keys: int
    nonfinite: int


@dataclass(frozen=True)
class LayerAttention:
    """One place where a model attends, over all calls.

    Parameters
    ----------
    name : str
        Of the module, as in ``model.named_modules()``; with #2, #3, … for further calls in one
        pass through it; or as given by hand.
    calls : int
    head_dim : int
        d_k.
    max_queries, max_keys : int
        Of one call: L and S.
    heads : tuple of HeadAttention
    """

    name: str
    calls: int
    head_dim: int
    max_queries: int
    max_keys: int
    heads: tuple[HeadAttention, ...]

    def mean(self, statistic: str) -> float:
        """Mean of a statistic over the heads."""
        return fmean(getattr(head, statistic) for head in self.heads)

    def max(self, statistic: str) -> float:
        """Largest value of a statistic among the heads; NaN if one of them is NaN."""
        values = [float(getattr(head, statistic)) for head in self.heads]
        return math.nan if any(map(math.isnan, values)) else max(values)

    def min(self, statistic: str) -> float:
        """Smallest value of a statistic among the heads; NaN if one of them is NaN."""
        values = [float(getattr(head, statistic)) for head in self.heads]
        return math.nan if any(map(math.isnan, values)) else min(values)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; what could not be measured is None."""
        content = asdict(self)
        content["heads"] = [
            {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in h.items()}
            for h in content["heads"]
        ]
        return content


@dataclass
class Place:
    """Sums over the calls at one place."""

    name: str
    calls: int
    head_dim: int
    max_queries: int
    max_keys: int
    scale_low: torch.Tensor
    scale_high: torch.Tensor
    total: Sums

    @classmethod
    def of(cls, name: str, call: Call) -> Place:
        """Measure one call."""
        _, heads, length, width = call.query.shape
        scale = call.scale.flatten().expand(heads)
        return cls(name, 1, width, length, call.key.shape[-2], scale, scale, measure(call))

    def add(self, other: Place) -> None:
        """Add the calls of another one."""
        mine, theirs = ((len(x.scale_low), x.head_dim) for x in (self, other))
        if mine != theirs:
            raise ValueError(
                f"{self.name!r} attended with {mine[0]} heads of width {mine[1]} before, now with "
                f"{theirs[0]} of {theirs[1]}, so that the numbers do not add up; dimension -3 of "
                "query must hold the heads, or use reset() between the runs"
            )
        self.calls += other.calls
        self.max_queries = max(self.max_queries, other.max_queries)
        self.max_keys = max(self.max_keys, other.max_keys)
        self.scale_low = torch.minimum(self.scale_low, other.scale_low)
        self.scale_high = torch.maximum(self.scale_high, other.scale_high)
        self.total = merge(self.total, other.total)

    def record(self) -> LayerAttention:
        """Return what is known."""
        heads = head_records(self.total, self.scale_low, self.scale_high, self.head_dim)
        return LayerAttention(
            self.name, self.calls, self.head_dim, self.max_queries, self.max_keys, heads
        )


def head_records(
    total: Sums, scale_low: torch.Tensor, scale_high: torch.Tensor, head_dim: int
) -> tuple[HeadAttention, ...]:
    """Turn sums into means, head by head."""
    found = []
    for head in range(len(scale_low)):
        x = {name: float(values[head]) for name, values in total.items()}

        def std(name: str, x: dict[str, float] = x) -> float:
            count = x[f"pairs_{name}"]
            return math.sqrt(max(x[f"m2_{name}"], 0.0) / count) if count else math.nan

        def mean(name: str, x: dict[str, float] = x) -> float:
            return x[name] / x["rows"] if x["rows"] else math.nan

        low, high = float(scale_low[head]), float(scale_high[head])
        scale = low if low == high else math.nan
        found.append(
            HeadAttention(
                head=head,
                scale=scale,
                scale_ratio=scale * math.sqrt(head_dim),
                logit_mean=x["mean_logit"] if x["pairs_logit"] else math.nan,
                logit_std=std("logit"),
                max_abs_logit=x["max_abs_logit"],
                dot_mean=x["mean_dot"] if x["pairs_dot"] else math.nan,
                dot_std=std("dot"),
                max_abs_dot=x["max_abs_dot"],
                fp16_share=x["max_abs_dot"] / FP16_MAX,
                fp16_share_scaled=x["max_abs_scaled"] / FP16_MAX,
                entropy=mean("entropy"),
                effective_keys=mean("effective_keys"),
                keys=mean("keys"),
                top_weight=mean("top_weight"),
                max_weight=x["max_weight"] if x["rows"] else math.nan,
                sink_weight=mean("sink_weight"),
                pairs=int(x["pairs_logit"]),
                rows=int(x["rows"]),
                rows_without_keys=int(x["rows_without_keys"]),
                nonfinite=int(x["nonfinite"]),
            )
        )
    return tuple(found)


# ----------------------------------------------------------------------------------------- table

# title, statistic, what stands for a layer, format
COLUMNS = (
    ("s·√d_k", "scale_ratio", "mean", ".3g"),
    ("std(q·k)", "dot_std", "mean", ".3g"),
    ("max|q·k|", "max_abs_dot", "max", ".3g"),
    ("/65504", "fp16_share", "max", ".2g"),
    ("s·/65504", "fp16_share_scaled", "max", ".2g"),
    ("mean(z)", "logit_mean", "mean", ".2f"),
    ("std(z)", "logit_std", "mean", ".2f"),
    ("H", "entropy", "mean", ".2f"),
    ("keys", "keys", "mean", ".1f"),
    ("eff", "effective_keys", "mean", ".1f"),
    ("min eff", "effective_keys", "min", ".1f"),
    ("top", "top_weight", "mean", ".2f"),
    ("max top", "max_weight", "max", ".2f"),
    ("NaN/∞", "nonfinite", "max", ".0f"),
)


def table_of(layers: Sequence[LayerAttention], *, heads: bool) -> str:
    """Lay out records as text: a line per layer, or one per head."""
    rows = [["layer", "calls", "h" if heads else "heads", "d_k"]]
    columns = [c for c in COLUMNS if not (heads and c[0] == "min eff")]
    rows[0] += [title for title, *_ in columns]
    for layer in layers:
        start = [layer.name or "(model)", str(layer.calls)]
        if heads:
            rows += [
                [*start, str(head.head), str(layer.head_dim)]
                + [cell(getattr(head, name), how) for _, name, _, how in columns]
                for head in layer.heads
            ]
        else:
            rows.append(
                [*start, str(len(layer.heads)), str(layer.head_dim)]
                + [cell(getattr(layer, pool)(name), how) for _, name, pool, how in columns]
            )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            text.ljust(width) if place == 0 else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def cell(value: float, how: str) -> str:
    """Write one number; a dash for what could not be measured."""
    return "–" if math.isnan(value) else format(value, how)
