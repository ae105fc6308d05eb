"""The library as a whole: what it exports, what it may use, and what it refuses."""

import ast
import importlib
import inspect
import math
import pkgutil
import subprocess
import sys
from pathlib import Path

import attention_scaling as lib
import numpy as np
import pytest
import torch

PACKAGE = Path(lib.__file__).parent
RNG = np.random.default_rng(0)
GENERATOR = torch.Generator().manual_seed(0)
X = torch.zeros(2, 3, 4)  # (H, L, E)
MASK = torch.ones(3, 3, dtype=torch.bool)


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


@pytest.mark.parametrize("module", ["attention.py", "softmax.py"])
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


def sample(**options):
    return lib.sample_dot_products(**{"head_dim": 4, "size": 3, "rng": RNG, **options})


def logits_of(init="lecun", d_model=8, head_dim=4, size=3, generator=GENERATOR, **options):
    return lib.sample_initial_logits(init, d_model, head_dim, size, generator=generator, **options)


EYE = np.eye(2)
BAD_CALLS = {
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
