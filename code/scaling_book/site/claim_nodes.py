"""The pieces that claim directives and roles are made of: elements, badges, tables, late links."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

from scaling_book.site.claim_register import card_anchor, ledger_anchor, register_of
from scaling_book.site.claim_words import Words, words_for
from scaling_book.site.claims_file import VERDICTS, Claim

# HTML elements that hold nothing and have no end tag
VOID = ("input",)
# From best to worst: what the edge of a line with several verdicts shows
FROM_BEST_TO_WORST = ("holds", "holds-if", "not-reproducible", "misleading", "wrong")
assert sorted(FROM_BEST_TO_WORST) == sorted(VERDICTS)


class html_element(nodes.General, nodes.Element):
    """An HTML element around its children; ``tag`` names it, ``html`` holds its attributes."""


def visit_html_element(self: Any, node: html_element) -> None:
    """Open the element; docutils writes its id and classes."""
    self.body.append(self.starttag(node, node["tag"], **node["html"]))


def depart_html_element(self: Any, node: html_element) -> None:
    """Close the element, if it can hold anything."""
    if node["tag"] not in VOID:
        self.body.append(f"</{node['tag']}>\n")


def pass_over(self: Any, node: html_element) -> None:
    """Write the children alone, for formats that have no such element."""


def element(
    tag: str,
    *classes: str,
    children: Iterable[nodes.Node] = (),
    ids: Sequence[str] = (),
    **html: str,
) -> nodes.Element:
    """Return an HTML element; an underscore in an attribute's name stands for a hyphen."""
    attributes = {name.rstrip("_").replace("_", "-"): value for name, value in html.items()}
    return html_element(
        "", *children, tag=tag, classes=list(classes), ids=list(ids), html=attributes
    )


class Here:
    """A page that is about to be written, when it is known where everything is.

    Parameters
    ----------
    app
        The build.
    docname
        The page.
    """

    def __init__(self, app: Sphinx, docname: str) -> None:
        self.app = app
        self.docname = docname
        self.register = register_of(app.env)
        self.words: Words = words_for(app.config.language)

    def claim(self, slug: str) -> Claim | None:
        """Return a claim; None if there is no such record, which the check reports."""
        return self.register.claims.get(slug)

    def address(self, document: str, anchor: str = "") -> str:
        """Return the relative address of a place in a document."""
        uri = self.app.builder.get_relative_uri(self.docname, document)
        return f"{uri}#{anchor}" if anchor else uri

    def link(
        self,
        document: str | None,
        anchor: str,
        *children: nodes.Node,
        classes: Sequence[str] = (),
        title: str = "",
    ) -> nodes.Element:
        """Return a link to a place in a document, or the bare children if there is none."""
        if document is None:
            return nodes.inline("", "", *children, classes=list(classes))
        link = nodes.reference(
            "", "", *children, refuri=self.address(document, anchor), internal=True,
            classes=list(classes),
        )  # fmt: skip
        if title:
            link["reftitle"] = title
        return link

    def to_card(
        self, slug: str, *children: nodes.Node, classes: Sequence[str] = (), title: str = ""
    ) -> nodes.Element:
        """Return a link to a claim's card."""
        document = self.register.card_document(slug)
        return self.link(document, card_anchor(slug), *children, classes=classes, title=title)

    def to_ledger(
        self, anchor: str, *children: nodes.Node, classes: Sequence[str] = ()
    ) -> nodes.Element:
        """Return a link to a place in the ledger."""
        return self.link(self.register.ledger_document(), anchor, *children, classes=classes)

    def title(self, document: str) -> str:
        """Return the title of a document; the name of its folder if the book has no such page."""
        titles = self.app.env.titles
        return titles[document].astext() if document in titles else document.split("/")[-2]


class late(nodes.Element):
    """A place that is filled when all pages are known."""

    def filled(self, here: Here) -> nodes.Node:
        """Return what stands here."""
        raise NotImplementedError


class late_inline(nodes.Inline, late):
    """A late place within a line of text."""


class card_link(late_inline):
    """A link to the card of ``slug``."""

    def filled(self, here: Here) -> nodes.Node:
        """Return the link around the children."""
        return here.to_card(self["slug"], *self.children, classes=["claim-to-card"])


class ledger_link(late_inline):
    """A link to the row of ``slug`` in the ledger."""

    def filled(self, here: Here) -> nodes.Node:
        """Return the link around the children."""
        anchor = ledger_anchor(self["slug"])
        return here.to_ledger(anchor, *self.children, classes=["claim-to-ledger"])


class document_title(late_inline):
    """The title of ``document``; linked, unless ``plain``."""

    def filled(self, here: Here) -> nodes.Node:
        """Return the title."""
        text = nodes.Text(here.title(self["document"]))
        if self.get("plain") or self["document"] not in here.app.env.titles:
            return text
        return here.link(self["document"], "", text)


def fill(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Fill all late places of a page."""
    here = Here(app, docname)
    # A place may hold others, and what fills it, too: the innermost come first, then once more.
    while places := list(doctree.findall(late)):
        for place in reversed(places):
            place.replace_self(place.filled(here))


def label(text: str) -> nodes.Node:
    """Return the words that introduce a part of a card."""
    return nodes.strong(text, text, classes=["claim-label"])


def badge(verdict: str, words: Words) -> nodes.Node:
    """Return a verdict in words and colour."""
    text = words.verdicts[verdict]
    return nodes.inline(text, text, classes=["verdict", f"verdict-{verdict}"])


def worst(verdicts: Iterable[str]) -> str:
    """Return the worst of some verdicts."""
    return max(verdicts, key=FROM_BEST_TO_WORST.index)


def quoted(phrase: str) -> nodes.Node:
    """Return words of the answer as they stand there, in Chinese."""
    text = f"「{phrase}」"
    # docutils turns this class into lang="zh"
    return nodes.inline(text, text, classes=["claim-phrase", "language-zh"])


def bullets(items: Iterable[Sequence[nodes.Node]], css_class: str) -> nodes.Node:
    """Return a list; each item is a line of words and links."""
    lines = (nodes.list_item("", nodes.paragraph("", "", *item)) for item in items)
    return nodes.bullet_list("", *lines, classes=[css_class])


def table(
    header: Sequence[str], rows: Sequence[Sequence[Sequence[nodes.Node]]], css_class: str
) -> nodes.table:
    """Return a table; each row holds cells, and each cell some nodes."""
    group = nodes.tgroup(cols=len(header))
    group += [nodes.colspec(colwidth=1) for _ in header]
    head = nodes.row("", *(nodes.entry("", nodes.paragraph("", text)) for text in header))
    group += nodes.thead("", head)
    group += nodes.tbody(
        "", *(nodes.row("", *(nodes.entry("", *cell) for cell in row)) for row in rows)
    )
    return nodes.table("", group, classes=["colwidths-auto", css_class])


def name_anchor(env_data: Mapping[str, Any], anchor: str, docname: str, title: str) -> None:
    """Let ``{ref}`` find an anchor, which a directive makes, by its name.

    Parameters
    ----------
    env_data
        The data of Sphinx's domain ``std``.
    anchor, docname
        The place.
    title
        The words of a link that gives none; empty if a link must give some.
    """
    # Directly, because the method that does this calls an anchor that has moved a duplicate.
    env_data["anonlabels"][anchor] = (docname, anchor)
    if title:
        env_data["labels"][anchor] = (docname, anchor, title)
