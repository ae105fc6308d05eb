"""The directive ``{mutants}``: the recorded faults, and which laws and claims noticed each.

The record is ``data/mutants.json``, which `scaling_book.audit` writes; ``make test`` says when it
no longer fits the code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from scaling_book.site.claim_nodes import card_link, element, table
from scaling_book.site.claim_register import register_of
from scaling_book.site.claim_words import Words, words_for

RECORD = "data/mutants.json"
# How the record names a claim whose evidence did not measure something else, but raised an error
ERROR = "error"


class MutantsDirective(SphinxDirective):
    """Show every recorded fault: what it changes, and what notices it."""

    def run(self) -> list[nodes.Node]:
        """Return the total, the table and the state of the code that it was made with.

        Raises
        ------
        DirectiveError
            If there is no record.
        """
        path = Path(self.env.srcdir) / RECORD
        self.env.note_dependency(str(path))
        if not path.is_file():
            raise self.error(
                f"{{mutants}} shows {RECORD}, which is missing; `make mutants` writes it"
            )
        record = json.loads(path.read_text("utf8"))
        mutants = record["mutants"]
        named = dict.fromkeys(slug for mutant in mutants for slug in mutant["red"])
        register_of(self.env).note_mentions(self.env.docname, self.lineno, list(named))
        words = words_for(self.config.language)
        header = [words.fault, words.fault_change, words.fault_law, words.fault_claims]
        rows = [
            [_fault(one), _change(one), _law(one), _claims(one["red"], words)] for one in mutants
        ]
        total = words.faults_total.format(
            count=len(mutants),
            noticed=sum(bool(one["red"] or one["law"]) for one in mutants),
            evidence=sum(bool(one["red"]) for one in mutants),
            laws=sum(one["law"] is not None for one in mutants),
            claims=len(named),
        )
        state = words.faults_state.format(fingerprint=record["fingerprint"], **record["provenance"])
        return [
            nodes.paragraph(total, total, classes=["mutants-total"]),
            table(header, rows, "mutants"),
            nodes.paragraph(state, state, classes=["mutants-state"]),
        ]


def _fault(mutant: Mapping[str, Any]) -> list[nodes.Node]:
    name = nodes.literal(mutant["name"], mutant["name"])
    kind = nodes.strong(mutant["kind"], mutant["kind"])
    return [
        nodes.paragraph("", "", kind),
        nodes.paragraph(mutant["why"], mutant["why"]),
        nodes.paragraph("", "", name),
    ]


def _change(mutant: Mapping[str, Any]) -> list[nodes.Node]:
    """Return the file and, folded, the text before and after as a reader of patches expects it."""
    file = mutant["file"].rpartition("/")[2]
    before = [f"- {line}" for line in mutant["find"].splitlines()]
    after = [f"+ {line}" for line in mutant["replace"].splitlines()]
    patch = "\n".join([f"--- {mutant['file']}", *before, *after])
    block = nodes.literal_block(patch, patch, language="diff")
    summary = element("summary", children=[nodes.literal(file, file)])
    return [element("details", children=[summary, block])]


def _law(mutant: Mapping[str, Any]) -> list[nodes.Node]:
    law = mutant["law"]
    return [nodes.paragraph("", "", nodes.literal(law, law) if law else nodes.Text("–"))]


def _claims(red: Mapping[str, str], words: Words) -> list[nodes.Node]:
    if not red:
        return [nodes.paragraph("", "–")]
    items = []
    for slug, how in red.items():
        line = nodes.paragraph("", "", card_link("", nodes.Text(slug), slug=slug))
        if how == ERROR:
            line += nodes.Text(f" {words.fault_raised}")
        items.append(nodes.list_item("", line))
    count = words.claims_red.format(count=len(red))
    summary = element("summary", children=[nodes.Text(count)])
    return [element("details", children=[summary, nodes.bullet_list("", *items)])]
