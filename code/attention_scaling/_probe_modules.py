"""Which module of a model is running, kept by hooks while a probe is active."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


def refuse_what_is_compiled(model: Any) -> None:
    """Raise if a model is none, or if Python code does not run when it is called."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module, got {type(model).__name__}; pass the model, "
            "not its name or its output"
        )
    for name, module in model.named_modules():
        compiled = type(module).__name__ == "OptimizedModule" or (
            getattr(module, "_compiled_call_impl", None) is not None
        )
        if compiled or isinstance(module, torch.jit.ScriptModule):
            raise TypeError(
                f"module {name or '(model)'!r} is compiled or scripted, and its attention out "
                "of sight; pass the model as it was before torch.compile or torch.jit.script"
            )


@dataclass
class Frame:
    """A module that is running."""

    name: str
    module: nn.Module
    calls: int = 0
    seen: bool = False


class RunningModules:
    """The modules of a model that are running in one thread, outermost first.

    Parameters
    ----------
    model
        Gets two hooks on each of its modules, until `remove`.
    unseen
        Collects names of modules called attention, by their class, that ran without `here`.
    """

    def __init__(self, model: nn.Module, unseen: dict[str, None]) -> None:
        self.thread, self.ran, self.unseen = threading.get_ident(), False, unseen
        self.frames: list[Frame] = []
        self.names = {id(module): name for name, module in model.named_modules()}
        self.hooks: list[Any] = []
        for module in list(model.modules()):
            self.hooks.append(module.register_forward_pre_hook(self.begin))
            self.hooks.append(module.register_forward_hook(self.end, always_call=True))

    def remove(self) -> None:
        """Take the hooks away."""
        for hook in self.hooks:
            hook.remove()

    def begin(self, module: nn.Module, arguments: Any) -> None:
        """Note that a module starts."""
        if threading.get_ident() == self.thread:
            self.ran = True
            self.frames.append(Frame(self.names[id(module)], module))

    def end(self, module: nn.Module, arguments: Any, output: Any) -> None:
        """Note that a module has ended, or has raised an exception: then there is no output."""
        if threading.get_ident() != self.thread:
            return
        if all(frame.module is not module for frame in self.frames):
            return
        while (frame := self.frames.pop()).module is not module:
            pass  # left by an exception
        if output is not None and not frame.seen and "attention" in type(module).__name__.lower():
            self.unseen[frame.name] = None

    def here(self, *, count: bool) -> str | None:
        """Name the place of a call, None outside the model, and mark the modules around it.

        With `count`, calls of one module in one pass get different names.
        """
        if not self.frames:
            return None
        for frame in self.frames:
            frame.seen = True
        frame = self.frames[-1]
        frame.calls += count
        return frame.name if frame.calls < 2 else f"{frame.name}#{frame.calls}"
