"""What a computation does: each operation that torch carries out, by name and size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

#: Operations that neither move a number nor compute one, and those that only move.
VIEWS = frozenset(
    {"alias", "as_strided", "detach", "expand", "narrow", "permute", "select", "slice", "split"}
    | {"squeeze", "t", "transpose", "unbind", "unsqueeze", "view", "_unsafe_view"}
)
COPIES = frozenset({"cat", "clone", "copy_", "stack", "_to_copy"})


@dataclass(frozen=True)
class Operation:
    """One operation.

    Parameters
    ----------
    name
        Torch's name of it: ``sum``, ``mul``, ``div``.
    read, written
        Numbers in its largest argument and in its result.
    """

    name: str
    read: int
    written: int

    @property
    def is_reduction(self) -> bool:
        """It makes few numbers out of many."""
        return self.name in ("sum", "mean", "amax", "max", "var")

    @property
    def flops(self) -> int:
        """Additions, multiplications, divisions and roots: m − 1 for the sum of m numbers."""
        if self.name in COPIES:
            return 0
        return self.read - self.written if self.is_reduction else self.written


def operations_of(call: Callable[[], object]) -> list[Operation]:
    """Call a function without arguments and list what torch did, views left out."""
    found: list[Operation] = []

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            name = str(func.overloadpacket.__name__)
            if isinstance(result, torch.Tensor) and name not in VIEWS:
                read = max((t.numel() for t in _tensors(args)), default=0)
                found.append(Operation(name, read, result.numel()))
            return result

    with torch.no_grad(), Watch():  # type: ignore[no-untyped-call]
        call()
    return found


def _tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    return [value for value in values if isinstance(value, torch.Tensor)]
