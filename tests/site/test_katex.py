"""Formulas set at build time: right, readable to a screen reader, and refused when wrong."""

import pytest
from docutils import nodes

from scaling_book.site.katex import LONG, Renderer, keep_punctuation
from scaling_book.site.node import ensure_node_packages


@pytest.fixture(scope="module")
def renderer():
    ensure_node_packages()
    one = Renderer()
    yield one
    one.close()


def test_a_formula_is_set_for_eyes_and_for_screen_readers(renderer):
    html = renderer.render(r"\sqrt{d_k}", display=False, macros={})["html"]
    assert "katex-html" in html
    assert "<math" in html
    assert "<msqrt>" in html


@pytest.mark.parametrize("tex", [r"\frac{1}{", r"\nosuchmacro", "a_b_c"])
def test_bad_latex_is_an_error_and_the_next_formula_is_not(renderer, tex):
    assert "error" in renderer.render(tex, display=True, macros={})
    assert "html" in renderer.render("x", display=True, macros={})


def test_macros_are_known(renderer):
    answer = renderer.render(r"\Var(x)", display=False, macros={r"\Var": r"\operatorname{Var}"})
    assert "Var" in answer["html"]


def paragraph(tex, after):
    doctree = nodes.document(None, None)
    doctree += nodes.paragraph("", "", nodes.math("", tex), nodes.Text(after))
    keep_punctuation(None, doctree, "page")
    return doctree[0]


def test_a_full_stop_stays_with_a_short_formula():
    together, rest = paragraph("d_k", "). Then")
    assert [child.astext() for child in together] == ["d_k", ")."]
    assert together["classes"] == ["unbroken"]
    assert rest.astext() == " Then"


@pytest.mark.parametrize(("tex", "after"), [("d_k", " and"), ("x" * (LONG + 1), ".")])
def test_other_formulas_are_left_alone(tex, after):
    formula, rest = paragraph(tex, after)
    assert isinstance(formula, nodes.math)
    assert rest.astext() == after
