"""Chapters and their pages have numbers; the headings of an opening page have none."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
CHAPTERS = yaml.safe_load((ROOT / "_toc.yml").read_text("utf8"))["parts"][0]["chapters"]
HEADING = re.compile(r'<h([12])>(?:<span class="section-number">([\d.]+)\s*</span>)?')


def headings(site, name):
    """Return the level and the number of each heading of a page."""
    html = (site / f"{name}.html").read_text("utf8")
    return [(int(level), number) for level, number in HEADING.findall(html)]


def test_chapters_count_from_one_and_their_headings_do_not(site):
    for place, chapter in enumerate(CHAPTERS, 1):
        (level, number), *others = headings(site, chapter["file"])
        assert (level, number) == (1, f"{place}.")
        assert {number for _, number in others} <= {""}


def test_pages_count_from_one_in_each_chapter(site):
    pages = 0
    for place, chapter in enumerate(CHAPTERS, 1):
        for count, page in enumerate(chapter.get("sections", []), 1):
            assert headings(site, page["file"])[0] == (1, f"{place}.{count}.")
            pages += 1
    assert pages > 0
