"""The forward pass of a BERT-like encoder, written out from its weights.

It asks the model for its weights and for nothing else: no hook, no attention function of the
package that built it. What a probe sees from outside can be compared with what is computed here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import gelu, layer_norm, linear

from attention_scaling import (
    attention_logits,
    float_format,
    fused_attention,
    round_to_format,
    scaled_scores,
    softmax,
)
from scaling_book.lab.encoder import Encoder, pool

__all__ = ["Attend", "attend_exactly", "attention_inputs", "in_precision"]

#: Attention of one text, from q, k and v of shape (heads, n, d_k).
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def attend_exactly(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention in the precision of its inputs, with 1/√d_k."""
    return softmax(attention_logits(q, k)) @ v


def in_precision(fmt: str, place: str) -> Attend:
    """Return attention whose q, k, v, weights and output are rounded to a format.

    Parameters
    ----------
    fmt : {"float16", "bfloat16"}
    place
        Where the factor goes and what the scores are stored in: a key of
        `attention_scaling.PLACEMENTS`; or "fused", PyTorch's own kernel on tensors of that type.
    """
    kind = float_format(fmt)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if place == "fused":
            dtype: torch.dtype = getattr(torch, fmt)
            q, k, v = (x.to(dtype)[None] for x in (q, k, v))
            return fused_attention(q, k, v)[0].double()
        scores = scaled_scores(q.float(), k.float(), place, fmt)
        weights = round_to_format(softmax(scores), kind)
        return round_to_format(weights @ round_to_format(v.float(), kind), kind).double()

    return attend


def attention_inputs(
    encoder: Encoder, tokens: torch.Tensor, attend: Attend = attend_exactly
) -> tuple[list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]], torch.Tensor]:
    """Run the encoder on one text, from its weights, in float64.

    Parameters
    ----------
    encoder
        A BERT.
    tokens : tensor, shape (n,)
        From `Encoder.tokens`.
    attend
        Computes attention from q, k and v.

    Returns
    -------
    inputs : list of (q, k, v), each of shape (heads, n, d_k)
        What each layer's attention is given.
    embedding : tensor, shape (d_model,)
    """
    config, state = encoder.model.config, encoder.model.state_dict()

    def parameter(name: str) -> torch.Tensor:
        found: torch.Tensor = state[name]
        return found.double()

    def dense(name: str, x: torch.Tensor) -> torch.Tensor:
        return linear(x, parameter(f"{name}.weight"), parameter(f"{name}.bias"))

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        gain, bias = parameter(f"{name}.weight"), parameter(f"{name}.bias")
        return layer_norm(x, gain.shape, gain, bias, config.layer_norm_eps)

    def heads(x: torch.Tensor) -> torch.Tensor:  # (n, d_model) → (heads, n, d_k)
        return x.view(len(x), config.num_attention_heads, -1).transpose(0, 1)

    x = parameter("embeddings.word_embeddings.weight")[tokens]
    x = x + parameter("embeddings.position_embeddings.weight")[: len(tokens)]
    x = x + parameter("embeddings.token_type_embeddings.weight")[0]
    x = norm("embeddings.LayerNorm", x)
    inputs = []
    for layer in range(config.num_hidden_layers):
        name = f"encoder.layer.{layer}"
        projections = ("query", "key", "value")
        q, k, v = (heads(dense(f"{name}.attention.self.{part}", x)) for part in projections)
        inputs.append((q, k, v))
        mixed = attend(q, k, v).transpose(0, 1).reshape(x.shape)
        x = norm(
            f"{name}.attention.output.LayerNorm", x + dense(f"{name}.attention.output.dense", mixed)
        )
        wide = gelu(dense(f"{name}.intermediate.dense", x))
        x = norm(f"{name}.output.LayerNorm", x + dense(f"{name}.output.dense", wide))
    return inputs, pool(x[None], torch.ones(1, len(x), dtype=torch.bool))[0]
