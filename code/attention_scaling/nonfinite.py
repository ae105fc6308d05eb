"""First aid for NaN: which module of a model made the first number that is not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

__all__ = ["NonFiniteReport", "NonFiniteWatch", "find_first_nonfinite"]

Kind = Literal["input", "output", "output gradient", "parameter gradient"]


@dataclass(frozen=True)
class NonFiniteReport:
    """Where the first NaN or infinity was seen.

    Parameters
    ----------
    module : str
        Name of the module in ``model.named_modules()``, "" for the model itself; for the gradient
        of a parameter, the module that owns it.
    kind : {"input", "output", "output gradient", "parameter gradient"}
        "input": the number arose between modules, in the code that calls this one. "output": this
        module, or code inside it that no submodule runs, made it.
    tensor : str
        Which one: its position or key among the arguments or results, or the parameter's name.
    n_nan, n_inf, n : int
        How many of its n elements are NaN and infinite.
    max_abs : float
        Largest finite magnitude in the tensor.
    max_abs_input : float
        Largest magnitude among the module's inputs, for "output"; NaN where it does not apply.
    """

    module: str
    kind: Kind
    tensor: str
    n_nan: int
    n_inf: int
    n: int
    max_abs: float
    max_abs_input: float

    def __str__(self) -> str:
        """One line: ``blocks.3.attn: output [0] has 2 NaN and 0 inf among 64, …``."""
        tail = "" if math.isnan(self.max_abs_input) else f", inputs {self.max_abs_input:.4g}"
        return (
            f"{self.module or '(model)'}: {self.kind} {self.tensor} has {self.n_nan} NaN and "
            f"{self.n_inf} inf among {self.n}; largest finite magnitude {self.max_abs:.4g}{tail}"
        )


@dataclass
class NonFiniteWatch:
    """What `find_first_nonfinite` has found so far.

    Parameters
    ----------
    forward, backward : NonFiniteReport or None
        The first finding of the forward and of the backward pass; None while all is finite.
    """

    forward: NonFiniteReport | None = None
    backward: NonFiniteReport | None = None


@contextmanager
def find_first_nonfinite(
    model: nn.Module, *, allow_negative_infinity: bool = False
) -> Iterator[NonFiniteWatch]:
    """Watch a model while it runs and keep the first tensor that is not finite.

    ::

        with find_first_nonfinite(model) as watch:
            model(batch).sum().backward()
        print(watch.forward, watch.backward)

    Looks at the inputs and outputs of every module, in the order in which they run, and at the
    gradients of outputs and parameters, in the order of the backward pass. Results are not
    changed, and every hook is removed at the end, also after an error. Each look synchronises an
    accelerator: a tool for a search, not for training.

    Parameters
    ----------
    model : nn.Module
    allow_negative_infinity : bool
        Take −∞ for a mask and not for a fault. +∞ and NaN always count.

    Yields
    ------
    NonFiniteWatch

    Raises
    ------
    TypeError
        If `model` is no module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module, got {type(model).__name__}; wrap a function in one"
        )
    watch = NonFiniteWatch()
    handles: list[Any] = []

    def before(name: str, args: Any, kwargs: Any) -> None:
        if watch.forward is None:
            inputs = {**dict(enumerate(args)), **kwargs}
            watch.forward = _look(name, "input", _tensors(inputs), None, allow_negative_infinity)

    def after(name: str, args: Any, kwargs: Any, output: Any) -> None:
        if watch.forward is None:
            outputs = _tensors(output)
            watch.forward = _look(name, "output", outputs, (args, kwargs), allow_negative_infinity)
        for label, tensor in _tensors(output):
            if tensor.requires_grad:
                watch_gradient(tensor, name, "output gradient", label)

    def watch_gradient(tensor: torch.Tensor, name: str, kind: Kind, label: str) -> None:
        def hook(gradient: torch.Tensor) -> None:
            if watch.backward is None:
                watch.backward = _look(name, kind, [(label, gradient)], None, False)

        register: Any = tensor.register_hook
        handles.append(register(hook))

    try:
        for name, module in model.named_modules():
            handles.append(
                module.register_forward_pre_hook(
                    lambda _, args, kwargs, name=name: before(name, args, kwargs), with_kwargs=True
                )
            )
            handles.append(
                module.register_forward_hook(
                    lambda _, args, kwargs, output, name=name: after(name, args, kwargs, output),
                    with_kwargs=True,
                )
            )
            for label, parameter in module.named_parameters(recurse=False):
                if parameter.requires_grad:
                    watch_gradient(parameter, name, "parameter gradient", label)
        yield watch
    finally:
        for handle in handles:
            handle.remove()


def _look(
    name: str,
    kind: Kind,
    tensors: Iterable[tuple[str, torch.Tensor]],
    inputs: Any,
    allow_negative_infinity: bool,
) -> NonFiniteReport | None:
    """Report the first of the tensors that is not finite, if there is one."""
    for label, tensor in tensors:
        x = tensor.detach().double()
        bad = ~x.isfinite()
        if allow_negative_infinity:
            bad &= x != -torch.inf
        if bad.any():
            return NonFiniteReport(
                module=name,
                kind=kind,
                tensor=label,
                n_nan=int(x.isnan().sum()),
                n_inf=int(x.isinf().sum()),
                n=x.numel(),
                max_abs=float(x.abs().where(x.isfinite(), 0).max()),
                max_abs_input=max(
                    (float(t.detach().double().abs().max()) for _, t in _tensors(inputs)),
                    default=math.nan,
                ),
            )
    return None


def _tensors(values: Any, label: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every non-empty floating tensor in nested tuples, lists and mappings, and its place."""
    if isinstance(values, torch.Tensor):
        if values.is_floating_point() and values.numel():
            yield label or "[0]", values
    elif isinstance(values, Mapping):
        for key, value in values.items():
            yield from _tensors(value, f"{label}[{key!r}]")
    elif isinstance(values, (tuple, list)):
        for index, value in enumerate(values):
            yield from _tensors(value, f"{label}[{index}]")
