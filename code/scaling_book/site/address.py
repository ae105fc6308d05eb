"""The site's public address: one key, ``site_url``, from which every absolute link is made."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

from sphinx.application import Sphinx
from sphinx.config import Config

DEFAULT = "https://why-sqrt-dk.example/"


def use_site_url(app: Sphinx, config: Config) -> None:
    """Derive what Sphinx and the opengraph extension want to know."""
    config.site_url = config.site_url.rstrip("/") + "/"
    config.html_baseurl = config.site_url  # canonical links
    if "sphinxext.opengraph" in app.extensions:
        config.ogp_site_url = config.site_url


def sitemap(pages: list[str]) -> str:
    """Return a sitemap of the given addresses."""
    entries = "".join(f"<url><loc>{escape(page)}</loc></url>\n" for page in pages)
    schema = "http://www.sitemaps.org/schemas/sitemap/0.9"
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="{schema}">\n{entries}</urlset>\n'
    )


def write_sitemap(app: Sphinx, exception: Exception | None) -> None:
    """Tell search engines which pages there are."""
    if exception is not None or app.builder.format != "html":
        return
    base = app.config.site_url
    pages = [base + app.builder.get_target_uri(page) for page in sorted(app.env.found_docs)]
    out = Path(app.outdir)
    (out / "sitemap.xml").write_text(sitemap(pages), "utf8")
    (out / "robots.txt").write_text(
        f"User-agent: *\nAllow: /\nSitemap: {base}sitemap.xml\n", "utf8"
    )


def setup(app: Sphinx) -> None:
    """Register the key."""
    app.add_config_value("site_url", DEFAULT, "html", [str])
    # before sphinxext.opengraph and the theme read what is derived
    app.connect("config-inited", use_site_url, priority=100)
    app.connect("build-finished", write_sitemap)
