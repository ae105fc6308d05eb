"""The opening page of the casebook leads to every case, and lists every thread."""

import re
from pathlib import Path

import pytest

CASEBOOK = Path(__file__).parents[2] / "chapters" / "casebook"
INDEX = (CASEBOOK / "index.md").read_text("utf8")
TREE, _, FRAMEWORKS = INDEX.partition("(casebook-by-framework)=")
THREAD = re.compile(r"`([\w.-]+/[\w.-]+#[0-9]+)`")
# these two have no cases of their own
OTHERS = {CASEBOOK / "index.md", CASEBOOK / "check-your-own-attention.md"}
PAGES = sorted(set(CASEBOOK.glob("*.md")) - OTHERS)


def cases(page):
    """Label and text of each case of a page."""
    body = page.read_text("utf8").partition("\n:::{admonition}")[0]
    parts = re.split(r"^\(([a-z0-9-]+)\)=$", body, flags=re.M)
    return [(a, b) for a, b in zip(parts[1::2], parts[2::2], strict=True) if a.startswith("case-")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tree_leads_to_every_case(page):
    found = cases(page)
    assert found
    missing = [label for label, _ in found if f"{{ref}}`{label}`" not in TREE]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_index_by_framework_lists_every_thread_with_its_case(page):
    listed = {}
    for case, threads in re.findall(r"^\| \{ref\}`([\w-]+)` \| (.*) \|$", FRAMEWORKS, re.M):
        listed.setdefault(case, set()).update(THREAD.findall(threads))
    for label, text in cases(page):
        assert set(THREAD.findall(text)) <= listed.get(label, set()), label
        assert "**Symptom.**" in text, label
        assert "**Prevention.**" in text, label
