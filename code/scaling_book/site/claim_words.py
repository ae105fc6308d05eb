"""The words that the claim directives print, one set for each language of the book."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Words:
    """The words of one language; the names say where they stand."""

    verdicts: MappingProxyType[str, str]
    the_answer_says: str
    right: str
    conditions: str
    sources: str
    statuses: MappingProxyType[str, str]
    evidence: str  # with {count}
    no_evidence: str
    quantity: str
    measured: str
    expected: str
    tolerance: str
    rival: str
    run_it: str
    to_ledger: str
    verdict: str
    claim: str
    claimed: str
    chapter: str
    all_claims: str
    total: str


WORDS = MappingProxyType(
    {
        "en": Words(
            verdicts=MappingProxyType(
                {
                    "holds": "Holds",
                    "holds-if": "Holds if …",
                    "misleading": "Misleading",
                    "wrong": "Wrong",
                    "not-reproducible": "Not reproducible",
                }
            ),
            the_answer_says="The answer says:",
            right="Right:",
            conditions="Conditions:",
            sources="Sources:",
            statuses=MappingProxyType({"read": "", "secondary": "known through others"}),
            evidence="Evidence, measured again whenever the code changes ({count})",
            no_evidence="No measurement:",
            quantity="Quantity",
            measured="Measured",
            expected="Right law",
            tolerance="Tolerance",
            rival="Rejected",
            run_it="Run it yourself:",
            to_ledger="Ledger",
            verdict="Verdict",
            claim="Claim",
            claimed="What the answer says",
            chapter="Chapter",
            all_claims="All claims",
            total="Total",
        ),
    }
)


def words_for(language: str) -> Words:
    """Return the words of `language`.

    Raises
    ------
    KeyError
        If there are none.
    """
    if language not in WORDS:
        raise KeyError(
            f"the claim directives have no words for the language {language!r}, "
            f"only for {', '.join(WORDS)}; add a set in {__name__}"
        )
    return WORDS[language]
