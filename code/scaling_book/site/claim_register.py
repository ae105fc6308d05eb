"""Which claims there are, where they are shown, and whether both agree: a Sphinx domain.

Sphinx keeps a domain's `data` between builds and tells it when a document is read again or
removed; the records and the measurements are read anew in every build.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sphinx.domains import Domain
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util import logging

from scaling_book.evidence import Measurement
from scaling_book.site.claims_file import Claim, ClaimsFileError, load_claims
from scaling_book.site.evidence_cache import EvidenceFailed, evidence_results

logger = logging.getLogger(__name__)


class Place(NamedTuple):
    """Where something is shown, and a digest of what was shown when the page was read."""

    docname: str
    line: int
    digest: str


def card_anchor(slug: str) -> str:
    """Return the id and label of a claim's card."""
    return f"claim-{slug}"


def ledger_anchor(slug: str) -> str:
    """Return the id of a claim's row in the ledger."""
    return f"ledger-{slug}"


def chapter_index(claim: Claim) -> str:
    """Return the document that opens the chapter of a claim."""
    return f"{claim.chapter}/index"


class ClaimRegister(Domain):
    """The claims of the book, their measurements, and the pages that show them."""

    name = "claim"
    label = "claims"
    data_version = 1
    # cards: docname → [(slug, line, digest)]; ledgers: docname → [(line, digest)]
    initial_data: dict[str, Any] = {"cards": {}, "ledgers": {}, "links": ""}  # noqa: RUF012

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
                _warn(fault, f"{source}/{place}")
            return
        if self.claims:
            try:
                self.evidence = evidence_results(build)
            except EvidenceFailed as error:
                raise ExtensionError(str(error)) from error

    def clear_doc(self, docname: str) -> None:
        """Forget what a document shows; it is about to be read again, or gone."""
        self.data["cards"].pop(docname, None)
        self.data["ledgers"].pop(docname, None)

    def merge_domaindata(self, docnames: list[str], otherdata: dict[str, Any]) -> None:
        """Take over what another process read."""
        for part in ("cards", "ledgers"):
            for docname in set(docnames) & otherdata[part].keys():
                self.data[part][docname] = otherdata[part][docname]

    def note_card(self, docname: str, line: int, slug: str) -> None:
        """Remember that a page shows a claim."""
        self.data["cards"].setdefault(docname, []).append((slug, line, self._card_digest(slug)))

    def note_ledger(self, docname: str, line: int) -> None:
        """Remember that a page shows the ledger."""
        self.data["ledgers"].setdefault(docname, []).append((line, self._ledger_digest()))

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
        """Return the documents whose links between cards, ledger and chapters have changed."""
        indexes = {chapter_index(claim) for claim in self.claims.values()}
        links = repr(
            (
                sorted((slug, place.docname) for slug, place in self.cards()),
                self.ledger_document(),
                sorted(
                    (name, self.env.titles[name].astext())
                    for name in indexes & self.env.titles.keys()
                ),
            )
        )
        if links == self.data["links"]:
            return set()
        self.data["links"] = links
        return self.data["cards"].keys() | self.data["ledgers"].keys()

    def check(self) -> None:
        """Warn of everything in which records, evidence, cards and ledger disagree."""
        if not self.readable:  # said already, and everything else would follow from it
            return
        shown: dict[str, list[Place]] = {}
        for slug, place in self.cards():
            shown.setdefault(slug, []).append(place)
        for slug, places in shown.items():
            self._check_cards(slug, places)
        for claim in self.claims.values():
            self._check_record(claim, shown=claim.slug in shown)
        self._check_ledger()

    def _check_cards(self, slug: str, places: list[Place]) -> None:
        claim = self.claims.get(slug)
        if claim is None:
            _warn(f"no claims.yml records a claim {slug!r}; {self._hint(slug)}", places[0])
            return
        # If there are several cards, the one on the page of the record is the right one.
        right, *others = sorted(places, key=lambda place: place.docname != claim.page)
        if right.docname != claim.page:
            _warn(
                f"the claim {slug!r} is shown here, but {claim.file} says that {claim.page} "
                "discusses it; correct one of the two",
                right,
            )
        for place in others:
            _warn(
                f"the claim {slug!r} is shown a second time; the first is in {right.docname}, "
                f"line {right.line}. Link to it with {{ref}}`{card_anchor(slug)}` instead",
                place,
            )

    def _check_record(self, claim: Claim, *, shown: bool) -> None:
        if not shown:
            _warn(
                f"the claim {claim.slug!r} is recorded but discussed nowhere; put "
                f"{{claim}} {claim.slug} into {claim.page}.md",
                self._record_place(claim),
            )
        measured = claim.slug in self.evidence
        if not measured and claim.no_evidence is None:
            _warn(
                f"the claim {claim.slug!r} has no evidence; write an @evidence({claim.slug!r}) "
                "in scaling_book.evidence, or say why not in the field no_evidence",
                self._record_place(claim),
            )
        if measured and claim.no_evidence is not None:
            _warn(
                f"the claim {claim.slug!r} has evidence, but its field no_evidence denies it; "
                "remove the field",
                self._record_place(claim),
            )

    def _check_ledger(self) -> None:
        # The ledger is what must be complete: a book without one may show a few claims only.
        ledgers = self.ledgers()
        for place in ledgers[1:]:
            _warn(f"a second ledger; the first is in {ledgers[0].docname}. Keep one", place)
        for slug in self.evidence.keys() - self.claims.keys() if ledgers else ():
            _warn(
                f"there is evidence for {slug!r}, but no claims.yml records the claim; "
                f"{self._hint(slug)}",
                ledgers[0],
            )

    def _record_place(self, claim: Claim) -> str:
        return f"{self.env.srcdir}/{claim.file}:{claim.line}"

    def _hint(self, slug: str) -> str:
        close = difflib.get_close_matches(slug, self.claims, n=1)
        return f"did you mean {close[0]!r}?" if close else "add the record"

    def _card_digest(self, slug: str) -> str:
        return _digest((self.claims.get(slug), self.evidence.get(slug)))

    def _ledger_digest(self) -> str:
        return _digest(list(self.claims.values()))


def _digest(content: object) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]


def _warn(text: str, where: Place | str) -> None:
    location = where if isinstance(where, str) else (where.docname, where.line)
    logger.warning("%s", text, location=location, type="book", subtype="claim")


def register_of(env: BuildEnvironment) -> ClaimRegister:
    """Return the register of this build."""
    domain = env.get_domain(ClaimRegister.name)
    assert isinstance(domain, ClaimRegister)
    return domain
