"""The instruments on the command line.

``python -m attention_scaling conformance module:function`` tries an attention function: the exit
status is 0 if no mistake was found, 1 if one was, 2 if the call makes no sense.

``python -m attention_scaling probe FOLDER`` or ``probe module:function`` measures the attention of
a model: the exit status is 0, 1 if no attention was seen, 2 if the call makes no sense.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from attention_scaling._probe_command import TEXT, WAYS, probe_target
from attention_scaling.conformance import CONFORMANCE_KINDS, check_attention
from attention_scaling.probe import AttentionNotSeenError

DTYPES = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64")}


def find(name: str) -> Callable[..., Any]:
    """Return the callable that ``package.module:function`` names.

    Raises
    ------
    ValueError
        If there is none.
    """
    module_name, colon, path = name.partition(":")
    if not colon or not path:
        raise ValueError(f"{name!r} names no function; write module:function")
    sys.path.insert(0, "")  # a module in the present folder, as python -c would find it
    try:
        found = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(f"cannot import {module_name!r}: {error}") from error
    finally:
        sys.path.remove("")
    for part in path.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{module_name!r} has no {path!r}")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"{name!r} cannot be called")
    return cast("Callable[..., Any]", found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m attention_scaling")
    commands = parser.add_subparsers(dest="command", required=True)
    conformance = commands.add_parser(
        "conformance", help="try an attention function on inputs of many kinds of mistakes"
    )
    conformance.add_argument("function", help="module:function, with PyTorch's signature")
    conformance.add_argument("--dtype", action="append", choices=DTYPES, metavar="NAME")
    conformance.add_argument("--kind", action="append", choices=CONFORMANCE_KINDS, metavar="NAME")
    conformance.add_argument("--examples", type=int, default=20, help="of each kind and dtype")
    conformance.add_argument("--seed", type=int, default=0)
    probe = commands.add_parser("probe", help="measure the attention of a model, layer by layer")
    probe.add_argument("target", help=WAYS)
    probe.add_argument("--text", help=f"what a model from a folder reads (default: {TEXT!r})")
    probe.add_argument("--heads", action="store_true", help="a line for each head")
    probe.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to a file")
    options = parser.parse_args(arguments)
    return run_probe(options) if options.command == "probe" else run_conformance(options)


def run_conformance(options: argparse.Namespace) -> int:
    """Try an attention function and say what was found."""
    given = {} if options.dtype is None else {"dtypes": [DTYPES[name] for name in options.dtype]}
    try:
        report = check_attention(
            find(options.function),
            kinds=options.kind,
            examples=options.examples,
            seed=options.seed,
            **given,
        )
    except (TypeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(report)
    return 0 if report.ok else 1


def run_probe(options: argparse.Namespace) -> int:
    """Measure a model's attention and print a table."""
    try:
        probe = probe_target(options.target, options.text, find)
    except AttentionNotSeenError as error:
        print(error, file=sys.stderr)
        return 1
    except (NotImplementedError, TypeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(probe.table(heads=options.heads))
    if options.json is not None:
        probe.to_json(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
