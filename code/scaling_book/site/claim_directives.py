"""The directives ``{claim} slug`` and ``{ledger}``: what a reader sees of a claim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from scaling_book.evidence import Measurement
from scaling_book.site.claim_register import (
    ClaimRegister,
    card_anchor,
    chapter_index,
    ledger_anchor,
    register_of,
)
from scaling_book.site.claim_words import Words, words_for
from scaling_book.site.claims_file import VERDICTS, Claim, Source
from scaling_book.site.number_format import significant, with_error


class html_element(nodes.General, nodes.Element):
    """An HTML element around its children; ``tag`` names it."""


class claim_link(nodes.Inline, nodes.TextElement):
    """A link to a claim's card or ledger row, made when all pages are known."""


class chapter_title(nodes.Inline, nodes.Element):
    """The title of a chapter, linked, put in when all pages are known."""


class ClaimDirective(SphinxDirective):
    """Show one claim: the verdict, what is right, and the measurements that prove it."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the card; nothing for a slug without a record, which the check reports."""
        slug = self.arguments[0]
        register = register_of(self.env)
        register.note_card(self.env.docname, self.lineno, slug)
        claim = register.claims.get(slug)
        if claim is None:
            return []
        anchor = card_anchor(slug)
        # Directly, because the method that does this calls a card that has moved a duplicate.
        labels = self.env.get_domain("std").data
        labels["anonlabels"][anchor] = (self.env.docname, anchor)
        labels["labels"][anchor] = (self.env.docname, anchor, claim.name)

        words = words_for(self.config.language)
        card = _element("div", "claim", f"claim-{claim.verdict}")
        card["ids"] = [anchor]
        card += _head(claim, words)
        card += self._box("claim-answer", words.the_answer_says, claim.answer, *_phrase(claim))
        card += self._box("claim-right", words.right, claim.right)
        card += self._box("claim-conditions", words.conditions, claim.conditions)
        if claim.sources:
            sources = "\n".join(_source_item(source, words) for source in claim.sources)
            card += _element(
                "div",
                "claim-sources",
                children=[
                    nodes.paragraph("", "", _label(words.sources)),
                    *self.parse_text_to_nodes(sources),
                ],
            )
        if claim.no_evidence is not None:
            card += self._box("claim-no-evidence", words.no_evidence, claim.no_evidence)
        elif slug in register.evidence:
            card += _evidence(slug, register.evidence[slug], words)
        return [card]

    def _box(self, css_class: str, label: str, text: str, *before: nodes.Node) -> nodes.Element:
        """Parse Markdown; its first paragraph begins with the label."""
        children = self.parse_text_to_nodes(text)
        if not children or not isinstance(children[0], nodes.paragraph):
            children = [nodes.paragraph(), *children]
        children[0][:0] = [_label(label), nodes.Text(" "), *before]
        return _element("div", css_class, children=children)


class LedgerDirective(SphinxDirective):
    """Show all claims of the book in the order of the answer, chapter by chapter."""

    def run(self) -> list[nodes.Node]:
        """Return the scoreboard and one table for each chapter."""
        register = register_of(self.env)
        register.note_ledger(self.env.docname, self.lineno)
        words = words_for(self.config.language)
        claims = list(register.claims.values())
        chapters = [list(group) for _, group in groupby(claims, key=chapter_index)]
        ledger = _element("div", "ledger")
        ledger += _scoreboard(chapters, words)
        for chapter in chapters:
            title = chapter_title(document=chapter_index(chapter[0]))
            heading = _element("h3", "ledger-chapter", children=[nodes.inline("", "", title)])
            heading["ids"] = [_chapter_anchor(chapter[0])]
            ledger += heading
            rows = [self._row(claim, words) for claim in chapter]
            table = _table([words.verdict, words.claim, words.claimed], rows)
            body = next(iter(table.findall(nodes.tbody)))
            for row, claim in zip(body.children, chapter, strict=True):
                row["ids"] = [ledger_anchor(claim.slug)]
            table["classes"].append("ledger-claims")
            ledger += table
        return [ledger]

    def _row(self, claim: Claim, words: Words) -> list[list[nodes.Node]]:
        link = claim_link(claim.name, claim.name, slug=claim.slug, to="card")
        answer = self.parse_text_to_nodes(claim.answer)
        return [
            [nodes.paragraph("", "", _badge(claim.verdict, words))],
            [nodes.paragraph("", "", link)],
            [nodes.paragraph("", "", *_phrase(claim)), *answer],
        ]


def _element(tag: str, *classes: str, children: Sequence[nodes.Node] = ()) -> nodes.Element:
    return html_element("", *children, tag=tag, classes=list(classes))


def _label(text: str) -> nodes.Node:
    return nodes.strong(text, text, classes=["claim-label"])


def _badge(verdict: str, words: Words) -> nodes.Node:
    text = words.verdicts[verdict]
    return nodes.inline(text, text, classes=["verdict", f"verdict-{verdict}"])


def _head(claim: Claim, words: Words) -> nodes.Element:
    name = nodes.inline(claim.name, claim.name, classes=["claim-name"])
    link = claim_link(words.to_ledger, words.to_ledger, slug=claim.slug, to="ledger")
    parts = [_badge(claim.verdict, words), nodes.Text(" "), name, nodes.Text(" "), link]
    return nodes.paragraph("", "", *parts, classes=["claim-head"])


def _phrase(claim: Claim) -> list[nodes.Node]:
    # docutils turns this class into lang="zh"
    text = f"「{claim.phrase}」"
    return [nodes.inline(text, text, classes=["claim-phrase", "language-zh"]), nodes.Text(" ")]


def _source_item(source: Source, words: Words) -> str:
    quote = f": “{source.quote}”" if source.quote else ""
    status = words.statuses[source.status]
    return f"- {{cite:t}}`{source.cite}`, {source.where}{quote}{f' ({status})' if status else ''}"


def _evidence(slug: str, measurements: list[Measurement], words: Words) -> nodes.Element:
    header = [words.quantity, words.measured, words.expected, words.tolerance, words.rival]
    rows = [
        [
            [nodes.paragraph("", m.quantity)],
            [nodes.paragraph("", with_error(m.measured, m.standard_error))],
            [nodes.paragraph("", significant(m.expected))],
            [_tolerance(m)],
            [nodes.paragraph("", "–" if m.rival is None else significant(m.rival))],
        ]
        for m in measurements
    ]
    table = _table(header, rows)
    table["classes"].append("claim-evidence")
    summary = words.evidence.format(count=len(measurements))
    command = f"python -m scaling_book.evidence {slug}"
    return _element(
        "details",
        "claim-evidence-details",
        children=[
            _element("summary", children=[nodes.Text(summary)]),
            table,
            nodes.paragraph(
                "",
                "",
                _label(words.run_it),
                nodes.Text(" "),
                nodes.literal(command, command),
                classes=["claim-run"],
            ),
        ],
    )


def _tolerance(measurement: Measurement) -> nodes.Node:
    value = significant(measurement.tolerance, 2)
    reason = f"= {measurement.reason}"
    children = [nodes.Text(value)]
    if measurement.tolerance:
        children += [nodes.Text(" "), nodes.inline(reason, reason, classes=["claim-reason"])]
    return nodes.paragraph("", "", *children)


def _scoreboard(chapters: list[list[Claim]], words: Words) -> nodes.Element:
    used = [v for v in VERDICTS if any(claim.verdict == v for group in chapters for claim in group)]
    everything = [claim for chapter in chapters for claim in chapter]
    rows = []
    for chapter in [*chapters, everything]:
        if chapter is everything:
            first: nodes.Node = nodes.strong(words.all_claims, words.all_claims)
        else:
            first = nodes.reference(
                "", "", chapter_title(document=chapter_index(chapter[0]), plain=True),
                refid=_chapter_anchor(chapter[0]), internal=True,
            )  # fmt: skip
        counts = Counter(claim.verdict for claim in chapter)
        cells = [str(counts[verdict]) for verdict in used] + [str(len(chapter))]
        rows.append([[nodes.paragraph("", "", first)], *([nodes.paragraph("", c)] for c in cells)])
    header = [words.chapter, *(words.verdicts[verdict] for verdict in used), words.total]
    table = _table(header, rows)
    table["classes"].append("ledger-scoreboard")
    return table


def _table(header: list[str], rows: list[list[list[nodes.Node]]]) -> nodes.table:
    group = nodes.tgroup(cols=len(header))
    group += [nodes.colspec(colwidth=1) for _ in header]
    head = nodes.row("", *(nodes.entry("", nodes.paragraph("", text)) for text in header))
    group += nodes.thead("", head)
    group += nodes.tbody(
        "", *(nodes.row("", *(nodes.entry("", *cell) for cell in row)) for row in rows)
    )
    return nodes.table("", group, classes=["colwidths-auto"])


def _chapter_anchor(claim: Claim) -> str:
    return f"ledger-{claim.chapter.rpartition('/')[2]}"


def resolve_links(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put in the links and chapter titles, now that it is known where everything is."""
    register = register_of(app.env)
    for link in list(doctree.findall(claim_link)):
        link.replace_self(_reference(app, register, docname, link))
    for title in list(doctree.findall(chapter_title)):
        title.replace_self(_title(app, docname, title))


def _reference(
    app: Sphinx, register: ClaimRegister, docname: str, link: claim_link
) -> nodes.Element:
    slug = link["slug"]
    if link["to"] == "card":
        target, anchor = register.card_document(slug), card_anchor(slug)
    else:
        target, anchor = register.ledger_document(), ledger_anchor(slug)
    if target is None:
        return nodes.inline("", "", *link.children)
    uri = f"{app.builder.get_relative_uri(docname, target)}#{anchor}"
    css_class = f"claim-to-{link['to']}"
    return nodes.reference("", "", *link.children, refuri=uri, internal=True, classes=[css_class])


def _title(app: Sphinx, docname: str, placeholder: chapter_title) -> nodes.Node:
    document = placeholder["document"]
    if document not in app.env.titles:
        return nodes.Text(document.split("/")[-2])
    text = app.env.titles[document].astext()
    if placeholder.get("plain"):
        return nodes.Text(text)
    uri = app.builder.get_relative_uri(docname, document)
    return nodes.reference(text, text, refuri=uri, internal=True)


def visit_html_element(self: Any, node: html_element) -> None:
    """Open the element; docutils writes its id and classes."""
    self.body.append(self.starttag(node, node["tag"]))


def depart_html_element(self: Any, node: html_element) -> None:
    """Close the element."""
    self.body.append(f"</{node['tag']}>\n")


def pass_over(self: Any, node: html_element) -> None:
    """Write the children alone, for formats that have no such element."""
