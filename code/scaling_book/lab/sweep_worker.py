"""One run of a sweep, in the process that does it: alone, on one thread, errors as data."""

from __future__ import annotations

import json
import os
import platform
import random
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scaling_book.lab.sweep_records import checked_json

__all__ = ["Run", "attempt"]

Run = Callable[[Mapping[str, Any]], dict[str, Any]]

_one_run = threading.RLock()  # a run may itself do a sweep
_followed: set[int] = set()


def _follow(parent: int) -> None:
    """End this process soon after `parent`, if that one started it: nobody reads its result."""
    if os.getppid() != parent or parent in _followed:
        return
    _followed.add(parent)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _alone(key: str) -> Iterator[None]:
    """One run in a process, one thread, random states from the key; all as before at the end.

    PyTorch's and NumPy's global generators belong to the process. Two runs in two threads of it
    would disturb each other, so the second waits.
    """
    with _one_run, torch.random.fork_rng(devices=[]):
        threads, state, numpy_state = (
            torch.get_num_threads(),
            random.getstate(),
            np.random.get_state(),
        )
        seed = int(key, 16)
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            random.setstate(state)
            np.random.set_state(numpy_state)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def attempt(run: Run, config_text: str, key: str, caller: int) -> dict[str, Any]:
    """Run one config. What happens comes back as data: an error must not stop the others."""
    _follow(caller)
    outcome: dict[str, Any] = {"key": key, "result": None, "error": None}
    with _alone(key):
        started, clock = datetime.now(UTC), time.perf_counter()
        try:
            result = run(json.loads(config_text))
            if not isinstance(result, Mapping):
                raise TypeError(f"a run must return a dict, not {type(result).__name__}")
            outcome["result"] = checked_json(result, "result")
        except (Exception, SystemExit) as error:
            outcome["error"] = f"{type(error).__name__}: {error}".partition("\n")[0]
            outcome["trace"] = traceback.format_exc()
        seconds = time.perf_counter() - clock
    outcome["provenance"] = {
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        },
    }
    return outcome
