"""Icons: of the theme's 1,400 glyphs and their style rules, keep those that a page shows."""

from __future__ import annotations

import re
from pathlib import Path

from fontTools import subset

FONT = "fa-solid-900.woff2"
RULE = re.compile(r'(?P<names>(?:\.fa-[a-z0-9-]+:{1,2}before,?)+)\{content:"(?P<glyph>[^"]+)"\}')
NAME = re.compile(r"\bfa-([a-z0-9-]+)")
ESCAPED = re.compile(r"\\([0-9a-f]{4,6})")


def glyphs(css: str) -> set[int]:
    """Return the code points of icons in a style sheet, written out or as ``\\f0c9``."""
    points = {int(digits, 16) for digits in ESCAPED.findall(css)} | {ord(char) for char in css}
    return {point for point in points if 0xE000 <= point <= 0xF8FF}


def without_unused_rules(css: str, names: set[str]) -> str:
    """Return the style sheet without the rules of icons that are not among `names`."""
    return RULE.sub(lambda rule: rule[0] if names & set(NAME.findall(rule["names"])) else "", css)


def keep_used_icons(site: Path) -> None:
    """Cut the icon font and its style rules in a built site down to what its pages show."""
    pages = "".join(page.read_text("utf8") for page in sorted(site.rglob("*.html")))
    scripts = "".join(script.read_text("utf8") for script in sorted(site.rglob("_static/**/*.js")))
    names = set(NAME.findall(pages + scripts))
    used: set[int] = set()
    for sheet in sorted(site.rglob("_static/**/*.css")):
        css = sheet.read_text("utf8")
        kept = without_unused_rules(css, names)
        if kept != css:
            sheet.write_text(kept, "utf8")
        used |= glyphs(kept)
    for font in site.rglob(FONT):
        _subset(font, used)


def _subset(font: Path, points: set[int]) -> None:
    options = subset.Options(flavor="woff2", recalc_timestamp=False)
    loaded = subset.load_font(str(font), options)
    subsetter = subset.Subsetter(options)
    subsetter.populate(unicodes=points)
    subsetter.subset(loaded)
    subset.save_font(loaded, str(font), options)
