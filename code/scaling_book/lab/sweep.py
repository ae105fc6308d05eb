"""Sweeps: one function, many configs, one record for each, on one machine or on a cluster.

A sweep is data: a list of flat configs, and the function that turns one into a result. `run_sweep`
runs those that have no record yet, so the same command begins a sweep, goes on with one that was
stopped, and reads one that is complete.

On one machine the runs share ``workers`` processes. On a Dask cluster nothing changes but the
place of the call::

    with distributed.Client(address), joblib.parallel_config(backend="dask"):
        run_sweep(run, configs, folder)

The process that calls writes the records, as the results come in, not the workers. So a cluster
needs no disk in common, one process alone changes the folder, and a lock keeps a second sweep out
of it. The price: when that process is killed, the runs then in flight are lost, at most one for
each worker. No run whose record is written is ever lost or run twice.

Each run has one thread, and starts from random states that only its config determines. So neither
the number of workers nor their order matters to a result.

A record does not know the code that made it, only its commit. When the meaning of a run changes,
change its config, for example an entry ``"version"``; then it is run anew.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
from tqdm import tqdm

from scaling_book.lab.sweep_backend import TerminatedWorkerError, outcomes
from scaling_book.lab.sweep_records import (
    Json,
    Record,
    RecordError,
    canonical,
    checked_config,
    checked_json,
    config_key,
    load_records,
    make_record,
    pack,
    read_record,
    record_path,
    remove_leftovers,
    unpack,
    write_record,
)
from scaling_book.lab.sweep_worker import Run, attempt

__all__ = [
    "Failure",
    "Json",
    "Record",
    "RecordError",
    "SweepError",
    "config_key",
    "load_records",
    "pack",
    "run_sweep",
    "unpack",
]

CODE = Path(__file__).resolve().parents[2]
AGAIN = "run the same command again: it does only what is missing"
DIED = "its process died again when it ran alone: killed, out of memory, or crashed"


@dataclass(frozen=True)
class Failure:
    """A run without a result: its config, what happened in one line, and in full if known."""

    config: dict[str, Any]
    error: str
    trace: str = ""

    def __str__(self) -> str:
        return f"{canonical(self.config)}: {self.error}"


class SweepError(RuntimeError):
    """Some runs failed, after all others were run and recorded."""

    def __init__(self, failures: Sequence[Failure], total: int, folder: Path) -> None:
        self.failures = list(failures)
        listed = "\n".join(f"  {failure}" for failure in failures)
        super().__init__(
            f"{len(failures)} of {total} runs failed:\n{listed}\n"
            f"The others are recorded in {folder}. When the cause is gone, {AGAIN}."
        )


def _commit() -> dict[str, Any]:
    """The commit of the code that runs, and whether the code differs from it."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(CODE), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", ".")
        return {"commit": git("rev-parse", "HEAD"), "modified": bool(changed)}
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "modified": None}


def _say(text: str) -> None:
    tqdm.write(text, file=sys.stderr)


@contextmanager
def _only_sweep_in(folder: Path) -> Iterator[None]:
    """Keep other sweeps out of the folder; the system ends the lock with the process."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        yield
        return
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(
                f"another sweep is writing into {folder}: wait for its end, or use another folder"
            ) from None
        yield


def _existing(folder: Path, keys: Sequence[str]) -> dict[str, Record]:
    """The records there are. Damaged ones are moved aside, for their runs to be repeated."""
    if leftovers := remove_leftovers(folder):
        _say(f"Removed {leftovers} unfinished files of a sweep that was stopped.")
    records = {}
    for path in (record_path(folder, key) for key in keys):
        try:
            records[path.stem] = read_record(path)
        except FileNotFoundError:
            continue
        except RecordError as error:
            aside = path.with_name(path.name + ".damaged")
            path.replace(aside)
            _say(f"Damaged record, moved to {aside.name}; its run is repeated. {error}")
    return records


def run_sweep(
    run: Run,
    configs: Sequence[Mapping[str, Json]],
    folder: Path,
    *,
    workers: int | None = 1,
    provenance: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> list[Record]:
    """Run all configs that have no valid record yet, and return the records of all.

    Parameters
    ----------
    run
        From a config to a result, a mapping that JSON can hold. It must be importable by the
        workers, so defined at the top level of a module.
    configs
        Flat mappings. One that is named twice is run once.
    folder
        Where the records lie; it is made if need be. It may hold those of other sweeps.
    workers
        Processes on this machine; 1 is this process. None: as `joblib.parallel_config` says. On a
        Dask cluster its size counts, whatever is given here.
    provenance
        What to note in the new records besides versions, commit, machine, time and duration.
    progress
        Whether to show a progress bar on stderr.

    Returns
    -------
    list
        One record for each config, in the order of the configs.

    Raises
    ------
    SweepError
        If runs failed; all others have been run and recorded.
    """
    wanted = {config_key(config): checked_config(config) for config in configs}
    extra = checked_json(_commit() | dict(provenance or {}), "provenance")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with _only_sweep_in(folder):
        records = _existing(folder, list(wanted))
        with tqdm(total=len(wanted), initial=len(records), unit="run", disable=not progress) as bar:
            failures = _run_missing(run, wanted, records, folder, workers, extra, bar)
    if failures:
        raise SweepError([failures[key] for key in wanted if key in failures], len(wanted), folder)
    return [records[config_key(config)] for config in configs]


def _run_missing(
    run: Run,
    wanted: Mapping[str, dict[str, Any]],
    records: dict[str, Record],
    folder: Path,
    workers: int | None,
    extra: Mapping[str, Any],
    bar: Any,
) -> dict[str, Failure]:
    """Add what is missing to `records` and to the folder; returns the failures."""
    failures: dict[str, Failure] = {}
    deaths = dict.fromkeys(wanted, 0)  # around each run: it may have caused them, or not

    def attempts(keys: Sequence[str], handed_out: set[str]) -> Iterator[Any]:
        for key in keys:
            handed_out.add(key)
            yield joblib.delayed(attempt)(run, canonical(wanted[key]), key=key, caller=os.getpid())

    def run_all(keys: Sequence[str], apart: bool = False) -> list[str]:
        """Run these; returns those that were in flight when a worker died."""
        handed_out: set[str] = set()
        died: set[str] = set()
        try:
            with outcomes(attempts(keys, handed_out), workers, apart) as ended:
                for outcome in ended:
                    if "died" in outcome:
                        died.add(outcome["key"])
                        deaths[outcome["key"]] += 1  # the cluster has tried it several times
                    else:
                        take(outcome)
        except TerminatedWorkerError:  # all workers on this machine end with the one that died
            died |= handed_out - records.keys() - failures.keys()
        return [key for key in keys if key in died]

    def take(outcome: Mapping[str, Any]) -> None:
        key = outcome["key"]
        if outcome["error"] is None:
            record = make_record(wanted[key], outcome["result"], outcome["provenance"] | extra)
            write_record(folder, record)
            records[key] = record
            bar.update()
        else:
            fail(key, outcome["error"], outcome["trace"])

    def fail(key: str, error: str, trace: str = "") -> None:
        failures[key] = Failure(wanted[key], error, trace)
        _say(f"Failed: {failures[key]}\n{trace}".rstrip())
        bar.update()

    try:
        while left := [key for key in wanted if key not in records and key not in failures]:
            if together := sorted((k for k in left if deaths[k] < 2), key=lambda k: deaths[k]):
                lost = run_all(together)
                for key in lost:
                    deaths[key] += 1
                if lost:
                    _say(f"A worker died. Runs in flight: {len(lost)}; they are tried again.")
            elif run_all(left[:1], apart=True):
                fail(left[0], DIED)
    except BaseException as error:
        _say(
            f"Stopped ({type(error).__name__}); {len(records)} of {len(wanted)} runs are recorded "
            f"in {folder}. To go on, {AGAIN}."
        )
        raise
    return failures
