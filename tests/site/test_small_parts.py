"""Anchors, alternative texts, the public address, and what makes a page out of date."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docutils import nodes
from docutils.core import publish_doctree

from scaling_book.site import address, finish
from scaling_book.site.alt_text import says_nothing
from scaling_book.site.anchors import label_first

SOURCE = """
.. _the-label:

A title of words
----------------

Text.

Another title
-------------

Text.
"""


def test_the_label_comes_first() -> None:
    doctree = publish_doctree(SOURCE, settings_overrides={"doctitle_xform": False})
    app: Any = None
    label_first(app, doctree)
    first, second = doctree.findall(nodes.section)
    assert first["ids"] == ["the-label", "a-title-of-words"]
    assert second["ids"] == ["another-title"]


@pytest.mark.parametrize(
    ("alt", "nothing"),
    [
        ("", True),
        ("  ", True),
        ("plot.svg", True),
        ("plot", True),
        ("_images/plot.svg", True),
        ("A rising line.", False),
    ],
)
def test_a_file_name_says_nothing(alt: str, nothing: bool) -> None:
    assert says_nothing(alt, "_images/plot.svg") is nothing


@pytest.mark.parametrize("given", ["https://a.example/book", "https://a.example/book/"])
def test_one_key_gives_every_absolute_address(given: str) -> None:
    app: Any = SimpleNamespace(extensions={"sphinxext.opengraph": None})
    config: Any = SimpleNamespace(site_url=given)
    address.use_site_url(app, config)
    assert (
        config.site_url == config.html_baseurl == config.ogp_site_url == "https://a.example/book/"
    )


def test_sitemap_is_xml_and_escapes() -> None:
    from xml.etree import ElementTree

    root = ElementTree.fromstring(address.sitemap(["https://a.example/?a&b"]).encode())
    assert [element.text for element in root.iter() if element.tag.endswith("loc")] == [
        "https://a.example/?a&b"
    ]


def test_a_changed_style_sheet_makes_pages_out_of_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sphinx then writes every page anew; it neither reads nor executes any."""
    monkeypatch.setattr(finish, "SITE", tmp_path)
    pages = finish.FinishedPages()
    pages.pathchain = [str(tmp_path)]
    template, sheet = tmp_path / "page.html", tmp_path / "book.css"
    for path, changed in ((template, 100), (sheet, 50)):
        path.touch()
        os.utime(path, (changed, changed))
    os.utime(tmp_path, (1, 1))
    assert pages.newest_template_mtime() == 100
    os.utime(sheet, (200, 200))
    assert pages.newest_template_mtime() == 200
