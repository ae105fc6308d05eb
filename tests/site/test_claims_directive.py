"""Cards and ledger: what they show, what makes a build fail, and what a second build picks up."""

import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from scaling_book.evidence import Measurement
from scaling_book.site import evidence_cache
from scaling_book.site.claim_words import words_for
from scaling_book.site.evidence_cache import EvidenceFailed, evidence_file, evidence_results
from scaling_book.site.number_format import significant, with_error

A_PAGE, B_PAGE = "chapters/1-a/index", "chapters/1-a/b"  # of the tiny book
MEAN = Measurement("E[q·k]", 31.97, 32.0, 0.2, "5 √(Var/N)", rival=0.0, standard_error=0.041)


@pytest.mark.book
def test_every_disagreement_fails_the_build_again_and_again(book):
    book.page(A_PAGE, "Chapter A", "shown", "unrecorded", "unproven", "denied", "elsewhere")
    book.page(B_PAGE, "Page B", "shown")
    book.ledger()
    book.records(
        shown=book.record("Shown"),
        hidden=book.record("Hidden"),
        unproven=book.record("Unproven"),
        denied=book.record("Denied", no_evidence="A matter of words."),
        elsewhere=book.record("Elsewhere", page=B_PAGE),
    )
    book.evidence(shown=MEAN, hidden=MEAN, denied=MEAN, elsewhere=MEAN, unclaimed=MEAN)
    expected = [
        "index.md:7: WARNING: no claims.yml records a claim 'unrecorded'; add the record",
        "b.md:4: WARNING: the claim 'shown' is shown a second time",
        "index.md:16: WARNING: the claim 'elsewhere' is shown here, but chapters/1-a/claims.yml "
        "says that chapters/1-a/b discusses it",
        "1-a/claims.yml:15: WARNING: the claim 'hidden' is recorded but discussed nowhere; "
        "put {claim} hidden into chapters/1-a/index.md",
        "1-a/claims.yml:29: WARNING: the claim 'unproven' has no evidence; write an "
        "@evidence('unproven') in scaling_book.evidence, or say why not",
        "1-a/claims.yml:43: WARNING: the claim 'denied' has evidence, but its field "
        "no_evidence denies it; remove the field",
        "ledger.md:4: WARNING: there is evidence for 'unclaimed', but no claims.yml records",
    ]
    for _ in ("from nothing", "with nothing changed"):
        status, output = book.build()
        assert status != 0
        for warning in expected:
            assert warning in output
        assert output.count("WARNING: ") - output.count("IPKernelApp") == len(expected)


@pytest.mark.book
def test_a_record_that_is_not_as_it_must_be_fails_the_build(book):
    book.page(A_PAGE, "Chapter A", "shown")
    book.page(B_PAGE, "Page B")
    book.ledger()
    book.records(shown=book.record("Shown", verdict="maybe"))
    status, output = book.build()
    assert status != 0
    assert "1-a/claims.yml:1: WARNING: shown: verdict must be one of holds" in output
    assert output.count("WARNING: ") - output.count("IPKernelApp") == 1


@pytest.mark.book
def test_cards_and_ledger_are_written_and_follow_every_change(book):
    book.page(A_PAGE, "Chapter A")
    book.write(f"{A_PAGE}.md", "See {ref}`claim-first`.\n", mode="a")
    book.page(B_PAGE, "Page B", "first", "second")
    book.ledger()
    second = book.record("Second", page=B_PAGE, verdict="wrong", no_evidence="A matter of words.")
    book.records(first=book.record("First", page=B_PAGE), second=second)
    book.evidence(first=MEAN)
    status, output = book.build()
    assert status == 0, output

    card = book.card("first", B_PAGE)
    assert '<span class="verdict verdict-holds-if">Holds if …</span>' in card
    assert '<span class="claim-name">First</span>' in card
    assert 'lang="zh">「均值仍为 0」</span>' in card
    for part in ("answer", "right", "conditions", "sources"):
        assert f'<div class="claim-{part}">' in card
    assert card.count('class="katex"') == 2
    assert card.count("bibliography.html#id") == 2  # in the right statement and in the sources
    assert 'class="claim-evidence' in card
    for cell in ("E[q·k]", "31.97 ± 0.04", "32", "0.2", "0"):
        assert f"<td><p>{cell}" in card
    assert re.search("python.*-m.*scaling_book.evidence.*first</span></code>", card)
    assert 'href="../../ledger.html#ledger-first"' in card
    assert "A matter of words." in book.card("second", B_PAGE)
    assert "claim-evidence" not in book.card("second", B_PAGE)
    # {ref} finds the card by its label and shows its name
    assert re.search(r'href="b.html#claim-first"><span[^>]*>First</span>', book.html(A_PAGE))

    ledger = book.html("ledger")
    assert 'href="chapters/1-a/b.html#claim-first">First</a>' in ledger
    assert ledger.index('id="ledger-first"') < ledger.index('id="ledger-second"')
    scoreboard = re.findall(r"<td><p>(.*?)</p>", ledger[: ledger.index('id="ledger-first"')])
    assert [re.sub("<.*?>", "", cell) for cell in scoreboard] == [
        *("Chapter A", "1", "1", "2"),
        *("All claims", "1", "1", "2"),
    ]

    # A measurement changes, and the title of the chapter: neither page nor record of the card.
    book.evidence(first=Measurement("E[q·k]", 32.5, 32.0, 0.9, "5 √(Var/N)", 0.0, 0.1))
    book.page(A_PAGE, "Chapter A, renamed")
    status, output = book.build()
    assert status == 0, output
    assert "32.50 ± 0.10" in book.card("first", B_PAGE)
    assert 'href="chapters/1-a/index.html">Chapter A, renamed</a>' in book.html("ledger")

    # A record changes, and with it the page of its card; the page of the other one does not.
    moved = book.record("First, corrected", page=A_PAGE, verdict="misleading")
    book.records(first=moved, second=second | {"verdict": "holds"})
    book.page(A_PAGE, "Chapter A, renamed", "first")
    book.page(B_PAGE, "Page B", "second")
    status, output = book.build()
    assert status == 0, output
    assert "verdict-misleading" in book.card("first")
    assert "verdict-holds" in book.card("second", B_PAGE)
    assert 'href="chapters/1-a/index.html#claim-first">First, corrected</a>' in book.html("ledger")
    assert "claim-first" not in book.html(B_PAGE)


# The measurements of a build


def test_measurements_are_read_without_the_modules_that_make_them(tmp_path):
    evidence_file(tmp_path).write_text(json.dumps({"first": [asdict(MEAN)]}), "utf8")
    assert evidence_results(tmp_path) == {"first": [MEAN]}
    code = (
        "import sys; from pathlib import Path\n"
        "from scaling_book.site.evidence_cache import evidence_results\n"
        f"assert list(evidence_results(Path({str(tmp_path)!r}))) == ['first']\n"
        "print(*sorted(name for name in sys.modules if name.startswith('scaling_book.evidence')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["scaling_book.evidence", "scaling_book.evidence.core"]


def fake_command(status: int, content: str, error: str = ""):
    def run(command, **_):
        Path(command[command.index("--json") + 1]).write_text(content, "utf8")
        return subprocess.CompletedProcess(command, status, stdout="[1/1] first", stderr=error)

    return run


def test_measurements_are_made_once(tmp_path, monkeypatch):
    content = json.dumps({"first": [asdict(MEAN)]})
    monkeypatch.setattr(evidence_cache.subprocess, "run", fake_command(0, content))
    assert evidence_results(tmp_path / "new") == {"first": [MEAN]}
    monkeypatch.setattr(evidence_cache.subprocess, "run", fake_command(1, ""))
    assert evidence_results(tmp_path / "new") == {"first": [MEAN]}
    assert [path.name for path in (tmp_path / "new").iterdir()] == [evidence_file(tmp_path).name]


def test_evidence_that_fails_is_shown_and_not_kept(tmp_path, monkeypatch):
    run = fake_command(1, "{}", "first: E[q·k] measured 3")
    monkeypatch.setattr(evidence_cache.subprocess, "run", run)
    for _ in range(2):
        with pytest.raises(EvidenceFailed, match="first: E"):
            evidence_results(tmp_path)
    assert list(tmp_path.iterdir()) == []


# Numbers and words


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (64.0, "64"),
        (4096.0, "4096"),
        (0.3072, "0.3072"),
        (0.5, "0.5"),
        (22.627417, "22.63"),
        (-0.0228, "−0.0228"),
        (9.99996, "10"),
        (1234567.8, "1.235 · 10⁶"),
        (0.00000123, "1.23 · 10⁻⁶"),
        (float("nan"), "NaN"),
        (float("-inf"), "−∞"),
    ],
)
def test_numbers_have_four_digits(value, shown):
    assert significant(value) == shown


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (63.5581, 0.46, "63.6 ± 0.5"),
        (63.5581, 0.146, "63.56 ± 0.15"),
        (4092.4, 37.0, "4092 ± 37"),
        (-0.0228, 0.04, "−0.02 ± 0.04"),
        (0.0028, 0.096, "0.00 ± 0.10"),
        (-0.001, 0.04, "0.00 ± 0.04"),
        (128.0, None, "128"),
        (128.0, 0.0, "128"),
    ],
)
def test_errors_have_one_or_two_digits(value, error, shown):
    assert with_error(value, error) == shown


def test_a_language_without_words_is_refused():
    assert words_for("en").verdicts["holds"] == "Holds"
    with pytest.raises(KeyError, match="no words for the language 'tlh', only for en"):
        words_for("tlh")
