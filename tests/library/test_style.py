"""Figure style: contrast on both backgrounds, colour-blind readers, reproducible SVG."""

import io
import itertools
import sys
from types import SimpleNamespace

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

from attention_scaling.style import CYCLE, GRID, INK, MUTED, use_book_style

WHITE, DARK = "#ffffff", "#14181e"
#: Linear sRGB to XYZ (IEC 61966-2-1); its second row gives the luminance.
XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
#: Machado, Oliveira and Fernandes (2009), severity 1.0, on linear sRGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
}


def linear(colour):
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """WCAG 2.2 contrast ratio."""
    low, high = sorted(float(XYZ[1] @ linear(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(rgb):
    x, y, z = np.cbrt((XYZ @ np.clip(rgb, 0, 1)) / (XYZ @ np.ones(3)))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.fixture
def book_style():
    with mpl.rc_context():
        use_book_style()
        yield


def test_contrast_of_known_pairs():
    assert contrast("#000000", WHITE) == pytest.approx(21)
    assert contrast("#777777", WHITE) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("colour", CYCLE)
@pytest.mark.parametrize("background", [WHITE, DARK])
def test_data_colours_show_on_both_backgrounds(colour, background):
    assert contrast(colour, background) >= 3


def test_neutrals_on_white():
    assert contrast(INK, WHITE) >= 7
    assert contrast(MUTED, WHITE) >= 4.5
    assert 1.2 < contrast(GRID, WHITE) < 3  # there, but behind the data


@pytest.mark.parametrize("vision", VISION)
def test_data_colours_stay_apart(vision):
    seen = [lab(VISION[vision] @ linear(colour)) for colour in CYCLE]
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(one - other) > 30  # a just noticeable difference is about 2.3


@pytest.mark.usefixtures("book_style")
def test_text_is_legible():
    sizes = [mpl.rcParams["font.size"]]
    for name in ("axes.labelsize", "axes.titlesize", "xtick.labelsize", "legend.fontsize"):
        sizes.append(mpl.rcParams[name])
    assert min(sizes) >= 10
    assert mpl.rcParams["figure.figsize"][0] == 6.4


def draw():
    figure = Figure()
    axes = figure.add_subplot()
    axes.plot([1, 2, 3], label="√d_k")
    axes.set_title("σ = √(2 ln n)")
    axes.set_xlabel("n")
    axes.legend()
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


@pytest.mark.usefixtures("book_style")
def test_svg_is_reproducible_transparent_and_without_text_elements():
    svg = draw()
    assert svg == draw()
    assert "<text" not in svg
    assert "#ffffff" not in svg
    assert {colour in svg for colour in (INK, GRID, CYCLE[0])} == {True}
    assert "#000000" not in svg  # a neutral that the site would not recognise


def test_outside_ipython_nothing_is_configured(monkeypatch, book_style):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    monkeypatch.setattr("attention_scaling.style.import_module", pytest.fail)
    use_book_style()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    use_book_style()


# A hook of matplotlib_inline itself.
@pytest.mark.filterwarnings("ignore:.*_figure_formats_changed:DeprecationWarning")
def test_inside_ipython_figures_are_svg_only(monkeypatch):
    interactiveshell = pytest.importorskip("IPython.core.interactiveshell")
    config = pytest.importorskip("matplotlib_inline.config")
    shell = interactiveshell.InteractiveShell.instance()
    try:
        monkeypatch.setattr("IPython.get_ipython", lambda: shell)
        with mpl.rc_context():
            use_book_style()
        formatters = shell.display_formatter.formatters
        assert Figure in formatters["image/svg+xml"].type_printers
        assert Figure not in formatters["image/png"].type_printers
        assert config.InlineBackend.instance().figure_formats == {"svg"}
        assert config.InlineBackend.instance().print_figure_kwargs["metadata"] == {"Date": None}
    finally:
        config.InlineBackend.clear_instance()
        interactiveshell.InteractiveShell.clear_instance()
