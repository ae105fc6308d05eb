"""The statements of a book that hold numbers, and what each may rest on.

A number in the words of a page is supported if one of these holds, after rounding to the digits
that the text shows (signs are not compared):

1. A cell of the page, or a module of `scaling_book.lab` or `scaling_book.audit` that it imports,
   has it in its source, as a constant, the value of constants alone, or the length of a literal
   list. The source of a cell that draws counts for captions and alternative texts only.
2. A cell of the same section printed or glued it. (What the text takes from a cell by
   ``{glue:text}`` needs no look.)
3. It belongs to a claim whose card the section shows or the paragraph links: in the name of a
   quantity, measured, expected or rival; in the phrase under discussion; in words quoted from a
   source.
4. A cell of a section that the paragraph links has it, or a text of a claim that it links may rest
   on it.
5. It stands in a record in ``data/`` that the page names or whose loader its cells import, and not
   in a long list there: among hundreds of ranks any number can be found.
6. ``allowed.yml`` says why it needs no evidence.

What stands before the first section and from a section's first admonition on sums the page up:
there 2 and 3 hold for the whole page. A text of a claim may rest on the claim's own measurements,
phrase and quotes, and on the section with its card. Where a source is read (`where`) is not looked
at.

This finds a number that comes from nowhere, not one that stands in the wrong place. A short one
meets a result by chance, the more results there are; so 2 and 3 look no further than the section.
Of two digits or more in a whole number, nine in ten changes are noticed; small whole numbers and
decimals with one or two digits often pass. The surest way remains glue.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from sphinx_external_toc.parsing import parse_toc_yaml

import scaling_book
from scaling_book.evidence import Measurement
from scaling_book.site.evidence_cache import evidence_results
from scaling_book.site.fingerprint import execution_cache
from scaling_book.site.notebooks import GLUE, page_with_cells, with_outputs
from scaling_book.site.paths import build_dir

from .evidence import Evidence, draws, in_source, printed
from .reading import Number, numbers, readable, words_of

PACKAGE = Path(scaling_book.__path__[0])
ALLOWED = Path(__file__).with_name("allowed.yml")
HEADING = re.compile(r"#{1,6} ")
TARGET = re.compile(r"^\((?P<label>[^)]+)\)=$|^:(?:name|label): *(?P<name>\S+)")
CARD = re.compile(r"^`{3,}\{claim\} *(\S+)")
ADMONITION = re.compile(r":{3,}\{admonition\}")
# from scaling_book.lab.lookup import train; from scaling_book.audit import false_alarms
MODULE = re.compile(
    r"^from scaling_book\.(lab|audit)\.(\w+) import|^from scaling_book\.(audit) import (\w+)", re.M
)
FIGURE = re.compile(r"`{3,}\{glue:figure\}")
LINK = re.compile(r"\{(?:ref|numref|eq|prf:ref|doc)\}`(?:[^`<]*<)?([^`>]+)>?`")
CLAIM_LINK = re.compile(r"\{(?:ref\}`(?:[^`<]*<)?claim-|(?:proof|clause)\}`[^`<]*<)([\w-]+)>?`")
TEXTS = ("name", "answer", "right", "conditions", "no_evidence", "waits")


@dataclass(frozen=True)
class Statement:
    """A piece of text without blank lines, and what its numbers may rest on."""

    text: str
    line: int
    evidence: Evidence


@dataclass(frozen=True)
class Finding:
    """A number that rests on nothing."""

    file: str
    line: int
    number: str
    words: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.number} in “{self.words}”"


class Page:
    """The source of a page by sections, with what its cells and cards know.

    Parameters
    ----------
    text
        Its Markdown.
    cells
        Line, source and printed texts of each cell.
    """

    def __init__(self, text: str, cells: Iterable[tuple[int, str, list[str]]] = ()) -> None:
        self.text = text
        self.lines = text.split("\n")
        self.words = readable(text).split("\n")
        self.section_of: list[int] = []  # of each line; 0 and 1 are the title and what follows it
        for words, line in zip(self.words, self.lines, strict=True):
            before = self.section_of[-1] if self.section_of else 0
            self.section_of.append(before + bool(words.strip() and HEADING.match(line)))
        self.labels = {m["label"] or m["name"]: i for i, m in self._matches(TARGET)}
        self.cards = {m[1]: i for i, m in self._matches(CARD)}
        self.settings: set[float] = set()
        self.drawn: set[float] = set()
        self.results: dict[int, set[float]] = {}  # by section
        for line, source, outputs in cells:
            for match in MODULE.finditer(source):
                folder, module = filter(None, match.groups())
                text = (PACKAGE / folder / f"{module}.py").read_text("utf8")
                self.settings |= in_source(text)
            (self.drawn if draws(source) else self.settings).update(in_source(source))
            found = self.results.setdefault(self.section_of[line], set())
            found.update(*map(printed, outputs))

    def _matches(self, pattern: re.Pattern[str]) -> list[tuple[int, re.Match[str]]]:
        return [(i, m) for i, line in enumerate(self.lines) if (m := pattern.match(line))]

    def cells_of(self, section: int) -> Evidence:
        """What the cells of a section printed, and the settings of all; 0 and 1 are the page."""
        near = [found for at, found in self.results.items() if section in (0, 1, at)]
        return Evidence(set(self.settings), set().union(*near))

    def blocks(self) -> Iterator[tuple[int, int, bool]]:
        """Yield the first line of each block, the line behind it, and whether it is a figure's."""
        start, fence = 0, ""
        for line in range(len(self.lines) + 1):
            if line < len(self.lines) and self.lines[line].strip():
                if FIGURE.match(self.lines[line]):
                    fence = self.lines[line].partition("{")[0]
                continue
            if line > start:
                yield start, line, bool(fence)
                if self.lines[line - 1].strip() == fence:
                    fence = ""
            start = line + 1

    def sums_up(self, line: int) -> bool:
        """Tell whether a line belongs to the page as a whole rather than to its section."""
        section = self.section_of[line]
        return section <= 1 or any(
            ADMONITION.match(self.lines[i])
            for i in range(line, -1, -1)
            if self.section_of[i] == section
        )


class Book:
    """All pages and claims.

    Parameters
    ----------
    root
        Where chapters and data lie.
    pages
        By name.
    measurements
        Those behind each claim.
    allowed
        The content of ``allowed.yml``.
    """

    def __init__(
        self,
        root: Path,
        pages: dict[str, Page],
        measurements: dict[str, list[Measurement]],
        allowed: dict[str, Any],
    ) -> None:
        self.root, self.pages, self.measurements = root, pages, measurements
        self.rules = [re.compile(rule["pattern"], re.M) for rule in allowed["rules"]]
        self.exceptions: dict[str, list[str]] = {
            place: [entry["text"] for entry in entries]
            for place, entries in allowed["places"].items()
        }
        self.needed: set[tuple[str, str]] = set()  # the exceptions that spared a number

    @cached_property
    def claims(self) -> dict[str, tuple[str, list[str], dict[str, Any]]]:
        """Of each claim the file, its lines, and the record."""
        found = {}
        for path in sorted(self.root.glob("chapters/*/claims.yml")):
            text = path.read_text("utf8")
            for slug, record in yaml.safe_load(text).items():
                file = path.relative_to(self.root).as_posix()
                found[slug] = (file, text.split("\n"), record)
        return found

    def findings(self, place: str) -> list[Finding]:
        """Return the numbers that rest on nothing, of a page, or of a claim by its slug."""
        file = f"{place}.md" if place in self.pages else self.claims[place][0]
        found = []
        for statement in self.statements(place):
            spared = self._spared(place, statement.text)
            for number in self.numbers(statement):
                if not statement.evidence.supports(number):
                    texts = [text for span, text in spared if number.start in span]
                    self.needed |= {(place, text) for text in texts}
                    if not texts:
                        words = _around(statement.text, number)
                        found.append(Finding(file, number.line, number.text, words))
        return found

    def numbers(self, statement: Statement) -> Iterator[Number]:
        """Yield the numbers of a text but for those that the rules pass over."""
        return numbers(statement.text, rules=self.rules, line=statement.line)

    def statements(self, place: str) -> Iterator[Statement]:
        """Yield what a page says, or a claim by its slug."""
        if place in self.pages:
            return self.statements_of_page(place)
        return self.statements_of_claim(place)

    def statements_of_page(self, name: str) -> Iterator[Statement]:
        """Yield the blocks of a page."""
        page = self.pages[name]
        records = self._records(page.text)
        for start, end, in_figure in page.blocks():
            section = 0 if page.sums_up(start) else page.section_of[start]
            known = page.cells_of(section) | records
            for slug, line in page.cards.items():
                if section in (0, page.section_of[line]):
                    known |= self._measured(slug)
            known |= self._linked("\n".join(page.lines[start:end]))
            if in_figure:
                known |= Evidence(page.drawn)
            yield Statement("\n".join(page.words[start:end]), start + 1, known)

    def statements_of_claim(self, slug: str) -> Iterator[Statement]:
        """Yield the texts of a claim."""
        _, lines, record = self.claims[slug]
        known = self._measured(slug) | self._beside_card(slug)
        first = lines.index(f"{slug}:")
        for key in TEXTS:
            if key in record:
                at = next(i for i in range(first, len(lines)) if lines[i].startswith(f"  {key}:"))
                end = next(
                    (i for i in range(at + 1, len(lines)) if not lines[i].startswith("    ")),
                    len(lines),
                )
                text = "\n".join(lines[at:end])
                yield Statement(words_of(text), at + 1, known | self._linked(text))

    def _measured(self, slug: str) -> Evidence:
        known = Evidence()
        for m in self.measurements.get(slug, ()):
            known.settings |= printed(m.quantity)
            known.results |= {abs(x) for x in (m.measured, m.expected, m.rival) if x is not None}
        if slug in self.claims:
            record = self.claims[slug][2]
            known.settings |= printed(record["phrase"])
            for source in record["sources"]:
                known.settings |= printed(source.get("quote", ""))
        return known

    def _records(self, text: str) -> Evidence:
        known = Evidence()
        for path in sorted((self.root / "data").glob("*.*")):
            read = {".json": json.loads, ".yml": yaml.safe_load}.get(path.suffix)
            if read and re.search(rf"(?:data/|scaling_book\.lab\.){path.stem}\b", text):
                known.results |= set(_leaves(read(path.read_text("utf8"))))
        return known

    def _beside_card(self, slug: str) -> Evidence:
        page = self.pages.get(self.claims[slug][2]["page"]) if slug in self.claims else None
        return page.cells_of(page.section_of[page.cards.get(slug, 0)]) if page else Evidence()

    def _linked(self, text: str, *, of_claim: bool = False) -> Evidence:
        """What is behind the links of a text; of a claim that another links, nothing further."""
        known = Evidence()
        for slug in CLAIM_LINK.findall(text):
            known |= self._measured(slug)
            if slug in self.claims and not of_claim:
                record = self.claims[slug][2]
                texts = " ".join(record.get(key, "") for key in TEXTS)
                known |= self._beside_card(slug) | self._linked(texts, of_claim=True)
        for target in LINK.findall(text):
            for page in self.pages.values():
                if target in page.labels:
                    # a label stands on the line before its heading
                    line = min(page.labels[target] + 1, len(page.lines) - 1)
                    known |= page.cells_of(page.section_of[line])
        return known

    def _spared(self, place: str, text: str) -> list[tuple[range, str]]:
        found = []
        for allowed in self.exceptions.get(place, ()):
            pattern = r"\s+".join(map(re.escape, allowed.split()))
            found += [(range(*m.span()), allowed) for m in re.finditer(pattern, text)]
        return found


def read_book(root: Path) -> Book:
    """Read a book that has been built, with the allow-list beside this module."""
    build = build_dir(root)
    cache = execution_cache(build)
    pages = {}
    for name in parse_toc_yaml(root / "_toc.yml"):
        file = root / f"{name}.md"
        pages[name] = Page(file.read_text("utf8"), _executed(file, cache))
    allowed = yaml.safe_load(ALLOWED.read_text("utf8"))
    return Book(root, pages, evidence_results(build), allowed)


def _executed(page: Path, cache: Path) -> Iterator[tuple[int, str, list[str]]]:
    notebook = page_with_cells(page)
    if notebook is None:
        return
    lines = notebook.metadata.source_map
    for line, cell in zip(lines, with_outputs(notebook, str(cache)).cells, strict=True):
        if cell.cell_type == "code":
            yield line, cell.source, [t for output in cell.outputs for t in printed_by(output)]


def printed_by(output: Any) -> Iterator[str]:
    """Yield the texts of a cell's output."""
    data = output.get("data", {})
    yield str(output.get("text", ""))
    # beside a picture, text gives its size
    if not any(kind.startswith("image/") for kind in data):
        shown = ("text/plain", "text/markdown")
        yield from (str(v) for kind, v in data.items() if kind.removeprefix(GLUE) in shown)


#: A list of more numbers, or lists of them, than this is raw material.
LONG = 30


def _leaves(record: Any) -> Iterator[float]:
    if isinstance(record, dict):
        record = list(record.values())
    if isinstance(record, list):
        if len(record) > LONG and not any(isinstance(part, dict) for part in record):
            return
        for part in record:
            yield from _leaves(part)
    elif isinstance(record, int | float) and not isinstance(record, bool):
        yield abs(float(record))


def _around(text: str, number: Number) -> str:
    return " ".join(text[max(0, number.start - 45) : number.end + 35].split())
