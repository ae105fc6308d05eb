"""Read the recorded trainings: an arm's runs, and differences between arms with intervals.

The two arms of a difference have the same seeds, so the same batches and, but for W_Q and W_K, the
same initial weights; differences are taken seed by seed. Intervals are Student's, for independent
and roughly normal differences; with three to five seeds they are wide, as they should be.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling_book.lab.experiments import CORPUS, RECORD
from scaling_book.lab.star import ARMS, Arm, best_rate, final_loss
from scaling_book.lab.sweep_records import Record, config_key, unpack
from scaling_book.lab.training import complete

__all__ = [
    "Interval",
    "Runs",
    "Trainings",
    "difference",
    "interval",
    "read_corpus_facts",
    "read_trainings",
]

#: 97.5 % points of Student's distribution, by degrees of freedom.
STUDENT = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 5: 2.5706, 6: 2.4469, 7: 2.3646, 8: 2.3060}

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its 95 % confidence interval, written as ``0.27 [0.23, 0.31]``."""

    mean: float
    standard_error: float
    count: int

    @property
    def half_width(self) -> float:
        """Half of the interval's width."""
        return STUDENT[self.count - 1] * self.standard_error

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + self.half_width

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def interval(values: Sequence[float] | Array) -> Interval:
    """Return the mean of independent values with its interval.

    Raises
    ------
    ValueError
        If there are fewer than two values, or more than the table has.
    """
    x = np.asarray(values, dtype=np.float64)
    if not 2 <= len(x) <= len(STUDENT) + 1:
        raise ValueError(f"an interval needs 2 to {len(STUDENT) + 1} values, got {len(x)}")
    return Interval(float(x.mean()), float(x.std(ddof=1)) / math.sqrt(len(x)), len(x))


@dataclass(frozen=True)
class Runs:
    """The reported runs of one arm, one for each seed.

    Parameters
    ----------
    arm
        How they were built and trained.
    rate
        The learning rate that its tuning runs chose.
    records
        In the order of the arm's seeds.
    """

    arm: Arm
    rate: float
    records: tuple[Record, ...]

    @property
    def final(self) -> Array:
        """Held-out loss after the last step, (seeds,)."""
        return np.array([final_loss(record) for record in self.records])

    def series(self, name: str) -> Array:
        """One of the recorded series, such as "loss" or "logit_std", (seeds, steps)."""
        rows = [record["result"][name] for record in self.records]
        shortest = min(len(row) for row in rows)
        # None stands for what was not finite
        return np.array([row[:shortest] for row in rows], dtype=np.float64)

    def validation(self, step: int) -> Array:
        """Held-out loss after that many steps, (seeds,)."""
        return np.array([record["result"]["validation"][str(step)] for record in self.records])

    @property
    def nonfinite(self) -> int:
        """How many of the runs met a loss that was not finite."""
        return sum("loss" in record["result"]["nonfinite"] for record in self.records)


def difference(
    runs: Runs, other: Runs, of: Callable[[Runs], Array] = lambda runs: runs.final
) -> Interval:
    """The mean of `of`, the held-out loss at the end, of `runs` minus that of `other`, by seed.

    Raises
    ------
    ValueError
        If the arms have no two seeds in common.
    """
    seeds = [s for s in runs.arm.seeds if s in other.arm.seeds]
    places = [[r.arm.seeds.index(s) for s in seeds] for r in (runs, other)]
    return interval(of(runs)[places[0]] - of(other)[places[1]])


class Trainings:
    """The recorded trainings.

    Parameters
    ----------
    records
        Of the tuning runs, of the reported runs and of the hunt.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = {config_key(record["config"]): record for record in records}

    def arm(self, **change: Any) -> Arm:
        """The arm that differs from the defaults by `change`.

        Raises
        ------
        ValueError
            If there is none.
        """
        wanted = complete(change)
        for arm in ARMS:
            if complete(arm.change) == wanted:
                return arm
        known = "\n".join(str(dict(arm.change)) for arm in ARMS)
        raise ValueError(f"no arm has {change}; there are\n{known}")

    def of(self, **change: Any) -> Runs:
        """The reported runs of an arm, by what differs from the defaults."""
        arm = self.arm(**change)
        rate = best_rate(arm, self.records.values())
        return Runs(arm, rate, tuple(self.records[config_key(c)] for c in arm.reported(rate)))

    def tuning(self, **change: Any) -> dict[float, float]:
        """Mean held-out loss of an arm's tuning runs, by learning rate."""
        arm = self.arm(**change)
        found: dict[float, list[float]] = {}
        for config in arm.tuning():
            record = self.records[config_key(config)]
            found.setdefault(config["rate"], []).append(final_loss(record))
        return {rate: sum(losses) / len(losses) for rate, losses in found.items()}

    def where(self, **wanted: Any) -> list[Record]:
        """All runs, of whatever kind, whose complete configuration has these entries."""
        return [
            record
            for record in self.records.values()
            if all(record["config"][name] == value for name, value in wanted.items())
        ]


@cache
def read_trainings() -> Trainings:
    """Read ``data/trainings.jsonl``."""
    return Trainings(unpack(RECORD))


def read_corpus_facts() -> dict[str, float]:
    """Read ``data/corpus.json``: sizes of the text, and the losses of models that only count."""
    facts: dict[str, float] = json.loads(CORPUS.read_text("utf8"))
    return facts


def share_of(records: Sequence[Record], is_so: Callable[[Mapping[str, Any]], bool]) -> int:
    """How many of the runs' results have a property."""
    return sum(bool(is_so(record["result"])) for record in records)
