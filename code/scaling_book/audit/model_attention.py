"""The eager attentions of model classes of the `transformers` package, behind PyTorch's signature.

`eager` calls the function of that name in a model's module. Around it stands what the model does:
four axes, a mask that is added and ends at the most negative number of the format, the factor as an
argument, and an object with the attributes that the function reads. Nothing of it is computed here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

__all__ = ["MODELS", "ModelAttention", "eager"]


@dataclass(frozen=True)
class ModelAttention:
    """Where an eager attention is defined, and what it can do.

    Parameters
    ----------
    name
        For people.
    module
        Under ``transformers.models``.
    groups, softcap, sinks
        Whether it repeats keys for groups of heads, caps its scores, has sinks.
    """

    name: str
    module: str
    groups: bool = False
    softcap: bool = False
    sinks: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        """The options of `check_attention` that it takes."""
        own = {"enable_gqa": self.groups, "softcap": self.softcap, "sinks": self.sinks}
        return ("attn_mask", "is_causal", "scale", *(name for name, has in own.items() if has))

    @property
    def function(self) -> str:
        """Its full name."""
        return f"transformers.models.{self.module}.eager_attention_forward"


MODELS = (
    ModelAttention("GPT-2", "gpt2.modeling_gpt2"),
    ModelAttention("BERT", "bert.modeling_bert"),
    ModelAttention("T5", "t5.modeling_t5"),
    ModelAttention("OPT", "opt.modeling_opt"),
    ModelAttention("LLaMA", "llama.modeling_llama", groups=True),
    ModelAttention("Qwen2", "qwen2.modeling_qwen2", groups=True),
    ModelAttention("Gemma 2", "gemma2.modeling_gemma2", groups=True, softcap=True),
    ModelAttention("gpt-oss", "gpt_oss.modeling_gpt_oss", groups=True, sinks=True),
)


def eager(model: ModelAttention) -> Callable[..., Tensor]:
    """Return a model's eager attention as a function with PyTorch's signature.

    Raises
    ------
    ImportError
        If `transformers` is not installed.
    """
    name, _, attribute = model.function.rpartition(".")
    try:
        forward = getattr(import_module(name), attribute)
    except ImportError as error:
        raise ImportError(
            f"the eager attention of {model.name} needs the package transformers; "
            "install the project with its extra `models`"
        ) from error

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        axes = query.dim()
        query, key, value = (x if axes == 4 else x[None] for x in (query, key, value))
        heads = query.shape[1]
        module = SimpleNamespace(training=False, num_key_value_groups=heads // key.shape[1])
        options: dict[str, Any] = {"scaling": query.shape[-1] ** -0.5 if scale is None else scale}
        if model.softcap:
            options["softcap"] = softcap
        if model.sinks:
            # without any, those that add nothing
            module.sinks = query.new_full((heads,), -torch.inf) if sinks is None else sinks
        mask = _as_models_give_it(attn_mask, is_causal, query, key)
        output: Tensor = forward(module, query, key, value, mask, **options)[0].transpose(1, 2)
        return output if axes == 4 else output[0]

    return attention


def _as_models_give_it(
    attn_mask: Tensor | None, is_causal: bool, query: Tensor, key: Tensor
) -> Tensor | None:
    """The mask to be added: 0 or a bias where a pair is kept, the format's end where not."""
    lowest = torch.finfo(query.dtype).min
    seen = (
        torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril() if is_causal else None
    )
    if attn_mask is None or attn_mask.dtype == torch.bool:
        keep = seen if attn_mask is None else attn_mask if seen is None else attn_mask & seen
        if keep is None:
            return None
        return torch.zeros(keep.shape, dtype=query.dtype).masked_fill(~keep, lowest)
    added = attn_mask.clamp(min=lowest)
    return added if seen is None else added.masked_fill(~seen, lowest)
