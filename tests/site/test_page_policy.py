"""What counts as another host, and which scripts the policy lets through."""

import base64
import hashlib

import pytest

from scaling_book.site.page_policy import (
    content_security_policy,
    foreign_addresses,
    foreign_addresses_in_css,
    with_content_security_policy,
)

FETCHES = [
    '<script src="https://a.example/x.js"></script>',
    '<script defer src="//a.example/x.js"></script>',
    '<link rel="stylesheet" href="http://a.example/x.css">',
    '<link rel="preconnect" href="https://a.example">',
    '<img src="https://a.example/x.png" alt="x">',
    '<img srcset="x.png 1x, https://a.example/x.png 2x" src="x.png" alt="x">',
    '<iframe src="https://a.example/"></iframe>',
    '<video poster="https://a.example/x.png"><source src="x.mp4"></video>',
    '<object data="HTTPS://a.example/x.svg"></object>',
    '<form action="https://a.example/search"></form>',
    '<svg><use href="https://a.example/x.svg#y"/></svg>',
    "<div style=\"background: url('https://a.example/x.png')\"></div>",
    "<style>@import 'https://a.example/x.css';</style>",
    "<style>p { background: url(//a.example/x.png) }</style>",
]
HARMLESS = [
    '<a href="https://a.example/">a link that the reader may follow</a>',
    '<link rel="canonical" href="https://a.example/page.html">',
    '<meta property="og:url" content="https://a.example/page.html">',
    '<img src="../_images/x.png" alt="https://a.example/">',
    '<img src="data:image/svg+xml,%3Csvg xmlns=%22http://www.w3.org/2000/svg%22/%3E" alt="x">',
    '<script>const page = "https://a.example/";</script>',
    '<p style="color: red">https://a.example/x.png</p>',
]


@pytest.mark.parametrize("html", FETCHES)
def test_whatever_a_browser_fetches_is_found(html: str) -> None:
    found = foreign_addresses(f"<!DOCTYPE html><html><body>{html}</body></html>")
    assert len(found) == 1
    assert "a.example" in found[0]


@pytest.mark.parametrize("html", HARMLESS)
def test_what_is_not_fetched_is_allowed(html: str) -> None:
    assert foreign_addresses(html) == []


def test_style_sheets_are_read() -> None:
    css = (
        '@import url("https://a.example/x.css"); a{background:url(x.png)} b{src:url(//b.example/f)}'
    )
    assert foreign_addresses_in_css(css) == ["https://a.example/x.css", "//b.example/f"]


def digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def test_policy_names_exactly_the_inline_scripts() -> None:
    script = 'let d = "√";'
    html = f'<script>{script}</script><script defer src="x.js"></script>'
    policy = content_security_policy(html)
    script_rule = next(rule for rule in policy.split("; ") if rule.startswith("script-src"))
    assert script_rule == f"script-src 'self' 'sha256-{digest(script)}'"
    assert "default-src 'self'" in policy
    assert "object-src 'none'" in policy


def test_policy_follows_the_charset() -> None:
    html = '<head><meta charset="utf-8" /><script>1</script></head>'
    text = with_content_security_policy(html)
    assert text.index("charset") < text.index("Content-Security-Policy") < text.index("<script>")
