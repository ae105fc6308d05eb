"""How often sound evidence fails: the arithmetic, the recorder, the record, and two fresh draws."""

import json
import math

import numpy as np
import pytest

from scaling_book.audit import false_alarms
from scaling_book.audit.false_alarms import (
    RATE,
    allowed,
    at_most,
    calibration,
    collect,
    one_draw,
    outcome_of,
    problems,
    read_record,
    summary,
    upper_bound,
)
from scaling_book.evidence import Measurement, core, evidence, seeds, slugs
from scaling_book.evidence.sampling import mean_of


def test_binomial_probabilities():
    assert at_most(0, 10, 0.1) == pytest.approx(0.9**10, rel=1e-12)
    assert at_most(2, 4, 0.5) == pytest.approx(11 / 16, rel=1e-12)
    assert at_most(4, 4, 0.5) == pytest.approx(1, rel=1e-12)
    assert (at_most(3, 9, 0.0), at_most(3, 9, 1.0), at_most(9, 9, 1.0)) == (1, 0, 1)


def test_upper_bounds():
    # without an alarm 1 − 0.05^(1/n), the rule of three
    for n in (1, 59, 3000):
        assert upper_bound(0, n) == pytest.approx(1 - 0.05 ** (1 / n), rel=1e-9)
    # Clopper and Pearson: 1 of 20, by their table
    assert upper_bound(1, 20) == pytest.approx(0.2161, abs=5e-5)
    assert upper_bound(7, 7) == 1


def test_what_a_rate_allows():
    assert allowed(1000, 0.0) == 0
    for n, rate in ((400, 1e-3), (2, 0.05), (50, 0.5)):
        most = allowed(n, rate)
        assert 1 - at_most(most, n, rate) <= 1e-3
        assert most == 0 or 1 - at_most(most - 1, n, rate) > 1e-3


@pytest.mark.parametrize(
    ("changes", "z", "alarm"),
    [
        ({}, -1.0, False),
        ({"measured": 10.7}, 6.0, True),
        ({"measured": 10.1}, 0.0, False),
        ({"rival": 10.4}, -1.0, True),
        ({"tolerance": 0.0}, -math.inf, True),
        ({"tolerance": 0.0, "measured": 10.1}, 0.0, False),
    ],
)
def test_a_tolerance_holds_five_standard_errors(changes, z, alarm):
    fields = {"quantity": "x", "measured": 10.0, "expected": 10.1, "tolerance": 0.5, "reason": "0"}
    fields |= {"rival": 12.0, "standard_error": 0.1}
    outcome = outcome_of("x-y", Measurement(**(fields | changes)))
    assert outcome.z == pytest.approx(z, abs=1e-12)
    assert outcome.alarm is alarm


@pytest.fixture
def small_register(monkeypatch):
    """A sound mean, an exact value, and one that nobody draws."""
    monkeypatch.setattr(core, "_register", {})
    monkeypatch.setattr(core, "_load_modules", lambda: None)

    @evidence("a-mean")
    def a_mean():
        samples = seeds.rng(1, 2).standard_normal(500)
        return [mean_of("E[x]", samples, expected=0.0, variance=1.0, rival=1.0)]

    @evidence("exact")
    def exact():
        size = float(np.abs(seeds.rng(1, 3).standard_normal(3)).max())
        return [Measurement("0", 1e-17 * size, 0.0, 1e-15, "0", rival=1.0)]

    @evidence("recorded")
    def recorded():
        return [Measurement("s", 1.0, 1.0, 5e-3, "0", rival=2.0, standard_error=1e-3)]


@pytest.mark.usefixtures("small_register")
def test_draws_differ_and_calibration_shows_it(tmp_path):
    draws = collect(range(1, 41), tmp_path)
    s = summary(draws)
    assert (s["draws"], s["claims"], s["measurements_of_a_run"]) == (40, 3, 3)
    assert (s["simulated_of_a_run"], s["simulated"], s["alarms"]) == (1, 40, 0)
    assert s["runs_with_alarm"] == 0
    assert s["worst"]["slug"] == "a-mean"
    (row,) = calibration(draws.values())
    assert row["quantity"] == "E[x]"
    assert len(set(row["z"])) == 40
    assert abs(row["mean"]) < 5 / math.sqrt(40)
    assert abs(row["rms"] - 1) < 5 / math.sqrt(80)


@pytest.mark.usefixtures("small_register")
def test_an_error_and_a_missed_law_are_alarms(monkeypatch):
    def generous_by_a_hundredth():
        samples = seeds.rng(1, 4).standard_normal(500)
        return [mean_of("E[y]", samples, expected=0.0, variance=1e-4, rival=1.0)]

    monkeypatch.setitem(core._register, "a-mean", generous_by_a_hundredth)
    monkeypatch.setitem(core._register, "exact", lambda: [1 / 0])
    s = summary({number: one_draw(number) for number in (1, 2, 3)})
    assert s["runs_with_alarm"] == 3
    assert s["alarms"] == len(s["all_alarms"])
    found = {(alarm["slug"], alarm["quantity"]) for alarm in s["all_alarms"]}
    assert ("exact", "ZeroDivisionError: division by zero") in found
    assert ("a-mean", "E[y]") in found
    json.dumps(s, allow_nan=False)


@pytest.mark.usefixtures("small_register")
def test_a_stopped_recorder_goes_on_where_it_was(tmp_path, monkeypatch):
    first = collect([1, 2], tmp_path)
    monkeypatch.setattr(false_alarms, "one_draw", lambda number, progress: [])
    assert collect([1, 2], tmp_path) == first
    assert collect([1, 2, 3], tmp_path)[3] == []


@pytest.mark.usefixtures("small_register")
def test_the_record_is_written_and_read(tmp_path, capsys):
    out = tmp_path / "data" / "record.json"
    # two draws cannot show the stated rate, and the command says so
    assert false_alarms.main(["--draws", "2", "--out", str(out), "--state", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert "simulated: 2" in shown.out
    assert "rate_upper_bound is 0.78, the book states 0.001" in shown.err
    record = read_record(out)
    assert record["stated"] == {"rate": RATE}
    assert record["claims"] == ["a-mean", "exact", "recorded"]
    assert any("another" in line for line in problems(record, [*record["claims"], "another"]))
    with pytest.raises(FileNotFoundError, match="make false-alarms"):
        read_record(tmp_path / "none.json")


def test_draw_0_is_that_of_the_book_and_the_others_differ():
    def values():
        return [m.measured for m in core.run("dot-product-mean-zero")]

    outcomes = [values()]
    for number in (0, 1):
        with seeds.another_draw(number):
            outcomes.append(values())
    book, zeroth, first = outcomes
    assert book == zeroth
    assert all(a != b for a, b in zip(book, first, strict=True))


def test_the_record_shows_what_the_book_states():
    assert problems(read_record(), slugs()) == []


@pytest.mark.slow
def test_two_fresh_draws_raise_no_more_alarms_than_stated():
    # Not those of the record: numbers that nobody has looked at.
    draws = {number: one_draw(number) for number in (1001, 1002)}
    s = summary(draws)
    assert s["alarms"] <= allowed(s["simulated"], RATE), s["all_alarms"]
