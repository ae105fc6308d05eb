"""The records of the claims: ``chapters/*/claims.yml``, read strictly.

A record says in words what the answer claims, what is right, and on which page it is discussed.
The numbers that prove it are in `scaling_book.evidence`, under the same slug.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

VERDICTS = ("holds", "holds-if", "misleading", "wrong", "not-reproducible")
STATUSES = ("read", "secondary")
LONGEST_PHRASE = 25  # a phrase under discussion is quoted, never a passage
LONGEST_QUOTE = 200  # the words of a source that settle a question, never a passage
SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
LEAD = re.compile(r"[A-Z]\d{2,3}")
REQUIRED = (
    "name", "leads", "phrase", "answer", "verdict", "right", "conditions", "sources", "page",
)  # fmt: skip
OPTIONAL = ("no_evidence", "waits")
SOURCE_REQUIRED = ("cite", "where", "status")
SOURCE_OPTIONAL = ("quote", "seen")


class ClaimsFileError(ValueError):
    """One or more records are not as they must be.

    Parameters
    ----------
    faults
        For each fault, the file and line, and the slug with what is wrong and what to do.
    """

    def __init__(self, faults: Sequence[tuple[str, str]]) -> None:
        super().__init__("\n".join(f"{place}: {fault}" for place, fault in faults))
        self.faults = faults


@dataclass(frozen=True)
class Source:
    """Where a statement can be read.

    Parameters
    ----------
    cite
        Key in ``references.bib``.
    where
        The place in it: ``footnote 4``.
    status
        ``read`` if the passage was read, ``secondary`` if it is known through others.
    quote
        The words that settle it, verbatim, in the language or the code of the source.
    seen
        Where they were read: the version of a paper, or a repository and its commit.
    """

    cite: str
    where: str
    status: str
    quote: str | None = None
    seen: str | None = None


@dataclass(frozen=True)
class Claim:
    """One sentence of the answer on trial, and what became of it.

    Parameters
    ----------
    slug
        Its name for ever; evidence, card and ledger meet under it.
    name
        A short title for readers.
    leads
        Numbers of the research notes that it settles.
    phrase
        The phrase of the answer under discussion, verbatim, in Chinese.
    answer
        What the answer claims, in our words.
    verdict
        One of `VERDICTS`.
    right
        The right statement, in Markdown.
    conditions
        When it holds, in Markdown.
    sources
        Where to read it.
    page
        The document that discusses it, as Sphinx names it (no ``.md``).
    file, line
        The place of the record; the file is relative to the book's root.
    no_evidence
        Why there is nothing to measure; None for a claim with evidence.
    waits
        Which runs the claim waits for; its verdict is provisional. None if it is settled.
    """

    slug: str
    name: str
    leads: tuple[str, ...]
    phrase: str
    answer: str
    verdict: str
    right: str
    conditions: str
    sources: tuple[Source, ...]
    page: str
    file: str
    # not in the repr, which tells whether a record has changed
    line: int = field(repr=False)
    no_evidence: str | None = None
    waits: str | None = None

    @property
    def chapter(self) -> str:
        """The folder of the record, ``chapters/2-the-standard-answer``."""
        return self.file.rpartition("/")[0]


def load_claims(source: Path, bibliography: Collection[str]) -> dict[str, Claim]:
    """Read and check all records of a book, in the order of the answer.

    Parameters
    ----------
    source
        The book's root.
    bibliography
        The keys that may be cited.

    Raises
    ------
    ClaimsFileError
        If any record is wrong; the message lists all that is wrong.
    """
    claims: dict[str, Claim] = {}
    faults: list[tuple[str, str]] = []
    for path in sorted(source.glob("chapters/*/claims.yml")):
        file = path.relative_to(source).as_posix()
        try:
            records, lines = _read(path)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            faults.append((f"{file}:{mark.line + 1 if mark else 1}", str(error.problem)))
            continue
        for slug, record in records.items():
            wrong = _faults(slug, record, bibliography)
            if slug in claims:
                wrong.append(f"is recorded in {claims[slug].file} already; rename or merge one")
            faults += [(f"{file}:{lines[slug]}", f"{slug}: {fault}") for fault in wrong]
            if not wrong:
                claims[slug] = _claim(slug, record, file, lines[slug])
    if faults:
        raise ClaimsFileError(faults)
    return claims


class _Loader(yaml.SafeLoader):
    """YAML without its worst trap: of two equal keys it would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value!r} stands twice; keep one", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the records of a file by slug, and the line on which each begins."""
    loader = _Loader(path.read_text("utf8"))
    node = loader.get_single_node()
    if not isinstance(node, yaml.MappingNode):
        raise yaml.MarkedYAMLError(
            problem="holds no records; write one as `slug:` with its fields indented"
        )
    records = loader.construct_document(node)
    lines = {str(key.value): key.start_mark.line + 1 for key, _ in node.value}
    return {str(slug): record for slug, record in records.items()}, lines


def _faults(slug: str, record: object, bibliography: Collection[str]) -> list[str]:
    """Return what is wrong with one record and what to do about it."""
    if not isinstance(record, dict):
        return ["must be a mapping of fields, got " + repr(record)]
    faults = _keys(record, REQUIRED, OPTIONAL)
    if not SLUG.fullmatch(slug):
        faults.append("the slug must be kebab-case, lower case letters and digits: my-claim")
    for key in ("name", "phrase", "answer", "right", "conditions", "page", "no_evidence", "waits"):
        if key in record:
            faults += _text(key, record[key])
    if "verdict" in record and record["verdict"] not in VERDICTS:
        faults.append(f"verdict must be one of {', '.join(VERDICTS)}; got {record['verdict']!r}")
    phrase = record.get("phrase")
    if isinstance(phrase, str) and len(phrase) > LONGEST_PHRASE:
        faults.append(
            f"phrase has {len(phrase)} characters, at most {LONGEST_PHRASE} may be quoted; "
            "quote the words under discussion only"
        )
    if "leads" in record and not _leads_are_good(record["leads"]):
        faults.append(f"leads must be a list such as [C05]; got {record['leads']!r}")
    if "sources" in record:
        faults += _source_faults(record["sources"], bibliography)
    return faults


def _keys(
    record: Mapping[str, Any], required: tuple[str, ...], optional: tuple[str, ...], of: str = ""
) -> list[str]:
    missing = [key for key in required if key not in record]
    faults = [f"{of}the field {key!r} is missing; add it" for key in missing]
    known = (*required, *optional)
    for key in record:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
            faults.append(f"{of}the field {key!r} is unknown; {hint}")
    return faults


def _text(key: str, value: object) -> list[str]:
    if isinstance(value, str) and value.strip():
        return []
    return [f"{key} must be text, in quotes if YAML reads it otherwise; got {value!r}"]


def _leads_are_good(leads: object) -> bool:
    return isinstance(leads, list) and all(
        isinstance(lead, str) and LEAD.fullmatch(lead) for lead in leads
    )


def _source_faults(sources: object, bibliography: Collection[str]) -> list[str]:
    if not isinstance(sources, list):
        return [f"sources must be a list, `[]` if there are none; got {sources!r}"]
    faults: list[str] = []
    for place, source in enumerate(sources, start=1):
        of = f"source {place}: "
        if not isinstance(source, dict):
            faults.append(f"{of}must be a mapping with cite, where and status; got {source!r}")
            continue
        faults += _keys(source, SOURCE_REQUIRED, SOURCE_OPTIONAL, of)
        for key in (*SOURCE_REQUIRED, *SOURCE_OPTIONAL):
            if key in source:
                faults += [of + fault for fault in _text(key, source[key])]
        if "status" in source and source["status"] not in STATUSES:
            faults.append(f"{of}status must be one of {', '.join(STATUSES)}")
        cite = str(source.get("cite", ""))
        if cite and cite not in bibliography:
            close = difflib.get_close_matches(cite, bibliography, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "add the entry"
            faults.append(f"{of}references.bib has no entry {cite!r}; {hint}")
        faults += [of + fault for fault in _quote_faults(source)]
    return faults


def _quote_faults(source: Mapping[str, Any]) -> list[str]:
    """Return what a source lacks to prove that it was read, or has without having been read."""
    faults = []
    quote = source.get("quote")
    if isinstance(quote, str) and len(quote) > LONGEST_QUOTE:
        faults.append(
            f"quote has {len(quote)} characters, at most {LONGEST_QUOTE} may be quoted; "
            "keep the words that settle it"
        )
    given = [key for key in SOURCE_OPTIONAL if key in source]
    if source.get("status") == "read":
        return faults + [
            f"it was read, so it needs the field {key!r}; if nobody has read it, its status is "
            "secondary"
            for key in SOURCE_OPTIONAL
            if key not in given
        ]
    return faults + [
        f"it is known through others, so it cannot have the field {key!r}; if it was read, its "
        "status is read"
        for key in given
    ]


def _claim(slug: str, record: Mapping[str, Any], file: str, line: int) -> Claim:
    texts = {
        key: record[key].strip()
        for key in ("name", "phrase", "answer", "verdict", "right", "conditions", "page")
    }
    return Claim(
        slug=slug,
        leads=tuple(record["leads"]),
        sources=tuple(Source(**source) for source in record["sources"]),
        file=file,
        line=line,
        no_evidence=record.get("no_evidence"),
        waits=record.get("waits"),
        **texts,
    )
