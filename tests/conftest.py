"""The built site, a server for it and a browser to open it in."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gzip
import http.server
import mimetypes
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from sphinx_external_toc.parsing import parse_toc_yaml
from xdist.scheduler import LoadScopeScheduling

from scaling_book.site.build import reproducible_environment
from scaling_book.site.paths import PROJECT_ROOT, build_dir, site_dir

from .warm_python import WarmPython

# A site that was built elsewhere can be tested by naming its folder, <book>/_build/html.
PREBUILT = os.environ.get("BOOK_SITE")
SOURCE = Path(PREBUILT).resolve().parents[1] if PREBUILT else PROJECT_ROOT
# What the workers of one run of the tests have in common
THIS_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid4().hex
# Written by Sphinx itself, in no table of contents
GENERATED = ["search"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on every page: from the table of contents, which is known before any build."""
    written = list(parse_toc_yaml(SOURCE / "_toc.yml"))
    if "page_name" in metafunc.fixturenames:
        # of a module: what looks at a page can share its opening
        metafunc.parametrize("page_name", written + GENERATED, scope="module")
    if "written_page" in metafunc.fixturenames:
        metafunc.parametrize("written_page", written)


# The order for several workers. Whoever asks for the built book waits for it, and a build leaves a
# core idle only at its end. So one worker begins with that, and the others with what needs no book;
# the pages come last, as they are shared out in small parts and let the workers end together.
BUILD, LONGEST, OTHERS, EVIDENCE, TINY_BOOKS, PAGES = range(6)
# Files whose tests share nothing that takes time
DIVISIBLE = ("test_gates.py", "test_reading.py", "test_print.py")


def pytest_configure(config: pytest.Config) -> None:
    """Let xdist keep the order that the tests are put into here."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


class Groups(LoadScopeScheduling):
    """Gives a worker what shares something.

    xdist's own groups are marks that it writes into the names of tests, which pytest 9 forbids.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Use these groups where groups are asked for."""
    return Groups(config, log) if config.getvalue("dist") == "loadgroup" else None


def group(nodeid: str) -> str:
    """Return what a test shares a worker with: a page that is open, its file, or nothing."""
    file = nodeid.split("::")[0]
    if file.endswith("site/test_pages.py"):
        return nodeid[nodeid.index("[") :]
    return nodeid if file.endswith(DIVISIBLE) else file


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the groups into order, for several workers."""
    if not hasattr(config, "workerinput"):
        return
    places: dict[str, int] = {}
    for item in items:
        name = group(item.nodeid)
        places[name] = max(places.get(name, BUILD), _place(item))
    book = next((name for name, place in places.items() if place == PAGES), None)
    if book is not None:
        places[book] = BUILD
    items.sort(key=lambda item: places[group(item.nodeid)])


def _fixtures(item: pytest.Item) -> set[str]:
    return set(getattr(item, "fixturenames", ()))


def _place(item: pytest.Item) -> int:
    """Return the place of a test in the queue."""
    if "site" in _fixtures(item):
        return PAGES
    if item.path.name == "test_code.py":  # mypy takes half a minute
        return LONGEST
    if item.path.parent.name == "evidence":  # reads what the build has measured
        return EVIDENCE
    if item.path.name == "test_gates.py" or {"book", "lasting_book"} & _fixtures(item):
        return TINY_BOOKS
    return OTHERS


@pytest.fixture(scope="session")
def site() -> Path:
    """Build the book, once for all workers, and return the folder of the site."""
    if PREBUILT:
        return Path(PREBUILT).resolve()
    if said := _build_once(build_dir(PROJECT_ROOT)):
        pytest.fail(f"The book does not build:\n{said}", pytrace=False)
    return site_dir(PROJECT_ROOT)


def _build_once(folder: Path) -> str:
    """Build unless a worker of this run has, and return what the build says if it fails."""
    folder.mkdir(exist_ok=True)
    with (folder / ".test-build.lock").open("a+", encoding="utf8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        run, _, said = lock.read().partition("\n")
        if run != THIS_RUN:
            done = subprocess.run(
                [sys.executable, "-m", "scaling_book.site.build"],
                cwd=PROJECT_ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
            said = f"{done.stdout}\n{done.stderr}" if done.returncode else ""
            lock.truncate(0)
            lock.write(f"{THIS_RUN}\n{said}")
    return said


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    """Return what runs code with the imports of a build done, in the environment of a build."""
    one = WarmPython(reproducible_environment())
    yield one
    one.close()


@pytest.fixture(scope="session")
def theme_fonts() -> Path:
    """Return the folder of the theme's icon fonts as they come."""
    import pydata_sphinx_theme

    theme = Path(pydata_sphinx_theme.__file__).parent / "theme" / "pydata_sphinx_theme"
    return theme / "static" / "vendor" / "fontawesome" / "webfonts"


class Gzipping(http.server.SimpleHTTPRequestHandler):
    """A static server that compresses text, as real ones do: weights are what a reader pays."""

    def do_GET(self) -> None:
        path = Path(self.directory, unquote(urlsplit(self.path).path).lstrip("/"))
        if not path.is_file():
            self.send_error(404)
            return
        body = path.read_bytes()
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        self.send_response(200)
        if kind.startswith("text/") or kind.endswith(("javascript", "json", "xml")):
            body = gzip.compress(body, 6)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    """Serve the site on this machine and return its address."""
    handler = functools.partial(Gzipping, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def _chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    message = (
        "NO BROWSER: nothing was checked in a browser. Install one "
        "(Debian and Ubuntu: apt install chromium) and run the tests again."
    )
    if os.environ.get("CI") == "true":
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start the system's Chromium, once a worker."""
    executable = _chromium()
    with sync_playwright() as playwright:
        # no sandbox: containers rarely allow one, and the pages are our own
        chromium = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@dataclass
class Visit:
    """A page in the browser and what happened since it was opened."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    transferred: int = 0


@contextlib.contextmanager
def _visits(browser: Browser) -> Iterator[Callable[..., Visit]]:
    contexts: list[BrowserContext] = []

    def open_page(url: str, width: int = 1280, scheme: str = "light") -> Visit:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,  # type: ignore[arg-type]
            reduced_motion="reduce",
        )
        contexts.append(context)
        seen = Visit(context.new_page())
        seen.page.on(
            "console",
            lambda message: (
                message.type in ("error", "warning")
                and seen.complaints.append(f"console {message.type}: {message.text}")
            ),
        )
        seen.page.on("pageerror", lambda error: seen.complaints.append(f"page error: {error}"))
        seen.page.on("request", lambda request: seen.requests.append(request.url))
        devtools = context.new_cdp_session(seen.page)
        devtools.send("Network.enable")

        def count(event: dict[str, float]) -> None:
            seen.transferred += int(event["encodedDataLength"])

        devtools.on("Network.loadingFinished", count)
        seen.page.goto(url, wait_until="load")
        seen.page.evaluate("document.fonts.ready.then(() => true)")
        return seen

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visit]]:
    """Open addresses, each in a context of its own: cold cache, empty storage."""
    with _visits(browser) as open_page:
        yield open_page


@pytest.fixture(scope="module")
def opened(page_name: str, address: str, browser: Browser) -> Iterator[Visit]:
    """Open a page of the book once for all tests that look at it; each sets width and light."""
    with _visits(browser) as open_page:
        yield open_page(f"{address}/{page_name}.html")
