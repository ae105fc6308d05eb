"""Sizes of images, and inks of drawings on dark pages."""

import io
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from attention_scaling.style import GRID, INK, MUTED
from scaling_book.site.figures import DARK_INKS, size, with_dark_inks, with_image_sizes


def drawing(color: str) -> str:
    figure = Figure(figsize=(3, 2))
    figure.add_subplot().plot([0, 1], color=color)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    return buffer.getvalue()


@pytest.mark.parametrize("ink", [INK, MUTED, GRID])
def test_neutral_inks_of_matplotlib_are_matched(ink: str) -> None:
    """The selector must be a substring of what matplotlib really writes."""
    svg = drawing(ink)
    rule = f'[style*="stroke: {ink}" i]'
    assert f"stroke: {ink}" in svg
    assert rule in with_dark_inks(svg)


def test_a_drawing_is_changed_once_and_stays_xml() -> None:
    from xml.etree import ElementTree

    svg = drawing(INK)
    dark = with_dark_inks(svg)
    assert with_dark_inks(dark) == dark
    ElementTree.fromstring(dark)
    assert len(dark) > len(svg)


def luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_dark_inks_read_on_the_dark_page() -> None:
    """Text at least 4.5:1; a grid is no text and stays quiet."""
    page = "#14181e"
    assert contrast(DARK_INKS[INK], page) > 7
    assert contrast(DARK_INKS[MUTED], page) > 4.5
    assert 1.2 < contrast(DARK_INKS[GRID], page) < 3


SVG = '<svg xmlns="http://www.w3.org/2000/svg" {}/>'


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ('width="72pt" height="36pt" viewBox="0 0 72 36"', (96, 48)),
        ('width="100" height="50"', (100, 50)),
        ('width="2in" height="25.4mm"', (192, 96)),
        ('viewBox="0 0 30 20"', (30, 20)),
        ('width="100%" viewBox="0,0,30,20"', (30, 20)),
        ("", None),
    ],
)
def test_size_of_svg(attributes: str, expected: tuple[int, int] | None, tmp_path: Path) -> None:
    path = tmp_path / "x.svg"
    path.write_text(SVG.format(attributes))
    assert size(path) == expected


def test_size_of_png(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    figure = Figure(figsize=(3, 2), dpi=50)
    figure.savefig(path)
    assert size(path) == (150, 100)


def test_only_known_images_get_a_size_and_the_first_is_not_lazy(tmp_path: Path) -> None:
    (tmp_path / "a.svg").write_text(SVG.format('width="30" height="20"'))
    html = '<img alt="a" src="_images/a.svg" /><img alt="a" src="_images/a.svg" /><img src="b.svg">'
    found = with_image_sizes(html, lambda url: tmp_path / "a.svg" if "_images" in url else None)
    first, second, other = found.split("<img")[1:]
    assert 'width="30" height="20"' in first
    assert "lazy" not in first
    assert 'loading="lazy"' in second
    assert other == ' src="b.svg">'
