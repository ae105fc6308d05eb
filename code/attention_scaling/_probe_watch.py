"""How a probe gets to see attention calls: what is put in place while one is active.

Three places, each undone when the last probe of the process, or of the thread, has left:

- ``torch.nn.functional.scaled_dot_product_attention``, the name under which PyTorch's own modules
  and most models call it, is replaced, once for the process; other threads pass through.
- A `TorchFunctionMode`, one for each thread with a probe, sees the same function under any other
  name, and `nn.MultiheadAttention` that returns weights. PyTorch's inference fast path, which
  computes attention out of sight, is off while there is such a mode.
- ``AttentionInterface.get_interface`` of `transformers`, if that is imported: all its newer models
  ask it for the function that attends.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

__all__ = ["enter", "leave", "listening", "quietly"]

SDPA = torch._C._nn.scaled_dot_product_attention
MULTI_HEAD = F.multi_head_attention_forward
FUSED = (torch._native_multi_head_attention, torch._transformer_encoder_layer_fwd)

Undo = Callable[[], None]


class Listener(Protocol):
    """A probe, as seen from here."""

    def _heard_torch(self, arguments: dict[str, Any]) -> None:
        """Take note of a call of PyTorch's function."""

    def _heard_transformers(
        self, module: torch.nn.Module, implementation: str | None, arguments: dict[str, Any]
    ) -> None:
        """Take note of a call through transformers' interface."""

    def _heard_by_hand(self, name: str | None, arguments: dict[str, Any]) -> None:
        """Take note of a call of `observe_attention`."""


_lock = threading.Lock()
_local = threading.local()
_everywhere = 0  # probes in the process
_undo: list[Undo] = []


def listening() -> list[Listener]:
    """Return the probes of this thread, none while a watched call is being computed.

    None in a backward pass either: what checkpointing computes again was heard before.
    """
    if getattr(_local, "quiet", False) or torch._C._current_graph_task_id() != -1:
        return []
    return list(getattr(_local, "probes", ()))


@contextmanager
def quietly() -> Iterator[None]:
    """Hear nothing for a while: an attention function calls others inside."""
    before = getattr(_local, "quiet", False)
    _local.quiet = True
    try:
        yield
    finally:
        _local.quiet = before


def enter(probe: Listener) -> None:
    """Let a probe hear the calls that this thread makes."""
    global _everywhere
    with _lock:
        if not _everywhere:
            _undo.append(
                _replace(F, "scaled_dot_product_attention", _heard(F.scaled_dot_product_attention))
            )
        _everywhere += 1
        # transformers may have been imported since the first probe entered
        interface: Any = getattr(
            sys.modules.get("transformers.modeling_utils"), "AttentionInterface", None
        )
        if hasattr(interface, "get_interface") and not hasattr(interface.get_interface, "probed"):
            asked = _asked(interface.get_interface)
            _undo.append(_replace(interface, "get_interface", asked))
    probes = _local.__dict__.setdefault("probes", [])
    if not probes:
        _local.mode = _Mode()
        _local.mode.__enter__()
    probes.append(probe)


def leave(probe: Listener) -> None:
    """Undo `enter`, in the same thread."""
    global _everywhere
    _local.probes.remove(probe)
    if not _local.probes:
        _local.mode.__exit__(None, None, None)
        del _local.mode
    with _lock:
        _everywhere -= 1
        while not _everywhere and _undo:
            _undo.pop()()


def _replace(owner: Any, name: str, new: Any) -> Undo:
    """Put something in place of an attribute; the undoing leaves what others put there since."""
    old = getattr(owner, name)
    setattr(owner, name, new)

    def undo() -> None:
        if getattr(owner, name) is new:
            setattr(owner, name, old)

    return undo


SDPA_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def _heard(attend: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``torch.nn.functional.scaled_dot_product_attention``, or what stands there."""

    @functools.wraps(attend)
    def heard(*args: Any, **kwargs: Any) -> Any:
        with quietly():
            result = attend(*args, **kwargs)
        for probe in listening():
            probe._heard_torch(dict(zip(SDPA_NAMES, args, strict=False)) | kwargs)
        return result

    return heard


_heard_sdpa = _heard(SDPA)


class _Mode(TorchFunctionMode):
    """Sees all calls of torch functions in its thread, and lets all but two pass."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is SDPA:
            return _heard_sdpa(*args, **kwargs)
        if func is MULTI_HEAD:
            return _heard_multi_head(*args, **kwargs)
        if func in FUSED and listening():
            raise NotImplementedError(
                "PyTorch's fused encoder layer was called, into which AttentionProbe cannot see; "
                "call torch.backends.mha.set_fastpath_enabled(False) first"
            )
        return func(*args, **kwargs)


MULTI_HEAD_SIGNATURE = inspect.signature(MULTI_HEAD)


def _heard_multi_head(*args: Any, **kwargs: Any) -> Any:
    """``multi_head_attention_forward``; where it returns weights it multiplies matrices itself.

    It is then asked a second time, without the weights and for the probe only.
    """
    result = MULTI_HEAD(*args, **kwargs)
    given = MULTI_HEAD_SIGNATURE.bind(*args, **kwargs)
    given.apply_defaults()
    if given.arguments["need_weights"] and listening():
        # is_causal is a hint, for which the mask would not be looked at
        asked = given.arguments | {"need_weights": False, "training": False, "is_causal": False}
        with torch.no_grad():
            MULTI_HEAD(**asked)
    return result


def _asked(get_interface: Callable[..., Any]) -> Callable[..., Any]:
    """``AttentionInterface.get_interface``, while a probe listens."""

    def new(self: Any, attn_implementation: str | None, default: Any) -> Any:
        function = get_interface(self, attn_implementation, default)
        return _heard_function(attn_implementation, function) if listening() else function

    new.probed = True  # type: ignore[attr-defined]
    return new


FUNCTION_NAMES = ("query", "key", "value", "attention_mask")


def _heard_function(implementation: str | None, function: Callable[..., Any]) -> Any:
    """Wrap the function that attends."""

    def attend(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        probes = listening()
        with quietly() if probes else nullcontext():
            result = function(module, *args, **kwargs)
        names = list(FUNCTION_NAMES)
        if len(args) > len(names):
            names += list(inspect.signature(function).parameters)[1 + len(names) :]
        arguments = dict(zip(names, args, strict=False)) | kwargs
        for probe in probes:
            probe._heard_transformers(module, implementation, arguments)
        return result

    return attend
