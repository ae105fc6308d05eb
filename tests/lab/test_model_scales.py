"""The probe finds what a model does, and the record says what the probe finds."""

import json
import math
import subprocess
import sys
from dataclasses import fields

import pytest
import torch

from attention_scaling import yarn_attention_factor
from scaling_book.lab import model_scales
from scaling_book.lab.architectures import ARCHITECTURES
from scaling_book.lab.model_scales import (
    RECORD,
    ROUNDING,
    ModelScale,
    Probe,
    main,
    probe,
    read_record,
)

torch.set_num_threads(1)
RECORDED = {line.name: line for line in read_record()} if RECORD.is_file() else {}
BY_NAME = {architecture.name: architecture for architecture in ARCHITECTURES}
# One for each layout, each kind of input, each kind of normalisation, and each rule.
SAMPLE = (
    "GPT-2",
    "BLOOM",
    "OPT",
    "Whisper",
    "Qwen3",
    "gpt-oss",
    "Llama 4, RoPE",
    "Llama 4, NoPE",
    "DeepSeek-V3, YaRN",
    "Gemma 2, 27B",
    "Granite Docling",
    "Inkling",
    "T5",
    "Swin v2",
)
# What the classes say in their code, as (factor at d_k, q and k normalised).
WRITTEN = {
    "GPT-2": (64**-0.5, False),
    "BLOOM": (8**-0.5, False),
    "Qwen3": (128**-0.5, True),
    "Gemma": (256**-0.5, False),
    # cosine and sine carry YaRN's attention factor, so q·k carries its square
    "gpt-oss": (64**-0.5 * yarn_attention_factor(32.0) ** 2, False),
    "Llama 4, NoPE": (128**-0.5 * (1 + 0.1 * math.log(2)), False),
    "DeepSeek-V3": (192**-0.5, False),
    "DeepSeek-V3, YaRN": (192**-0.5 * (0.1 * math.log(40) + 1) ** 2, False),
    "Gemma 2, 27B": (144**-0.5, False),
    "Granite Docling": (0.015625, False),
    "Inkling": (1 / 128, True),
    "T5": (1.0, False),
    "GPT-Neo": (1.0, False),
    "Gemma 4": (1.0, True),
    "Swin v2": (10.0, True),
}


@pytest.mark.parametrize("name", SAMPLE)
def test_the_record_says_what_the_probe_finds(name):
    found = probe(BY_NAME[name], BY_NAME[name].head_dim)
    line = RECORDED[name]
    assert found.scale == pytest.approx(line.scale, rel=ROUNDING)
    assert found.size_power == pytest.approx(line.size_power, abs=1e-3)
    assert found.misfit < ROUNDING


def test_another_seed_finds_the_same():
    assert probe(BY_NAME["Phi-3"], 96, seed=5).scale == pytest.approx(96**-0.5, rel=ROUNDING)


@pytest.mark.parametrize("name", WRITTEN)
def test_factors_are_those_of_the_code(name):
    scale, normalised = WRITTEN[name]
    assert RECORDED[name].scale == pytest.approx(scale, rel=ROUNDING)
    assert RECORDED[name].normalised is normalised


def test_the_probe_watches_the_model_and_not_its_configuration(monkeypatch):
    build = model_scales.build

    def tampered(architecture, head_dim, seed):
        model = build(architecture, head_dim, seed)
        model.layers[0].self_attn.scaling *= 3  # the configuration knows nothing of this
        return model

    monkeypatch.setattr(model_scales, "build", tampered)
    assert probe(BY_NAME["LLaMA"], 128).scale == pytest.approx(3 * 128**-0.5, rel=ROUNDING)


def test_a_factor_that_is_none_shows_as_a_misfit(monkeypatch):
    build = model_scales.build

    def capped(architecture, head_dim, seed):
        model = build(architecture, head_dim, seed)
        model.config.attn_logit_softcapping = 0.1  # bends the line
        for layer in model.layers:
            layer.self_attn.attn_logit_softcapping = 0.1
        return model

    monkeypatch.setattr(model_scales, "build", capped)
    assert probe(BY_NAME["Gemma 2"], 256).misfit > 100 * ROUNDING


def test_the_record_is_whole():
    content = json.loads(RECORD.read_text("utf8"))
    assert content.keys() == {"provenance", "models"}
    assert content["provenance"].keys() == {
        "command",
        "date",
        "seed",
        "transformers",
        "torch",
        "python",
    }
    assert content["provenance"]["seed"] == model_scales.SEED
    assert [line["name"] for line in content["models"]] == list(BY_NAME)
    for line in content["models"]:
        assert line.keys() == {field.name for field in fields(ModelScale)}
        assert math.isfinite(line["scale"])
        assert 0 < line["misfit"] < ROUNDING
        assert min(abs(line["size_power"] - power) for power in (0, 2)) < 0.01
        assert line["settings"] == BY_NAME[line["name"]].settings


def test_rules_are_told_in_symbols():
    def rule(scale, scale_at_double, head_dim=64):
        return ModelScale("", "", head_dim, 64, scale, scale_at_double, 0, 2).rule

    assert rule(1 / 8, 128**-0.5) == "1/√d_k"
    assert rule(1 / 64, 1 / 128) == "1/d_k"
    assert rule(1 / 64, 1 / 64) == "1/64"
    assert rule(1.0, 1.0) == "1"
    assert rule(10.0, 10.0) == "10"
    assert rule(1.8739 / 8, 1.8739 / 128**0.5) == "1.874/√d_k"
    assert rule(0.2, 0.1 * 2**0.75) == "d_k^-0.25"


def test_a_missing_record_says_how_to_make_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"python -m scaling_book.lab.model_scales"):
        read_record(tmp_path / "none.json")


def test_reading_the_record_needs_no_transformers():
    code = (
        "import sys\n"
        "from scaling_book.lab.model_scales import read_record\n"
        "print(len(read_record()), 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(ARCHITECTURES)), "False"]


def test_the_command_writes_a_record(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(model_scales, "ARCHITECTURES", (BY_NAME["BERT"],))
    monkeypatch.setattr(model_scales, "probe", lambda _, d: Probe(d**-0.5, 1e-9, 2.0))
    assert main(["--out", str(tmp_path / "data" / "record.json")]) == 0
    assert "[1/1] BERT" in capsys.readouterr().out
    (line,) = read_record(tmp_path / "data" / "record.json")
    assert (line.model_class, line.rule, line.normalised) == ("BertModel", "1/√d_k", False)
    assert line.times_root == pytest.approx(1.0)
