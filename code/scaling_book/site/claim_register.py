"""Which claims there are, and where they are shown and named: a Sphinx domain.

Sphinx keeps a domain's `data` between builds and tells it when a document is read again or
removed; the records and the measurements are read anew in every build.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sphinx.domains import Domain
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError

from scaling_book.evidence import Measurement
from scaling_book.site.claim_warnings import warn
from scaling_book.site.claims_file import Claim, ClaimsFileError, load_claims
from scaling_book.site.evidence_cache import EvidenceFailed, evidence_results


class Place(NamedTuple):
    """Where something is shown, and a digest of what was shown when the page was read.

    The digest is empty for what is filled in as the page is written, and so never out of date.
    """

    docname: str
    line: int
    digest: str = ""


class Sentence(NamedTuple):
    """A line of the answer on trial: the claims that it makes, and its address on the page."""

    slugs: tuple[str, ...]
    anchor: str


def card_anchor(slug: str) -> str:
    """Return the id and label of a claim's card."""
    return f"claim-{slug}"


def ledger_anchor(slug: str) -> str:
    """Return the id of a claim's row in the ledger."""
    return f"ledger-{slug}"


def shown_anchor(choice: str) -> str:
    """Return the id of the choice that shows a part of the ledger: a verdict, a chapter."""
    return f"ledger-show-{choice}"


def sentence_anchor(name: str) -> str:
    """Return the id of a sentence of the answer."""
    return f"sentence-{name}"


def chapter_index(claim: Claim) -> str:
    """Return the document that opens the chapter of a claim."""
    return f"{claim.chapter}/index"


class ClaimRegister(Domain):
    """The claims of the book, their measurements, and the pages that show them."""

    name = "claim"
    label = "claims"
    data_version = 2
    # By docname. cards: (slug, line, digest); ledgers: (line, digest); mentions: (line, slugs);
    # sentences: (line, slugs, anchor). links: a digest, see `to_write`.
    initial_data: dict[str, Any] = {  # noqa: RUF012
        "cards": {}, "ledgers": {}, "mentions": {}, "sentences": {}, "links": "",
    }  # fmt: skip
    parts = ("cards", "ledgers", "mentions", "sentences")

    def __init__(self, env: BuildEnvironment) -> None:
        super().__init__(env)
        self.claims: dict[str, Claim] = {}
        self.evidence: dict[str, list[Measurement]] = {}
        self.readable = True

    def load(self, source: Path, build: Path, bibliography: Collection[str]) -> None:
        """Read the records and, if there are any, the measurements."""
        try:
            self.claims = load_claims(source, bibliography)
        except ClaimsFileError as error:
            self.readable = False
            for place, fault in error.faults:
                warn(fault, f"{source}/{place}")
            return
        if self.claims:
            try:
                self.evidence = evidence_results(build)
            except EvidenceFailed as error:
                raise ExtensionError(str(error)) from error

    def clear_doc(self, docname: str) -> None:
        """Forget what a document shows; it is about to be read again, or gone."""
        for part in self.parts:
            self.data[part].pop(docname, None)

    def merge_domaindata(self, docnames: list[str], otherdata: dict[str, Any]) -> None:
        """Take over what another process read."""
        for part in self.parts:
            for docname in set(docnames) & otherdata[part].keys():
                self.data[part][docname] = otherdata[part][docname]

    def note_card(self, docname: str, line: int, slug: str) -> None:
        """Remember that a page shows a claim."""
        self.data["cards"].setdefault(docname, []).append((slug, line, self._card_digest(slug)))

    def note_ledger(self, docname: str, line: int) -> None:
        """Remember that a page shows the ledger."""
        self.data["ledgers"].setdefault(docname, []).append((line, self._ledger_digest()))

    def note_mentions(self, docname: str, line: int, slugs: Sequence[str]) -> None:
        """Remember that a page names claims, or with none that it counts all of them."""
        self.data["mentions"].setdefault(docname, []).append((line, tuple(slugs)))

    def note_sentence(self, docname: str, line: int, slugs: Sequence[str], anchor: str) -> None:
        """Remember that a page shows a sentence of the answer."""
        self.data["sentences"].setdefault(docname, []).append((line, tuple(slugs), anchor))

    def cards(self) -> Iterator[tuple[str, Place]]:
        """Yield each claim shown, with its place, page by page."""
        for docname, cards in sorted(self.data["cards"].items()):
            for slug, line, digest in cards:
                yield slug, Place(docname, line, digest)

    def ledgers(self) -> list[Place]:
        """Return the places of the ledger; there should be one."""
        return [
            Place(docname, line, digest)
            for docname, ledgers in sorted(self.data["ledgers"].items())
            for line, digest in ledgers
        ]

    def mentions(self) -> Iterator[tuple[str, Place]]:
        """Yield each claim that a page names in passing or in a sentence, with the place."""
        for docname, mentions in sorted(self.data["mentions"].items()):
            for line, slugs in mentions:
                yield from ((slug, Place(docname, line)) for slug in slugs)
        for sentence, place in self.sentences():
            yield from ((slug, place) for slug in sentence.slugs)

    def sentences(self) -> Iterator[tuple[Sentence, Place]]:
        """Yield each sentence of the answer that is shown, page by page."""
        for docname, sentences in sorted(self.data["sentences"].items()):
            for line, slugs, anchor in sentences:
                yield Sentence(slugs, anchor), Place(docname, line)

    def card_document(self, slug: str) -> str | None:
        """Return the document that shows a claim."""
        return next((place.docname for shown, place in self.cards() if shown == slug), None)

    def ledger_document(self) -> str | None:
        """Return the document that shows the ledger."""
        return next((place.docname for place in self.ledgers()), None)

    def outdated(self) -> set[str]:
        """Return the documents that show a record or a measurement that has changed since."""
        ledger = self._ledger_digest()
        stale = {place.docname for place in self.ledgers() if place.digest != ledger}
        return stale | {
            place.docname for slug, place in self.cards() if place.digest != self._card_digest(slug)
        }

    def to_write(self) -> set[str]:
        """Return the documents to write again, if what is filled in as they are written changed.

        These are the links between cards, ledger, sentences and chapters, and the verdicts and
        names of claims outside their cards.
        """
        indexes = {chapter_index(claim) for claim in self.claims.values()}
        links = _digest(
            (
                sorted((slug, place.docname) for slug, place in self.cards()),
                self.ledger_document(),
                sorted(
                    (name, self.env.titles[name].astext())
                    for name in indexes & self.env.titles.keys()
                ),
                [(one.slug, one.verdict, one.name, one.waits) for one in self.claims.values()],
            )
        )
        if links == self.data["links"]:
            return set()
        self.data["links"] = links
        return {docname for part in self.parts for docname in self.data[part]}

    def _card_digest(self, slug: str) -> str:
        return _digest((self.claims.get(slug), self.evidence.get(slug)))

    def _ledger_digest(self) -> str:
        return _digest(list(self.claims.values()))


def _digest(content: object) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]


def register_of(env: BuildEnvironment) -> ClaimRegister:
    """Return the register of this build."""
    domain = env.get_domain(ClaimRegister.name)
    assert isinstance(domain, ClaimRegister)
    return domain
