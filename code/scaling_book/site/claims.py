"""Claims on the pages: ``{claim} slug`` where one is discussed, ``{ledger}`` for all of them.

A record (``chapters/*/claims.yml``), its evidence (`scaling_book.evidence`) and its card on a page
belong together; the build warns, and so fails, when one is missing. The check runs in every
build, also when no page has changed: a fault must not pass because it is old.
"""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from scaling_book.site.claim_directives import (
    ClaimDirective,
    LedgerDirective,
    depart_html_element,
    html_element,
    pass_over,
    resolve_links,
    visit_html_element,
)
from scaling_book.site.claim_register import ClaimRegister, register_of


def _load(app: Sphinx) -> None:
    bibliography = app.env.get_domain("cite").data["bibdata"].data.entries
    register_of(app.env).load(Path(app.srcdir), Path(app.outdir).parent, list(bibliography))


def _outdated(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> set[str]:
    return register_of(env).outdated()


def _check(app: Sphinx, env: BuildEnvironment) -> set[str]:
    register = register_of(env)
    register.check()
    return register.to_write()


def setup(app: Sphinx) -> None:
    """Register the directives, the register of claims and its checks."""
    app.add_domain(ClaimRegister)
    app.add_directive("claim", ClaimDirective)
    app.add_directive("ledger", LedgerDirective)
    passing = (pass_over, pass_over)
    app.add_node(
        html_element,
        html=(visit_html_element, depart_html_element),
        latex=passing,
        text=passing,
        man=passing,
        texinfo=passing,
    )
    # After sphinxcontrib-bibtex, which reads the bibliography at the same event.
    app.connect("builder-inited", _load, priority=600)
    app.connect("env-get-outdated", _outdated)
    app.connect("env-get-updated", _check)
    app.connect("doctree-resolved", resolve_links)
