"""Execute the pages' cells, several pages at a time, into the cache that Sphinx reads.

Sphinx would execute one page after the other and say nothing meanwhile. This does the same work
on all cores, shows progress, and keeps what failed in a form a person can read.
"""

from __future__ import annotations

import os
import re
import signal
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path

import yaml
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.executors.utils import ExecutionResult, single_nb_execution
from myst_nb.core.read import is_myst_markdown_notebook, read_myst_markdown_notebook
from nbclient.exceptions import CellTimeoutError
from nbformat import NotebookNode
from sphinx_external_toc.parsing import parse_toc_yaml

ANSI = re.compile(r"\x1b\[[0-9;]*m")


class UnreadablePage(ValueError):
    """A page is not text in UTF-8."""


@dataclass(frozen=True)
class PageRun:
    """What became of one page: how long it took, and which cell failed with what error, if any."""

    page: str
    seconds: float
    failure: str | None = None


def notebook_pages(source: Path) -> Iterator[Path]:
    """Yield the pages of the table of contents that hold cells.

    Parameters
    ----------
    source
        The book's root, where ``_toc.yml`` lies.
    """
    for docname in parse_toc_yaml(source / "_toc.yml"):
        page = source / f"{docname}.md"
        # A page that is missing is Sphinx's to report, with the line of the table of contents.
        if page.is_file() and is_myst_markdown_notebook(_text(page)):
            yield page


def cell_timeout(source: Path) -> int:
    """Return the seconds one cell may take, as ``_config.yml`` states."""
    config = yaml.safe_load((source / "_config.yml").read_text("utf8"))
    return int(config["execute"]["timeout"])


def _text(page: Path) -> str:
    try:
        return page.read_text("utf8")
    except UnicodeDecodeError as error:
        line = page.read_bytes()[: error.start].count(b"\n") + 1
        raise UnreadablePage(
            f"{page}:{line}: not UTF-8 ({error.reason}); save it as UTF-8"
        ) from error


def _read(page: Path) -> NotebookNode:
    return read_myst_markdown_notebook(_text(page), path=str(page))


def _follow_parent() -> None:
    """Leave Ctrl-C to the parent process, and end when it ends, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _failure(result: ExecutionResult, timeout: int) -> str | None:
    """Return the failed cell, counted from 1 among the page's code cells, with its error."""
    if result.err is None:
        return None
    cells = [cell for cell in result.nb.cells if cell.cell_type == "code"]
    # The failing cell is the last that was started; those after it have no execution count.
    started = [i for i, cell in enumerate(cells) if cell.execution_count is not None]
    failed = started[-1] if started else 0
    errors = [out for out in cells[failed].outputs if out.output_type == "error"]
    if isinstance(result.err, CellTimeoutError):
        error = f"took longer than {timeout} s, which is execute.timeout in _config.yml"
    else:
        error = f"{errors[0].ename}: {errors[0].evalue}" if errors else str(result.err)
    source = textwrap.indent(cells[failed].source, "    ")
    return f"cell {failed + 1}:\n{source}\n{ANSI.sub('', error)}"


def _execute(page: Path, timeout: int) -> ExecutionResult:
    try:
        return _execute_once(page, timeout)
    except RuntimeError:
        # The kernel did not start or died. Two that start at once can pick the same port, so once
        # more; a page that kills its kernel does it again, and then the error stands.
        return _execute_once(page, timeout)


def _execute_once(page: Path, timeout: int) -> ExecutionResult:
    return single_nb_execution(
        _read(page),
        cwd=str(page.parent),
        timeout=timeout,
        allow_errors=False,
        # a kernel warns of every local connection it opens; its errors still show
        extra_arguments=["--IPKernelApp.log_level=40"],
        # one output for what a cell prints, wherever the kernel happened to flush
        coalesce_streams=True,
    )


def execute_pages(
    source: Path,
    cache_folder: Path,
    report: Callable[[PageRun, int, int], None],
    workers: int | None = None,
) -> list[PageRun]:
    """Execute every page whose result is not in the cache yet.

    Parameters
    ----------
    source
        The book's root.
    cache_folder
        The jupyter-cache to read and fill.
    report
        Called after each page with its run, how many are done, and how many there are.
    workers
        Pages executed at the same time; by default one for each processor.

    Returns
    -------
    list of PageRun
        The pages that were executed. Those found in the cache are not among them.
    """
    cache = get_cache(str(cache_folder))
    pages = []
    for page in notebook_pages(source):
        try:
            cache.match_cache_notebook(_read(page))
        except KeyError:
            pages.append(page)
    if not pages:
        return []

    runs: list[PageRun] = []
    timeout = cell_timeout(source)
    workers = workers or os.cpu_count() or 1
    # spawn: the kernels must see the environment as it is now, not threads of this process
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_follow_parent)
    try:
        futures = {pool.submit(_execute, page, timeout): page for page in pages}
        for future in as_completed(futures):
            page = futures[future]
            name = page.relative_to(source).as_posix()
            try:
                result = future.result()
            except RuntimeError as error:
                run = PageRun(name, 0.0, f"no kernel: {error}")
            else:
                run = PageRun(name, result.time, _failure(result, timeout))
            if run.failure is None:
                bundle = CacheBundleIn(
                    result.nb, str(page), data={"execution_seconds": result.time}
                )
                cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
            runs.append(run)
            report(run, len(runs), len(pages))
    except KeyboardInterrupt:
        # Workers end with this process; what they were executing is lost, what is done is kept.
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
    return runs
