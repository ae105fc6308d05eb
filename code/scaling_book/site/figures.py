"""Figures: a size known before they load, and inks that follow the page into dark mode.

matplotlib writes colours into each element of an SVG file. A browser asks the file itself whether
the page is dark, through ``prefers-color-scheme``, so the file answers with lighter inks. The
page says which theme is on by its ``color-scheme``, which images inherit.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path

from attention_scaling.style import GRID, INK, MUTED

# The neutral inks on a light page and on a dark one. Colours of data read on both: they stay.
DARK_INKS = {INK: "#d5dce3", MUTED: "#9aa6b2", GRID: "#38434d", "#000000": "#d5dce3"}
MARK = '<style id="dark-inks">'
SVG_TAG = re.compile(r"<svg\b[^>]*>")
LENGTH = re.compile(r"\s*([0-9.]+)\s*(px|pt|in|cm|mm)?\s*$")
CSS_PIXELS = {None: 1.0, "px": 1.0, "pt": 4 / 3, "in": 96.0, "cm": 96 / 2.54, "mm": 96 / 25.4}
IMAGE_TAG = re.compile(r"<img\b[^>]*?>")
SOURCE = re.compile(r'\ssrc="([^"]+)"')


def _dark_rules() -> str:
    rules = [f":root{{fill:{DARK_INKS[INK]}}}"]  # what names no colour is black by default
    for ink, light in DARK_INKS.items():
        for paint in ("fill", "stroke"):
            selector = f'[style*="{paint}: {ink}" i],[{paint}="{ink}" i]'
            rules.append(f"{selector}{{{paint}:{light}!important}}")
    return "@media (prefers-color-scheme:dark){" + "".join(rules) + "}"


def with_dark_inks(svg: str) -> str:
    """Return the drawing with inks for a dark page; a drawing that has them is left alone."""
    if MARK in svg:
        return svg
    return SVG_TAG.sub(lambda tag: f"{tag[0]}{MARK}{_dark_rules()}</style>", svg, count=1)


def size(image: Path) -> tuple[int, int] | None:
    """Return the width and height of a PNG or SVG file in CSS pixels, or None if unknown."""
    if image.suffix == ".png":
        width, height = struct.unpack(">II", image.read_bytes()[16:24])
        return width, height
    if image.suffix == ".svg":
        tag = SVG_TAG.search(image.read_text("utf8"))
        return _svg_size(tag[0]) if tag else None
    return None


def _svg_size(tag: str) -> tuple[int, int] | None:
    attributes: dict[str, str] = dict(re.findall(r'\s(width|height|viewBox)="([^"]*)"', tag))
    lengths = [LENGTH.match(attributes.get(name, "")) for name in ("width", "height")]
    if lengths[0] and lengths[1]:
        width, height = (float(length[1]) * CSS_PIXELS[length[2]] for length in lengths if length)
    elif "viewBox" in attributes:
        width, height = (float(x) for x in attributes["viewBox"].replace(",", " ").split()[2:])
    else:
        return None
    return round(width), round(height)


def with_image_sizes(html: str, find: Callable[[str], Path | None]) -> str:
    """Return the page with a size on every image, so that nothing moves while images load.

    Parameters
    ----------
    html
        A whole page.
    find
        Gives the file behind an image's address, or None for those that are not the book's.
    """
    first = True

    def complete(match: re.Match[str]) -> str:
        nonlocal first
        tag = match[0]
        source = SOURCE.search(tag)
        file = find(source[1]) if source else None
        if file is None or " width=" in tag or " loading=" in tag:
            return tag
        # The first image is likely in view when the page opens: waiting for it would only delay.
        added = ' decoding="async"' if first else ' decoding="async" loading="lazy"'
        first = False
        if known := size(file):
            added += f' width="{known[0]}" height="{known[1]}"'
        return tag.replace("<img", f"<img{added}", 1)

    return IMAGE_TAG.sub(complete, html)
