"""Time and memory of three ways to compute the same attention, as the context grows.

``python -m scaling_book.lab.attention_speed`` measures `explicit_attention`, `online_attention`
and `fused_attention` of `attention_scaling` on the CPU, with one thread, and writes
``data/attention_speed.json``. A run that was interrupted goes on where it stopped.

Absolute times belong to one machine and are kept for the record; what the book shows are ratios to
explicit attention, both sides from the same process and the same minute. Time is processor time:
on an idle machine the time that one waits, on a busy one without the time spent waiting for a core.
Where a process gets its memory from changes its speed for as long as it runs, so that repetitions
in one process agree better than they should: each length is measured in several.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attention_scaling import explicit_attention, fused_attention, online_attention

__all__ = ["IMPLEMENTATIONS", "RECORD", "Setting", "Spread", "ratios_to_explicit", "read_record"]

COMMAND = "python -m scaling_book.lab.attention_speed"
#: Where the record lies, whatever the working directory: in the project's folder for data.
RECORD = Path(__file__).resolve().parents[3] / "data" / "attention_speed.json"
#: The three under comparison. All return the same numbers, up to rounding.
IMPLEMENTATIONS: Mapping[str, Callable[..., torch.Tensor]] = {
    "explicit": explicit_attention,
    "online": online_attention,
    "fused": fused_attention,
}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# glibc then gives every block above 64 KiB back as soon as it is freed; by default it keeps some,
# in fragments, and the peak says more about it than about what a computation needs.
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536"}
MEBIBYTE = 2**20
PAGE = 4096  # bytes; the size of a process does not change by less
Job = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """What is measured.

    Parameters
    ----------
    lengths
        Numbers of queries, each with as many keys.
    heads, head_dim
        Of one sequence; d_k is `head_dim`.
    processes, repetitions
        Each time is measured in so many processes, so many times in each.
    memory_repetitions
        Each memory is measured in so many processes.
    """

    lengths: tuple[int, ...] = (1024, 2048, 4096, 8192)
    heads: int = 2
    head_dim: int = 64
    processes: int = 5
    repetitions: int = 2
    memory_repetitions: int = 3
    chunk_size: int = 128
    dtype: str = "float32"
    causal: bool = False
    seed: int = 2205


@dataclass(frozen=True)
class Spread:
    """The median of repeated measurements and their quartiles."""

    median: float
    low: float
    high: float


# ------------------------------------------------------------------------------------ measuring


def inputs(setting: Setting, length: int) -> list[torch.Tensor]:
    """Return query, key and value of shape (1, heads, length, head_dim)."""
    generator = torch.Generator().manual_seed(setting.seed)
    shape = (3, 1, setting.heads, length, setting.head_dim)
    dtype: torch.dtype = getattr(torch, setting.dtype)
    return list(torch.randn(shape, generator=generator).to(dtype))


def call(name: str, setting: Setting, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Compute attention by one of the implementations."""
    options = {"chunk_size": setting.chunk_size} if name == "online" else {}
    return IMPLEMENTATIONS[name](*tensors, is_causal=setting.causal, **options)


def measure_time(setting: Setting, length: int) -> dict[str, Any]:
    """Seconds of each implementation, taken in turn, so that all meet the same disturbances."""
    tensors, names = inputs(setting, length), list(IMPLEMENTATIONS)
    samples: dict[str, dict[str, list[float]]] = {
        name: {"processor": [], "wall": []} for name in names
    }
    with torch.inference_mode():
        results = {name: call(name, setting, tensors) for name in names}  # the first call warms up
        for name in names:
            torch.testing.assert_close(results[name], results["explicit"])
        del results
        for repetition in range(setting.repetitions):
            first = repetition % len(names)
            for name in names[first:] + names[:first]:
                wall, processor = time.perf_counter(), time.process_time()
                call(name, setting, tensors)
                samples[name]["processor"].append(time.process_time() - processor)
                samples[name]["wall"].append(time.perf_counter() - wall)
    return samples


def measure_memory(setting: Setting, length: int, name: str) -> int:
    """Bytes by which one call raises the peak of this process, its result included.

    A process that was larger before than it is now would hide a part of the rise. So memory is
    taken until the peak begins to move: from there on the process is as large as it ever was.
    """
    tensors = inputs(setting, length)
    with torch.inference_mode():
        call(name, setting, [t[..., :8, :] for t in tensors])
        ballast, before = [], peak_bytes()
        while peak_bytes() < before + MEBIBYTE:
            ballast.append(torch.ones(MEBIBYTE // 4))
        before = peak_bytes()
        call(name, setting, tensors)
        return max(peak_bytes() - before, PAGE)


def peak_bytes() -> int:
    """The largest size of this process so far, in bytes."""
    import resource  # not on Windows, where the record can be read but not made

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


# ---------------------------------------------------------------------------- jobs and the record


def jobs(setting: Setting) -> list[Job]:
    """All measurements, each for a process of its own."""
    found: list[Job] = [
        {"kind": "time", "length": length, "repetition": process}
        for process in range(setting.processes)
        for length in setting.lengths
    ]
    found += [
        {"kind": "memory", "length": length, "name": name, "repetition": repetition}
        for repetition in range(setting.memory_repetitions)
        for length in setting.lengths
        for name in IMPLEMENTATIONS
    ]
    return found


def do_job(setting: Setting, job: Job) -> Any:
    """Measure here and now."""
    if job["kind"] == "time":
        return measure_time(setting, job["length"])
    return measure_memory(setting, job["length"], job["name"])


def in_new_process(setting: Setting, job: Job) -> Any:
    """Measure in a process of its own with one thread."""
    task = json.dumps({"setting": asdict(setting), "job": job})
    done = subprocess.run(
        [sys.executable, "-m", "scaling_book.lab.attention_speed", "--job", task],
        env=os.environ | ONE_THREAD | (GIVE_BACK if job["kind"] == "memory" else {}),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def collect(
    setting: Setting,
    out: Path,
    *,
    measure: Callable[[Setting, Job], Any] = in_new_process,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Do all jobs that a former run has not done, and write the record.

    Parameters
    ----------
    setting
        What to measure.
    out
        The file to write; until all is measured, what is done lies beside it in ``.partial``.
    measure
        How to do a job.
    say
        Called with a line of progress for each job.

    Returns
    -------
    dict
        The record, as it was written.
    """
    partial = out.with_suffix(".partial.json")
    todo = jobs(setting)
    state: dict[str, Any] = {"setting": plain(setting), "load": load_average(), "done": []}
    if partial.exists():
        former = json.loads(partial.read_text("utf8"))
        if former["setting"] == state["setting"]:
            state = former
            say(f"{len(state['done'])} of {len(todo)} measurements are in {partial.name} already")
    done = [entry["job"] for entry in state["done"]]
    start = time.perf_counter()
    for place, job in enumerate(todo, start=1):
        if job in done:
            continue
        result = measure(setting, job)
        state["done"].append({"job": job, "result": result})
        write(partial, state)
        name = job.get("name", "all three")
        passed = time.perf_counter() - start
        say(f"[{place}/{len(todo)}] {job['kind']}, T = {job['length']}, {name} ({passed:.0f} s)")
    record = assemble(setting, state)
    write(out, record)
    partial.unlink()
    return record


def assemble(setting: Setting, state: Mapping[str, Any]) -> dict[str, Any]:
    """Put the results of all jobs in order and add where they come from."""
    results = []
    for length in setting.lengths:
        times: dict[str, dict[str, list[float]]] = {
            name: {"processor": [], "wall": []} for name in IMPLEMENTATIONS
        }
        memory: dict[str, list[int]] = {name: [] for name in IMPLEMENTATIONS}
        for entry in state["done"]:
            job = entry["job"]
            if job["length"] == length and job["kind"] == "time":
                for name, clocks in entry["result"].items():
                    for clock, seconds in clocks.items():
                        times[name][clock] += seconds
            elif job["length"] == length:
                memory[job["name"]].append(entry["result"])
        results.append({"length": length, "seconds": times, "peak_bytes": memory})
    record: dict[str, Any] = {
        "provenance": {
            "command": COMMAND,
            "date": date.today().isoformat(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "processor": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
            "threads": 1,
            "memory_environment": GIVE_BACK,
            "load_average": {"before": state["load"], "after": load_average()},
        },
        "setting": plain(setting),
        "results": results,
    }
    record["ratios_to_explicit"] = {
        quantity: {
            name: {str(length): asdict(spread) for length, spread in row.items()}
            for name, row in ratios_to_explicit(record, quantity).items()
        }
        for quantity in ("time", "memory")
    }
    return record


def plain(setting: Setting) -> dict[str, Any]:
    """Return the setting as JSON gives it back, with lists for tuples."""
    content: dict[str, Any] = json.loads(json.dumps(asdict(setting)))
    return content


def load_average() -> float | None:
    """How many processes wanted a core in the last minute; None where nobody counts."""
    return round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file at once or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n", "utf8")
    os.replace(temporary, path)


# -------------------------------------------------------------------------------------- reading


def read_record(path: Path = RECORD) -> dict[str, Any]:
    """Read the record that the command wrote.

    Raises
    ------
    FileNotFoundError
        If there is none.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; `{COMMAND}` writes it, in some minutes")
    record: dict[str, Any] = json.loads(path.read_text("utf8"))
    return record


def ratios_to_explicit(
    record: Mapping[str, Any], quantity: str = "time"
) -> dict[str, dict[int, Spread]]:
    """How many times less than explicit attention the others need.

    Parameters
    ----------
    record
        From `read_record`.
    quantity : {"time", "memory"}
        Processor time, each repetition divided by the one beside it; or the rise of the peak
        memory, every repetition by every other, since none is beside another.

    Returns
    -------
    dict
        For each implementation, explicit included, the ratio at each length. Above 1: it needs
        less than explicit attention.

    Raises
    ------
    ValueError
        If the quantity is unknown.
    """
    if quantity not in ("time", "memory"):
        raise ValueError(f"quantity must be 'time' or 'memory', got {quantity!r}")
    found: dict[str, dict[int, Spread]] = {name: {} for name in IMPLEMENTATIONS}
    for row in record["results"]:
        for name in IMPLEMENTATIONS:
            if quantity == "time":
                ratios = np.divide(*(row["seconds"][n]["processor"] for n in ("explicit", name)))
            else:
                ratios = np.divide.outer(*(row["peak_bytes"][n] for n in ("explicit", name)))
            low, median, high = np.quantile(ratios, (0.25, 0.5, 0.75)).tolist()
            found[name][row["length"]] = Spread(median, low, high)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    default = Setting()
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=RECORD, help="the file to write")
    parser.add_argument("--lengths", type=int, nargs="+", default=default.lengths)
    parser.add_argument("--heads", type=int, default=default.heads)
    parser.add_argument("--processes", type=int, default=default.processes)
    parser.add_argument("--repetitions", type=int, default=default.repetitions)
    parser.add_argument("--memory-repetitions", type=int, default=default.memory_repetitions)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.job:
        torch.set_num_threads(1)
        task = json.loads(options.job)
        content = task["setting"] | {"lengths": tuple(task["setting"]["lengths"])}
        print(json.dumps(do_job(Setting(**content), task["job"])))
        return 0
    setting = Setting(
        lengths=tuple(options.lengths),
        heads=options.heads,
        processes=options.processes,
        repetitions=options.repetitions,
        memory_repetitions=options.memory_repetitions,
    )
    record = collect(setting, options.out, say=lambda line: print(line, flush=True))
    for quantity, rows in record["ratios_to_explicit"].items():
        for name, row in rows.items():
            cells = (f"{length}: {spread['median']:.3g}" for length, spread in row.items())
            print(f"{quantity:7} {name:9}" + "   ".join(cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
