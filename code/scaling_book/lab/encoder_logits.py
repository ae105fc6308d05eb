"""The attention logits of a trained encoder, computed from its weights, layer by layer.

``python -m scaling_book.lab.encoder_logits`` writes ``data/minilm_logits.json``: for each layer and
head of all-MiniLM-L6-v2 the spread and the size of q·k, the entropy of attention, and what half
precision does to the embeddings. The numbers come from the weights, by
`scaling_book.lab.encoder_forward`, in float64 and one text at a time.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attention_scaling import attention_logits, effective_keys, entropy, softmax
from scaling_book.lab.docstring_pairs import digest, docstring_pairs
from scaling_book.lab.encoder import MAX_TOKENS, Encoder, load_encoder
from scaling_book.lab.encoder_forward import attention_inputs, in_precision

__all__ = [
    "PRECISIONS",
    "RECORD",
    "HeadLogits",
    "head_logits",
    "long_texts",
    "read_record",
]

COMMAND = "python -m scaling_book.lab.encoder_logits"
#: Where the record lies, whatever the working directory: in the project's folder for data.
RECORD = Path(__file__).resolve().parents[3] / "data" / "minilm_logits.json"
SEED = 1810
TEXTS = 24
TOKENS = 128  # of each text, for the table of heads
LENGTHS = (16, 32, 64, 128, 256)
#: Formats and what is done in them; see `in_precision`.
PRECISIONS = (
    ("float16", "after_product"),
    ("float16", "float32_scores"),
    ("float16", "fused"),
    ("bfloat16", "after_product"),
    ("bfloat16", "float32_scores"),
    ("bfloat16", "fused"),
)


@dataclass(frozen=True)
class HeadLogits:
    """What one head does with some texts of equal length.

    Parameters
    ----------
    layer, head
        Counted from 0.
    raw_std
        Standard deviation of all q·k, over queries, keys and texts.
    row_std, row_std_error
        Standard deviation of q·k over the keys of one query, root mean square over queries; mean
        over texts and its standard error. This is the part that softmax sees: what all keys of a
        row share drops out of it.
    scaled_std
        `row_std` times the factor.
    max_abs, fp16_share
        The largest \\|q·k\\| of all, and its share of float16's largest number.
    entropy, entropy_error
        Of the weights of a query, in nats, after the factor; mean over texts and standard error.
    effective_keys, top_weight
        exp of the entropy, and the largest weight, of each query; means.
    q_rms, k_rms
        Root mean square of the components of q and of k: 1 under the textbook's premise.
    """

    layer: int
    head: int
    raw_std: float
    row_std: float
    row_std_error: float
    scaled_std: float
    max_abs: float
    fp16_share: float
    entropy: float
    entropy_error: float
    effective_keys: float
    top_weight: float
    q_rms: float
    k_rms: float


# -------------------------------------------------------------------------------------- measuring


def head_logits(encoder: Encoder, texts: Sequence[torch.Tensor]) -> list[HeadLogits]:
    """Measure all heads on some texts of equal length.

    Parameters
    ----------
    encoder
        A BERT.
    texts
        Tokens of at least two texts, all of the same length.
    """
    runs = [attention_inputs(encoder, tokens)[0] for tokens in texts]
    found = []
    for layer in range(len(runs[0])):
        q, k = (torch.stack([run[layer][part] for run in runs]) for part in (0, 1))
        raw = attention_logits(q, k, scale=1.0)  # (texts, heads, n, n)
        scale = q.shape[-1] ** -0.5
        weights = softmax(scale * raw)
        h, keys = entropy(weights).mean(-1), effective_keys(weights)
        rows = raw.var(dim=-1, correction=0).mean(-1).sqrt()  # (texts, heads)
        for head in range(raw.shape[1]):
            row_std, row_std_error = _mean(rows[:, head])
            mean_entropy, entropy_error = _mean(h[:, head])
            largest = float(raw[:, head].abs().max())
            found.append(
                HeadLogits(
                    layer=layer,
                    head=head,
                    raw_std=float(raw[:, head].std(correction=0)),
                    row_std=row_std,
                    row_std_error=row_std_error,
                    scaled_std=row_std * scale,
                    max_abs=largest,
                    fp16_share=largest / torch.finfo(torch.float16).max,
                    entropy=mean_entropy,
                    entropy_error=entropy_error,
                    effective_keys=float(keys[:, head].mean()),
                    top_weight=float(weights[:, head].amax(-1).mean()),
                    q_rms=float(q[:, head].square().mean().sqrt()),
                    k_rms=float(k[:, head].square().mean().sqrt()),
                )
            )
    return found


def _mean(values: torch.Tensor) -> tuple[float, float]:
    """Mean over texts and its standard error."""
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))


def long_texts(encoder: Encoder, count: int = TEXTS, seed: int = SEED) -> dict[str, torch.Tensor]:
    """Draw documents of NumPy that fill the model's longest input; name and tokens of each."""
    pairs = docstring_pairs(words=10**6)
    tokens = {pair.name: encoder.tokens(pair.document) for pair in pairs}
    long = [name for name in tokens if len(tokens[name]) == MAX_TOKENS]
    chosen = np.random.default_rng(seed).choice(long, count, replace=False)
    return {str(name): tokens[str(name)] for name in chosen}


def cut(tokens: torch.Tensor, length: int) -> torch.Tensor:
    """Shorten a text as the tokenizer does, which keeps the last token, [SEP]."""
    return torch.cat([tokens[: length - 1], tokens[-1:]])


def by_length(encoder: Encoder, texts: Sequence[torch.Tensor]) -> list[dict[str, float]]:
    """The same texts, cut to different lengths: means over all heads."""
    found = []
    for length in LENGTHS:
        heads = head_logits(encoder, [cut(tokens, length) for tokens in texts])
        row: dict[str, float] = {"tokens": length}
        for name in ("scaled_std", "effective_keys", "top_weight"):
            row[name] = float(np.mean([getattr(head, name) for head in heads]))
        row["max_abs"] = max(head.max_abs for head in heads)
        found.append(row)
    return found


def by_precision(encoder: Encoder, texts: Sequence[torch.Tensor]) -> list[dict[str, Any]]:
    """How far embeddings move when attention is computed in half precision."""
    exact = torch.stack([attention_inputs(encoder, tokens)[1] for tokens in texts])
    found = []
    for fmt, place in PRECISIONS:
        attend = in_precision(fmt, place)
        rough = torch.stack([attention_inputs(encoder, tokens, attend)[1] for tokens in texts])
        distance = (rough - exact).norm(dim=1)
        found.append(
            {
                "format": fmt,
                "place": place,
                "finite": bool(rough.isfinite().all()),
                "distance_median": float(distance.median()),
                "distance_max": float(distance.max()),
            }
        )
    return found


# -------------------------------------------------------------------------------------- the record


def collect(source: str | None = None, count: int = TEXTS) -> dict[str, Any]:
    """Measure everything and return the record."""
    start = time.process_time()
    encoder = load_encoder(source)
    texts = long_texts(encoder, count)
    tokens = list(texts.values())
    short = [cut(t, TOKENS) for t in tokens]
    content = {
        "heads": [asdict(head) for head in head_logits(encoder, short)],
        "lengths": by_length(encoder, tokens),
        "precision": by_precision(encoder, short),
    }
    return {
        "provenance": {
            "command": COMMAND,
            "date": date.today().isoformat(),
            "processor_seconds": round(time.process_time() - start),
            **{name: version(name) for name in ("torch", "transformers", "numpy")},
            "python": platform.python_version(),
            "model": encoder.source,
            "model_sha256": encoder.sha256,
            "texts_sha256": digest(docstring_pairs(words=10**6)),
        },
        "setting": {
            "seed": SEED,
            "tokens": TOKENS,
            "d_model": encoder.model.config.hidden_size,
            "head_dim": encoder.model.config.hidden_size
            // encoder.model.config.num_attention_heads,
            "texts": list(texts),
        },
        **rounded(content),
    }


def rounded(content: Any) -> Any:
    """Round all floats to five digits."""
    if isinstance(content, dict):
        return {name: rounded(value) for name, value in content.items()}
    if isinstance(content, list):
        return [rounded(value) for value in content]
    return float(f"{content:.5g}") if isinstance(content, float) else content


def read_record(path: Path = RECORD) -> dict[str, Any]:
    """Read the record that the command wrote; `heads` holds `HeadLogits`.

    Raises
    ------
    FileNotFoundError
        If there is none.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; `{COMMAND}` writes it, in a minute or two")
    record: dict[str, Any] = json.loads(path.read_text("utf8"))
    record["heads"] = [HeadLogits(**line) for line in record["heads"]]
    return record


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=RECORD, help="the file to write")
    parser.add_argument("--model", help="a folder or a name on the hub, instead of the wheel")
    parser.add_argument("--texts", type=int, default=TEXTS, help="how many documents")
    options = parser.parse_args(arguments)
    record = collect(options.model, options.texts)
    options.out.write_text(json.dumps(record, indent=1) + "\n", "utf8")
    return 0


if __name__ == "__main__":
    import_module("sys").exit(main())
