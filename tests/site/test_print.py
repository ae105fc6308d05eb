"""What comes out of a printer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.book]

SHEET = "chapters/3-the-thirty-second-answer/one-page-sheet"
# What of a page is for the screen only
SCREEN_ONLY = (
    "nav, header, footer, button, .bd-sidebar, .bd-sidebar-secondary, .headerlink, .prev-next-area"
)


def pages_of(pdf: bytes) -> int:
    """Count the pages; Chromium writes the objects that describe them without compression."""
    return len(re.findall(rb"/Type\s*/Page\b(?!s)", pdf))


@pytest.mark.parametrize("paper", ["A4", "Letter"])
def test_the_sheet_fits_on_one_sheet(paper: str, address: str, site: Path, visit: Any) -> None:
    if not (site / f"{SHEET}.html").is_file():
        pytest.skip("this book has no sheet")
    page = visit(f"{address}/{SHEET}.html", scheme="dark").page
    margin = dict.fromkeys(("top", "right", "bottom", "left"), "12mm")
    assert pages_of(page.pdf(format=paper, margin=margin)) == 1
    # and it is the sheet that was printed
    page.emulate_media(media="print")
    assert page.locator(".one-sheet").is_visible()
    assert page.locator("h1").is_visible()


def test_any_page_prints_without_what_is_for_the_screen(address: str, visit: Any) -> None:
    page = visit(f"{address}/index.html").page
    page.emulate_media(media="print")
    left = page.evaluate(
        """selector => [...document.querySelectorAll(selector)]
          .filter((box) => box.checkVisibility() && box.getBoundingClientRect().height > 0)
          .map((box) => box.outerHTML.slice(0, 120))""",
        SCREEN_ONLY,
    )
    assert left == []
    colours = "[getComputedStyle(document.querySelector('article p')).color, "
    colours += "getComputedStyle(document.body).backgroundColor]"
    ink, paper = page.evaluate(colours)
    assert ink == "rgb(0, 0, 0)"
    assert paper in ("rgb(255, 255, 255)", "rgba(0, 0, 0, 0)")


def test_the_count_counts() -> None:
    assert pages_of(b"<</Type /Pages\n/Kids>> <</Type /Page\n/A>> <</Type /Page>>") == 2
