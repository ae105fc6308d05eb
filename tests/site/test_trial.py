"""The trial: roles that name claims, sentences of the answer, the scoreboard, provisional cards."""

import re

import pytest

from scaling_book.evidence import Measurement

MEAN = Measurement("E[q·k]", 31.97, 32.0, 0.2, "5 √(Var/N)", rival=0.0, standard_error=0.041)
AGAINST = Measurement("h", 31.97, 32.0, 0.2, "5 s", 8.0, 0.041, rival_is_the_answer=True)
QUOTE = "`a*b*c` | y_i and $x$"
READ = {"cite": "vaswani2017", "where": "§3.2", "status": "read", "quote": QUOTE, "seen": "v7"}
A_CARD, B_CARD = 'href="chapters/1-a/index.html#claim-', 'href="chapters/1-a/b.html#claim-'
INDEX = """(start)=
# Start

```{scoreboard}
```

See {verdict}`first`. The answer: {clause}`divide by $x$ and *more* <second>`, then
{clause}`at once <first second>`. Ours: {proof}`our words <third>`, {proof}`two <first second>`.

```{sentence} first second
:phrase: 均值仍为 0
The **mean** of $q$ stays 0.

A second paragraph, see {verdict}`third`.
```

:::{sentence}
:phrase: 从三个层面回答
:nothing-to-check: announcement
:name: three-levels

I answer on three levels.
:::

```{sentence} third
:phrase: 除以 √d_k
Divide by the root.
```

A {ref}`reference <sentence-three-levels>`.
"""


def shown(html: str) -> str:
    """Return what is read, without formulas and tags."""
    html = re.sub(r'<span class="math.*?</span></span></span></span>', "x", html, flags=re.S)
    return " ".join(re.sub("<[^>]+>", " ", html).split())


def part(html: str, start: str, end: str) -> str:
    begin = html.index(start)
    return html[begin : html.index(end, begin)]


def write_records(book, **changes):
    record = book.record
    records = {
        "first": record("First"),
        "second": record(
            "Second", page=book.B_PAGE, verdict="wrong", waits="ten *runs*", sources=[READ]
        ),
        "third": record("Third", verdict="holds", no_evidence="A matter of words."),
    }
    for slug, change in changes.items():
        records[slug] |= change
    book.records(**records)


def write_trial(book):
    book.page(book.A_PAGE, "Chapter A", "first", "third")
    book.page(book.B_PAGE, "Page B", "second")
    book.ledger()
    book.write("index.md", INDEX)
    write_records(book)
    book.evidence(first=MEAN, second=AGAINST)


@pytest.fixture(scope="module")
def trial(lasting_book):
    write_trial(lasting_book)
    status, output = lasting_book.build()
    assert status == 0, output
    return lasting_book


@pytest.mark.book
def test_a_verdict_is_a_badge_that_leads_to_the_card(trial):
    html = trial.html("index")
    assert re.search(
        f'See <a class="[^"]*" {A_CARD}first" title="First">'
        '<span class="verdict verdict-holds-if">Holds if …</span></a>',
        html,
    )


@pytest.mark.book
def test_a_clause_says_its_verdicts_and_leads_to_each_card(trial):
    html = trial.html("index")
    one = part(html, '<span class="clause clause-wrong">', "</a></span>")
    assert f'{B_CARD}second"' in one
    assert "<em>more</em>" in one
    assert one.endswith('<span class="clause-verdict verdict-wrong">Wrong</span>')
    two = part(
        html[html.index(one) + len(one) :], '<span class="clause clause-wrong">', "</a></span>"
    )
    assert shown(two) == "at once Holds if … Wrong"
    assert re.findall(r"#claim-(\w+)", two) == ["first", "second"]


@pytest.mark.book
def test_a_proof_leads_to_the_cards_and_says_no_verdict(trial):
    html = trial.html("index")
    proofs = re.findall(r'<span class="claim-proof">(.*?)</a></span>', html)
    assert [shown(proof) for proof in proofs] == ["our words", "two [2]"]
    assert [re.findall(r"#claim-(\w+)", proof) for proof in proofs] == [
        ["third"],
        ["first", "second"],
    ]


@pytest.mark.book
def test_a_sentence_shows_words_phrase_and_verdicts(trial):
    html = trial.html("index")
    first = part(html, '<div class="sentence sentence-wrong" id="sentence-first">', "</ul>")
    assert first.count("<p>") >= 2
    assert "<strong>mean</strong>" in first
    assert '<span class="claim-phrase" lang="zh">「均值仍为 0」</span>' in first
    assert 'href="#sentence-first" title="Link to this sentence">¶</a>' in first
    verdicts = first[first.index('class="sentence-verdicts') :]
    assert [shown(item) for item in verdicts.split("<li>")[1:]] == [
        "Holds if … First",
        "Wrong Second",
    ]
    assert re.findall(r"#claim-(\w+)", verdicts) == ["first", "second"]
    none = part(html, '<div class="sentence" id="sentence-three-levels">', "</div>\n<div")
    assert "No verdict: it announces what follows." in none
    assert '<div class="sentence sentence-holds" id="sentence-third">' in html
    assert re.search(r'href="#sentence-three-levels"><span[^>]*>reference', html)


@pytest.mark.book
def test_the_scoreboard_counts_and_leads_into_the_ledger(trial):
    board = part(trial.html("index"), '<div class="scoreboard">', "See <a")
    assert re.findall(r"flex-grow: (\d+)", board) == ["1", "1", "1"]
    assert re.findall(r'href="ledger.html#(ledger-show-[\w-]+)"', board) == [
        "ledger-show-holds",
        "ledger-show-holds-if",
        "ledger-show-wrong",
        "ledger-show-provisional",
    ]
    legend = board[board.index("</div>") :]
    assert (
        shown(legend) == "1 Holds 1 Holds if … 1 Wrong Provisional verdicts, which wait for runs: 1"
    )
    for anchor in re.findall("#(ledger-show-[\\w-]+)", board):
        assert f'id="{anchor}"' in trial.html("ledger")


@pytest.mark.book
def test_a_card_says_what_it_waits_for_and_what_its_source_says(trial):
    card = trial.card("second", trial.B_PAGE)
    assert "Provisional: waits for ten runs" in shown(card)
    assert "§3.2: “`a*b*c` | y_i and $x$” (read in v7)" in shown(card)
    assert '<td><p>8 <span class="claim-rival">(the answer)</span></p></td>' in card
    first = trial.card("first")
    assert "claim-rival" not in first
    assert "claim-waits" not in first


@pytest.mark.book
def test_a_changed_verdict_is_followed_where_a_claim_is_named(book):
    write_trial(book)
    # Sphinx writes a page with a table of contents anew by itself, but not this one
    book.write("bibliography.md", "\nSee {verdict}`first`.\n", mode="a")
    assert book.build()[0] == 0
    # the pages stay as they are
    write_records(book, first={"verdict": "misleading", "name": "First, again"})
    status, output = book.build()
    assert status == 0, output
    badge = f'{A_CARD}first" title="First, again"><span class="verdict verdict-misleading">'
    assert badge in book.html("bibliography")
    html = book.html("index")
    assert badge in html
    assert '<span class="sentence-claim">First, again</span>' in html
    assert "1 Misleading" in shown(part(html, "scoreboard-legend", "</ul>"))
    assert "verdict-holds-if" not in html


FAULTS = """(start)=
# Start

A {verdict}`firsts`, a {clause}`word <second first seconds>`, a {proof}`word <x>`.

A {clause}`word without slug`.

```{sentence} first nobody
:phrase: 均值仍为 0
Words.
```

```{sentence} first
:phrase: 均值仍为 0
Words.
```
"""
SENTENCES = {
    "": "{sentence} names the claims that it makes",
    " first\n:phrase: 均\n:nothing-to-check: question\nWords.": "give one of the two",
    "\n:phrase: 均\nWords.": "give one of the two",
    " first\nWords.": "needs a :phrase: of the answer",
    f" first\n:phrase: {'长' * 26}\nWords.": "the phrase has 26 characters, at most 25",
    " first\n:phrase: 均\n": "needs a body",
    "\n:phrase: 均\n:nothing-to-check: advice\nWords.": "needs a :name: of its own",
    " first\n:phrase: 均\n:name: Not Kebab\nWords.": ":name: must be kebab-case",
    "\n:phrase: 均\n:nothing-to-check: boredom\n:name: x\nWords.": "must be one of question,",
}


@pytest.mark.book
def test_every_fault_of_a_trial_fails_the_build(book):
    write_trial(book)
    faults = FAULTS + "".join(f"\n```{{sentence}}{text}\n```\n" for text in SENTENCES)
    book.write("index.md", faults)
    status, lines = book.warnings()
    assert status != 0
    expected = [
        "index.md:4: WARNING: no claims.yml records a claim 'firsts', which is named here; "
        "did you mean 'first'?",
        "index.md:4: WARNING: no claims.yml records a claim 'seconds', which is named here; "
        "did you mean 'second'?",
        "index.md:4: WARNING: no claims.yml records a claim 'x', which is named here; add the",
        "index.md:6: ERROR: {clause} needs words and then the slug of a claim",
        "index.md:8: WARNING: no claims.yml records a claim 'nobody', which is named here",
        "index.md:13: WARNING: the sentence 'sentence-first' stands already in index, line 8; "
        "give one of the two a :name:",
        "1-a/claims.yml:15: WARNING: no {sentence} of the answer names the claim 'second'; add it",
        "1-a/claims.yml:32: WARNING: no {sentence} of the answer names the claim 'third'; add it",
        *SENTENCES.values(),
    ]
    for warning in expected:
        assert any(warning in line for line in lines), (warning, lines)
    assert len(lines) == len(expected), lines
    # with nothing changed: what is asked of the whole book is asked again
    status, lines = book.warnings()
    assert status != 0
    again = [warning for warning in expected if " WARNING: " in warning]
    for warning in again:
        assert any(warning in line for line in lines), (warning, lines)
    assert len(lines) == len(again), lines
