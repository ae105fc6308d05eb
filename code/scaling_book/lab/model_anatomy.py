"""What real model classes do: where they normalise, how they scale, what they know of positions.

``python -m scaling_book.lab.model_anatomy`` probes each of `ARCHITECTURES` and `FURTHER`, small and
with random weights, and writes ``data/architectures.json``. Nothing is downloaded.

What papers say of models that are not probed is kept by hand in ``data/reported_models.yml``. Both
are told in the same symbols, as rows of one table.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import yaml

from scaling_book.lab.architectures import ARCHITECTURES, FURTHER, TOKENS, Architecture
from scaling_book.lab.attention_probe import AttentionProbe, probe_attention
from scaling_book.lab.layer_probe import LayerProbe, probe_layer
from scaling_book.lab.model_scales import ModelScale, build, measure, provenance

__all__ = [
    "COLUMNS",
    "MARKS",
    "RECORD",
    "REPORTED",
    "ModelAnatomy",
    "ReportedModel",
    "dissect",
    "read_record",
    "read_reported",
    "table",
]

COMMAND = "python -m scaling_book.lab.model_anatomy"
DATA = Path(__file__).resolve().parents[3] / "data"
#: Where the records lie, whatever the working directory: what was probed, and what papers say.
RECORD = DATA / "architectures.json"
REPORTED = DATA / "reported_models.yml"
#: The columns of the table, in symbols: the normalisation, where the branch of attention has it,
#: the factor, what is normalised of q and k, cap and sinks, positions.
COLUMNS = ("N", "x ↦", "s", "N(q), N(k)", "c, Σp", "i, j")
#: How much a cell is worth that was not probed: read in its source, taken over there from another
#: model, told by others, not known.
MARKS = {"read": "†", "inherited": "⇐", "secondary": "‡", "unknown": "?"}
NONE = "–"


@dataclass(frozen=True)
class ModelAnatomy:
    """One model class in one setting.

    Parameters
    ----------
    scale
        The factor, at two widths.
    layer
        Where its first layer normalises.
    attention
        What the attention of that layer does besides.
    l2
        Its q and k are divided by their length, and the factor was measured with that. By behaviour
        this is an RMSNorm without a gain and with another factor.
    sdpa_difference
        By how much the output of the model changes, relative to its size, with PyTorch's fused
        attention; None if the class does not offer it.
    """

    scale: ModelScale
    layer: LayerProbe
    attention: AttentionProbe
    l2: bool
    sdpa_difference: float | None

    @property
    def name(self) -> str:
        """For people."""
        return self.scale.name

    @property
    def cells(self) -> tuple[str, ...]:
        """One entry for each of `COLUMNS`."""
        return (
            self.norm,
            self.residual,
            self.factor,
            self.qk_norm,
            self.limits,
            self.positions,
        )

    @property
    def norm(self) -> str:
        """The normalisation in the residual stream, with what its gain adds to w."""
        offset = self.layer.gain_offset
        if offset is None:
            return f"{self.layer.norm}, w = 1"
        return self.layer.norm + (f", {offset:.0f} + w" if round(offset) else "")

    @property
    def residual(self) -> str:
        """What a layer does to the residual stream."""
        return self.layer.placement + (" + g(N(x))" if self.layer.parallel else "")

    @property
    def factor(self) -> str:
        """The factor: a rule, a number τ that is learned, or one that depends on the query."""
        rule = self.scale.rule
        if self.attention.learned_scale:
            return f"τ, τ₀ = {rule}"
        if abs(self.attention.scale_moves - 1) > 1e-3:
            return "τᵢ/" + rule.partition("/")[2]
        return rule

    @property
    def qk_kind(self) -> str | None:
        """The normalisation of q and k."""
        if self.attention.qk_norm is None or self.attention.qk_shift is None:
            return None
        if self.attention.qk_shift < 0.01:
            return "LayerNorm"
        return "L2" if self.l2 else "RMSNorm"

    @property
    def qk_norm(self) -> str:
        """The normalisation of q and k, over how many components, and before or after RoPE."""
        if self.qk_kind is None:
            return NONE
        width = "d_k" if self.attention.qk_norm == "head" else "h d_k"
        order = ""
        if self.attention.rotated:
            order = {True: ", R(N(q))", False: ", N(R(q))", None: ", R(N(q)) = N(R(q))"}[
                self.attention.norm_first
            ]
        return f"{self.qk_kind}, {width}{order}"

    @property
    def limits(self) -> str:
        """The cap, and whether weights sum to less than 1."""
        found = [] if self.attention.cap is None else [f"c = {self.attention.cap:.4g}"]
        if self.attention.sink > 1e-6:
            found.append("Σp < 1")
        return ", ".join(found) or NONE

    @property
    def positions(self) -> str:
        """What the model knows of positions, besides the causal mask."""
        attention = self.attention
        found = []
        if attention.embedding:
            found.append({"learned": "x + P", "fixed": "x + P₀"}[attention.embedding])
        if attention.rotated:
            share = Fraction(attention.rotated).limit_denominator(64)
            found.append("RoPE" + (f" {share}" if share != 1 else ""))
        if attention.bias == "linear":
            found.append("ALiBi")
        elif attention.bias:
            found.append("b(x, i − j)" if attention.bias_reads_input else "b(i − j)")
        return ", ".join(found) or NONE


@dataclass(frozen=True)
class ReportedModel:
    """A model that was not probed.

    Parameters
    ----------
    name
        For people.
    facts
        One entry for each of `COLUMNS`: `value`, and `status`, a key of `MARKS`; if read, also
        `cite`, `where`, `quote` and `seen`.
    """

    name: str
    facts: tuple[dict[str, str], ...]

    @property
    def cells(self) -> tuple[str, ...]:
        """One entry for each of `COLUMNS`, with its mark."""
        return tuple(
            " ".join(filter(None, (fact.get("value"), MARKS[fact["status"]])))
            for fact in self.facts
        )


def table(rows: Sequence[ModelAnatomy | ReportedModel], corner: str) -> str:
    """Return a table in Markdown, a row for each model; `corner` heads the column of names."""
    lines = [(corner, *COLUMNS), ("---",) * (len(COLUMNS) + 1)]
    lines += [(row.name, *map(_unbroken, row.cells)) for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _unbroken(cell: str) -> str:
    """Short formulas are not broken into lines."""
    return cell.replace(" ", "\N{NO-BREAK SPACE}") if len(cell) < 12 else cell


# ---------------------------------------------------------------------------------------- probing


def dissect(architecture: Architecture) -> ModelAnatomy:
    """Probe one architecture."""
    scale = measure(architecture)
    model = build(architecture, architecture.head_dim)
    attention = probe_attention(architecture, scale.scale, scale.normalised)
    return ModelAnatomy(
        scale=scale,
        layer=probe_layer(model, architecture),
        attention=attention,
        l2=architecture.norms == ("l2",),
        sdpa_difference=sdpa_difference(architecture),
    )


def sdpa_difference(architecture: Architecture) -> float | None:
    """Return how far the two implementations of attention are apart; None if there is one."""
    outputs = []
    for implementation in ("eager", "sdpa"):
        try:
            model = build(architecture, architecture.head_dim, implementation=implementation)
        except ValueError:
            return None
        with torch.no_grad():
            generator = torch.Generator().manual_seed(1)
            for parameter in model.parameters():
                if parameter.dim() > 1:  # large enough that attention matters
                    known = torch.randn(parameter.shape, generator=generator)
                    parameter.copy_(0.3 * known)
            outputs.append(_output(model, architecture))
    return float((outputs[1] - outputs[0]).norm() / outputs[0].norm())


def _output(model: Any, architecture: Architecture) -> torch.Tensor:
    if architecture.family == "image":
        side = model.config.image_size
        output = model(torch.ones(1, 3, side, side, dtype=torch.float64))
    elif architecture.family == "audio":
        output = model.encoder(
            torch.ones(1, model.config.num_mel_bins, 2 * TOKENS, dtype=torch.float64)
        )
    else:
        run = model.encoder if architecture.family == "encoder" else model
        output = run(
            input_ids=torch.arange(1, TOKENS + 1)[None],
            attention_mask=torch.ones(1, TOKENS, dtype=torch.long),
        )
    tensor: torch.Tensor = output.last_hidden_state
    return tensor


# ------------------------------------------------------------------------------------- the records


def read_record(path: Path = RECORD) -> list[ModelAnatomy]:
    """Read what the command wrote; needs no `transformers`.

    Raises
    ------
    FileNotFoundError
        If there is no record.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; `{COMMAND}` writes it, in minutes")
    return [
        ModelAnatomy(
            scale=ModelScale(**line["scale"]),
            layer=LayerProbe(**line["layer"]),
            attention=AttentionProbe(
                **{**line["attention"], "slopes": tuple(line["attention"]["slopes"])}
            ),
            l2=line["l2"],
            sdpa_difference=line["sdpa_difference"],
        )
        for line in json.loads(path.read_text("utf8"))["models"]
    ]


def read_reported(path: Path = REPORTED) -> list[ReportedModel]:
    """Read what papers and released code say of models that were not probed."""
    return [
        ReportedModel(line["name"], tuple(line["facts"][column] for column in COLUMNS))
        for line in yaml.safe_load(path.read_text("utf8"))
    ]


def _rounded(value: Any) -> Any:
    """Without the digits that differ from machine to machine."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, float):
        return float(f"{value:.6g}" if abs(value) > 1e-3 else f"{value:.1e}")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=RECORD, help="the file to write")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    import_module("transformers").logging.set_verbosity_error()
    everything = ARCHITECTURES + FURTHER
    lines = []
    for place, architecture in enumerate(everything, start=1):
        found = dissect(architecture)
        line = {key: _rounded(value) for key, value in asdict(found).items() if key != "scale"}
        lines.append({"scale": asdict(found.scale), **line})
        print(f"[{place}/{len(everything)}] " + " | ".join((found.name, *found.cells)), flush=True)
    record = {"provenance": provenance(COMMAND), "models": lines}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
