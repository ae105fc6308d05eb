"""A heading's address is its label, which never changes, and not a slug of its words."""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx


def label_first(app: Sphinx, doctree: nodes.document) -> None:
    """Put a section's explicit label before the id that was made from its title.

    The first id is the one that permalinks, tables of contents and search results point to. The
    other stays as a second anchor.
    """
    labels = {doctree.nameids[name] for name, explicit in doctree.nametypes.items() if explicit}
    for section in doctree.findall(nodes.section):
        section["ids"].sort(key=lambda anchor: anchor not in labels)  # stable


def setup(app: Sphinx) -> None:
    """Act on every page as it is read."""
    app.connect("doctree-read", label_first, priority=100)  # before the contents are collected
