"""Tries any attention callable: generated inputs, the smallest that fails, and why it matters.

`check_attention` calls a function that has PyTorch's signature, or fewer options, on inputs of
many kinds, and compares it with float64 within a bound on what rounding can do. A faithful
implementation is never accused; a mistaken one is shown on the smallest inputs that were found.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

from attention_scaling import _checks
from attention_scaling._conformance_case import OPTIONS, Attention, accepted_options
from attention_scaling._conformance_kinds import Kind
from attention_scaling._conformance_trial import KINDS, Finding, Trial, name_of

__all__ = ["CONFORMANCE_KINDS", "ConformanceReport", "Finding", "check_attention"]

#: The kinds of mistakes that are tried, and why each matters.
CONFORMANCE_KINDS = MappingProxyType({name: kind.why for name, kind in KINDS.items()})

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class ConformanceReport:
    """What came out of `check_attention`.

    Parameters
    ----------
    findings
        One for each kind and dtype that failed.
    passed
        How many examples of each kind were right, in all dtypes together.
    refused
        Kinds that the function declined with an error, and the error.
    not_applicable
        Kinds that need an option the function does not take, or another dtype.
    examples
        Number of inputs generated, without those of the search for small ones.
    factor
        By which the function multiplies q·k where no scale is given, times √E; 1 is right. NaN if
        it could not be told.
    """

    findings: tuple[Finding, ...]
    passed: MappingProxyType[str, int]
    refused: MappingProxyType[str, str]
    not_applicable: tuple[str, ...]
    examples: int
    factor: float

    @property
    def ok(self) -> bool:
        """Nothing was found that PyTorch's contract promises."""
        return not any(not finding.hardening for finding in self.findings)

    def failed(self) -> tuple[str, ...]:
        """Names of the kinds that failed, hardening left out."""
        names = (finding.kind for finding in self.findings if not finding.hardening)
        return tuple(dict.fromkeys(names))

    def __str__(self) -> str:
        """The verdict, one line for each kind, then the findings."""
        found: dict[str, list[Finding]] = {}
        for finding in self.findings:
            found.setdefault(finding.kind, []).append(finding)
        lines = [
            f"  {name:<38}{self._status(name, found.get(name, []))}"
            for name in KINDS
            if name in self.passed or name in self.not_applicable
        ]
        verdict = "no mistake found" if self.ok else f"{len(self.failed())} kind(s) of mistakes"
        hint = _factor_in_words(self.factor)
        parts = [f"{verdict} in {self.examples} examples{hint}", "\n".join(lines)]
        return "\n\n".join(parts + [str(finding) for finding in self.findings])

    def _status(self, name: str, found: list[Finding]) -> str:
        if found:
            where = ", ".join(name_of(finding.dtype) for finding in found)
            return f"{'exposed' if found[0].hardening else 'FAILS'} in {where}"
        if name in self.not_applicable:
            return "not applicable"
        right, error = self.passed[name], self.refused.get(name)
        if not right:
            return "declined, as it may be" if error is None else f"refused: {error}"
        return f"right in {right} examples" + (f", others refused: {error}" if error else "")


def check_attention(
    attention: Attention,
    *,
    kinds: Iterable[str] | None = None,
    dtypes: torch.dtype | Sequence[torch.dtype] = DTYPES,
    examples: int = 20,
    seed: int = 0,
    options: Iterable[str] | None = None,
) -> ConformanceReport:
    """Try an attention function on generated inputs of many kinds of mistakes.

    Parameters
    ----------
    attention : callable
        ``attention(query, key, value, **options)`` with PyTorch's meaning and shapes:
        query (…, L, E), key (…, S, E), value (…, S, Ev), result (…, L, Ev). The options tried are
        those it takes by name among `attn_mask`, `is_causal`, `scale`, `enable_gqa`, and the
        library's `softcap` and `sinks`.
    kinds : names, optional
        Some of `CONFORMANCE_KINDS`; all by default.
    dtypes : torch.dtype or a sequence of them
        Formats to try, of float16, bfloat16, float32, float64.
    examples : int
        Inputs drawn for each kind and dtype. A kind that combines options draws more, if it needs
        to, so that each pair that the function takes comes once by itself.
    seed : int
        Of the generator.
    options : names, optional
        Which options the function takes, if its signature does not say so.

    Returns
    -------
    ConformanceReport
        Print it, or look at `ok` and `findings`.

    Raises
    ------
    TypeError
        If `attention` cannot be called.
    ValueError
        If a kind, a dtype or an option is unknown, or the plainest call fails in every dtype.

    Notes
    -----
    A function that returns NaN for a row without any key is accused: zeros (as PyTorch gives) and
    the mean of all values (as masks of finite numbers give) are both accepted, and so is whatever
    lies between the values. An error counts as refused, not as a mistake.

    The bound on rounding is derived in ``_conformance_truth.truth``: it takes float32 for sums and
    softmax (a GPU's TF32 is not that) and, in most kinds, allows scores stored in half precision.
    It does not allow exp(z − lse) with a rounded logarithm lse of the sum, whose weights do not sum
    to 1 where logits are large. Gradients, of sinks and of a bias too, are compared with float64
    inputs, where the function takes them, and to float32's precision.
    """
    if not callable(attention):
        raise TypeError(
            f"attention must be callable, got {type(attention).__name__}; "
            "pass a function of query, key and value"
        )
    chosen = _chosen(kinds)
    dtypes = [dtypes] if isinstance(dtypes, torch.dtype) else list(dtypes)
    if not dtypes or not set(dtypes) <= set(_checks.FLOATING_DTYPES):
        known = ", ".join(map(name_of, _checks.FLOATING_DTYPES))
        raise ValueError(f"dtypes must be one or more of {known}, got {dtypes}")
    examples = _checks.positive_int("examples", examples)
    seed = _checks.positive_int("seed", seed, minimum=0)

    trial = Trial(attention, _options(attention, options), examples, seed)
    trial.must_answer(dtypes)
    for kind in chosen:
        trial.try_kind(kind, dtypes)
    return ConformanceReport(
        tuple(trial.findings),
        MappingProxyType(trial.passed),
        MappingProxyType(trial.refused),
        tuple(trial.not_applicable),
        trial.examples,
        _measured_factor(attention),
    )


def _chosen(kinds: Iterable[str] | None) -> list[Kind]:
    if kinds is None:
        return list(KINDS.values())
    names = [kinds] if isinstance(kinds, str) else list(kinds)
    for name in names:
        if name not in KINDS:
            raise ValueError(f"no kind is called {name!r}; known: {', '.join(KINDS)}")
    return [KINDS[name] for name in names]


def _options(attention: Attention, options: Iterable[str] | None) -> frozenset[str]:
    if options is None:
        return accepted_options(attention)
    names = frozenset([options] if isinstance(options, str) else options)
    if unknown := names - set(OPTIONS):
        raise ValueError(
            f"no option is called {', '.join(sorted(unknown))}; known: {', '.join(OPTIONS)}"
        )
    return names


def _measured_factor(attention: Attention) -> float:
    """The default factor times √E, from two keys, E = 16, 3 heads; NaN if it cannot be told."""
    dim, heads = 16, 3
    q = torch.zeros(1, heads, 1, dim)
    q[..., 0] = 1.0
    k, v = torch.zeros(1, heads, 2, dim), torch.zeros(1, heads, 2, dim)
    k[..., 0, 0], v[..., 0, :] = 0.25, 1.0
    try:
        p = float(attention(q, k, v)[0, 0, 0, 0])
    except Exception:
        return math.nan
    if not 0 < p < 1:
        return math.nan
    return math.log(p / (1 - p)) / 0.25 * math.sqrt(dim)


def _factor_in_words(factor: float) -> str:
    """Name the usual slips; at E = 16 with 3 heads they differ."""
    if math.isnan(factor) or abs(factor - 1) < 1e-3:
        return ""
    slips = {
        0.25: "the factor is applied twice, or it is 1/E",
        4.0: "there is no factor",
        16.0: "it multiplies by √E instead of dividing",
        3**-0.5: "the width of all heads is taken for that of one",
        0.0: "the factor is 0",
        -1.0: "the factor has the wrong sign",
    }
    for value, words in slips.items():
        if abs(factor - value) < 1e-3 * max(1.0, abs(value)):
            return f"; at E = 16 q·k is multiplied by {factor / 4:.4g}: {words}"
    return f"; at E = 16 q·k is multiplied by {factor / 4:.4g}, not by 0.25"
