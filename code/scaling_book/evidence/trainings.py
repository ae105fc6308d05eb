"""What the recorded trainings say about the claims of sections 2, 4 and 6: counts of runs.

The record holds what happened; these functions count in how many runs it did. A count has no error
and no tolerance. How large an effect is, with its interval, is on the pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling_book.evidence.core import Measurement
from scaling_book.lab.sweep_records import Record
from scaling_book.lab.trainings import Runs, read_corpus_facts, read_trainings

Flags = Sequence[bool] | NDArray[np.bool_]


def count(quantity: str, flags: Flags, *, expected: int | None = None, rival: int) -> Measurement:
    """How many of these are true: all of them, or as many as expected."""
    total = len(flags)
    return Measurement(
        f"#{{{quantity}}}, n = {total}",
        measured=int(np.sum(flags)),
        expected=total if expected is None else expected,
        tolerance=0,
        reason="0",
        rival=rival,
    )


def none_of(quantity: str, flags: Flags) -> Measurement:
    """It happened in no run; the rival says that it happens in all."""
    return count(quantity, flags, expected=0, rival=len(flags))


def all_of(quantity: str, flags: Flags) -> Measurement:
    """It happened in every run; the rival says that it happens in none."""
    return count(quantity, flags, rival=0)


def runs(**change: Any) -> Runs:
    """The reported runs of an arm."""
    return read_trainings().of(**change)


def paired(first: Runs, second: Runs) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The held-out losses of two arms at the end, for the seeds that both have."""
    seeds = [seed for seed in first.arm.seeds if seed in second.arm.seeds]
    both = [[arm.arm.seeds.index(seed) for seed in seeds] for arm in (first, second)]
    return first.final[both[0]], second.final[both[1]]


def not_finite_within(steps: int, records: Sequence[Record]) -> list[bool]:
    """Whether the loss was not finite within so many steps, for each run."""
    dates = [record["result"]["nonfinite"].get("loss") for record in records]
    return [date is not None and date <= steps for date in dates]


def below_unigram(arm: Runs) -> Flags:
    """Whether the held-out loss ends below that of a model that only counts characters."""
    return arm.final < read_corpus_facts()["unigram"]


def jitter(arm: Runs, start: int = 100) -> NDArray[np.float64]:
    """How much the loss jumps from step to step: root mean square of L(t+1) − L(t), (seeds,).

    Batches differ, so it is not zero for a smooth training either. Arms with the same seeds see the
    same batches.
    """
    steps = np.diff(arm.series("loss")[:, start:], axis=1)
    size: NDArray[np.float64] = np.sqrt((steps**2).mean(axis=1))
    return size


def smallest_gradients(arm: Runs) -> NDArray[np.float64]:
    """The smallest norm of ∂L/∂W_Q and ∂L/∂W_K, of any layer and step, (seeds,)."""
    smallest: NDArray[np.float64] = arm.series("smallest_qk_gradient").min(axis=1)
    return smallest
