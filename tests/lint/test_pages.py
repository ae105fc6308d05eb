"""What a page's source must keep to; CONTRIBUTING.md gives the reasons."""

import re
import statistics
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from sphinx_external_toc.parsing import parse_toc_yaml

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / f"{name}.md" for name in parse_toc_yaml(ROOT / "_toc.yml")]
IDS = [page.relative_to(ROOT).as_posix() for page in PAGES]

FENCE = re.compile(r"^(`{3,}|~{3,}|:{3,})(.*)$")
HEADING = re.compile(r"^#{1,6} +(.*)$")
LABEL = re.compile(r"^\(([^)]+)\)=$")
# The book is written in British English. These end in -ize in every English.
SIZES = r"(size|sized|sizes|sizing|resize\w*|prize\w*|seize\w*|capsize\w*)"
AMERICAN = re.compile(
    rf"\b(?!{SIZES}\b)(\w+iz(?:e|es|ed|er|ers|ing|ation|ations)|colors?|behaviors?|favors?|centers?)\b",
    re.I,
)


@dataclass
class Source:
    """A page split into what is prose and what is code."""

    headings: list[tuple[str, str | None]]  # text, and the label on the line before
    cells: list[list[str]]
    prose: list[str]


def split(text: str) -> Source:
    """Split the Markdown of a page."""
    lines = text.splitlines()
    if lines and lines[0] == "---":
        del lines[: lines.index("---", 1) + 1]
    source = Source([], [], [])
    previous = ""
    closing = language = None
    for line in lines:
        fence = FENCE.match(line)
        if closing is None and fence and fence[1][0] != ":" and fence[2].strip():
            closing, language = fence[1], fence[2].strip()
            # a fence around Markdown (a figure, a theorem) holds prose
            if not language.startswith("{"):
                language = "literal"
            if language.startswith("{code-cell}"):
                source.cells.append([])
        elif closing is not None and line.startswith(closing) and not line.strip("`~ "):
            closing = language = None
        elif language and language.startswith("{code-cell}"):
            source.cells[-1].append(line)
        elif language != "literal":
            heading = HEADING.match(line)
            if heading:
                label = LABEL.match(previous)
                source.headings.append((heading[1], label[1] if label else None))
            source.prose.append(line)
        if line.strip():
            previous = line.strip()
    return source


SPLIT = {page: split(page.read_text("utf8")) for page in PAGES}


def length(cell: list[str]) -> int:
    return sum(1 for line in cell if line.strip() and not re.match(r"^:[\w-]+:|^#\|", line))


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_heading_has_a_label(page):
    assert SPLIT[page].headings, "a page starts with a heading"
    for text, label in SPLIT[page].headings:
        assert label, f"no (label)= on the line before the heading {text!r}"
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", label), f"{label!r} is not kebab-case"


def test_labels_are_unique():
    labels = Counter(label for source in SPLIT.values() for _, label in source.headings)
    assert [label for label, times in labels.items() if times > 1] == []


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_headings_hold_no_math(page):
    assert [text for text, _ in SPLIT[page].headings if "$" in text or "{math}" in text] == []


def test_cells_are_short():
    lengths = sorted(length(cell) for source in SPLIT.values() for cell in source.cells)
    assert len(lengths) >= 10
    assert statistics.median(lengths) <= 6
    assert lengths[int(0.9 * len(lengths))] <= 15
    assert lengths[-1] <= 25


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_cells_reach_for_nothing_behind_the_back(page):
    code = "\n".join(line for cell in SPLIT[page].cells for line in cell)
    assert not re.search(r"sys\.path|scaling_book\.site|^\s*[%!]|\bopen\(", code, re.M)


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_pages_are_written_in_british_english(page):
    prose = re.sub(
        r"`[^`]*`|\{[^}]*\}|https?://\S+|\battention_scaling\.\w+|^:\w+:",
        " ",
        "\n".join(SPLIT[page].prose),
        flags=re.M,
    )
    assert [match[0] for match in AMERICAN.finditer(prose)] == []


def test_every_page_is_in_the_table_of_contents():
    written = set((ROOT / "chapters").rglob("*.md")) | {ROOT / "index.md"}
    assert written == set(PAGES)


def test_the_six_sections_of_the_answer_are_the_chapters():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text("utf8"))
    chapters = [chapter["file"] for chapter in toc["parts"][0]["chapters"]]
    assert [Path(name).parts[1][0] for name in chapters] == list("123456")


def test_the_splitter_sees_what_it_should():
    page = (
        "---\na: b\n---\n(x)=\n# X\n\n```{code-cell} python\n# no heading\nprint(1)\n```\n\n## Y\n"
    )
    source = split(page)
    assert source.headings == [("X", "x"), ("Y", None)]
    assert source.cells == [["# no heading", "print(1)"]]
    assert AMERICAN.search("we normalize")
    assert not AMERICAN.search("the size of a prize")
