"""Retrieval with a real encoder: what a factor on the scores changes, and what one inside changes.

``python -m scaling_book.lab.retrieval`` writes ``data/retrieval.json``. Queries and documents are
those of `scaling_book.lab.docstring_pairs`, embedded by all-MiniLM-L6-v2; a score is a cosine.

- *On the scores*: is the order of documents the same for c · score, in several formats?
- *In a mixture*: the ten best documents and their scores, from which the weights of a softmax
  follow; and c · score + BM25, which is an order of its own for each c.
- *Inside the encoder*: the factor 1/√d_k of all layers times `FACTORS`, without any training.

The record keeps the rank of the right document for each query and each setting. All shares and
intervals that the book shows are computed from them.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling_book.lab.docstring_pairs import WORDS, Pair, digest, docstring_pairs
from scaling_book.lab.encoder import Encoder, load_encoder
from scaling_book.lab.ranking import best_documents, bm25_scores, ranks_of

__all__ = [
    "FACTORS",
    "RECORD",
    "SUM_FACTORS",
    "collect",
    "order_kept",
    "read_record",
    "topics",
    "votes",
]

COMMAND = "python -m scaling_book.lab.retrieval"
#: Where the record lies, whatever the working directory: in the project's folder for data.
RECORD = Path(__file__).resolve().parents[3] / "data" / "retrieval.json"
REMOVED = 32**0.5  # times 1/√d_k with d_k = 32: no factor
#: What 1/√d_k is multiplied by in all layers. 0: every token gets the same weight.
FACTORS = (1.0, 2.0, 0.5, REMOVED, 2**0.5, 4.0, 0.25, 0.0)
#: The c of c · cosine, and the formats in which the products are stored.
SCORE_FACTORS = (1e-3, 384**-0.5, 1e-1, 10.0, 1e3)
FORMATS = ("float64", "float32", "float16")
#: The c of c · cosine + BM25.
SUM_FACTORS = (1.0, 10.0, 30.0, 100.0, 1000.0)
BEST = 10
SAMPLE = 8  # scores of right documents in the record, by which a part of it can be checked

Matrix = NDArray[np.float64]


# -------------------------------------------------------------------------------------- measuring


def order_kept(scores: Matrix, factor: float, fmt: str, k: int = BEST) -> dict[str, float]:
    """Compare the k best documents by c · score with those by the score itself.

    Parameters
    ----------
    scores : array, shape (queries, documents)
    factor
        c, above 0.
    fmt : {"float64", "float32", "float16"}
        What the product is rounded to.
    k
        How many documents are looked at.

    Returns
    -------
    dict
        Shares of queries: `same`, the same documents in the same order; `tied`, two of the k + 1
        best have become equal; `reversed`, a document stands strictly before another that had the
        higher score.
    """
    order = np.argsort(-scores, axis=1, kind="stable")
    with np.errstate(over="ignore"):  # infinite where the format ends: those are ties
        product = (scores * factor).astype(fmt)
    sorted_by_score = np.take_along_axis(product, order, axis=1)
    # along the old order the product must not rise anywhere
    rises = (sorted_by_score[:, 1:] > sorted_by_score[:, :-1]).any(axis=1)
    top = sorted_by_score[:, : k + 1]
    return {
        "same": float((best_documents(product, k) == order[:, :k]).all(axis=1).mean()),
        "tied": float((top[:, 1:] == top[:, :-1]).any(axis=1).mean()),
        "reversed": float(rises.mean()),
    }


def invariance(scores: Matrix) -> list[dict[str, Any]]:
    """`order_kept` for all factors and formats."""
    return [
        {"format": fmt, "factor": factor, **order_kept(scores, factor, fmt)}
        for fmt in FORMATS
        for factor in (1.0, *SCORE_FACTORS)
    ]


def inside(
    encoder: Encoder, pairs: Sequence[Pair], factors: Sequence[float], say: Callable[[str], None]
) -> tuple[dict[float, Matrix], list[dict[str, Any]]]:
    """Embed everything once for each factor inside the encoder.

    Returns
    -------
    scores : dict
        Cosines of each query with each document, for each factor.
    lines : list of dict
        For the record: the ranks, quantiles of the cosine between a text's embedding and the
        model's own, and the scores of the first right documents.
    """
    texts = [pair.query for pair in pairs] + [pair.document for pair in pairs]
    own = encoder.embed(texts)
    scores, lines = {}, []
    for factor in factors:
        rows = own if factor == 1 else encoder.embed(texts, factor=factor)
        scores[factor] = rows[: len(pairs)] @ rows[len(pairs) :].T
        right_scores = scores[factor].diagonal()[:SAMPLE]
        cosine = np.quantile((rows * own).sum(axis=1), (0.05, 0.5, 0.95)).tolist()
        ranks = ranks_of(scores[factor], np.arange(len(pairs)))
        lines.append(
            {
                "factor": factor,
                "cosine": dict(zip(("low", "median", "high"), cosine, strict=True)),
                "right_scores": right_scores.round(5).tolist(),
                "ranks": ranks.tolist(),
            }
        )
        say(f"factor {factor:.3g}: recall@1 = {(ranks == 1).mean():.3f}")
    lines.sort(key=lambda line: float(line["factor"]))
    return scores, lines


def collect(
    source: str | None = None,
    *,
    limit: int | None = None,
    factors: Sequence[float] = FACTORS,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measure everything and return the record.

    Parameters
    ----------
    source
        As for `load_encoder`.
    limit
        Use only the first pairs; for a trial.
    factors
        Inside the encoder; 1 must be among them.
    say
        Called with a line of progress.
    """
    start = time.process_time()
    encoder, pairs = load_encoder(source), docstring_pairs()[:limit]
    scores, lines = inside(encoder, pairs, factors, say)
    cosines, right = scores[1.0], np.arange(len(pairs))
    words = bm25_scores([pair.query for pair in pairs], [pair.document for pair in pairs])
    best = best_documents(cosines, BEST)
    return {
        "provenance": {
            "command": COMMAND,
            "date": date.today().isoformat(),
            "processor_seconds": round(time.process_time() - start),
            **{name: version(name) for name in ("numpy", "torch", "transformers")},
            "python": platform.python_version(),
            "model": encoder.source,
            "model_sha256": encoder.sha256,
            "texts_sha256": digest(pairs),
        },
        "setting": {"words": WORDS, "best": BEST},
        "names": [pair.name for pair in pairs],
        "inside": lines,
        "bm25": ranks_of(words, right).tolist(),
        "sums": [
            {"factor": c, "ranks": ranks_of(c * cosines + words, right).tolist()}
            for c in SUM_FACTORS
        ],
        "invariance": invariance(cosines),
        "best": best.tolist(),
        "best_scores": np.take_along_axis(cosines, best, axis=1).round(5).tolist(),
    }


# -------------------------------------------------------------------------------------- reading


def topics(record: Mapping[str, Any]) -> list[str]:
    """Return the module of each document, such as ``linalg``; of numpy's own, ``numpy``."""
    return [name.rsplit(".", 1)[0].rsplit(".", 1)[-1] for name in record["names"]]


def votes(weights: Matrix, found: Sequence[Sequence[str]]) -> list[str]:
    """Return the topic with the largest sum of weights, for each query.

    Parameters
    ----------
    weights : array, shape (queries, k)
        Of the documents that were found.
    found
        Their topics. Of topics with equal sums the first found wins.
    """
    chosen = []
    for row, names in zip(weights, found, strict=True):
        total: dict[str, float] = {}
        for weight, name in zip(row.tolist(), names, strict=True):
            total[name] = total.get(name, 0.0) + weight
        chosen.append(max(total, key=lambda name: total[name]))
    return chosen


def read_record(path: Path = RECORD) -> dict[str, Any]:
    """Read the record that the command wrote.

    Raises
    ------
    FileNotFoundError
        If there is none.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; `{COMMAND}` writes it, in a few minutes")
    record: dict[str, Any] = json.loads(path.read_text("utf8"))
    return record


def write(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record, one line for each entry: long lists of numbers stay on one line."""
    lines = []
    for name, content in record.items():
        if isinstance(content, list) and isinstance(content[0], (dict, list)):
            text = "[\n  " + ",\n  ".join(compact(line) for line in content) + "\n ]"
        else:
            text = compact(content)
        lines.append(f" {json.dumps(name)}: {text}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf8")


def compact(content: Any) -> str:
    """Return JSON without spaces."""
    return json.dumps(content, separators=(",", ":"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=RECORD, help="the file to write")
    parser.add_argument("--model", help="a folder or a name on the hub, instead of the wheel")
    parser.add_argument("--limit", type=int, help="use only the first so many queries")
    options = parser.parse_args(arguments)
    record = collect(
        options.model,
        limit=options.limit,
        factors=FACTORS,
        say=lambda line: print(line, flush=True),
    )
    write(options.out, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
