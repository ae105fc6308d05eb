"""Build the book: execute the cells, measure the evidence, write the static site.

``python -m scaling_book.site.build`` is what ``make book`` runs. It ends with the place of the
site and the time it took, or with what is wrong and where, and a non-zero status.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scaling_book.site.paths import PROJECT_ROOT, build_dir, site_dir

# One thread a process: pages run side by side, and the last digits do not depend on the machine's
# number of cores. A fixed hash seed and matplotlibrc: two clean builds give the same bytes.
REPRODUCIBLE = {
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MATPLOTLIBRC": str(PROJECT_ROOT / "matplotlibrc"),
}
# When the command was started, before it restarted itself: what a person waits for.
STARTED = "WHY_SQRT_DK_BUILD_STARTED"
# Sphinx colours its messages and repeats a few lines of no use to a person who wants the cause.
ANSI = re.compile(r"\x1b\[[0-9;]*m")
PROBLEM = re.compile(r"(WARNING|ERROR|CRITICAL|Exception|Error)\b")
NO_CAUSE = re.compile(
    r"There was an error in building your book|warnings being treated as errors|RuntimeError"
)


def reproducible_environment() -> dict[str, str]:
    """Return the variables with which two clean builds of one commit give the same bytes."""
    wanted = dict(REPRODUCIBLE)
    commit_time = subprocess.run(
        ["git", "log", "-1", "--format=%ct"],
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if commit_time.returncode == 0:
        wanted["SOURCE_DATE_EPOCH"] = commit_time.stdout.strip()
    return wanted


def _restart_reproducibly() -> None:
    # Python reads its hash seed once, at the start.
    wanted = reproducible_environment()
    os.environ.setdefault(STARTED, str(time.time()))
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        arguments = [sys.executable, "-m", "scaling_book.site.build", *sys.argv[1:]]
        os.execve(sys.executable, arguments, os.environ | wanted)


def _say(text: str) -> None:
    print(text, flush=True)


def _run_sphinx(source: Path, log: Path) -> list[str]:
    """Run ``jupyter-book build`` in this process and return what it complains of."""
    from jupyter_book.cli.main import main as jupyter_book

    output = io.StringIO()
    arguments = ["build", "-W", "-n", "--keep-going", str(source)]
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            jupyter_book(arguments, standalone_mode=False)
        problems = []
    except (Exception, SystemExit) as error:  # whatever it is, the build must end with the cause
        output.write(f"\n{error}\n")
        problems = _problems(ANSI.sub("", output.getvalue())) or [str(error)]
        # Sphinx keeps pages as read and would not warn of them again: the next build starts afresh
        shutil.rmtree(build_dir(source) / ".doctrees", ignore_errors=True)
    log.write_text(ANSI.sub("", output.getvalue()), "utf8")
    return problems


def _problems(output: str) -> list[str]:
    lines = [line.strip() for line in output.splitlines()]
    found = [line for line in lines if PROBLEM.search(line) and not NO_CAUSE.search(line)]
    return list(dict.fromkeys(found))  # each once, in order


def _site_hash(site: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(p for p in site.rglob("*") if p.is_file()):
        if path.name == ".buildinfo":
            continue  # Sphinx's note to itself: it hashes absolute paths
        digest.update(path.relative_to(site).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def build(source: Path) -> int:
    """Build the book that lies in `source` and return the exit status: 0, or 1 with the cause."""
    from scaling_book.site.evidence_cache import EvidenceFailed, evidence_results
    from scaling_book.site.execution import PageRun, UnreadablePage, execute_pages
    from scaling_book.site.fingerprint import execution_cache
    from scaling_book.site.node import NodePackagesMissing, ensure_node_packages

    start = float(os.environ.get(STARTED, time.time()))
    target = build_dir(source)
    target.mkdir(parents=True, exist_ok=True)

    def report(run: PageRun, done: int, total: int) -> None:
        state = "failed" if run.failure else f"{run.seconds:5.1f} s"
        _say(f"  [{done}/{total}] {state}  {run.page}")

    _say("Executing the cells of pages that changed ...")
    problems: list[str] = []
    with ThreadPoolExecutor(1) as beside:
        has_claims = any(source.glob("chapters/*/claims.yml"))
        evidence = beside.submit(evidence_results, target) if has_claims else None
        cache, runs = execution_cache(target), []
        try:
            runs = execute_pages(source, cache, report)
            problems += [f"{run.page}, {run.failure}" for run in runs if run.failure]
            if evidence is not None:
                evidence.result()
            ensure_node_packages()
        except (EvidenceFailed, NodePackagesMissing, UnreadablePage) as error:
            problems.append(str(error))
    if execution_cache(target) != cache:
        # some pages saw the old code and some the new: keep none of them
        shutil.rmtree(cache, ignore_errors=True)
        problems.append("The library or the data changed while pages were executed. Build again.")
    executed = time.time() - start
    _say(f"  {len(runs)} executed, the others are as they were." if runs else "  none.")

    if not problems:
        _say("Writing the site ...")
        problems = _run_sphinx(source, target / "build.log")
    seconds = time.time() - start
    if problems:
        _say(f"\nThe book was NOT built ({seconds:.1f} s). {len(problems)} problem(s):\n")
        _say("\n\n".join(problems))
        return 1

    summary = {
        "seconds": round(seconds, 2),
        "seconds_executing": round(executed, 2),
        "executed": {run.page: round(run.seconds, 2) for run in runs},
        "site_sha256": _site_hash(site_dir(source)),
    }
    (target / "build.json").write_text(json.dumps(summary, indent=1) + "\n", "utf8")
    _say(f"\nThe book is built ({seconds:.1f} s). Open {site_dir(source) / 'index.html'}")
    return 0


def main() -> None:
    """Read the command line and build."""
    parser = argparse.ArgumentParser(description="Execute the cells and build the static site.")
    parser.add_argument("--source", type=Path, default=PROJECT_ROOT, help="the book's root folder")
    source = parser.parse_args().source.resolve()
    if not (source / "_toc.yml").is_file():
        parser.error(f"{source} holds no _toc.yml; --source must name a book's root folder")
    _restart_reproducibly()
    try:
        status = build(source)
    except KeyboardInterrupt:
        _say("\nInterrupted. Pages that were executed are kept; build again to go on.")
        # at once: kernels and workers end with this process
        os._exit(130)
    sys.exit(status)


if __name__ == "__main__":
    main()
