"""Whatever is wrong with a page, the build fails and its last lines say where.

Each test builds a tiny book that inherits this book's configuration and goes through the entry
point of ``make book``, as a new Python or, for one fault after the other, as a warm one.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRONT = "---\nfile_format: mystnb\nkernelspec: {name: python3}\n---\n\n"
BUILD = """
import runpy
runpy.run_module("scaling_book.site.build", run_name="__main__", alter_sys=True)
"""
pytestmark = pytest.mark.book


@pytest.fixture
def build_warm(warm_python):
    """Return what builds as `build` does, with the imports done."""
    return lambda folder: warm_python.run(BUILD, "--source", str(folder), cwd=ROOT)


def write_book(folder: Path, page: str, timeout: int = 60) -> Path:
    config = (ROOT / "_config.yml").read_text("utf8")
    assert "  timeout: 120\n" in config
    (folder / "_config.yml").write_text(
        config.replace("timeout: 120", f"timeout: {timeout}"), "utf8"
    )
    shutil.copy(ROOT / "references.bib", folder / "references.bib")
    (folder / "_toc.yml").write_text("format: jb-book\nroot: index\nchapters:\n  - file: page\n")
    (folder / "index.md").write_text("(start)=\n# Start\n\nA sound page.\n")
    (folder / "page.md").write_text(page)
    return folder


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scaling_book.site.build", "--source", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def cell(*lines: str) -> str:
    return "\n".join(["```{code-cell} python", *lines, "```", ""])


PLOT = cell("import matplotlib.pyplot as plt", "_ = plt.plot([0, 1])")
# fault → the page, and what the last lines must name
FAULTS = {
    "failing cell": (
        FRONT + "# P\n\n" + cell("x = 1") + "\n" + cell("x / 0"),
        ["page.md, cell 2", "x / 0", "ZeroDivisionError: division by zero"],
    ),
    "cell that kills its kernel": (
        FRONT + "# P\n\n" + cell("import os", "os._exit(1)"),
        ["page.md, no kernel", "died"],
    ),
    "cell that never ends": (
        FRONT + "# P\n\n" + cell("while True:", "    pass"),
        ["page.md, cell 1", "longer than 4 s", "execute.timeout"],
    ),
    "stderr in a cell": (
        FRONT + "# P\n\n" + cell("import warnings", "warnings.warn('careful')"),
        ["page.md", "stderr"],
    ),
    "undefined reference": ("# P\n\nSee {ref}`nowhere`.\n", ["page.md:3", "nowhere"]),
    "dangling link": ("# P\n\nSee [there](#nowhere).\n", ["page.md:3", "nowhere"]),
    "missing citation": ("# P\n\n{cite:t}`nobody1900`\n", ["page.md:3", "nobody1900"]),
    "bad LaTeX": ("# P\n\nA formula:\n\n$$\\frac{1}{$$\n", ["page.md:", "bad LaTeX", "frac{1}{"]),
    "unknown directive": ("# P\n\n```{nonsense}\n```\n", ["page.md:3", "nonsense"]),
    "image without alt text": (
        "# P\n\n```{image} dot.svg\n```\n",
        ["page.md:3", "alternative text"],
    ),
    "figure of a cell without alt text": (
        FRONT + "# P\n\n" + PLOT,
        ["page.md", "alternative text"],
    ),
    "script of another host": (
        '# P\n\n<script src="https://other.example/x.js"></script>\n',
        ["page", "https://other.example/x.js"],
    ),
    "object address in an output": (
        FRONT + "# P\n\n" + cell("object()"),
        ["page.md", "address"],
    ),
    "page missing from the folder": (None, ["page"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_build_fails_and_says_where(fault, tmp_path, build_warm):
    page, named = FAULTS[fault]
    write_book(tmp_path, page or "", timeout=4 if "longer than 4 s" in named else 60)
    (tmp_path / "dot.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"/>')
    if page is None:
        (tmp_path / "page.md").unlink()
    done = build_warm(tmp_path)
    assert done.returncode != 0, done.stdout
    last = done.stdout[done.stdout.index("The book was NOT built") :]
    assert len(last.splitlines()) <= 25
    for words in named:
        assert words in last


def test_a_page_that_is_not_utf8_is_named(tmp_path, build_warm):
    write_book(tmp_path, "# P\n")
    with (tmp_path / "page.md").open("ab") as file:
        file.write(b"\ncaf\xe9\n")
    done = build_warm(tmp_path)
    assert done.returncode != 0
    assert "page.md:3: not UTF-8" in done.stdout


def test_an_interrupted_build_stops_at_once_and_goes_on_later(tmp_path):
    # Many pages of nine seconds: whoever waits for those in the queue is far too late.
    slow = FRONT + "# P\n\n" + "\n".join([cell("import time", "time.sleep(3)  # {}")] * 3)
    write_book(tmp_path, slow)
    toc = tmp_path / "_toc.yml"
    for n in range(8):
        (tmp_path / f"page{n}.md").write_text(slow.replace("{}", str(n)))
        toc.write_text(toc.read_text() + f"  - file: page{n}\n")
    command = [sys.executable, "-m", "scaling_book.site.build", "--source", str(tmp_path)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert running.stdout.readline().startswith("Executing")
        time.sleep(4)  # the worker and its kernel have started
        os.killpg(running.pid, signal.SIGINT)
        output, _ = running.communicate(timeout=6)
    finally:
        running.kill()
    assert running.returncode == 130
    assert output.rstrip().endswith("build again to go on.")
    write_book(tmp_path, FRONT + "# P\n\n" + cell("print(6 * 7)"))
    assert build(tmp_path).returncode == 0


def test_a_fault_does_not_hide_from_the_next_build(tmp_path, build_warm):
    write_book(tmp_path, FAULTS["undefined reference"][0])
    assert build_warm(tmp_path).returncode != 0
    assert build_warm(tmp_path).returncode != 0


def test_a_sound_book_is_built_and_rebuilt_without_running_a_cell(tmp_path):
    page = FRONT + "# P\n\n" + cell("print(6 * 7)")
    write_book(tmp_path, page)
    first = build(tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "[1/1]" in first.stdout
    html = tmp_path / "_build" / "html" / "page.html"
    assert "42" in html.read_text("utf8")

    (tmp_path / "page.md").write_text(page + "\nA new sentence.\n")
    second = build(tmp_path)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "[1/1]" not in second.stdout
    assert "A new sentence." in html.read_text("utf8")

    (tmp_path / "page.md").write_text(page.replace("6 * 7", "6 * 8"))
    third = build(tmp_path)
    assert "[1/1]" in third.stdout
    assert "48" in html.read_text("utf8")


def test_a_folder_without_a_book_is_refused(tmp_path):
    done = build(tmp_path)
    assert done.returncode == 2
    assert "_toc.yml" in done.stderr
