"""A hash of what the fate of the evidence depends on: code, laws and the data that it reads."""

from __future__ import annotations

import hashlib
from pathlib import Path

#: The project's root folder, whatever the working directory is.
ROOT = Path(__file__).resolve().parents[3]
LIBRARY, LAWS = "code/attention_scaling", "tests/library"
# In `data` also what no evidence reads today: it may tomorrow.
WATCHED = (
    *(LIBRARY, LAWS),
    "code/scaling_book/__init__.py",
    "code/scaling_book/evidence",
    "code/scaling_book/lab",
    "data",
)
#: Records that are made from the code and not read by the evidence; `run_mutants` measures without
#: them.
RESULTS = (
    "data/mutants.json",
    "data/false_alarms.json",
    "data/conformance.json",
    "data/minilm_logits.json",
    "data/retrieval.json",
    "data/probe_overhead.json",
)


def code_fingerprint(root: Path = ROOT) -> str:
    """Return hex digits that change with the code, the laws and the data.

    The versions of packages are not part of it: a record is not wrong because a reader has others.
    """
    files = []
    for name in WATCHED:
        path = root / name
        files += [path] if path.is_file() else list(path.rglob("*"))
    texts = []
    for path in sorted(files):
        name = path.relative_to(root).as_posix()
        if path.suffix in {".py", ".json", ".jsonl"} and name not in RESULTS:
            texts.append(f"{name} {digest(path.read_text('utf8'))}")
    return digest("\n".join(texts))


def digest(text: str) -> str:
    """Return 16 hex digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
