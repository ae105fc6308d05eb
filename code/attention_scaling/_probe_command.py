"""What ``python -m attention_scaling probe`` runs: a model from a folder, or from a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from attention_scaling.probe import AttentionProbe

TEXT = (
    "Attention compares every token with every other. The product of a query and a key grows with "
    "their width, and a factor keeps the softmax from starting out sharp."
)

WAYS = (
    "pass module:function, where function() returns (model, inputs); or a folder with config.json "
    "and weights, as save_pretrained of transformers writes it; or package/folder for a folder in "
    "an installed package. Nothing is downloaded: fetch a model first"
)


def probe_target(
    target: str, text: str | None, find: Callable[[str], Callable[..., Any]]
) -> AttentionProbe:
    """Run what the command line names, once, and return the probe.

    Parameters
    ----------
    target
        ``module:function``, a folder, or ``package/folder``.
    text
        For a model from a folder.
    find
        Returns the callable that ``module:function`` names.

    Raises
    ------
    ValueError
        If there is no such model, or it cannot be run.
    AttentionNotSeenError
        If no attention was seen.
    """
    folder = folder_of(target)
    if folder is not None:
        model, inputs = load(folder, TEXT if text is None else text)
    elif ":" in target:
        if text is not None:
            raise ValueError("--text is for a model from a folder; return the inputs from code")
        found = find(target)()
        if not isinstance(found, tuple) or len(found) != 2:
            raise ValueError(f"{target!r} must return (model, inputs), got {type(found).__name__}")
        model, inputs = found
    else:
        raise ValueError(f"{target!r} is no folder with a config.json; {WAYS}")
    with AttentionProbe(model) as probe, torch.no_grad():
        if isinstance(inputs, Mapping):
            model(**inputs)
        elif isinstance(inputs, (tuple, list)):
            model(*inputs)
        else:
            model(inputs)
    return probe


def folder_of(target: str) -> Path | None:
    """Find a folder with a model: a path, or a package's folder, which is not imported."""
    candidates = [Path(target)]
    package, _, rest = target.partition("/")
    if package.isidentifier():
        spec = find_spec(package)
        places = (spec and spec.submodule_search_locations) or ()
        candidates += [Path(place) / rest for place in places]
    return next((path for path in candidates if (path / "config.json").is_file()), None)


def load(folder: Path, text: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    """Load a model and its tokenizer with transformers, from the disk only."""
    try:
        from transformers import AutoModel, AutoTokenizer
    except ImportError as error:
        raise ValueError(
            "a model folder needs the package transformers: pip install transformers; "
            "or pass module:function"
        ) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModel.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"transformers cannot load {folder.name!r}: {error}") from error
    inputs = dict(tokenizer(text, return_tensors="pt"))
    if getattr(model.config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = inputs["input_ids"]
    return model.eval(), inputs
