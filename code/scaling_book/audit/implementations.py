"""What `check_attention` says of named attention functions: right ones, models', and wrong ones.

``python -m scaling_book.audit.implementations`` tries PyTorch's back ends, the library's functions,
the eager attentions of models, and a wrong variant for each kind of mistake, and writes
``data/conformance.json``. It takes some minutes; models need the extra `models`.
"""

from __future__ import annotations

import argparse
import math
import platform
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from tqdm import tqdm

import attention_scaling as scaling
from scaling_book.audit import files
from scaling_book.audit.fingerprint import ROOT
from scaling_book.audit.model_attention import MODELS, eager
from scaling_book.audit.wrong_attention import VARIANTS, Textbook
from scaling_book.audit.wrong_together import MEETINGS

__all__ = ["IMPLEMENTATIONS", "Implementation", "attempt", "back_end", "failed", "read_record"]

COMMAND = "python -m scaling_book.audit.implementations"
RECORD = ROOT / "data" / "conformance.json"
SEED, EXAMPLES = 0, 20
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
PLAIN_OPTIONS = ("attn_mask", "is_causal", "scale", "enable_gqa")


@dataclass(frozen=True)
class Implementation:
    """An attention function with a name.

    Parameters
    ----------
    name
        For people.
    group
        "torch", "library", "models" or "wrong".
    function
        Where it is defined.
    load
        Returns the function; imports what it needs.
    options
        The options that are tried; None for all that its signature names.
    mistake
        The kind of mistake that was made on purpose.
    """

    name: str
    group: str
    function: str
    load: Callable[[], Callable[..., Tensor]]
    options: tuple[str, ...] | None = None
    mistake: str | None = None


def back_end(*backends: SDPBackend) -> Callable[..., Tensor]:
    """Return PyTorch's function, held to some of its back ends; an error if they decline."""

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        with sdpa_kernel(list(backends)), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch says why it declines, beside the error
            return torch.nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
            )

    return attention


def _implementations() -> Iterable[Implementation]:
    torch_name = "torch.nn.functional.scaled_dot_product_attention"
    for name, function in (
        ("default", torch.nn.functional.scaled_dot_product_attention),
        ("math", back_end(SDPBackend.MATH)),
        ("flash", back_end(SDPBackend.FLASH_ATTENTION)),
    ):
        yield Implementation(name, "torch", torch_name, partial(_same, function), PLAIN_OPTIONS)
    for name, function in (
        ("scaled_dot_product_attention", scaling.scaled_dot_product_attention),
        ("explicit_attention", scaling.explicit_attention),
        ("online_attention", scaling.online_attention),
        ("online_attention, chunk_size=1", partial(scaling.online_attention, chunk_size=1)),
        ("fused_attention", scaling.fused_attention),
    ):
        place = f"attention_scaling.{name.partition(',')[0]}"
        yield Implementation(name, "library", place, partial(_same, function))
    for model in MODELS:
        load = partial(eager, model)
        yield Implementation(model.name, "models", model.function, load, model.options)
    yield Implementation("nothing wrong", "wrong", f"{Textbook.__module__}.Textbook", Textbook)
    for variant in (*VARIANTS, *MEETINGS):
        place = f"{type(variant).__module__}.{type(variant).__name__}"
        load = partial(_same, variant)
        yield Implementation(variant.name, "wrong", place, load, mistake=variant.kind)


def _same(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return function


#: In the order of the record.
IMPLEMENTATIONS = tuple(_implementations())


def attempt(
    implementation: Implementation,
    examples: int = EXAMPLES,
    kinds: Sequence[str] | None = None,
    dtypes: Iterable[str] = tuple(DTYPES),
) -> dict[str, Any]:
    """Try one implementation, one dtype after the other.

    Parameters
    ----------
    implementation
        From `IMPLEMENTATIONS`.
    examples
        Inputs of each kind and dtype. The first ones are the same, however many are drawn.
    kinds
        Some of `CONFORMANCE_KINDS`; all by default.
    dtypes
        Names of `DTYPES`.

    Returns
    -------
    dict
        An entry of the record.
    """
    function = implementation.load()
    entry: dict[str, Any] = {
        "name": implementation.name,
        "group": implementation.group,
        "function": implementation.function,
        "mistake": implementation.mistake,
        "factor": None,
        "dtypes": {},
        "gradients": {},
    }
    for name in dtypes:
        report = scaling.check_attention(
            function,
            kinds=kinds,
            dtypes=DTYPES[name],
            examples=examples,
            seed=SEED,
            options=implementation.options,
        )
        entry["factor"] = None if math.isnan(report.factor) else round(report.factor, 4)
        # gradients are compared in float64, whatever else was asked for
        own = [finding for finding in report.findings if finding.dtype == DTYPES[name]]
        entry["dtypes"][name] = {
            "examples": report.examples,
            "failed": {f.kind: _shown(f) for f in own if not f.hardening},
            "exposed": {f.kind: _shown(f) for f in own if f.hardening},
            "refused": dict(report.refused),
            "not_applicable": list(report.not_applicable),
            "passed": dict(report.passed),
        }
        entry["gradients"] |= {
            f.kind: _shown(f) for f in report.findings if f.dtype == torch.float64
        }
    return entry


def _shown(finding: scaling.Finding) -> dict[str, str]:
    return {"symptom": finding.symptom, "inputs": finding.case.describe()}


def failed(entry: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the kinds that an entry of the record failed, each with the dtypes or "gradients"."""
    found: dict[str, list[str]] = {}
    for place, kinds in (
        *((name, part["failed"]) for name, part in entry["dtypes"].items()),
        ("gradients", entry["gradients"]),
    ):
        for kind in kinds:
            found.setdefault(kind, []).append(place)
    return {kind: found[kind] for kind in scaling.CONFORMANCE_KINDS if kind in found}


def read_record(path: Path = RECORD) -> dict[str, Any]:
    """Read the record that the command wrote.

    Raises
    ------
    FileNotFoundError
        If there is none.
    """
    return files.read(path, COMMAND)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND.removeprefix("python -m "))
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="of each kind and dtype")
    parser.add_argument("--only", action="append", metavar="NAME", help="try this one")
    parser.add_argument("--out", type=Path, default=RECORD, help="the file to write")
    options = parser.parse_args(arguments)
    chosen = [one for one in IMPLEMENTATIONS if one.name in (options.only or [one.name])]
    unknown = sorted(set(options.only or ()) - {one.name for one in chosen})
    if unknown:
        parser.error(f"nothing is called {', '.join(unknown)}")
    if options.only and options.out == RECORD:
        parser.error("a part of the record does not replace the whole; name another file by --out")
    entries = []
    with tqdm(chosen, unit="function") as bar:
        for implementation in bar:
            bar.set_postfix_str(implementation.name)
            entries.append(attempt(implementation, options.examples))
    packages = ("torch", "numpy", "transformers")
    record = {
        "provenance": {
            "command": COMMAND,
            "date": date.today().isoformat(),
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in packages},
        },
        "setting": {"seed": SEED, "examples": options.examples, "dtypes": list(DTYPES)},
        "implementations": entries,
    }
    files.write(options.out, record)
    for entry in entries:
        print(f"{entry['name']:<34}{' · '.join(failed(entry)) or '–'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
