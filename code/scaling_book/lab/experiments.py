"""The trainings of the book, as data: what happens without the factor, and when.

``python -m scaling_book.lab.experiments`` runs what is not recorded yet and writes
``data/trainings.jsonl``; stop it whenever you like, the same command goes on. What is run is
declared in `scaling_book.lab.star`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from scaling_book.lab.corpus import count_losses, read_corpus
from scaling_book.lab.star import HUNT, QUESTIONS, best_rate
from scaling_book.lab.sweep_records import Record, pack
from scaling_book.lab.training import Trace, train

__all__ = ["CORPUS", "RECORD", "record_all", "run"]

COMMAND = "python -m scaling_book.lab.experiments"
ROOT = Path(__file__).resolve().parents[3]
#: Where the record lies, whatever the working directory: in the project's folder for data.
RECORD = ROOT / "data" / "trainings.jsonl"
#: What the text is, and what models that only count lose on it.
CORPUS = ROOT / "data" / "corpus.json"
RUNS = ROOT / "_build" / "trainings"

EVERY = 10  # steps: how often statistics other than losses and gradients are kept
SNAPSHOTS = (0, 1, 10, 30, 100)  # and the last step: gradients of every matrix


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each")
    parser.add_argument("--dask", metavar="ADDRESS", help="a Dask scheduler, for example tcp://…")
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the single runs")
    parser.add_argument("--out", type=Path, default=RECORD, help="the file to write")
    options = parser.parse_args(arguments)

    records = record_all(options.runs, workers=options.workers, dask=options.dask)
    pack(records, options.out)
    corpus = read_corpus()
    unigram, bigram = count_losses(corpus)
    facts = {
        "characters": len(corpus.characters),
        "train": len(corpus.train),
        "validation": len(corpus.validation),
        "unigram": rounded(unigram, 6),
        "bigram": rounded(bigram, 6),
    }
    options.out.with_name(CORPUS.name).write_text(json.dumps(facts, indent=1) + "\n", "utf8")
    return 0


def record_all(folder: Path, *, workers: int, dask: str | None = None) -> list[Record]:
    """Run what has no record in the folder yet, and return the records of all runs.

    Parameters
    ----------
    folder
        Of the single runs.
    workers
        Processes of one thread each on this machine.
    dask
        Address of a Dask scheduler, whose workers do the runs instead.
    """
    # Readers of the record need neither joblib nor Dask.
    import joblib

    from scaling_book.lab.sweep import run_sweep

    def sweep(configs: Sequence[Mapping[str, Any]]) -> list[Record]:
        return run_sweep(run, configs, folder, workers=workers)

    with ExitStack() as cluster:
        if dask is not None:
            from distributed import Client

            cluster.enter_context(Client(dask))  # type: ignore[no-untyped-call]
            cluster.enter_context(joblib.parallel_config(backend="dask"))
        records = []
        for question, arms in QUESTIONS.items():
            print(question, file=sys.stderr)
            tuning = sweep([config for arm in arms for config in arm.tuning()])
            reported = sweep([c for arm in arms for c in arm.reported(best_rate(arm, tuning))])
            records += [*tuning, *reported]
        print("the hunt", file=sys.stderr)
        return records + sweep(HUNT)


if __name__ == "__main__":
    sys.exit(main())
