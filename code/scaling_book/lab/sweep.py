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
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
from joblib.externals.loky.process_executor import TerminatedWorkerError
from joblib.parallel import get_active_backend
from tqdm import tqdm

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

AGAIN = "run the same command again: it does only what is missing"
WORKERS_START = 60  # seconds
DIED = "the process that ran it died, twice: killed, out of memory, or crashed"


@dataclass(frozen=True)
class Failure:
    """A run without a result: its config, and the traceback or what else is known."""

    config: dict[str, Any]
    error: str

    def __str__(self) -> str:
        return f"{canonical(self.config)}: {self.error.strip().splitlines()[-1]}"


@dataclass(frozen=True)
class _Lost:
    """A run that ended without an outcome, and why."""

    key: str
    error: BaseException


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
        command = ["git", "-C", str(Path(__file__).parent), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout.strip()

    try:
        status = git(
            "status",
            "--porcelain",
            "--untracked-files=no",
            "--",
            git("rev-parse", "--show-toplevel") + "/code",
        )
        return {"commit": git("rev-parse", "HEAD"), "modified": bool(status)}
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


def _telling_of_deaths(active: Any) -> Any:
    """A Dask backend like `active` that gives an outcome for a run that cost workers their lives.

    Dask itself hands the run of a worker that died to another one, and gives up after a few
    deaths. It does not tell joblib, which would then wait for ever.
    """
    from distributed import KilledWorker

    class Backend(type(active)):  # type: ignore[misc]
        def submit(self, func: Any, callback: Callable[[Any], Any]) -> Any:
            future = super().submit(func, callback)
            ((_, _, named),) = func.items

            def report(done: Any) -> None:
                if (error := done.exception()) is not None:
                    callback(_Lost(named["key"], error))

            future.add_done_callback(report)
            return future

        def retrieve_result_callback(self, out: Any) -> Any:
            if not isinstance(out, _Lost):
                return super().retrieve_result_callback(out)
            if isinstance(out.error, KilledWorker):
                return [{"key": out.key, "died": True}]
            raise out.error

        def effective_n_jobs(self, n_jobs: int = 1) -> int:
            # With one, joblib would do the run in the process that calls.
            return max(2, found) if (found := super().effective_n_jobs(n_jobs)) else 0

    # A worker that died, or one of a cluster that grows when needed, takes a while to start.
    patience = active.wait_for_workers_timeout and max(
        WORKERS_START, active.wait_for_workers_timeout
    )
    return Backend(client=active.client, wait_for_workers_timeout=patience, **active.submit_kwargs)


@contextmanager
def _outcomes(tasks: Iterator[Any], workers: int | None, apart: bool) -> Iterator[Iterator[Any]]:
    """What the tasks return, as they end: on the configured backend, else on local processes.

    One run at a time goes to each worker: what has been handed out is what a dead one can lose.
    `apart`: not in this process, whatever the number of workers.
    """
    active, configured = get_active_backend()
    backend: dict[str, Any] = {}
    if type(active).__name__ == "DaskDistributedBackend":
        backend = {"backend": _telling_of_deaths(active)}
    elif type(active).__name__ == "LokyBackend":
        backend = {"backend": "loky", "inner_max_num_threads": 1}
    jobs = configured if workers is None else workers
    with joblib.parallel_config(**backend, n_jobs=max(2, jobs) if apart else jobs):
        parallel = joblib.Parallel(
            batch_size=1, pre_dispatch="n_jobs", return_as="generator_unordered"
        )
        with warnings.catch_warnings():
            # Joblib warns of results nobody has taken when a sweep is stopped, which says so itself
            warnings.filterwarnings("ignore", message=".*tasks", category=UserWarning)
            with closing(parallel(tasks)) as outcomes:
                yield outcomes


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

    def attempts(keys: Sequence[str], handed_out: set[str]) -> Iterator[Any]:
        for key in keys:
            handed_out.add(key)
            yield joblib.delayed(attempt)(run, canonical(wanted[key]), key=key, caller=os.getpid())

    def run_all(keys: Sequence[str], apart: bool = False) -> list[str]:
        """Run these; returns those that were in flight when a worker died."""
        handed_out: set[str] = set()
        died: set[str] = set()
        try:
            with _outcomes(attempts(keys, handed_out), workers, apart) as outcomes:
                for outcome in outcomes:
                    if "died" in outcome:
                        died.add(outcome["key"])
                    else:
                        take(outcome)
        except TerminatedWorkerError:  # all workers on this machine end with the one that died
            died |= handed_out - records.keys() - failures.keys()
        return [key for key in keys if key in died]

    def take(outcome: Mapping[str, Any]) -> None:
        key, error = outcome["key"], outcome["error"]
        if error is None:
            record = make_record(wanted[key], outcome["result"], outcome["provenance"] | extra)
            write_record(folder, record)
            records[key] = record
        else:
            failures[key] = Failure(wanted[key], error)
            _say(f"Failed: {canonical(wanted[key])}\n{error}")
        bar.update()

    suspects: list[str] = []
    try:
        while missing := [key for key in wanted if key not in {*records, *failures, *suspects}]:
            if lost := run_all(missing):
                _say(f"A worker died; {len(lost)} runs were in flight and are tried again, alone.")
                suspects += lost
        for key in suspects:
            if run_all([key], apart=True):
                failures[key] = Failure(wanted[key], DIED)
                _say(f"Failed: {failures[key]}")
                bar.update()
    except BaseException as error:
        _say(
            f"Stopped ({type(error).__name__}) with {len(records)} of {len(wanted)} runs recorded "
            f"in {folder}. To go on, {AGAIN}."
        )
        raise
    return failures
