"""The record of the comparison of speed: made in full, gone on with, and read."""

import json

import numpy as np
import pytest

from scaling_book.lab import attention_speed
from scaling_book.lab.attention_speed import (
    IMPLEMENTATIONS,
    RECORD,
    Setting,
    collect,
    ratios_to_explicit,
    read_record,
)

NAMES = ("explicit", "online", "fused")


def check(record: dict) -> None:
    """Every field that a reader relies on, and ratios computed a second way."""
    provenance, setting = record["provenance"], record["setting"]
    assert provenance["command"] == "python -m scaling_book.lab.attention_speed"
    assert provenance["threads"] == 1
    assert {"date", "torch", "python", "processor", "load_average"} <= provenance.keys()
    assert [row["length"] for row in record["results"]] == setting["lengths"]
    for row in record["results"]:
        assert tuple(row["seconds"]) == tuple(row["peak_bytes"]) == NAMES
        for name in NAMES:
            for clock in ("processor", "wall"):
                seconds = row["seconds"][name][clock]
                assert len(seconds) == setting["processes"] * setting["repetitions"]
                assert min(seconds) > 0
            assert len(row["peak_bytes"][name]) == setting["memory_repetitions"]
            assert min(row["peak_bytes"][name]) > 0
        for name, spreads in record["ratios_to_explicit"]["time"].items():
            own = np.array(row["seconds"][name]["processor"])
            expected = np.array(row["seconds"]["explicit"]["processor"]) / own
            spread = spreads[str(row["length"])]
            assert spread["median"] == pytest.approx(np.median(expected))
            assert spread["low"] <= spread["median"] <= spread["high"]


def test_the_record_of_the_book():
    record = read_record()
    check(record)
    assert record["setting"] == attention_speed.plain(Setting())
    for quantity, rows in record["ratios_to_explicit"].items():
        for name, spreads in ratios_to_explicit(record, quantity).items():
            for length, spread in spreads.items():
                assert vars(spread) == pytest.approx(rows[name][str(length)])
        assert {spread["median"] for spread in rows["explicit"].values()} == {1.0}


def test_the_record_is_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert RECORD.is_absolute()
    assert read_record()["results"]
    with pytest.raises(FileNotFoundError, match=r"python -m scaling_book\.lab\.attention_speed"):
        read_record(tmp_path / "none.json")


def test_the_command_measures_in_processes_of_their_own(tmp_path, capsys):
    pytest.importorskip("resource")
    out = tmp_path / "new" / "speed.json"
    options = ["--lengths", "32", "--heads", "1", "--processes", "1", "--repetitions", "3"]
    options += ["--memory-repetitions", "1"]
    assert attention_speed.main([*options, "--out", str(out)]) == 0
    check(json.loads(out.read_text("utf8")))
    assert [path.name for path in out.parent.iterdir()] == ["speed.json"]
    printed = capsys.readouterr().out
    assert "[4/4] memory, T = 32, fused" in printed
    assert "time    online" in printed


def test_memory_is_that_of_the_logits_and_of_nothing_before():
    pytest.importorskip("resource")
    setting = Setting(lengths=(1024,), heads=1, memory_repetitions=1)
    job = {"kind": "memory", "length": 1024, "name": "explicit", "repetition": 0}
    rise = attention_speed.in_new_process(setting, job)
    logits = 4 * 1024**2
    # logits, exponentials and weights, and what their making needs; not the 200 MB of torch
    assert 2 * logits < rise < 6 * logits


def fake(done: list[dict], stop_after: int | None = None):
    def measure(setting: Setting, job: dict):
        if len(done) == stop_after:
            raise KeyboardInterrupt
        done.append(job)
        if job["kind"] == "memory":
            return 100 * (1 + list(IMPLEMENTATIONS).index(job["name"]))
        return {
            name: {clock: [1.0 + place] * setting.repetitions for clock in ("processor", "wall")}
            for place, name in enumerate(IMPLEMENTATIONS)
        }

    return measure


def test_an_interrupted_run_goes_on(tmp_path):
    setting = Setting(lengths=(8, 16), processes=3, repetitions=2, memory_repetitions=2)
    out, done, lines = tmp_path / "speed.json", [], []
    with pytest.raises(KeyboardInterrupt):
        collect(setting, out, measure=fake(done, stop_after=5), say=lines.append)
    assert not out.exists()
    record = collect(setting, out, measure=fake(done), say=lines.append)
    assert len(done) == len(attention_speed.jobs(setting)) == 2 * 3 + 2 * 2 * 3
    assert "5 of 18 measurements are in speed.partial.json already" in lines
    check(record)
    assert ratios_to_explicit(record, "time")["fused"][16].median == pytest.approx(1 / 3)
    assert ratios_to_explicit(record, "memory")["online"][8].high == pytest.approx(1 / 2)
    assert [path.name for path in tmp_path.iterdir()] == ["speed.json"]


def test_a_run_with_another_setting_begins_anew(tmp_path):
    out = tmp_path / "speed.json"
    with pytest.raises(KeyboardInterrupt):
        collect(Setting(lengths=(8,)), out, measure=fake([], stop_after=2), say=str)
    done = []
    collect(Setting(lengths=(16,)), out, measure=fake(done), say=str)
    assert [job["length"] for job in done] == [16] * (5 + 3 * 3)


def test_an_unknown_quantity_is_refused():
    with pytest.raises(ValueError, match="'time' or 'memory', got 'speed'"):
        ratios_to_explicit({"results": []}, "speed")
