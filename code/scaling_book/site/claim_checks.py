"""What records, evidence, cards, ledger and the sentences of the answer must agree in.

The checks run in every build on what the register remembers, also when no page has changed.
"""

from __future__ import annotations

import difflib

from scaling_book.site.claim_register import ClaimRegister, Place, Sentence, card_anchor
from scaling_book.site.claim_warnings import warn
from scaling_book.site.claims_file import Claim


def check(register: ClaimRegister) -> None:
    """Warn of everything in which they disagree."""
    if not register.readable:  # said already, and everything else would follow from it
        return
    shown: dict[str, list[Place]] = {}
    for slug, place in register.cards():
        shown.setdefault(slug, []).append(place)
    for slug, places in shown.items():
        _check_cards(register, slug, places)
    for claim in register.claims.values():
        _check_record(register, claim, shown=claim.slug in shown)
    _check_ledger(register)
    _check_mentions(register)
    _check_sentences(register)


def _check_cards(register: ClaimRegister, slug: str, places: list[Place]) -> None:
    claim = register.claims.get(slug)
    if claim is None:
        _warn(f"no claims.yml records a claim {slug!r}; {_hint(register, slug)}", places[0])
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


def _check_record(register: ClaimRegister, claim: Claim, *, shown: bool) -> None:
    place = _record_place(register, claim)
    if not shown:
        warn(
            f"the claim {claim.slug!r} is recorded but discussed nowhere; put "
            f"{{claim}} {claim.slug} into {claim.page}.md",
            place,
        )
    measured = claim.slug in register.evidence
    if not measured and claim.no_evidence is None:
        warn(
            f"the claim {claim.slug!r} has no evidence; write an @evidence({claim.slug!r}) "
            "in scaling_book.evidence, or say why not in the field no_evidence",
            place,
        )
    if measured and claim.no_evidence is not None:
        warn(
            f"the claim {claim.slug!r} has evidence, but its field no_evidence denies it; "
            "remove the field",
            place,
        )


def _check_ledger(register: ClaimRegister) -> None:
    # The ledger is what must be complete: a book without one may show a few claims only.
    ledgers = register.ledgers()
    for place in ledgers[1:]:
        _warn(f"a second ledger; the first is in {ledgers[0].docname}. Keep one", place)
    for slug in register.evidence.keys() - register.claims.keys() if ledgers else ():
        _warn(
            f"there is evidence for {slug!r}, but no claims.yml records the claim; "
            f"{_hint(register, slug)}",
            ledgers[0],
        )


def _check_mentions(register: ClaimRegister) -> None:
    for slug, place in register.mentions():
        if slug not in register.claims:
            _warn(
                f"no claims.yml records a claim {slug!r}, which is named here; "
                f"{_hint(register, slug)}",
                place,
            )


def _check_sentences(register: ClaimRegister) -> None:
    sentences = list(register.sentences())
    if not sentences:  # a book that does not show the answer line by line
        return
    first: dict[str, Place] = {}
    for sentence, place in sentences:
        _check_anchor(sentence, place, first)
    named = {slug for sentence, _ in sentences for slug in sentence.slugs}
    for claim in register.claims.values():
        if claim.slug not in named:
            warn(
                f"no {{sentence}} of the answer names the claim {claim.slug!r}; add it to the "
                "sentence that makes it",
                _record_place(register, claim),
            )


def _check_anchor(sentence: Sentence, place: Place, first: dict[str, Place]) -> None:
    before = first.setdefault(sentence.anchor, place)
    if before is not place:
        _warn(
            f"the sentence {sentence.anchor!r} stands already in {before.docname}, line "
            f"{before.line}; give one of the two a :name:, or name another claim first",
            place,
        )


def _record_place(register: ClaimRegister, claim: Claim) -> str:
    return f"{register.env.srcdir}/{claim.file}:{claim.line}"


def _hint(register: ClaimRegister, slug: str) -> str:
    close = difflib.get_close_matches(slug, register.claims, n=3)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else "add the record"


def _warn(text: str, place: Place) -> None:
    warn(text, (place.docname, place.line))
