"""The trainings of the book, as data: a star of arms, and a hunt for a loss that is not finite.

In the middle of the star stands a model of six layers with d_k = 64, and from there one thing or
two are changed at a time. Each *arm* is one way to build and train the model. Its learning rate is
the best of a grid, by the held-out loss of runs whose seeds are not used again; then the arm is run
with the seeds that are reported. The *hunt* has no warm-up, and rates up to ten times the largest
of the grid.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scaling_book.lab.sweep_records import Record
from scaling_book.lab.training import complete

__all__ = ["ARMS", "HUNT", "QUESTIONS", "Arm", "best_rate", "final_loss"]

RATES = (3e-4, 1e-3, 3e-3, 1e-2)
TUNING_SEEDS = (100, 101)
SEEDS = (0, 1, 2, 3, 4)
#: Tokens have a mean square of 1 without a norm if the entries of both embeddings have variance ½.
UNIT_TOKENS = {"norm": "none", "embedding_std": 0.5**0.5}
LOOKUP = {"workload": "lookup", "length": 16, "batch": 32, "steps": 200, "layers": 2}


@dataclass(frozen=True)
class Arm:
    """One way to build and train a model.

    Parameters
    ----------
    change
        What differs from `scaling_book.lab.training.DEFAULTS`.
    rates
        The learning rates to choose from.
    tuning_seeds, seeds
        Of the runs that choose, and of those that are reported.
    """

    change: Mapping[str, Any]
    rates: tuple[float, ...] = RATES
    tuning_seeds: tuple[int, ...] = TUNING_SEEDS
    seeds: tuple[int, ...] = SEEDS

    def tuning(self) -> list[dict[str, Any]]:
        """The runs that choose the learning rate; none where there is no choice."""
        if len(self.rates) == 1:
            return []
        return [
            complete({**self.change, "rate": rate, "seed": seed})
            for rate in self.rates
            for seed in self.tuning_seeds
        ]

    def reported(self, rate: float) -> list[dict[str, Any]]:
        """The runs that are reported, at the rate that was chosen."""
        return [complete({**self.change, "rate": rate, "seed": seed}) for seed in self.seeds]


def arms(*changes: Mapping[str, Iterable[Any]], **options: Any) -> list[Arm]:
    """Arms of all combinations of the values in each of `changes`."""
    return [
        Arm(dict(zip(change, values, strict=True)), **options)
        for change in changes
        for values in itertools.product(*change.values())
    ]


TUNED_ONCE: dict[str, Any] = {"tuning_seeds": TUNING_SEEDS[:1]}
FEW: dict[str, Any] = {**TUNED_ONCE, "seeds": SEEDS[:3]}
FEW_RATES: dict[str, Any] = {**FEW, "rates": RATES[1:3]}
#: The arms by what they are there to answer, the most important first.
QUESTIONS: Mapping[str, tuple[Arm, ...]] = {
    "initialisation and scale, six layers": (
        *arms({"layers": (6,), "init": ("unit", "gpt2"), "scale": ("none", "sqrt", "full")}),
    ),
    "the answer's careful tuning, and a smaller rate for W_Q and W_K alone": (
        *arms({"scale": ("none",), "warmup": (100,), "clip": (1.0,)}, **TUNED_ONCE),
        *arms({"scale": ("none",), "qk_rate": (0.125,)}, **FEW),
    ),
    "twelve layers": (
        *arms({"layers": (12,), "init": ("unit",), "scale": ("none", "sqrt")}, **TUNED_ONCE),
        *arms({"layers": (12,), "init": ("gpt2",), "scale": ("none", "sqrt")}, **FEW_RATES),
    ),
    "two layers, as in the answer's section 6": (
        *arms(
            {"layers": (2,), "init": ("unit", "gpt2"), "scale": ("none", "sqrt", "full")},
            **TUNED_ONCE,
        ),
    ),
    "norms": (
        *arms(
            {"norm": ("post_ln", "qk_norm"), "scale": ("none", "sqrt")},
            {**{name: (value,) for name, value in UNIT_TOKENS.items()}, "scale": ("none", "sqrt")},
            **FEW_RATES,
        ),
    ),
    "PyTorch's initialisation, T5's, and a scale that learns": (
        *arms(
            {"layers": (2,), "init": ("torch_linear",), "scale": ("none", "sqrt")},
            {"layers": (2,), "init": ("t5",), "scale": ("none",)},
            {"layers": (2,), "init": ("unit",), "scale": ("learned",)},
            **FEW,
        ),
    ),
    "narrow and wide heads": (
        *arms(
            {"layers": (2,), "head_dim": (16, 256), "scale": ("sqrt", "full")},
            rates=(3e-3,),
            seeds=SEEDS[:3],
        ),
    ),
    "the look-up task": (
        *arms(
            {
                **{name: (value,) for name, value in LOOKUP.items()},
                "scale": ("none", "sqrt", "full"),
            },
            rates=(1e-3,),
        ),
    ),
}
ARMS = tuple(arm for group in QUESTIONS.values() for arm in group)


def hunt() -> list[dict[str, Any]]:
    """Runs of 100 steps in search of a loss that is not finite."""
    short = {"steps": 100, "warmup": 0}
    found = [
        {**short, **norm, "layers": layers, "scale": scale, "rate": rate, "seed": seed}
        for norm in ({"norm": "pre_ln"}, UNIT_TOKENS)
        for layers in (6, 12)
        for scale in ("none", "sqrt")
        for rate in (1e-2, 3e-2, 1e-1)
        for seed in ((0, 1) if layers == 6 else (0,))
    ]
    found += [
        {**short, **change, "scale": scale, "seed": seed}
        for change in (
            {"optimiser": "sgd", "rate": 0.1},
            {"optimiser": "sgd", "rate": 1.0},
            {"scores": "float16", "rate": 3e-3},
            {"scores": "float16", "rate": 1e-2},
        )
        for scale in ("none", "sqrt")
        for seed in (0, 1)
    ]
    return [complete(config) for config in found]


HUNT = tuple(hunt())


def best_rate(arm: Arm, records: Iterable[Record]) -> float:
    """The rate with the smallest mean held-out loss at the end of the tuning runs.

    A run that ended before its last step counts as infinite.
    """
    if len(arm.rates) == 1:
        return arm.rates[0]
    losses: dict[float, list[float]] = {rate: [] for rate in arm.rates}
    wanted = arm.tuning()
    for record in records:
        if record["config"] in wanted:
            losses[record["config"]["rate"]].append(final_loss(record))
    return min(losses, key=lambda rate: sum(losses[rate]) / len(losses[rate]))


def final_loss(record: Record) -> float:
    """The held-out loss after the last step; infinite if the run did not get there."""
    value = record["result"]["validation"].get(str(record["config"]["steps"]))
    return math.inf if value is None else value
