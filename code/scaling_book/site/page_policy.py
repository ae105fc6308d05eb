"""What a page may load: its own files and nothing else, and only the scripts it was built with."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from html.parser import HTMLParser

# Addresses that a browser fetches by itself, without the reader's click
FETCHED = {
    "audio": ("src",),
    "embed": ("src",),
    "form": ("action",),
    "iframe": ("src",),
    "image": ("href", "xlink:href"),
    "img": ("src", "srcset"),
    "input": ("src",),
    "link": ("href",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "track": ("src",),
    "use": ("href", "xlink:href"),
    "video": ("src", "poster"),
}
# A canonical link names this very page; browsers do not follow it.
NOT_FETCHED = {"canonical"}
FOREIGN = re.compile(r"^\s*(?:https?:|wss?:|ftp:)?//", re.IGNORECASE)
CSS_ADDRESS = re.compile(
    r"""url\(\s*["']?(?P<url>[^"')]+)|@import\s+["'](?P<import>[^"']+)""", re.IGNORECASE
)
INLINE_SCRIPT = re.compile(r"<script\b(?![^>]*\ssrc=)[^>]*>(.*?)</script>", re.DOTALL)
CHARSET = re.compile(r'<meta charset="[^"]*"\s*/?>')


def foreign_addresses_in_css(css: str) -> list[str]:
    """Return the addresses on other hosts that a style sheet would make the browser fetch."""
    found = (match["url"] or match["import"] for match in CSS_ADDRESS.finditer(css))
    return [address for address in found if FOREIGN.match(address)]


class _Addresses(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.foreign: list[str] = []
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self._in_style = tag == "style"
        self.foreign += foreign_addresses_in_css(attributes.get("style", ""))
        if tag == "link" and attributes.get("rel") in NOT_FETCHED:
            return
        for name in FETCHED.get(tag, ()):
            self.foreign += [url for url in _urls(name, attributes.get(name, "")) if url]

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.foreign += foreign_addresses_in_css(data)

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False


def _urls(attribute: str, value: str) -> Iterator[str]:
    # srcset: "a.png 1x, b.png 2x"
    candidates = value.split(",") if attribute == "srcset" else [value]
    for candidate in candidates:
        if FOREIGN.match(candidate):
            yield candidate.split()[0]


def foreign_addresses(html: str) -> list[str]:
    """Return every address on another host that opening the page would fetch, each once."""
    parser = _Addresses()
    parser.feed(html)
    parser.close()
    return list(dict.fromkeys(parser.foreign))


def content_security_policy(html: str) -> str:
    """Return the policy that allows this page its own files and exactly its inline scripts."""
    digests = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        for script in dict.fromkeys(INLINE_SCRIPT.findall(html))
    ]
    scripts = " ".join(["'self'", *(f"'sha256-{digest}'" for digest in digests)])
    rules = {
        "default-src": "'self'",
        "script-src": scripts,
        "style-src": "'self' 'unsafe-inline'",  # KaTeX places its boxes with style attributes
        "img-src": "'self' data:",
        "font-src": "'self'",
        "connect-src": "'self'",
        "object-src": "'none'",
        "base-uri": "'self'",
        "form-action": "'self'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def with_content_security_policy(html: str) -> str:
    """Return the page with its policy, stated before anything that it rules on."""
    policy = content_security_policy(html)
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}" />'
    return CHARSET.sub(lambda match: f"{match[0]}\n    {meta}", html, count=1)
