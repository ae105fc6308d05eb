"""What a reader does: switch the light, search, copy, turn pages, take a page along."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.book]

THEME = "document.documentElement.dataset.theme"
INK = "getComputedStyle(document.body).color"


def test_theme_button_switches_and_the_choice_stays(address: str, visit: Any) -> None:
    page = visit(f"{address}/index.html", scheme="light").page
    light = page.evaluate(INK)
    assert page.evaluate(THEME) == "light"
    page.click(".theme-switch-button")
    assert page.evaluate(THEME) == "dark"
    assert page.evaluate(INK) != light
    page.reload()
    assert page.evaluate(THEME) == "dark"
    assert page.evaluate(INK) != light


def test_dark_before_anything_is_painted(address: str, visit: Any) -> None:
    """The page knows its theme by itself: when the scripts come it would flash white first."""
    page = visit(f"{address}/index.html", scheme="dark").page
    page.route("**/*.js*", lambda route: route.abort())
    page.reload()
    assert page.evaluate(THEME) == "dark"


@pytest.mark.parametrize("system", ["light", "dark"])
def test_figures_follow_the_page_and_not_the_system(system: str, address: str, visit: Any) -> None:
    """Paint an SVG figure as the page shows it and compare its darkest and lightest ink."""
    seen = visit(f"{address}/index.html", scheme=system)
    page = seen.page
    other = "dark" if system == "light" else "light"
    page.evaluate("mode => localStorage.setItem('mode', mode)", other)
    page.reload()
    assert page.evaluate(THEME) == other
    drawing = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="8" height="8">'
        "<style>rect{fill:#f00}@media (prefers-color-scheme:dark){rect{fill:#00f}}</style>"
        '<rect width="8" height="8"/></svg>'
    )
    page.evaluate(
        """drawing => {
          const image = new Image(8, 8);
          image.alt = "a square";
          image.style.cssText = "position:fixed;left:0;top:0;z-index:9999";
          image.src = "data:image/svg+xml," + encodeURIComponent(drawing);
          document.body.append(image);
          return image.decode();
        }""",
        drawing,
    )
    shot = page.screenshot(clip={"x": 2, "y": 2, "width": 4, "height": 4})
    assert _first_pixel(page, shot) == ([0, 0, 255] if other == "dark" else [255, 0, 0])


def _first_pixel(page: Any, png: bytes) -> list[int]:
    import base64

    data = "data:image/png;base64," + base64.b64encode(png).decode()
    pixel: list[int] = page.evaluate(
        """async data => {
          const image = new Image();
          image.src = data;
          await image.decode();
          const canvas = document.createElement("canvas").getContext("2d");
          canvas.drawImage(image, 0, 0);
          return [...canvas.getImageData(1, 1, 1, 1).data].slice(0, 3);
        }""",
        data,
    )
    return pixel


@pytest.mark.parametrize("origin", ["server", "folder"])
def test_search_finds(origin: str, address: str, site: Path, visit: Any) -> None:
    """From any page through the search field, with a server and without one."""
    start = f"{address}/index.html" if origin == "server" else (site / "index.html").as_uri()
    seen = visit(start)
    seen.page.click("button.search-button-field")
    seen.page.fill("#pst-search-dialog input[name=q]", "variance")
    seen.page.press("#pst-search-dialog input[name=q]", "Enter")
    results = seen.page.locator("#search-results .search li a")
    results.first.wait_for()
    assert results.count() >= 1
    if origin == "server":
        # excerpts come from the pages themselves
        seen.page.locator("#search-results p.context").first.wait_for()
    results.first.click()
    seen.page.wait_for_url(lambda url: "search.html" not in url)
    assert "variance" in seen.page.inner_text("article").lower()
    assert seen.complaints == []


def test_code_is_copied_without_output(address: str, site: Path, visit: Any) -> None:
    notebook = next(iter(sorted(site.rglob("_sources/**/*.ipynb"))))
    page_name = notebook.relative_to(site / "_sources").with_suffix(".html").as_posix()
    seen = visit(f"{address}/{page_name}")
    page = seen.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=address)
    button = page.locator("div.cell_input button.copybtn").first
    button.scroll_into_view_if_needed()
    button.click(force=True)  # shown when the pointer is over the cell
    copied = page.evaluate("navigator.clipboard.readText()")
    cell = page.locator("div.cell_input pre").first.inner_text()
    assert copied.strip() == cell.strip() != ""
    buttons = page.locator("div.cell_input button.copybtn").count()
    assert buttons == page.locator("div.cell_input pre").count()


def test_next_and_previous_lead_through_the_book(address: str, visit: Any) -> None:
    page = visit(f"{address}/index.html").page
    titles = [page.title()]
    for _ in range(3):
        page.click("a.right-next")
        page.wait_for_load_state()
        titles.append(page.title())
    assert len(set(titles)) == 4
    for title in reversed(titles[:-1]):
        page.click("a.left-prev")
        page.wait_for_load_state()
        assert page.title() == title


def test_a_page_can_be_taken_along(address: str, site: Path, visit: Any) -> None:
    notebook = next(iter(sorted(site.rglob("_sources/**/*.ipynb"))))
    page_name = notebook.relative_to(site / "_sources").with_suffix(".html").as_posix()
    page = visit(f"{address}/{page_name}").page
    page.click(".take-along > summary")
    with page.expect_download() as download:
        page.click(".take-along a[href$='.ipynb']")
    content = json.loads(Path(download.value.path()).read_text("utf8"))
    assert any(cell.get("outputs") for cell in content["cells"])
    page.keyboard.press("Escape")
    page.click("h1")
    assert page.locator(".take-along").get_attribute("open") is None


def test_sidebar_opens_on_a_telephone(address: str, visit: Any) -> None:
    page = visit(f"{address}/index.html", width=390).page
    assert not page.locator("nav.bd-docs-nav").is_visible()
    page.click(".primary-toggle")
    page.locator("nav.bd-docs-nav").wait_for(state="visible")
    page.keyboard.press("Escape")
    page.locator("nav.bd-docs-nav").wait_for(state="hidden")


def test_wide_boxes_are_reachable_by_keyboard(address: str, visit: Any) -> None:
    """A formula that scrolls sideways is a tab stop; one that fits is none."""
    page = visit(f"{address}/index.html", width=390).page
    page.evaluate(
        """() => document.querySelector("article").insertAdjacentHTML("beforeend",
          ["short", "long ".repeat(200)].map((text) =>
            `<div class="math"><span class="katex-display"><span class="katex">` +
            `<span class="katex-html" style="white-space:nowrap">${text}</span>` +
            `</span></span></div>`).join(""))"""
    )
    page.evaluate("dispatchEvent(new Event('resize'))")  # the script looks again
    stops = page.evaluate(
        """() => [...document.querySelectorAll(".katex-display")].slice(-2)
          .map((box) => [box.scrollWidth > box.clientWidth, box.tabIndex])"""
    )
    assert stops == [[False, -1], [True, 0]]


def test_paper_is_light_and_unfolded(address: str, visit: Any) -> None:
    page = visit(f"{address}/index.html", scheme="dark").page
    page.evaluate(
        """() => document.querySelector("article").insertAdjacentHTML(
          "beforeend", "<details id='folded'><summary>More</summary>Words</details>")"""
    )
    state = f"[{THEME}, document.querySelector('#folded').open]"
    assert page.evaluate(state) == ["dark", False]
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(state) == ["light", True]
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(state) == ["dark", False]
