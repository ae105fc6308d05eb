"""The library as a whole: what it exports, what it may use, and what it refuses."""

import ast
import importlib
import inspect
import math
import pkgutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import attention_scaling as lib

PACKAGE = Path(lib.__file__).parent
RNG = np.random.default_rng(0)
GENERATOR = torch.Generator().manual_seed(0)
X = torch.zeros(2, 3, 4)  # (H, L, E)
P = torch.full((3,), 1 / 3)
MASK = torch.ones(3, 3, dtype=torch.bool)
W = torch.ones(6, 2)  # (H·d, d_model)


def test_every_public_name_exists_and_is_documented():
    assert sorted(lib.__all__) == sorted(set(lib.__all__))
    for name in lib.__all__:
        item = getattr(lib, name)
        if inspect.isfunction(item) or inspect.isclass(item):
            assert len(inspect.getdoc(item) or "") > 80, f"{name} has no docstring"
            assert item.__module__.startswith("attention_scaling.")


def test_modules_export_what_the_package_exports():
    exported = set()
    for module in pkgutil.iter_modules([str(PACKAGE)]):
        if not module.name.startswith("_") and module.name != "style":
            exported |= set(importlib.import_module(f"attention_scaling.{module.name}").__all__)
    assert exported == set(lib.__all__)


def test_package_is_typed_and_light():
    assert (PACKAGE / "py.typed").is_file()
    code = "import sys, attention_scaling; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


FORBIDDEN = {
    *("functional", "softmax", "log_softmax", "logsumexp", "scaled_dot_product_attention"),
    *("MultiheadAttention", "Softmax", "softmin", "einsum", "baddbmm", "compile"),
}


EXPLICIT = (
    *("attention.py", "_attention_parts.py", "online_attention.py", "softmax.py"),
    *("online_softmax.py", "softmax_jacobian.py", "score_limits.py", "normalization.py"),
)


@pytest.mark.parametrize("module", EXPLICIT)
def test_explicit_paths_use_no_ready_made_softmax(module):
    tree = ast.parse((PACKAGE / module).read_text("utf8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            assert node.attr not in FORBIDDEN, f"{module}:{node.lineno} uses {node.attr}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            module_name = getattr(node, "module", None) or ""
            for name in (*names, module_name):
                assert not name.startswith("torch."), f"{module} imports {name}"
                assert name not in {*FORBIDDEN, "nn"}, f"{module} imports {name}"


def attend(*tensors, **options):
    return lib.explicit_attention(*(tensors or (X, X, X)), **options)


def attend_online(*tensors, **options):
    return lib.online_attention(*(tensors or (X, X, X)), **options)


def attend_fused(*tensors, **options):
    return lib.fused_attention(*(tensors or (X, X, X)), **options)


def scores(placement="on_query", fmt="float16", **options):
    return lib.scaled_scores(X, X, placement, fmt, **options)


def threshold(head_dim=64, fmt="float16", placement="on_query", **options):
    return lib.overflow_threshold(head_dim, fmt, placement, **options)


def ceiling(limit=100, head_dim=64, n_keys=10, **options):
    return lib.clamped_weight_ceiling(limit, head_dim, n_keys, **options)


def rotate(x=X, positions=None, **options):
    return lib.apply_rotary(x, torch.arange(3) if positions is None else positions, **options)


def watch(model):
    with lib.find_first_nonfinite(model):
        pass


def sample(**options):
    return lib.sample_dot_products(**{"head_dim": 4, "size": 3, "rng": RNG, **options})


def logits_of(init="lecun", d_model=8, head_dim=4, size=3, generator=GENERATOR, **options):
    return lib.sample_initial_logits(init, d_model, head_dim, size, generator=generator, **options)


def clip(w_q=W, w_k=W, max_logits=P, threshold=1.0, **options):
    return lib.qk_clip(w_q, w_k, max_logits, threshold, **options)


def check(attention=lib.explicit_attention, **options):
    return lib.check_attention(attention, **{"examples": 1, **options})


EYE = np.eye(2)
BAD_CALLS = {
    "telling of a list": (lambda: lib.observe_attention([1.0], X), TypeError, "query"),
    # counts
    "head_dim NaN": (lambda: lib.default_scale(math.nan), ValueError, "head_dim"),
    "head_dim negative": (lambda: lib.default_scale(-64), ValueError, "head_dim"),
    "head_dim zero": (lambda: lib.iid_moments(0), ValueError, "head_dim"),
    "head_dim fraction": (lambda: lib.excess_kurtosis(64.0), ValueError, "head_dim"),
    "head_dim boolean": (lambda: lib.default_scale(True), ValueError, "head_dim"),
    "head_dim text": (lambda: sample(head_dim="64"), ValueError, "head_dim"),
    "size zero": (lambda: sample(size=0), ValueError, "size"),
    "n_keys zero": (lambda: lib.saturation_threshold(0), ValueError, "n_keys"),
    # randomness
    "rng a seed": (lambda: sample(rng=0), TypeError, "default_rng"),
    "rng legacy": (lambda: sample(rng=np.random), TypeError, "default_rng"),
    "generator a seed": (lambda: logits_of(generator=0), TypeError, "manual_seed"),
    # components
    "std negative": (lambda: sample(std_q=-1), ValueError, "std_q"),
    "mean NaN": (lambda: lib.iid_moments(4, mean_k=math.nan), ValueError, "mean_k"),
    "correlation above 1": (lambda: sample(correlation=1.5), ValueError, "correlation"),
    "means differ": (
        lambda: lib.gaussian_moments([0, 0], [0, 0, 0], EYE, EYE),
        ValueError,
        "mean_q and mean_k",
    ),
    "means empty": (lambda: lib.gaussian_moments([], [], EYE, EYE), ValueError, "mean_q"),
    "covariance shape": (
        lambda: lib.gaussian_moments([0, 0], [0, 0], [1, 1], EYE),
        ValueError,
        "cov_q",
    ),
    "covariance NaN": (
        lambda: lib.gaussian_moments([0, 0], [0, 0], EYE, EYE * math.nan),
        ValueError,
        "cov_k",
    ),
    "covariance asymmetric": (
        lambda: lib.gaussian_moments([0, 0], [0, 0], [[1, 0.5], [0, 1]], EYE),
        ValueError,
        "symmetric",
    ),
    "covariance indefinite": (
        lambda: lib.gaussian_moments([0, 0], [0, 0], EYE, EYE, 1.1 * EYE),
        ValueError,
        "semi-definite",
    ),
    "query scalar": (lambda: lib.conditional_row_std(1.0), ValueError, "query"),
    "query text": (lambda: lib.conditional_row_std(["a"]), ValueError, "query"),
    # estimates
    "one sample": (lambda: lib.estimate_mean([1.0]), ValueError, "samples"),
    "matrix of samples": (lambda: lib.estimate_variance(np.ones((2, 2))), ValueError, "reshape"),
    "NaN sample": (lambda: lib.estimate_std([1.0, math.nan]), ValueError, "samples"),
    "words": (lambda: lib.estimate_mean(["a", "b"]), ValueError, "samples"),
    "lengths differ": (lambda: lib.loglog_slope([1, 2, 3], [1, 2, 3, 4]), ValueError, "equal"),
    "log of zero": (lambda: lib.loglog_slope([1, 2, 3], [0, 2, 3]), ValueError, "above 0"),
    "one x": (lambda: lib.loglog_slope([2, 2, 2], [1, 2, 3]), ValueError, "two values"),
    "negative error": (lambda: lib.Estimate(1.0, -0.1, 5), ValueError, "standard_error"),
    "estimate NaN": (lambda: lib.Estimate(math.nan, 0.1, 5), ValueError, "value"),
    "estimate of nothing": (lambda: lib.Estimate(1.0, 0.1, 0), ValueError, "n must"),
    "prediction NaN": (
        lambda: lib.Estimate(1.0, 0.1, 5).z_score(math.nan),
        ValueError,
        "predicted",
    ),
    # initialisations
    "unknown init": (lambda: logits_of("kaiming"), KeyError, "mha_packed"),
    "heads do not fit": (lambda: logits_of(d_model=10), ValueError, "divide"),
    "d_model NaN": (
        lambda: lib.initial_logit_std("gpt2", math.nan, 64),
        ValueError,
        "d_model",
    ),
    "scale infinite": (lambda: logits_of(scale=math.inf), ValueError, "scale"),
    "input negative": (
        lambda: lib.initial_query_variance("gpt2", 8, 4, input_second_moment=-1),
        ValueError,
        "input_second_moment",
    ),
    # softmax
    "logits list": (lambda: lib.softmax([1.0, 2.0]), TypeError, "logits"),
    "logits integer": (lambda: lib.naive_softmax(torch.tensor([1, 2])), TypeError, "float"),
    "logits integer array": (lambda: lib.softmax(np.array([1, 2])), TypeError, "float"),
    "logits scalar": (lambda: lib.softmax(torch.tensor(1.0)), ValueError, "dimension"),
    "weights negative": (lambda: lib.entropy(np.array([-0.5, 1.5])), ValueError, "logits"),
    "weights are logits": (lambda: lib.effective_keys(X - 1), ValueError, "logits"),
    "jacobian of logits": (lambda: lib.softmax_jacobian(X - 1), ValueError, "weights"),
    # attention: tensors
    "query array": (lambda: attend(np.zeros((3, 4)), X, X), TypeError, "query"),
    "query integer": (lambda: attend(X.long(), X, X), TypeError, "query"),
    "query vector": (lambda: attend(X[0, 0], X, X), ValueError, "query"),
    "key dtype": (lambda: attend(X, X.double(), X), TypeError, "key"),
    "value dtype": (lambda: attend(X, X, X.half()), TypeError, "value"),
    "head dims differ": (lambda: attend(X, X[..., :2], X), ValueError, "last dimension"),
    "no head dim": (lambda: attend(X[..., :0], X[..., :0], X), ValueError, "at least 1"),
    "lengths of k and v": (lambda: attend(X, X, X[:, :2]), ValueError, "length S"),
    "no keys": (lambda: attend(X, X[:, :0], X[:, :0]), ValueError, "length S"),
    "batches": (lambda: attend(X, torch.zeros(5, 3, 4), X), ValueError, "broadcast"),
    "logits of vectors": (lambda: lib.attention_logits(X[0, 0], X), ValueError, "query"),
    "logits scale": (lambda: lib.attention_logits(X, X, math.nan), ValueError, "scale"),
    # attention: grouped queries
    "groups without heads": (
        lambda: attend(X[0], X[0], X[0], enable_gqa=True),
        ValueError,
        "head dimension",
    ),
    "groups uneven": (
        lambda: attend(torch.zeros(3, 3, 4), X, X, enable_gqa=True),
        ValueError,
        "divide",
    ),
    "groups of k and v": (lambda: attend(X, X, X[:1], enable_gqa=True), ValueError, "equal"),
    # attention: masks
    "mask integer": (lambda: attend(attn_mask=MASK.long()), TypeError, "bool"),
    "mask dtype": (lambda: attend(attn_mask=MASK.double()), TypeError, "attn_mask"),
    "mask list": (lambda: attend(attn_mask=[[True]]), TypeError, "attn_mask"),
    "mask shape": (lambda: attend(attn_mask=MASK[:, :2]), ValueError, "attn_mask"),
    "mask enlarges": (lambda: attend(attn_mask=MASK.expand(5, 1, 3, 3)), ValueError, "attn_mask"),
    "mask and causal": (lambda: attend(attn_mask=MASK, is_causal=True), ValueError, "tril"),
    # attention: options
    "dropout": (lambda: attend(dropout_p=0.1), ValueError, "dropout"),
    "scale NaN": (lambda: attend(scale=math.nan), ValueError, "scale"),
    "scale text": (lambda: attend(scale="sqrt"), ValueError, "scale"),
    "cap zero": (lambda: attend(softcap=0.0), ValueError, "None"),
    "cap infinite": (lambda: attend(softcap=math.inf), ValueError, "softcap"),
    "masked rows": (lambda: attend(masked_rows="zeros"), ValueError, "masked_rows"),
    "sinks per head": (lambda: attend(sinks=torch.zeros(3)), ValueError, "sinks"),
    "sinks without heads": (
        lambda: attend(X[0], X[0], X[0], sinks=torch.zeros(1)),
        ValueError,
        "sinks",
    ),
    # softmax: states, derivative, saturation
    "chunk zero": (lambda: lib.online_softmax(P, chunk_size=0), ValueError, "chunk_size"),
    "online logits list": (lambda: lib.online_softmax([1.0]), TypeError, "logits"),
    "online dim": (lambda: lib.online_softmax(torch.zeros(2, 3), dim=2), IndexError, "range"),
    "steps of a list": (lambda: lib.online_softmax_steps([1.0]), TypeError, "logits"),
    "steps of a scalar": (
        lambda: lib.online_softmax_steps(torch.tensor(1.0)),
        ValueError,
        "dimension",
    ),
    "state shapes": (
        lambda: lib.SoftmaxState(torch.zeros(2), torch.zeros(3)),
        ValueError,
        "from_logits",
    ),
    "state dtypes": (lambda: lib.SoftmaxState(P, P.double()), TypeError, "dtype"),
    "state of floats": (lambda: lib.SoftmaxState(0.0, 1.0), TypeError, "maximum"),
    "trace of logits": (lambda: lib.jacobian_trace(X - 1), ValueError, "weights"),
    "norm of logits": (lambda: lib.jacobian_frobenius_norm(X - 1), ValueError, "weights"),
    "bounds of logits": (lambda: lib.jacobian_spectral_bounds(X - 1), ValueError, "weights"),
    "product of logits": (lambda: lib.jacobian_vector_product(X - 1, X), ValueError, "weights"),
    "product with a list": (lambda: lib.jacobian_vector_product(P, [1.0]), TypeError, "vector"),
    "product of lengths": (
        lambda: lib.jacobian_vector_product(P, torch.zeros(2)),
        ValueError,
        "vector",
    ),
    "one key has no threshold": (lambda: lib.saturation_ratio(1.0, 1), ValueError, "n_keys"),
    "spread negative": (lambda: lib.saturation_ratio(-1.0, 8), ValueError, "logit_std"),
    "spread NaN": (lambda: lib.random_energy_entropy(math.nan, 8), ValueError, "logit_std"),
    # attention: the other paths
    "online chunk": (lambda: attend_online(chunk_size=0), ValueError, "chunk_size"),
    "online dropout": (lambda: attend_online(dropout_p=0.1), ValueError, "dropout"),
    "online mask and causal": (
        lambda: attend_online(attn_mask=MASK, is_causal=True),
        ValueError,
        "tril",
    ),
    "online sinks": (lambda: attend_online(sinks=torch.zeros(3)), ValueError, "sinks"),
    "online scale": (lambda: attend_online(scale=math.nan), ValueError, "scale"),
    "fused cap": (lambda: attend_fused(softcap=2.0), NotImplementedError, "softcap"),
    "fused sinks": (lambda: attend_fused(sinks=0.0), NotImplementedError, "sinks"),
    "fused rows": (
        lambda: attend_fused(masked_rows="nan"),
        NotImplementedError,
        "masked_rows",
    ),
    "fused weights": (
        lambda: attend_fused(return_weights=True),
        NotImplementedError,
        "explicit_attention",
    ),
    "fused bad cap": (lambda: attend_fused(softcap=-1.0), ValueError, "softcap"),
    "fused scale": (lambda: attend_fused(scale=math.inf), ValueError, "scale"),
    "fused mask and causal": (
        lambda: attend_fused(attn_mask=MASK, is_causal=True),
        ValueError,
        "tril",
    ),
    "front door key": (
        lambda: lib.scaled_dot_product_attention(X, X.double(), X),
        TypeError,
        "key",
    ),
    "front door dropout": (
        lambda: lib.scaled_dot_product_attention(X, X, X, None, 0.5),
        ValueError,
        "dropout",
    ),
    # formats and precision
    "unknown format": (lambda: lib.float_format("fp16"), KeyError, "bfloat16"),
    "no format": (lambda: lib.float_format(torch.int8), KeyError, "float16"),
    "rounding integers": (
        lambda: lib.round_to_format(torch.tensor([1]), "float16"),
        TypeError,
        "float",
    ),
    "rounding halves": (lambda: lib.round_to_format(P.half(), "bfloat16"), TypeError, "float64"),
    "placement twice": (
        lambda: lib.Placement("twice", "fl(s·fl(s·q)·k)", query_power=1.0, product_power=1.0),
        ValueError,
        "add up to 1",
    ),
    "placement nowhere": (lambda: lib.Placement("none", "fl(q·k)"), ValueError, "got 0"),
    "unknown placement": (lambda: scores("before"), KeyError, "on_both"),
    "scores format": (lambda: scores(fmt="half"), KeyError, "fmt"),
    "scores scale": (lambda: scores(scale=-1.0), ValueError, "scale"),
    "scores accumulator": (lambda: scores(accumulate="float16"), ValueError, "accumulate"),
    "scores layer": (lambda: scores(layer_number=0), ValueError, "layer_number"),
    "scores of arrays": (
        lambda: lib.scaled_scores(EYE, EYE, "on_query", "float16"),
        TypeError,
        "query",
    ),
    "threshold head_dim": (lambda: threshold(0), ValueError, "head_dim"),
    "threshold placement": (lambda: threshold(placement="q"), KeyError, "placement"),
    "threshold scale": (lambda: threshold(scale=0.0), ValueError, "scale"),
    # limits
    "clamp negative": (lambda: lib.clamp_scores(X, -100.0), ValueError, "limit"),
    "clamp list": (lambda: lib.clamp_scores([1.0]), TypeError, "scores"),
    "ceiling limit": (lambda: ceiling(limit=0), ValueError, "limit"),
    "ceiling n": (lambda: ceiling(n_keys=0), ValueError, "n_keys"),
    "ceiling others": (lambda: ceiling(other_scores=-101), ValueError, "other_scores"),
    "ceiling scale": (lambda: ceiling(scale=-1.0), ValueError, "scale"),
    "cap negative": (lambda: lib.soft_cap(X, -50.0), ValueError, "cap"),
    "clip threshold": (lambda: clip(threshold=0.0), ValueError, "threshold"),
    "clip share": (lambda: clip(alpha=1.5), ValueError, "alpha"),
    "clip lists": (lambda: lib.qk_clip([[1.0]], X[0], P, 1.0), TypeError, "w_q"),
    "clip dtypes": (lambda: clip(w_k=torch.ones(6, 2).double()), TypeError, "dtype"),
    "clip devices": (lambda: clip(max_logits=P.to("meta")), TypeError, "device"),
    "clip after the mask": (lambda: clip(max_logits=P - math.inf), ValueError, "mask"),
    "clip without heads": (lambda: clip(max_logits=P[:0]), ValueError, "head"),
    "clip rows": (lambda: clip(w_q=torch.ones(7, 2)), ValueError, "d_model"),
    "clip groups": (lambda: clip(w_k=torch.ones(4, 2)), ValueError, "divide"),
    "clip part of a head": (lambda: clip(w_k=torch.ones(3, 2)), ValueError, "rows each"),
    "cap of a list": (lambda: lib.soft_cap([1.0], 50.0), TypeError, "logits"),
    # normalisation
    "norm of an array": (lambda: lib.layer_norm(EYE), TypeError, "x must"),
    "norm of nothing": (lambda: lib.rms_norm(X[..., :0]), ValueError, "last dimension"),
    "norm of a scalar": (lambda: lib.l2_norm(torch.tensor(1.0)), ValueError, "dimension"),
    "eps negative": (lambda: lib.rms_norm(X, eps=-1e-6), ValueError, "eps"),
    "gain shape": (lambda: lib.layer_norm(X, torch.ones(3)), ValueError, "weight"),
    "gain list": (lambda: lib.rms_norm(X, [1.0]), TypeError, "weight"),
    "shift shape": (lambda: lib.layer_norm(X, None, torch.ones(5)), ValueError, "bias"),
    "qk kind": (lambda: lib.qk_norm(X, X, kind="cosine"), ValueError, "kind"),
    "qk gain for l2": (
        lambda: lib.qk_norm(X, X, torch.ones(4), kind="l2"),
        ValueError,
        "scale",
    ),
    "qk without heads": (
        lambda: lib.qk_norm(X[0], X[0], full_width=True),
        ValueError,
        "head dimension",
    ),
    "qk dims": (lambda: lib.qk_norm(X, X[..., :2]), ValueError, "last dimension"),
    # rotation
    "frequencies odd": (lambda: lib.rotary_frequencies(3), ValueError, "even"),
    "frequencies of one": (lambda: lib.rotary_frequencies(1), ValueError, "head_dim"),
    "frequencies base": (lambda: lib.rotary_frequencies(4, 0.0), ValueError, "base"),
    "rotating an array": (lambda: rotate(EYE), TypeError, "x must"),
    "rotating odd": (lambda: rotate(X[..., :3]), ValueError, "even"),
    "rotating too many": (lambda: rotate(rotary_dim=6), ValueError, "rotary_dim"),
    "rotating none": (lambda: rotate(rotary_dim=0), ValueError, "rotary_dim"),
    "positions list": (lambda: rotate(positions=[0, 1, 2]), TypeError, "arange"),
    "positions boolean": (lambda: rotate(positions=P > 0), TypeError, "positions"),
    "positions length": (lambda: rotate(positions=torch.arange(4)), ValueError, "positions"),
    "rotation factor": (lambda: rotate(attention_factor=math.nan), ValueError, "attention_factor"),
    "yarn zero": (lambda: lib.yarn_attention_factor(0), ValueError, "factor"),
    "yarn mscale": (lambda: lib.yarn_attention_factor(32, math.inf), ValueError, "mscale"),
    # devices: "meta" tensors have shapes but no data, and stand in for an accelerator
    "key device": (lambda: attend(X, X.to("meta"), X), TypeError, "device"),
    "value device": (lambda: attend_online(X, X, X.to("meta")), TypeError, "value"),
    "mask device": (lambda: attend(attn_mask=MASK.to("meta")), TypeError, "move it"),
    "gain device": (lambda: lib.rms_norm(X, X[0, 0].to("meta")), TypeError, "weight"),
    "state devices": (lambda: lib.SoftmaxState(P, P.to("meta")), TypeError, "device"),
    "scale None": (lambda: lib.soft_cap(X, None), ValueError, "cap"),
    # conformance
    "trying a number": (lambda: lib.check_attention(3), TypeError, "callable"),
    "unknown kind of mistake": (lambda: check(kinds=["typo"]), ValueError, "plain"),
    "trying integers": (lambda: check(dtypes=[torch.int8]), ValueError, "float16"),
    "trying no dtype": (lambda: check(dtypes=[]), ValueError, "dtypes"),
    "no examples": (lambda: check(examples=0), ValueError, "examples"),
    "seed below zero": (lambda: check(seed=-1), ValueError, "seed"),
    "unknown option": (lambda: check(options=["dropout"]), ValueError, "softcap"),
    "trying the weights": (lambda: check(lambda q, k, v: (q, k)), ValueError, "shape"),
    "trying one argument": (lambda: check(lambda q: q), ValueError, "wrap it"),
    # the hunt for NaN
    "watching a function": (lambda: watch(torch.relu), TypeError, "Module"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_input_is_refused_with_help(case):
    call, error, words = BAD_CALLS[case]
    with pytest.raises(error, match=words) as caught:
        call()
    # What was wrong, what was expected; what to do.
    assert len(str(caught.value)) > 40


def test_every_public_function_has_a_bad_call():
    called = inspect.getsource(sys.modules[__name__])
    for name in lib.__all__:
        if inspect.isfunction(getattr(lib, name)):
            assert f"lib.{name}(" in called, f"{name} has no bad-input test"
