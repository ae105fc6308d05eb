"""The ledger's filter: what it hides, what its numbers say, with a script and without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from scaling_book.evidence import Measurement
from scaling_book.site.paths import NODE_MODULES

pytestmark = [pytest.mark.browser, pytest.mark.book]

MEAN = Measurement("E", 32.0, 32.0, 0.2, "5 s", rival=0.0)
# slug: folder of the chapter, verdict, whether it waits for runs
CLAIMS = {
    "a-holds": ("1-a", "holds", False),
    "a-wrong": ("1-a", "wrong", False),
    "a-also-wrong": ("1-a", "wrong", True),
    "b-wrong": ("2-b", "wrong", False),
    "b-misleading": ("2-b", "misleading", False),
}
VERDICTS = ("all-verdicts", "holds", "misleading", "wrong", "provisional")
CHAPTERS = ("all-chapters", "1-a", "2-b")

# What a screen reader gets of the ledger, which is what is displayed
SHOWN = """() => ({
  rows: [...document.querySelectorAll("tr.ledger-row")]
    .filter((row) => row.checkVisibility()).map((row) => row.id.replace("ledger-", "")),
  parts: [...document.querySelectorAll(".ledger-part")]
    .filter((part) => part.checkVisibility()).map((part) => part.querySelector("h3").id),
  numbers: Object.fromEntries([...document.querySelectorAll(".ledger-choice")].map((label) =>
    [label.querySelector("input").id.replace("ledger-show-", ""),
     [...label.querySelectorAll(".ledger-count")].filter((n) => n.checkVisibility())
       .map((n) => n.textContent).join()])),
  total: document.querySelector(".ledger-shown").innerText,
})"""


def left(verdict: str, chapter: str) -> list[str]:
    return [
        slug
        for slug, (folder, judged, waits) in CLAIMS.items()
        if verdict in ("all-verdicts", judged) or (verdict == "provisional" and waits)
        if chapter in ("all-chapters", folder)
    ]


@pytest.fixture(scope="module")
def ledger(lasting_book: Any) -> str:
    """Build a book with two chapters and return the address of its ledger."""
    book = lasting_book
    for folder in ("1-a", "2-b"):
        records = {}
        for slug, (chapter, verdict, waits) in CLAIMS.items():
            if chapter == folder:
                changes = {"waits": "runs"} if waits else {}
                records[slug] = book.record(slug, verdict=verdict, **changes)
        book.records(folder, **records)
    book.page(book.A_PAGE, "Chapter A", *CLAIMS)
    book.page(book.B_PAGE, "Page B")
    book.write("ledger.md", "(ledger)=\n# Ledger\n\n(all)=\n## All\n\n```{ledger}\n```\n")
    book.evidence(**dict.fromkeys(CLAIMS, MEAN))
    status, output = book.build()
    assert status == 0, output
    return (book.folder / "_build" / "html" / "ledger.html").as_uri()


@pytest.fixture(params=["with a script", "without a script"])
def page(request: Any, browser: Browser, ledger: str) -> Iterator[Page]:
    scripts = request.param == "with a script"
    context = browser.new_context(java_script_enabled=scripts)
    page = context.new_page()
    page.goto(ledger)
    yield page
    context.close()


def test_both_filters_together_and_every_number(page: Page) -> None:
    seen = page.evaluate(SHOWN)
    assert seen["rows"] == list(CLAIMS)  # at first
    for verdict, chapter in product(VERDICTS, CHAPTERS):
        page.locator(f"#ledger-show-{verdict}").check()
        page.locator(f"#ledger-show-{chapter}").check()
        seen = page.evaluate(SHOWN)
        rows = left(verdict, chapter)
        assert seen["rows"] == rows, (verdict, chapter)
        assert seen["parts"] == list(dict.fromkeys(f"ledger-{CLAIMS[slug][0]}" for slug in rows))
        assert seen["total"] == f"Claims shown: {len(rows)} of {len(CLAIMS)}"
        expected = {one: str(len(left(one, chapter))) for one in VERDICTS}
        expected |= {one: str(len(left(verdict, one))) for one in CHAPTERS}
        assert seen["numbers"] == expected


def test_a_link_chooses_and_the_reader_can_choose_again(page: Page, ledger: str) -> None:
    page.goto(f"{ledger}#ledger-show-wrong")
    assert page.evaluate(SHOWN)["rows"] == left("wrong", "all-chapters")
    page.locator("#ledger-show-2-b").check()
    assert page.evaluate(SHOWN)["rows"] == left("wrong", "2-b")
    page.locator("#ledger-show-all-verdicts").check()
    assert page.evaluate(SHOWN)["rows"] == left("all-verdicts", "2-b")


def test_a_link_to_a_row_works_under_every_filter(page: Page, ledger: str) -> None:
    page.goto(f"{ledger}#ledger-b-wrong")
    assert page.evaluate(SHOWN)["rows"] == list(CLAIMS)
    page.locator("#ledger-show-holds").check()
    assert page.evaluate(SHOWN)["rows"] == ["a-holds", "b-wrong"]
    assert "ledger-2-b" in page.evaluate(SHOWN)["parts"]


def test_the_keyboard_reaches_every_choice_and_shows_where_it_is(page: Page) -> None:
    page.locator("#ledger-show-all-verdicts").focus()
    for choice in VERDICTS[1:]:
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.id") == f"ledger-show-{choice}"
        outline = "getComputedStyle(document.activeElement.parentElement).outlineStyle"
        assert page.evaluate(outline) == "solid"
    assert page.evaluate(SHOWN)["rows"] == left("provisional", "all-chapters")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.name") == "ledger-chapter"


def test_names_of_the_choices(page: Page) -> None:
    for name, count in Counter(judged for _, judged, _ in CLAIMS.values()).items():
        words = {"holds": "Holds", "misleading": "Misleading", "wrong": "Wrong"}[name]
        button = page.get_by_role("radio", name=f"{words} {count}", exact=True)
        assert button.get_attribute("id") == f"ledger-show-{name}"
    assert page.get_by_role("group", name="Chapter").get_by_role("radio").count() == len(CHAPTERS)


def test_paper_shows_all(page: Page) -> None:
    page.locator("#ledger-show-holds").check()
    page.emulate_media(media="print")
    assert page.evaluate(SHOWN)["rows"] == list(CLAIMS)
    assert not page.locator(".ledger-filter").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing_in_a_filtered_ledger(
    scheme: str, width: int, ledger: str, visit: Any
) -> None:
    page = visit(f"{ledger}#ledger-show-wrong", width=width, scheme=scheme).page
    page.evaluate((NODE_MODULES / "axe-core" / "axe.min.js").read_text("utf8"))
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    options = {"resultTypes": ["violations"], "runOnly": {"type": "tag", "values": tags}}
    found = page.evaluate("options => axe.run(document.querySelector('article'), options)", options)
    assert [(rule["id"], rule["nodes"][0]["html"]) for rule in found["violations"]] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
