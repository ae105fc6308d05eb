"""The directive ``{claim} slug``: one claim with its verdict, what is right, and the evidence."""

from __future__ import annotations

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from scaling_book.evidence import Measurement
from scaling_book.site.claim_nodes import (
    badge,
    element,
    label,
    ledger_link,
    name_anchor,
    quoted,
    table,
)
from scaling_book.site.claim_register import card_anchor, register_of
from scaling_book.site.claim_words import Words, words_for
from scaling_book.site.claims_file import Claim, Source
from scaling_book.site.number_format import significant, with_error


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
        labels = self.env.get_domain("std").data
        name_anchor(labels, anchor, self.env.docname, claim.name)

        words = words_for(self.config.language)
        card = element("div", "claim", f"claim-{claim.verdict}", ids=[anchor])
        card += _head(claim, words)
        if claim.waits is not None:
            card += self._box("claim-waits", words.provisional, claim.waits)
        phrase = [quoted(claim.phrase), nodes.Text(" ")]
        card += self._box("claim-answer", words.the_answer_says, claim.answer, *phrase)
        card += self._box("claim-right", words.right, claim.right)
        card += self._box("claim-conditions", words.conditions, claim.conditions)
        if claim.sources:
            items = [self._source(source, words) for source in claim.sources]
            card += element(
                "div",
                "claim-sources",
                children=[
                    nodes.paragraph("", "", label(words.sources)),
                    nodes.bullet_list("", *items),
                ],
            )
        if claim.no_evidence is not None:
            card += self._box("claim-no-evidence", words.no_evidence, claim.no_evidence)
        elif slug in register.evidence:
            card += _evidence(slug, register.evidence[slug], words)
        return [card]

    def _box(self, css_class: str, title: str, text: str, *before: nodes.Node) -> nodes.Element:
        """Parse Markdown; its first paragraph begins with the title."""
        children = self.parse_text_to_nodes(text)
        if not children or not isinstance(children[0], nodes.paragraph):
            children = [nodes.paragraph(), *children]
        children[0][:0] = [label(title), nodes.Text(" "), *before]
        return element("div", css_class, children=children)

    def _source(self, source: Source, words: Words) -> nodes.Node:
        item = nodes.list_item(
            "", *self.parse_text_to_nodes(f"{{cite:t}}`{source.cite}`, {source.where}")
        )
        line = item[0]
        if source.quote is not None:
            # not parsed: a quotation is verbatim, and code is full of what Markdown would eat
            text = words.quotation.format(source.quote)
            line += [nodes.Text(": "), nodes.inline(text, text, classes=["claim-quote"])]
        notes = [words.statuses[source.status]] if words.statuses[source.status] else []
        if source.seen is not None:
            notes.append(words.seen.format(source.seen))
        if notes:
            text = f" ({'; '.join(notes)})"
            line += nodes.inline(text, text, classes=["claim-seen"])
        return item


def _head(claim: Claim, words: Words) -> nodes.Element:
    name = nodes.inline(claim.name, claim.name, classes=["claim-name"])
    link = ledger_link("", nodes.Text(words.to_ledger), slug=claim.slug)
    parts = [badge(claim.verdict, words), nodes.Text(" "), name, nodes.Text(" "), link]
    return nodes.paragraph("", "", *parts, classes=["claim-head"])


def _evidence(slug: str, measurements: list[Measurement], words: Words) -> nodes.Element:
    header = [words.quantity, words.measured, words.expected, words.tolerance, words.rival]
    rows = [
        [
            [nodes.paragraph("", m.quantity)],
            [nodes.paragraph("", with_error(m.measured, m.standard_error))],
            [nodes.paragraph("", significant(m.expected))],
            [_tolerance(m)],
            [_rival(m, words)],
        ]
        for m in measurements
    ]
    summary = words.evidence.format(count=len(measurements))
    command = f"python -m scaling_book.evidence {slug}"
    return element(
        "details",
        "claim-evidence-details",
        children=[
            element("summary", children=[nodes.Text(summary)]),
            table(header, rows, "claim-evidence"),
            nodes.paragraph(
                "",
                "",
                label(words.run_it),
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


def _rival(measurement: Measurement, words: Words) -> nodes.Node:
    if measurement.rival is None:
        return nodes.paragraph("", "–")
    line = nodes.paragraph("", significant(measurement.rival))
    if measurement.rival_is_the_answer:
        whose = words.rival_of_the_answer
        line += [nodes.Text(" "), nodes.inline(whose, whose, classes=["claim-rival"])]
    return line
