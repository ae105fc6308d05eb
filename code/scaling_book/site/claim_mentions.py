"""The roles that name claims within a sentence: ``{verdict}``, ``{clause}`` and ``{proof}``."""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.util.docutils import SphinxRole

from scaling_book.site.claim_nodes import Here, badge, late_inline, worst
from scaling_book.site.claim_register import register_of
from scaling_book.site.claims_file import Claim

# words of the sentence <slug another-slug>
WORDS_AND_SLUGS = re.compile(r"(.*\S)\s*<([^<>]+)>\s*", re.DOTALL)


class late_mention(late_inline):
    """A place that names the claims ``slugs``; without a record it is left to the check."""

    def filled(self, here: Here) -> nodes.Node:
        """Return what stands here, or the words alone if none of the claims is recorded."""
        claims = [claim for claim in map(here.claim, self["slugs"]) if claim is not None]
        if not claims:
            return nodes.inline("", "", *self.children)
        return self.mention(claims, here)

    def mention(self, claims: list[Claim], here: Here) -> nodes.Node:
        """Return what stands here, for claims that are recorded."""
        raise NotImplementedError


class verdict_place(late_mention):
    """The verdict on one claim."""

    def mention(self, claims: list[Claim], here: Here) -> nodes.Node:
        """Return the badge, linked to the card."""
        claim = claims[0]
        return here.to_card(
            claim.slug, badge(claim.verdict, here.words), classes=["to-verdict"], title=claim.name
        )


class clause_place(late_mention):
    """Words of the answer on trial."""

    def mention(self, claims: list[Claim], here: Here) -> nodes.Node:
        """Return the words, marked by the worst verdict, and each verdict; all linked."""
        first, *others = claims
        marked = f"clause-{worst(claim.verdict for claim in claims)}"
        words = nodes.inline("", "", *self.children, classes=["clause-words"])
        links = [
            here.to_card(
                first.slug, words, nodes.Text(" "), self._verdict(first, here), title=first.name
            )
        ]
        links += [
            here.to_card(one.slug, self._verdict(one, here), title=one.name) for one in others
        ]
        spaced = [part for link in links for part in (link, nodes.Text(" "))][:-1]
        return nodes.inline("", "", *spaced, classes=["clause", marked])

    def _verdict(self, claim: Claim, here: Here) -> nodes.Node:
        text = here.words.verdicts[claim.verdict]
        return nodes.inline(text, text, classes=["clause-verdict", f"verdict-{claim.verdict}"])


class proof_place(late_mention):
    """Words of our own answer."""

    def mention(self, claims: list[Claim], here: Here) -> nodes.Node:
        """Return the words, linked to the first card, and a number for each other one."""
        first, *others = claims
        parts: list[nodes.Node] = [here.to_card(first.slug, *self.children, title=first.name)]
        for number, claim in enumerate(others, start=2):
            link = here.to_card(claim.slug, nodes.Text(f"[{number}]"), title=claim.name)
            # a space that does not break, so that the number stays with its words
            parts += [nodes.Text("\N{NO-BREAK SPACE}"), link]
        return nodes.inline("", "", *parts, classes=["claim-proof"])


class VerdictRole(SphinxRole):
    """Show the verdict on a claim: ``{verdict}`slug```."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return the place of the badge."""
        slug = self.text.strip()
        register_of(self.env).note_mentions(self.env.docname, self.lineno, [slug])
        # the slug itself is seen only in a build that fails for want of the record
        return [verdict_place("", nodes.Text(slug), slugs=[slug])], []


class WordsRole(SphinxRole):
    """Tie words of a sentence to claims: ``{clause}`words <slug>```, ``{proof}`words <slug>```.

    Parameters
    ----------
    place
        What marks the words.
    """

    def __init__(self, place: type[late_mention]) -> None:
        super().__init__()
        self.place = place

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return the place of the words, or an error if they or the slugs are missing."""
        match = WORDS_AND_SLUGS.fullmatch(self.text)
        if match is None:
            message = self.inliner.reporter.error(
                f"{{{self.name}}} needs words and then the slug of a claim, "
                f"`some words <slug>`; got {self.text!r}",
                line=self.lineno,
            )
            return [], [message]
        slugs = match[2].split()
        register_of(self.env).note_mentions(self.env.docname, self.lineno, slugs)
        children, messages = self.inliner.parse(match[1], self.lineno, None, nodes.inline())
        return [self.place("", *children, slugs=slugs)], messages
