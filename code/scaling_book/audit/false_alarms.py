"""How often evidence fails though nothing is wrong: all measurements with other random numbers.

``make false-alarms``, or ``python -m scaling_book.audit.false_alarms``. A measurement may miss its
law by five predicted standard errors. Of normal estimates fewer than one in a million do so by
chance; of estimates from heavy-tailed samples more. The bound that the book states is `RATE`, for
one simulated measurement; the record shows what was found. A rival that is not rejected counts as
an alarm too, and so does an error.

Each draw takes as long as ``make claims``. What is done lies in ``_build/false-alarms`` until the
code changes, so a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

from tqdm import tqdm

from scaling_book.audit import files
from scaling_book.audit.fingerprint import ROOT, code_fingerprint
from scaling_book.evidence import Measurement, run, seeds, slugs
from scaling_book.evidence.core import REJECTION_IN_STANDARD_ERRORS

COMMAND = "make false-alarms"
RECORD = ROOT / "data" / "false_alarms.json"
#: The stated bound on the probability that a simulated measurement gives an alarm.
RATE = 1e-3
CONFIDENCE = 0.95
# With some 130 simulated measurements each, and without any alarm, so many show the stated rate.
DRAWS = 24


@dataclass(frozen=True)
class Outcome:
    """One measurement in one draw.

    Parameters
    ----------
    slug, quantity
        The claim and what is measured.
    measured
        The value.
    z
        (measured − expected) in predicted standard errors, of which the tolerance holds five. For
        exact values it is only a share of what rounding allows.
    simulated
        The measurement has a standard error.
    alarm
        The law is not supported, or the rival not rejected, or the evidence function raised.
    """

    slug: str
    quantity: str
    measured: float
    z: float
    simulated: bool
    alarm: bool


def outcome_of(slug: str, m: Measurement) -> Outcome:
    """Return what a measurement says about its own tolerance."""
    distance = m.measured - m.expected
    unit = m.tolerance / REJECTION_IN_STANDARD_ERRORS
    z = distance / unit if unit else math.copysign(math.inf, distance) if distance else 0.0
    alarm = not (m.supports and m.rejects_rival)
    return Outcome(slug, m.quantity, m.measured, z, m.standard_error is not None, alarm)


def one_draw(number: int, progress: Callable[[str], object] = lambda slug: None) -> list[Outcome]:
    """Measure all evidence with the random numbers of one draw.

    Parameters
    ----------
    number
        Which draw; 0 is the one that the book shows.
    progress
        Called with each slug before it is measured.
    """
    found = []
    with seeds.another_draw(number):
        for slug in slugs():
            progress(slug)
            try:
                found += [outcome_of(slug, m) for m in run(slug)]
            except Exception as error:  # counted, and the draw goes on
                text = f"{type(error).__name__}: {error}"
                found.append(Outcome(slug, text, math.nan, math.inf, simulated=True, alarm=True))
    return found


def upper_bound(alarms: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """Return the exact upper confidence bound on a probability (Clopper and Pearson).

    It is the p for which so few alarms are just as improbable as 1 − confidence; without any alarm
    that is 1 − (1 − confidence)^(1/n), about 3/n for 95 %.
    """
    if alarms >= trials:
        return 1.0
    low, high = alarms / trials, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if at_most(alarms, trials, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def at_most(alarms: int, trials: int, rate: float) -> float:
    """Return the binomial probability of so many alarms or fewer."""
    if rate <= 0 or rate >= 1:
        return float(rate <= 0 or alarms >= trials)
    total = 0.0
    for k in range(alarms + 1):
        choices = math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        total += math.exp(choices + k * math.log(rate) + (trials - k) * math.log1p(-rate))
    return min(total, 1.0)


def allowed(trials: int, rate: float, risk: float = 1e-3) -> int:
    """Return the number of alarms that a true `rate` exceeds with no more than the given risk."""
    alarms = 0
    while 1 - at_most(alarms, trials, rate) > risk:
        alarms += 1
    return alarms


def summary(draws: Mapping[int, Sequence[Outcome]]) -> dict[str, Any]:
    """Return what the draws say together.

    Simulated are the measurements that have a standard error and differ from draw to draw: a record
    of models has errors too, but is not drawn.
    """
    values: dict[tuple[str, str], set[float]] = {}
    for outcomes in draws.values():
        for o in outcomes:
            values.setdefault((o.slug, o.quantity), set()).add(o.measured)
    simulated = [
        (number, o)
        for number, outcomes in draws.items()
        for o in outcomes
        if o.simulated and (o.alarm or len(values[o.slug, o.quantity]) > 1)
    ]
    alarms = [(number, o) for number, outcomes in draws.items() for o in outcomes if o.alarm]
    drawn_alarms = sum(o.simulated for _, o in alarms)
    runs = len({number for number, _ in alarms})
    worst_draw, worst = max(simulated, key=lambda pair: abs(pair[1].z))
    n = len(simulated)
    return {
        "draws": len(draws),
        "claims": len({slug for slug, _ in values}),
        "measurements_of_a_run": len(values),
        "simulated_of_a_run": len({(o.slug, o.quantity) for _, o in simulated}),
        "simulated": n,
        "alarms": drawn_alarms,
        "rate_upper_bound": upper_bound(drawn_alarms, n),
        "runs_with_alarm": runs,
        "confidence": CONFIDENCE,
        "share_beyond_2": sum(abs(o.z) > 2 for _, o in simulated) / n,
        "share_beyond_3": sum(abs(o.z) > 3 for _, o in simulated) / n,
        "worst": {"draw": worst_draw, **_plain(worst)},
        "all_alarms": [{"draw": number, **_plain(o)} for number, o in alarms],
    }


def calibration(draws: Iterable[Sequence[Outcome]]) -> list[dict[str, Any]]:
    """Return for each simulated measurement the mean and the root mean square of z, worst first.

    A tolerance that is derived rightly gives 0 and 1, within √(1/n) and √(1/2n) of n draws.
    """
    z: dict[tuple[str, str], list[float]] = {}
    for outcomes in draws:
        for o in outcomes:
            if o.simulated and math.isfinite(o.z):
                z.setdefault((o.slug, o.quantity), []).append(o.z)
    rows = []
    for (slug, quantity), values in z.items():
        if len(set(values)) > 1:
            mean = sum(values) / len(values)
            size = math.sqrt(sum(x * x for x in values) / len(values))
            rounded = [round(x, 3) for x in values]
            rows.append(
                {"slug": slug, "quantity": quantity, "mean": mean, "rms": size, "z": rounded}
            )
    return sorted(rows, key=lambda row: -row["rms"])


def _plain(o: Outcome) -> dict[str, Any]:
    """The parts of an outcome that a record of it needs; JSON has no infinity."""
    z = round(o.z, 3) if math.isfinite(o.z) else str(o.z)
    return {"slug": o.slug, "quantity": o.quantity, "z": z}


def collect(numbers: Sequence[int], state: Path) -> dict[int, list[Outcome]]:
    """Measure all draws that a former run has not measured.

    Parameters
    ----------
    numbers
        The draws.
    state
        The folder for what is finished with the code as it is now.
    """
    folder = state / code_fingerprint()
    draws: dict[int, list[Outcome]] = {}
    with tqdm(numbers, unit="draw") as bar:
        for number in bar:
            file = folder / f"{number}.json"
            if not file.is_file():
                outcomes = one_draw(number, bar.set_postfix_str)
                files.write(file, [asdict(o) for o in outcomes])
            draws[number] = [Outcome(**row) for row in json.loads(file.read_text("utf8"))]
    return draws


def read_record(path: Path = RECORD) -> dict[str, Any]:
    """Read the record that the command wrote.

    Raises
    ------
    FileNotFoundError
        If there is none.
    """
    return files.read(path, COMMAND)


def problems(record: Mapping[str, Any], known: Iterable[str]) -> list[str]:
    """Return in words what a record does not show of what the book states; empty if nothing.

    Parameters
    ----------
    record
        As `read_record` returns it.
    known
        All claims with evidence.
    """
    found = []
    s = record["summary"]
    if s["rate_upper_bound"] > RATE:
        found.append(f"rate_upper_bound is {s['rate_upper_bound']:.2g}, the book states {RATE:g}")
    missing = sorted(set(known) - set(record["claims"]))
    if missing:
        found.append(f"not among the claims measured: {', '.join(missing)}; run `{COMMAND}`")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m scaling_book.audit.false_alarms",
        description=(__doc__ or "").split("\n")[0],
    )
    parser.add_argument("--draws", type=int, default=DRAWS, help=f"how many ({DRAWS})")
    parser.add_argument("--out", type=Path, default=RECORD, help="the file to write")
    parser.add_argument("--state", type=Path, default=ROOT / "_build" / "false-alarms")
    options = parser.parse_args(arguments)
    fingerprint = code_fingerprint()
    draws = collect(range(1, options.draws + 1), options.state)
    record: dict[str, Any] = {
        "provenance": {
            "command": COMMAND,
            "date": date.today().isoformat(),
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("torch", "numpy")},
        },
        "fingerprint": fingerprint,
        "stated": {"rate": RATE},
        "claims": slugs(),
        "summary": summary(draws),
        "measurements": calibration(draws.values()),
    }
    files.write(options.out, record)
    for name, value in record["summary"].items():
        print(f"{name}: {value}")
    wrong = problems(record, slugs())
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
