"""Which functions the evidence for each claim calls: ``python reach.py FILE``.

A claim whose evidence calls nothing of a patched function gives the same numbers with the patch as
without, so `run_mutants` need not measure it again. Each claim is measured in a process of its own:
what one of them has put into a cache would hide a call from the next.

This file is run by its path and imports only the evidence, which may be that of a copy.
"""

from __future__ import annotations

import ast
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

#: For each file, the first lines of the functions that were called.
Calls = dict[str, list[int]]
#: What is called while the modules are loaded can change what any claim uses.
LOADING = "loading"


@contextmanager
def recorded(folder: Path) -> Iterator[set[tuple[str, int]]]:
    """Collect the functions below a folder that are called within the block: file, first line."""
    calls: set[tuple[str, int]] = set()
    prefix = f"{folder}{os.sep}"

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(prefix):
            calls.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def by_file(calls: set[tuple[str, int]], root: Path) -> Calls:
    """Return the lines of each file, whose name is relative to the root."""
    found: Calls = {}
    for name, line in sorted(calls):
        found.setdefault(Path(name).relative_to(root).as_posix(), []).append(line)
    return found


def in_a_process(work: Callable[[], Calls]) -> Calls:
    """Do the work in a copy of this process and return the result."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(read)
            with os.fdopen(write, "w", encoding="utf8") as pipe:
                json.dump(work(), pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, encoding="utf8") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError("the evidence for a claim failed while its calls were recorded")
    calls: Calls = json.loads(text)
    return calls


def body_around(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Return the first and last line of the function whose body holds the lines start to end.

    None if there is none: defaults, decorators and what stands outside of functions take effect
    when a module is loaded. Of functions within each other the outermost counts.
    """
    nodes: list[ast.AST] = [ast.parse(text)]
    while nodes:
        node = nodes.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                nodes.append(child)
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                last = child.end_lineno or child.lineno
                if child.body[0].lineno <= start and end <= last:
                    first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                    return first, last
    return None


def reached(
    calls: Mapping[str, Calls], file: str, text: str, start: int, end: int
) -> list[str] | None:
    """Return the claims that a change of these lines can touch; None if it can touch any of them.

    Parameters
    ----------
    calls
        What `main` wrote: for each claim, and for loading, the functions called.
    file, text
        The file that is changed, relative to the project's root, and its text before the change.
    start, end
        First and last line of what changes, from 1.
    """
    if not file.endswith(".py"):
        return None
    lines = body_around(text, start, end)
    if lines is None:
        return None
    touched = [
        name
        for name, found in calls.items()
        if any(lines[0] <= line <= lines[1] for line in found.get(file, ()))
    ]
    return None if LOADING in touched else touched


def main(out: Path) -> None:
    """Record the calls of the loading and of each claim and write them to a file."""
    import scaling_book

    folder = Path(scaling_book.__file__).parents[1]
    with recorded(folder) as loading:
        from scaling_book.evidence import run, slugs

        known = slugs()

    def measured(slug: str) -> Calls:
        with recorded(folder) as calls:
            run(slug)
        return by_file(calls, folder.parent)

    found = {LOADING: by_file(loading, folder.parent)}
    for slug in known:
        found[slug] = in_a_process(lambda slug=slug: measured(slug))  # type: ignore[misc]
    out.write_text(json.dumps(found), "utf8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
