"""What a GPU does with attention, in ten minutes: a record for readers who have one.

``python -m scaling_book.lab.accelerator`` writes ``accelerator.json`` into the working directory:
from which q and k on low precision breaks each path to attention, whether PyTorch's back ends pass
`check_attention` on the device, what trainings do with and without the factor, and the ratio of
times. Each part has a share of the minutes; what an earlier part leaves over goes to those that
follow. The file is written anew after each job. The same command goes on where it was stopped.

Try it without a GPU: ``--device cpu --quick`` takes some seconds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch

from attention_scaling import CONFORMANCE_KINDS, explicit_attention
from scaling_book.lab.accelerator_paths import (
    BACK_ENDS,
    WRITTEN_OUT,
    Attention,
    DeviceLostError,
    must_answer,
    precision,
)
from scaling_book.lab.accelerator_record import Job, collect, find_device, versions
from scaling_book.lab.accelerator_trials import (
    agreement,
    conformance,
    mistakes,
    speed,
    training,
    workload,
)

__all__ = ["FULL", "QUICK", "SHARES", "Setting", "plan", "summary"]

COMMAND = "python -m scaling_book.lab.accelerator"
#: The parts in their order, and the share of the time that each may use.
SHARES: Mapping[str, float] = {
    "precision": 0.15,
    "conformance": 0.35,
    "training": 0.35,
    "speed": 0.15,
}


@dataclass(frozen=True)
class Setting:
    """What is measured.

    Parameters
    ----------
    formats, head_dims
        Of the part on low precision; the formats are those of the part on conformance too.
    kinds, examples
        As for `check_attention`, for each format and back end.
    model, steps, rates, seeds
        Of the trainings: what differs from the lab's defaults, and what is combined with both
        scales and the formats of the scores.
    lengths, heads, repetitions
        Of the comparison of speed, in each of `speed_formats`, with d_k = 64.
    """

    formats: tuple[str, ...] = ("float16", "bfloat16", "float32")
    head_dims: tuple[int, ...] = (64, 128, 512)
    kinds: tuple[str, ...] = tuple(CONFORMANCE_KINDS)
    examples: int = 10
    model: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 100
    rates: tuple[float, ...] = (1e-3, 1e-2)
    seeds: tuple[int, ...] = (0, 1, 2)
    speed_formats: tuple[str, ...] = ("float16", "float32")
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)
    heads: int = 8
    repetitions: int = 7


FULL = Setting()
#: Some of everything, to see that the script works.
QUICK = Setting(
    formats=("float16", "float32"),
    head_dims=(64,),
    kinds=("plain", "boolean mask", "causal"),
    examples=3,
    model={"layers": 1, "width": 32, "head_dim": 16, "batch": 4},
    steps=12,
    rates=(1e-3,),
    seeds=(0,),
    speed_formats=("float32",),
    lengths=(64, 128),
    heads=2,
    repetitions=3,
)


def plan(
    setting: Setting,
    device: str,
    model: Mapping[str, Any],
    back_ends: Mapping[str, Attention] = BACK_ENDS,
) -> dict[str, list[Job]]:
    """Return the jobs of each part, the most telling first.

    Parameters
    ----------
    model
        What differs from the lab's defaults in the trainings, the workload included.
    back_ends
        What is put on trial.
    """

    def job(function: Callable[..., Any], key: dict[str, Any], **options: Any) -> Job:
        return Job(key, partial(function, job=key, device=device, **options))

    paths = {**back_ends, **WRITTEN_OUT}
    tried = {"explicit_attention": explicit_attention, **back_ends}
    config = {**model, "steps": setting.steps}
    return {
        "precision": [
            job(precision, {"format": fmt, "head_dim": d, "path": name}, attend=path)
            for fmt in setting.formats
            for d in setting.head_dims
            for name, path in paths.items()
        ],
        "conformance": [
            job(
                conformance,
                {"back_end": name, "format": fmt},
                attend=path,
                kinds=setting.kinds,
                examples=setting.examples,
            )
            for name, path in tried.items()
            for fmt in setting.formats
        ],
        "training": [
            *(job(agreement, {"scale": scale}, config=model) for scale in ("sqrt", "none")),
            *(
                job(
                    training,
                    {"scores": scores, "rate": rate, "seed": seed, "scale": scale},
                    config=config,
                )
                for rate in setting.rates
                for seed in setting.seeds
                for scores in ("float16", "bfloat16", "float32")
                for scale in ("none", "sqrt")
            ),
        ],
        "speed": [
            job(
                speed,
                {"format": fmt, "length": length, "back_end": name},
                attend=path,
                heads=setting.heads,
                head_dim=64,
                repetitions=setting.repetitions,
            )
            for fmt in setting.speed_formats
            for length in setting.lengths
            for name, path in back_ends.items()
        ],
    }


# ------------------------------------------------------------------------------- the command line
def summary(record: Mapping[str, Any]) -> list[str]:
    """What stands out, a line each; what was refused in the same words is one line."""
    lines, others = [], dict[str, int]()
    for part, rows in record["parts"].items():
        for row in rows:
            about = ", ".join(f"{name} {value}" for name, value in row["job"].items())
            if row["status"] == "done":
                lines.append(f"{part}, {about}: {IN_WORDS[part](row['result'])}")
            else:
                about = row["job"].get("path", row["job"].get("back_end", about))
                line = f"{part}, {about}: {row['status']}, {row['reason']}"
                others[line] = others.get(line, 0) + 1
    return lines + [f"{line} ({number} jobs)" for line, number in others.items()]


def precision_in_words(result: Mapping[str, Any]) -> str:
    """Where it breaks, and what was predicted if it is not there."""
    smallest, predicted = result["smallest_rms"], result.get("predicted_rms")
    words = "never breaks" if smallest is None else f"breaks at rms {smallest:.4g}"
    if result.get("as_predicted", True):
        return words
    return f"{words}, predicted: {'never' if predicted is None else f'{predicted:.4g}'}"


def training_in_words(result: Mapping[str, Any]) -> str:
    """Whether the device agrees with the CPU, or how a training ended."""
    if "within" in result:
        return f"the first losses {'agree' if result['within'] else 'DISAGREE'} with the CPU's"
    found = ", ".join(f"{name} at step {step}" for name, step in result["nonfinite"].items())
    return f"last loss {result['last']}, not finite: {found or 'nothing'}"


IN_WORDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "precision": precision_in_words,
    "conformance": lambda result: ", ".join(mistakes(result)) or "no mistake found",
    "training": training_in_words,
    "speed": lambda result: "{median:.3g} times as fast as written out".format(
        **result["written_out_over_back_end"]
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda", help="of torch; cuda by default")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all parts together")
    parser.add_argument("--out", type=Path, default=Path("accelerator.json"), help="the record")
    parser.add_argument("--quick", action="store_true", help="some of everything, in seconds")
    parser.add_argument("--retry", action="store_true", help="do again what failed")
    options = parser.parse_args(arguments)
    if not options.minutes > 0:
        parser.error(f"--minutes must be positive, got {options.minutes}")
    try:
        device = find_device(options.device)
    except ValueError as error:
        parser.error(str(error))
    torch.set_float32_matmul_precision("highest")  # no TF32: it would not be float32
    setting = QUICK if options.quick else FULL
    task, reason = workload()
    header = {
        "provenance": {
            "command": COMMAND + " --quick" * options.quick,
            "date": date.today().isoformat(),
            "device": device,
            **versions(),
        },
        "setting": {**asdict(setting), "workload": task, "workload_because": reason},
    }
    jobs = plan(setting, options.device, {**setting.model, **task})
    try:
        record = collect(
            jobs,
            SHARES,
            header,
            options.out,
            minutes=options.minutes,
            retry=options.retry,
            alive=partial(must_answer, torch.device(options.device)),
            say=say,
        )
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        say(f"Stopped. The same command goes on with {options.out}.")
        return 130
    except DeviceLostError as error:
        say(f"The device no longer answers ({error}). The same command goes on with the rest.")
        return 1
    for line in summary(record):
        say(line)
    left = sum(record["open"].values())
    say(
        f"{options.out}: "
        + ("complete" if not left else f"{left} jobs are left; the same command goes on")
    )
    return 0


def say(line: str) -> None:
    """Print at once."""
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
