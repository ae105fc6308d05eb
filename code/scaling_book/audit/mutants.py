"""The mutants, the table of what killed them, and whether that table still fits the code."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from scaling_book.audit import files
from scaling_book.audit.fingerprint import ROOT, code_fingerprint, digest

COMMAND = "make mutants"
MUTANTS = "tests/mutants/mutants.yml"
RECORD = ROOT / "data" / "mutants.json"
#: How a claim can turn red: a measurement fails, or the evidence function raises an error.
MEASUREMENT, ERROR = "measurement", "error"


class MutantError(Exception):
    """A mutant is not well described, does not fit the code, or cannot be run."""


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Parameters
    ----------
    name
        In kebab-case.
    kind
        What sort of fault it is; several mutants may share one.
    file
        The file to patch, relative to the project's root.
    find, replace
        The text that occurs exactly once in it, and what stands there instead.
    claims
        Slugs of claims whose evidence must fail.
    why
        What a reader would have done wrong.
    """

    name: str
    kind: str
    file: str
    find: str
    replace: str
    why: str
    claims: tuple[str, ...] = ()

    def patched(self, text: str) -> str:
        """Return the text of the file with the fault in it.

        Raises
        ------
        MutantError
            If the text to find is not there, is there more than once, or would not change.
        """
        times = text.count(self.find)
        if times != 1:
            raise MutantError(
                f"mutant {self.name!r}: its text to find occurs {times} times in {self.file}, "
                "expected once; adapt it in " + MUTANTS
            )
        if self.find == self.replace:
            raise MutantError(f"mutant {self.name!r} changes nothing; give it another `replace`")
        return text.replace(self.find, self.replace)

    def lines(self, text: str) -> tuple[int, int]:
        """Return the first and the last line, from 1, that the patch changes in the file's text."""
        first = text[: text.index(self.find)].count("\n") + 1
        return first, first + self.find.rstrip("\n").count("\n")

    @property
    def fingerprint(self) -> str:
        """Return hex digits that change with any part of the mutant."""
        return digest(json.dumps(asdict(self)))


def read_mutants(root: Path = ROOT) -> list[Mutant]:
    """Read all mutants and make sure that each fits the code as it stands.

    Raises
    ------
    MutantError
        If a field is missing or unknown, or a patch does not fit.
    """
    content = yaml.safe_load((root / MUTANTS).read_text("utf8"))
    known = {field.name for field in fields(Mutant)}
    mutants = []
    for name, entry in content.items():
        wrong = (entry.keys() ^ (known - {"name"})) - {"claims"}
        if wrong:
            raise MutantError(
                f"mutant {name!r} has missing or unknown fields: {', '.join(sorted(wrong))}"
            )
        mutant = Mutant(name=name, **entry | {"claims": tuple(entry.get("claims", ()))})
        path = root / mutant.file
        if not path.is_file():
            raise MutantError(f"mutant {name!r}: there is no file {mutant.file}")
        mutant.patched(path.read_text("utf8"))
        mutants.append(mutant)
    return mutants


def table_fingerprint(root: Path, mutants: Sequence[Mutant]) -> str:
    """Return hex digits that change when the table may have to."""
    return digest("\n".join([code_fingerprint(root), *(m.fingerprint for m in mutants)]))


def read_record(path: Path = RECORD) -> dict[str, Any]:
    """Read the table that the command wrote.

    Raises
    ------
    FileNotFoundError
        If there is none.
    """
    return files.read(path, COMMAND)


def survived(result: Mapping[str, Any]) -> bool:
    """Neither evidence nor law has noticed the mutant."""
    return not result["red"] and result["law"] is None


def missed(result: Mapping[str, Any]) -> list[str]:
    """Claims that the mutant was declared to turn red and did not."""
    return [slug for slug in result["claims"] if slug not in result["red"]]


def problems(
    record: Mapping[str, Any], slugs: Collection[str], fingerprint: str | None = None
) -> list[str]:
    """Return in words what is wrong with a table; empty if nothing.

    Parameters
    ----------
    record
        As `read_record` returns it.
    slugs
        All claims with evidence: each must be turned red by a mutant, and by a measurement.
    fingerprint
        That of the table as it should be, if it is to be compared.
    """
    found = []
    if fingerprint is not None and record["fingerprint"] != fingerprint:
        found.append(
            f"the recorded table is stale: code, laws, data or mutants have changed since; "
            f"run `{COMMAND}`"
        )
    for result in record["mutants"]:
        if survived(result):
            found.append(f"the mutant {result['name']!r} survives")
        found += [f"the mutant {result['name']!r} leaves {s!r} green" for s in missed(result)]
    killed = {
        slug for result in record["mutants"] for slug, how in result["red"].items() if how != ERROR
    }
    found += [f"no mutant turns the claim {slug!r} red" for slug in sorted(set(slugs) - killed)]
    return found
