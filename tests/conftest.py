"""The built site, a server for it and a browser to open it in."""

from __future__ import annotations

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
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from sphinx_external_toc.parsing import parse_toc_yaml

from scaling_book.site.paths import PROJECT_ROOT, build_dir, site_dir

# A site that was built elsewhere can be tested by naming its folder, <book>/_build/html.
PREBUILT = os.environ.get("BOOK_SITE")
SOURCE = Path(PREBUILT).resolve().parents[1] if PREBUILT else PROJECT_ROOT
# Written by Sphinx itself, in no table of contents
GENERATED = ["search"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on every page: from the table of contents, which is known before any build."""
    written = list(parse_toc_yaml(SOURCE / "_toc.yml"))
    if "page_name" in metafunc.fixturenames:
        metafunc.parametrize("page_name", written + GENERATED)
    if "written_page" in metafunc.fixturenames:
        metafunc.parametrize("written_page", written)


@pytest.fixture(scope="session")
def site() -> Path:
    """Build the book, once for all workers, and return the folder of the site."""
    if PREBUILT:
        return Path(PREBUILT).resolve()
    folder = build_dir(PROJECT_ROOT)
    folder.mkdir(exist_ok=True)
    with (folder / ".test-build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the second worker finds everything up to date
        done = subprocess.run(
            [sys.executable, "-m", "scaling_book.site.build"],
            cwd=PROJECT_ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        pytest.fail(f"The book does not build:\n{done.stdout}\n{done.stderr}", pytrace=False)
    return site_dir(PROJECT_ROOT)


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


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visit]]:
    """Open addresses, each in a context of its own: cold cache, empty storage."""
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
