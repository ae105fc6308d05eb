"""The directive ``{ledger}``: all claims, which a reader can filter without a script."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from scaling_book.site.claim_nodes import (
    badge,
    card_link,
    document_title,
    element,
    quoted,
    table,
)
from scaling_book.site.claim_register import chapter_index, ledger_anchor, register_of
from scaling_book.site.claim_words import Words, words_for
from scaling_book.site.claims_file import VERDICTS, Claim
from scaling_book.site.ledger_filter import filter_of, row_classes


class LedgerDirective(SphinxDirective):
    """Show all claims of the book in the order of the answer, chapter by chapter."""

    def run(self) -> list[nodes.Node]:
        """Return the scoreboard, the filter and one table for each chapter."""
        register = register_of(self.env)
        register.note_ledger(self.env.docname, self.lineno)
        words = words_for(self.config.language)
        claims = list(register.claims.values())
        chapters = [list(group) for _, group in groupby(claims, key=chapter_index)]
        parts = [self._chapter(chapter, words) for chapter in chapters]
        return [
            element(
                "div",
                "ledger",
                children=[_scoreboard(chapters, words), *filter_of(claims, words), *parts],
            )
        ]

    def _chapter(self, claims: list[Claim], words: Words) -> nodes.Element:
        title = document_title(document=chapter_index(claims[0]))
        heading = element("h3", children=[nodes.inline("", "", title)])
        heading["ids"] = [_chapter_anchor(claims[0])]
        header = [words.verdict, words.claim, words.claimed]
        rows = table(header, [self._row(claim, words) for claim in claims], "ledger-claims")
        body = next(iter(rows.findall(nodes.tbody)))
        for row, claim in zip(body.children, claims, strict=True):
            row["ids"] = [ledger_anchor(claim.slug)]
            row["classes"] += row_classes(claim)
        return element("div", "ledger-part", children=[heading, rows])

    def _row(self, claim: Claim, words: Words) -> list[list[nodes.Node]]:
        verdict = [nodes.paragraph("", "", badge(claim.verdict, words))]
        if claim.waits is not None:
            note = words.provisional_note
            verdict.append(nodes.paragraph(note, note, classes=["ledger-provisional"]))
        return [
            verdict,
            [nodes.paragraph("", "", card_link("", nodes.Text(claim.name), slug=claim.slug))],
            [
                nodes.paragraph("", "", quoted(claim.phrase)),
                *self.parse_text_to_nodes(claim.answer),
            ],
        ]


def _scoreboard(chapters: list[list[Claim]], words: Words) -> nodes.Element:
    everything = [claim for chapter in chapters for claim in chapter]
    used = [v for v in VERDICTS if any(claim.verdict == v for claim in everything)]
    rows = []
    for chapter in [*chapters, everything]:
        if chapter is everything:
            first: nodes.Node = nodes.strong(words.all_claims, words.all_claims)
        else:
            first = nodes.reference(
                "", "", document_title(document=chapter_index(chapter[0]), plain=True),
                refid=_chapter_anchor(chapter[0]), internal=True,
            )  # fmt: skip
        counts = Counter(claim.verdict for claim in chapter)
        cells = [str(counts[verdict]) for verdict in used] + [str(len(chapter))]
        rows.append([[nodes.paragraph("", "", first)], *([nodes.paragraph("", c)] for c in cells)])
    header = [words.chapter, *(words.verdicts[verdict] for verdict in used), words.total]
    return table(header, rows, "ledger-scoreboard")


def _chapter_anchor(claim: Claim) -> str:
    return f"ledger-{claim.chapter.rpartition('/')[2]}"
