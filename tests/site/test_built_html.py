"""The built files, read without a browser."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest

from scaling_book.site.alt_text import says_nothing
from scaling_book.site.notebooks import leaks
from scaling_book.site.page_policy import content_security_policy, foreign_addresses

pytestmark = pytest.mark.book


class Html(HTMLParser):
    """Ids, links, images and headings of a page, and what the head says."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.images: list[dict[str, str]] = []
        self.head: list[tuple[str, dict[str, str]]] = []
        self.headings: list[dict[str, object]] = []
        self._in_article = self._in_heading = False
        self._section: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag in ("meta", "link"):
            self.head.append((tag, attributes))
        if tag == "article":
            self._in_article = True
        if tag == "section":
            self._section = [attributes.get("id", "")]
        elif tag == "span" and set(attributes) == {"id"} and self._section:
            self._section.append(attributes["id"])  # further anchors of the section
        if tag in ("h1", "h2", "h3") and self._in_article:
            self._in_heading = True
            self.headings.append({"tag": tag, "anchors": list(self._section), "permalink": ""})
            self._section = []
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
            if self._in_heading and "headerlink" in attributes.get("class", ""):
                self.headings[-1]["permalink"] = attributes["href"]
        if tag == "img":
            self.images.append(attributes)

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self._in_article = False
        if tag in ("h1", "h2", "h3"):
            self._in_heading = False


_parsed: dict[Path, Html] = {}


def html(path: Path) -> Html:
    if path not in _parsed:
        _parsed[path] = Html(path.read_text("utf8"))
    return _parsed[path]


def test_internal_links_resolve(page_name: str, site: Path) -> None:
    page = site / f"{page_name}.html"
    broken = []
    for link in html(page).links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = page if not parts.path else (page.parent / unquote(parts.path)).resolve()
        anchor = unquote(parts.fragment)
        if not target.is_file() or (
            anchor and target.suffix == ".html" and anchor not in html(target).ids
        ):
            broken.append(link)
    assert broken == []


def test_ids_are_unique(page_name: str, site: Path) -> None:
    ids = html(site / f"{page_name}.html").ids
    assert sorted(ids) == sorted(set(ids))


def test_headings_have_their_label_as_address(written_page: str, site: Path) -> None:
    """A section with a label has two anchors; the label comes first and is the permalink."""
    for heading in html(site / f"{written_page}.html").headings:
        anchors = heading["anchors"]
        assert isinstance(anchors, list)
        if not anchors:  # made by a directive, not a section of the text
            continue
        assert len(anchors) >= 2, f"no label at the heading #{anchors[0]}"
        assert heading["permalink"] == f"#{anchors[0]}"
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", anchors[0])


def test_nothing_from_elsewhere(page_name: str, site: Path) -> None:
    assert foreign_addresses((site / f"{page_name}.html").read_text("utf8")) == []


def test_policy_comes_first_and_fits(page_name: str, site: Path) -> None:
    """The policy stands before what it rules on, and allows exactly the page's scripts."""
    text = (site / f"{page_name}.html").read_text("utf8")
    policies = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    assert policies == [content_security_policy(text)]
    assert "script-src 'self' 'sha256-" in policies[0]
    assert "unsafe-inline" not in policies[0].split("script-src")[1].split(";")[0]
    assert text.index("Content-Security-Policy") < text.index("<script")
    assert not re.search(r"<[^>]+\son[a-z]+=", text), "an inline event handler would be refused"


def test_images_have_words_and_a_size(page_name: str, site: Path) -> None:
    for image in html(site / f"{page_name}.html").images:
        assert not says_nothing(image.get("alt", ""), image["src"]), image["src"]
        if "_images/" in image["src"]:
            assert int(image["width"]) > 0
            assert int(image["height"]) > 0


def test_one_canonical_address(written_page: str, site: Path) -> None:
    head = html(site / f"{written_page}.html").head
    canonical = [a["href"] for tag, a in head if tag == "link" and a.get("rel") == "canonical"]
    preview = [a["content"] for tag, a in head if a.get("property") == "og:url"]
    assert len(canonical) == 1
    assert canonical[0].endswith(f"/{written_page}.html")
    assert preview == canonical
    assert f"<loc>{canonical[0]}</loc>" in (site / "sitemap.xml").read_text("utf8")


def test_notebook_is_clean(written_page: str, site: Path) -> None:
    """Valid, with outputs, without traces of the build."""
    path = site / "_sources" / f"{written_page}.ipynb"
    if not path.exists():  # no cells on this page
        return
    content = json.loads(path.read_text("utf8"))
    notebook = nbformat.from_dict(content)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert any(cell.outputs for cell in code)
    assert list(leaks(notebook)) == []
    assert "papermill" not in path.read_text("utf8")
    assert {key for cell in notebook.cells for key in cell.metadata} <= {"tags"}
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)


def test_no_dead_weight(site: Path) -> None:
    dead = ["fontawesome.js", "bootstrap.js", ".map", ".ttf", "fa-brands", "fa-regular"]
    files = [p for p in site.rglob("*") if p.is_file()]
    assert [p for p in files if any(p.name.endswith(d) or d in p.name for d in dead)] == []
    icons = next(p for p in files if p.name == "fa-solid-900.woff2")
    assert icons.stat().st_size < 8_000
