"""The measurements of a build: made once for each state of the code, then read from a file.

Nothing here imports NumPy, torch or a module with evidence: when the file is there, an edit of
prose costs no more than reading it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from scaling_book.evidence import Measurement
from scaling_book.site.fingerprint import execution_fingerprint


class EvidenceFailed(RuntimeError):
    """An evidence function raised an error, or a measurement did not prove its claim."""


def evidence_file(build_dir: Path) -> Path:
    """Return where the measurements lie that are valid for the code as it stands now."""
    return build_dir / f"evidence-{execution_fingerprint()}.json"


def evidence_results(build_dir: Path) -> dict[str, list[Measurement]]:
    """Return the measurements behind every claim, by slug; measure if the code has changed.

    Parameters
    ----------
    build_dir
        The folder that holds what a build makes; the file of results is written there.

    Raises
    ------
    EvidenceFailed
        If the evidence does not prove the claims. Nothing is kept then, so that the next build
        fails too.
    """
    file = evidence_file(build_dir)
    if not file.is_file():
        _measure(file)
    content = json.loads(file.read_text("utf8"))
    return {slug: [Measurement(**row) for row in rows] for slug, rows in content.items()}


def _measure(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    # In a folder of its own and moved when complete: a build beside this one never reads half.
    with tempfile.TemporaryDirectory(dir=file.parent, prefix="evidence-") as folder:
        draft = Path(folder) / file.name
        done = subprocess.run(
            [sys.executable, "-X", "utf8", "-m", "scaling_book.evidence", "--json", str(draft)],
            capture_output=True,
            # It runs beside the cells, and its last digits must not depend on the number of cores.
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            encoding="utf8",
            check=False,
        )
        if done.returncode:
            raise EvidenceFailed(
                "The evidence does not prove the claims. `python -m scaling_book.evidence` says:\n"
                f"{done.stderr.strip() or done.stdout.strip()}"
            )
        os.replace(draft, file)
