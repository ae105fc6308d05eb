"""By which number real model classes multiply q·k, found from what they do with known vectors.

``python -m scaling_book.lab.model_scales`` builds each of `ARCHITECTURES` small and with random
weights, puts known queries and keys in the place of what the projections return, and reads the
attention weights. Nothing is downloaded, and no configuration is asked for the factor.

With z = s · q·k + b, where b is a mask or a bias of positions, the logarithms of two weights of one
row differ by z_j − z_0. Two runs with other vectors and the same positions have the same b, so

    Δ ln(p_j / p_0) = s · Δ[q · (k_j − k_0)],

a straight line through the origin. Its slope is the factor; how far the points are from the line
says whether there is one factor at all. All tokens get position 0, where a rotation does nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import normalize

from scaling_book.lab.architectures import ARCHITECTURES, HEADS, TOKENS, Architecture

__all__ = [
    "RECORD",
    "ROUNDING",
    "SEED",
    "ModelScale",
    "Probe",
    "attention_weights",
    "build",
    "measure",
    "model_class",
    "module_named",
    "probe",
    "provenance",
    "query_and_key",
    "read_record",
]

COMMAND = "python -m scaling_book.lab.model_scales"
#: Where the record lies, whatever the working directory: in the project's folder for data.
RECORD = Path(__file__).resolve().parents[3] / "data" / "model_scales.json"
SEED = 2017
DRAWS = 4  # pairs of runs
#: How far a factor may be off, relative to its size. Many classes compute softmax in float32, where
#: a weight is off by 2⁻²⁴ = 6e-8 of its size, and so is its logarithm, absolutely; the differences
#: of logits that are fitted reach from 5e-3 upwards.
ROUNDING = 2e-5
# Components of this size keep q·k near 1, so that no weight is too small for its logarithm and no
# cap on the logits is felt: 50 tanh(z/50) differs from z by z³/7500.
COMPONENT = 0.2


@dataclass(frozen=True)
class Probe:
    """What one small model does.

    Parameters
    ----------
    scale
        The slope: the factor on q·k, after the normalisation of q and k if there is one.
    misfit
        The largest distance of a point from the line, over the largest value on it.
    size_power
        By which power the logits grow when both projections return values 3 times as large:
        2 for a plain product, 0 if q and k are normalised.
    """

    scale: float
    misfit: float
    size_power: float


@dataclass(frozen=True)
class ModelScale:
    """One line of the record.

    Parameters
    ----------
    name, model_class
        For people; and the class that was probed.
    settings
        What was set differently from the defaults of its configuration, as far as it may touch the
        factor.
    head_dim, width_per_head
        d_k, and d_model divided by the number of heads, of the model that was probed.
    scale
        The factor that was found.
    scale_at_double
        The one found after d_k was doubled and nothing else that the class leaves free.
    misfit, size_power
        As in `Probe`, the larger misfit of the two.
    """

    name: str
    model_class: str
    head_dim: int
    width_per_head: float
    scale: float
    scale_at_double: float
    misfit: float
    size_power: float
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def normalised(self) -> bool:
        """The size of q and k does not reach the logits."""
        return self.size_power < 1

    @property
    def exponent(self) -> float:
        """The a of a factor that falls like d_k⁻ᵃ."""
        return -math.log2(self.scale_at_double / self.scale)

    @property
    def times_root(self) -> float:
        """The factor in units of 1/√d_k."""
        return self.scale * math.sqrt(self.head_dim)

    @property
    def rule(self) -> str:
        """The rule in symbols, such as ``1/√d_k`` or ``1/12``."""
        for power, suffix in ((0.0, ""), (0.5, "/√d_k"), (1.0, "/d_k")):
            if abs(self.exponent - power) < 1e-3:
                return _plain(self.scale * self.head_dim**power) + suffix
        return f"d_k^{-self.exponent:.2f}"


def _plain(number: float) -> str:
    """A number as people write it: an integer, one over an integer, or four digits."""
    for text, value in ((f"{number:.0f}", number), (f"1/{1 / number:.0f}", 1 / number)):
        if value > 0.5 and abs(value - round(value)) < ROUNDING * value:
            return text
    return f"{number:.4g}"


# ---------------------------------------------------------------------------------------- probing


def probe(architecture: Architecture, head_dim: int, seed: int = SEED) -> Probe:
    """Build one small model and find its factor.

    Parameters
    ----------
    architecture
        From `ARCHITECTURES`.
    head_dim
        d_k.
    seed
        Of the weights and of all vectors.
    """
    model = build(architecture, head_dim, seed)
    runs = [_run(model, architecture, head_dim, seed + draw) for draw in range(2 * DRAWS)]
    x = torch.stack([b[0] - a[0] for a, b in zip(runs[::2], runs[1::2], strict=True)]).flatten()
    y = torch.stack([b[1] - a[1] for a, b in zip(runs[::2], runs[1::2], strict=True)]).flatten()
    scale = float(x @ y / (x @ x))
    misfit = float((y - scale * x).abs().max() / (scale * x).abs().max())

    large = [_run(model, architecture, head_dim, seed + draw, size=3.0)[1] for draw in range(2)]
    small = [runs[draw][1] for draw in range(2)]
    ratio = (large[1] - large[0]).norm() / (small[1] - small[0]).norm()
    return Probe(scale, misfit, math.log(ratio) / math.log(3.0))


def measure(architecture: Architecture) -> ModelScale:
    """Probe one architecture at two widths of its heads."""
    one = probe(architecture, architecture.head_dim)
    double = probe(architecture, 2 * architecture.head_dim)
    return ModelScale(
        name=architecture.name,
        model_class=model_class(architecture),
        head_dim=architecture.head_dim,
        width_per_head=architecture.d_model(architecture.head_dim) / HEADS,
        scale=_rounded(one.scale),
        scale_at_double=_rounded(double.scale),
        misfit=float(f"{max(one.misfit, double.misfit):.1e}"),
        size_power=round(one.size_power, 3),
        settings=dict(architecture.settings),
    )


def _rounded(scale: float) -> float:
    """Without the last digits, which differ from machine to machine."""
    return float(f"{scale:.10g}")


def build(
    architecture: Architecture, head_dim: int, seed: int = SEED, implementation: str = "eager"
) -> Any:
    """Return the model in float64, with random weights that no other draw depends on."""
    transformers = import_module("transformers")
    config = getattr(transformers, architecture.config)(**architecture.arguments(head_dim))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.AutoModel.from_config(
            config, attn_implementation=implementation, experts_implementation="eager"
        )
    return model.double().eval()


def model_class(architecture: Architecture) -> str:
    """Return the name of the class that is built."""
    transformers = import_module("transformers")
    config = getattr(transformers, architecture.config)
    return str(transformers.AutoModel._model_mapping[config].__name__)


def _run(
    model: Any, architecture: Architecture, head_dim: int, seed: int, size: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend once with known vectors.

    Returns
    -------
    (q·(k_j − k_0), ln(p_j / p_0)) : tensors, shape (heads, keys − 1)
        For the last query, which sees all keys.
    """
    generator = torch.Generator().manual_seed(seed)
    seen: dict[str, list[torch.Tensor]] = {}

    def replace(name: str) -> Any:
        def hook(module: Any, arguments: Any, output: torch.Tensor) -> torch.Tensor:
            known = torch.randn(output.shape, generator=generator, dtype=output.dtype)
            seen[name] = [size * COMPONENT * known]
            return seen[name][0]

        return hook

    def listen(name: str) -> Any:
        def hook(module: Any, arguments: Any, output: torch.Tensor) -> None:
            seen.setdefault(name, []).append(output)

        return hook

    hooks = dict.fromkeys(architecture.projections, replace)
    hooks |= {name: listen for name in architecture.norms if name != "l2"}
    handles = [
        module_named(model, name).register_forward_hook(hook(name)) for name, hook in hooks.items()
    ]
    try:
        with torch.no_grad():
            weights = attention_weights(model, architecture)[0, :, -1].double()
    finally:
        for handle in handles:
            handle.remove()
    query, key = query_and_key(architecture, seen)
    if query.shape[-1] != head_dim:
        raise ValueError(f"{architecture.name}: d_k is {query.shape[-1]}, not {head_dim}")
    scores = (key @ query[:, -1, :, None]).squeeze(-1)  # (heads, keys)
    return scores[:, 1:] - scores[:, :1], (weights[:, 1:] / weights[:, :1]).log()


def module_named(model: Any, suffix: str) -> Any:
    """Return the first module of that name, which is the one in the first layer."""
    return next(m for name, m in model.named_modules() if f".{name}".endswith(f".{suffix}"))


def attention_weights(
    model: Any,
    architecture: Architecture,
    tokens: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> torch.Tensor:
    """Run the model and return the weights of its first layer, (1, heads, queries, keys).

    Parameters
    ----------
    model, architecture
        As built.
    tokens
        What a model of text reads; by default, all tokens differ.
    positions
        Which positions a model of text is told; by default, 0 for all tokens.
    """
    options = {"output_attentions": True, "return_dict": True}
    if architecture.family == "image":
        side = model.config.image_size
        output = model(torch.zeros(1, 3, side, side, dtype=torch.float64), **options)
    elif architecture.family == "audio":
        mels = torch.zeros(1, model.config.num_mel_bins, 2 * TOKENS, dtype=torch.float64)
        output = model.encoder(mels, **options)
    else:
        tokens = torch.arange(1, TOKENS + 1) if tokens is None else tokens
        positions = torch.zeros(TOKENS, dtype=torch.long) if positions is None else positions
        text = {
            "input_ids": tokens[None],
            "attention_mask": torch.ones(1, TOKENS, dtype=torch.long),
        }
        if architecture.family == "encoder":
            output = model.encoder(**text, **options)
        else:
            output = model(**text, position_ids=positions[None], use_cache=False, **options)
    weights: torch.Tensor = output.attentions[0]
    return weights


def query_and_key(
    architecture: Architecture, seen: dict[str, list[torch.Tensor]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Bring what went into the product into the shape (heads, tokens, d_k)."""

    def heads_first(x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 4 and x.shape[1] == HEADS:  # heads stand first already
            return x[0]
        return x.reshape(x.shape[1], HEADS, -1).transpose(0, 1)

    names = architecture.projections
    if architecture.layout == "latent":
        query, key_and_value, shared = (seen[name][0] for name in names)
        width = architecture.shared_width
        common = shared[0, :, -width:].expand(HEADS, -1, -1)
        query, own = heads_first(query), heads_first(key_and_value.view(1, len(shared[0]), -1))
        own = own[..., : query.shape[-1] - width]
        return query, torch.cat([own, common], dim=-1)
    if architecture.norms not in ((), ("l2",)):
        # one module for each, or one that is called for q and then for k
        query, key = (x for name in architecture.norms for x in seen[name])
    elif architecture.layout == "thirds":
        query, key, _ = seen[names[0]][0].chunk(3, dim=-1)
    elif architecture.layout == "per_head":
        query, key, _ = heads_first(seen[names[0]][0]).chunk(3, dim=-1)
        return query, key
    else:
        query, key = (seen[name][0] for name in names)
    query, key = heads_first(query), heads_first(key)
    if architecture.norms == ("l2",):
        return normalize(query, dim=-1), normalize(key, dim=-1)
    return query, key


# ------------------------------------------------------------------------------------- the record


def read_record(path: Path = RECORD) -> list[ModelScale]:
    """Read what the command wrote; needs no `transformers`.

    Raises
    ------
    FileNotFoundError
        If there is no record.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; `{COMMAND}` writes it, in a minute")
    return [ModelScale(**line) for line in json.loads(path.read_text("utf8"))["models"]]


def provenance(command: str) -> dict[str, Any]:
    """Return how and when a record of model classes was made."""
    return {
        "command": command,
        "date": date.today().isoformat(),
        "seed": SEED,
        "transformers": metadata.version("transformers"),
        "torch": torch.__version__.partition("+")[0],
        "python": platform.python_version(),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=RECORD, help="the file to write")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    import_module("transformers").logging.set_verbosity_error()
    found = []
    for place, architecture in enumerate(ARCHITECTURES, start=1):
        line = measure(architecture)
        found.append(line)
        print(
            f"[{place}/{len(ARCHITECTURES)}] {line.name:18}{line.scale:<12.6g}{line.rule:14}"
            f"{line.size_power:5.2f}  {line.misfit:.0e}",
            flush=True,
        )
    record = {
        "provenance": provenance(COMMAND),
        "models": [asdict(line) for line in found],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
