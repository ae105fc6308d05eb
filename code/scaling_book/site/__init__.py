"""The Sphinx extension of this book; ``_config.yml`` lists it as ``scaling_book.site``."""

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
from scaling_book.site.fingerprint import execution_fingerprint


def execution_cache(build: Path) -> Path:
    """Return the folder of executed notebooks that is valid for the code as it stands now."""
    return build / f".jupyter_cache-{execution_fingerprint()}"


def _use_execution_cache(app: Sphinx, config: Config) -> None:
    # Here and not in the build script, so that a plain `jupyter-book build .` is right as well.
    config.nb_execution_cache_path = str(execution_cache(Path(app.outdir).parent))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register everything this book adds to Sphinx."""
    app.connect("config-inited", _use_execution_cache)
    katex.setup(app)
    claims.setup(app)
    for part in (address, alt_text, anchors, finish, notebooks, numbering):
        part.setup(app)
    return {"version": "0.1", "parallel_read_safe": True, "parallel_write_safe": True}
