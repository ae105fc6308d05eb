"""No loose numbers: each one that a page or a claim states rests on something that was computed.

`book` says what counts. A number that fails is one to take from a cell with ``{glue:text}``, to
measure, to leave out, or to enter in ``allowed.yml`` with a reason.
"""

import random
from dataclasses import replace

import pytest
import yaml

from .book import ALLOWED, read_book

REMEDY = (
    "Numbers without support. Glue them from a cell, measure them, leave them out, or enter them "
    "in tests/numbers/allowed.yml with a reason; tests/numbers/book.py says what counts:\n"
)


@pytest.fixture(scope="module")
def book(site):
    return read_book(site.parents[1])


def test_pages_have_no_loose_numbers(book):
    found = [str(finding) for page in book.pages for finding in book.findings(page)]
    assert not found, REMEDY + "\n".join(found)


def test_claims_have_no_loose_numbers(book):
    found = [str(finding) for slug in book.claims for finding in book.findings(slug)]
    assert not found, REMEDY + "\n".join(found)


def test_no_exception_is_stale(book):
    for place in (*book.pages, *book.claims):
        book.findings(place)
    listed = {(place, text) for place, texts in book.exceptions.items() for text in texts}
    assert listed - book.needed == set(), "these spare nothing; take them out of allowed.yml"


def test_every_entry_of_the_allow_list_has_a_reason():
    allowed = yaml.safe_load(ALLOWED.read_text("utf8"))
    entries = [*allowed["rules"], *(e for place in allowed["places"].values() for e in place)]
    assert all(entry["reason"].strip() for entry in entries)


def test_a_number_that_is_changed_is_found(book):
    # Small ones and short decimals find another by chance; most others must not.
    rng = random.Random(4)
    found = []
    for place in (*book.pages, *book.claims):
        for statement in book.statements(place):
            for number in book.numbers(statement):
                whole = number.value == round(number.value) >= 10 and not number.step
                if whole and statement.evidence.supports(number):
                    other = number.value + rng.choice((-3, -2, 2, 3, 4, 5))
                    found.append(not statement.evidence.supports(replace(number, value=other)))
    assert len(found) > 100
    assert sum(found) / len(found) > 0.9


def test_the_answer_in_sixty_words_has_sixty(book):
    text = book.pages["index"].text
    answer = text[text.index("\n> ") :].split("\n\n")[0]
    assert len(answer.replace(">", "").split()) == 60
