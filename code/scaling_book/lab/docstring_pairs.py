"""Queries with one right document each, found in NumPy's documentation and judged by its authors.

The docstring of a function begins with one line that sums it up. That line is the query; what the
docstring says after it is the document to find. Which document belongs to which query was settled
when somebody wrote the docstring, and no encoder took part in it.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

__all__ = ["MODULES", "WORDS", "Pair", "digest", "docstring_pairs", "split_docstring"]

#: Where functions are taken from, in this order. Of numpy's six families of polynomials one is
#: used: the others have the same documents, but for a name.
MODULES = (
    "numpy",
    "numpy.linalg",
    "numpy.fft",
    "numpy.random",
    "numpy.polynomial.polynomial",
    "numpy.ma",
    "numpy.strings",
    "numpy.testing",
    "numpy.lib.stride_tricks",
    "numpy.lib.scimath",
    "numpy.lib.recfunctions",
    "numpy.char",
)
#: Documents are cut after so many words, for every method alike.
WORDS = 50
SHORTEST_QUERY, SHORTEST_DOCUMENT = 3, 10  # words
# *See Also* holds the summaries of other functions: the right answer in a wrong document. Examples
# are mostly output, references are mostly titles.
LEFT_OUT = {"See Also", "Examples", "Example", "References"}
SECTION = re.compile(r"^(\w[\w ]*)\n-{3,} *$", re.MULTILINE)
SIGNATURE = re.compile(r"[\w.]+\(")


@dataclass(frozen=True)
class Pair:
    """A query and the one document that answers it.

    Parameters
    ----------
    name
        Of the function, with its module.
    query, document
        Plain text on one line.
    """

    name: str
    query: str
    document: str


def split_docstring(text: str, name: str) -> tuple[str, str]:
    """Return summary and document of a docstring in NumPy's format; both may be empty.

    The document keeps no `LEFT_OUT` section, and says "this" where it names its own function: the
    name is often made of the words of the summary.
    """
    paragraphs = [part for part in re.split(r"\n\s*\n", text.strip()) if part.strip()]
    while paragraphs and SIGNATURE.match(paragraphs[0]):
        paragraphs.pop(0)
    summary = " ".join(paragraphs[0].split()) if paragraphs else ""
    begin, *sections = SECTION.split("\n" + "\n\n".join(paragraphs[1:]))
    kept = [body for title, body in _pairs(sections) if title not in LEFT_OUT]
    document = " ".join(" ".join([begin, *kept]).split())
    return summary, re.sub(rf"\b{re.escape(name)}\b", "this", document)


def _pairs(parts: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(parts[::2], parts[1::2], strict=True))


def docstring_pairs(modules: Sequence[str] = MODULES, words: int = WORDS) -> list[Pair]:
    """Return the pairs of all public functions of some modules.

    A function is left out if its query has fewer than three words or its document fewer than ten,
    or if a pair before it has the same query or the same document (aliases, wrappers).

    Parameters
    ----------
    modules
        Names of modules with docstrings in NumPy's format.
    words
        Where documents are cut.
    """
    found: list[Pair] = []
    queries: set[str] = set()
    documents: set[str] = set()
    for module_name in modules:
        module = import_module(module_name)
        for name in sorted(getattr(module, "__all__", dir(module))):
            thing = getattr(module, name, None)
            if name.startswith("_") or not callable(thing) or inspect.isclass(thing):
                continue
            query, text = split_docstring(inspect.getdoc(thing) or "", name)
            document = " ".join(text.split()[:words])
            if len(query.split()) < SHORTEST_QUERY or len(document.split()) < SHORTEST_DOCUMENT:
                continue
            if query not in queries and document not in documents:
                found.append(Pair(f"{module_name}.{name}", query, document))
                queries.add(query)
                documents.add(document)
    return found


def digest(pairs: Sequence[Pair]) -> str:
    """Return a SHA-256 of all texts, which another version of NumPy would change."""
    text = "\n".join(f"{pair.name}\t{pair.query}\t{pair.document}" for pair in pairs)
    return hashlib.sha256(text.encode()).hexdigest()
