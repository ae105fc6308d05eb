"""A record that grows job by job, within a time limit, and that the same command goes on with.

A job that has an answer is never done again: it is `done`, `refused` by what was asked, or it
`failed`. One that had to stop is `skipped`, or `partial` if it kept something; the file says why.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scaling_book.lab.accelerator_paths import (
    DeviceLostError,
    RefusedError,
    first_line,
    must_answer,
)

__all__ = ["ANSWERED", "Job", "OutOfTime", "collect", "find_device", "versions"]

#: Jobs of these statuses are not done again.
ANSWERED = ("done", "refused", "failed")
USED_UP = "the time of this part was used up; the same command goes on with it"

Run = Callable[[Callable[[], None], dict[str, Any]], dict[str, Any]]


class OutOfTime(BaseException):
    """The time of a part is used up. Not an Exception: nobody may take it for a refusal."""


@dataclass(frozen=True)
class Job:
    """One line of the record.

    Parameters
    ----------
    key
        What it is about.
    run
        Called with a function that raises `OutOfTime` when it is time to stop, and a dictionary in
        which it may keep what it has; returns the result.
    """

    key: Mapping[str, Any]
    run: Run


def collect(
    jobs: Mapping[str, Sequence[Job]],
    shares: Mapping[str, float],
    header: Mapping[str, Any],
    out: Path,
    *,
    minutes: float,
    retry: bool = False,
    alive: Callable[[], None] = lambda: None,
    now: Callable[[], float] = time.monotonic,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Do all jobs that have no answer yet, within the time, and write the record after each.

    Parameters
    ----------
    jobs
        Of each part.
    shares
        Of the time, for each part. What one leaves over goes to those that follow.
    header
        `setting` and `provenance`. A record that is there must have the same, but for the date.
    out
        The file to write, and to go on with.
    minutes
        For all parts together. Jobs that are left say so in the record.
    retry
        Also do again what failed.
    alive
        Called after a job that failed; raises `DeviceLostError` if it was the device.
    now
        A clock, in seconds.
    say
        Called with a line for each part.

    Raises
    ------
    ValueError
        If the file is there and holds something else.
    DeviceLostError
        If the device stops answering. What was recorded stays, and the job counts as failed.
    """
    record = begin(header, out, jobs)
    record["starts"].append({"date": header["provenance"]["date"], "minutes": minutes})
    start, used = now(), 0.0
    for part, own in jobs.items():
        used += shares[part]
        deadline = start + 60 * minutes * used
        rows = {canonical(row["job"]): row for row in record["parts"][part]}
        for place, job in enumerate(own):
            former = rows.get(canonical(job.key), {})
            status = former.get("status")
            if status in ANSWERED and not (retry and status == "failed"):
                continue
            row, lost = attempt(job, former.get("result", {}), deadline, alive, now)
            rows[canonical(job.key)] = row
            record["parts"][part] = [rows[k] for j in own if (k := canonical(j.key)) in rows]
            finish(record, jobs)
            write(out, record)
            if lost is not None:
                say(f"{part}: {place + 1} of {len(own)}, then the device was lost")
                raise lost
        say(f"{part}: {counted(record['parts'][part])} ({now() - start:.0f} s)")
    return record


def attempt(
    job: Job,
    progress: dict[str, Any],
    deadline: float,
    alive: Callable[[], None],
    now: Callable[[], float],
) -> tuple[dict[str, Any], DeviceLostError | None]:
    """Do one job; returns its row, and the error if the device was lost."""

    def check() -> None:
        if now() >= deadline:
            raise OutOfTime

    start, lost = now(), None
    row: dict[str, Any] = {"job": dict(job.key)}
    try:
        check()
        row |= {"status": "done", "result": job.run(check, progress)}
    except OutOfTime:
        row |= {"status": "partial" if progress else "skipped", "reason": USED_UP}
    except RefusedError as error:
        row |= {"status": "refused", "reason": str(error)}
    except torch.OutOfMemoryError:
        row |= {"status": "refused", "reason": "the device has too little memory for it"}
    except DeviceLostError as error:
        lost = error
        row |= {"status": "failed", "reason": f"the device no longer answered: {error}"}
    except Exception as error:  # a line of the record, not the end of it
        row |= {"status": "failed", "reason": first_line(error)}
        try:
            alive()
        except DeviceLostError as end:
            lost = end
    if progress and row["status"] in ("partial", "failed"):
        row["result"] = progress
    return row | {"seconds": round(now() - start, 2)}, lost


def begin(
    header: Mapping[str, Any], out: Path, jobs: Mapping[str, Sequence[Job]]
) -> dict[str, Any]:
    """Return the record that is there, or an empty one."""
    fresh = json.loads(json.dumps({**header, "starts": [], "complete": False, "open": {}}))
    fresh["parts"] = {part: [] for part in jobs}
    if not out.exists():
        return dict(fresh)
    try:
        record = json.loads(out.read_text("utf8"))
        known = {part: list(record["parts"][part]) for part in jobs}
        record |= {"parts": known, "starts": list(record["starts"])}
        differs = [
            name
            for block in ("provenance", "setting")
            for name in {**record[block], **fresh[block]}
            if name not in ("date", "command") and record[block].get(name) != fresh[block].get(name)
        ]
    except (OSError, ValueError, TypeError, KeyError):
        raise ValueError(
            f"{out} is no record of this command; name another file with --out"
        ) from None
    if differs:
        raise ValueError(
            f"{out} was made with another {', '.join(differs)}; name another file with --out"
        )
    return dict(record)


def finish(record: dict[str, Any], jobs: Mapping[str, Sequence[Job]]) -> None:
    """Note in the record what is open."""
    record["open"] = {
        part: left
        for part, own in jobs.items()
        if (left := len(own) - sum(r["status"] in ANSWERED for r in record["parts"][part]))
    }
    record["complete"] = not record["open"]


def counted(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many rows have each status, in words."""
    statuses = [row["status"] for row in rows]
    return ", ".join(f"{statuses.count(s)} {s}" for s in dict.fromkeys(statuses)) or "nothing"


def canonical(key: Mapping[str, Any]) -> str:
    """The one way to write a key."""
    return json.dumps(key, sort_keys=True)


def write(path: Path, content: Any) -> None:
    """Write a file at once or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(
        json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n", "utf8"
    )
    os.replace(draft, path)


# ------------------------------------------------------------------------------------ the device


def find_device(name: str) -> dict[str, Any]:
    """Describe a device that answers.

    Raises
    ------
    ValueError
        If it does not; says what to do.
    """
    advice = (
        "name another with --device, or try the script with --device cpu --quick; "
        "pytorch.org/get-started shows how to install PyTorch for a GPU"
    )
    try:
        device = torch.device(name)
        must_answer(device)
    except (RuntimeError, AssertionError, NotImplementedError, DeviceLostError) as error:
        reason = str(error).strip().partition("\n")[0].partition(". This could")[0]
        if name.startswith("cuda") and not torch.cuda.is_available():
            built = torch.version.cuda or torch.version.hip
            reason = (
                f"PyTorch {torch.__version__} was built for it ({built}) and sees none: is the "
                "driver installed, and does CUDA_VISIBLE_DEVICES name a device?"
                if built
                else f"PyTorch {torch.__version__} is a build without CUDA"
            )
        elif name.startswith("cuda"):
            reason += f" (there are {torch.cuda.device_count()} of them, counted from 0)"
        raise ValueError(f"the device {name!r} does not answer: {reason}; {advice}") from error
    found: dict[str, Any] = {"type": device.type, "name": platform.machine(), "capability": None}
    if device.type == "cuda":
        found["name"] = torch.cuda.get_device_name(device)
        found["capability"] = list(torch.cuda.get_device_capability(device))
    elif device.type == "cpu":
        found["capability"] = torch.backends.cpu.get_cpu_capability()
    return found


def versions() -> dict[str, Any]:
    """Of what computes, and PyTorch's switches for low precision."""
    matmul = torch.backends.cuda.matmul
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "allow_fp16_reduced_precision_reduction": matmul.allow_fp16_reduced_precision_reduction,
        "allow_bf16_reduced_precision_reduction": matmul.allow_bf16_reduced_precision_reduction,
    }
