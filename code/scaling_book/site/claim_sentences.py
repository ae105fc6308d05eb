"""The directive ``{sentence} slug``: a line of the answer on trial with its verdicts."""

from __future__ import annotations

from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

from scaling_book.site.claim_nodes import (
    Here,
    badge,
    bullets,
    element,
    late,
    name_anchor,
    quoted,
    worst,
)
from scaling_book.site.claim_register import register_of, sentence_anchor
from scaling_book.site.claim_words import words_for
from scaling_book.site.claims_file import LONGEST_PHRASE, SLUG, Claim

#: What a sentence can be that states nothing which could be true or false
NOTHING_TO_CHECK = ("question", "advice", "announcement", "summary")


class sentence_place(late):
    """A sentence that names the claims ``slugs``; its children are its words."""

    def filled(self, here: Here) -> nodes.Node:
        """Return the sentence, its edge in the colour of the worst verdict, and the verdicts."""
        claims = [claim for claim in map(here.claim, self["slugs"]) if claim is not None]
        edge = [f"sentence-{worst(claim.verdict for claim in claims)}"] if claims else []
        verdicts = bullets([[_verdict(claim, here)] for claim in claims], "sentence-verdicts")
        return element(
            "div", "sentence", *edge, ids=self["ids"], children=[*self.children, verdicts]
        )


def _verdict(claim: Claim, here: Here) -> nodes.Node:
    name = nodes.inline(claim.name, claim.name, classes=["sentence-claim"])
    return here.to_card(claim.slug, badge(claim.verdict, here.words), nodes.Text(" "), name)


class SentenceDirective(SphinxDirective):
    """Show a line of the answer: in English, its phrase in Chinese, and what became of it."""

    optional_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec: ClassVar = {
        "phrase": directives.unchanged_required,
        "nothing-to-check": directives.unchanged_required,
        "name": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        """Return the sentence.

        Raises
        ------
        DirectiveError
            If the words, the phrase, or both slugs and a reason for having none are missing, or
            both are given.
        """
        slugs = self.arguments[0].split() if self.arguments else []
        reason = self.options.get("nothing-to-check")
        phrase = self.options.get("phrase", "").strip()
        self._refuse_what_is_wrong(slugs, reason, phrase)
        name = self.options["name"] if "name" in self.options else slugs[0]
        anchor = sentence_anchor(name)
        register_of(self.env).note_sentence(self.env.docname, self.lineno, slugs, anchor)
        name_anchor(self.env.get_domain("std").data, anchor, self.env.docname, title="")

        words = words_for(self.config.language)
        permalink = nodes.reference(
            "¶", "¶", refid=anchor, internal=True, classes=["headerlink"],
            reftitle=words.link_to_sentence,
        )  # fmt: skip
        children = [
            element("div", "sentence-words", children=self.parse_content_to_nodes()),
            nodes.paragraph("", "", quoted(phrase), permalink, classes=["sentence-phrase"]),
        ]
        if reason is None:
            return [sentence_place("", *children, slugs=slugs, ids=[anchor])]
        text = words.nothing_to_check[reason]
        children.append(nodes.paragraph(text, text, classes=["sentence-no-verdict"]))
        return [element("div", "sentence", ids=[anchor], children=children)]

    def _refuse_what_is_wrong(self, slugs: list[str], reason: str | None, phrase: str) -> None:
        if bool(slugs) == (reason is not None):
            raise self.error(
                "{sentence} names the claims that it makes, `{sentence} slug other-slug`, or says "
                f"with :nothing-to-check: why it makes none ({', '.join(NOTHING_TO_CHECK)}); "
                "give one of the two"
            )
        if reason is not None and reason not in NOTHING_TO_CHECK:
            raise self.error(
                f":nothing-to-check: must be one of {', '.join(NOTHING_TO_CHECK)}; got {reason!r}"
            )
        if not phrase:
            raise self.error("{sentence} needs a :phrase: of the answer, in Chinese")
        if len(phrase) > LONGEST_PHRASE:
            raise self.error(
                f"the phrase has {len(phrase)} characters, at most {LONGEST_PHRASE} may be quoted"
            )
        if not self.content:
            raise self.error("{sentence} needs a body: what the answer says, in our words")
        if not slugs and "name" not in self.options:
            raise self.error(
                "a sentence without a claim needs a :name: of its own, for its address; "
                "kebab-case, and for ever"
            )
        if "name" in self.options and not SLUG.fullmatch(self.options["name"]):
            raise self.error(f":name: must be kebab-case, like-this; got {self.options['name']!r}")
