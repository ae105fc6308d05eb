"""Inputs of the attention tests: tensors, masks, drawn cases, and how near is near.

Tolerance in float64. Inputs lie in [-2, 2], E ≤ 8 and |scale| ≤ 1, so |z| ≤ 32 and a logit is
exact to (E + 2)·2⁻⁵³·32 = 4e-14. exp turns this into a relative error of a weight, twice (numerator
and denominator), and |v| ≤ 2 and two implementations leave 4 · 2 · 4e-14 < 4e-13.
"""

import math

import numpy as np
import torch
from hypothesis import strategies as st

TOLERANCE = 1e-12


def assert_near(actual, expected, tolerance=TOLERANCE):
    torch.testing.assert_close(
        torch.as_tensor(actual), torch.as_tensor(expected), rtol=0, atol=tolerance, equal_nan=True
    )


def inputs(seed, query=(2, 4, 3, 5), keys=None, length=6, width=4, dtype=torch.float64):
    """Query (B, H, L, E), key and value with `keys` heads (as many as the query by default)."""
    rng = np.random.default_rng(seed)
    heads = query[1] if keys is None else keys
    shapes = (query, (query[0], heads, length, query[3]), (query[0], heads, length, width))
    return tuple(torch.tensor(rng.uniform(-2, 2, shape), dtype=dtype) for shape in shapes)


def masks(seed, shape=(2, 4, 3, 6), dtype=torch.float64, dead_row=False):
    """A boolean mask and an additive one with some -inf; each row keeps a key, or one does not."""
    rng = np.random.default_rng(seed + 1)
    keep = rng.random(shape) < 0.6
    keep[..., 0] |= ~keep.any(axis=-1)
    bias = rng.uniform(-2, 2, shape)
    if dead_row:
        keep[0, 0, 0] = False
    bias[~keep] = -math.inf
    return torch.tensor(keep), torch.tensor(bias, dtype=dtype)


cases = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32 - 1),
        "batch": st.integers(1, 2),
        "kv_heads": st.integers(1, 2),
        "group": st.integers(1, 3),
        "length": st.integers(1, 4),
        "keys": st.integers(1, 6),
        "dim": st.integers(1, 8),
        "width": st.integers(1, 4),
        "mask": st.sampled_from(["none", "boolean", "additive", "causal"]),
        "dead_row": st.booleans(),
        "scale": st.none() | st.floats(-1, 1),
    }
)


def build(case):
    """Tensors and keyword arguments of one drawn case, for us and for torch."""
    heads = case["kv_heads"] * case["group"]
    q, k, v = inputs(
        case["seed"],
        (case["batch"], heads, case["length"], case["dim"]),
        case["kv_heads"],
        case["keys"],
        case["width"],
    )
    shape = (case["batch"], heads, case["length"], case["keys"])
    keep, bias = masks(case["seed"], shape, dead_row=case["dead_row"])
    options = {"scale": case["scale"], "enable_gqa": True}
    if case["mask"] == "causal":
        options["is_causal"] = True
    elif case["mask"] != "none":
        options["attn_mask"] = keep if case["mask"] == "boolean" else bias
    return (q, k, v), options
