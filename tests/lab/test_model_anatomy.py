"""The probes find what a model does and notice when it is changed; the record says the same."""

import json
import re
import subprocess
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
import torch

from scaling_book.lab import model_anatomy
from scaling_book.lab.architectures import ARCHITECTURES, FURTHER
from scaling_book.lab.attention_probe import AttentionProbe, probe_attention
from scaling_book.lab.layer_probe import LayerProbe, probe_layer
from scaling_book.lab.model_anatomy import (
    COLUMNS,
    MARKS,
    RECORD,
    dissect,
    main,
    read_record,
    read_reported,
    table,
)
from scaling_book.lab.model_scales import build, probe

torch.set_num_threads(1)
ROOT = Path(__file__).parents[2]
RECORDED = {line.name: line for line in read_record()} if RECORD.is_file() else {}
BY_NAME = {architecture.name: architecture for architecture in ARCHITECTURES + FURTHER}
# One for each placement, each kind of QK-norm, of positions, of limits, and each layout.
SAMPLE = (
    "GPT-2",
    "BERT",
    "Whisper",
    "OLMo 2",
    "gpt-oss",
    "Llama 4, RoPE",
    "Llama 4, NoPE",
    "Gemma 2, 27B",
    "Inkling",
    "T5",
    "Swin v2",
    "Falcon, ALiBi",
    "Cohere 2, global",
    "Persimmon",
    "MiniCPM3",
    "Nemotron",
)
# What the classes say in their code.
WRITTEN = {
    "GPT-J": ("LayerNorm", "x + f(N(x)) + g(N(x))", "1/√d_k", "–", "–", "RoPE 1/4"),
    "BERT": ("LayerNorm", "N(x + f(x))", "1/√d_k", "–", "–", "x + P"),
    "Qwen3": ("RMSNorm", "x + f(N(x))", "1/√d_k", "RMSNorm, d_k, R(N(q))", "–", "RoPE"),
    "OLMo": ("LayerNorm, w = 1", "x + f(N(x))", "1/√d_k", "–", "–", "RoPE"),
    "OLMo 2": ("RMSNorm", "x + N(f(x))", "1/√d_k", "RMSNorm, h d_k, R(N(q))", "–", "RoPE"),
    "Gemma 2": ("RMSNorm, 1 + w", "x + N(f(N(x)))", "1/16", "–", "c = 50", "RoPE"),
    "gpt-oss": ("RMSNorm", "x + f(N(x))", "1.813/√d_k", "–", "Σp < 1", "RoPE"),
    "Swin v2": ("LayerNorm", "x + N(f(x))", "τ, τ₀ = 10", "L2, d_k", "–", "b(i − j)"),
    "Persimmon": (
        "LayerNorm",
        "x + f(N(x))",
        "1/√d_k",
        "LayerNorm, d_k, R(N(q))",
        "–",
        "RoPE 1/2",
    ),
    "MPT": ("LayerNorm", "x + f(N(x))", "1/√d_k", "–", "–", "ALiBi"),
    "DeepSeek-V3": ("RMSNorm", "x + f(N(x))", "1/√d_k", "–", "–", "RoPE 1/3"),
    "Nemotron": ("LayerNorm, 1 + w", "x + f(N(x))", "1/√d_k", "–", "–", "RoPE 1/2"),
}


@pytest.mark.parametrize("name", SAMPLE)
def test_the_record_says_what_the_probes_find(name):
    found, line = dissect(BY_NAME[name]), RECORDED[name]
    assert found.cells == line.cells
    assert found.attention.slopes == pytest.approx(line.attention.slopes, rel=1e-4)
    assert found.layer.feed_forward_alike is line.layer.feed_forward_alike


@pytest.mark.parametrize("name", WRITTEN)
def test_the_table_says_what_the_code_says(name):
    assert RECORDED[name].cells == WRITTEN[name]


# ---------------------------------------------------------------------------------------- mutants


def small(name):
    architecture = BY_NAME[name]
    model = build(architecture, architecture.head_dim)
    return architecture, model


def rms(x):
    return x * (x.square().mean(dim=-1, keepdim=True) + 1e-9).rsqrt()


def test_a_layer_norm_in_the_place_of_an_rms_norm_is_seen():
    architecture, model = small("LLaMA")
    norm = torch.nn.LayerNorm(256, dtype=torch.float64)
    model.layers[0].input_layernorm = norm
    found = probe_layer(model, architecture)
    assert (found.norm, found.placement, found.bias) == ("LayerNorm", "x + f(N(x))", True)


def test_a_missing_normalisation_is_seen():
    architecture, model = small("LLaMA")
    model.layers[0].input_layernorm = torch.nn.Identity()
    found = probe_layer(model, architecture)
    assert (found.norm, found.placement) == ("–", "x + f(x)")
    assert found.gain_offset is None
    assert not found.feed_forward_alike  # its own normalisation is still there


def test_a_normalisation_at_the_end_of_a_branch_is_seen():
    architecture, model = small("LLaMA")
    model.layers[0].self_attn.register_forward_hook(lambda m, a, out: (rms(out[0]), *out[1:]))
    assert probe_layer(model, architecture).placement == "x + N(f(N(x)))"


def test_a_normalised_stream_is_seen():
    architecture, model = small("GPT-2")
    model.h[0].register_forward_hook(lambda m, a, out: rms(out))
    assert probe_layer(model, architecture).powers == (0, 1, 0)


def test_another_gain_is_seen():
    architecture, model = small("LLaMA")
    norm = model.layers[0].input_layernorm
    norm.weight.data.zero_()
    norm.forward = lambda x: (1 + norm.weight) * rms(x)
    assert probe_layer(model, architecture).gain_offset == pytest.approx(1.0)


def test_something_that_is_no_normalisation_shows_as_a_misfit():
    architecture, model = small("LLaMA")
    model.layers[0].input_layernorm.forward = lambda x: x.abs().sqrt()
    assert probe_layer(model, architecture).misfit > 0.1


def attention_of(name, model, normalised=False, scale=None):
    architecture = BY_NAME[name]
    return probe_attention(
        architecture, scale or RECORDED[name].scale.scale, normalised, model=model
    )


def test_another_cap_is_seen():
    _, model = small("Gemma 2")
    model.layers[0].self_attn.attn_logit_softcapping = 20.0
    found = attention_of("Gemma 2", model)
    assert found.cap == pytest.approx(20.0, rel=1e-4)
    assert found.cap_misfit < 1e-4


def test_a_hard_limit_is_no_soft_cap(monkeypatch):
    from transformers.models.gemma2 import modeling_gemma2

    class HardTorch:
        tanh = staticmethod(lambda x: x.clamp(-0.5, 0.5))

        def __getattr__(self, name):
            return getattr(torch, name)

    _, model = small("Gemma 2")
    monkeypatch.setattr(modeling_gemma2, "torch", HardTorch())
    assert attention_of("Gemma 2", model).cap_misfit > 0.01


def test_a_norm_over_all_heads_is_told_from_one_per_head():
    _, model = small("OLMo 2")
    attention = model.layers[0].self_attn
    for norm in (attention.q_norm, attention.k_norm):
        norm.forward = lambda x: rms(x.view(*x.shape[:-1], 2, 128)).flatten(-2)
    assert attention_of("OLMo 2", model, normalised=True).qk_norm == "head"


def test_a_gain_after_the_rotation_is_seen(monkeypatch):
    from transformers.models.qwen3 import modeling_qwen3

    _, model = small("Qwen3")
    attention = model.layers[0].self_attn
    for norm in (attention.q_norm, attention.k_norm):
        norm.forward = rms
    rotate = modeling_qwen3.apply_rotary_pos_emb

    def rotated_first(q, k, cos, sin, **more):
        q, k = rotate(q, k, cos, sin, **more)
        return q * attention.q_norm.weight, k * attention.k_norm.weight

    monkeypatch.setattr(modeling_qwen3, "apply_rotary_pos_emb", rotated_first)
    found = attention_of("Qwen3", model, normalised=True)
    assert found.norm_first is False
    assert RECORDED["Qwen3"].attention.norm_first is True


def test_a_rotation_of_keys_alone_is_not_relative(monkeypatch):
    from transformers.models.llama import modeling_llama

    _, model = small("LLaMA")
    rotate = modeling_llama.apply_rotary_pos_emb
    monkeypatch.setattr(
        modeling_llama,
        "apply_rotary_pos_emb",
        lambda q, k, cos, sin, **more: (q, rotate(q, k, cos, sin, **more)[1]),
    )
    found = attention_of("LLaMA", model)
    assert (found.rotated, found.relative) == (1.0, False)


def test_without_its_rotation_a_model_knows_no_positions(monkeypatch):
    from transformers.models.llama import modeling_llama

    _, model = small("LLaMA")
    monkeypatch.setattr(
        modeling_llama, "apply_rotary_pos_emb", lambda q, k, cos, sin, **more: (q, k)
    )
    found = attention_of("LLaMA", model)
    assert (found.rotated, found.bias, found.embedding) == (0.0, None, None)


def test_a_table_of_biases_that_is_zero_is_none():
    _, model = small("T5")
    model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.data.zero_()
    assert attention_of("T5", model).bias is None


def test_a_sink_that_takes_nothing_is_none():
    _, model = small("gpt-oss")
    model.layers[0].self_attn.sinks.data.fill_(-1e4)
    assert attention_of("gpt-oss", model).sink == pytest.approx(0.0, abs=1e-12)


def test_positions_that_are_all_the_same_are_none():
    _, model = small("GPT-2")
    model.wpe.weight.data.zero_()
    assert attention_of("GPT-2", model).embedding is None


def test_a_scale_that_can_be_learned_is_seen():
    _, model = small("LLaMA")
    attention = model.layers[0].self_attn
    attention.temperature = torch.nn.Parameter(torch.tensor(attention.scaling))

    def learned(*anything):
        attention.scaling = float(attention.temperature.detach())

    attention.register_forward_pre_hook(learned)
    assert attention_of("LLaMA", model).learned_scale
    assert not RECORDED["LLaMA"].attention.learned_scale


def test_the_two_paths_of_falcon_differ_by_the_bias():
    """The eager path adds it twice, the fused one once; the record has both."""
    line = RECORDED["Falcon, ALiBi"]
    assert line.attention.slopes == pytest.approx([2 / 16 / 8, 2 / 256 / 8], rel=1e-4)
    assert line.sdpa_difference > 1e-5
    others = [m.sdpa_difference for m in RECORDED.values() if m.sdpa_difference is not None]
    assert sorted(others)[-2] < 1e-6


def test_the_factor_is_not_asked_with_another_width():
    other = replace(BY_NAME["LLaMA"], options={**BY_NAME["LLaMA"].options, "head_dim": 128})
    with pytest.raises(ValueError, match="d_k is 128, not 64"):
        probe(other, 64)


# --------------------------------------------------------------------------------------- the record


def test_the_record_is_whole():
    content = json.loads(RECORD.read_text("utf8"))
    assert content["provenance"]["command"] == model_anatomy.COMMAND
    assert [line["scale"]["name"] for line in content["models"]] == list(BY_NAME)
    for line in content["models"]:
        assert line["layer"].keys() == {field.name for field in fields(LayerProbe)}
        assert line["attention"].keys() == {field.name for field in fields(AttentionProbe)}
        for power in ("input_power", "branch_power", "output_power", "feed_forward_power"):
            assert line["layer"][power] == pytest.approx(round(line["layer"][power]), abs=1e-3)
        assert line["layer"]["misfit"] < 0.01
        assert line["attention"]["cap_misfit"] < 1e-5
        shift = line["layer"]["shift"]
        assert shift < 1e-5 or shift > 0.3


def test_every_row_fills_every_column():
    rows = [*read_record(), *read_reported()]
    lines = table(rows, "#").splitlines()
    assert len(lines) == len(rows) + 2
    assert {line.count("|") for line in lines} == {len(COLUMNS) + 2}
    assert all(cell for row in rows for cell in row.cells)


def test_what_is_reported_says_where_it_was_read():
    keys = re.findall(r"^@\w+\{([^,]+),", (ROOT / "references.bib").read_text("utf8"), re.M)
    for model in read_reported():
        assert len(model.facts) == len(COLUMNS)
        for fact in model.facts:
            assert fact["status"] in MARKS
            assert fact.get("cite", keys[0]) in keys
            wanted = {"value", "status", "cite", "where", "quote", "seen"}
            if fact["status"] == "read":
                assert fact.keys() == wanted
                assert len(fact["quote"]) <= 200
            else:
                assert not {"quote", "seen"} & fact.keys()
            assert ("value" in fact) is (fact["status"] != "unknown")


def test_reading_the_record_needs_no_transformers():
    code = (
        "import sys\n"
        "from scaling_book.lab.model_anatomy import read_record\n"
        "print(len(read_record()), 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(BY_NAME)), "False"]


def test_a_missing_record_says_how_to_make_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"python -m scaling_book.lab.model_anatomy"):
        read_record(tmp_path / "none.json")


def test_the_command_writes_a_record(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(model_anatomy, "ARCHITECTURES", (BY_NAME["BERT"],))
    monkeypatch.setattr(model_anatomy, "FURTHER", ())
    monkeypatch.setattr(model_anatomy, "dissect", lambda architecture: RECORDED[architecture.name])
    out = tmp_path / "data" / "record.json"
    assert main(["--out", str(out)]) == 0
    assert "[1/1] BERT | LayerNorm" in capsys.readouterr().out
    assert asdict(read_record(out)[0]) == asdict(RECORDED["BERT"])
