"""The directive ``{scoreboard}``: how many claims got which verdict, in one bar."""

from __future__ import annotations

from collections import Counter

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from scaling_book.site.claim_nodes import Here, badge, bullets, element, late
from scaling_book.site.claim_register import register_of, shown_anchor
from scaling_book.site.claims_file import VERDICTS


class scoreboard_place(late):
    """The counts of the whole book."""

    def filled(self, here: Here) -> nodes.Node:
        """Return the total, the bar and its legend, which leads into the ledger."""
        claims = list(here.register.claims.values())
        counts = Counter(claim.verdict for claim in claims)
        used = [verdict for verdict in VERDICTS if counts[verdict]]
        total = here.words.scoreboard_total.format(count=len(claims))
        # the legend says the same in words: the bar is for the eye alone
        bar = element(
            "div",
            "scoreboard-bar",
            aria_hidden="true",
            children=[
                element(
                    "span",
                    f"verdict-{verdict}",
                    style=f"flex-grow: {counts[verdict]}",
                    children=[nodes.Text(str(counts[verdict]))],
                )
                for verdict in used
            ],
        )
        legend = bullets(
            ([_entry(verdict, counts[verdict], here)] for verdict in used), "scoreboard-legend"
        )
        parts = [nodes.paragraph(total, total, classes=["scoreboard-total"]), bar, legend]
        if waiting := sum(claim.waits is not None for claim in claims):
            text = here.words.scoreboard_waiting.format(count=waiting)
            link = here.to_ledger(shown_anchor("provisional"), nodes.Text(text))
            parts.append(nodes.paragraph("", "", link, classes=["scoreboard-waiting"]))
        return element("div", "scoreboard", children=parts)


def _entry(verdict: str, count: int, here: Here) -> nodes.Node:
    number = nodes.strong("", str(count))
    words = badge(verdict, here.words)
    return here.to_ledger(shown_anchor(verdict), number, nodes.Text(" "), words)


class ScoreboardDirective(SphinxDirective):
    """Show how many claims of the book got which verdict."""

    def run(self) -> list[nodes.Node]:
        """Return the place of the scoreboard; what it shows is counted when it is written."""
        register_of(self.env).note_mentions(self.env.docname, self.lineno, [])
        return [scoreboard_place()]
