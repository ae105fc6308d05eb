"""How the figures look: colours, font sizes and SVG output. No plotting."""

from __future__ import annotations

import sys
from importlib import import_module

import matplotlib as mpl
from matplotlib.rcsetup import cycler

__all__ = ["CYCLE", "GRID", "INK", "MUTED", "use_book_style"]

#: Text and axes. These three neutrals are the only ones a figure may use: the site recognises
#: them in the SVG by their exact value and replaces them in dark mode.
INK = "#24303c"
#: Secondary text and reference lines.
MUTED = "#6b7682"
#: Grid lines.
GRID = "#d8dde3"

#: Data colours, accent first. Each has a contrast of at least 3:1 (WCAG 2.2, criterion 1.4.11) on
#: white and on #14181e, so figures need no second palette in dark mode. Any two stay apart (CIELAB
#: difference above 30) as readers with protanopia and deuteranopia see them.
CYCLE = ("#119a8d", "#da7900", "#38689f", "#837cfe", "#806738")


def use_book_style() -> None:
    """Set matplotlib's defaults for the figures of the book.

    SVG text becomes paths and the ids in an SVG are derived from a fixed salt, so equal data give
    equal files. Backgrounds are transparent and fonts at least 10 pt at the width of a page, 6.4
    inches. Inside IPython the inline backend is told to emit SVG and no date.
    """
    mpl.rcParams.update(
        {
            "svg.fonttype": "path",
            "svg.hashsalt": "why-sqrt-dk",
            "figure.figsize": (6.4, 3.6),
            "figure.facecolor": "none",
            "savefig.facecolor": "none",
            "savefig.format": "svg",
            "axes.facecolor": "none",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": INK,
            "axes.labelcolor": INK,
            "axes.titlecolor": INK,
            "axes.prop_cycle": cycler(color=list(CYCLE)),
            "axes.grid": True,
            "axes.axisbelow": True,
            "axes.unicode_minus": True,
            "grid.color": GRID,
            "grid.linewidth": 0.8,
            "xtick.color": INK,
            "ytick.color": INK,
            "text.color": INK,
            "patch.edgecolor": INK,
            "boxplot.medianprops.color": INK,
            "lines.linewidth": 2.0,
            "lines.markersize": 5.0,
            "font.size": 11.0,
            "axes.labelsize": 11.0,
            "axes.titlesize": 12.0,
            "xtick.labelsize": 10.0,
            "ytick.labelsize": 10.0,
            "legend.fontsize": 10.0,
            "legend.frameon": False,
            "figure.constrained_layout.use": True,
        }
    )
    _emit_svg_inside_ipython()


def _emit_svg_inside_ipython() -> None:
    """Configure IPython's inline backend, if this process runs IPython at all."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        return
    backend = import_module("matplotlib_inline.backend_inline")
    # The settings serve a backend that starts later, set_matplotlib_formats a running one.
    inline = backend.InlineBackend.instance(parent=shell)
    inline.figure_formats = {"svg"}
    inline.print_figure_kwargs = {**inline.print_figure_kwargs, "metadata": {"Date": None}}
    backend.set_matplotlib_formats("svg")
