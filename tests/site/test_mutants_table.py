"""The table of faults: read from its record, with links to the cards of the claims that noticed."""

import json
import re

import pytest

from scaling_book.evidence import Measurement

MEAN = Measurement("E", 32.0, 32.0, 0.2, "5 s", rival=0.0)
FAULT = {
    "name": "drop-the-root",
    "kind": "d_k for √d_k",
    "file": "code/attention_scaling/attention.py",
    "find": "a = 1\nb = math.sqrt(d)",
    "replace": "a = 1\nb = d",
    "why": "The deviation is taken for d_k.",
    "claims": ["first"],
    "red": {"first": "measurement", "second": "error"},
    "law": "test_attention.py::test_scale",
    "seconds": 1.0,
}
SILENT = FAULT | {"name": "by-law", "red": {}, "claims": []}
RECORD = {
    "provenance": {
        "command": "make mutants",
        "date": "2026-11-30",
        "python": "3.11.7",
        "torch": "2.13.0",
        "numpy": "2.4.0",
        "hypothesis": "6.1",
    },
    "fingerprint": "0123456789abcdef",
    "baseline": {"claims": 2, "seconds": 1.0},
    "mutants": [FAULT, SILENT],
}


@pytest.mark.book
def test_the_table_shows_the_record_and_follows_it(book):
    book.write("index.md", "(start)=\n# Start\n\n```{mutants}\n```\n")
    book.page(book.A_PAGE, "Chapter A", "first", "second")
    book.page(book.B_PAGE, "Page B")
    book.ledger()
    book.records(first=book.record("First"), second=book.record("Second"))
    book.evidence(first=MEAN, second=MEAN)
    status, lines = book.warnings()
    assert status != 0
    assert [
        "index.md:4" in line and "data/mutants.json, which is missing" in line for line in lines
    ]

    book.write("data/mutants.json", json.dumps(RECORD))
    status, output = book.build()
    assert status == 0, output
    html = book.html("index")
    assert "2 faults, 1 noticed" not in html
    assert "2 faults, 2 noticed: 1 by the evidence of claims, 2 by a law of the library." in html
    assert "for the state 0123456789abcdef of code" in html
    text = re.sub("<[^>]+>", "", html)
    for shown in ("d_k for √d_k", "drop-the-root", "- b = math.sqrt(d)", "+ b = d", "::test_scale"):
        assert shown in text
    assert 'href="chapters/1-a/index.html#claim-first">first</a></p>' in html
    assert 'href="chapters/1-a/index.html#claim-second">second</a> (error)' in html

    renamed = FAULT | {"red": {"firsts": "measurement"}}
    book.write("data/mutants.json", json.dumps(RECORD | {"mutants": [renamed]}))
    status, lines = book.warnings()
    assert status != 0
    assert len(lines) == 1
    assert "index.md:4: WARNING: no claims.yml records a claim 'firsts'" in lines[0]
