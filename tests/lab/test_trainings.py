"""The star of trainings, the choice of rates, and the record, read and repeated."""

import json
import math
from collections import Counter

import numpy as np
import pytest
import torch
from distributed import LocalCluster

from scaling_book.lab import experiments, star
from scaling_book.lab.star import ARMS, HUNT, Arm, best_rate
from scaling_book.lab.sweep_records import config_key
from scaling_book.lab.training import DEFAULTS, Trace, complete, train
from scaling_book.lab.trainings import (
    STUDENT,
    Runs,
    Trainings,
    difference,
    interval,
    read_trainings,
)

torch.set_num_threads(1)

TINY = {"workload": "lookup", "length": 16, "width": 16, "heads": 1, "layers": 1, "batch": 4}


def record(config, validation=None, **result):
    steps = str(complete(config)["steps"])
    values = {} if validation is None else {steps: validation}
    return {"config": complete(config), "result": {"validation": values, **result}}


def test_configurations_are_valid_and_no_run_is_reported_twice():
    keys = Counter(
        config_key(config)
        for arm in ARMS
        for config in arm.tuning() + [c for rate in arm.rates for c in arm.reported(rate)]
    )
    keys.update(config_key(config) for config in HUNT)
    assert max(keys.values()) == 1
    for arm in ARMS:
        assert not set(arm.seeds) & set(arm.tuning_seeds)
        assert len(arm.seeds) >= 3
    headline = [arm for arm in ARMS if set(arm.change) == {"layers", "init", "scale"}]
    assert sum(len(arm.seeds) >= 5 for arm in headline if arm.change["init"] == "unit") >= 8


def test_the_rate_is_chosen_by_the_tuning_seeds_alone():
    arm = Arm({"layers": 2}, rates=(0.1, 0.2), tuning_seeds=(7, 8), seeds=(0, 1))
    records = [
        record({"layers": 2, "rate": 0.1, "seed": 7}, 2.0),
        record({"layers": 2, "rate": 0.1, "seed": 8}, 2.4),
        record({"layers": 2, "rate": 0.2, "seed": 7}, 2.1),
        record({"layers": 2, "rate": 0.2, "seed": 8}, 2.1),
        record({"layers": 2, "rate": 0.1, "seed": 0}, 1.0),  # no tuning seed
        record({"layers": 6, "rate": 0.1, "seed": 7}, 1.0),  # another arm
    ]
    assert best_rate(arm, records) == 0.2
    records[2] = record({"layers": 2, "rate": 0.2, "seed": 7})  # ended early
    assert best_rate(arm, records) == 0.1
    assert best_rate(Arm({}, rates=(0.3,)), []) == 0.3


def test_a_difference_is_taken_seed_by_seed():
    def runs(values, seeds):
        arm = Arm({}, seeds=seeds)
        return Runs(
            arm, 0.1, tuple(record({"seed": s}, v) for s, v in zip(seeds, values, strict=True))
        )

    ours = runs([2.0, 3.0, 4.0], (0, 1, 2))
    other = runs([2.5, 1.9, 9.0, 2.8], (1, 0, 5, 2))
    found = difference(ours, other)
    assert found.mean == pytest.approx((0.1 + 0.5 + 1.2) / 3)
    assert found.count == 3
    assert found.low < found.mean < found.high
    with pytest.raises(ValueError, match="needs 2 to"):
        difference(ours, runs([1.0], (9,)))


def test_intervals_are_students():
    for degrees, quantile in STUDENT.items():
        # twice the area of Student's density from 0 to the quantile, by Simpson's rule
        t = np.linspace(0, quantile, 4001)
        density = (1 + t**2 / degrees) ** (-(degrees + 1) / 2)
        weights = np.where(np.arange(4001) % 2, 4.0, 2.0)
        weights[[0, -1]] = 1.0
        area = (density * weights).sum() * quantile / 4000 / 3
        log_norm = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
        area *= math.exp(log_norm) / math.sqrt(degrees * math.pi)
        assert 2 * area == pytest.approx(0.95, abs=1e-5)  # four decimals of the quantile
    x = np.array([1.0, 2.0, 4.0])
    half = STUDENT[2] * x.std(ddof=1) / math.sqrt(3)
    expected = (x.mean() - half, x.mean() + half)
    assert (interval(x).low, interval(x).high) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match="got 1"):
        interval([1.0])


def test_intervals_cover_as_often_as_they_say():
    draws = np.random.default_rng(1).standard_normal((4000, 5))
    covered = sum(i.low < 0 < i.high for i in map(interval, draws)) / 4000
    assert covered == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / 4000))


def test_a_summary_keeps_the_extremes_and_hides_what_is_not_finite():
    steps, layers = 25, 2
    gradients = torch.rand(steps, layers, 6) + 1
    gradients[17, 1, 0] = 1e-9  # W_Q of the second layer
    gradients[18, 1, 3] = 1e-12  # another matrix
    series = torch.arange(steps * layers, dtype=torch.float32).view(steps, layers)
    loss = torch.rand(steps)
    loss[-1] = math.nan
    trace = Trace(loss, loss, gradients, series, series, series, series, {}, {"loss": 24})
    kept = experiments.summary(trace)
    json.dumps(kept, allow_nan=False)
    assert min(kept["smallest_qk_gradient"]) == 1e-9
    assert len(kept["loss"]) == steps
    assert kept["loss"][-1] is None
    assert kept["logit_max"] == [1.0, 21.0, 41.0]
    assert kept["logit_std"] == [0.5, 20.5, 40.5]
    assert set(kept["gradients"]) == {"0", "1", "10", "24"}


def test_a_star_is_run_tuned_and_resumed(tmp_path, monkeypatch):
    arms = tuple(
        Arm(
            {**TINY, "steps": 3, "scale": scale},
            rates=(1e-3, 1e-2),
            tuning_seeds=(9,),
            seeds=(0, 1),
        )
        for scale in ("none", "sqrt")
    )
    monkeypatch.setattr(experiments, "QUESTIONS", {"tiny": arms})
    monkeypatch.setattr(experiments, "HUNT", (complete({**TINY, "steps": 2, "seed": 4}),))
    first = experiments.record_all(tmp_path, workers=1)
    assert len(first) == 2 * (2 + 2) + 1
    files = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    assert len(files) == len(first)
    next(iter(files)).unlink()
    again = experiments.record_all(tmp_path, workers=1)
    assert [r["result"] for r in again] == [r["result"] for r in first]
    kept = [path for path, time in files.items() if path.stat().st_mtime_ns == time]
    assert len(kept) == len(files) - 1


def test_a_star_runs_on_a_dask_cluster_as_it_does_here(tmp_path, monkeypatch):
    arms = (Arm({**TINY, "steps": 2}, rates=(1e-3,), seeds=(0, 1)),)
    monkeypatch.setattr(experiments, "QUESTIONS", {"tiny": arms})
    monkeypatch.setattr(experiments, "HUNT", ())
    here = experiments.record_all(tmp_path / "here", workers=1)
    cluster = LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    )
    with cluster:
        there = experiments.record_all(
            tmp_path / "there", workers=1, dask=cluster.scheduler_address
        )
    assert [r["result"] for r in there] == [r["result"] for r in here]


# The record itself


@pytest.fixture(scope="module")
def trainings():
    return read_trainings()


def test_the_record_is_that_of_the_star(trainings):
    wanted = {config_key(config) for arm in ARMS for config in arm.tuning()}
    wanted |= {config_key(config) for config in HUNT}
    for arm in ARMS:
        runs = trainings.of(**arm.change)
        wanted |= {config_key(record["config"]) for record in runs.records}
    assert set(trainings.records) == wanted
    assert sum(r["provenance"]["seconds"] for r in trainings.records.values()) > 0
    with pytest.raises(ValueError, match="no arm has"):
        trainings.of(layers=7)


FIRST = 6


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: "-".join(map(str, arm.change.values())))
def test_first_steps_repeat_exactly(trainings, arm):
    recorded = trainings.of(**arm.change).records[0]
    steps = FIRST if recorded["config"]["layers"] <= 6 else 3
    # The whole run's schedule and batches do not depend on how many steps are made of it
    trace = train({**recorded["config"], "steps": steps})
    kept = experiments.summary(trace)
    # six digits are recorded; another processor may sum in another order
    assert kept["loss"] == pytest.approx(recorded["result"]["loss"][:steps], rel=1e-5)
    assert kept["gradients"]["0"][0] == pytest.approx(
        recorded["result"]["gradients"]["0"][0], rel=2e-3
    )


def test_an_end_repeats_within_the_spread_of_seeds(trainings):
    runs = trainings.of(layers=2, init="gpt2", scale="none")
    trace = train(runs.records[1]["config"])
    repeated = trace.validation[DEFAULTS["steps"]]
    assert abs(repeated - runs.final[1]) < 3 * runs.final.std(ddof=1)


def test_a_learned_scale_starts_at_the_root():
    learned, fixed = (train({**TINY, "steps": 1, "scale": scale}) for scale in ("learned", "sqrt"))
    assert torch.equal(learned.loss, fixed.loss)


def test_the_tuning_of_an_arm_can_be_read():
    arm = ARMS[0]
    made = [record({**config}, 2 + config["rate"]) for config in arm.tuning()]
    found = Trainings(made).tuning(**arm.change)
    assert found == pytest.approx({rate: 2 + rate for rate in star.RATES})
