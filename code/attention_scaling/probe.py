"""Measure attention in any torch model while it runs.

::

    with AttentionProbe(model) as probe:
        model(x)
    print(probe.table())

A probe sees calls of ``torch.nn.functional.scaled_dot_product_attention``, also those inside
`nn.MultiheadAttention` and PyTorch's Transformer layers, and models of the `transformers` package
that were loaded with eager attention or with ``sdpa``. Attention that a model writes out with
matrix products is out of sight: call `observe_attention` there, or `AttentionProbe.observe`.

Outputs and gradients stay what they are, bit for bit, and nothing of the model is kept but numbers
for each head. The logits are computed a second time, in float32 (float64 for inputs in float64), a
tile of at most 2¹⁹, or of one row of each head, at a time: no matrix of all pairs is ever held.

One exception: PyTorch's inference fast path for Transformer encoders computes attention out of
sight, and is off while a probe is active. The outputs are then those of
``torch.backends.mha.set_fastpath_enabled(False)``.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attention_scaling import _checks, _probe_watch
from attention_scaling._probe_call import from_torch, from_transformers, prepare
from attention_scaling._probe_modules import RunningModules, refuse_what_is_compiled
from attention_scaling._probe_records import HeadAttention, LayerAttention, Place, table_of

__all__ = [
    "AttentionNotSeenError",
    "AttentionProbe",
    "HeadAttention",
    "LayerAttention",
    "observe_attention",
]

#: The name of the form that `AttentionProbe.to_dict` returns.
SCHEMA = "attention-probe/1"


class AttentionNotSeenError(RuntimeError):
    """A model ran, and no attention call was seen: its attention is out of sight, or not there.

    The message says what would be seen, and what to do.
    """


class AttentionProbe:
    """Measure attention in a model, for as long as the context is open.

    Parameters
    ----------
    model : nn.Module
        It may be entered several times; the numbers add up until `reset`.

    Raises
    ------
    TypeError
        If the model is no module, or is compiled or scripted.
    AttentionNotSeenError
        On leaving, if the model ran and no attention was seen; and from `records`, `table` and
        `to_dict` if there is nothing to show.
    NotImplementedError
        From inside the model, where an implementation of attention cannot be read.

    Notes
    -----
    Only calls made by the thread that entered are measured, and only those inside the model's
    modules. Probes may be nested, on one model or several, and other threads may use probes of
    their own at the same time; one probe belongs to one thread. What gradient checkpointing
    computes again in the backward pass is not counted a second time.

    A layer's calls add up: batches, steps of a generation. A place is a module, so that self- and
    cross-attention of the usual models are apart; a module used at several depths is one place.
    Of tensors (…, H, L, E), dimension −3 holds the heads. Additive masks hide a pair where they
    are −10⁴ or less; other values count as a bias.
    """

    def __init__(self, model: nn.Module) -> None:
        refuse_what_is_compiled(model)
        self._model = model
        self._places: dict[str, Place] = {}
        self._unseen: dict[str, None] = {}
        self._running: RunningModules | None = None

    # ------------------------------------------------------------------------- entering, leaving

    def __enter__(self) -> AttentionProbe:
        """Begin to measure."""
        if self._running is not None:
            raise RuntimeError("this AttentionProbe is active already; make a second one")
        _probe_watch.enter(self)
        self._running = RunningModules(self._model, self._unseen)
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        """Put everything back, and complain if the model ran and nothing was seen."""
        running = self._running
        if running is None:
            raise RuntimeError("this AttentionProbe is not active; use it in a with statement")
        if running.thread != threading.get_ident():
            raise RuntimeError("an AttentionProbe must be left by the thread that entered it")
        running.remove()
        _probe_watch.leave(self)
        self._running = None
        if error is None and running.ran and not self._places:
            raise self._nothing()

    def reset(self) -> None:
        """Forget all that was measured."""
        self._places.clear()
        self._unseen.clear()

    # ------------------------------------------------------------------------------- being called

    def _heard_torch(self, arguments: dict[str, Any]) -> None:
        name = self._here(count=True)
        if name is not None:
            self._add(name, **from_torch(arguments))

    def _heard_transformers(
        self, module: nn.Module, implementation: str | None, arguments: dict[str, Any]
    ) -> None:
        name = None if self._running is None else self._running.names.get(id(module))
        if name is not None:
            self._here(count=False)
            self._add(name, **from_transformers(module, implementation, arguments))

    def _heard_by_hand(self, name: str | None, arguments: dict[str, Any]) -> None:
        place = self._here(count=name is None)
        if place is not None:
            self._add(place if name is None else name, **arguments)

    def observe(
        self,
        name: str,
        query: torch.Tensor,
        key: torch.Tensor,
        *,
        attn_mask: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        is_causal: bool = False,
        scale: float | torch.Tensor | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | float | None = None,
    ) -> None:
        """Measure one attention call by hand; the context need not be open.

        Parameters
        ----------
        name : str
            Of the place.
        query, key : Tensor
            (…, H, L, E) and (…, H_kv, S, E), before the factor; each key head serves H/H_kv heads
            of the query.
        attn_mask : Tensor, optional
            Boolean (True keeps) or additive, broadcasting to (…, H, L, S).
        bias : Tensor, optional
            Added to the logits, and a part of them; −∞ hides.
        is_causal : bool
            Query i sees keys j ≤ i.
        scale : float or Tensor, optional
            1/√E by default; or one number for each head.
        softcap : float, optional
            c of c·tanh(z/c), after the factor and before bias and mask.
        sinks : Tensor or float, optional
            A logit in the denominator only, one or one for each head.
        """
        self._add(
            name,
            query=query,
            key=key,
            attn_mask=attn_mask,
            bias=bias,
            is_causal=is_causal,
            scale=scale,
            softcap=softcap,
            sinks=sinks,
        )

    def _here(self, *, count: bool) -> str | None:
        return None if self._running is None else self._running.here(count=count)

    def _add(self, name: str, **arguments: Any) -> None:
        with torch._C.DisableTorchFunction():
            place = Place.of(name, prepare(**arguments))
        if name in self._places:
            self._places[name].add(place)
        else:
            self._places[name] = place

    # ------------------------------------------------------------------------------------ reading

    @property
    def records(self) -> tuple[LayerAttention, ...]:
        """What was measured: one record for each place, in the order of their first calls."""
        if not self._places:
            raise self._nothing()
        return tuple(place.record() for place in self._places.values())

    @property
    def unseen(self) -> tuple[str, ...]:
        """Modules called attention, by their class, that ran without a call that was seen."""
        return tuple(self._unseen)

    def table(self, *, heads: bool = False) -> str:
        """Return a table as text: a line for each place, or for each of its heads.

        A layer's line has means over the heads, and extremes where a column is called max or min.
        z is a logit, s the factor, H the entropy in nats, eff the effective keys.
        """
        text = table_of(self.records, heads=heads)
        if self._unseen:
            text += f"\nran, but its attention was not seen: {', '.join(self._unseen)}"
        return text

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data: ``schema``, ``torch``, ``unseen`` and ``layers``."""
        return {
            "schema": SCHEMA,
            "torch": str(torch.__version__),
            "unseen": list(self._unseen),
            "layers": [layer.to_dict() for layer in self.records],
        }

    def to_json(self, path: str | Path) -> None:
        """Write `to_dict` to a file, at once or not at all."""
        path = Path(path)
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text(json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n", "utf8")
        os.replace(temporary, path)

    def _nothing(self) -> AttentionNotSeenError:
        return AttentionNotSeenError(
            f"no attention call of {type(self._model).__name__} was seen. Expected: calls of "
            "torch.nn.functional.scaled_dot_product_attention or of transformers' attention "
            "interface, in the thread that entered, while the context was open. If the model "
            "multiplies q and k itself: load it with attn_implementation='sdpa' (transformers), "
            "or call attention_scaling.observe_attention(query, key, …) where it attends"
        )


def observe_attention(
    query: torch.Tensor, key: torch.Tensor, *, name: str | None = None, **options: Any
) -> None:
    """Tell the active probes about attention that is written out; without one, do nothing.

    Call it in a model's forward, where q and k are at hand.

    Parameters
    ----------
    query, key : Tensor
        As in `AttentionProbe.observe`, before the factor.
    name : str, optional
        Of the place; by default that of the module that is running.
    **options
        As in `AttentionProbe.observe`.
    """
    _checks.query_and_key(query, key)
    for probe in _probe_watch.listening():
        probe._heard_by_hand(name, {"query": query, "key": key, **options})
