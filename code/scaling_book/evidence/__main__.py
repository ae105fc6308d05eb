"""Measure the evidence: ``python -m scaling_book.evidence [slug …] [--json FILE]``.

The exit status is 0 when every measurement supports its law and rejects its rival, 1 when one
does not, 2 for a slug that does not exist.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from scaling_book.evidence.core import EvidenceError, Measurement, problems, run, slugs


def table(measurements: list[Measurement]) -> str:
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
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(f"  {line}" for line in lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m scaling_book.evidence",
        description="Measure the evidence behind the claims; without a slug, behind all of them.",
    )
    parser.add_argument("slug", nargs="*", help="measure these claims only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements to FILE")
    options = parser.parse_args(arguments)

    wanted = list(dict.fromkeys(options.slug)) or slugs()
    results: dict[str, list[Measurement]] = {}
    found: list[str] = []
    for place, slug in enumerate(wanted, start=1):
        print(f"[{place}/{len(wanted)}] {slug}", end="", flush=True)
        start = time.perf_counter()
        try:
            results[slug] = run(slug)
        except EvidenceError as error:
            print()
            print(error, file=sys.stderr)
            return 2
        print(f"  ({time.perf_counter() - start:.1f} s)\n{table(results[slug])}", flush=True)
        found += problems(slug, results[slug])
    if options.json:
        content = {slug: [asdict(m) for m in rows] for slug, rows in results.items()}
        options.json.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf8")
    if found:
        print(f"\n{len(found)} measurement(s) prove nothing:", *found, sep="\n", file=sys.stderr)
        return 1
    print(f"\nAll {sum(map(len, results.values()))} measurements support the right statements.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
