"""Formulas are set by KaTeX while the book is built: no script in the page, bad LaTeX fails."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.locale import _
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

from scaling_book.site.node import ensure_node_packages, node_executable
from scaling_book.site.paths import NODE_MODULES, SITE

logger = logging.getLogger(__name__)
PUNCTUATION = re.compile(r"[.,;:!?)\]’”]+")
LONG = 24  # characters of TeX
KATEX = NODE_MODULES / "katex" / "dist"


class Renderer:
    """One node process for a whole build; every formula is rendered once."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._cache: dict[str, dict[str, str]] = {}

    def render(self, tex: str, *, display: bool, macros: dict[str, str]) -> dict[str, str]:
        """Return ``{"html": …}`` or ``{"error": …}`` for one formula."""
        request = json.dumps({"tex": tex, "display": display, "macros": macros})
        if request not in self._cache:
            self._cache[request] = self._ask(request)
        return self._cache[request]

    def _ask(self, request: str) -> dict[str, str]:
        if self._process is None:
            self._process = subprocess.Popen(
                [node_executable(), str(SITE / "katex_render.mjs"), str(KATEX / "katex.mjs")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf8",
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(request + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("KaTeX stopped without an answer; see the error of node above.")
        parsed: dict[str, str] = json.loads(answer)
        return parsed

    def close(self) -> None:
        """End the node process."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait(timeout=10)
        self._process = None


_renderer = Renderer()


def _formula(translator: Any, node: nodes.Element, *, display: bool) -> str:
    tex = node.astext()
    # What Sphinx does for MathJax too: lines separated by \\ need an environment around them.
    if display and not node.get("nowrap") and r"\\" in tex and r"\begin" not in tex:
        tex = rf"\begin{{aligned}}{tex}\end{{aligned}}"
    answer = _renderer.render(tex, display=display, macros=translator.config.katex_macros)
    if "error" in answer:
        logger.warning(
            "bad LaTeX in %r: %s", tex, answer["error"], location=node, type="book", subtype="math"
        )
        return f"<code>{html.escape(tex)}</code>"
    return answer["html"]


def visit_math(self: Any, node: nodes.math) -> None:
    """Write an inline formula."""
    self.body.append(self.starttag(node, "span", "", CLASS="math notranslate nohighlight"))
    self.body.append(_formula(self, node, display=False) + "</span>")
    raise nodes.SkipNode


def visit_math_block(self: Any, node: nodes.math_block) -> None:
    """Write a displayed formula, with its number and permalink if it has a label."""
    self.body.append(self.starttag(node, "div", CLASS="math notranslate nohighlight"))
    if node["number"]:
        number = get_node_equation_number(self, node)
        self.body.append(f'<span class="eqno">({number})')
        self.add_permalink_ref(node, _("Link to this equation"))
        self.body.append("</span>")
    self.body.append(_formula(self, node, display=True) + "</div>\n")
    raise nodes.SkipNode


def keep_punctuation(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Keep a full stop or comma on the line of the formula that it follows.

    A formula is a box to the browser, and a line may break after a box. A long formula must stay
    free to break inside, or it would not fit a narrow screen.
    """
    for formula in list(doctree.findall(nodes.math)):
        if len(formula.astext()) > LONG:
            continue
        after = formula.next_node(descend=False, siblings=True)
        mark = PUNCTUATION.match(after.astext()) if isinstance(after, nodes.Text) else None
        if mark and formula.parent is after.parent:
            after.parent.replace(after, nodes.Text(after.astext()[mark.end() :]))
            together = nodes.inline("", "", classes=["unbroken"])
            formula.replace_self(together)
            together += [formula, nodes.Text(mark[0])]


def _prepare(app: Sphinx) -> None:
    ensure_node_packages()
    app.add_css_file("../vendor/katex/katex.min.css")


def _finish(app: Sphinx, exception: Exception | None) -> None:
    _renderer.close()
    if exception is None and app.builder.format == "html":
        _copy_stylesheet(Path(app.outdir) / "vendor" / "katex")


def _copy_stylesheet(target: Path) -> None:
    # woff2 alone: every browser of the last ten years reads it, and the rest is dead weight
    (target / "fonts").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(KATEX / "katex.min.css", target / "katex.min.css")
    for font in KATEX.glob("fonts/*.woff2"):
        shutil.copyfile(font, target / "fonts" / font.name)


def setup(app: Sphinx) -> None:
    """Register the math renderer ``katex``."""
    app.add_html_math_renderer("katex", (visit_math, None), (visit_math_block, None))
    app.add_config_value("katex_macros", {}, "html")
    app.connect("builder-inited", _prepare)
    app.connect("doctree-resolved", keep_punctuation)
    app.connect("build-finished", _finish)
