"""Train a small GPT and watch what the factor could change: losses, gradients, logits, weights.

A run is described by a flat dictionary of numbers and words, so that a sweep is data; `DEFAULTS`
lists them all. Two runs with the same seed see the same batches in the same order, and share every
initial weight that their settings do not touch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from scaling_book.lab.corpus import read_corpus
from scaling_book.lab.small_gpt import GPTSetting, SmallGPT

__all__ = ["DEFAULTS", "MATRICES", "WORKLOADS", "Trace", "train"]

#: Everything a run depends on. `rate` is the learning rate, `qk_rate` multiplies that of W_Q and
#: W_K, `warmup` is the number of steps over which the rate rises from 0, and `clip` the largest
#: norm of all gradients together (0: none).
DEFAULTS: Mapping[str, Any] = {
    "workload": "text",
    "steps": 300,
    "batch": 8,
    "length": 64,
    "layers": 6,
    "heads": 2,
    "head_dim": 64,
    "width": 128,
    "scale": "sqrt",
    "init": "unit",
    "norm": "pre_ln",
    "positions": "learned",
    "embedding_std": 0.02,
    "scores": "float32",
    "optimiser": "adamw",
    "rate": 1e-3,
    "qk_rate": 1.0,
    "warmup": 30,
    "clip": 0.0,
    "seed": 0,
}
#: The matrices of a block, in the order of `Trace.gradients`.
MATRICES = ("w_q", "w_k", "w_v", "w_o", "up", "down")
OPTIMISERS = ("adamw", "sgd")
IGNORED = -100  # a position whose prediction does not count, in the words of `cross_entropy`
VALIDATION_WINDOWS = 256

KEYS = 8  # of the look-up task, and as many values

Batches = Callable[[torch.Generator, int], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Trace:
    """What was seen before each step, in one place of the first dimension.

    A run ends early where its loss is no longer finite.

    Parameters
    ----------
    loss : tensor, shape (steps,)
        Mean cross-entropy of the batch, in nats.
    gradient : tensor, shape (steps,)
        Norm of all gradients together, before clipping.
    gradients : tensor, shape (steps, layers, 6)
        Norms of ∂L/∂W, for `MATRICES`.
    logit_std, logit_max, entropy, top_weight : tensors, shape (steps, layers)
        Of the logits after the scale, over the pairs that softmax sees: their standard deviation
        and largest absolute value; of rows with eight keys or more, the mean of their entropy as a
        share of its largest value, and of their largest weight.
    validation : dict of int to float
        Mean cross-entropy on windows of the held-out text, after that many steps.
    nonfinite : dict of str to int
        The first step at which a "loss", "gradient", "logit" or "weight" was not finite; a kind
        that stayed finite is not in it.
    """

    loss: torch.Tensor
    gradient: torch.Tensor
    gradients: torch.Tensor
    logit_std: torch.Tensor
    logit_max: torch.Tensor
    entropy: torch.Tensor
    top_weight: torch.Tensor
    validation: dict[int, float]
    nonfinite: dict[str, int]


def train(
    config: Mapping[str, Any],
    *,
    device: str = "cpu",
    text: str | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Trace:
    """Train one model.

    Parameters
    ----------
    config
        What differs from `DEFAULTS`.
    device
        "cpu", or another device of torch. Weights and batches are drawn on the CPU, so that they
        are the same everywhere.
    text
        A text file instead of the plays.
    progress
        Called with the number of the step and its loss.

    Raises
    ------
    ValueError
        If the configuration names something unknown.
    """
    c = complete(config)
    symbols, draw = WORKLOADS[c["workload"]](c, text)
    batches = torch.Generator().manual_seed(c["seed"] + 2**32)
    model = make_model(c, symbols).to(device)
    optimiser = make_optimiser(c, model)

    seen: dict[str, list[torch.Tensor]] = {name: [] for name in _SERIES}
    validation: dict[int, float] = {}
    nonfinite: dict[str, int] = {}
    model.watch(True)
    for step in range(c["steps"]):
        tokens, targets = (x.to(device) for x in draw(batches, c["batch"]))
        loss = cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        observe(model, loss, seen)
        find_nonfinite(step, model, seen, nonfinite)
        if progress is not None:
            progress(step, float(loss.detach()))
        if "loss" in nonfinite:
            break
        if c["clip"]:
            torch.nn.utils.clip_grad_norm_(model.parameters(), c["clip"])
        for group in optimiser.param_groups:
            group["lr"] = group["full_rate"] * min(1.0, (step + 1) / max(1, c["warmup"]))
        optimiser.step()
        if c["workload"] == "text" and (step + 1) % 100 == 0:
            validation[step + 1] = held_out_loss(model, c, text, device)
    stacked = {name: torch.stack(values).cpu() for name, values in seen.items()}
    return Trace(**stacked, validation=validation, nonfinite=nonfinite)


_SERIES = tuple(f.name for f in fields(Trace) if f.name not in ("validation", "nonfinite"))


def complete(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in the defaults, and refuse what is unknown."""
    unknown = set(config) - set(DEFAULTS)
    if unknown:
        raise ValueError(
            f"unknown settings: {', '.join(sorted(unknown))}; there are {', '.join(DEFAULTS)}"
        )
    c = {**DEFAULTS, **config}
    for name, known in (("workload", WORKLOADS), ("optimiser", OPTIMISERS)):
        if c[name] not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {c[name]!r}")
    return c


def make_model(c: Mapping[str, Any], symbols: int) -> SmallGPT:
    """Draw the model of a complete configuration."""
    names = {f.name for f in fields(GPTSetting)} - {"symbols"}
    setting = GPTSetting(symbols=symbols, **{name: c[name] for name in names})
    return SmallGPT(setting, generator=torch.Generator().manual_seed(c["seed"]))


def make_optimiser(c: Mapping[str, Any], model: SmallGPT) -> torch.optim.Optimizer:
    """AdamW with PyTorch's defaults, or SGD with momentum 0.9; W_Q and W_K have their own rate."""
    is_qk = {name: ".w_q." in name or ".w_k." in name for name, _ in model.named_parameters()}
    groups = [
        {
            "params": [p for name, p in model.named_parameters() if is_qk[name] == wanted],
            "lr": c["rate"] * factor,
            "full_rate": c["rate"] * factor,
        }
        for wanted, factor in ((True, c["qk_rate"]), (False, 1.0))
    ]
    if c["optimiser"] == "sgd":
        return torch.optim.SGD(groups, momentum=0.9)
    return torch.optim.AdamW(groups, fused=True)


def text_batches(c: Mapping[str, Any], text: str | None) -> tuple[int, Batches]:
    """Random windows of the text: predict each character from those before it."""
    corpus = read_corpus(text)
    last = len(corpus.train) - c["length"] - 1

    def draw(generator: torch.Generator, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(last, (batch,), generator=generator)
        windows = corpus.windows(starts, c["length"] + 1)
        return windows[:, :-1], windows[:, 1:]

    return len(corpus.characters), draw


def lookup_batches(c: Mapping[str, Any], text: str | None) -> tuple[int, Batches]:
    """Pairs of a key and a value, then one question for each key: predict its value.

    A pair is one symbol, 8 · key + value, and a question is the symbol 64 + key. The answer to it
    is the symbol of its pair. Only the answers count for the loss.
    """
    if c["length"] != 2 * KEYS:
        raise ValueError(f"the look-up task has length {2 * KEYS}, got {c['length']}")

    def draw(generator: torch.Generator, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        def shuffled() -> torch.Tensor:
            return torch.rand(batch, KEYS, generator=generator).argsort(dim=1)

        values = torch.randint(KEYS, (batch, KEYS), generator=generator)  # of keys 0, 1, …
        context, asked = shuffled(), shuffled()
        pairs = KEYS * context + values.gather(1, context)
        answers = KEYS * asked + values.gather(1, asked)
        tokens = torch.cat([pairs, KEYS**2 + asked], dim=1)
        return tokens, torch.cat([torch.full_like(pairs, IGNORED), answers], dim=1)

    return KEYS**2 + KEYS, draw


#: What there is to learn: (configuration, text file) → size of the vocabulary, and batches.
WORKLOADS: Mapping[str, Callable[[Mapping[str, Any], str | None], tuple[int, Batches]]] = {
    "text": text_batches,
    "lookup": lookup_batches,
}


@torch.no_grad()
def held_out_loss(model: SmallGPT, c: Mapping[str, Any], text: str | None, device: str) -> float:
    """Mean cross-entropy on the same windows of the held-out text for every run."""
    corpus = read_corpus(text)
    length = c["length"]
    starts = torch.linspace(0, len(corpus.validation) - length - 1, VALIDATION_WINDOWS).long()
    windows = corpus.windows(starts, length + 1, validation=True).to(device)
    model.watch(False)
    losses = [
        cross_entropy(model(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten())
        for part in windows.chunk(8)
    ]
    model.watch(True)
    return float(torch.stack(losses).mean())


def observe(model: SmallGPT, loss: torch.Tensor, seen: dict[str, list[torch.Tensor]]) -> None:
    """Add what this step shows to each series."""
    norms = [[gradient_of(block, name).norm() for name in MATRICES] for block in model.blocks]
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    seen["loss"].append(loss.detach())
    seen["gradient"].append(torch.stack(torch._foreach_norm(grads)).norm())
    seen["gradients"].append(torch.stack([torch.stack(row) for row in norms]))
    for name in ("logit_std", "logit_max", "entropy", "top_weight"):
        layers = [attention.seen[name] for attention in model.attentions()]
        seen[name].append(torch.stack(layers))


def gradient_of(block: torch.nn.Module, name: str) -> torch.Tensor:
    """Return ∂L/∂W of one of `MATRICES`."""
    path = f"attention.{name}" if name.startswith("w_") else name
    gradient = block.get_parameter(f"{path}.weight").grad
    assert gradient is not None  # every matrix takes part in the loss
    return gradient


def find_nonfinite(
    step: int, model: SmallGPT, seen: Mapping[str, list[torch.Tensor]], found: dict[str, int]
) -> None:
    """Note the first step at which something is not finite."""
    last = {
        "loss": seen["loss"][-1],
        "gradient": seen["gradient"][-1],
        "logit": seen["logit_max"][-1],
        "weight": seen["top_weight"][-1],
    }
    for name, value in last.items():
        if name not in found and not bool(value.isfinite().all()):
            found[name] = step
