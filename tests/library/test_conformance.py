"""The conformance check: faithful implementations pass, each kind of mistake is found and shown."""

import math
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as torch_attention

from attention_scaling import (
    CONFORMANCE_KINDS,
    _conformance_trial,
    check_attention,
    explicit_attention,
    fused_attention,
    online_attention,
)
from attention_scaling.__main__ import main
from attention_scaling._conformance_case import Case
from attention_scaling._conformance_levels import LEVELS

HALF = (torch.float16, torch.bfloat16)
LOW_CAUSAL = "scale of zero or below, causal"
LEAKS = "NaN or infinity behind the mask"
PROMISED = [kind for kind in CONFORMANCE_KINDS if kind != LEAKS]


def prepare(query, key, value, attn_mask, is_causal, scale, enable_gqa):
    """Keys and values for each query head, what is kept and added, and the factor."""
    if enable_gqa:
        group = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(group, dim=-3) for x in (key, value))
    shape = query.shape[-2], key.shape[-2]
    keep, bias = torch.ones(shape, dtype=torch.bool), torch.zeros(())
    if is_causal:
        keep = keep.tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        keep = keep & attn_mask
    elif attn_mask is not None:
        bias = attn_mask
    return key, value, keep, bias, query.shape[-1] ** -0.5 if scale is None else scale


def safe_softmax(z):
    top = z.amax(dim=-1, keepdim=True)
    e = (z - top.masked_fill(top == -math.inf, 0.0)).exp()
    return e / e.sum(dim=-1, keepdim=True).clamp(min=1e-38)


def eager(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    scale=None,
    enable_gqa=False,
    *,
    left=lambda q, s: q * s,
    right=lambda k, s: k,
    masked=-math.inf,
    softmax=safe_softmax,
    weights=lambda p: p,
    wide=True,
):
    """An ordinary implementation, each step of which can be exchanged."""
    key, value, keep, bias, s = prepare(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    work = torch.promote_types(query.dtype, torch.float32) if wide else query.dtype
    z = left(query, s).to(work) @ right(key, s).to(work).mT
    z = (z + bias.to(work)).masked_fill(~keep | (bias == -math.inf), masked)
    return (weights(softmax(z)) @ value.to(work)).to(query.dtype)


def numpy_attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
    key, value, keep, bias, s = prepare(query, key, value, attn_mask, is_causal, scale, False)
    q, k, v, b = (x.double().numpy() for x in (query, key, value, bias))
    with np.errstate(all="ignore"):
        z = np.where(keep.numpy(), s * (q @ k.swapaxes(-1, -2)) + b, -np.inf)
        top = z.max(axis=-1, keepdims=True)
        e = np.exp(z - np.where(np.isinf(top), 0.0, top))
        total = e.sum(axis=-1, keepdims=True)
        return torch.from_numpy(e / np.where(total > 0, total, 1.0) @ v).to(query.dtype)


def exp2_attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """As kernels do it: base 2 in float32, unnormalised weights in half precision."""
    key, value, keep, bias, s = prepare(query, key, value, attn_mask, is_causal, scale, False)
    log2e = math.log2(math.e)
    z = query.float() @ key.float().mT * (s * log2e) + bias.float() * log2e
    z = z.masked_fill(~keep, -math.inf)
    top = z.amax(dim=-1, keepdim=True)
    e = torch.exp2(z - top.masked_fill(top == -math.inf, 0.0))
    total = e.sum(dim=-1, keepdim=True)
    output = e.to(query.dtype).float() @ value.float()
    return torch.where(total > 0, output / total.clamp(min=1e-38), 0.0).to(query.dtype)


def torch_with(*backends):
    def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
        with sdpa_kernel(list(backends)):
            return torch_attention(
                query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
            )

    return attention


FAITHFUL = {
    "explicit": explicit_attention,
    "online": online_attention,
    "online, one key at a time": partial(online_attention, chunk_size=1),
    "online, three keys at a time": partial(online_attention, chunk_size=3),
    "fused": fused_attention,
    "torch, math": torch_with(SDPBackend.MATH),
    "NumPy in float64": numpy_attention,
    "exp2": exp2_attention,
    "factor on the query, rounded": eager,
    "root of the factor on both": partial(
        eager,
        left=lambda q, s: q * math.copysign(abs(s) ** 0.5, s),
        right=lambda k, s: k * abs(s) ** 0.5,
    ),
    "the most negative float32 where masked": partial(
        eager, masked=torch.finfo(torch.float32).min, softmax=lambda z: torch.softmax(z, -1)
    ),
    "three arguments": lambda q, k, v: torch_attention(q, k, v),
}


@pytest.mark.parametrize("name", FAITHFUL)
def test_no_faithful_implementation_is_accused(name):
    dtypes = [torch.float32] if "at a time" in name else [torch.float32, *HALF]
    report = check_attention(FAITHFUL[name], kinds=PROMISED, examples=1, dtypes=dtypes)
    assert report.ok, str(report)
    assert report.factor == pytest.approx(1, abs=1e-3)
    assert report.passed["plain"] == len(dtypes)


def test_torch_is_right_but_for_its_causal_kernel_with_a_scale_of_zero_or_below():
    report = check_attention(torch_attention, examples=1, kinds=PROMISED, dtypes=torch.float32)
    assert set(report.failed()) <= {LOW_CAUSAL}, str(report)


@pytest.mark.skipif(torch.__version__ < "2.13", reason="seen with this version")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_known_torch_causal_cpu_kernel_gives_nan_for_a_scale_of_zero_or_below(dtype):
    """It multiplies its mask by the factor, 0·(−inf) for example. Remove this when it is fixed."""
    x = torch.ones(1, 1, 2, 4, dtype=dtype)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        got = torch_attention(x, x, x, is_causal=True, scale=0.0)
    assert bool(got.isnan().any())
    for right in (explicit_attention, online_attention, fused_attention):
        assert torch.equal(right(x, x, x, is_causal=True, scale=0.0), x)


# Mistakes. One for each kind, and the kinds under which it must be found.


def plain_softmax(z):
    return torch.softmax(z, dim=-1)


def unshifted(z):
    e = z.exp()
    return e / e.sum(dim=-1, keepdim=True)


def running(z, *, start=-math.inf, rescale=True, step=16):
    """Softmax in chunks, with one thing wrong."""
    top = torch.full((*z.shape[:-1], 1), start, dtype=z.dtype)
    parts, total = [], torch.zeros_like(top)
    for chunk in z.split(step, dim=-1):
        new = torch.maximum(top, chunk.amax(dim=-1, keepdim=True))
        factor = (top - new).exp() if rescale else torch.ones_like(new)
        e = (chunk - new).exp()
        parts = [factor * part for part in parts] + [e]
        total, top = factor * total + e.sum(dim=-1, keepdim=True), new
    return torch.cat(parts, dim=-1) / total.clamp(min=1e-38)


def from_whole_matrix(z):
    e = (z - z.max()).exp()
    return e / e.sum(dim=-1, keepdim=True).clamp(min=1e-38)


def wrong_causal(query, key, value, is_causal=False, scale=None):
    length, n = query.shape[-2], key.shape[-2]
    corner = torch.ones(length, n, dtype=torch.bool).tril(n - length) if is_causal else None
    return eager(query, key, value, corner, scale=scale)


def mask_before_factor(query, key, value, attn_mask=None, is_causal=False, scale=None):
    key, value, keep, bias, s = prepare(query, key, value, attn_mask, is_causal, scale, False)
    z = query.double() @ key.double().mT + bias.double()
    return (plain_softmax(s * z.masked_fill(~keep, -math.inf)) @ value.double()).to(query.dtype)


def flipped(query, key, value, attn_mask=None):
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = ~attn_mask
    return eager(query, key, value, attn_mask)


def tiled_groups(query, key, value, enable_gqa=False):
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat(*[1] * (x.dim() - 3), times, 1, 1) for x in (key, value))
    return eager(query, key, value)


def wrong_end(query, key, value, attn_mask=None):
    """Adds the mask in the format of the inputs, and shields only what was masked by −inf."""
    key, value, keep, bias, s = prepare(query, key, value, attn_mask, False, None, False)
    z = (query.float() @ key.float().mT * s).to(query.dtype) + bias.to(query.dtype)
    z = z.masked_fill(~keep, -math.inf).float()
    hidden = ~keep.any(dim=-1, keepdim=True) | (bias == -math.inf).all(dim=-1, keepdim=True)
    p = torch.where(hidden, 0.0, plain_softmax(torch.where(hidden, 0.0, z)))
    return (p @ value.float()).to(query.dtype)


def as_if_contiguous(query, key, value):
    def ignore_strides(x):
        return x.as_strided(x.shape, torch.empty(x.shape).stride())

    return eager(*(ignore_strides(x) for x in (query, key, value)))


def product_stored(query, key, value):
    z = (query @ key.mT).float() * query.shape[-1] ** -0.5
    return (safe_softmax(z) @ value.float()).to(query.dtype)


def capped_late(query, key, value, attn_mask=None, softcap=None):
    key, value, keep, bias, s = prepare(query, key, value, attn_mask, False, None, False)
    z = (query.double() @ key.double().mT * s + bias.double()).masked_fill(~keep, -math.inf)
    z = z if softcap is None else softcap * (z / softcap).tanh()
    return (safe_softmax(z) @ value.double()).to(query.dtype)


def with_sink(query, key, value, sinks=None, *, shift=True, times=1):
    z = query.double() @ key.double().mT * query.shape[-1] ** -0.5
    top = z.amax(dim=-1, keepdim=True)
    e = (z - top).exp()
    total = e.sum(dim=-1, keepdim=True)
    if sinks is not None:
        column = sinks.double()[:, None, None]
        total = total + times * (column - top if shift else column).exp()
    return (e / total @ value.double()).to(query.dtype)


class Meeting:
    """Right, but for what it does where two things are given: it drops the second, for example.

    Dropping groups is an error; they are repeated in another order instead.
    """

    def __init__(self, first, second, mistake):
        self.first, self.second, self.mistake = first, second, mistake

    def __call__(
        self,
        query,
        key,
        value,
        attn_mask=None,
        is_causal=False,
        scale=None,
        enable_gqa=False,
        softcap=None,
        sinks=None,
    ):
        case = Case(query, key, value, attn_mask, is_causal, scale, enable_gqa, softcap, sinks)
        meet = GIVEN[self.first](case) and GIVEN[self.second](case)
        if meet and self.mistake == "drop" and self.second == "grouped":
            times = query.shape[-3] // key.shape[-3]
            k, v = (torch.cat([x] * times, dim=-3) for x in (key, value))
            case = replace(case, key=k, value=v, enable_gqa=False)
        elif meet and self.mistake == "drop":
            case = replace(case, **{LEVELS[self.second]: Case.__dict__[LEVELS[self.second]]})
        elif meet and self.mistake == "slope":
            case = replace(case, value=2 * value - value.detach())
        result = case.with_one_mask().run(explicit_attention)
        return result.double() if meet and self.mistake == "wide" else result


def has_mask(case, dtype_is_bool, finite):
    mask = case.attn_mask
    if mask is None or (mask.dtype == torch.bool) != dtype_is_bool:
        return False
    return dtype_is_bool or bool((mask.isfinite() & (mask != 0)).any()) == finite


GIVEN = {
    "grouped": lambda case: case.enable_gqa,
    "scale": lambda case: (case.scale or 0) > 0,
    "low scale": lambda case: case.scale is not None and case.scale <= 0,
    "cap": lambda case: case.softcap is not None,
    "causal": lambda case: case.is_causal,
    "boolean": lambda case: has_mask(case, True, True),
    "additive": lambda case: has_mask(case, False, False),
    "bias": lambda case: has_mask(case, False, True),
    "sinks": lambda case: case.sinks is not None,
}
PAIRS = [
    (first, second)
    for first in GIVEN
    for second in GIVEN
    if first != second and LEVELS[first] != LEVELS[second]
]


def kinds_of(*pair):
    """The kinds that try two options together."""
    if "low scale" in pair and "causal" in pair:
        return [LOW_CAUSAL]
    if "low scale" in pair and {"boolean", "additive", "bias"} & set(pair):
        return ["scale of zero or below with a mask"]
    order = {
        "sinks": "sinks with other options",
        "cap": "soft cap with other options",
        "grouped": "grouped heads with other options",
        "scale": "given scale with masks",
        "causal": "mask and causal together",
    }
    return [next(kind for main, kind in order.items() if main in pair)]


class Capped:
    """A cap that covers the triangle, or has a wrong formula."""

    def __init__(self, how):
        self.how = how

    def __call__(self, query, key, value, is_causal=False, softcap=None):
        key, value, keep, _, s = prepare(query, key, value, None, is_causal, None, False)
        z = query.double() @ key.double().mT * s
        if softcap is not None and self.how == "ramp":
            z = softcap * (z / softcap).clamp(-1, 1)
        elif softcap is not None and self.how == "exponential":
            e = (2 * z / softcap).float().exp()
            z = softcap * ((e - 1) / (e + 1)).double()
        elif softcap is not None:
            z = softcap * (z.masked_fill(~keep, -math.inf) / softcap).tanh()
            return (safe_softmax(z) @ value.double()).to(query.dtype)
        z = z.masked_fill(~keep, -math.inf)
        return (safe_softmax(z) @ value.double()).to(query.dtype)


def first_bias(query, key, value, attn_mask=None):
    """Each chunk of 64 keys gets the bias of the first."""
    n = key.shape[-2]
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask[..., torch.arange(n) % 64]
    return eager(query, key, value, attn_mask)


def finite_triangle(query, key, value, is_causal=False):
    masked = -1e4 if is_causal else -math.inf
    return eager(query, key, value, is_causal=is_causal, masked=masked)


MISTAKES = {
    "no factor": (partial(eager, left=lambda q, s: q), {"plain"}),
    "always the root": (
        partial(eager, left=lambda q, s: q * q.shape[-1] ** -0.5),
        {"given scale", "scale of zero or below"},
    ),
    "falsy factor": (
        partial(eager, left=lambda q, s: q * (s if s > 0 else q.shape[-1] ** -0.5)),
        {"scale of zero or below"},
    ),
    "mask times factor": (
        mask_before_factor,
        {"scale of zero or below with a mask", LOW_CAUSAL, "bias"},
    ),
    "meaning of True turned round": (flipped, {"boolean mask"}),
    "bottom right corner": (wrong_causal, {"causal"}),
    "heads tiled": (tiled_groups, {"grouped heads"}),
    "bare softmax": (partial(eager, softmax=plain_softmax), {"rows without a key"}),
    "ends of the format added": (wrong_end, {"rows at the end of the format"}),
    "minus ten thousand": (
        partial(eager, masked=-1e4, softmax=plain_softmax),
        {"loud masked keys"},
    ),
    "minus a billion": (partial(eager, masked=-1e9, softmax=plain_softmax), {"loud masked keys"}),
    "no shift": (partial(eager, softmax=unshifted), {"large logits"}),
    "cut at fifty thousand": (
        partial(eager, softmax=lambda z: safe_softmax(z.clamp(-5e4, 5e4))),
        {"large logits"},
    ),
    "starts at zero": (
        partial(eager, softmax=partial(running, start=0.0)),
        {"very negative logits"},
    ),
    "one maximum for all": (
        partial(eager, softmax=from_whole_matrix),
        {"rows of different size"},
    ),
    "half all the way": (partial(eager, wide=False), {"scores beyond half precision"}),
    "product in half": (product_stored, {"scores beyond half precision, scaled"}),
    "weights in eight bits": (
        partial(eager, weights=lambda p: p.to(torch.float8_e4m3fn).to(p.dtype)),
        {"many small weights"},
    ),
    "never rescales": (
        partial(eager, softmax=partial(running, rescale=False)),
        {"long rows with a rising maximum"},
    ),
    "empty chunks": (partial(eager, softmax=running), {"long rows with masked chunks"}),
    "strides forgotten": (as_if_contiguous, {"other layouts"}),
    "cap over the mask": (capped_late, {"soft cap with other options"}),
    "cap over the triangle": (Capped("triangle"), {"soft cap with other options"}),
    "cap as a ramp": (Capped("ramp"), {"soft cap"}),
    "cap by one exponential": (Capped("exponential"), {"logits far beyond the cap"}),
    "no such path": (
        Meeting("causal", "scale", "drop"),
        {"given scale with masks"},
    ),
    "mask wins": (Meeting("additive", "causal", "drop"), {"mask and causal together"}),
    "groups of another order": (
        Meeting("causal", "grouped", "drop"),
        {"grouped heads with other options"},
    ),
    "no sink beside the triangle": (
        Meeting("causal", "sinks", "drop"),
        {"sinks with other options", "sinks beside very negative logits"},
    ),
    "bias of the first chunk": (first_bias, {"long rows with other options"}),
    "wide result beside a bias": (
        Meeting("bias", "scale", "wide"),
        {"format of the result"},
    ),
    "triangle of minus ten thousand": (finite_triangle, {"loud keys in the future"}),
    "minus ten thousand in float16": (
        lambda query, key, value, attn_mask=None: eager(
            query,
            key,
            value,
            attn_mask,
            masked=-1e4 if query.dtype == torch.float16 else -math.inf,
        ),
        {"loud masked keys"},
    ),
    "floor in float16": (
        lambda query, key, value: eager(
            query,
            key,
            value,
            softmax=partial(running, start=-1e4 if query.dtype == torch.float16 else -math.inf),
        ),
        {"very negative logits"},
    ),
    "two sinks": (partial(with_sink, times=2), {"sinks"}),
    "sink beside the shift": (
        partial(with_sink, shift=False),
        {"sinks", "sinks beside very negative logits"},
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_each_kind_of_mistake_is_found(name, monkeypatch):
    monkeypatch.setattr(_conformance_trial, "SHRINKING_CALLS", 20)
    attention, kinds = MISTAKES[name]
    report = check_attention(attention, kinds=kinds, examples=8)
    assert not report.ok
    assert set(report.failed()) == kinds, str(report)


@pytest.mark.parametrize("mistake", ["drop", "wide", "slope"])
def test_a_mistake_of_any_two_options_is_found(mistake, monkeypatch):
    """Each option dropped beside each other one; the format, and the gradient of the values."""
    monkeypatch.setattr(_conformance_trial, "SHRINKING_CALLS", 0)
    pairs = PAIRS
    if mistake != "drop":  # the order makes no difference
        pairs = [pair for pair in PAIRS if pair[0] < pair[1]]
    if mistake == "wide":  # these have no such examples: a factor of 0 is one of the factors
        causal = {"causal", "boolean", "additive", "bias"}
        pairs = [pair for pair in pairs if "low scale" not in pair and not set(pair) <= causal]
    missed = []
    for first, second in pairs:
        kinds = ["format of the result"] if mistake == "wide" else kinds_of(first, second)
        report = check_attention(
            Meeting(first, second, mistake),
            kinds=kinds,
            examples=8 if "low scale" in (first, second) else 1,
            dtypes=torch.float32,
        )
        missed += [(first, second)] * report.ok
    assert not missed


def test_every_kind_has_a_mistake():
    found = set().union(*(kinds for _, kinds in MISTAKES.values()))
    assert found == set(PROMISED)


def test_what_torch_lets_through_is_shown_and_accuses_nobody():
    report = check_attention(eager, kinds=[LEAKS], examples=3, dtypes=torch.float32)
    assert report.ok
    assert not report.failed()
    assert [finding.hardening for finding in report.findings] == [True]
    assert "exposed in float32" in str(report)


def test_gradients_are_compared():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad

    def attention(query, key, value):
        return explicit_attention(query, Doubled.apply(key), value)

    report = check_attention(attention, kinds=["plain"], examples=2)
    assert [finding.dtype for finding in report.findings] == [torch.float64]
    assert "gradient of key" in report.findings[0].symptom


@pytest.mark.parametrize("first", ["sinks", "attn_mask"])
def test_gradients_of_sinks_and_biases_are_compared(first):
    kind = {"sinks": "sinks", "attn_mask": "bias"}[first]

    def attention(query, key, value, attn_mask=None, sinks=None):
        options = {"attn_mask": attn_mask, "sinks": sinks}
        x = options[first]
        if x is not None:
            finite = x.masked_fill(x == -math.inf, 0.0)
            options[first] = x + finite - finite.detach()
        return explicit_attention(query, key, value, **options)

    report = check_attention(attention, kinds=[kind], examples=1, dtypes=torch.float32)
    assert [finding.dtype for finding in report.findings] == [torch.float64]
    assert f"gradient of {first}" in report.findings[0].symptom


@pytest.mark.parametrize("name", ["attn_mask", "sinks", "value"])
def test_no_argument_may_be_overwritten(name):
    """Not even −inf by the lowest number, which nan_to_num would make the same."""

    def attention(query, key, value, attn_mask=None, sinks=None):
        options = {"attn_mask": attn_mask, "sinks": sinks}
        right = explicit_attention(query, key, value, **options)
        x = {**options, "value": value}[name]
        if x is not None and x.is_floating_point():
            x.copy_(x.clamp(min=-1e4) if name == "attn_mask" else x + 1)
        return right

    kind = {"attn_mask": "rows without a key", "sinks": "sinks", "value": "plain"}[name]
    report = check_attention(attention, kinds=[kind], examples=6, dtypes=torch.float32)
    assert f"overwrites its argument {name}" in report.findings[0].symptom


def test_arguments_must_not_be_overwritten():
    def attention(query, key, value):
        query *= query.shape[-1] ** -0.5
        return explicit_attention(query, key, value, scale=1.0)

    report = check_attention(attention, kinds=["plain"], examples=3, dtypes=[torch.float32])
    assert "overwrites its argument query" in report.findings[0].symptom


# What is shown


def test_inputs_shrink_to_one_query_and_two_keys():
    attention, _ = MISTAKES["falsy factor"]
    report = check_attention(attention, kinds=["scale of zero or below"], dtypes=torch.float32)
    (finding,) = report.findings
    assert finding.case.query.shape == (1, 1, 1, 1)
    assert finding.case.key.shape == finding.case.value.shape == (1, 1, 2, 1)
    assert finding.case.scale <= 0
    right = finding.case.in_float64().run(explicit_attention)
    torch.testing.assert_close(finding.expected, right, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(finding.got.double(), right)


def test_the_text_names_kind_reason_numbers_and_verdict():
    attention, _ = MISTAKES["starts at zero"]
    report = check_attention(
        attention, kinds=["very negative logits", "soft cap"], dtypes=[torch.float32]
    )
    text = str(report)
    assert text.startswith("1 kind(s) of mistakes in ")
    assert "FAILS in float32" in text
    assert "not applicable" in text
    assert CONFORMANCE_KINDS["very negative logits"] in text
    assert "query = float32 (1, 1, 1, " in text
    assert str(check_attention(explicit_attention, examples=1)).startswith("no mistake found")


def test_errors_count_as_refused():
    def attention(query, key, value, scale=None):
        if scale is not None and scale <= 0:
            raise NotImplementedError("no such factor")
        return eager(query, key, value, scale=scale)

    report = check_attention(attention, kinds=["plain", "scale of zero or below"], examples=2)
    assert report.ok
    assert report.refused == {"scale of zero or below": "NotImplementedError: no such factor"}
    assert "refused: NotImplementedError" in str(report)


FACTORS = {
    "no factor": (lambda q, s: q, 4.0, "there is no factor"),
    "twice": (lambda q, s: q / q.shape[-1], 0.25, "twice"),
    "inverted": (lambda q, s: q * q.shape[-1] ** 0.5, 16.0, "multiplies by √E"),
    "all heads": (lambda q, s: q / (q.shape[-1] * q.shape[-3]) ** 0.5, 3**-0.5, "width of all"),
    "nought": (lambda q, s: 0 * q, 0.0, "the factor is 0"),
    "sign": (lambda q, s: -q * s, -1.0, "wrong sign"),
    "another": (lambda q, s: 0.9 * q * s, 0.9, "not by 0.25"),
}


@pytest.mark.parametrize("name", FACTORS)
def test_the_factor_is_measured_and_named(name):
    left, factor, words = FACTORS[name]
    report = check_attention(partial(eager, left=left), kinds=["plain"], examples=4)
    assert report.factor == pytest.approx(factor, abs=1e-4)
    assert words in str(report).splitlines()[0]
    assert report.failed() == ("plain",)


def test_the_same_seed_draws_the_same_and_another_seed_others():
    attention, kinds = MISTAKES["no factor"]
    check = partial(check_attention, attention, kinds=kinds, dtypes=torch.float32)
    texts = [str(check(seed=seed)) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]


# The command line


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "my_attention.py").write_text(
        "from torch.nn.functional import scaled_dot_product_attention\n\n"
        "def right(query, key, value):\n"
        "    return scaled_dot_product_attention(query, key, value)\n\n"
        "def wrong(query, key, value):\n"
        "    return scaled_dot_product_attention(query, key, value, scale=1.0)\n\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    yield "my_attention"
    sys.modules.pop("my_attention", None)


def test_exit_status(module, capsys):
    few = ["--examples", "2", "--dtype", "float32", "--kind", "plain"]
    assert main(["conformance", f"{module}:right", *few]) == 0
    assert capsys.readouterr().out.startswith("no mistake found in ")
    assert main(["conformance", f"{module}:wrong", *few, "--seed", "1"]) == 1
    assert "there is no factor" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("my_attention", "write module:function"),
        ("my_attention:absent", "has no 'absent'"),
        ("my_attention:number", "cannot be called"),
        ("no_such_module:f", "cannot import"),
    ],
)
def test_calls_that_make_no_sense(module, capsys, name, words):
    assert main(["conformance", name]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["conformance", "a:b", "--dtype", "int8"]])
def test_unknown_arguments(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage" in capsys.readouterr().err
