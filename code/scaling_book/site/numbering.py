"""Numbers for chapters and pages only, so that 2.1 stays the first page of chapter 2.

Sphinx numbers the headings of a chapter's opening page in one series with the chapter's pages: a
new heading there would renumber every page after it.
"""

from collections.abc import Iterator

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

TAKEN = "book_taken_section_numbers"


def _is_opening(docname: str) -> bool:
    return docname.endswith("/index")


def _pages_first(app: Sphinx, doctree: nodes.document) -> None:
    # Before Sphinx numbers them: the chapter's pages take the numbers 1, 2, 3, …
    if _is_opening(app.env.docname):
        contents = app.env.tocs[app.env.docname]
        for toctree in list(contents.findall(addnodes.toctree)):
            entries = toctree.parent
            entries.remove(toctree)
            entries.insert(0, toctree)


def _headings(env: BuildEnvironment, docname: str) -> Iterator[nodes.reference]:
    for paragraph in env.tocs[docname].findall(addnodes.compact_paragraph):
        reference = paragraph[0]
        if isinstance(reference, nodes.reference) and reference["anchorname"]:
            yield reference


def _as_sphinx_left_it(app: Sphinx, env: BuildEnvironment) -> list[str]:
    # Before Sphinx compares: a page whose numbers seem to have changed would be written again.
    for docname, numbers in getattr(env, TAKEN, {}).items():
        env.toc_secnumbers.get(docname, {}).update(numbers)
    return []


def _unnumbered_headings(app: Sphinx, env: BuildEnvironment) -> list[str]:
    # After: the headings of the opening page give theirs back.
    taken: dict[str, dict[str, tuple[int, ...]]] = {}
    for docname in filter(_is_opening, env.toc_secnumbers):
        numbers = env.toc_secnumbers[docname]
        anchors = [heading["anchorname"] for heading in _headings(env, docname)]
        taken[docname] = {anchor: numbers[anchor] for anchor in anchors if anchor in numbers}
        # empty, not missing: Sphinx would fall back on the number of the page
        numbers.update(dict.fromkeys(anchors, ()))
        for heading in _headings(env, docname):
            heading["secnumber"] = None
    setattr(env, TAKEN, taken)  # kept with the environment, for the next build
    return []


def setup(app: Sphinx) -> None:
    """Act after Sphinx has collected the headings, and after it has numbered them."""
    app.connect("doctree-read", _pages_first, priority=900)
    app.connect("env-get-updated", _as_sphinx_left_it, priority=100)
    app.connect("env-get-updated", _unnumbered_headings, priority=900)
