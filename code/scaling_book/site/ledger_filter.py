"""The ledger's filter: two groups of radio buttons, and the style rules that obey them.

It needs no script. What depends on a group carries the class ``by-<group>`` and one class for each
choice under which it is shown; for each choice, a rule hides the rest while that choice is made
(``:has(:checked)``). What is hidden is hidden from screen readers as well.

A link can make a choice, too: ``ledger.html#ledger-show-wrong`` leads to a button, which is then
the page's target, and as long as the reader has chosen nothing the rules take that for a choice.

Numbers follow the choices: each button shows how many claims it would leave under the choice in
the other group. All these numbers are in the page, and the rules hide all but one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from docutils import nodes

from scaling_book.site.claim_nodes import document_title, element
from scaling_book.site.claim_register import chapter_index, shown_anchor
from scaling_book.site.claim_words import Words
from scaling_book.site.claims_file import VERDICTS, Claim

ALL_VERDICTS, ALL_CHAPTERS, PROVISIONAL = "all-verdicts", "all-chapters", "provisional"
FOR_ALL = (ALL_VERDICTS, ALL_CHAPTERS)


class Choice(NamedTuple):
    """A radio button: its key, the words beside it, and the claims that it leaves."""

    key: str
    name: nodes.Node
    slugs: frozenset[str]


class Group(NamedTuple):
    """The radio buttons of which one is chosen."""

    name: str
    legend: str
    choices: list[Choice]


def row_classes(claim: Claim) -> list[str]:
    """Return the classes with which the rules find the row of a claim."""
    waiting = [PROVISIONAL] if claim.waits is not None else []
    keys = [*FOR_ALL, claim.verdict, *waiting, _chapter(claim)]
    return ["ledger-row", "by-verdict", "by-chapter", *map(_css_class, keys)]


def filter_of(claims: Sequence[Claim], words: Words) -> list[nodes.Node]:
    """Return the rules and the buttons that filter the rows of these claims."""
    verdicts, chapters = _verdicts(claims, words), _chapters(claims, words)
    rules = "\n".join(rule for group in (verdicts, chapters) for rule in _rules(group))
    before, after = words.claims_shown.split("{shown}")
    total = nodes.paragraph("", before, classes=["ledger-shown"])
    for one in verdicts.choices:
        total += [_count(one, other, "verdict", "chapter") for other in chapters.choices]
    total += nodes.Text(after.format(total=len(claims)))
    form = element(
        "div",
        "ledger-filter",
        children=[_fieldset(verdicts, chapters), _fieldset(chapters, verdicts), total],
    )
    return [
        nodes.raw("", f"<style>\n@media not print {{\n{rules}\n}}\n</style>", format="html"),
        form,
    ]


def _chapter(claim: Claim) -> str:
    return claim.chapter.rpartition("/")[2]


def _css_class(key: str) -> str:
    return f"if-{key}"


def _slugs(claims: Iterable[Claim]) -> frozenset[str]:
    return frozenset(claim.slug for claim in claims)


def _verdicts(claims: Sequence[Claim], words: Words) -> Group:
    choices = [Choice(ALL_VERDICTS, nodes.Text(words.all_verdicts), _slugs(claims))]
    for verdict in VERDICTS:
        slugs = _slugs(claim for claim in claims if claim.verdict == verdict)
        choices.append(Choice(verdict, nodes.Text(words.verdicts[verdict]), slugs))
    waiting = _slugs(claim for claim in claims if claim.waits is not None)
    choices.append(Choice(PROVISIONAL, nodes.Text(words.provisional_note), waiting))
    return Group("verdict", words.verdict, [one for one in choices if one.slugs])


def _chapters(claims: Sequence[Claim], words: Words) -> Group:
    choices = [Choice(ALL_CHAPTERS, nodes.Text(words.all_chapters), _slugs(claims))]
    for document, group in groupby(claims, key=chapter_index):
        chapter = list(group)
        title = document_title(document=document, plain=True)
        choices.append(Choice(_chapter(chapter[0]), title, _slugs(chapter)))
    return Group("chapter", words.chapter, choices)


def _fieldset(group: Group, other: Group) -> nodes.Element:
    fieldset = element(
        "fieldset", children=[element("legend", children=[nodes.Text(group.legend)])]
    )
    for choice in group.choices:
        button = element(
            "input",
            ids=[shown_anchor(choice.key)],
            type="radio",
            name=f"ledger-{group.name}",
            # a browser that brings back an old choice would hide what a link leads to
            autocomplete="off",
        )
        counts = [_count(choice, another, other.name) for another in other.choices]
        name = nodes.inline("", "", choice.name)
        fieldset += element(
            "label", "ledger-choice", children=[button, name, nodes.Text(" "), *counts]
        )
    return fieldset


def _count(one: Choice, other: Choice, *groups: str) -> nodes.Node:
    """Return how many claims both choices leave; shown while the choices of `groups` are made."""
    keys = (one.key, other.key) if len(groups) == 2 else (other.key,)
    text = str(len(one.slugs & other.slugs))
    by = [f"by-{group}" for group in groups]
    return nodes.inline(text, text, classes=["ledger-count", *by, *map(_css_class, keys)])


def _rules(group: Group) -> Iterable[str]:
    """Yield for each choice the rule that hides what does not fit it."""
    buttons = f'input[name="ledger-{group.name}"]'
    for choice in group.choices:
        button = f"#{shown_anchor(choice.key)}"
        # made by the reader, or else by the link that led here
        made = f":has({button}:checked), :has({button}:target):not(:has({buttons}:checked))"
        if choice.key in FOR_ALL:  # or not at all
            made += f", :not(:has({buttons}:is(:checked, :target)))"
        fits = f".{_css_class(choice.key)}"
        # a row that a link leads to is shown in any case
        yield f".ledger:is({made}) :is(.by-{group.name}:not({fits}, :target),"
        yield f"  .ledger-part:not(:has({fits}, :target))) {{ display: none }}"
