"""Model classes of the `transformers` package, and where their queries and keys can be reached.

`scaling_book.lab.model_scales` builds each of them small, with random weights, and finds by which
number it multiplies q·k; `scaling_book.lab.model_anatomy` finds where it normalises and what it
does with positions. Nothing here says what they will find.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["ARCHITECTURES", "FURTHER", "HEADS", "TOKENS", "Architecture", "Layout"]

HEADS = 2
TOKENS = 6

#: How the outputs of the projections hold q and k. "separate": a projection each. "thirds": one
#: projection with all queries, all keys, all values. "per_head": one with q, k and v of the first
#: head, then of the second. "latent": a key made of a part per head and a part that heads share.
Layout = Literal["separate", "thirds", "per_head", "latent"]


@dataclass(frozen=True)
class Architecture:
    """One model class in one setting.

    Parameters
    ----------
    name
        For people.
    config
        The name of the configuration class; the model class follows from it.
    head_dim
        d_k in the class's own configuration, or in the setting that is named.
    width_per_head
        d_model divided by the number of heads, in that same configuration. The small model keeps
        the quotient where the class leaves it free; elsewhere it is d_k (None).
    settings
        What differs from the defaults of the class and may touch the factor.
    projections, layout
        Names of the modules in the first layer whose outputs are replaced, and how those hold
        queries and keys.
    norms
        Names of the modules through which queries and keys go afterwards; "l2" if they are
        normalised by a function, () if not at all.
    outputs
        Names of the modules in the first layer with which its two branches end, attention and
        feed-forward; and of further branches, which are switched off when those are probed.
    options
        Arguments of the configuration that only keep the model small.
    widths
        Names of the arguments for d_model, the number of heads, and d_k.
    shared_width
        With "latent": how many components of a key all heads share.
    family
        What the model takes: "text", "encoder" (text, and only its encoder is run), "image" or
        "audio".
    """

    name: str
    config: str
    head_dim: int
    width_per_head: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    projections: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj")
    layout: Layout = "separate"
    norms: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ("self_attn.o_proj", "mlp.down_proj")
    options: Mapping[str, Any] = field(default_factory=dict)
    widths: tuple[str, str, str | None] = ("hidden_size", "num_attention_heads", "head_dim")
    shared_width: int = 0
    family: Literal["text", "encoder", "image", "audio"] = "text"

    def d_model(self, head_dim: int) -> int:
        """Width of the small model."""
        return round(HEADS * (self.width_per_head or head_dim))

    def arguments(self, head_dim: int) -> dict[str, Any]:
        """Arguments of the configuration for a small model with this d_k."""
        d_model, heads, own = self.widths
        given: dict[str, Any] = {d_model: self.d_model(head_dim), heads: HEADS}
        if own:
            given[own] = head_dim - self.shared_width
        return {**given, **self.options, **self.settings}


GATED: dict[str, Any] = {
    "num_hidden_layers": 1,
    "vocab_size": 32,
    "intermediate_size": 16,
    "num_key_value_heads": HEADS,
    "pad_token_id": 0,
}
FREE = ("hidden_size", "num_attention_heads", None)
QK_NORM = ("self_attn.q_norm", "self_attn.k_norm")
# one layer that attends to all positions, without the extras that a small model does not need
GEMMA_3N = {
    **GATED,
    "layer_types": ["full_attention"],
    "num_kv_shared_layers": 0,
    "vocab_size_per_layer_input": 32,
    "hidden_size_per_layer_input": 8,
}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
LLAMA_4 = {**GATED, **EXPERTS, "intermediate_size_mlp": 16}
LATENT: dict[str, Any] = {
    **GATED,
    "qk_rope_head_dim": 64,
    "v_head_dim": 16,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "first_k_dense_replace": 1,
    "num_mtp_layers": 0,
}
LATENT_MODULES = (
    "self_attn.q_b_proj",
    "self_attn.kv_b_proj",
    "self_attn.kv_a_proj_with_mqa",
)

#: In the order of the page's table. Defaults are those of the class; other settings name a source
#: in ``data/README.md``.
ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture(
        "GPT-2",
        "GPT2Config",
        64,
        projections=("attn.c_attn",),
        layout="thirds",
        outputs=("attn.c_proj", "mlp.c_proj"),
        options={"n_layer": 1, "vocab_size": 32, "n_positions": 16},
        widths=("n_embd", "n_head", None),
    ),
    Architecture(
        "GPT-J",
        "GPTJConfig",
        256,
        projections=("attn.q_proj", "attn.k_proj"),
        outputs=("attn.out_proj", "mlp.fc_out"),
        options={"n_layer": 1, "vocab_size": 32, "n_positions": 8192, "n_inner": 16},
        widths=("n_embd", "n_head", None),
    ),
    Architecture(
        "GPT-NeoX",
        "GPTNeoXConfig",
        96,
        projections=("attention.query_key_value",),
        layout="per_head",
        outputs=("attention.dense", "mlp.dense_4h_to_h"),
        options={"num_hidden_layers": 1, "vocab_size": 32, "intermediate_size": 16},
        widths=FREE,
    ),
    Architecture(
        "OPT",
        "OPTConfig",
        64,
        outputs=("self_attn.out_proj", "fc2"),
        options={
            "num_hidden_layers": 1,
            "vocab_size": 32,
            "ffn_dim": 16,
            "max_position_embeddings": 16,
        },
        widths=FREE,
    ),
    Architecture(
        "BLOOM",
        "BloomConfig",
        8,
        projections=("self_attention.query_key_value",),
        layout="per_head",
        outputs=("self_attention.dense", "mlp.dense_4h_to_h"),
        options={"n_layer": 1, "vocab_size": 32},
        widths=("hidden_size", "n_head", None),
    ),
    Architecture(
        "BERT",
        "BertConfig",
        64,
        projections=("self.query", "self.key"),
        outputs=("attention.output.dense", "0.output.dense"),
        options={"num_hidden_layers": 1, "vocab_size": 32, "intermediate_size": 16},
        widths=FREE,
    ),
    Architecture(
        "ViT",
        "ViTConfig",
        64,
        projections=("q_proj", "k_proj"),
        outputs=("attention.o_proj", "mlp.fc2"),
        options={
            "num_hidden_layers": 1,
            "intermediate_size": 16,
            "image_size": 32,
            "patch_size": 16,
        },
        widths=FREE,
        family="image",
    ),
    Architecture(
        "Whisper",
        "WhisperConfig",
        64,
        outputs=("self_attn.out_proj", "fc2"),
        options={
            "encoder_layers": 1,
            "decoder_layers": 1,
            "vocab_size": 32,
            "encoder_ffn_dim": 16,
            "decoder_ffn_dim": 16,
            "decoder_attention_heads": HEADS,
            "num_mel_bins": 8,
            "max_source_positions": TOKENS,
            "pad_token_id": 0,
        },
        widths=("d_model", "encoder_attention_heads", None),
        family="audio",
    ),
    Architecture("LLaMA", "LlamaConfig", 128, 128, options=GATED),
    Architecture("Mistral", "MistralConfig", 128, 128, options=GATED),
    Architecture("Qwen2", "Qwen2Config", 128, options=GATED, widths=FREE),
    Architecture("Qwen3", "Qwen3Config", 128, 128, norms=QK_NORM, options=GATED),
    Architecture(
        "Phi-3",
        "Phi3Config",
        96,
        projections=("self_attn.qkv_proj",),
        layout="thirds",
        options=GATED,
        widths=FREE,
    ),
    Architecture("Cohere", "CohereConfig", 128, options=GATED, widths=FREE),
    Architecture("OLMo 2", "Olmo2Config", 128, norms=QK_NORM, options=GATED, widths=FREE),
    Architecture(
        "gpt-oss",
        "GptOssConfig",
        64,
        45,
        outputs=("self_attn.o_proj", "mlp"),
        options={**GATED, **EXPERTS},
    ),
    Architecture(
        "Privacy Filter",
        "OpenAIPrivacyFilterConfig",
        64,
        640 / 14,
        outputs=("self_attn.o_proj", "mlp"),
        options={**GATED, **EXPERTS},
    ),
    Architecture(
        "Llama 4, RoPE",
        "Llama4TextConfig",
        128,
        128,
        norms=("qk_norm",),
        outputs=("self_attn.o_proj", "feed_forward"),
        options=LLAMA_4,
    ),
    Architecture(
        "Llama 4, NoPE",
        "Llama4TextConfig",
        128,
        128,
        settings={"no_rope_layers": [0], "floor_scale": TOKENS},
        outputs=("self_attn.o_proj", "feed_forward"),
        options=LLAMA_4,
    ),
    Architecture(
        "DeepSeek-V3",
        "DeepseekV3Config",
        192,
        56,
        projections=LATENT_MODULES,
        layout="latent",
        options=LATENT,
        widths=("hidden_size", "num_attention_heads", "qk_nope_head_dim"),
        shared_width=64,
    ),
    Architecture(
        "DeepSeek-V3, YaRN",
        "DeepseekV3Config",
        192,
        56,
        settings={
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 40.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 4096,
                "beta_fast": 32,
                "beta_slow": 1,
            }
        },
        projections=LATENT_MODULES,
        layout="latent",
        options=LATENT,
        widths=("hidden_size", "num_attention_heads", "qk_nope_head_dim"),
        shared_width=64,
    ),
    Architecture("Gemma", "GemmaConfig", 256, 192, options=GATED),
    Architecture("Gemma 2", "Gemma2Config", 256, 288, options=GATED),
    Architecture(
        "Gemma 2, 27B",
        "Gemma2Config",
        128,
        144,
        settings={"query_pre_attn_scalar": 144},
        options=GATED,
    ),
    Architecture("Gemma 3", "Gemma3TextConfig", 256, 288, norms=QK_NORM, options=GATED),
    Architecture(
        "Granite Docling",
        "GraniteDoclingTextConfig",
        64,
        options=GATED | {"bos_token_id": 1, "eos_token_id": 2},
        widths=FREE,
    ),
    Architecture(
        "Inkling",
        "InklingTextConfig",
        128,
        96,
        norms=QK_NORM,
        options={
            **GATED,
            "layer_types": ["hybrid"],
            "mlp_layer_types": ["dense"],
            "dense_intermediate_size": 16,
        },
    ),
    Architecture(
        "T5",
        "T5Config",
        64,
        64,
        projections=("SelfAttention.q", "SelfAttention.k"),
        outputs=("SelfAttention.o", "DenseReluDense.wo"),
        options={"num_layers": 1, "vocab_size": 32, "d_ff": 16},
        widths=("d_model", "num_heads", "d_kv"),
        family="encoder",
    ),
    Architecture(
        "GPT-Neo",
        "GPTNeoConfig",
        128,
        projections=("attention.q_proj", "attention.k_proj"),
        outputs=("attention.out_proj", "mlp.c_proj"),
        options={
            "num_layers": 1,
            "attention_types": [[["global"], 1]],
            "vocab_size": 32,
            "intermediate_size": 16,
            "max_position_embeddings": 16,
        },
        widths=("hidden_size", "num_heads", None),
    ),
    Architecture(
        "Gemma 3n",
        "Gemma3nTextConfig",
        256,
        256,
        norms=QK_NORM,
        outputs=(
            "self_attn.o_proj",
            "mlp.down_proj",
            "laurel.linear_right",
            "0.per_layer_projection",
        ),
        options={**GEMMA_3N, "laurel_rank": 4, "activation_sparsity_pattern": [0.0]},
    ),
    Architecture(
        "Gemma 4",
        "Gemma4TextConfig",
        256,
        288,
        norms=QK_NORM,
        outputs=("self_attn.o_proj", "mlp.down_proj", "0.per_layer_projection"),
        # d_k is that of the local layers; the last layer is always a global one, of another width
        options={
            **GEMMA_3N,
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    Architecture(
        "Swin v2",
        "Swinv2Config",
        32,
        projections=("self.query", "self.key"),
        norms=("l2",),
        outputs=("attention.output.dense", "0.output.dense"),
        options={
            "depths": [1],
            "image_size": 4,
            "patch_size": 1,
            "window_size": 4,
            "num_heads": [HEADS],
        },
        widths=("embed_dim", "num_heads", None),
        family="image",
    ),
)

MINICPM: dict[str, Any] = {
    **GATED,
    "qk_rope_head_dim": 32,
    "v_head_dim": 16,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
}
FALCON: dict[str, Any] = {
    "num_hidden_layers": 1,
    "vocab_size": 32,
    "ffn_hidden_size": 16,
    "multi_query": False,
    "num_kv_heads": HEADS,
}

#: In the table "What real models do" only.
FURTHER: tuple[Architecture, ...] = (
    Architecture(
        "MPT",
        "MptConfig",
        128,
        projections=("attn.Wqkv",),
        layout="thirds",
        outputs=("attn.out_proj", "ffn.down_proj"),
        options={"n_layers": 1, "vocab_size": 32, "max_seq_len": 16},
        widths=("d_model", "n_heads", None),
    ),
    Architecture(
        "Falcon",
        "FalconConfig",
        64,
        projections=("self_attention.query_key_value",),
        layout="per_head",
        outputs=("self_attention.dense", "mlp.dense_4h_to_h"),
        options=FALCON,
        widths=FREE,
    ),
    Architecture(
        "Falcon, ALiBi",
        "FalconConfig",
        64,
        settings={"alibi": True, "parallel_attn": False},
        projections=("self_attention.query_key_value",),
        layout="per_head",
        outputs=("self_attention.dense", "mlp.dense_4h_to_h"),
        options=FALCON,
        widths=FREE,
    ),
    Architecture("OLMo", "OlmoConfig", 128, options=GATED, widths=FREE),
    Architecture(
        "Phi",
        "PhiConfig",
        64,
        outputs=("self_attn.dense", "mlp.fc2"),
        options=GATED,
        widths=FREE,
    ),
    Architecture(
        "Cohere 2, local",
        "Cohere2Config",
        128,
        128,
        settings={"layer_types": ["sliding_attention"]},
        options=GATED,
    ),
    Architecture(
        "Cohere 2, global",
        "Cohere2Config",
        128,
        128,
        settings={"layer_types": ["full_attention"]},
        options=GATED,
    ),
    Architecture(
        "Persimmon",
        "PersimmonConfig",
        64,
        projections=("self_attn.query_key_value",),
        layout="per_head",
        norms=("self_attn.q_layernorm", "self_attn.k_layernorm"),
        outputs=("self_attn.dense", "mlp.dense_4h_to_h"),
        options={"num_hidden_layers": 1, "vocab_size": 32, "intermediate_size": 16},
        widths=FREE,
    ),
    Architecture(
        "MiniCPM3",
        "MiniCPM3Config",
        96,
        64,
        projections=LATENT_MODULES,
        layout="latent",
        options=MINICPM,
        widths=("hidden_size", "num_attention_heads", "qk_nope_head_dim"),
        shared_width=32,
    ),
    Architecture("GLM-4", "Glm4Config", 128, 128, options=GATED),
    Architecture("Nemotron", "NemotronConfig", 128, 128, options=GATED),
)
