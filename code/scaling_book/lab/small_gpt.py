"""A small GPT that reads top to bottom, with a choice at each place where the factor could matter.

What is the same for all choices: causal attention, a feed-forward part of four times the width with
GELU, residuals, no biases, weights of N(0, 0.02²) as in GPT-2 with those that write to the residual
stream smaller by √(2 · layers). What can be chosen is the scale of the logits, the initialisation
of W_Q and W_K, the norm and where it stands, the positions, and the dtype of the scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from attention_scaling import apply_rotary, observe_attention

__all__ = ["INITS", "NORMS", "POSITIONS", "SCALES", "GPTSetting", "SmallGPT"]

SCALES = ("none", "sqrt", "full", "learned")
INITS = ("unit", "gpt2", "torch_linear", "xavier", "t5")
NORMS = ("pre_ln", "post_ln", "pre_rms", "none", "qk_norm")
POSITIONS = ("learned", "rope")
STD = 0.02  # of every weight that `init` does not concern


@dataclass(frozen=True)
class GPTSetting:
    """What can be chosen.

    Parameters
    ----------
    symbols, length
        Size of the vocabulary; the longest sequence.
    layers, heads, head_dim, width
        `head_dim` is d_k, of one head; `width` is d_model, and need not be heads · d_k.
    scale
        What q·k is multiplied by: "none" 1, "sqrt" 1/√d_k, "full" 1/d_k, "learned" one number for
        each head, which starts at 1/√d_k.
    init
        Of W_Q and W_K: "unit" N(0, 1/d_model), so that q and k have unit variance after a norm;
        "gpt2" N(0, 0.02²); "torch_linear" U(±1/√d_model); "xavier"
        U(±√(6/(d_model + heads · d_k))); "t5" as "unit" with W_Q smaller by √d_k, where T5 keeps
        its factor.
    norm
        "pre_ln", "pre_rms" before each branch; "post_ln" after each sum; "none"; "qk_norm" as
        "pre_ln", with RMSNorm of q and of k in each head.
    positions
        "learned" vectors that are added to the tokens, or "rope".
    embedding_std
        Of the entries of both embeddings. Without a norm 1/√2 gives the tokens a mean square of 1.
    scores
        The dtype in which q·k and its product with the scale are rounded: "float32", "bfloat16",
        "float16".
    """

    symbols: int
    length: int
    layers: int = 6
    heads: int = 2
    head_dim: int = 64
    width: int = 128
    scale: str = "sqrt"
    init: str = "unit"
    norm: str = "pre_ln"
    positions: str = "learned"
    embedding_std: float = STD
    scores: str = "float32"

    def __post_init__(self) -> None:
        choices = {
            "scale": SCALES,
            "init": INITS,
            "norm": NORMS,
            "positions": POSITIONS,
            "scores": ("float32", "bfloat16", "float16"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}"
                )
        for name in ("symbols", "length", "layers", "heads", "head_dim", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def initial_scale(self) -> float:
        """What q·k is multiplied by before the first step."""
        rules = {"none": 1.0, "full": 1 / self.head_dim}
        return rules.get(self.scale, 1 / math.sqrt(self.head_dim))


class Attention(nn.Module):
    """Causal self-attention, every step of it visible."""

    def __init__(self, setting: GPTSetting) -> None:
        super().__init__()
        self.setting = s = setting
        inner = s.heads * s.head_dim
        self.w_q = nn.Linear(s.width, inner, bias=False)
        self.w_k = nn.Linear(s.width, inner, bias=False)
        self.w_v = nn.Linear(s.width, inner, bias=False)
        self.w_o = nn.Linear(inner, s.width, bias=False)
        scale = torch.full((s.heads, 1, 1), s.initial_scale)
        if s.scale == "learned":
            self.scale: torch.Tensor = nn.Parameter(scale)
        else:
            self.register_buffer("scale", scale)
        if s.norm == "qk_norm":
            self.norm_q = nn.RMSNorm(s.head_dim)
            self.norm_k = nn.RMSNorm(s.head_dim)
        self.score_dtype: torch.dtype = getattr(torch, s.scores)
        # Statistics of the last call, for whoever watches; set `watch` before it
        self.watch = False
        self.seen: dict[str, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        s = self.setting
        batch, length, _ = x.shape
        heads = (batch, length, s.heads, s.head_dim)
        q = self.w_q(x).view(heads).transpose(1, 2)  # (batch, heads, length, d_k)
        k = self.w_k(x).view(heads).transpose(1, 2)
        v = self.w_v(x).view(heads).transpose(1, 2)
        if s.norm == "qk_norm":
            q, k = self.norm_q(q), self.norm_k(k)
        if s.positions == "rope":
            places = torch.arange(length, device=x.device)
            q, k = apply_rotary(q, places), apply_rotary(k, places)
        observe_attention(q, k, is_causal=True, scale=self.scale.flatten())  # for an AttentionProbe
        scores = q.to(self.score_dtype) @ k.to(self.score_dtype).transpose(-2, -1)
        logits = (
            scores * self.scale.to(self.score_dtype)
        ).float()  # (batch, heads, length, length)
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        p = logits.masked_fill(future, -math.inf).softmax(dim=-1)
        if self.watch:
            self.seen = statistics(logits.detach(), p.detach(), ~future)
        o = (p @ v).transpose(1, 2).reshape(batch, length, -1)  # (batch, length, heads · d_k)
        out: torch.Tensor = self.w_o(o)
        return out


class Block(nn.Module):
    """Attention and a feed-forward part, each added to the residual stream."""

    def __init__(self, setting: GPTSetting) -> None:
        super().__init__()
        s = setting
        make_norm = {"pre_rms": nn.RMSNorm, "none": nn.Identity}.get(s.norm, nn.LayerNorm)
        self.post = s.norm == "post_ln"
        self.norm_1, self.norm_2 = make_norm(s.width), make_norm(s.width)
        self.attention = Attention(s)
        self.up = nn.Linear(s.width, 4 * s.width, bias=False)
        self.down = nn.Linear(4 * s.width, s.width, bias=False)

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(F.gelu(self.up(x)))
        return out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.post:
            x = self.norm_1(x + self.attention(x))
            x = self.norm_2(x + self.feed_forward(x))
        else:
            x = x + self.attention(self.norm_1(x))
            x = x + self.feed_forward(self.norm_2(x))
        return x


class SmallGPT(nn.Module):
    """Predicts the next symbol.

    Parameters
    ----------
    setting
        What is chosen.
    generator
        Source of the weights (CPU). Two models with the same seed share all weights that their
        settings do not touch.
    """

    def __init__(self, setting: GPTSetting, *, generator: torch.Generator) -> None:
        super().__init__()
        self.setting = s = setting
        # PyTorch's modules draw weights from the global generator, which are replaced below
        with torch.random.fork_rng(devices=[]):
            self.tokens = nn.Embedding(s.symbols, s.width)
            self.places = nn.Embedding(s.length, s.width) if s.positions == "learned" else None
            self.blocks = nn.ModuleList([Block(s) for _ in range(s.layers)])
            closing = {"pre_rms": nn.RMSNorm, "none": nn.Identity, "post_ln": nn.Identity}
            self.norm = closing.get(s.norm, nn.LayerNorm)(s.width)
            self.head = nn.Linear(s.width, s.symbols, bias=False)
        self.draw(generator)

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> None:
        """Initialise every weight, in the same order for every setting."""
        s = self.setting
        for name, weight in self.named_parameters():
            part = name.rpartition(".")[0].rpartition(".")[2]
            if part.startswith("norm"):
                weight.fill_(0.0 if name.endswith("bias") else 1.0)
            elif part != "attention":  # whose scale is set below
                # One kind of random number for all, so that the draws that follow stay the same
                normal = torch.randn(weight.shape, generator=generator)
                weight.copy_(self.initial(part, normal))
        for attention in self.attentions():
            attention.scale.fill_(s.initial_scale)

    def initial(self, part: str, normal: torch.Tensor) -> torch.Tensor:
        """Turn standard normal numbers into the weights of a part of the model."""
        s = self.setting
        if part in ("tokens", "places"):
            return s.embedding_std * normal
        if part in ("w_o", "down"):
            return STD / math.sqrt(2 * s.layers) * normal
        if part not in ("w_q", "w_k"):
            return STD * normal
        uniform = torch.erf(normal / math.sqrt(2))  # in (−1, 1)
        if s.init == "gpt2":
            return STD * normal
        if s.init == "torch_linear":
            return uniform / math.sqrt(s.width)
        if s.init == "xavier":
            return math.sqrt(6 / (s.width + s.heads * s.head_dim)) * uniform
        folded = s.init == "t5" and part == "w_q"
        return normal / math.sqrt(s.width * (s.head_dim if folded else 1))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next symbol for each of `text`, (batch, length, symbols)."""
        x = self.tokens(text)
        if self.places is not None:
            x = x + self.places.weight[: text.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits

    def watch(self, watching: bool) -> None:
        """Keep statistics of the logits of the next calls, or stop keeping them."""
        for attention in self.attentions():
            attention.watch = watching

    def attentions(self) -> list[Attention]:
        """Return the attention of each block."""
        return [module for module in self.modules() if isinstance(module, Attention)]


def statistics(
    logits: torch.Tensor, p: torch.Tensor, visible: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Describe the logits and weights of one layer, over the pairs that softmax sees.

    Of the entropy and of the largest weight only rows from the eighth key on count: with few keys
    both say more about the number of keys than about the logits.
    """
    z = logits[..., visible]
    rows = p[..., 7:, :]
    entropy = -(rows * rows.clamp_min(1e-30).log()).sum(dim=-1)
    uniform = visible.sum(dim=-1)[7:].log()
    return {
        "logit_std": z.std(),
        "logit_max": z.abs().max(),
        "entropy": (entropy / uniform).mean(),
        "top_weight": rows.amax(dim=-1).mean(),
    }
