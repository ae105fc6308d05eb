"""What a piece of evidence is, and the register of all of them. Standard library only."""

from __future__ import annotations

import difflib
import importlib
import math
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

# A rival within this many standard errors of the measured value has not been refuted.
REJECTION_IN_STANDARD_ERRORS = 5.0


class EvidenceError(Exception):
    """A slug is unknown or taken, or an evidence function returned no evidence."""


@dataclass(frozen=True)
class Measurement:
    """One measured number beside the law that predicts it and the law that it refutes.

    `measured` and `expected` must come from independent paths: never compute `expected` from the
    samples behind `measured`.

    Parameters
    ----------
    quantity
        What is measured, in symbols: ``Var(q·k), d_k = 64``. No words, so that no edition of the
        book has to translate it.
    measured
        The value measured.
    expected
        The value that the right statement predicts.
    tolerance
        The largest |measured − expected| that still supports the right statement.
    reason
        Where the tolerance comes from, in symbols.
    rival
        The value that the answer on trial, or the usual mistake, predicts; None where there is
        nothing to refute.
    standard_error
        Of `measured`; None for exact and deterministic values.
    rival_is_the_answer
        Whether the rival is what the answer's own sentence predicts, and not only a usual mistake;
        see `against_the_answer`.
    """

    quantity: str
    measured: float
    expected: float
    tolerance: float
    reason: str
    rival: float | None = None
    standard_error: float | None = None
    rival_is_the_answer: bool = False

    @property
    def supports(self) -> bool:
        """The measured value is finite and within the tolerance of the right law."""
        return math.isfinite(self.measured) and (
            abs(self.measured - self.expected) <= self.tolerance
        )

    @property
    def rejects_rival(self) -> bool:
        """The rival, if any, is outside the tolerance and at least 5 standard errors away."""
        if self.rival is None:
            return True
        distance = abs(self.measured - self.rival)
        far_enough = REJECTION_IN_STANDARD_ERRORS * (self.standard_error or 0.0)
        return distance > self.tolerance and distance >= far_enough


def against_the_answer(measurement: Measurement) -> Measurement:
    """Mark that the rival of a measurement is what the answer's own sentence predicts.

    The evidence for a claim that is misleading or wrong needs at least one such measurement: it
    must fail on the sentence, not only support another one.

    Raises
    ------
    ValueError
        If the measurement has no rival.
    """
    if measurement.rival is None:
        raise ValueError(
            f"{measurement.quantity}: has no rival; give it the value that the answer predicts"
        )
    return replace(measurement, rival_is_the_answer=True)


Evidence = Callable[[], Sequence[Measurement]]
#: Called before each claim with its place (from 1), the number of claims and the slug.
Progress = Callable[[int, int, str], None]

_register: dict[str, Evidence] = {}


def evidence(slug: str) -> Callable[[Evidence], Evidence]:
    """Register the decorated function as the evidence for the claim `slug`.

    Raises
    ------
    EvidenceError
        If the slug has evidence already.
    """

    def decorate(function: Evidence) -> Evidence:
        if slug in _register:
            raise EvidenceError(
                f"the claim {slug!r} has evidence already, in {_origin(_register[slug])}; "
                f"give the one in {_origin(function)} another slug or merge the two"
            )
        _register[slug] = function
        return function

    return decorate


def slugs() -> list[str]:
    """Return the slugs of all claims that have evidence, in the order of the modules."""
    _load_modules()
    return list(_register)


def require(slug: str) -> None:
    """Make sure that a claim has evidence.

    Raises
    ------
    EvidenceError
        If there is no such slug.
    """
    known = slugs()
    if slug not in known:
        close = difflib.get_close_matches(slug, known, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"
        raise EvidenceError(f"no evidence for a claim {slug!r}; {hint}")


def run(slug: str) -> list[Measurement]:
    """Measure the evidence for one claim.

    Raises
    ------
    EvidenceError
        If there is no such slug, or its function returned no measurement.
    Exception
        Whatever the evidence function raises, with the slug added as a note.
    """
    require(slug)
    function = _register[slug]
    try:
        measurements = list(function())
    except Exception as error:
        error.add_note(f"raised by the evidence for the claim {slug!r}, {_origin(function)}")
        raise
    if not measurements:
        raise EvidenceError(
            f"the evidence for the claim {slug!r}, {_origin(function)}, returned no measurement; "
            "return at least one"
        )
    return measurements


def run_all(progress: Progress | None = None) -> dict[str, list[Measurement]]:
    """Measure the evidence for every claim, one after the other.

    Parameters
    ----------
    progress
        Called before each claim.
    """
    known = slugs()
    results = {}
    for place, slug in enumerate(known, start=1):
        if progress:
            progress(place, len(known), slug)
        results[slug] = run(slug)
    return results


def problems(slug: str, measurements: Sequence[Measurement]) -> list[str]:
    """Return in words what keeps these measurements from proving the claim; empty if nothing."""
    found = []
    for m in measurements:
        if not m.supports:
            found.append(
                f"{slug}: {m.quantity} measured {m.measured:.6g}, the right statement says "
                f"{m.expected:.6g} within {m.tolerance:.3g} ({m.reason})"
            )
        if not m.rejects_rival:
            found.append(
                f"{slug}: {m.quantity} measured {m.measured:.6g}, too close to the rival "
                f"{m.rival:.6g} to reject it (tolerance {m.tolerance:.3g}, "
                f"standard error {m.standard_error})"
            )
    if all(m.rival is None for m in measurements):
        found.append(f"{slug}: no measurement has a rival; add one that could refute the claim")
    return found


def _load_modules() -> None:
    package = importlib.import_module("scaling_book.evidence")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name != "__main__":
            importlib.import_module(f"{package.__name__}.{module.name}")


def _origin(function: Evidence) -> str:
    return f"{function.__module__}.{function.__qualname__}"
