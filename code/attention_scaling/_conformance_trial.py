"""An attention function under trial: what it returns for drawn inputs, against what is right."""

from __future__ import annotations

import math
import textwrap
import warnings
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

from attention_scaling._conformance_case import Attention, Case
from attention_scaling._conformance_extremes import EXTREME_KINDS
from attention_scaling._conformance_kinds import Kind
from attention_scaling._conformance_options import OPTION_KINDS
from attention_scaling._conformance_pairs import PAIR_KINDS
from attention_scaling._conformance_shrink import smaller
from attention_scaling._conformance_truth import Truth, truth
from attention_scaling.attention import explicit_attention

#: By name, in the order in which they are tried.
KINDS = MappingProxyType({**OPTION_KINDS, **PAIR_KINDS, **EXTREME_KINDS})
SHRINKING_CALLS = 400


@dataclass(frozen=True)
class Finding:
    """One kind of mistake that was found, on the smallest inputs that show it.

    Parameters
    ----------
    kind
        Name of the kind; a key of `CONFORMANCE_KINDS`.
    why
        What goes wrong in practice.
    dtype
        Of the inputs.
    symptom
        What differs, in words and numbers.
    case
        The inputs, made as small as they could be.
    got, expected
        What the function returned (None if it raised an error) and what float64 gives.
    hardening
        PyTorch itself does not promise this; the finding accuses nobody.
    """

    kind: str
    why: str
    dtype: torch.dtype
    symptom: str
    case: Case
    got: torch.Tensor | None
    expected: torch.Tensor
    hardening: bool

    def __str__(self) -> str:
        """The finding as a paragraph and the inputs below it."""
        title = f"{self.kind}, {name_of(self.dtype)}: {self.symptom}"
        return f"{title}\n  {self.why}\n{textwrap.indent(self.case.describe(), '    ')}"


class Trial:
    """One function under trial, and what was found so far."""

    def __init__(
        self, attention: Attention, takes: frozenset[str], examples: int, seed: int
    ) -> None:
        self.attention, self.takes = attention, takes
        self.number, self.seed = examples, seed
        self.findings: list[Finding] = []
        self.passed: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        self.not_applicable: list[str] = []
        self.examples = 0  # without those of the search for small ones

    def must_answer(self, dtypes: Sequence[torch.dtype]) -> None:
        """Refuse a function that cannot be called at all, instead of calling it faultless."""
        declined: Exception | None = None
        plain = KINDS["plain"]
        for case in (case for dtype in dtypes for case in self._draw(plain, dtype, at_least=20)):
            try:
                result = case.run(self.attention)
            except Exception as error:
                declined = declined or error  # a kernel may decline some shapes
                continue
            wanted = (*case.query.shape[:-1], case.value.shape[-1])
            if not isinstance(result, torch.Tensor) or tuple(result.shape) != wanted:
                got = tuple(getattr(result, "shape", ())) or type(result).__name__
                raise ValueError(
                    f"attention(query, key, value) must return a tensor of shape {wanted} for "
                    f"query {tuple(case.query.shape)}, key {tuple(case.key.shape)} and value "
                    f"{tuple(case.value.shape)}, got {got}; wrap it in a function that does"
                )
            return
        raise ValueError(
            f"attention(query, key, value) raised an error each time, first {_short(declined)}; "
            "wrap it in a function that takes tensors (…, L, E), (…, S, E), (…, S, Ev)"
        ) from declined

    def try_kind(self, kind: Kind, dtypes: Sequence[torch.dtype]) -> None:
        """Draw examples in each dtype, and keep the first mistake of each, made small."""
        fitting = [dtype for dtype in dtypes if dtype in kind.dtypes]
        if not kind.choices(self.takes) or not fitting:
            self.not_applicable.append(kind.name)
            return
        self.passed[kind.name] = 0
        for dtype in fitting:
            self._try_dtype(kind, dtype)
        if kind.gradients and not any(f.kind == kind.name for f in self.findings):
            self._try_gradients(kind)

    def _try_dtype(self, kind: Kind, dtype: torch.dtype) -> None:
        for case in self._draw(kind, dtype):
            self.examples += 1
            try:
                symptom = _symptom(self.attention, case, kind)
            except Exception as error:
                if not kind.may_decline:
                    self.refused.setdefault(kind.name, _short(error))
                continue
            if symptom:
                self._found(kind, case, symptom)
                return
            self.passed[kind.name] += 1

    def _try_gradients(self, kind: Kind) -> None:
        for case in self._draw(kind, torch.float64):
            try:
                symptom = _gradient_symptom(self.attention, case)
            except Exception:
                continue  # no float64, or no gradients: nothing that it promised
            self.examples += 1
            if symptom:
                self._found(kind, case, symptom, small=False)
                return

    def _draw(self, kind: Kind, dtype: torch.dtype, *, at_least: int = 1) -> Iterable[Case]:
        for number in range(max(self.number, at_least, len(kind.choices(self.takes)))):
            # a seed of its own, so that an example does not depend on which others were drawn
            seed = zlib.crc32(f"{self.seed} {kind.name} {number}".encode())
            yield kind.draw(torch.Generator().manual_seed(seed), dtype, self.takes, number)

    def _found(self, kind: Kind, case: Case, symptom: str, *, small: bool = True) -> None:
        if small:
            case, symptom = _shrink(self.attention, case, kind, symptom)
        try:
            got = case.clone().run(self.attention)
        except Exception:
            got = None
        expected = truth(case, strict=kind.strict).output
        self.findings.append(
            Finding(
                kind.name, kind.why, case.query.dtype, symptom, case, got, expected, kind.hardening
            )
        )


def _symptom(attention: Attention, case: Case, kind: Kind) -> str:
    """What is wrong with the result for a case; empty if nothing is."""
    given = case.clone()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = given.run(attention)
    if not isinstance(got, torch.Tensor):
        return f"returns {type(got).__name__}, not a tensor"
    if kind.format_alone:
        wanted = case.query.dtype
        return "" if got.dtype == wanted else f"returns {name_of(got.dtype)} for {name_of(wanted)}"
    for name in ("query", "key", "value", "attn_mask", "sinks"):
        before, after = getattr(case, name), getattr(given, name)
        if before is not None and not torch.allclose(before, after, 0, 0, equal_nan=True):
            return f"overwrites its argument {name}"
    right = truth(case, strict=kind.strict)
    if got.shape != right.output.shape:
        return f"returns the shape {tuple(got.shape)} for {tuple(right.output.shape)}"
    return _difference(got.detach().double(), case, right)


def _difference(got: torch.Tensor, case: Case, right: Truth) -> str:
    dead = right.dead.expand(right.output.shape)
    wrong = ~((got - right.output).abs() <= right.tolerance)
    if bool(dead.any()):
        wrong = torch.where(dead, ~_row_without_key(got, case), wrong)
    if not bool(wrong.any()):
        return ""
    # the largest excess; NaN counts as the largest of all
    excess = (got - right.output).abs().nan_to_num(math.inf, math.inf) - right.tolerance
    place = int(torch.where(wrong, excess, -math.inf).argmax())
    actual, expected = float(got.flatten()[place]), float(right.output.flatten()[place])
    tolerance = float(right.tolerance.flatten()[place])
    if bool(dead.flatten()[place]):
        return (
            "a row whose keys are all masked, or at the end of the format, "
            f"gives {actual:.6g}, expected 0 or the mean of the values"
        )
    if not math.isfinite(actual):
        return f"gives {actual}, expected {expected:.6g}"
    return f"gives {actual:.6g}, expected {expected:.6g} within {tolerance:.2g}"


def _row_without_key(got: torch.Tensor, case: Case) -> torch.Tensor:
    """Where a row that has nothing to attend to may be what it is: 0, or within the values.

    The mean of the values is meant. But which keys it runs over, and with what weights, depends on
    what a mask of finite numbers leaves of the scores. So anything from the smallest to the largest
    value of a column passes, and a mistake within that range does too.
    """
    v = case.value.double().nan_to_num(0.0, 0.0, 0.0)
    if case.enable_gqa:
        v = v.repeat_interleave(case.query.shape[-3] // v.shape[-3], dim=-3)
    slack = 1e-2 * (1 + v.abs().amax(dim=-2, keepdim=True))
    low, high = v.amin(dim=-2, keepdim=True) - slack, v.amax(dim=-2, keepdim=True) + slack
    return (got == 0) | ((got >= low) & (got <= high))


def _gradient_symptom(attention: Attention, case: Case) -> str:
    """Compare the gradients of a random sum of the outputs in float64."""
    generator = torch.Generator().manual_seed(1)
    shape = (*case.query.shape[:-1], case.value.shape[-1])
    weight = torch.randn(shape, generator=generator, dtype=torch.float64)
    dead = truth(case, strict=True).dead
    weight = torch.where(dead, 0.0, weight)  # what such a row returns is a matter of policy

    def run(own: Case) -> torch.Tensor:
        return own.run(attention)

    def reference(own: Case) -> torch.Tensor:
        return own.with_one_mask().run(explicit_attention)

    leaves = ["query", "key", "value"]
    more = [x for x in ("attn_mask", "sinks") if _is_floating(getattr(case, x))]
    try:
        got = _gradients(run, case, leaves + more, weight)
    except Exception:  # a fused kernel may have none of a mask
        got, more = _gradients(run, case, leaves, weight), []
    expected = _gradients(reference, case, leaves + more, weight)
    for name in leaves + more:
        size = 1 + float(expected[name].abs().max())
        # sums of a few dozen terms, which the function may have computed in float32
        if not bool(((got[name] - expected[name]).abs() <= 1e-4 * size).all()):
            error = float((got[name] - expected[name]).abs().max())
            return f"the gradient of {name} misses by {error:.3g}, its size is {size - 1:.3g}"
    return ""


def _is_floating(x: torch.Tensor | None) -> bool:
    return x is not None and x.is_floating_point()


def _gradients(
    run: Callable[[Case], torch.Tensor], case: Case, names: Sequence[str], weight: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Of the sum of the outputs times `weight`; zeros where an argument is cut off from it."""
    own = case.clone()
    leaves = [getattr(own, name).requires_grad_() for name in names]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        total = (weight * run(own)).sum()
        found = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
    return dict(zip(names, found, strict=True))


def _shrink(attention: Attention, case: Case, kind: Kind, symptom: str) -> tuple[Case, str]:
    """Go to simpler inputs as long as one of them fails too."""
    calls_left = SHRINKING_CALLS
    dead_rows = bool(truth(case, strict=kind.strict).dead.any())
    candidates = smaller(case)
    while calls_left and (candidate := next(candidates, None)) is not None:
        calls_left -= 1
        try:
            found = _symptom(attention, candidate, kind)
            if not found:
                continue
            if not dead_rows and bool(truth(candidate, strict=kind.strict).dead.any()):
                continue  # it would show another mistake
        except Exception:
            continue  # refused, or no case any more: NaN came out from behind the mask
        case, symptom, candidates = candidate, found, smaller(candidate)
    return case, symptom


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _short(error: Exception | None) -> str:
    text = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}: {textwrap.shorten(text, 90, placeholder=' …')}"
