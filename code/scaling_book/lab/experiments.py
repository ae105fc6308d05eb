"""The trainings of the book, as data: what happens without the factor, and when.

``python -m scaling_book.lab.experiments`` runs what is not recorded yet and writes
``data/trainings.jsonl``; stop it whenever you like, the same command goes on.

It is a star, not a grid: in the middle a model of six layers with d_k = 64, and from there one
change at a time. Each *arm* is one way to build and train the model. Its learning rate is the best
of a grid, by the held-out loss of runs whose seeds are not used again; then the arm is run with the
seeds that are reported. The *hunt* looks for a loss that is not finite, with rates up to ten times
the largest of the grid.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scaling_book.lab.sweep import Record, pack, run_sweep
from scaling_book.lab.training import Trace, complete, train

__all__ = ["ARMS", "HUNT", "Arm", "best_rate", "run"]

COMMAND = "python -m scaling_book.lab.experiments"
ROOT = Path(__file__).resolve().parents[3]
#: Where the record lies, whatever the working directory: in the project's folder for data.
RECORD = ROOT / "data" / "trainings.jsonl"
RUNS = ROOT / "_build" / "trainings"

RATES = (3e-4, 1e-3, 3e-3, 1e-2)
TUNING_SEEDS = (100, 101)
SEEDS = (0, 1, 2, 3, 4)
#: Tokens have a mean square of 1 without a norm if the entries of both embeddings have variance ½.
UNIT_TOKENS = {"norm": "none", "embedding_std": 0.5**0.5}
LOOKUP = {"workload": "lookup", "length": 16, "batch": 32, "steps": 200, "layers": 2}
EVERY = 10  # steps: how often statistics other than losses and gradients are kept
SNAPSHOTS = (0, 1, 10, 30, 100)  # and the last step: gradients of every matrix


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
            {**self.change, "rate": r, "seed": s} for r in self.rates for s in self.tuning_seeds
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
ARMS = (
    # Initialisation and scale in the setting that the answer names, and in that of its section 6
    *arms({"layers": (6,), "init": ("unit", "gpt2"), "scale": ("none", "sqrt", "full")}),
    *arms(
        {"layers": (2,), "init": ("unit", "gpt2"), "scale": ("none", "sqrt", "full")}, **TUNED_ONCE
    ),
    # Depth
    *arms({"layers": (12,), "init": ("unit",), "scale": ("none", "sqrt")}, **TUNED_ONCE),
    *arms({"layers": (12,), "init": ("gpt2",), "scale": ("none", "sqrt")}, **FEW_RATES),
    # More initialisations, a scale that learns, and rotary positions
    *arms(
        {"layers": (2,), "init": ("torch_linear", "xavier"), "scale": ("none", "sqrt")},
        {"layers": (2,), "init": ("t5",), "scale": ("none",)},
        {"layers": (2,), "init": ("unit",), "scale": ("learned",)},
        {"layers": (2,), "init": ("unit",), "scale": ("none", "sqrt"), "positions": ("rope",)},
        **FEW,
    ),
    # Norms
    *arms(
        {"norm": ("post_ln", "qk_norm"), "scale": ("none", "sqrt")},
        {"norm": ("pre_rms",), "scale": ("none",)},
        {**{name: (value,) for name, value in UNIT_TOKENS.items()}, "scale": ("none", "sqrt")},
        **FEW_RATES,
    ),
    # The answer's "careful tuning", and a smaller rate for W_Q and W_K alone
    *arms({"scale": ("none",), "warmup": (100,), "clip": (1.0,)}, **TUNED_ONCE),
    *arms({"scale": ("none",), "qk_rate": (0.125,)}, **FEW),
    # Narrow and wide heads: how far logits grow
    *arms(
        {"layers": (2,), "head_dim": (16, 256), "scale": ("sqrt", "full")},
        rates=(3e-3,),
        seeds=SEEDS[:3],
    ),
    # The look-up task
    *arms(
        {**{name: (value,) for name, value in LOOKUP.items()}, "scale": ("none", "sqrt", "full")},
        rates=(1e-3,),
    ),
)


def hunt() -> list[dict[str, Any]]:
    """Runs of 100 steps in search of a loss that is not finite."""
    short = {"steps": 100, "warmup": 0}
    found = [
        {**short, **norm, "layers": layers, "scale": scale, "rate": rate, "seed": seed}
        for norm in ({"norm": "pre_ln"}, UNIT_TOKENS)
        for layers in (6, 12)
        for scale in ("none", "sqrt")
        for rate in (3e-3, 1e-2, 3e-2, 1e-1)
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


def run(config: Mapping[str, Any]) -> dict[str, Any]:
    """Train one model and return what is kept of it."""
    torch.set_num_threads(1)
    return summary(train(config))


def summary(trace: Trace) -> dict[str, Any]:
    """Return what the record keeps of a training.

    Of W_Q and W_K the smallest norm of any layer is kept in windows of `EVERY` steps, so that the
    smallest of all steps is in it.
    """
    last = len(trace.loss) - 1
    smallest = trace.gradients[:, :, :2].amin(dim=(1, 2))
    return {
        "loss": rounded(trace.loss, 6),
        "gradient": rounded(trace.gradient, 4),
        "smallest_qk_gradient": [
            rounded(window.amin(), 4) for window in torch.split(smallest, EVERY)
        ],
        "logit_std": rounded(trace.logit_std.mean(dim=1)[::EVERY], 4),
        "logit_max": rounded(trace.logit_max.amax(dim=1)[::EVERY], 4),
        "entropy": rounded(trace.entropy.mean(dim=1)[::EVERY], 4),
        "top_weight": rounded(trace.top_weight.mean(dim=1)[::EVERY], 4),
        "gradients": {
            str(step): rounded(trace.gradients[step], 4)
            for step in (*SNAPSHOTS, last)
            if step <= last
        },
        "validation": {str(step): rounded(value, 6) for step, value in trace.validation.items()},
        "nonfinite": trace.nonfinite,
    }


def rounded(values: Any, digits: int) -> Any:
    """Round to significant digits; what is not finite becomes None, which JSON can hold."""
    if isinstance(values, torch.Tensor):
        values = values.tolist()
    if isinstance(values, list):
        return [rounded(value, digits) for value in values]
    return float(f"{values:.{digits}g}") if math.isfinite(values) else None


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each")
    parser.add_argument("--dask", metavar="ADDRESS", help="a Dask scheduler, for example tcp://…")
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the single runs")
    parser.add_argument("--out", type=Path, default=RECORD, help="the file to write")
    options = parser.parse_args(arguments)

    def sweep(configs: Sequence[Mapping[str, Any]]) -> list[Record]:
        return run_sweep(run, configs, options.runs, workers=options.workers)

    tuning = sweep([config for arm in ARMS for config in arm.tuning()])
    reported = sweep([c for arm in ARMS for c in arm.reported(best_rate(arm, tuning))])
    hunted = sweep(HUNT)
    pack([*tuning, *reported, *hunted], options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
