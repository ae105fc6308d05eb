"""Where the runs of a sweep are done: joblib's processes on this machine, or a Dask cluster."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import joblib
from joblib.externals.loky.process_executor import TerminatedWorkerError
from joblib.parallel import get_active_backend

__all__ = ["TerminatedWorkerError", "outcomes"]

#: How many seconds a cluster without workers is given. One that died, or one that is only started
#: when there is work, takes a while.
WORKERS_START = 60


@dataclass(frozen=True)
class _Lost:
    """A run that ended without an outcome, and why."""

    key: str
    error: BaseException


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

    patience = active.wait_for_workers_timeout and max(
        WORKERS_START, active.wait_for_workers_timeout
    )
    return Backend(client=active.client, wait_for_workers_timeout=patience, **active.submit_kwargs)


@contextmanager
def outcomes(tasks: Iterator[Any], workers: int | None, apart: bool) -> Iterator[Iterator[Any]]:
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
        ended = parallel(tasks)
        try:
            yield ended
        finally:
            with warnings.catch_warnings():
                # of runs that are given up; the sweep itself says that it was stopped
                warnings.filterwarnings("ignore", message=".*tasks", category=UserWarning)
                ended.close()
