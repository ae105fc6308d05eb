"""The probe measures what NumPy measures on whole matrices, disturbs nothing, owns up to gaps."""

import gc
import json
import os
import re
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as under_another_name
from torch.overrides import _get_current_function_mode_stack

from attention_scaling import (
    AttentionNotSeenError,
    AttentionProbe,
    _probe_measure,
    observe_attention,
)
from attention_scaling.__main__ import main

from .probe_reference import assert_heads, expected

PLAIN = F.scaled_dot_product_attention


class Attention(nn.Module):
    """Projections and a call of an attention function."""

    def __init__(self, width=8, heads=2, attend=None, **options):
        super().__init__()
        self.heads, self.attend, self.options = heads, attend, options
        self.project = nn.Linear(width, 3 * width)

    def split(self, x):
        return self.project(x).unflatten(-1, (3 * self.heads, -1)).transpose(1, 2).chunk(3, 1)

    def forward(self, x):
        attend = self.attend or F.scaled_dot_product_attention
        return attend(*self.split(x), **self.options).transpose(1, 2).flatten(2)


def stack(**options):
    torch.manual_seed(3)
    return nn.Sequential(Attention(**options), nn.Linear(8, 8), Attention(**options)).double()


def tokens(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def dots(module, x):
    with torch.no_grad():
        q, k, _ = module.split(x)
        return (q @ k.mT).numpy()


# --------------------------------------------------------------------------- what is measured


@st.composite
def calls(draw):
    """Arguments of `observe`, small, with every option."""
    seed = draw(st.integers(0, 10**6))
    rng = np.random.default_rng(seed)
    batch, groups, kv = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    length, keys, width = draw(st.integers(1, 5)), draw(st.integers(1, 6)), draw(st.integers(1, 3))
    heads, size = groups * kv, draw(st.sampled_from([0.3, 3.0, 30.0]))
    q = size * rng.standard_normal((batch, heads, length, width))
    k = size * rng.standard_normal((batch, kv, keys, width))
    options, numbers = {}, {}
    keep = np.ones((batch, heads, length, keys), dtype=bool)
    form = draw(st.sampled_from(["none", "bool", "hidden", "added", "causal"]))
    if form in ("bool", "hidden", "added"):
        shape = draw(
            st.sampled_from([(batch, 1, 1, keys), (1, heads, length, keys), (length, keys)])
        )
        seen = rng.random(shape) < 0.7
        seen[..., 0] = True if seed % 2 else seen[..., 0]  # half of them without empty rows
        added = rng.standard_normal(shape) if form == "added" else np.zeros(shape)
        low = rng.choice([-np.inf, -1e4, np.finfo(np.float64).min])
        mask = seen if form == "bool" else np.where(seen, added, low)
        options["attn_mask"] = torch.from_numpy(mask)
        keep, numbers["bias"] = keep & seen, np.where(seen, added, 0)
    if form == "causal":
        options["is_causal"] = True
        keep = keep & np.tril(np.ones((length, keys), dtype=bool))
    if draw(st.booleans()):
        bias = 5 * rng.standard_normal((1, heads, length, keys))
        options["bias"] = torch.from_numpy(bias)
        numbers["bias"] = numbers.get("bias", 0) + bias
    scale = width**-0.5
    if draw(st.booleans()):
        scale = draw(st.sampled_from([0.0, -0.5, 2.0, rng.random(heads)]))
        options["scale"] = torch.as_tensor(scale)
    if draw(st.booleans()):
        options["softcap"] = numbers["softcap"] = 2.5
    if draw(st.booleans()):
        sinks = rng.standard_normal(heads)
        options["sinks"], numbers["sinks"] = torch.from_numpy(sinks), sinks
    return torch.from_numpy(q), torch.from_numpy(k), options, keep, scale, numbers


@settings(max_examples=60)
@given(call=calls(), tile=st.sampled_from([1, 7, 40, 2**19]))
def test_equals_numpy_on_the_whole_matrix(call, tile):
    q, k, options, keep, scale, numbers = call
    if not keep.any(axis=(0, 2, 3)).all():
        return  # a head without a pair: see below
    whole = q.numpy() @ np.repeat(k.numpy(), q.shape[1] // k.shape[1], axis=1).swapaxes(-1, -2)
    probe = AttentionProbe(nn.Identity())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_probe_measure, "TILE", tile)
        probe.observe("x", q, k, **options)
    # rounding: sums of a few dozen numbers of at most some thousands, and exp of differences
    assert_heads(probe.records[0], expected(whole, scale=scale, keep=keep, **numbers), 1e-9)


@settings(max_examples=40)
@given(call=calls(), cut=st.integers(1, 2))
def test_calls_add_up_to_the_call_of_all(call, cut):
    q, k, options, *_ = call
    if len(q) <= cut:
        return
    together, apart = AttentionProbe(nn.Identity()), AttentionProbe(nn.Identity())
    together.observe("x", q, k, **options)
    for part in (slice(0, cut), slice(cut, None)):
        own = {
            n: v[part]
            if isinstance(v, torch.Tensor) and v.dim() == 4 and len(v) == len(q) > 1
            else v
            for n, v in options.items()
        }
        apart.observe("x", q[part], k[part], **own)
    a, b = together.records[0], apart.records[0]
    assert (a.calls, b.calls) == (1, 2)
    for one, two in zip(a.heads, b.heads, strict=True):
        assert vars(one) == pytest.approx(vars(two), rel=1e-9, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_inputs_are_measured_in_float32(dtype):
    q, k = (tokens(2, 3, 9, 16, seed=s).to(dtype) for s in (1, 2))
    probe = AttentionProbe(nn.Identity())
    probe.observe("x", q, k)
    exact = q.double() @ k.double().mT
    # a product of 16 terms: at most 16 roundings, relative to the sum of the terms' sizes; the
    # entropy changes by at most twice an error of the logits times their range
    error = 16 * 2.0**-24 * float((q.double().abs() @ k.double().abs().mT).max())
    reach = 2 * (float(exact.max() - exact.min()) / 4 + 1)
    assert_heads(probe.records[0], expected(exact.numpy(), scale=0.25), error * reach)
    assert error * reach < 1e-3  # the bound says something


def test_overflow_in_float16_is_told_from_the_numbers():
    q = torch.full((1, 1, 4, 64), 40.0, dtype=torch.float16)
    probe = AttentionProbe(nn.Identity())
    probe.observe("x", q, q)
    (head,) = probe.records[0].heads
    assert head.max_abs_dot == 64 * 40**2
    assert head.fp16_share == 64 * 40**2 / 65504 > 1 > head.fp16_share_scaled
    assert not (q @ q.mT).isfinite().any()


def test_numbers_that_are_not_finite_are_counted_and_left_out():
    q, k = tokens(1, 2, 5, 4), tokens(1, 2, 6, 4, seed=2)
    k[0, 1, 2, 0] = float("nan")
    q[0, 0, 4, 1] = float("inf")
    keep = torch.ones(5, 6, dtype=torch.bool)
    keep[3:, 2] = False
    probe = AttentionProbe(nn.Identity())
    probe.observe("x", q, k, attn_mask=keep)
    first, second = probe.records[0].heads
    assert (first.nonfinite, first.rows, second.nonfinite, second.rows) == (5, 4, 3, 2)
    clean = (q[:, :1, :4] @ k[:, :1].mT).numpy()
    (wanted,) = expected(clean, scale=0.5, keep=keep[:4].numpy())
    for name in ("logit_mean", "logit_std", "entropy", "effective_keys", "max_weight"):
        assert getattr(first, name) == pytest.approx(wanted[name])
    assert "3" in probe.table(heads=True).splitlines()[2].split()[-1]


def test_nothing_to_see_is_nan_and_null(tmp_path):
    q = tokens(1, 1, 3, 4)
    probe = AttentionProbe(nn.Identity())
    probe.observe("x", q, q, attn_mask=torch.zeros(3, 3, dtype=torch.bool))
    (head,) = probe.records[0].heads
    assert (head.rows, head.pairs, head.rows_without_keys) == (0, 0, 3)
    assert np.isnan([head.logit_std, head.entropy, head.max_weight]).all()
    probe.to_json(tmp_path / "x.json")
    content = json.loads((tmp_path / "x.json").read_text("utf8"))
    assert content == probe.to_dict()
    assert content["layers"][0]["heads"][0]["logit_std"] is None
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_a_scale_that_changes_is_not_reported_as_one():
    q, probe = tokens(1, 1, 3, 4), AttentionProbe(nn.Identity())
    probe.observe("x", q, q, scale=0.5)
    assert probe.records[0].heads[0].scale_ratio == 1
    probe.observe("x", q, q, scale=0.25)
    assert np.isnan(probe.records[0].heads[0].scale)


# --------------------------------------------------------------------------------- what is seen


@pytest.mark.parametrize(
    "attend", [None, under_another_name, torch._C._nn.scaled_dot_product_attention]
)
def test_sees_pythons_function_under_any_name(attend):
    model, x = stack(attend=attend, is_causal=True, scale=0.7), tokens(2, 5, 8)
    with AttentionProbe(model) as probe:
        model(x)
    first, last = probe.records
    assert (first.name, last.name) == ("0", "2")
    keep = np.tril(np.ones((5, 5), dtype=bool))
    assert_heads(first, expected(dots(model[0], x), scale=0.7, keep=keep), 1e-9)
    inner = model[1](model[0](x))
    assert_heads(last, expected(dots(model[2], inner), scale=0.7, keep=keep), 1e-9)


def packed(module, x, y):
    """Products of q and k of an `nn.MultiheadAttention`, from its weights."""
    wq, wk, _ = module.in_proj_weight.chunk(3)
    bq, bk, _ = module.in_proj_bias.chunk(3)
    q, k = (
        (z @ w.mT + b).unflatten(-1, (module.num_heads, -1)).transpose(1, 2)
        for z, w, b in ((x, wq, bq), (y, wk, bk))
    )
    return (q @ k.mT).detach().numpy()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("weights", [True, False])
def test_sees_multi_head_attention_with_and_without_weights(training, weights):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True).double().train(training)
    x, y, padding = tokens(3, 4, 8), tokens(3, 6, 8, seed=2), torch.zeros(3, 6, dtype=torch.bool)
    padding[1, 4:] = True

    def run():
        torch.manual_seed(5)
        with torch.no_grad():
            out = module(x, y, y, key_padding_mask=padding, need_weights=weights)[0]
        return out, torch.rand(1)  # and no random number was used up

    plain = run()
    with AttentionProbe(module) as probe:
        probed = run()
    assert all(map(torch.equal, plain, probed))
    keep = ~padding.numpy()[:, None, None]
    assert_heads(probe.records[0], expected(packed(module, x, y), scale=0.5, keep=keep), 1e-9)
    assert probe.records[0].calls == 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_fast_path_is_off_while_a_probe_is_active():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2).eval(), tokens(2, 5, 8).float()
    padding = torch.tensor([[False] * 5, [False, False, False, True, True]])

    def run():
        with torch.no_grad():
            return model(x, src_key_padding_mask=padding)

    fast = run()
    with AttentionProbe(model) as probe:
        probed = run()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        slow = run()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    assert torch.equal(probed, slow)
    assert not torch.equal(fast, slow)  # there is a fast path, or the test shows nothing
    assert torch.equal(run(), fast)
    assert [record.name for record in probe.records] == ["layers.0.self_attn", "layers.1.self_attn"]
    keep = ~padding.numpy()[:, None, None]
    wanted = expected(packed(model.layers[0].self_attn, x, x), scale=0.5, keep=keep)
    assert_heads(probe.records[0], wanted, 1e-5)


def test_self_and_cross_attention_are_apart():
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, norm_first=True).eval()
    x, memory = tokens(2, 3, 8).float(), tokens(2, 7, 8, seed=2).float()
    with AttentionProbe(layer) as probe:
        layer(x, memory)
    assert [(r.name, r.max_queries, r.max_keys) for r in probe.records] == [
        ("self_attn", 3, 3),
        ("multihead_attn", 3, 7),
    ]


def test_two_calls_of_one_module_in_one_pass_are_apart():
    class Twice(nn.Module):
        def forward(self, x, y):
            return PLAIN(PLAIN(x, x, x), y, y)

    model, x, y = Twice(), tokens(1, 2, 3, 4), tokens(1, 2, 5, 4, seed=2)
    with AttentionProbe(model) as probe:
        for _ in range(3):
            model(x, y)
    assert [(r.name, r.calls, r.max_keys) for r in probe.records] == [("", 3, 3), ("#2", 3, 5)]


def test_grouped_heads_of_pytorch():
    class Grouped(nn.Module):
        def forward(self, q, k):
            return F.scaled_dot_product_attention(q, k, k, enable_gqa=True)

    q, k = tokens(2, 6, 4, 3), tokens(2, 2, 5, 3, seed=2)
    model = Grouped()
    with AttentionProbe(model) as probe:
        model(q, k)
    whole = (q @ k.repeat_interleave(3, dim=1).mT).numpy()
    assert_heads(probe.records[0], expected(whole, scale=3**-0.5), 1e-9)


class ByHand(Attention):
    """Attention written out, which tells the probes."""

    tell = True

    def forward(self, x):
        q, k, v = self.split(x)
        if self.tell:
            observe_attention(q, k, scale=0.3)
        return (torch.softmax(0.3 * (q @ k.mT), -1) @ v).transpose(1, 2).flatten(2)


def test_observe_attention_tells_the_probe():
    model, x = ByHand().double(), tokens(2, 5, 8)
    model(x)  # nobody listens
    with AttentionProbe(model) as probe:
        model(x)
    assert probe.unseen == ()
    assert_heads(probe.records[0], expected(dots(model, x), scale=0.3), 1e-9)


def test_a_model_that_cannot_be_seen_into_is_refused():
    model, x = ByHand().double(), tokens(2, 5, 8)
    model.tell = False
    probe, advice = AttentionProbe(model), r"attn_implementation='sdpa'.*observe_attention"
    with pytest.raises(AttentionNotSeenError, match=advice), probe:
        model(x)
    with pytest.raises(AttentionNotSeenError, match="ByHand"):
        probe.table()
    with AttentionProbe(model) as probe:
        pass  # it did not run: nothing to complain about yet
    with pytest.raises(AttentionNotSeenError):
        _ = probe.records


def test_a_part_that_is_not_seen_is_named():
    class HiddenAttention(ByHand):
        tell = False

    model = nn.Sequential(HiddenAttention(), Attention()).double()
    with AttentionProbe(model) as probe:
        model(tokens(1, 4, 8))
    assert probe.unseen == ("0",)
    assert [record.name for record in probe.records] == ["1"]
    assert probe.table().splitlines()[-1].endswith("not seen: 0")
    assert probe.to_dict()["unseen"] == ["0"]


# ---------------------------------------------------------------------------- what stays as it is


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def untouched(*models):
    return (
        F.scaled_dot_product_attention is PLAIN
        and not _get_current_function_mode_stack()
        and not any(map(hooks, models))
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_outputs_gradients_and_random_numbers_are_the_same_bits(dtype):
    def run(probed):
        model = stack(dropout_p=0.25).to(dtype)
        x = tokens(2, 6, 8).to(dtype).requires_grad_()
        torch.manual_seed(11)
        if probed:
            with AttentionProbe(model):
                y = model(x)
        else:
            y = model(x)
        y.square().sum().backward()
        return [y, x.grad, *(p.grad for p in model.parameters()), torch.get_rng_state()]

    for plain, probed in zip(run(False), run(True), strict=True):
        assert torch.equal(plain, probed)


def heads_of_all():
    """All tensors with a dimension for heads that are alive."""
    return [x for x in gc.get_objects() if type(x) is torch.Tensor and x.dim() == 4]


def test_no_tensor_outlives_the_run():
    model, seen, before = stack(), [], set(map(id, heads_of_all()))

    def keep_track(*tensors, **options):
        seen.extend(map(weakref.ref, tensors))
        return PLAIN(*tensors, **options)

    model[0].attend = keep_track
    with AttentionProbe(model) as probe:
        y = model(tokens(2, 5, 8))
        assert y.grad_fn is not None
        assert all(ref() is not None for ref in seen)  # the graph holds them
        del y
        gc.collect()
        assert len(seen) == 3
        assert not [ref for ref in seen if ref() is not None]
        # nor a view of one: what a probe keeps has one dimension
        assert not [x for x in heads_of_all() if id(x) not in before]
    assert len(probe.records) == 2


def test_everything_is_put_back_after_an_exception():
    class Broken(nn.Module):
        def forward(self, x):
            raise ZeroDivisionError

    model, x = nn.Sequential(Attention(), Broken()).double(), tokens(1, 3, 8)
    probe = AttentionProbe(model)
    with probe, pytest.raises(ZeroDivisionError):
        model(x)
    with pytest.raises(ZeroDivisionError), probe:
        model(x)
    assert untouched(model)
    assert probe.records[0].calls == 2  # and the names are still right
    assert probe.unseen == ()


def test_two_models_and_two_probes_of_one():
    first, second, x = stack(), stack(), tokens(2, 4, 8)
    with AttentionProbe(first) as a, AttentionProbe(second) as b, AttentionProbe(first[0]) as c:
        second(first(x))
    assert [[r.name for r in p.records] for p in (a, b, c)] == [["0", "2"], ["0", "2"], [""]]
    assert {r.calls for p in (a, b, c) for r in p.records} == {1}
    assert a.records[0].heads == c.records[0].heads != b.records[0].heads
    assert untouched(first, second)


def test_leaving_in_another_order():
    first, second, x = stack(), stack(), tokens(2, 4, 8)
    a, b = AttentionProbe(first).__enter__(), AttentionProbe(second).__enter__()
    first(x)
    a.__exit__(None, None, None)
    second(first(x))
    b.__exit__(None, None, None)
    assert [r.calls for p in (a, b) for r in p.records] == [1, 1, 1, 1]
    assert untouched(first, second)


def test_a_probe_is_entered_once_at_a_time():
    model, x = stack(), tokens(1, 3, 8)
    with AttentionProbe(model) as probe:
        with pytest.raises(RuntimeError, match="active already"):
            probe.__enter__()
        model(x)
    with probe:
        model(x)
    assert {r.calls for r in probe.records} == {2}
    probe.reset()
    with pytest.raises(AttentionNotSeenError):
        probe.table()
    with pytest.raises(RuntimeError, match="not active"):
        probe.__exit__(None, None, None)
    assert untouched(model)


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_other_threads_are_not_measured_and_may_measure_themselves():
    model, x, other = stack(), tokens(1, 3, 8), []

    def work():
        model(x)
        with AttentionProbe(model) as probe:
            model(x)
            model(x)
        other.append(probe)

    with AttentionProbe(model) as probe:
        model(x)
        in_thread(work)
    assert {r.calls for r in probe.records} == {1}
    assert {r.calls for r in other[0].records} == {2}
    assert untouched(model)


def test_another_thread_in_the_middle_of_a_pass():
    model, x, errors = stack(), tokens(1, 3, 8), []

    def other():
        try:
            model[2](x[..., :5])  # stops on the way, in its first module
        except RuntimeError as error:
            errors.append(error)
        model[2](x)

    def attend(*tensors):
        in_thread(other)
        return PLAIN(*tensors)

    model[0].attend = attend
    with AttentionProbe(model) as probe:
        model(x)
    assert len(errors) == 1
    assert [(r.name, r.calls) for r in probe.records] == [("0", 1), ("2", 1)]
    assert probe.unseen == ()


def test_a_probe_is_left_where_it_was_entered():
    probe, errors = AttentionProbe(stack()).__enter__(), []

    def work():
        try:
            probe.__exit__(None, None, None)
        except RuntimeError as error:
            errors.append(str(error))

    in_thread(work)
    probe.__exit__(None, None, None)
    assert "thread that entered" in errors[0]
    assert untouched(probe._model)


class Again(torch.autograd.Function):
    """Runs a module, and runs it again in the backward pass, as checkpointing does."""

    @staticmethod
    def forward(ctx, x, module):
        ctx.save_for_backward(x)
        ctx.module = module
        return module(x)

    @staticmethod
    def backward(ctx, g):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(ctx.module(x), x, g)[0], None


def test_recomputation_is_not_counted():
    class Saving(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Attention().double()

        def forward(self, x):
            return Again.apply(x, self.inner)

    model, x = Saving(), tokens(2, 4, 8).requires_grad_()
    with AttentionProbe(model) as probe:
        model(x).sum().backward()
    assert x.grad.abs().min() > 0  # it ran again
    assert [r.calls for r in probe.records] == [1]


def test_autocast_changes_nothing_in_the_measurement():
    q, k = tokens(1, 2, 5, 4).float(), tokens(1, 2, 5, 4, seed=2).float()
    plain, cast = AttentionProbe(nn.Identity()), AttentionProbe(nn.Identity())
    plain.observe("x", q, k)
    with torch.autocast("cpu", torch.bfloat16):
        cast.observe("x", q, k)
    assert plain.records == cast.records


# --------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "model", [lambda x: x, "model", torch.jit.trace(nn.Linear(2, 2), torch.ones(2))]
)
def test_what_is_no_model_or_compiled_is_refused(model):
    with pytest.raises(TypeError, match="pass the model"):
        AttentionProbe(model)


def test_a_compiled_part_is_refused():
    compiled = nn.Linear(2, 2)
    compiled._compiled_call_impl = compiled.forward  # as Module.compile leaves it
    optimized = type("OptimizedModule", (nn.Module,), {})()  # what torch.compile returns
    for part in (compiled, optimized):
        with pytest.raises(TypeError, match=r"'0' is compiled.*before torch\.compile"):
            AttentionProbe(nn.Sequential(part))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": torch.ones(2, 3, 5)}, "last dimension"),
        ({"key": torch.ones(1, 3, 4, 4)}, "no multiple"),
        ({"scale": torch.ones(3)}, "one for each of 2 heads"),
        ({"sinks": torch.ones(3)}, "one for each of 2 heads"),
        ({"softcap": 0.0}, "softcap must be above 0"),
    ],
)
def test_arguments_that_make_no_sense(arguments, message):
    given_ = {"query": torch.ones(1, 2, 3, 4), "key": torch.ones(1, 2, 3, 4)} | arguments
    with pytest.raises(ValueError, match=message):
        AttentionProbe(nn.Identity()).observe("x", **given_)


def test_observe_attention_looks_at_its_arguments_even_if_nobody_listens():
    with pytest.raises(TypeError, match="query must"):
        observe_attention([1.0], torch.ones(2, 3, 4))
    with pytest.raises(ValueError, match="last dimension"):
        observe_attention(torch.ones(2, 3, 5), torch.ones(2, 3, 4))


def test_heads_that_change_do_not_add_up():
    probe = AttentionProbe(nn.Identity())
    probe.observe("x", torch.ones(2, 3, 4), torch.ones(2, 3, 4))
    with pytest.raises(ValueError, match=r"2 heads of width 4 before, now with 5 of 4"):
        probe.observe("x", torch.ones(5, 3, 4), torch.ones(5, 3, 4))


# ------------------------------------------------------------------------------------------ memory

LONG = """
import resource, sys
import torch
from torch import nn
from attention_scaling import AttentionProbe

class Long(nn.Module):
    def forward(self, q):
        return nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)

unit = 1 if sys.platform == "darwin" else 1024
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
torch.set_num_threads(1)
n, model = int(sys.argv[1]), Long()
q = torch.randn(1, 1, n, 16)
with torch.inference_mode():
    with AttentionProbe(model) as probe:
        model(q[..., :64, :])
    probe.reset()
    ballast, before = [], peak()
    while peak() < before + 2**20:  # from here on the process is as large as it ever was
        ballast.append(torch.ones(2**18))
    before = peak()
    with probe:
        model(q)
(head,) = probe.records[0].heads
assert head.pairs == n * (n + 1) // 2 and head.rows == n
print(peak() - before)
"""


def test_no_matrix_of_all_pairs_is_kept():
    n, tile = 8192, 4 * _probe_measure.TILE
    done = subprocess.run(
        [sys.executable, "-c", LONG, str(n)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    rise = int(done.stdout)
    # Five arrays of a tile at most live at a time: products, logits, and while a sum of squares is
    # taken a difference, its masked copy and their count. Masks take a quarter of one each. Then
    # the output, and room for the allocator and libraries that are loaded on the way.
    limit = 6 * tile + 4 * n * 16 + 8 * 2**20
    assert rise < limit < 4 * n * n / 6
    assert rise > tile  # what is measured is the probe


# ------------------------------------------------------------------------------------ command line


def model_and_inputs():
    """What the command line runs."""
    return stack(), tokens(2, 4, 8)


def half_an_answer():
    """It forgets the inputs."""
    return stack()


def blind():
    """Attention out of sight."""
    model = ByHand().double()
    model.tell = False
    return model, {"x": tokens(2, 4, 8)}


@pytest.fixture
def module_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "probed", sys.modules[__name__])
    return "probed"


def test_command_line(module_name, tmp_path, capsys):
    out = tmp_path / "out.json"
    assert main(["probe", f"{module_name}:model_and_inputs", "--json", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["layer", "0", "2"]
    content = json.loads(out.read_text("utf8"))
    assert content["schema"] == "attention-probe/1"
    model, x = model_and_inputs()
    wanted = expected(dots(model[0], x), scale=0.5)
    for head, numbers in zip(content["layers"][0]["heads"], wanted, strict=True):
        assert head == pytest.approx(head | numbers)
    assert main(["probe", f"{module_name}:model_and_inputs", "--heads"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["nowhere"], 2, "Nothing is downloaded"),
        (["probed:blind"], 1, "no attention call of ByHand"),
        (["probed:half_an_answer"], 2, r"return \(model, inputs\), got Sequential"),
        (["probed:model_and_inputs", "--text", "x"], 2, "--text is for a model from a folder"),
        (["probed:nothing"], 2, "has no 'nothing'"),
    ],
)
def test_command_line_refuses(arguments, status, message, module_name, capsys):
    assert main(["probe", *arguments]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.search(message, captured.err)
