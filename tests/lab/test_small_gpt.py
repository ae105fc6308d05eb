"""The small GPT: causal, initialised as it says, and its attention is that of the library."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_scaling import AttentionProbe, apply_rotary, scaled_dot_product_attention
from scaling_book.lab.small_gpt import INITS, NORMS, POSITIONS, SCALES, GPTSetting, SmallGPT

torch.set_num_threads(1)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def model(seed=0, **choices):
    setting = GPTSetting(symbols=20, length=12, layers=2, heads=2, head_dim=8, width=24, **choices)
    return SmallGPT(setting, generator=generator(seed))


choices = st.fixed_dictionaries(
    {
        "scale": st.sampled_from(SCALES),
        "init": st.sampled_from(INITS),
        "norm": st.sampled_from(NORMS),
        "positions": st.sampled_from(POSITIONS),
    }
)


@given(choices, st.integers(1, 11), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_no_prediction_sees_what_follows(choice, known, seed):
    text = torch.randint(20, (2, 12), generator=generator(seed))
    other = text.clone()
    other[:, known:] = (text[:, known:] + 7) % 20
    gpt = model(seed, **choice)
    before, after = gpt(text), gpt(other)
    assert torch.equal(before[:, :known], after[:, :known])
    assert not torch.equal(before[:, known:], after[:, known:])


@given(choices, st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_settings_share_the_weights_they_do_not_touch(choice, seed):
    other = dict(model(seed, positions=choice["positions"]).named_parameters())
    for name, weight in model(seed, **choice).named_parameters():
        if name in other and ".w_q." not in name and ".w_k." not in name:
            assert torch.equal(weight, other[name]), name


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("norm", ["pre_ln", "qk_norm"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_attention_is_that_of_the_library(scale, norm, positions):
    factor = {"none": 1.0, "full": 1 / 8}.get(scale, 8**-0.5)
    attention = model(scale=scale, norm=norm, positions=positions).attentions()[0]
    x = torch.randn(3, 12, 24, generator=generator(1))
    found = attention(x)
    attention, x = attention.double(), x.double()  # now with more digits, for the comparison

    def heads(w):
        return w(x).unflatten(-1, (2, 8)).transpose(1, 2)

    q, k, v = heads(attention.w_q), heads(attention.w_k), heads(attention.w_v)
    if norm == "qk_norm":
        q, k = attention.norm_q(q), attention.norm_k(k)
    if positions == "rope":
        q, k = (apply_rotary(t, torch.arange(12)) for t in (q, k))
    o = scaled_dot_product_attention(q, k, v, is_causal=True, scale=factor)
    expected = attention.w_o(o.transpose(1, 2).flatten(-2))
    # float32: components of q and k are sums of 24 products, so a logit z is off by about 24 |z| u,
    # and a weight by that share of itself; u = 2⁻²⁴, and |z| < 20 here
    atol = 24 * 20 * 2**-24 * expected.abs().max().item()
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=atol)


# By the laws that the setting states; 24 · 16 weights in each of four matrices, of kurtosis ≤ 3:
# the standard error of a variance is at most √(2/1536) = 3.6 % of it.
@pytest.mark.parametrize(
    ("init", "var_q", "var_k"),
    [
        ("unit", 1 / 24, 1 / 24),
        ("gpt2", 0.02**2, 0.02**2),
        ("torch_linear", 1 / 72, 1 / 72),
        ("xavier", 2 / (24 + 16), 2 / (24 + 16)),
        ("t5", 1 / (24 * 8), 1 / 24),
    ],
)
def test_initial_variances(init, var_q, var_k):
    blocks = [a for seed in (0, 1) for a in model(seed, init=init).attentions()]
    for name, law in (("w_q", var_q), ("w_k", var_k)):
        weights = torch.stack([getattr(block, name).weight for block in blocks])
        assert weights.var().item() == pytest.approx(law, rel=4 * 0.036)
    # those that write to the residual stream are smaller by √(2 · layers)
    w_o = torch.stack([block.w_o.weight for block in blocks])
    assert w_o.std().item() == pytest.approx(0.02 / 2, rel=4 * 0.018)


def test_folding_the_root_into_w_q_gives_the_same_function():
    # T5's choice: the same draws, and 1/√d_k in W_Q instead of in the scale
    text = torch.randint(20, (2, 12), generator=generator(1))
    folded, divided = model(init="t5", scale="none"), model(init="unit", scale="sqrt")
    torch.testing.assert_close(folded(text), divided(text), rtol=0, atol=1e-6)  # of about 0.3


def test_norms_stand_where_they_are_said_to():
    text = torch.randint(20, (2, 12), generator=generator(1))
    names = {norm: type(model(norm=norm).blocks[0].norm_1).__name__ for norm in NORMS}
    assert names == {
        "pre_ln": "LayerNorm",
        "post_ln": "LayerNorm",
        "pre_rms": "RMSNorm",
        "none": "Identity",
        "qk_norm": "LayerNorm",
    }
    # after a post-norm block every token has mean 0 and mean square 1; otherwise it has not
    for norm, normalised in (("post_ln", True), ("pre_ln", False)):
        gpt = model(norm=norm)
        x = gpt.blocks[0](gpt.tokens(text))
        assert bool(abs((x**2).mean(dim=-1) - 1).max() < 0.05) is normalised


def test_statistics_are_those_of_the_visible_pairs():
    gpt = model(init="unit", scale="none")
    gpt.watch(True)
    text = torch.randint(20, (3, 12), generator=generator(2))
    gpt(text)
    attention = gpt.attentions()[0]
    x = gpt.blocks[0].norm_1(gpt.tokens(text) + gpt.places.weight).double()
    q, k = (
        (x @ w.weight.T.double()).unflatten(-1, (2, 8)).transpose(1, 2)
        for w in (attention.w_q, attention.w_k)
    )
    rows, logits = [], []
    for i in range(12):
        z = (q[:, :, i : i + 1] @ k[:, :, : i + 1].mT).squeeze(-2)  # (3, heads, i + 1)
        logits.append(z.flatten())
        if i >= 7:
            p = z.softmax(-1)
            rows.append((-(p * p.log()).sum(-1) / math.log(i + 1), p.amax(-1)))
    flat = torch.cat(logits)
    seen = {name: value.item() for name, value in attention.seen.items()}
    assert seen == pytest.approx(
        {
            "logit_std": flat.std().item(),
            "logit_max": flat.abs().max().item(),
            "entropy": torch.stack([h for h, _ in rows]).mean().item(),
            "top_weight": torch.stack([top for _, top in rows]).mean().item(),
        },
        rel=1e-4,
    )


def test_scores_in_half_precision_overflow_where_the_format_ends():
    gpt = model(init="unit", scale="sqrt", scores="float16")
    gpt.watch(True)
    attention = gpt.attentions()[0]
    with torch.no_grad():
        attention.w_q.weight.mul_(1e3)
        attention.w_k.weight.mul_(1e3)
    gpt(torch.randint(20, (2, 12), generator=generator(3)))
    assert attention.seen["logit_max"].isinf()
    with pytest.raises(ValueError, match="scores must be one of float32, bfloat16, float16"):
        model(scores="float8")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"scale": "root"}, "none, sqrt, full, learned"), ({"head_dim": 0}, "at least 1, got 0")],
)
def test_a_wrong_setting_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        GPTSetting(**{"symbols": 20, "length": 12, **wrong})


@pytest.mark.parametrize("scale", SCALES)
def test_a_probe_sees_what_the_model_itself_sees(scale):
    gpt = model(init="unit", scale=scale)
    text = torch.randint(20, (3, 12), generator=generator(2))
    before = gpt(text)
    gpt.watch(True)
    with torch.no_grad(), AttentionProbe(gpt) as probe:
        during = gpt(text)
    assert torch.equal(before, during)
    assert len(probe.records) == 2
    for attention, record in zip(gpt.attentions(), probe.records, strict=True):
        # the probe keeps heads apart; all see equally many pairs
        mean = sum(head.logit_mean for head in record.heads) / 2
        square = sum(head.logit_std**2 + head.logit_mean**2 for head in record.heads) / 2
        spread = (square - mean**2) ** 0.5
        assert spread == pytest.approx(
            attention.seen["logit_std"].item(), rel=5e-3
        )  # n against n − 1
        factor = attention.scale[0].item()
        assert [head.scale for head in record.heads] == pytest.approx([factor] * 2)
