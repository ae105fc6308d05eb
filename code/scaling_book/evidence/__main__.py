"""Measure the evidence: ``python -m scaling_book.evidence [slug …] [--json FILE]``.

The exit status is 0 when every measurement supports its law and rejects its rival, 1 when one
does not or an evidence function raises an error, 2 for a slug that does not exist; then nothing is
measured.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from scaling_book.evidence.core import (
    REJECTION_IN_STANDARD_ERRORS,
    EvidenceError,
    Measurement,
    problems,
    require,
    run,
    slugs,
)


def table(measurements: Sequence[Measurement]) -> str:
    """Return the measurements as lines of a table, each marked when it fails."""
    rows = [("measured", "", "expected", "tolerance", "rival", "", "quantity")]
    for m in measurements:
        rows.append(
            (
                f"{m.measured:.5g}",
                "" if m.standard_error is None else f"± {m.standard_error:.2g}",
                f"{m.expected:.5g}",
                f"{m.tolerance:.2g}",
                "" if m.rival is None else f"{m.rival:.5g}",
                "ok" if m.supports and m.rejects_rival else "FAILS",
                f"{m.quantity}   [{m.reason}]",
            )
        )
    return _aligned(rows)


def summary(slug: str, measurements: Sequence[Measurement], seconds: float, ok: bool) -> list[str]:
    """Return the cells of one claim: what is closest to failing, and by how much it does not."""
    return [
        slug,
        str(len(measurements)) if measurements else "",
        f"{max(map(_share_of_tolerance, measurements)):.2f}" if measurements else "",
        _nearest_rival(measurements),
        f"{seconds:.1f}",
        "ok" if ok else "FAILS",
    ]


def _share_of_tolerance(m: Measurement) -> float:
    """|measured − expected| as a share of what is allowed; an exact value uses none of it."""
    if m.measured == m.expected:
        return 0.0
    distance = abs(m.measured - m.expected)
    return distance / m.tolerance if m.tolerance else math.inf


def _nearest_rival(measurements: Iterable[Measurement]) -> str:
    """How far off the rival is that is closest to not being rejected.

    In standard errors where there is one, else in tolerances; an exact value has neither.
    """
    found = []
    for m in measurements:
        if m.rival is None:
            continue
        distance = abs(m.measured - m.rival)
        needed = max(m.tolerance, REJECTION_IN_STANDARD_ERRORS * (m.standard_error or 0.0))
        if m.standard_error:
            text = f"{distance / m.standard_error:.3g} s.e."
        elif m.tolerance:
            text = f"{distance / m.tolerance:.3g} tol."
        else:
            text = "exact" if distance else "0"
        found.append((distance / needed if needed else math.copysign(math.inf, distance), text))
    return min(found)[1] if found else ""


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(f"  {line}" for line in lines)


def _write(file: Path, content: Any) -> None:
    """Write a file at once or not at all."""
    draft = file.with_name(f"{file.name}.{os.getpid()}.draft")
    draft.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf8")
    os.replace(draft, file)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m scaling_book.evidence",
        description="Measure the evidence behind the claims; without a slug, behind all of them.",
    )
    parser.add_argument("slug", nargs="*", help="measure these claims only")
    parser.add_argument(
        "--verbose", action="store_true", help="print every measurement, as for a single slug"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the measurements to FILE if none fails"
    )
    parser.add_argument(
        "--outcomes",
        type=Path,
        metavar="FILE",
        help="write to FILE for each claim why it fails, whether or not one does",
    )
    options = parser.parse_args(arguments)

    wanted = list(dict.fromkeys(options.slug)) or slugs()
    try:
        for slug in wanted:
            require(slug)
    except EvidenceError as error:
        print(error, file=sys.stderr)
        return 2
    in_detail = options.verbose or len(wanted) == 1

    results: dict[str, list[Measurement]] = {}
    outcomes: dict[str, dict[str, Any]] = {}
    rows = [["claim", "#", "|x − law|/tol.", "nearest rival", "s", ""]]
    # No bar where nobody watches: in a log or in the error text of a build it would be noise.
    with tqdm(wanted, unit="claim", leave=False, disable=None) as bar:
        for slug in bar:
            bar.set_postfix_str(slug)
            start = time.perf_counter()
            try:
                results[slug] = run(slug)
                why, raised = problems(slug, results[slug]), False
            except Exception as error:  # of any kind: the other claims are measured all the same
                why, raised = [f"{slug}: {type(error).__name__}: {error}"], True
                if in_detail:
                    bar.write(traceback.format_exc(), file=sys.stderr)
            seconds = time.perf_counter() - start
            outcomes[slug] = {"why": why, "raised": raised}
            rows.append(summary(slug, results.get(slug, []), seconds, not why))
            if in_detail:
                lines = table(results[slug]) if slug in results else "  FAILS"
                bar.write(f"{slug}  ({seconds:.1f} s)\n{lines}")
    if not in_detail:
        print(_aligned(rows))

    failed = [line for outcome in outcomes.values() for line in outcome["why"]]
    if options.outcomes:
        _write(options.outcomes, outcomes)
    if failed:
        print(f"\n{len(failed)} thing(s) keep the evidence from proving:", file=sys.stderr)
        print(*failed, sep="\n", file=sys.stderr)
        return 1
    if options.json:
        _write(options.json, {slug: [asdict(m) for m in rows] for slug, rows in results.items()})
    total = sum(map(len, results.values()))
    print(f"\nAll {total} measurements of {len(results)} claim(s) support the right statements.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
