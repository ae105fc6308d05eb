"""Claims on the pages: cards, the ledger, sentences of the answer, and words that name claims.

A record (``chapters/*/claims.yml``), its evidence (`scaling_book.evidence`) and its card on a page
belong together; the build warns, and so fails, when one is missing. The check runs in every
build, also when no page has changed: a fault must not pass because it is old.
"""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from scaling_book.site.claim_cards import ClaimDirective
from scaling_book.site.claim_checks import check
from scaling_book.site.claim_ledger import LedgerDirective
from scaling_book.site.claim_mentions import VerdictRole, WordsRole, clause_place, proof_place
from scaling_book.site.claim_nodes import (
    depart_html_element,
    fill,
    html_element,
    pass_over,
    visit_html_element,
)
from scaling_book.site.claim_register import ClaimRegister, register_of
from scaling_book.site.claim_scoreboard import ScoreboardDirective
from scaling_book.site.claim_sentences import SentenceDirective
from scaling_book.site.mutants_table import MutantsDirective


def _load(app: Sphinx) -> None:
    bibliography = app.env.get_domain("cite").data["bibdata"].data.entries
    register_of(app.env).load(Path(app.srcdir), Path(app.outdir).parent, list(bibliography))


def _outdated(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> set[str]:
    return register_of(env).outdated()


def _check(app: Sphinx, env: BuildEnvironment) -> set[str]:
    register = register_of(env)
    check(register)
    return register.to_write()


def setup(app: Sphinx) -> None:
    """Register the directives, the roles, the register of claims and its checks."""
    app.add_domain(ClaimRegister)
    app.add_directive("claim", ClaimDirective)
    app.add_directive("ledger", LedgerDirective)
    app.add_directive("scoreboard", ScoreboardDirective)
    app.add_directive("sentence", SentenceDirective)
    app.add_directive("mutants", MutantsDirective)
    app.add_role("verdict", VerdictRole())
    app.add_role("clause", WordsRole(clause_place))
    app.add_role("proof", WordsRole(proof_place))
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
    app.connect("doctree-resolved", fill)
