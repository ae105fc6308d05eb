"""A tiny book that inherits this book's configuration, for what no page of the book may do.

Its measurements are written beforehand, where a build looks for them, so that no evidence runs.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from scaling_book.evidence import Measurement
from scaling_book.site.evidence_cache import evidence_file

ROOT = Path(__file__).parents[2]
JUPYTER_BOOK = "import sys; from jupyter_book.cli.main import main; sys.exit(main())"
# Runs code with arguments in a folder; see `warm_python`.
Run = Callable[..., subprocess.CompletedProcess[str]]


class Book:
    """A tiny book: three pages, some records, some measurements."""

    A_PAGE, B_PAGE = "chapters/1-a/index", "chapters/1-a/b"

    def __init__(self, folder: Path, run: Run) -> None:
        self.folder = folder
        self.run = run
        for name in ("_config.yml", "references.bib"):
            shutil.copy(ROOT / name, folder / name)
        self.write("_toc.yml", "format: jb-book\nroot: index\nchapters:\n")
        for page in (self.A_PAGE, self.B_PAGE, "ledger", "bibliography"):
            self.write("_toc.yml", f"  - file: {page}\n", mode="a")
        self.write("index.md", "(start)=\n# Start\n")
        self.write("bibliography.md", "(bib)=\n# Bibliography\n\n```{bibliography}\n```\n")

    def write(self, name: str, text: str, mode: str = "w") -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode, encoding="utf8") as stream:
            stream.write(text)

    def page(self, name: str, title: str, *slugs: str) -> None:
        cards = "".join(f"```{{claim}} {slug}\n```\n\n" for slug in slugs)
        label = Path(name).name + "-page"
        self.write(f"{name}.md", f"({label})=\n# {title}\n\n{cards}")

    @staticmethod
    def record(name: str, page: str = A_PAGE, **changes: object) -> dict[str, object]:
        """Return a good record, or one with changes."""
        return {
            "name": name,
            "leads": ["C08"],
            "phrase": "均值仍为 0",
            "answer": "The mean of $q$ stays 0.",
            "verdict": "holds-if",
            "right": f"Right about {name}: $d_k \\rho$, see {{cite:t}}`vaswani2017`.",
            "conditions": "Independent vectors.",
            "sources": [{"cite": "vaswani2017", "where": "footnote 4", "status": "secondary"}],
            "page": page,
        } | changes

    def ledger(self) -> None:
        self.write("ledger.md", "(ledger)=\n# Ledger\n\n```{ledger}\n```\n")

    def records(self, chapter: str = "1-a", /, **records: dict[str, object]) -> None:
        named = {slug.replace("_", "-"): content for slug, content in records.items()}
        text = yaml.safe_dump(named, allow_unicode=True, sort_keys=False)
        self.write(f"chapters/{chapter}/claims.yml", text)

    def evidence(self, **evidence: Measurement) -> None:
        rows = {slug.replace("_", "-"): [asdict(one)] for slug, one in evidence.items()}
        file = evidence_file(self.folder / "_build")
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(rows), "utf8")

    def build(self) -> tuple[int, str]:
        arguments = ("build", "-W", "-n", "--keep-going", ".")
        done = self.run(JUPYTER_BOOK, *arguments, cwd=self.folder)
        return done.returncode, re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)

    def html(self, page: str) -> str:
        return (self.folder / "_build" / "html" / f"{page}.html").read_text("utf8")

    def card(self, slug: str, page: str = A_PAGE) -> str:
        html = self.html(page)
        start = html.index(f'id="claim-{slug}"')
        end = html.find('<div class="claim ', start)
        return html[start : end if end > 0 else html.index("</article>", start)]

    def warnings(self) -> tuple[int, list[str]]:
        """Build, and return the status and the lines with a warning."""
        status, output = self.build()
        lines = [line for line in output.splitlines() if "WARNING: " in line or "ERROR: " in line]
        return status, [line for line in lines if "IPKernelApp" not in line]


@pytest.fixture
def book(tmp_path: Path, warm_python: Any) -> Book:
    """Return a tiny book, empty but for its start."""
    return Book(tmp_path, warm_python.run)


@pytest.fixture(scope="module")
def lasting_book(tmp_path_factory: pytest.TempPathFactory, warm_python: Any) -> Book:
    """Return a tiny book for all tests of a module."""
    return Book(tmp_path_factory.mktemp("book"), warm_python.run)
