"""The words that the claim directives and roles print, one set for each language of the book."""

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
    quotation: str  # with {}
    seen: str  # with {}, the place where a source was read
    provisional: str  # before the runs that a verdict waits for
    provisional_note: str
    evidence: str  # with {count}
    no_evidence: str
    quantity: str
    measured: str
    expected: str
    tolerance: str
    rival: str
    rival_of_the_answer: str
    run_it: str
    to_ledger: str
    verdict: str
    claim: str
    claimed: str
    chapter: str
    all_claims: str
    total: str
    all_verdicts: str
    all_chapters: str
    claims_shown: str  # with {shown} and {total}
    scoreboard_total: str  # with {count}
    scoreboard_waiting: str  # with {count}
    nothing_to_check: MappingProxyType[str, str]
    link_to_sentence: str
    fault: str
    fault_change: str
    fault_law: str
    fault_claims: str
    fault_raised: str
    claims_red: str  # with {count}
    faults_total: str  # with {count}, {noticed}, {evidence}, {laws} and {claims}
    faults_state: str  # with {fingerprint} and what the provenance of the record holds


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
            quotation="“{}”",
            seen="read in {}",
            provisional="Provisional: waits for",
            provisional_note="Provisional",
            evidence="Evidence, measured again whenever the code changes ({count})",
            no_evidence="No measurement:",
            quantity="Quantity",
            measured="Measured",
            expected="Right law",
            tolerance="Tolerance",
            rival="Rejected",
            rival_of_the_answer="(the answer)",
            run_it="Run it yourself:",
            to_ledger="Ledger",
            verdict="Verdict",
            claim="Claim",
            claimed="What the answer says",
            chapter="Chapter",
            all_claims="All claims",
            total="Total",
            all_verdicts="All verdicts",
            all_chapters="All chapters",
            claims_shown="Claims shown: {shown} of {total}",
            scoreboard_total="{count} claims on trial",
            scoreboard_waiting="Provisional verdicts, which wait for runs: {count}",
            nothing_to_check=MappingProxyType(
                {
                    "question": "No verdict: it asks, and states nothing.",
                    "advice": "No verdict: it advises, and states nothing that could be false.",
                    "announcement": "No verdict: it announces what follows.",
                    "summary": "No verdict here: it repeats what is judged where it is first said.",
                }
            ),
            link_to_sentence="Link to this sentence",
            fault="Fault",
            fault_change="Change",
            fault_law="First law that breaks",
            fault_claims="Claims that turn red",
            fault_raised="(error)",
            claims_red="Claims: {count}",
            faults_total=(
                "{count} faults, {noticed} noticed: {evidence} by the evidence of claims, {laws} "
                "by a law of the library. Together they turn {claims} claims red."
            ),
            faults_state=(
                "Recorded by {command} on {date} for the state {fingerprint} of code, laws, data "
                "and faults (Python {python}, torch {torch}, numpy {numpy}). The tests fail when "
                "the state is another."
            ),
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
