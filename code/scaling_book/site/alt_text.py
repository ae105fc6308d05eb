"""Every image says in words what it shows; one that does not is a warning, so the build fails."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)


class _Images(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.images: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            attributes = {name: value or "" for name, value in attrs}
            self.images.append((attributes.get("src", ""), attributes.get("alt", "")))


def says_nothing(alt: str, source: str) -> bool:
    """Tell whether an alternative text is missing, or is only the name of the file."""
    name = source.rsplit("/", 1)[-1]
    return not alt.strip() or alt.strip() in (source, name, name.rsplit(".", 1)[0])


def _line(node: nodes.Node, name: str, page: Path) -> int:
    """Return the line in a page's source where an image stands.

    Images carry no line of their own. One that comes out of a cell is where the cell is; one that
    was written down is at the first line that names it, from the nearest known line on.
    """
    parent: nodes.Node | None = node
    while parent is not None and not parent.line:
        parent = parent.parent
    known = (parent.line if parent is not None else None) or 1
    lines = page.read_text("utf8").splitlines()
    named = (number for number, line in enumerate(lines, 1) if number >= known and name in line)
    return next(named, known)


def _images(doctree: nodes.document) -> list[tuple[nodes.Element, str, str]]:
    found: list[tuple[nodes.Element, str, str]] = [
        (image, image.get("uri", ""), image.get("alt", ""))
        for image in doctree.findall(nodes.image)
    ]
    for raw in doctree.findall(nodes.raw):
        if "html" in raw.get("format", "").split():
            parser = _Images()
            parser.feed(raw.astext())
            found += [(raw, source, alt) for source, alt in parser.images]
    return found


def check_alt_texts(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Warn of every image on the page that says nothing."""
    if app.builder.format != "html":
        return
    for node, source, alt in _images(doctree):
        if says_nothing(alt, source):
            name = source.rsplit("/", 1)[-1]
            logger.warning(
                "image without alternative text: %s",
                name[:120],
                location=(docname, _line(node, name, Path(app.env.doc2path(docname)))),
                type="book",
                subtype="alt",
            )


def setup(app: Sphinx) -> None:
    """Check every page as it is written."""
    # late: by then a cell's outputs are images
    app.connect("doctree-resolved", check_alt_texts, priority=900)
