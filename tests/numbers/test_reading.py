"""The lint of numbers finds planted loose ones of every kind, and lets supported ones pass."""

import pytest
import yaml

from scaling_book.evidence import Measurement

from .book import ALLOWED, Book, Page, printed_by
from .evidence import in_source, printed
from .reading import numbers, readable

PAGE = """---
file_format: mystnb
---

(a-page)=
# A page

{start}

(first-section)=
## The first section

```{{code-cell}} python
draw(5000, widths=[64, 128, 512], correlation=0.8)
```

{here}

```{{glue:figure}} curve
:name: fig-curve
:alt: A curve. {alt}

{caption}
```

(second-section)=
## The second section

```{{code-cell}} python
print(share, mean)
```

{there}

:::{{admonition}} Say this {title}
:class: tip
{summary}
:::
"""
FIELDS = dict.fromkeys(("start", "here", "alt", "caption", "there", "title", "summary"), "")
CELLS = [
    (12, "draw(5000, widths=[64, 128, 512], correlation=0.8)", ["0.2512 ± 0.0311\n"]),
    (12, "plt.subplots(figsize=(6.4, 39))", []),
    (30, "print(share, mean)", ["0.6134 68.64 6.9 1.5e-12 2.3e18\n"]),
]
NOTHING = {"rules": [], "places": {}}  # is allowed


def loose(**fields):
    """Return the numbers found in a page with these words in it."""
    allowed = yaml.safe_load(ALLOWED.read_text("utf8")) | {"places": {}}
    page = Page(PAGE.format(**FIELDS | fields), CELLS)
    book = Book(ALLOWED.parent, {"page": page}, {}, allowed)
    return [finding.number for finding in book.findings("page")]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("There are 48 keys.", ["48"]),
        ("There are 3,000 draws.", ["3,000"]),
        ("The share is 0.37.", ["0.37"]),
        ("The share is 37 %, or 37 per cent.", ["37 %", "37 per cent"]),
        ("From 16 to 48, 16–48.", ["16", "48", "16", "48"]),
        ("It is 10⁻⁷ or $10^{-7}$.", ["10⁻⁷", "10^{-7}"]),
        (r"It is $3.1 \cdot 10^{-5}$ or 3.1·10⁻⁵.", [r"3.1 \cdot 10^{-5}", "3.1·10⁻⁵"]),
        (r"The law is $e^{-0.33\sigma}$.", ["0.33"]),
        ("One in a formula: $17\\,d_k$.", ["17"]),
        ("It is 1/48 of it, and 9⁵.", ["1/48", "9⁵"]),
        ("It is ¾.", ["¾"]),
        ("There are seven keys, twenty-two heads, a dozen.", ["seven", "twenty-two", "dozen"]),
        ("Seven in ten, one in a million.", ["Seven in ten", "one in a million"]),
        ("Seven queries in ten.", ["Seven queries in ten"]),
        ("Two million, a hundred.", ["Two million", "a hundred"]),
        ("A third of it, two thirds, half as much.", ["A third", "two thirds", "half"]),
        ("Nine and a half, one ten-billionth.", ["Nine and a half", "one ten-billionth"]),
        ("Twice as much.", ["Twice"]),
        ("| keys | 48 |", ["48"]),
        ("It is 5001, about 49, or about 0.3.", ["5001", "49"]),
    ],
)  # fmt: skip
def test_a_loose_number_is_found(words, found):
    assert loose(here=words) == found


@pytest.mark.parametrize(
    "words",
    [
        "5,000 draws, d_k = 64, three widths, 1/64, 0.8², $e^{0.8}$, 80 %.",
        "The printed 0.25, 25 %, a quarter.",
        "Mean 0 and variance 1; $2\\,\\sigma^2/4$, 1/√d_k, and one more.",
        "In §3.2.1, Eq. 7, Table 3 and footnote 4, of 2017, version 0.1.0.",
        "GPT-2, float16, T5, Llama 4, Gemma 2 27B, ViT-22B, FlashAttention-2.",
        "`dim=48`, {ref}`eq-48`, {cite:p}`name2048`, https://example.org/48.",
        "{glue:text}`keys:.0f` of {glue:text}`all_48`.",
        "*20 minutes; needs nothing.*",
        "The third column, a third thing, NaN is a third, the first two keys; $q_7 + z_{19}$.",
    ],
)
def test_a_supported_number_is_not(words):
    assert loose(here=words) == []


def test_what_the_answer_says_is_not_looked_at():
    assert loose(here="```{sentence} a-claim\n:phrase: 约\nAbout 48.\n```\n\nAbout 49.") == ["49"]


def test_a_displayed_formula_is_a_formula():
    displayed = (
        "```{math}\n:label: eq-a\n2 + \\frac{1}{4} + 17\n```\n\n$$\n3 + 18\n$$\n\nThere are 4."
    )
    assert loose(here=displayed) == ["17", "18", "4"]


def test_it_looks_wherever_words_stand():
    places = dict.fromkeys(FIELDS, "There are 48 keys.")
    assert loose(**places) == ["48"] * len(FIELDS)


def test_a_result_counts_in_its_section_in_a_summary_and_where_it_is_linked():
    words = "About 69 keys, 0.61 of them, 61 %, 10⁻¹², 2·10¹⁸."
    assert loose(there=words) == loose(summary=words) == loose(start=words) == []
    assert loose(here=words) == ["69", "0.61", "61 %", "10⁻¹²", "2·10¹⁸"]
    assert loose(here=words + " See {ref}`the section <second-section>`.") == []


def test_what_a_cell_draws_with_counts_for_its_figure_only():
    assert loose(alt="Up to 39.", caption="Up to 39.") == []
    assert loose(here="Up to 39.") == ["39"]


def test_the_size_of_a_picture_is_no_evidence():
    picture = {"data": {"image/svg+xml": "<svg/>", "text/plain": "<Figure size 640x480>"}}
    assert "".join(printed_by(picture)) == ""
    assert "".join(printed_by({"data": {"text/plain": "640"}})) == "640"


def test_settings_of_a_lab_module_count_where_it_is_imported():
    cells = [(0, "from scaling_book.lab.lookup import train", [])]
    for known, found in ((cells, []), ([], ["400"])):
        book = Book(ALLOWED.parent, {"page": Page("After 400 steps.", known)}, {}, NOTHING)
        assert [finding.number for finding in book.findings("page")] == found


def test_a_record_counts_where_it_is_named(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "run.json").write_text('{"a": [{"loss": 2.125, "b": true}, "3"]}')
    for text, found in (("It ends at 2.13.", ["2.13"]), ("It ends at 2.13 in data/run.json.", [])):
        book = Book(tmp_path, {"page": Page(text)}, {}, NOTHING)
        assert [finding.number for finding in book.findings("page")] == found


def test_a_claim_counts_in_the_section_that_shows_it():
    linked = "{clause}`It is 31. <a-claim>` {proof}`31 <a-claim>` {ref}`31 <claim-a-claim>`\n\n"
    page = Page(
        "# A\n\nIt is 31.\n\n## B\n\nIt is 31 of 48.\n\n```{claim} a-claim\n```\n\n"
        f"## C\n\n{linked}It is 31.\n"
    )
    measured = {"a-claim": [Measurement("E, n = 48", 31.2, 31.0, 1.0, "a")]}
    book = Book(ALLOWED.parent, {"page": page}, measured, NOTHING)
    assert [finding.line for finding in book.findings("page")] == [16]


def test_one_is_no_number_but_three_is():
    book = Book(ALLOWED.parent, {"page": Page("One of three, and 1 of 3.")}, {}, NOTHING)
    assert [finding.number for finding in book.findings("page")] == ["three", "3"]


def test_a_standard_error_is_no_evidence():
    assert loose(here="It is 0.03.") == ["0.03"]


def test_a_small_whole_number_is_a_result_only_with_an_about():
    assert loose(there="It is 7, or about 7, or 69.") == ["7"]


def test_digits_that_were_not_computed_are_loose():
    assert loose(there="It is 0.613, 0.61344 or 0.69.") == ["0.61344", "0.69"]


def test_a_finding_says_where():
    page = Page("# A\n\nThere are\n48 keys.\n")
    book = Book(ALLOWED.parent, {"page": page}, {}, NOTHING)
    assert [str(f) for f in book.findings("page")] == ["page.md:4: 48 in “There are 48 keys.”"]


def test_an_exception_spares_its_words_only():
    page = Page("# A\n\nThere are\n48 keys, and 48 values.\n")
    allowed = {"rules": [], "places": {"page": [{"text": "There are 48 keys"}, {"text": "49"}]}}
    book = Book(ALLOWED.parent, {"page": page}, {}, allowed)
    assert [finding.words for finding in book.findings("page")] == [
        "There are 48 keys, and 48 values."
    ]
    assert book.needed == {("page", "There are 48 keys")}


CLAIMS = """
a-claim:
  name: A claim of 6 keys
  phrase: 约 22.6
  answer: About 22.6.
  right: >-
    The mean is 0.33 at $d_k = 96$, not 0.75, as a cell has 0.25 at 64,
    and not {right}.
  conditions: "{{ref}}`claim-other`, {conditions}"
  sources:
    - {{cite: a, where: §2, status: read, quote: "shorter by 7%"}}
  page: page
other: {{name: a, phrase: b, answer: c, right: d, conditions: e, sources: [], page: page}}
"""


@pytest.mark.parametrize(
    ("right", "conditions", "found"),
    [
        ("7 %", "0.9", ["4: 6"]),
        ("7", "0.9", ["4: 6", "9: 7"]),
        ("0.9", "41", ["4: 6", "9: 0.9", "10: 41"]),
        ("0.61", "0.8", ["4: 6", "9: 0.61"]),
    ],
)
def test_a_claim_rests_on_its_measurements_its_quotes_and_its_section(
    tmp_path, right, conditions, found
):
    folder = tmp_path / "chapters" / "1"
    folder.mkdir(parents=True)
    (folder / "claims.yml").write_text(
        "\n" + CLAIMS.format(right=right, conditions=conditions), "utf8"
    )
    measured = Measurement("E, d_k = 96", 0.334, 0.3, 0.1, "a", rival=0.75)
    other = Measurement("E", 0.9, 0.9, 0.1, "a")
    page = Page(PAGE.format(**FIELDS) + "\n", CELLS)
    page.cards["a-claim"] = 12
    known = {"a-claim": [measured], "other": [other]}
    other_page = Page("It is {proof}`0.25, 0.9 <a-claim>` of 0.26.")
    book = Book(tmp_path, {"page": page, "other-page": other_page}, known, NOTHING)
    assert [finding.number for finding in book.findings("other-page")] == ["0.26"]
    assert [f"{f.line}: {f.number}" for f in book.findings("a-claim")] == found


def test_numbers_in_a_source_and_in_print():
    assert in_source("f(-2**-3, [1, 2], {'a': 7, 'b': 9}, x=64**0.5, y='5')  # 6") >= {0.125, 8, 7}
    assert not {5, 6} & in_source("f(x='5')  # 6")
    assert printed("a1 −2.5e-3, 1,024 and 10^-29; 3.4 · 10³⁸ 7 %") == {
        0.0025, 1024, 1e-29, 3.4e38, 0.07,
    }  # fmt: skip


def test_the_place_of_a_number_survives_what_is_blanked():
    page = "---\na: 1\n---\n\n```python\nx = 3\n```\n\n[a](b3) {ref}`c <d3>` `3` <!-- 3 --> 48\n"
    assert readable(page).count("\n") == page.count("\n")
    assert [(n.text, n.line, n.start) for n in numbers(readable(page))] == [
        ("48", 9, page.index("48"))
    ]
