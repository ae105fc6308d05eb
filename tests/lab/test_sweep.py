"""A sweep survives what stops it: no finished run is lost or repeated, no damaged record used."""

import importlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType

import dask
import distributed
import joblib
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling_book.lab import sweep
from scaling_book.lab.sweep import (
    RecordError,
    SweepError,
    config_key,
    load_records,
    pack,
    run_sweep,
    unpack,
)
from scaling_book.lab.sweep_records import canonical, make_record, write_record

torch.set_num_threads(1)

# What is run lies in a module of its own: the processes of a sweep import it by its name.
RUNS = '''
import os, random, signal, time
from pathlib import Path
import numpy, torch

def run(config):
    """Note the process, do what the config says, return what shows threads and random states."""
    with open(os.environ["RUN_NOTES"], "a") as notes:
        notes.write(f"{config['x']} {os.getpid()}\\n")
    time.sleep(config.get("seconds", 0))
    match config.get("fate"):
        case "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        case "dies once":
            mark = Path(os.environ["RUN_NOTES"] + ".died")
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        case "raises":
            raise ValueError(f"no luck with {config['x']}\\nat all")
        case "exits":
            raise SystemExit("enough")
        case "returns a tensor":
            return {"loss": [1.0, torch.ones(())]}
    return {
        "x": config["x"],
        "drawn": [random.random(), numpy.random.rand(), torch.rand(()).item()],
        "threads": torch.get_num_threads(),
        "loss": [1 / 3, float("nan"), float("-inf")],
    }
'''
# A script as a person would write it: configs as data, a folder, two workers.
SCRIPT = """
import sys
from pathlib import Path
from runs_of_the_test import run
from scaling_book.lab.sweep import run_sweep
configs = [{"x": x, "seconds": 0.05 if x < 2 else 600} for x in range(6)]
run_sweep(run, configs, Path(sys.argv[1]), workers=2)
"""
DEADLINE = 300.0  # seconds a test waits for another process before it fails, on a busy machine


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module with what is run; with an empty file of notes."""
    (tmp_path / "runs_of_the_test.py").write_text(RUNS)
    monkeypatch.syspath_prepend(tmp_path)
    code = str(Path(sweep.__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), code]))
    monkeypatch.setenv("RUN_NOTES", str(tmp_path / "notes"))
    (tmp_path / "notes").touch()
    monkeypatch.delitem(sys.modules, "runs_of_the_test", raising=False)
    return importlib.import_module("runs_of_the_test")


@pytest.fixture
def in_time() -> Iterator[None]:
    """A sweep that waits for ever fails the test."""

    def fail(*_: object) -> None:
        raise TimeoutError(f"no end after {2 * DEADLINE} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, 2 * DEADLINE)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def notes() -> list[tuple[int, int]]:
    """Which runs were begun, and in which processes."""
    lines = Path(os.environ["RUN_NOTES"]).read_text().splitlines()
    return [(int(x), int(pid)) for x, pid in (line.split() for line in lines)]


def begun() -> list[int]:
    return [x for x, _ in notes()]


def results(records: list[dict]) -> list[str]:
    """Texts, as NaN differs from itself."""
    return [canonical(record["result"]) for record in records]


def wait_until(condition, what: str) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.05)


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


FOUR = [{"x": x} for x in range(4)]


# --- runs, records, and what a second call does ---------------------------------------------------


def test_records_follow_the_configs_and_a_second_call_runs_nothing(runs, tmp_path):
    configs = [FOUR[2], FOUR[0], FOUR[2], FOUR[1]]
    first = run_sweep(runs.run, configs, tmp_path / "sweep", progress=False)
    assert [record["config"]["x"] for record in first] == [2, 0, 2, 1]
    assert begun() == [2, 0, 1]
    again = run_sweep(runs.run, configs, tmp_path / "sweep", progress=False)
    assert canonical(again) == canonical(first)
    assert begun() == [2, 0, 1]
    extended = run_sweep(runs.run, FOUR, tmp_path / "sweep", progress=False)
    assert begun() == [2, 0, 1, 3]
    by_key = sorted(extended, key=lambda record: config_key(record["config"]))
    assert canonical(load_records(tmp_path / "sweep")) == canonical(by_key)


def test_a_record_says_where_it_comes_from(runs, tmp_path):
    (record,) = run_sweep(runs.run, FOUR[:1], tmp_path, provenance={"by": "a test"}, progress=False)
    noted = record["provenance"]
    assert noted["torch"] == torch.__version__
    assert noted["numpy"] == np.__version__
    assert noted["python"] == sys.version.split()[0]
    assert noted["by"] == "a test"
    assert noted["commit"] is None or len(noted["commit"]) == 40
    assert noted["machine"]["cores"] == os.cpu_count()
    assert noted["machine"].keys() == {"processor", "cores", "platform"}  # and no name of it
    assert noted["seconds"] >= 0
    assert datetime.fromisoformat(noted["started"]).utcoffset() == timedelta(0)


def test_a_run_has_one_thread_and_random_states_that_only_its_config_determines(runs, tmp_path):
    torch.set_num_threads(2)
    try:
        one, other = run_sweep(runs.run, FOUR[:2], tmp_path / "a", progress=False)
        random.random(), np.random.rand(), torch.rand(())
        (later,) = run_sweep(runs.run, FOUR[1:2], tmp_path / "b", progress=False)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert one["result"]["threads"] == 1
    drawn = [record["result"]["drawn"] for record in (one, other, later)]
    assert drawn[2] == drawn[1]
    assert all(x != y for x, y in zip(drawn[0], drawn[1], strict=True))


def test_global_random_states_are_as_before(runs, tmp_path):
    def states() -> tuple:
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    before = states()
    run_sweep(runs.run, FOUR[:1], tmp_path, progress=False)
    assert states() == before


def damage(path: Path, kind: str) -> None:
    """Damage the record of x = 1 in one of the ways a disk, a person or a kill can."""
    text = path.read_text()
    whole = json.loads(text)
    other = next(p for p in path.parent.glob("*.json") if p != path)
    match kind:
        case "empty":
            path.write_text("")
        case "cut short":
            path.write_text(text[: len(text) // 2])
        case "zeros":
            path.write_bytes(bytes(len(text)))
        case "no text":
            path.write_bytes(b"\xff" + text.encode())
        case "no mapping":
            path.write_text("[]")
        case "result edited":
            path.write_text(canonical(whole | {"result": whole["result"] | {"x": 7}}))
        case "provenance edited":
            path.write_text(canonical(whole | {"provenance": {}}))
        case "entry missing":
            path.write_text(canonical({k: v for k, v in whole.items() if k != "provenance"}))
        case "entry too many":
            path.write_text(canonical(whole | {"note": "good"}))
        case "another config":
            path.write_text(other.read_text())
        case "config that is none":
            path.write_text(canonical(whole | {"config": [1]}))


@pytest.mark.parametrize(
    "kind",
    [
        "empty",
        "cut short",
        "zeros",
        "no text",
        "no mapping",
        "result edited",
        "provenance edited",
        "entry missing",
        "entry too many",
        "another config",
        "config that is none",
    ],
)
def test_a_damaged_record_is_noticed_kept_aside_and_its_run_repeated(kind, runs, tmp_path, capsys):
    first = run_sweep(runs.run, FOUR[:3], tmp_path / "sweep", progress=False)
    path = tmp_path / "sweep" / f"{config_key(FOUR[1])}.json"
    damage(path, kind)
    broken = path.read_bytes()
    with pytest.raises(RecordError, match=f"(?s)1 damaged of 3 .*{path.name}"):
        load_records(path.parent)
    capsys.readouterr()
    again = run_sweep(runs.run, FOUR[:3], path.parent, progress=False)
    assert path.name in capsys.readouterr().err
    assert begun() == [0, 1, 2, 1]
    assert results(again) == results(first)
    assert path.with_name(path.name + ".damaged").read_bytes() == broken
    assert len(load_records(path.parent)) == 3


def test_unfinished_files_are_removed_and_others_left(runs, tmp_path, capsys):
    (tmp_path / f".{'0' * 16}.tmp").write_text("{")
    (tmp_path / ".mine.tmp").touch()
    (tmp_path / "notes.json").touch()
    run_sweep(runs.run, FOUR[:1], tmp_path, progress=False)
    assert "Removed 1 unfinished" in capsys.readouterr().err
    assert not (tmp_path / f".{'0' * 16}.tmp").exists()
    assert (tmp_path / ".mine.tmp").exists()
    assert len(load_records(tmp_path)) == 1


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_writer_that_is_stopped_leaves_the_old_record(step, tmp_path, monkeypatch):
    path = write_record(tmp_path, make_record({"x": 1}, {"loss": 1.0}, {}))
    old = path.read_bytes()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(*((os, "fsync") if step == "fsync" else (Path, "replace")), stop)
    with pytest.raises(KeyboardInterrupt):
        write_record(tmp_path, make_record({"x": 1}, {"loss": 2.0}, {}))
    assert path.read_bytes() == old


def test_a_failing_run_stops_no_other_and_all_failures_are_told_at_the_end(runs, tmp_path, capsys):
    fates = ["raises", None, "exits", "returns a tensor", None]
    configs = [{"x": x, "fate": fate} for x, fate in enumerate(fates)]
    with pytest.raises(SweepError) as caught:
        run_sweep(runs.run, configs, tmp_path / "sweep", progress=False)
    assert begun() == [0, 1, 2, 3, 4]
    assert [failure.config["x"] for failure in caught.value.failures] == [0, 2, 3]
    message = str(caught.value)
    assert message.startswith("3 of 5 runs failed")
    assert canonical(configs[0]) + ": ValueError: no luck with 0\n" in message
    assert "SystemExit: enough" in message
    assert "result['loss'][1] is of type Tensor" in message
    assert "run the same command again" in message
    assert "Traceback" in capsys.readouterr().err
    assert [record["config"]["x"] for record in load_records(tmp_path / "sweep")] in (
        [1, 4],
        [4, 1],
    )


def test_what_a_run_returns_must_be_a_mapping(tmp_path):
    with pytest.raises(SweepError, match="must return a dict, not list"):
        run_sweep(lambda config: [1], FOUR[:1], tmp_path, progress=False)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"lr": math.nan}, "config\\['lr'\\] is nan: expected finite"),
        ({"betas": [0.9, math.inf]}, "expected finite"),
        ({"model": {"depth": 6}}, "configs are flat"),
        ({"lr": np.float32(0.1)}, "of type float32"),
        ({1: 2}, "names in JSON are text"),
        ([1], "a config is a mapping"),
    ],
)
def test_a_config_that_cannot_be_found_again_is_refused_before_any_run(
    config, complaint, runs, tmp_path
):
    with pytest.raises((TypeError, ValueError), match=complaint):
        run_sweep(runs.run, [FOUR[0], config], tmp_path, progress=False)
    assert begun() == []


def test_the_key_depends_on_names_and_values_alone():
    assert config_key({"a": 1, "b": (2, 3)}) == config_key({"b": [2, 3], "a": 1})
    different = [{"a": 1}, {"a": 1.0}, {"a": True}, {"a": "1"}, {"b": 1}, {}, {"a": None}]
    assert len({config_key(config) for config in different}) == len(different)
    # SHA-256 of {"a":1}, from another implementation: a key must never change
    assert config_key({"a": 1}) == "015abd7f5cc57a2d"


def test_a_second_sweep_in_the_same_folder_is_kept_out(runs, tmp_path):
    def sweep_within(config):
        return run_sweep(runs.run, FOUR[:1], tmp_path, progress=False)[0]

    with pytest.raises(SweepError, match="another sweep is writing into"):
        run_sweep(sweep_within, FOUR[:1], tmp_path, progress=False)
    assert begun() == []


def test_the_bar_counts_what_was_done_before(runs, tmp_path, capsys):
    run_sweep(runs.run, FOUR[:3], tmp_path, progress=False)
    assert capsys.readouterr().err == ""
    run_sweep(runs.run, FOUR, tmp_path)
    shown = capsys.readouterr()
    assert "3/4" in shown.err
    assert "4/4" in shown.err
    assert shown.out == ""


def test_runs_in_threads_of_one_process_do_not_meet(runs, tmp_path):
    alone = run_sweep(runs.run, FOUR, tmp_path / "alone", progress=False)
    with joblib.parallel_config(backend="threading", n_jobs=4):
        slow = [config | {"seconds": 0.02} for config in FOUR]
        run_sweep(runs.run, slow, tmp_path / "slow", workers=None, progress=False)
        together = run_sweep(runs.run, FOUR, tmp_path / "together", workers=None, progress=False)
    assert results(together) == results(alone)
    running = threading.Lock()

    def exclusive(config):
        assert running.acquire(blocking=False), "two at once"
        time.sleep(0.02)
        running.release()
        return {}

    with joblib.parallel_config(backend="threading", n_jobs=4):
        run_sweep(exclusive, FOUR, tmp_path / "exclusive", workers=None, progress=False)


# --- processes that are killed --------------------------------------------------------------------


@pytest.fixture
def halfway(runs: ModuleType, tmp_path: Path) -> Iterator[subprocess.Popen]:
    """The sweep in a process of its own, when 0 and 1 are recorded and two others begun."""
    (tmp_path / "script.py").write_text(SCRIPT)
    folder = tmp_path / "sweep"
    with subprocess.Popen(
        [sys.executable, "script.py", str(folder)],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            wait_until(
                lambda: len(list(folder.glob("*.json"))) == 2 and len(set(begun())) == 4,
                "two records and two runs in flight",
            )
            yield process
        finally:
            process.kill()


def check_resumes(runs: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Complete what the script began, without the long waits."""
    kept = {path.name: path.read_bytes() for path in folder.glob("*.json")}
    assert len(load_records(folder)) == 2
    before = begun()
    configs = [{"x": x, "seconds": 0.05 if x < 2 else 600} for x in range(6)]
    monkeypatch.setattr(runs.time, "sleep", lambda seconds: None)
    records = run_sweep(runs.run, configs, folder, progress=False)
    assert [record["result"]["x"] for record in records] == list(range(6))
    assert begun()[len(before) :] == [2, 3, 4, 5]
    assert {name: (folder / name).read_bytes() for name in kept} == kept


def test_sigkill_of_the_whole_sweep_loses_no_finished_run(halfway, runs, tmp_path, monkeypatch):
    halfway.kill()
    assert halfway.wait(DEADLINE) == -signal.SIGKILL
    wait_until(lambda: all(gone(pid) for _, pid in notes()), "the end of the orphaned workers")
    (tmp_path / "sweep" / f".{config_key(FOUR[2])}.tmp").write_text('{"config":')
    check_resumes(runs, tmp_path / "sweep", monkeypatch)


def test_an_interrupt_from_the_keyboard_ends_all_processes_and_says_how_to_go_on(
    halfway, runs, tmp_path, monkeypatch
):
    os.killpg(halfway.pid, signal.SIGINT)  # as a terminal does it: to the workers, too
    _, shown = halfway.communicate(timeout=DEADLINE)
    assert halfway.returncode == -signal.SIGINT
    assert "Stopped (KeyboardInterrupt); 2 of 6 runs are recorded" in shown
    assert "run the same command again" in shown
    wait_until(lambda: all(gone(pid) for _, pid in notes()), "the end of the workers")
    check_resumes(runs, tmp_path / "sweep", monkeypatch)


@pytest.mark.usefixtures("in_time")
def test_two_workers_of_which_some_are_killed_give_what_one_gives(runs, tmp_path, capsys):
    fates = ["dies", "dies once", None, None, "raises", None]
    configs = [{"x": x, "fate": fate} for x, fate in enumerate(fates)]
    with pytest.raises(SweepError) as caught:
        run_sweep(runs.run, configs, tmp_path / "two", workers=2, progress=False)
    assert [failure.config["x"] for failure in caught.value.failures] == [0, 4]
    assert "its process died again when it ran alone" in str(caught.value.failures[0])
    assert "A worker died." in capsys.readouterr().err
    # Alone at the end, and once or twice before: killed itself, or in flight beside the other
    assert begun().count(0) in (2, 3)
    processes = {pid for _, pid in notes()}
    assert os.getpid() not in processes
    fine = [configs[i] for i in (1, 2, 3, 5)]
    two = run_sweep(runs.run, fine, tmp_path / "two", workers=2, progress=False)
    assert {pid for _, pid in notes()} == processes
    one = run_sweep(runs.run, fine, tmp_path / "one", progress=False)
    assert results(two) == results(one)


@pytest.mark.usefixtures("in_time")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_dask_cluster_gives_the_same_even_if_a_run_kills_its_workers(runs, tmp_path):
    fine = FOUR[1:]
    configs = [*fine, {"x": 0, "fate": "dies"}]
    with (
        # 0: how many more workers the cluster offers to a run whose worker died
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
        joblib.parallel_config(backend="dask"),
    ):
        pids = set(client.run(os.getpid).values())
        cluster_records = run_sweep(runs.run, fine, tmp_path / "dask", progress=False)
        assert {pid for _, pid in notes()} == pids
        with pytest.raises(SweepError) as caught:
            run_sweep(runs.run, configs, tmp_path / "dask", progress=False)
    assert [failure.config["x"] for failure in caught.value.failures] == [0]
    assert begun()[3:] == [0, 0]
    local = run_sweep(runs.run, fine, tmp_path / "local", progress=False)
    assert results(cluster_records) == results(local)


# --- one file for all -----------------------------------------------------------------------------

numbers = st.floats(allow_nan=True) | st.integers() | st.text() | st.booleans() | st.none()
values = st.recursive(
    numbers,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
mappings = st.dictionaries(st.text(max_size=5), values, max_size=4)
finite = st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.text(max_size=4)
record_lists = st.lists(
    st.builds(
        make_record,
        st.dictionaries(st.text(max_size=5), finite, max_size=4),
        mappings,
        st.dictionaries(st.sampled_from("abc"), st.sampled_from([0, 0.0, {"d": 1}, "x\u2028y"])),
    ),
    max_size=5,
    unique_by=lambda record: config_key(record["config"]),
)


@given(records=record_lists)
@settings(max_examples=30, deadline=None)
def test_packed_records_come_back_whole(records, tmp_path_factory):
    path = tmp_path_factory.mktemp("packed") / "sweep.txt"
    pack(records, path)
    back = unpack(path)
    ordered = sorted(records, key=lambda record: config_key(record["config"]))
    assert canonical(back) == canonical(ordered)
    assert len(path.read_bytes().split(b"\n")) == len(records) + 2
    first = path.read_bytes()
    pack(reversed(back), path)
    assert path.read_bytes() == first


def three_records() -> list[dict]:
    shared = {"commit": "c", "machine": {"cores": 2}}
    return [
        make_record(
            {"x": x, "lr": 0.123456}, {"loss": [x / 3, 10], "e": 1e-9 / 7}, shared | {"n": x}
        )
        for x in range(3)
    ]


def test_packing_rounds_the_results_alone_and_names_what_is_shared_once(tmp_path):
    pack(three_records(), tmp_path / "packed", digits=3)
    text = (tmp_path / "packed").read_text()
    assert text.count('"commit"') == 1
    assert '"digits":3' in text.splitlines()[0]
    (one,) = (record for record in unpack(tmp_path / "packed") if record["config"]["x"] == 1)
    assert one["config"] == {"x": 1, "lr": 0.123456}
    assert one["result"] == {"loss": [0.333, 10], "e": 1.43e-10}
    assert one["provenance"] == {"commit": "c", "machine": {"cores": 2}, "n": 1}


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[:-1],
        lambda lines: [*lines[:2], lines[1], lines[3]],
        lambda lines: [lines[0], *lines[:0:-1]],
        lambda lines: [lines[0].replace('"c"', '"d"'), *lines[1:]],
        lambda lines: [lines[0], lines[1].replace("0.123456", "0.123457"), *lines[2:]],
        lambda lines: [lines[0], lines[1][:40], *lines[2:]],
        lambda lines: lines[1:],
        lambda lines: [],
    ],
)
def test_a_damaged_pack_is_refused(change, tmp_path):
    path = tmp_path / "packed"
    pack(three_records(), path)
    unpack(path)
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    with pytest.raises(RecordError, match="packed"):
        unpack(path)


def test_packing_refuses_two_results_of_one_config(tmp_path):
    two = [make_record({"x": 1}, {"loss": loss}, {}) for loss in (1, 2)]
    with pytest.raises(ValueError, match="two different records"):
        pack(two, tmp_path / "packed")
    assert not (tmp_path / "packed").exists()
