"""The inputs of the casebook's page on overflow and precision, through every path of the library.

Expected values come from NumPy in float64. All inputs are exact in the format that is tested, so a
result may differ by the rounding of float32 sums, and in half precision by that of the weights
(PyTorch's kernels) and of the output.
"""

import math
from functools import partial

import numpy as np
import pytest
import torch

from attention_scaling import (
    explicit_attention,
    online_attention,
    scaled_dot_product_attention,
)

PATHS = {
    "front": scaled_dot_product_attention,
    "explicit": explicit_attention,
    **{f"online-{c}": partial(online_attention, chunk_size=c) for c in (1, 2, 3, 128)},
}
OURS = {name: path for name, path in PATHS.items() if name != "front"}
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]

every_path = pytest.mark.parametrize("attention", PATHS.values(), ids=PATHS)
every_path_of_ours = pytest.mark.parametrize("attention", OURS.values(), ids=OURS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def reference(q, k, v, scale=None):
    q, k, v = (np.asarray(x, dtype=np.float64) for x in (q, k, v))
    z = (q @ k.T)[0] * (q.shape[1] ** -0.5 if scale is None else scale)
    p = np.exp(z - z.max())
    return p @ v[:, 0] / p.sum()


def pair(r):
    """Two keys whose logits, (63 r² + 8)/8 and 63 r²/8, differ by 1."""
    q = torch.tensor([[float(r)] * 63 + [8.0]])
    k = torch.tensor([[float(r)] * 63 + [x] for x in (1.0, 0.0)])
    return q, k, torch.tensor([[1.0], [0.0]])


def in_format(tensors, dtype):
    converted = [x.to(dtype) for x in tensors]
    for x, y in zip(tensors, converted, strict=True):
        assert torch.equal(x, y.to(x.dtype)), "the test's numbers must be exact in the format"
    return converted


def near(expected, dtype):
    return pytest.approx(expected, rel=2 * torch.finfo(dtype).eps + 1e-5, abs=0)


@every_dtype
@every_path
@pytest.mark.parametrize("r", [1, 6, 31, 33, 75])
def test_a_difference_of_one_is_seen_at_any_size(attention, dtype, r):
    q, k, v = in_format(pair(r), dtype)
    found = attention(q, k, v).item()
    assert found == near(reference(*pair(r)), dtype)
    assert found == near(math.e / (1 + math.e), dtype)


@every_path
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_logits_that_float16_cannot_hold(attention, dtype):
    q, k, v = in_format(pair(300), dtype)
    assert attention(q, k, v).item() == near(math.e / (1 + math.e), dtype)


@every_dtype
@every_path
def test_gradients_of_large_logits_are_right(attention, dtype):
    """d out/d z = p(1 − p) at the first key; the last feature of the query is 8, the factor 1/8."""
    leaves = [x.requires_grad_() for x in in_format(pair(33), dtype)]
    q, k, v = torch.autograd.grad(attention(*leaves).sum(), leaves)
    p = math.e / (1 + math.e)
    slope = p * (1 - p)
    tolerance = 16 * torch.finfo(dtype).eps + 1e-4
    assert k[:, -1].tolist() == pytest.approx([slope, -slope], rel=tolerance)
    assert q[0, -1].item() == pytest.approx(slope / 8, rel=tolerance)
    assert v.flatten().tolist() == pytest.approx([p, 1 - p], rel=tolerance)


@every_path
@pytest.mark.parametrize("d", [16, 32, 64, 128, 256])
def test_either_order_of_the_factor_is_within_rounding(attention, d):
    x = torch.arange(1.0, 41.0)[:, None]
    found = attention(x, x, x / 40, scale=d**-0.5)
    expected = [reference(x[i : i + 1], x, x / 40, d**-0.5) for i in range(40)]
    # a logit of up to 1600/4 is exact to two roundings of 400, and values are at most 1
    np.testing.assert_allclose(found.flatten(), expected, rtol=0, atol=4 * 400 * 2.0**-23)


@every_path
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_the_largest_score_stays_the_largest(attention, dtype):
    q, k, v = pair(33)
    k[1] = torch.tensor([0.0] * 63 + [3.0])
    assert attention(*in_format((q, k, v), dtype)).item() == reference(q, k, v) == 1


@every_path
def test_a_masked_score_that_would_become_infinite_does_not_return(attention):
    one, z = torch.ones(1, 1).half(), torch.tensor([[-20.0], [-16.0]]).half()
    v, lowest = torch.tensor([[1.0], [0.0]]).half(), torch.finfo(torch.float16).min
    for mask in (torch.tensor([[True, False]]), torch.tensor([[0.0, lowest]]).half()):
        assert attention(one, z, v, mask).item() == 1


# In each format a level at which a difference of 1 is still exact.
LEVELS = {torch.float64: 60_000.0, torch.float32: 60_000.0, torch.bfloat16: 250.0}
LEVELS |= {torch.float16: 2000.0}


@every_dtype
@every_path
@pytest.mark.parametrize("sign", [1, -1])
def test_rows_of_another_level_do_not_matter(attention, dtype, sign):
    """Two queries in one call: scores 0 and -1, and the same around a level far away."""
    level = sign * LEVELS[dtype]
    q, v = torch.eye(2, dtype=dtype), torch.tensor([[1.0], [0.0]], dtype=dtype)
    (k,) = in_format([torch.tensor([[0.0, level], [-1.0, level - 1]])], dtype)
    found = attention(q, k, v, scale=1.0).flatten().tolist()
    assert found == [near(math.e / (1 + math.e), dtype)] * 2


@every_dtype
@every_path
@pytest.mark.parametrize(
    ("scores", "expected"),
    [([378.1, -249.9], 1.0), ([-200.0, -200.0], 0.5), ([1e4, -1e4], 1.0), ([-6e4, -6e4], 0.5)],
)
def test_the_maximum_is_subtracted(attention, dtype, scores, expected):
    z, v = (torch.tensor(x, dtype=dtype)[:, None] for x in (scores, [1.0, 0.0]))
    assert attention(torch.ones(1, 1, dtype=dtype), z, v, scale=1.0).item() == expected


@every_dtype
@every_path
@pytest.mark.parametrize("masked_first", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("level", [-200.0, -16_384.0, -60_000.0])
def test_a_running_maximum_starts_below_everything(attention, dtype, masked_first, level):
    z = torch.tensor([0.0] * masked_first + [level, level], dtype=dtype)[:, None]
    v = torch.tensor([9.0] * masked_first + [1.0, 0.0], dtype=dtype)[:, None]
    keep = (torch.arange(len(z)) >= masked_first)[None]
    assert attention(torch.ones(1, 1, dtype=dtype), z, v, keep, scale=1.0).item() == 0.5


@every_dtype
@every_path
def test_many_light_keys_keep_their_weight(attention, dtype):
    """2048 keys that are together as heavy as one."""
    z = torch.tensor([11.0] + [0.0] * 2048, dtype=dtype)[:, None]
    ones, light = torch.ones_like(z), (z == 0).to(dtype)
    q = torch.full((1, 1), math.log(2), dtype=dtype)
    # −11 ln 2 is not exact in half precision: the reference takes the rounded query
    for v in (ones, light):
        expected = reference(q.double(), z.double(), v.double(), 1.0)
        assert attention(q, z, v, scale=1.0).item() == pytest.approx(
            expected, rel=4 * torch.finfo(dtype).eps + 1e-4
        )


@every_dtype
@every_path_of_ours
def test_a_key_beyond_the_range_can_be_masked(attention, dtype):
    q, v = torch.tensor([[1.0, 0.0]], dtype=dtype), torch.tensor([[1.0], [100.0]], dtype=dtype)
    k = torch.stack([torch.zeros(2), torch.tensor([-6e4, -8e4])]).to(dtype)
    assert attention(q, k, v, torch.tensor([[True, False]])).item() == 1


@every_path
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_small_weights_of_scaled_scores_do_not_vanish(attention, dtype):
    q, v = torch.ones(1, 128, dtype=dtype), torch.tensor([[0.0], [1.0]], dtype=dtype)
    k = torch.tensor([[1.0] * 125 + [0.0] * 3, [0.0] * 128], dtype=dtype)
    expected = reference(q.double(), k.double(), v.double())
    assert 1.5e-5 < expected < 1.7e-5
    assert attention(q, k, v).item() == near(expected, dtype)
