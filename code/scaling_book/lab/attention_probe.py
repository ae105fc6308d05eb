"""What the attention of a real model does besides multiplying q·k, found from its weights.

As in `scaling_book.lab.model_scales`, known vectors take the place of what the projections return.

- *QK-norm*: do the logits of one head change when the queries of another grow? Do they change when
  a constant is added to all components?
- *Soft cap*: large scores z that come out as c tanh(z/c).
- *Positions*: the same q and the same k for all tokens. What is left of differences between the
  keys of a row is the work of positions. What of it is there for q = k = 0 was added to the scores;
  the rest was done to q and k.
- *Sinks*: weights of a row that sum to less than 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from scaling_book.lab.architectures import HEADS, TOKENS, Architecture
from scaling_book.lab.layer_probe import first_of, hooked, layer_of
from scaling_book.lab.model_scales import (
    ROUNDING,
    SEED,
    attention_weights,
    build,
    module_named,
    query_and_key,
)

__all__ = ["AttentionProbe", "probe_attention"]

#: The last keys of the last row: none of them is near the edge that a convolution over tokens sees.
LAST = slice(-3, None)
SIZE = 0.5  # of components
# Scores up to this size: softmax keeps weights down to e⁻⁸⁰ in float32.
LARGE = 35.0
# A position so far away that the slowest rotation is seen.
STRIDE = 997

STILL = torch.zeros(TOKENS, dtype=torch.long)

Vectors = Callable[[int], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class AttentionProbe:
    """What the attention of the first layer of a small model does.

    Parameters
    ----------
    qk_norm
        Over which components q and k are normalised: "head", "width" (all heads together), or None.
    qk_shift
        By how much the logits change when a constant is added to all components of q and k;
        None without QK-norm.
    norm_first
        QK-norm comes before the rotation. None if there is not both, or if the norm has no gain:
        then the order makes no difference.
    cap
        The c of c tanh(z/c), None if the scores stay on a straight line.
    largest
        The largest score that was tried, before the cap.
    cap_misfit
        The largest distance of a score from the line or the curve, relative to the largest score.
    rotated
        The share of the components of k that turn with the position.
    relative
        Logits depend on the distance of two tokens only. None without positions in attention.
    bias
        What is added to the scores: "linear" in the distance, "other", or None.
    slopes
        By how much a linear bias falls per step, one number for each head.
    bias_reads_input
        What is added depends on the token.
    embedding
        What is added to the tokens: "learned" (it differs between two initialisations), "fixed",
        or None.
    scale_moves
        The factor on q·k of the first query that has a choice, over that of the last.
    learned_scale
        A parameter, other than a gain of QK-norm, changes the factor.
    sink
        1 minus the sum of the weights of a row.
    """

    qk_norm: str | None
    qk_shift: float | None
    norm_first: bool | None
    cap: float | None
    largest: float
    cap_misfit: float
    rotated: float
    relative: bool | None
    bias: str | None
    slopes: tuple[float, ...]
    bias_reads_input: bool
    embedding: str | None
    scale_moves: float
    learned_scale: bool
    sink: float


class _Attention:
    """The first layer's attention, as a function of queries and keys."""

    def __init__(self, model: Any, architecture: Architecture, head_dim: int) -> None:
        self.model, self.architecture, self.head_dim = model, architecture, head_dim
        modules = [module_named(model, name) for name in architecture.norms if name != "l2"]
        self.gains = [
            parameter
            for module in modules
            for name, parameter in module.named_parameters()
            if name != "bias"
        ]

    def placed(
        self, name: str, output: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> torch.Tensor:
        """Return what the projection of that name has to return; q and k are (heads, T, d_k)."""
        layout, names = self.architecture.layout, self.architecture.projections

        def flat(x: torch.Tensor) -> torch.Tensor:
            return x.transpose(0, 1).reshape(x.shape[1], -1)

        if layout == "separate":
            new = flat(q if name == names[0] else k)
        elif layout == "thirds":
            new = torch.cat([flat(q), flat(k), torch.zeros_like(flat(q))], dim=-1)
        elif layout == "per_head":
            new = flat(torch.cat([q, k, torch.zeros_like(k)], dim=-1))
        else:
            own = self.head_dim - self.architecture.shared_width
            if name == names[0]:
                new = flat(q)
            elif name == names[1]:
                values = torch.zeros(*k.shape[:2], output.shape[-1] // HEADS - own, dtype=k.dtype)
                new = flat(torch.cat([k[..., :own], values], dim=-1))
            else:
                latent = output.shape[-1] - self.architecture.shared_width
                new = torch.cat([torch.zeros(k.shape[1], latent, dtype=k.dtype), k[0, :, own:]], -1)
        return new.reshape(output.shape)

    def __call__(
        self,
        vectors: Vectors,
        positions: torch.Tensor | None = None,
        token: int = 1,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend once.

        Parameters
        ----------
        vectors
            Returns q and k, (heads, T, d_k), for a number of tokens T.
        positions
            Which positions the tokens are told; 0, 1, 2, … by default.
        token
            What all tokens are.

        Returns
        -------
        (weights, scores) : tensors, shape (heads, T, T)
            Scores are q·k of what went into the product, before a rotation and without a factor.
        """
        architecture = self.architecture
        seen: dict[str, list[torch.Tensor]] = {}

        def replace(name: str) -> Any:
            def hook(module: Any, arguments: Any, output: torch.Tensor) -> torch.Tensor:
                q, k = vectors(math.prod(output.shape[:-1]))
                seen[name] = [self.placed(name, output, q, k)]
                return seen[name][0]

            return hook

        def listen(name: str) -> Any:
            def hook(module: Any, arguments: Any, output: torch.Tensor) -> None:
                seen.setdefault(name, []).append(output)

            return hook

        hooks = dict.fromkeys(architecture.projections, replace)
        hooks |= {name: listen for name in architecture.norms if name != "l2"}
        handles = [
            module_named(self.model, name).register_forward_hook(hook(name))
            for name, hook in hooks.items()
        ]
        with hooked(handles), torch.no_grad():
            weights = attention_weights(
                self.model,
                architecture,
                tokens=torch.full((TOKENS,), token),
                positions=torch.arange(TOKENS) if positions is None else positions,
            )[0].double()
        q, k = query_and_key(architecture, seen)
        return weights, q.double() @ k.double().mT

    def logits(self, vectors: Vectors, **more: Any) -> torch.Tensor:
        """Logits of the last row's last keys, without their mean; shape (heads, 3)."""
        return _centred(self(vectors, **more)[0].log()[:, -1, LAST])


def _centred(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(dim=-1, keepdim=True)


def _differ(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).abs().max() > ROUNDING * max(1.0, float(a.abs().max())))


def probe_attention(
    architecture: Architecture,
    scale: float,
    normalised: bool,
    seed: int = SEED,
    model: Any = None,
) -> AttentionProbe:
    """Find what the attention of a small model does with its scores and with positions.

    Parameters
    ----------
    architecture
        From `ARCHITECTURES` or `FURTHER`.
    scale, normalised
        As found by `scaling_book.lab.model_scales.measure`.
    seed
        Of the weights and of all vectors.
    model
        The one to probe, instead of one that is built.
    """
    model = build(architecture, architecture.head_dim, seed) if model is None else model
    attention = _Attention(model, architecture, architecture.head_dim)
    norm_first = relative = None
    qk_norm, qk_shift = _qk_norm(attention, seed) if normalised else (None, None)
    rotated = _rotated(attention, seed, centred=qk_shift is not None and qk_shift < 0.01)
    bias, slopes, bias_relative, reads = _bias(attention)
    if rotated:
        relative = not _moves(attention, seed)
        if normalised:
            norm_first = _norm_first(attention, seed)
    elif bias:
        relative = bias_relative
    cap, largest, cap_misfit = _cap(attention, scale, seed)
    weights, _ = attention(_random(attention, seed))
    return AttentionProbe(
        qk_norm=qk_norm,
        qk_shift=qk_shift,
        norm_first=norm_first,
        cap=cap,
        largest=largest,
        cap_misfit=cap_misfit,
        rotated=rotated,
        relative=relative,
        bias=bias,
        slopes=slopes,
        bias_reads_input=reads,
        embedding=_embedding(architecture, model, seed),
        scale_moves=_scale(attention, seed, row=1) / _scale(attention, seed, row=-1),
        learned_scale=_learned(attention, seed),
        sink=float(1 - weights[:, -1].sum(dim=-1).max()),
    )


@contextmanager
def _added(parameters: list[Any], more: list[torch.Tensor]) -> Iterator[None]:
    """Change parameters for a while."""
    before = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        for parameter, tensor in zip(parameters, more, strict=True):
            parameter.add_(tensor)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, old in zip(parameters, before, strict=True):
                parameter.copy_(old)


# ---------------------------------------------------------------------------------------- vectors


def _random(attention: _Attention, seed: int, size: float = SIZE) -> Vectors:
    """All tokens differ."""

    def vectors(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        shape = (2, HEADS, tokens, attention.head_dim)
        q, k = size * torch.randn(shape, generator=generator, dtype=torch.float64)
        if attention.architecture.layout == "latent":
            k = k[:1].expand_as(k)  # a part of it is shared by all heads
        return q, k

    return vectors


def _constant(q: torch.Tensor, k: torch.Tensor) -> Vectors:
    """The same (heads, d_k) for all tokens."""
    return lambda tokens: (
        q[:, None].expand(-1, tokens, -1),
        k[:, None].expand(-1, tokens, -1),
    )


def _changed(
    vectors: Vectors, change: Callable[[torch.Tensor], torch.Tensor], key: bool = False
) -> Vectors:
    def new(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        q, k = vectors(tokens)
        return (q, change(k)) if key else (change(q), k)

    return new


# ----------------------------------------------------------------------------------------- QK-norm


def _qk_norm(attention: _Attention, seed: int) -> tuple[str, float]:
    """Over which components, and how much a shift of all components changes."""
    vectors = _random(attention, seed)
    plain = attention.logits(vectors)
    first = torch.tensor([3.0] + [1.0] * (HEADS - 1), dtype=torch.float64)[:, None, None]
    one_head = attention.logits(_changed(vectors, lambda q: first * q))
    extent = "width" if _differ(plain[1:], one_head[1:]) else "head"
    shifted = attention.logits(_changed(vectors, lambda q: q + SIZE))
    return extent, float((shifted - plain).norm() / plain.norm())


def _norm_first(attention: _Attention, seed: int) -> bool | None:
    """With gains that differ between components: is the distance of two tokens still enough?

    A gain before the rotation leaves the rotation the last word, and logits relative; a gain after
    it does not. Without gains the two commute.
    """
    if not attention.gains:
        return None
    generator = torch.Generator().manual_seed(seed + 1)
    more = [torch.rand(gain.shape, generator=generator).to(gain.dtype) for gain in attention.gains]
    with _added(attention.gains, more):
        return not _moves(attention, seed)


# ---------------------------------------------------------------------------------------- soft cap


def _cap(attention: _Attention, scale: float, seed: int) -> tuple[float | None, float, float]:
    """Fit c tanh(z/c) to large scores; return c, the largest score, and the misfit."""
    _, scores = attention(_random(attention, seed), STILL)
    factor = math.sqrt(LARGE / (scale * float(scores[:, -1].abs().max())))
    # where q and k are normalised only gains can make scores large, if there are any; they start
    # as 1, or as 0 and are added to 1
    more = [torch.full_like(gain, max(factor - 1, 0.0)) for gain in attention.gains]
    size = SIZE if attention.architecture.norms else SIZE * factor
    runs = []
    with _added(attention.gains, more):
        for draw in (0, 2):
            pair = [attention(_random(attention, seed + draw + i, size), STILL) for i in (0, 1)]
            logs = [weights[:, -1].log() for weights, _ in pair]
            runs.append((logs, [scale * scores[:, -1] for _, scores in pair]))
    largest = max(float(z.abs().max()) for _, zs in runs for z in zs)

    def misfit(t: float) -> float:
        """Largest distance from tanh(t z)/t, relative to the largest score."""
        bend = (lambda z: torch.tanh(t * z) / t) if t else (lambda z: z)
        found = [
            (_centred(logs[1] - logs[0]) - _centred(bend(zs[1]) - bend(zs[0]))).abs().max()
            for logs, zs in runs
        ]
        return float(max(found)) / largest

    if misfit(0.0) < ROUNDING:
        return None, largest, misfit(0.0)
    grid = [10 ** (-4 + 4 * step / 400) for step in range(401)]
    best = min(range(1, 400), key=lambda index: misfit(grid[index]))
    low, high = grid[best - 1], grid[best + 1]
    for _ in range(60):  # golden section
        a, b = high - 0.618034 * (high - low), low + 0.618034 * (high - low)
        low, high = (low, b) if misfit(a) < misfit(b) else (a, high)
    t = (low + high) / 2
    return 1 / t, largest, misfit(t)


# --------------------------------------------------------------------------------------- positions


def _moves(attention: _Attention, seed: int) -> bool:
    """Logits change when all positions grow by the same number."""
    vectors = _random(attention, seed)
    here = attention.logits(vectors)
    there = attention.logits(vectors, positions=torch.arange(TOKENS) + 17)
    return _differ(here, there)


def _rotated(attention: _Attention, seed: int, centred: bool) -> float:
    """The share of components of k whose score with a query depends on the position.

    A QK-norm that subtracts the mean (`centred`) spreads one component over all. Then the first or
    the last one is taken away from it, so that the mean is 0 already; one of the two stands still
    unless all turn.
    """
    if not _reads_positions(attention, seed):
        return 0.0
    width = attention.head_dim
    text = attention.architecture.family == "text"
    far = (STRIDE if text else 1) * torch.arange(TOKENS)
    zero = torch.zeros(HEADS, width, dtype=torch.float64)
    added = attention.logits(_constant(zero, zero), positions=far)
    generator = torch.Generator().manual_seed(seed)
    q = 1 + torch.rand(HEADS, width, generator=generator, dtype=torch.float64)
    counts = []
    for other in (0, -1) if centred else (None,):
        turned = 0
        for component in range(width):
            k = zero.clone()
            k[:, component] += 3.0
            if other is not None:
                k[:, other] -= 3.0
            turned += _differ(attention.logits(_constant(q, k), positions=far), added)
        counts.append(turned)
    return min(counts) / width


def _reads_positions(attention: _Attention, seed: int) -> bool:
    """With the same q and the same k for all tokens, logits differ by more than a bias."""
    vectors = _random(attention, seed)
    q, k = (x[:, 0] for x in vectors(TOKENS))
    zero = torch.zeros_like(q)
    return _differ(
        attention.logits(_constant(3 * q, 3 * k)), attention.logits(_constant(zero, zero))
    )


def _bias(attention: _Attention) -> tuple[str | None, tuple[float, ...], bool, bool]:
    """What is added: its kind, its slopes, whether distance is enough, whether it reads the input.

    With q = k = 0 the scores are what is added to them.
    """
    zero = torch.zeros(HEADS, attention.head_dim, dtype=torch.float64)
    nothing = _constant(zero, zero)
    logs = attention(nothing)[0].log()
    last = logs[:, -1, LAST]
    if not _differ(_centred(last), torch.zeros_like(last)):
        return None, (), True, False
    previous = logs[:, -2, -4:-1]  # the same distances from the query before
    relative = not _differ(_centred(last), _centred(previous))
    steps = last.diff(dim=-1)
    linear = not _differ(steps[:, 0], steps[:, 1])
    reads = attention.architecture.family != "image" and _differ(
        _centred(last), attention.logits(nothing, token=2)
    )
    slopes = tuple(float(f"{step:.6g}") for step in steps[:, -1]) if linear else ()
    return ("linear" if linear else "other"), slopes, relative, reads


def _embedding(architecture: Architecture, model: Any, seed: int) -> str | None:
    """Equal tokens that enter the first layer as different vectors."""

    def difference(model: Any) -> torch.Tensor:
        seen: list[torch.Tensor] = []

        def enter(module: Any, arguments: Any, named: Any) -> None:
            seen.append(named["hidden_states"] if "hidden_states" in named else arguments[0])

        handle = layer_of(model, architecture).register_forward_pre_hook(enter, with_kwargs=True)
        with hooked([handle]), torch.no_grad():
            attention_weights(
                model,
                architecture,
                tokens=torch.ones(TOKENS, dtype=torch.long),
                positions=torch.arange(TOKENS),
            )
        x = first_of(seen[0])
        return x[..., 3, :] - x[..., 2, :]  # no neighbours of an edge

    one = difference(model)
    if not _differ(one, torch.zeros_like(one)):
        return None
    other = difference(build(architecture, architecture.head_dim, seed + 1))
    return "learned" if _differ(one, other) else "fixed"


# ------------------------------------------------------------------------------------------ factor


def _scale(attention: _Attention, seed: int, row: int) -> float:
    """The factor on q·k of one query, all of whose keys are told the same position."""
    x, y = [], []
    for draw in range(0, 8, 2):
        pair = [attention(_random(attention, seed + draw + i, 0.2), STILL) for i in (0, 1)]
        keys = slice(0, 2) if row == 1 else slice(None)
        logs = [weights[:, row, keys].log() for weights, _ in pair]
        scores = [score[:, row, keys] for _, score in pair]
        x.append(_centred(scores[1] - scores[0]).flatten())
        y.append(_centred(logs[1] - logs[0]).flatten())
    points, values = torch.cat(x), torch.cat(y)
    return float(points @ values / (points @ points))


def _learned(attention: _Attention, seed: int) -> bool:
    """A parameter of the layer that is no projection of q or k and no gain changes the factor."""
    architecture, model = attention.architecture, attention.model
    projections = [module_named(model, name) for name in architecture.projections]
    fixed = {id(parameter) for module in projections for parameter in module.parameters()}
    fixed |= {id(gain) for gain in attention.gains}
    before = _scale(attention, seed, row=-1)
    for parameter in layer_of(model, architecture).parameters():
        if id(parameter) not in fixed:
            with _added([parameter], [torch.full_like(parameter, 0.1)]):
                after = _scale(attention, seed, row=-1)
            if abs(after / before - 1) > 1e-3:
                return True
    return False
