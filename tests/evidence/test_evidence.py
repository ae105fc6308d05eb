"""The evidence proves every claim, refutes what it should, and fails when the library is wrong."""

import json
import math
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from pybtex.database import parse_file

from attention_scaling import Moments
from scaling_book.evidence import (
    EvidenceError,
    Measurement,
    core,
    evidence,
    problems,
    run,
    run_all,
    slugs,
    variance_control,
)
from scaling_book.evidence.__main__ import main
from scaling_book.lab.model_scales import read_record
from scaling_book.site.claims_file import load_claims
from scaling_book.site.evidence_cache import evidence_file, evidence_results
from scaling_book.site.paths import build_dir

ROOT = Path(__file__).parents[2]
CLAIMS = load_claims(ROOT, list(parse_file(ROOT / "references.bib").entries))
torch.set_num_threads(1)  # as in a build; more get in each other's way beside other tests


@cache
def of_the_build():
    """Return what a build has measured with the code as it stands; None if none has.

    A build keeps nothing if a claim fails. Then each is measured here and says what is wrong.
    """
    file = evidence_file(build_dir(ROOT))
    return evidence_results(file.parent) if file.is_file() else None


@cache
def measured(slug):
    known = of_the_build()
    return run(slug) if known is None else known[slug]


@pytest.mark.parametrize("slug", slugs())
def test_evidence_supports_the_right_statement_and_rejects_the_rival(slug):
    assert problems(slug, measured(slug)) == []


@pytest.mark.parametrize("slug", slugs())
def test_standard_errors_are_at_most_a_hundredth_of_the_law(slug):
    for m in measured(slug):
        if m.standard_error is not None and m.expected != 0:
            assert m.standard_error <= 0.01 * abs(m.expected), m.quantity


@pytest.mark.parametrize("slug", slugs())
def test_tolerances_are_not_generous(slug):
    # Simulated: six sample standard errors at most, five predicted ones and some scatter between
    # the two. Deterministic: what rounding in float64 can do.
    for m in measured(slug):
        rounding = 1e-10 * max(1.0, abs(m.expected)) if m.standard_error is None else 0.0
        assert m.tolerance <= 6 * (m.standard_error or 0) + rounding, m.quantity


@pytest.mark.parametrize("slug", slugs())
def test_evidence_speaks_no_language(slug):
    # A run of letters of four or more must be a name of code or of a function of the field.
    names = {"MultiheadAttention", "Linear", "xavier_uniform_", "d_model"}
    names |= {"softmax", "online_softmax", "online_attention", "explicit_attention"}
    names |= {"scaled_dot_product_attention", "Adam", "AdamW", "Adafactor"}
    for line in read_record():
        names |= set(re.findall(r"[A-Za-z_]{4,}", line.model_class))
    for m in measured(slug):
        words = set(re.findall(r"[A-Za-z_]{4,}", f"{m.quantity} {m.reason}"))
        assert words <= names, m.quantity


@pytest.mark.parametrize("slug", slugs())
def test_evidence_against_a_sentence_rejects_what_the_sentence_predicts(slug):
    if CLAIMS[slug].verdict in {"misleading", "wrong", "not-reproducible"}:
        assert any(m.rival_is_the_answer for m in measured(slug))


def test_records_and_evidence_match():
    assert {slug for slug, claim in CLAIMS.items() if claim.no_evidence is None} == set(slugs())


def test_each_claim_is_discussed_once_on_its_page():
    shown = Counter()
    for page in sorted((ROOT / "chapters").rglob("*.md")):
        docname = page.relative_to(ROOT).with_suffix("").as_posix()
        for slug in re.findall(r"^[`:]{3,}\{claim\} +(\S+)", page.read_text("utf8"), re.M):
            shown[slug, docname] += 1
    assert shown == {(slug, claim.page): 1 for slug, claim in CLAIMS.items()}


# The evidence must notice a wrong library. Each mutant names what is replaced, by what, and a
# claim whose evidence must then fail.
sample = variance_control.sample_dot_products


def without(name):
    def mutant(*args, **kwargs):
        kwargs.pop(name, None)
        return sample(*args, **kwargs)

    return mutant


def scaled(power):
    return lambda d, *args, **kwargs: sample(d, *args, **kwargs) * d**power


MUTANTS = {
    "the variance is d²": ("sample_dot_products", scaled(0.5), "dot-product-variance-is-head-dim"),
    "the variance is √d": (
        "sample_dot_products",
        scaled(-0.25),
        "dot-product-variance-is-head-dim",
    ),
    "variance d², slope": ("sample_dot_products", scaled(0.5), "variance-grows-linearly"),
    "variance d², count": ("sample_dot_products", scaled(0.5), "sum-of-head-dim-products"),
    "variance 1 % off, d = 512": (
        "sample_dot_products",
        lambda *args, **kwargs: 1.03 * sample(*args, **kwargs),
        "five-hundred-twelve",
    ),
    "variance d², range": ("sample_dot_products", scaled(0.5), "three-sigma-range"),
    "half of the dimensions": (
        "sample_dot_products",
        lambda d, *args, **kwargs: sample(d // 2, *args, **kwargs),
        "sum-of-head-dim-products",
    ),
    "the correlation is dropped": (
        "sample_dot_products",
        without("correlation"),
        "dot-product-mean-zero",
    ),
    "the correlation is dropped, variance": (
        "sample_dot_products",
        without("correlation"),
        "dot-product-variance-is-head-dim",
    ),
    "the correlation is dropped, growth": (
        "sample_dot_products",
        without("correlation"),
        "variance-grows-linearly",
    ),
    "a mean is dropped": ("sample_dot_products", without("mean_k"), "dot-product-mean-zero"),
    "a mean is dropped, variance": (
        "sample_dot_products",
        without("mean_k"),
        "dot-product-variance-is-head-dim",
    ),
    "the law forgets the covariances": (
        "gaussian_moments",
        lambda mean_q, *_: Moments(0.0, float(len(mean_q))),
        "entries-iid-unit-variance",
    ),
    "the law is d² for all": (
        "gaussian_moments",
        lambda mean_q, *_: Moments(0.0, float(len(mean_q)) ** 2),
        "entries-iid-unit-variance",
    ),
    "a row is as wide as the average": (
        "conditional_row_std",
        lambda query: np.sqrt(query.size),
        "dot-product-variance-is-head-dim",
    ),
    "every initialisation gives 1": (
        "initial_query_variance",
        lambda *_: 1.0,
        "unit-variance-after-common-init",
    ),
    "every initialisation gives √d_k": (
        "initial_logit_std",
        lambda name, d_model, head_dim: math.sqrt(head_dim),
        "unit-variance-after-common-init",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_evidence_bites(mutant, monkeypatch):
    name, replacement, slug = MUTANTS[mutant]
    monkeypatch.setattr(variance_control, name, replacement)
    assert problems(slug, run(slug))


# The register


@pytest.fixture
def empty_register(monkeypatch):
    monkeypatch.setattr(core, "_register", {})
    monkeypatch.setattr(core, "_load_modules", lambda: None)


def good():
    return [Measurement("1 + 1", 2.0, 2.0, 0.0, "0", rival=3.0)]


@pytest.mark.usefixtures("empty_register")
def test_a_slug_has_one_evidence():
    evidence("one-and-one")(good)
    with pytest.raises(EvidenceError, match=r"'one-and-one' has evidence already, in .*good"):
        evidence("one-and-one")(lambda: [])


@pytest.mark.usefixtures("empty_register")
def test_an_unknown_slug_is_told_its_neighbours():
    evidence("one-and-one")(good)
    evidence("two-and-two")(good)
    with pytest.raises(EvidenceError, match="did you mean one-and-one"):
        run("one-and-on")
    with pytest.raises(EvidenceError, match="known: one-and-one, two-and-two"):
        run("qqq")


@pytest.mark.usefixtures("empty_register")
def test_an_error_is_passed_on_with_the_slug():
    evidence("one-and-one")(lambda: [1 / 0])
    with pytest.raises(ZeroDivisionError) as caught:
        run_all()
    assert "'one-and-one'" in caught.value.__notes__[0]


@pytest.mark.usefixtures("empty_register")
def test_no_measurement_is_no_evidence():
    evidence("one-and-one")(lambda: [])
    with pytest.raises(EvidenceError, match=r"'one-and-one'.*returned no measurement"):
        run("one-and-one")


@pytest.mark.usefixtures("empty_register")
def test_run_all_reports_progress():
    evidence("one-and-one")(good)
    evidence("two-and-two")(good)
    seen = []
    assert list(run_all(lambda *step: seen.append(step))) == ["one-and-one", "two-and-two"]
    assert seen == [(1, 2, "one-and-one"), (2, 2, "two-and-two")]


def measurement(**changes):
    fields = {
        "quantity": "x",
        "measured": 10.0,
        "expected": 10.1,
        "tolerance": 0.5,
        "reason": "0",
        "rival": 12.0,
        "standard_error": 0.1,
    }
    return Measurement(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "supports", "rejects"),
    [
        ({}, True, True),
        ({"measured": 10.7}, False, True),
        ({"measured": math.nan}, False, False),
        ({"measured": math.inf}, False, True),
        ({"rival": None}, True, True),
        ({"rival": 10.4}, True, False),  # inside the tolerance
        ({"rival": 11.0, "standard_error": 0.3}, True, False),  # 3.3 standard errors away
        ({"rival": 11.6, "standard_error": 0.3}, True, True),
        ({"rival": 11.0, "standard_error": None}, True, True),
    ],
)
def test_what_a_measurement_says(changes, supports, rejects):
    m = measurement(**changes)
    assert (m.supports, m.rejects_rival) == (supports, rejects)


def test_problems_are_told_in_words():
    (first, second) = problems("x-y", [measurement(measured=11.0), measurement(rival=10.2)])
    assert "x-y: x measured 11, the right statement says 10.1 within 0.5" in first
    assert "too close to the rival 10.2" in second
    assert problems("x-y", [measurement(rival=None)]) == [
        "x-y: no measurement has a rival; add one that could refute the claim"
    ]


# The command line


def test_one_claim_is_shown_in_detail(tmp_path, capsys):
    file = tmp_path / "results.json"
    assert main(["dot-product-mean-zero", "--json", str(file)]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("dot-product-mean-zero  (")
    assert "E[q·k], μ_q = μ_k = 0.5, ρ = 0, d_k = 64" in shown.out
    assert "All 4 measurements of 1 claim(s) support the right statements." in shown.out
    assert shown.err == ""  # nobody watches: no progress bar
    rows = json.loads(file.read_text("utf8"))["dot-product-mean-zero"]
    assert [Measurement(**row) for row in rows] == measured("dot-product-mean-zero")


@pytest.fixture
def three_claims(empty_register):
    """Two that prove something, and between them one that the tests let fail."""
    evidence("first")(good)
    evidence("second")(lambda: [measurement()])
    evidence("third")(good)


def replace_second(monkeypatch, function):
    monkeypatch.setitem(core._register, "second", function)


@pytest.mark.usefixtures("three_claims")
def test_several_claims_are_shown_in_one_table(capsys):
    assert main([]) == 0
    header, *rows, _, last = capsys.readouterr().out.splitlines()
    assert header.split()[0] == "claim"
    cells = [row.split() for row in rows]
    assert [(row[0], row[1], row[-1]) for row in cells] == [
        ("first", "1", "ok"),
        ("second", "1", "ok"),
        ("third", "1", "ok"),
    ]
    assert cells[0][2:4] == ["0.00", "exact"]
    assert cells[1][2:5] == ["0.20", "20", "s.e."]  # |10 − 10.1|/0.5 and (12 − 10)/0.1
    assert last == "All 3 measurements of 3 claim(s) support the right statements."


@pytest.mark.usefixtures("three_claims")
def test_the_table_can_be_had_in_detail(capsys):
    assert main(["--verbose"]) == 0
    assert capsys.readouterr().out.count("1 + 1") == 2


def raises():
    raise ZeroDivisionError("by nothing")


@pytest.mark.usefixtures("three_claims")
@pytest.mark.parametrize(
    ("function", "said", "raised"),
    [
        (lambda: [measurement(measured=11.0)], "the right statement says 10.1", False),
        (lambda: [measurement(measured=math.nan)], "measured nan", False),
        (lambda: [measurement(rival=10.2)], "too close to the rival 10.2", False),
        (lambda: [], "returned no measurement", True),
        (raises, "second: ZeroDivisionError: by nothing", True),
    ],
)
def test_a_failure_does_not_keep_the_others_from_being_measured(
    function, said, raised, monkeypatch, tmp_path, capsys
):
    replace_second(monkeypatch, function)
    file, outcomes = tmp_path / "results.json", tmp_path / "outcomes.json"
    assert main(["--json", str(file), "--outcomes", str(outcomes)]) == 1
    shown = capsys.readouterr()
    assert [row.split()[-1] for row in shown.out.splitlines()[1:]] == ["ok", "FAILS", "ok"]
    assert said in shown.err
    assert not file.exists()
    why = json.loads(outcomes.read_text("utf8"))
    assert {slug: bool(entry["why"]) for slug, entry in why.items()} == {
        "first": False,
        "second": True,
        "third": False,
    }
    assert why["second"]["raised"] is raised
    assert list(tmp_path.iterdir()) == [outcomes]


@pytest.mark.usefixtures("three_claims")
def test_an_error_in_a_single_claim_is_shown_with_its_origin(monkeypatch, capsys):
    replace_second(monkeypatch, raises)
    assert main(["second"]) == 1
    assert "in raises" in capsys.readouterr().err


def test_the_command_fails_when_the_evidence_does(monkeypatch, capsys):
    monkeypatch.setattr(variance_control, "sample_dot_products", without("correlation"))
    assert main(["dot-product-mean-zero"]) == 1
    captured = capsys.readouterr()
    assert "FAILS" in captured.out
    assert "dot-product-mean-zero: E[q·k], μ_q = μ_k = 0, ρ = 0.5" in captured.err


@pytest.mark.usefixtures("three_claims")
def test_nothing_is_measured_if_a_claim_is_not_known(monkeypatch, capsys):
    replace_second(monkeypatch, raises)
    assert main(["second", "first-x"]) == 2
    captured = capsys.readouterr()
    assert "did you mean first" in captured.err
    assert captured.out == ""
    assert "ZeroDivisionError" not in captured.err


def test_the_register_alone_loads_neither_numpy_nor_torch():
    code = (
        "import sys, scaling_book.evidence; print(sorted({'numpy', 'torch'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
