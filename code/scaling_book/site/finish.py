"""The last touch: the book's own templates and style, and each page completed as it is written.

Sphinx writes a page by asking its template bridge for the text of it. Ours passes that text on
completed, so a page is finished once, when it is written, and an incremental build pays nothing
for the pages that stay. Files that belong to no page are put in order at the end.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path, PurePosixPath
from typing import Any

from sphinx.application import Sphinx
from sphinx.builders import Builder
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.config import Config
from sphinx.jinja2glue import BuiltinTemplateLoader
from sphinx.theming import Theme
from sphinx.util import logging

from scaling_book.site.figures import with_dark_inks, with_image_sizes
from scaling_book.site.icons import keep_used_icons
from scaling_book.site.page_policy import (
    foreign_addresses,
    foreign_addresses_in_css,
    with_content_security_policy,
)
from scaling_book.site.paths import SITE

logger = logging.getLogger(__name__)

# What other packages write into a page and readers with a screen reader (or two equal ids) trip on
CORRECTIONS = (
    # a list holds items; the role it comes with is deprecated
    ('role="doc-biblioentry"', 'role="listitem"'),
    # what the triangle of a folded cell says is its name
    (' aria-label="Toggle hidden content"', ""),
    # the same id on every proof and theorem of a page
    (' id="proof-content"', ""),
    ('<div class="proof admonition" id="proof">', '<div class="proof admonition">'),
    ("<p>Proof. ", "<p><em>Proof.</em> "),
)
# The triangle that folds a chapter in the sidebar has no name; it gets the chapter's.
NAMELESS = re.compile(r'>([^<>]+)</a>(<details[^>]*>)<summary>(?=<span class="toctree-toggle")')
# Files that no page asks for
DEAD = (
    "_static/**/*.map",
    "_static/**/*.ttf",
    "_static/**/*.LICENSE.txt",
    "_static/**/fa-brands-*",
    "_static/**/fa-regular-*",
    "_static/**/webpack-macros.html",
    "_static/**/sbt-webpack-macros.html",
    "_static/scripts/fontawesome.js",  # 1.5 MB: the icons once more, as a script
    "_static/scripts/bootstrap.js",
    "_static/styles/theme.css",
    "_static/images/logo_*",
)


class FinishedPages(BuiltinTemplateLoader):
    """Sphinx's templates, with whole pages completed before they are written."""

    _builder: Builder

    def init(
        self, builder: Builder, theme: Theme | None = None, dirs: list[str] | None = None
    ) -> None:
        """Remember who asks: a page's images are known to the builder."""
        self._builder = builder
        super().init(builder, theme, dirs)

    def render(self, template: str, context: dict[str, Any]) -> str:  # type: ignore[override]
        """Return the text of a template; that of a whole page completed."""
        text = super().render(template, context)
        # Themes render fragments through here as well.
        if text.lstrip().startswith("<!DOCTYPE html>"):
            return self._finished(text, context["pagename"])
        return text

    def newest_template_mtime(self) -> float:
        """Return when anything that shapes a page last changed: then pages are written anew.

        Sphinx looks at templates alone. A changed style sheet or a change in this package would
        show up only on pages whose text changes too.
        """
        shapes = (path for path in SITE.rglob("*") if "__pycache__" not in path.parts)
        return max(super().newest_template_mtime(), *(path.stat().st_mtime for path in shapes))

    def _finished(self, html: str, pagename: str) -> str:
        for found, replacement in CORRECTIONS:
            html = html.replace(found, replacement)
        html = NAMELESS.sub(r'>\1</a>\2<summary aria-label="\1">', html)
        html = with_image_sizes(html.lstrip(), self._image_file)
        html = with_content_security_policy(html)
        for url in foreign_addresses(html):
            _refuse(url, pagename)
        return html

    def _image_file(self, address: str) -> Path | None:
        path = PurePosixPath(address)
        if path.parent.name != self._builder.imagedir:
            return None
        for source, name in self._builder.images.items():
            if name == path.name:
                return Path(self._builder.srcdir, source)
        return None


def _refuse(url: str, where: str) -> None:
    logger.warning(
        "the page asks another host for %s; everything it needs must be part of the site",
        url,
        location=where,
        type="book",
        subtype="foreign-url",
    )


def use_own_templates(app: Sphinx, config: Config) -> None:
    """Put the book's templates before the theme's, and its style sheet beside them."""
    config.templates_path = [str(SITE / "templates"), *config.templates_path]
    config.html_static_path = [*config.html_static_path, str(SITE / "static")]
    config.template_bridge = f"{FinishedPages.__module__}.{FinishedPages.__qualname__}"
    config.html_favicon = config.html_favicon or str(SITE / "static" / "favicon.svg")


def add_own_files(app: Sphinx) -> None:
    """Load the book's style after every other, and its script."""
    if app.builder.format == "html":
        app.add_css_file("book.css", priority=900)
        app.add_js_file("book.js", priority=900)


def simplify_context(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
) -> None:
    """Leave out what docutils repeats: Sphinx writes the viewport itself."""
    context["metatags"] = re.sub(r'<meta name="viewport"[^>]*>\n?', "", context.get("metatags", ""))


def put_in_order(app: Sphinx, exception: Exception | None) -> None:
    """Remove dead weight, adapt the figures and check the style sheets."""
    if exception is not None or not isinstance(app.builder, StandaloneHTMLBuilder):
        return
    out = Path(app.outdir)
    for pattern in DEAD:
        for path in out.glob(pattern):
            path.unlink()
    shutil.rmtree(out / "_static" / "locales", ignore_errors=True)
    for drawing in out.glob("_images/*.svg"):
        svg = drawing.read_text("utf8")
        drawing.write_text(with_dark_inks(svg), "utf8")
    for sheet in sorted(out.rglob("*.css")):
        for url in foreign_addresses_in_css(sheet.read_text("utf8")):
            _refuse(url, sheet.relative_to(out).as_posix())
    keep_used_icons(out)


def setup(app: Sphinx) -> None:
    """Wire the above into the build."""
    app.connect("config-inited", use_own_templates)
    app.connect("builder-inited", add_own_files)
    app.connect("html-page-context", simplify_context)
    app.connect("build-finished", put_in_order)
