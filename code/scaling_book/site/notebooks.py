"""Notebooks to take away: every page with cells, with its outputs, as a clean ``.ipynb`` file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from jupyter_cache import get_cache
from myst_nb.core.read import is_myst_markdown_notebook, read_myst_markdown_notebook
from nbformat import NotebookNode
from sphinx.application import Sphinx
from sphinx.util import logging

from scaling_book.site.paths import PROJECT_ROOT

logger = logging.getLogger(__name__)

# What Python prints of an object without a repr. Bit patterns of floats have 4, 8 or 16 digits.
ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]{6,}|\b0x[0-9a-fA-F]{9,13}\b")
LABEL = re.compile(r"^\([A-Za-z0-9_.:-]+\)=[ \t]*\n", re.MULTILINE)
GLUE = "application/papermill.record/"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def page_with_cells(source: Path) -> NotebookNode | None:
    """Return the page as a notebook without outputs, or None if it holds no cells."""
    if source.suffix != ".md":
        return None
    text = source.read_text("utf8")
    if not is_myst_markdown_notebook(text):
        return None
    return read_myst_markdown_notebook(text, add_source_map=True, path=str(source))


def with_outputs(notebook: NotebookNode, cache_folder: str) -> NotebookNode:
    """Return the notebook with the outputs that lie in the cache of executed pages.

    Raises
    ------
    KeyError
        If exactly these cells were not executed.
    """
    _, merged = get_cache(cache_folder).merge_match_into_notebook(notebook)
    return merged


def _texts(output: NotebookNode) -> Iterator[str]:
    yield str(output.get("text", ""))
    yield from output.get("traceback", [])
    yield from (str(value) for value in output.get("data", {}).values())


def leaks(notebook: NotebookNode) -> Iterator[tuple[int, str]]:
    """Yield what outputs say of one run on one machine: the cell's number, and the fault.

    Addresses of objects change with every run, and paths with every machine.
    """
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            for text in _texts(output):
                if found := ADDRESS.search(text):
                    yield number, f"an output holds the address of an object, {found[0]!r}"
                if str(PROJECT_ROOT) in text:
                    yield number, f"an output holds a path of this machine, {str(PROJECT_ROOT)!r}"


def cleaned(notebook: NotebookNode, docname: str) -> NotebookNode:
    """Return the notebook as a reader should get it: no records of the build, stable ids."""
    cells = []
    for number, cell in enumerate(notebook.cells):
        clean = NotebookNode(
            id=f"{docname.rpartition('/')[2]}-{number}"[:64],
            cell_type=cell.cell_type,
            metadata=NotebookNode({k: v for k, v in cell.metadata.items() if k == "tags"}),
            source=cell.source,
        )
        if cell.cell_type == "markdown":
            clean.source = LABEL.sub("", cell.source)
        if cell.cell_type == "code":
            clean.execution_count = cell.execution_count
            clean.outputs = list(filter(None, map(_cleaned_output, cell.outputs)))
        cells.append(clean)
    metadata = NotebookNode(kernelspec=KERNEL, language_info=NotebookNode(name="python"))
    result = NotebookNode(nbformat=4, nbformat_minor=5, metadata=metadata, cells=cells)
    nbformat.validate(result)
    return result


def _cleaned_output(output: NotebookNode) -> NotebookNode | None:
    clean = NotebookNode(output)
    if "data" in output:
        clean.data = {k: v for k, v in output.data.items() if not k.startswith(GLUE)}
        clean.metadata = NotebookNode({k: v for k, v in output.metadata.items() if k in clean.data})
        if not clean.data:
            return None
    return clean


def offer_notebook(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
) -> None:
    """Write the page's notebook and tell the template where it is."""
    if pagename not in app.env.all_docs or app.builder.format != "html":
        return
    notebook = page_with_cells(Path(app.env.doc2path(pagename)))
    if notebook is None:
        return
    lines = notebook.metadata.pop("source_map")
    if app.config.nb_execution_mode != "off":
        try:
            notebook = with_outputs(notebook, app.config.nb_execution_cache_path)
        except KeyError:
            logger.warning(
                "the cells were not executed: the notebook to download has no outputs",
                location=pagename,
                type="book",
                subtype="notebook",
            )
    for cell, fault in leaks(notebook):
        logger.warning(
            fault,
            location=(pagename, lines[cell] + 1),
            type="book",
            subtype="address",
        )
    target = Path(app.outdir) / "_sources" / f"{pagename}.ipynb"
    target.parent.mkdir(parents=True, exist_ok=True)
    content = json.dumps(cleaned(notebook, pagename), indent=1, ensure_ascii=False)
    target.write_text(content + "\n", "utf8")
    context["ipynb_source"] = f"{pagename}.ipynb"


def setup(app: Sphinx) -> None:
    """Offer a notebook on every page with cells."""
    # before the theme puts its buttons together, at 501
    app.connect("html-page-context", offer_notebook, priority=400)
