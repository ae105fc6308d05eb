"""Where a layer of a real model normalises, found from what passes through it.

Three questions, each answered by a power. If what goes in grows twice as large, does what comes out
grow 2¹ times, or 2⁰ times because a normalisation stands in between?

- from the layer's input to what attention gets: 0 if it is normalised before the branch;
- from the end of a branch to what it adds to the residual stream: 0 if it is normalised there;
- from the layer's input to its output, while all branches return 0: 0 if the stream is normalised.

The same places say which normalisation it is: LayerNorm does not see a constant that is added to
all components, RMSNorm does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from scaling_book.lab.architectures import Architecture
from scaling_book.lab.model_scales import SEED, attention_weights, module_named

__all__ = ["PLACEMENTS", "LayerProbe", "first_of", "hooked", "layer_of", "probe_layer"]

#: By (power at the input, at the end of the branch, at the output). N is the normalisation and f
#: the branch.
PLACEMENTS: Mapping[tuple[int, int, int], str] = {
    (0, 1, 1): "x + f(N(x))",
    (1, 1, 0): "N(x + f(x))",
    (0, 0, 1): "x + N(f(N(x)))",
    (1, 0, 1): "x + N(f(x))",
    (1, 1, 1): "x + f(x)",
}
# So large that the ε inside a normalisation, 1e-5 at most, does not count.
STREAM = 300.0
# Small beside the stream, so that a normalisation of the sum is felt as a straight line.
BRANCH = 3.0


@dataclass(frozen=True)
class LayerProbe:
    """What the first layer of a small model does.

    Parameters
    ----------
    input_power, branch_power, output_power
        The three powers, of the branch of attention.
    feed_forward_power
        The second one, of the branch of the feed-forward network.
    feed_forward_alike
        The feed-forward network gets normalised values if attention does, or if the stream is.
    parallel
        The feed-forward network does not see what attention returned.
    shift
        By how much the output of the normalisation changes, relative to its size, when all
        components of what it gets are shifted by one standard deviation. None without one.
    gain_offset
        With a gain of w the normalised values are multiplied by w plus this number; None without.
    bias
        The normalisation adds a vector that can be learned.
    misfit
        The largest distance of any of these from what was concluded: of a scaled output from its
        power, of the normalised mean square from 1, of a changed gain from a straight line.
    """

    input_power: float
    branch_power: float
    output_power: float
    feed_forward_power: float
    feed_forward_alike: bool
    parallel: bool
    shift: float | None
    gain_offset: float | None
    bias: bool
    misfit: float

    @property
    def powers(self) -> tuple[int, int, int]:
        """The three powers as integers."""
        return round(self.input_power), round(self.branch_power), round(self.output_power)

    @property
    def placement(self) -> str:
        """Where the branch of attention is normalised, as a formula; "?" if it has no name."""
        return PLACEMENTS.get(self.powers, "?")

    @property
    def norm(self) -> str:
        """The name of the normalisation."""
        if self.shift is None:
            return "–"
        return "LayerNorm" if self.shift < 0.01 else "RMSNorm"


def layer_of(model: Any, architecture: Architecture) -> Any:
    """Return the first layer: the outermost item of a list of modules that holds the projection."""
    wanted = module_named(model, architecture.projections[0])
    for layers in model.modules():
        listed = isinstance(layers, torch.nn.ModuleList) and len(layers)
        if listed and any(part is wanted for part in layers[0].modules()):
            return layers[0]
    raise LookupError(f"no list of layers holds {architecture.projections[0]}")


@contextmanager
def hooked(handles: list[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def first_of(output: Any) -> torch.Tensor:
    tensor: torch.Tensor = output[0] if isinstance(output, tuple) else output
    return tensor


def _like(output: Any, tensor: torch.Tensor) -> Any:
    return (tensor, *output[1:]) if isinstance(output, tuple) else tensor


class _Layer:
    """One layer as a function of what goes in and of what its branches return."""

    def __init__(self, model: Any, architecture: Architecture) -> None:
        self.model, self.architecture = model, architecture
        self.layer = layer_of(model, architecture)
        self.into_attention = torch.empty(0)
        self.into_feed_forward = torch.empty(0)
        self.result = torch.empty(0)
        self.stream_shape, self.branch_shape = self._shapes()

    def _shapes(self) -> tuple[torch.Size, torch.Size]:
        self(None, None, None)
        stream = self.result.shape
        end = module_named(self.model, self.architecture.outputs[0])
        seen: list[torch.Size] = []
        handle = end.register_forward_hook(lambda m, a, output: seen.append(first_of(output).shape))
        with hooked([handle]):
            self(None, None, None)
        return stream, seen[0]

    def __call__(
        self,
        stream: torch.Tensor | None,
        attention: torch.Tensor | None,
        feed_forward: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the layer's output; None leaves what the model computes itself."""

        def enter(module: Any, arguments: Any, named: Any) -> Any:
            if stream is None:
                return None
            if "hidden_states" in named:
                return arguments, {**named, "hidden_states": stream}
            return (stream, *arguments[1:]), named

        def leave(module: Any, arguments: Any, output: Any) -> None:
            self.result = first_of(output)

        def note_attention(module: Any, arguments: Any, output: Any) -> None:
            self.into_attention = arguments[0]

        def replace(value: torch.Tensor | None, noted: bool = False) -> Any:
            def hook(module: Any, arguments: Any, output: Any) -> Any:
                if noted:
                    self.into_feed_forward = arguments[0]
                if value is None:
                    return None
                own = first_of(output)
                return _like(
                    output,
                    value.expand(own.shape).clone()
                    if value.numel() == 1
                    else value.reshape(own.shape),
                )

            return hook

        names = self.architecture.outputs
        off = None if stream is None else torch.zeros(1, dtype=torch.float64)
        handles = [
            self.layer.register_forward_pre_hook(enter, with_kwargs=True),
            self.layer.register_forward_hook(leave),
            # the last projection, of the keys, takes what the layer hands to attention
            module_named(self.model, self.architecture.projections[-1]).register_forward_hook(
                note_attention
            ),
            module_named(self.model, names[0]).register_forward_hook(replace(attention)),
            module_named(self.model, names[1]).register_forward_hook(replace(feed_forward, True)),
            *(module_named(self.model, n).register_forward_hook(replace(off)) for n in names[2:]),
        ]
        with hooked(handles), torch.no_grad():
            attention_weights(self.model, self.architecture)
        return self.result


def _power(small: torch.Tensor, large: torch.Tensor) -> tuple[float, float]:
    """Return the power of 2 by which a tensor grew, and how far it is from an integer one."""
    power = math.log2(float(large.norm() / small.norm()))
    expected = 2.0 ** round(power) * small
    return power, float((large - expected).norm() / large.norm())


def probe_layer(model: Any, architecture: Architecture, seed: int = SEED) -> LayerProbe:
    """Find where the first layer of a small model normalises, and how.

    Parameters
    ----------
    model, architecture
        As built by `scaling_book.lab.model_scales.build`.
    seed
        Of all vectors.
    """
    layer = _Layer(model, architecture)
    generator = torch.Generator().manual_seed(seed)

    def normal(size: float, shape: torch.Size) -> torch.Tensor:
        return size * torch.randn(shape, generator=generator, dtype=torch.float64)

    x, u = normal(STREAM, layer.stream_shape), normal(BRANCH, layer.branch_shape)
    off = torch.zeros(1, dtype=torch.float64)
    silent = layer(x, off, off)

    def at(place: str, x: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        """What stands there, when the stream is x and the branch of attention ends with u."""
        output = layer(x, off if place == "output" else u, off)
        return {
            "input": layer.into_attention,
            "branch": output - silent,
            "output": output,
        }[place]

    input_power, *misfits = _power(at("input", x, u), at("input", 2 * x, u))
    branch_power, branch_misfit = _power(at("branch", x, u), at("branch", x, 2 * u))
    output_power, output_misfit = _power(silent, at("output", 2 * x, u))
    # behind a normalised stream, which has components near 1, "small" is smaller
    v = u if round(output_power) else 1e-3 * u
    feed_forward_power, feed_forward_misfit = _power(
        layer(x, off, v) - silent, layer(x, off, 2 * v) - silent
    )
    misfits += [branch_misfit, output_misfit, feed_forward_misfit]

    def into_feed_forward(x: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        layer(x, u, None)
        return layer.into_feed_forward

    given = into_feed_forward(x, off)
    unmoved = bool((into_feed_forward(2 * x, off) - given).norm() < 1e-3 * given.norm())
    parallel = torch.equal(into_feed_forward(x, u), into_feed_forward(x, STREAM * u))

    shift = offset = None
    bias = False
    powers = {"input": input_power, "branch": branch_power, "output": output_power}
    place = next((name for name, power in powers.items() if round(power) == 0), None)
    if place is not None:
        normalised = at(place, x, u)
        shifted = at(place, x + STREAM, u + BRANCH)
        if place == "branch":  # the shift of x passes by
            shifted = shifted - STREAM
        shift = float((shifted - normalised).norm() / normalised.norm())
        offset, bias, gain_misfit = _gain(layer, lambda: at(place, x, u), normalised)
        misfits.append(gain_misfit)
    return LayerProbe(
        input_power=input_power,
        branch_power=branch_power,
        output_power=output_power,
        feed_forward_power=feed_forward_power,
        feed_forward_alike=unmoved is (0 in (round(input_power), round(output_power))),
        parallel=parallel,
        shift=shift,
        gain_offset=offset,
        bias=bias,
        misfit=max(misfits),
    )


def _gain(layer: _Layer, tap: Any, normalised: torch.Tensor) -> tuple[float | None, bool, float]:
    """Add 1 to each vector of parameters; return the offset of the gain, and whether a bias moves.

    (w + 1 + o) n − (w + o) n is n, the normalised vector without its gain, which has mean square 1.
    """
    width = normalised.shape[-1]
    offset, bias, misfit = None, False, 0.0
    for parameter in layer.layer.parameters():
        if parameter.shape != (width,):
            continue
        before = parameter.detach().clone()
        with torch.no_grad():
            parameter.add_(1.0)
        change = tap() - normalised
        with torch.no_grad():
            parameter.copy_(before)
        if change.norm() < 1e-6 * normalised.norm():
            continue
        if (change - 1.0).abs().max() < 1e-6:
            bias = True
            continue
        # with both 1, the two tensors would be the same
        total = float((normalised * change).sum() / change.square().sum())
        distance = float((normalised - total * change).norm() / normalised.norm())
        square = float(change.square().mean())
        if distance < 1e-3:
            offset = total - float(before.mean())
            misfit = max(misfit, distance, abs(square - 1.0))
    return offset, bias, misfit
