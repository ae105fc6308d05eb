"""Records as JSON files that are there as a whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write(path: Path, content: Any) -> None:
    """Write a file at once or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    draft.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf8")
    os.replace(draft, path)


def read(path: Path, command: str) -> dict[str, Any]:
    """Read a record.

    Raises
    ------
    FileNotFoundError
        If there is none; the message names the command that makes it.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; `{command}` writes it, in under an hour")
    record: dict[str, Any] = json.loads(path.read_text("utf8"))
    return record
