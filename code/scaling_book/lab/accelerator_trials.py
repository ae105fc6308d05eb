"""What is tried on a device: PyTorch's back ends, trainings of the small GPT, and speed.

Each function here is one job of `scaling_book.lab.accelerator`. It calls `check` often, which
raises where the time is up, and what it puts into `progress` is kept then.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad

from attention_scaling import ConformanceReport, check_attention, default_scale, float_format
from scaling_book.lab.accelerator_paths import (
    WRITTEN_OUT,
    Attention,
    Check,
    RefusedError,
    Result,
    first_line,
    must_answer,
    number,
    ordinary,
    synchronise,
)
from scaling_book.lab.corpus import read_corpus
from scaling_book.lab.small_gpt import SmallGPT
from scaling_book.lab.training import complete, train

__all__ = ["agreement", "conformance", "mistakes", "speed", "training", "workload"]

BLOCK_SECONDS = 0.02  # calls are timed together until they take about so long
FIRST = 10  # steps that are compared with the CPU's
DRAWS = 3  # of perturbed trainings


def conformance(
    check: Check,
    progress: Result,
    *,
    attend: Attention,
    job: Mapping[str, Any],
    device: str,
    kinds: Sequence[str],
    examples: int,
) -> Result:
    """Try a back end on the kinds of mistakes of `check_attention`, in one format.

    Parameters
    ----------
    progress
        The kinds that were tried go here one by one, so that they are kept when the time is up.
    kinds, examples
        As for `check_attention`.

    Raises
    ------
    RefusedError
        If the back end declines ordinary inputs of the format, or every example.
    """
    dtype = float_format(job["format"]).dtype
    attention = moved(attend, torch.device(device), check)
    attention(*ordinary(job["format"], (1, 2, 8, 16)))  # refused for all, with the full reason
    tried = progress.setdefault("kinds", {})
    for kind in kinds:
        if kind in tried:
            continue
        try:
            report = check_attention(attention, kinds=[kind], dtypes=dtype, examples=examples)
        except ValueError as error:  # not one plain example was computed
            raise (
                error.__cause__ if isinstance(error.__cause__, RefusedError) else error
            ) from None
        tried[kind] = outcome(report, kind)
    if not any(row.get("right") for row in tried.values()) and not mistakes(progress):
        raise RefusedError("no example of any kind was computed")
    return progress


def outcome(report: ConformanceReport, kind: str) -> Result:
    """What `check_attention` found of one kind: number of right examples, mistakes, refusals."""
    row: Result = {"right": report.passed.get(kind, 0)}
    if kind in report.not_applicable:
        return {"not_applicable": True}
    for finding in report.findings:
        row["exposed" if finding.hardening else "mistake"] = {
            "dtype": str(finding.dtype).removeprefix("torch."),
            "symptom": finding.symptom,
            "inputs": finding.case.describe(),
        }
    if kind in report.refused:
        row["refused"] = report.refused[kind]
    return row


def mistakes(result: Mapping[str, Any]) -> list[str]:
    """The kinds of which a back end made a mistake."""
    return [kind for kind, row in result.get("kinds", {}).items() if "mistake" in row]


def moved(attend: Attention, device: torch.device, check: Check) -> Attention:
    """The same function for tensors on the CPU: there and back, and padded if it has to be.

    Kernels want widths that are equal and multiples of 8. What is refused is tried again with
    zeros in the columns that lack, which change no product, and without the columns they add.
    """

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        check()
        q, k, v = (x.to(device) for x in (query, key, value))
        given: dict[str, Any] = {"is_causal": is_causal, "enable_gqa": enable_gqa}
        if attn_mask is not None:
            given["attn_mask"] = attn_mask.to(device)
        try:
            return attend(q, k, v, scale=scale, **given).to(query.device)
        except RuntimeError as error:
            must_answer(device)  # an exception of a lost device would count as a refusal
            width = -8 * (-max(q.shape[-1], v.shape[-1]) // 8)
            if not isinstance(error, RefusedError) or q.shape[-1] == v.shape[-1] == width:
                raise
            s = default_scale(q.shape[-1]) if scale is None else scale
            wide = (pad(x, (0, width - x.shape[-1])) for x in (q, k, v))
            out = attend(*wide, scale=s, **given)
            return out[..., : v.shape[-1]].to(query.device)

    return attention


# ----------------------------------------------------------------------------------- 3 training


def workload() -> tuple[dict[str, Any], str]:
    """What the small GPT learns here, and why: the plays, or the look-up task without them."""
    try:
        read_corpus()
    except ModuleNotFoundError as error:
        return {"workload": "lookup", "length": 16, "batch": 32}, first_line(error)
    return {"workload": "text"}, "the plays are installed"


def training(
    check: Check,
    progress: Result,
    *,
    job: Mapping[str, Any],
    device: str,
    config: Mapping[str, Any],
) -> Result:
    """Train the small GPT with or without the factor, its scores in one format.

    Returned are the `steps` done, the mean loss of the `first` and the `last` ten of them, the
    `held_out` loss after the last (text only), the first step at which something was `nonfinite`,
    the largest logit, and `tokens_per_second` of the median step, the lab's measurements included.
    """
    full = complete({**config, **job})
    ends: list[float] = []
    losses: list[float] = []

    def note(step: int, loss: float) -> None:
        check()
        ends.append(time.perf_counter())
        losses.append(loss)

    trace = train(full, device=device, progress=note)
    pause = statistics.median(np.diff(ends).tolist()) if len(ends) > 1 else float("nan")
    held_out = trace.validation.get(full["steps"])
    return {
        "steps": len(losses),
        "first": number(statistics.fmean(losses[:FIRST])),
        "last": number(statistics.fmean(losses[-FIRST:])),
        "held_out": None if held_out is None else number(held_out),
        "nonfinite": dict(trace.nonfinite),
        "largest_logit": number(float(trace.logit_max.max())),
        "tokens_per_second": number(full["batch"] * full["length"] / pause, 4),
    }


def agreement(
    check: Check,
    progress: Result,
    *,
    job: Mapping[str, Any],
    device: str,
    config: Mapping[str, Any],
) -> Result:
    r"""Compare the losses of the first steps with those of the CPU, in float32.

    The tolerance comes from trainings on the CPU whose weights all change before each step, by a
    relative ± K·u at random. u is half of float32's eps and K the length of the longest sum: a sum
    of K products, in whatever order, is the exact one of factors that are off by at most K·u. No
    order reaches that bound on every number at once, which leaves room for exp and the divisions.
    Three times the largest distance that such a training gets to, and 16 u of the loss for the mean
    over the batch, is allowed. TF32, whose u is 2⁻¹¹, does not fit into it.
    """
    full = complete({**config, **job, "steps": FIRST})
    losses = {where: first_losses(full, where, check) for where in (device, "cpu")}
    u = torch.finfo(torch.float32).eps / 2
    longest = max(4 * full["width"], full["batch"] * full["length"])
    spread = torch.zeros(FIRST)
    for draw in range(DRAWS):
        with perturbed(longest * u, draw):
            away = (first_losses(full, "cpu", check) - losses["cpu"]).abs()
        spread = torch.maximum(spread, away)
    tolerance = 3 * spread + 16 * u * losses["cpu"]
    difference = (losses[device] - losses["cpu"]).abs()
    return {
        "device": [number(x, 9) for x in losses[device].tolist()],
        "cpu": [number(x, 9) for x in losses["cpu"].tolist()],
        "tolerance": [number(x) for x in tolerance.tolist()],
        "within": bool((difference <= tolerance).all()),
    }


def first_losses(full: Mapping[str, Any], device: str, check: Check) -> torch.Tensor:
    """The losses of a short training, NaN from where it ended early."""
    loss = train(full, device=device, progress=lambda step, loss: check()).loss
    return torch.cat([loss, loss.new_full((full["steps"] - len(loss),), torch.nan)])


@contextmanager
def perturbed(size: float, seed: int) -> Iterator[None]:
    """Change all weights of each small GPT by ± `size`, relative, whenever it is called."""
    generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def change(module: torch.nn.Module, inputs: Any) -> None:
        if isinstance(module, SmallGPT):
            for weight in module.parameters():
                signs = torch.randint(2, weight.shape, generator=generator).mul(2).sub(1)
                weight.mul_(1 + size * signs.to(weight.device))

    handle = torch.nn.modules.module.register_module_forward_pre_hook(change)
    try:
        yield
    finally:
        handle.remove()


# -------------------------------------------------------------------------------------- 4 speed


def speed(
    check: Check,
    progress: Result,
    *,
    attend: Attention,
    job: Mapping[str, Any],
    device: str,
    heads: int,
    head_dim: int,
    repetitions: int,
) -> Result:
    """How many times longer attention takes written out than by a back end, side by side."""
    where = torch.device(device)
    inputs = [x.to(where) for x in ordinary(job["format"], (1, heads, job["length"], head_dim))]
    paths = (WRITTEN_OUT["after_product"], attend)
    with torch.inference_mode():
        first, second = (path(*inputs) for path in paths)  # the first call warms up
        difference = float((first - second).abs().max())
        del first, second
        calls = [
            max(1, min(200, round(BLOCK_SECONDS / seconds(p, inputs, 1, where)))) for p in paths
        ]
        ratios = []
        for _ in range(repetitions):
            check()
            times = [seconds(p, inputs, n, where) for p, n in zip(paths, calls, strict=True)]
            ratios.append(times[0] / times[1])
    low, median, high = np.quantile(ratios, (0.25, 0.5, 0.75)).tolist()
    return {
        "written_out_over_back_end": {"median": median, "low": low, "high": high},
        "repetitions": repetitions,
        "largest_difference": number(difference),
    }


def seconds(
    path: Attention, inputs: Sequence[torch.Tensor], calls: int, where: torch.device
) -> float:
    """Of one call, from so many that follow each other without waiting."""
    synchronise(where)
    start = time.perf_counter()
    for _ in range(calls):
        path(*inputs)
    synchronise(where)
    return max(time.perf_counter() - start, 1e-9) / calls
