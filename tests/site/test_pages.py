"""Every page, opened in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from scaling_book.site.paths import NODE_MODULES

pytestmark = [pytest.mark.browser, pytest.mark.book]

KILOBYTES = 350
WIDTHS = (320, 390, 768, 992, 1100, 1440, 1280)
AXE_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

RUN_AXE = "options => axe.run(document, options)"
AXE_LIGHT = {"resultTypes": ["violations"], "runOnly": {"type": "tag", "values": AXE_TAGS}}
# The rules of those tags that ask for colours
COLOURS = ["color-contrast", "link-in-text-block"]
AXE_DARK = {"resultTypes": ["violations"], "runOnly": {"type": "rule", "values": COLOURS}}

BOXES = """() => [...document.querySelectorAll("body *")].map((element) => {
  const box = element.getBoundingClientRect();
  const seen = element.checkVisibility({ visibilityProperty: true });
  return [element.tagName, seen, box.x, box.y, box.width, box.height].join(" ");
}).join("\\n")"""

SCROLL_THROUGH = """async () => {
  // lazy images load when they come into view
  for (let y = 0; y < document.body.scrollHeight; y += 600) {
    scrollTo(0, y);
    await new Promise(requestAnimationFrame);
  }
  await Promise.all([...document.images].map((image) => image.decode().catch(() => {})));
  scrollTo(0, 0);
}"""

RAW_TEX = r"""() => {
  const skip = "pre, code, script, style, .katex-mathml, annotation, .search-summary";
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const text = walker.currentNode;
    if (text.parentElement.closest(skip)) continue;
    if (/\$|\\(frac|sqrt|begin|operatorname|left|mathbb)/.test(text.data))
      found.push(text.data.trim());
  }
  return found;
}"""

EMPTY_FORMULAS = """() => [...document.querySelectorAll(".katex-html")].filter((formula) => {
  // what is folded away has no box yet
  if (formula.closest("details:not([open]), .sd-tab-content, [hidden], dialog")) return false;
  const box = formula.getBoundingClientRect();
  return box.width === 0 || box.height === 0;
}).length"""

BAD_IMAGES = """() => [...document.images]
  .filter((image) => image.naturalWidth === 0 || !image.alt.trim())
  .map((image) => image.src + " alt=" + JSON.stringify(image.alt))"""

WIDER_THAN_PAGE = """() => {
  const page = document.documentElement;
  if (page.scrollWidth <= page.clientWidth) return [];
  const wide = [...document.querySelectorAll("main *, header *, footer *")]
    .filter((box) => box.getBoundingClientRect().right > page.clientWidth + 1)
    .map((box) => box.tagName.toLowerCase() + "." + box.className);
  return [`${page.scrollWidth} > ${page.clientWidth}`, ...wide.slice(0, 5)];
}"""


def test_opens_cleanly_and_complete(opened: Any, address: str) -> None:
    """No complaint in the console, nothing from elsewhere, light, formulas set, images there."""
    seen = opened
    seen.page.evaluate(SCROLL_THROUGH)
    kilobytes = seen.transferred / 1000
    elsewhere = [url for url in seen.requests if not url.startswith((address, "data:"))]
    assert elsewhere == [], "asks other hosts"
    assert seen.complaints == []
    assert kilobytes <= KILOBYTES, f"{kilobytes:.0f} KB"
    assert seen.page.evaluate(RAW_TEX) == [], "TeX in the text"
    assert seen.page.evaluate(EMPTY_FORMULAS) == 0, "formulas without a box"
    assert seen.page.evaluate(BAD_IMAGES) == []


def test_fits_every_width(opened: Any) -> None:
    """What is too wide scrolls in its own box; the page never scrolls sideways."""
    page = opened.page
    too_wide = {}
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        if boxes := page.evaluate(WIDER_THAN_PAGE):
            too_wide[width] = boxes
    assert too_wide == {}


def _violations(result: dict[str, Any]) -> list[str]:
    return [
        f"{rule['id']} ({rule['impact']}): {node['html'][:160]}"
        for rule in result["violations"]
        for node in rule["nodes"]
    ]


def test_axe_finds_nothing(opened: Any) -> None:
    """No violation of WCAG 2.2 AA or best practice that axe-core can see, on light and dark."""
    page = opened.page
    page.evaluate((NODE_MODULES / "axe-core" / "axe.min.js").read_text("utf8"))
    found, shown = [], {}
    for scheme, width in (("light", 1280), ("light", 390), ("dark", 390), ("dark", 1280)):
        page.emulate_media(color_scheme=scheme)
        page.locator(f"html[data-theme={scheme}]").wait_for(state="attached")
        if page.viewport_size["width"] != width:
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_timeout(350)  # the theme's script follows a change after 300 ms
        found += _violations(page.evaluate(RUN_AXE, AXE_LIGHT if scheme == "light" else AXE_DARK))
        shown[scheme, width] = page.evaluate(BOXES)
    assert found == []
    # so that what does not ask for colours need not be asked on dark again
    for width in (1280, 390):
        assert shown["light", width] == shown["dark", width], "dark moves, shows or hides something"
    assert opened.complaints == []


def test_opens_from_a_folder(page_name: str, site: Path, visit: Any) -> None:
    """Without any server: styles apply, formulas have their fonts, nothing is refused."""
    seen = visit((site / f"{page_name}.html").as_uri())
    assert seen.complaints == []
    assert {urlsplit(url).scheme for url in seen.requests} <= {"file", "data"}
    sheets = seen.page.evaluate("document.styleSheets.length")
    links = seen.page.locator("link[rel=stylesheet]").count()
    assert sheets >= links > 5
    accent = seen.page.evaluate(
        "getComputedStyle(document.documentElement).getPropertyValue('--accent').trim()"
    )
    assert accent.startswith("#")
    assert seen.page.evaluate("getComputedStyle(document.querySelector('main')).display") == "flex"
