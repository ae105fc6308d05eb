"""The Sphinx extension of this book, which ``_config.yml`` lists."""

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config

from scaling_book.site import (
    address,
    alt_text,
    anchors,
    claims,
    finish,
    katex,
    notebooks,
    numbering,
)
from scaling_book.site.fingerprint import execution_cache


def _use_execution_cache(app: Sphinx, config: Config) -> None:
    # Here and not in the build script, so that a plain `jupyter-book build .` is right as well.
    config.nb_execution_cache_path = str(execution_cache(Path(app.outdir).parent))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register everything this book adds to Sphinx."""
    app.connect("config-inited", _use_execution_cache)
    for part in (katex, claims, address, alt_text, anchors, finish, notebooks, numbering):
        part.setup(app)
    return {"version": "0.1", "parallel_read_safe": True, "parallel_write_safe": True}
