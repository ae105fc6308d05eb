"""The inputs of the casebook's page on masks, through every path of the library.

Expected values are computed by hand or in NumPy over the kept keys alone. A row is one query 1 with
scale 1, so the keys are the scores. Tolerances: a few roundings of the format, as logits are exact.
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
NOBODY = [[False, False]]
FIRST = [[True, False]]

every_path = pytest.mark.parametrize("attention", PATHS.values(), ids=PATHS)
every_path_of_ours = pytest.mark.parametrize("attention", OURS.values(), ids=OURS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def row(attention, scores, values, mask=None, dtype=torch.float32, **options):
    q = torch.ones(1, 1, dtype=dtype)
    k, v = (torch.tensor(x, dtype=dtype)[:, None] for x in (scores, values))
    if mask is not None:
        mask = torch.tensor(mask, dtype=None if isinstance(mask[0][0], bool) else dtype)
    return attention(q, k, v, mask, scale=1.0, **options).item()


def reference(scores, values, keep=True):
    z, v = np.array([scores, values], dtype=np.float64)
    keep = np.broadcast_to(keep, z.shape)
    p = np.exp(z[keep] - z[keep].max())
    return p @ v[keep] / p.sum()


def near(expected, dtype):
    return pytest.approx(expected, rel=4 * torch.finfo(dtype).eps)


@every_dtype
@every_path
@pytest.mark.parametrize(
    ("policy", "expected"), [("zero", 0.0), ("uniform", 1.5), ("nan", math.nan)]
)
def test_a_row_without_a_key_follows_the_policy(attention, dtype, policy, expected):
    for mask in (NOBODY, [[-math.inf, -math.inf]]):
        found = row(attention, [0, 0], [1, 2], mask, dtype, masked_rows=policy)
        assert found == pytest.approx(expected, nan_ok=True)


@every_dtype
@every_path
def test_an_ignored_row_reaches_no_gradient(attention, dtype):
    k, v = torch.tensor([[[1.0], [2.0]], [[1.0], [3.0]]], dtype=dtype).requires_grad_()
    keep = torch.tensor([[True, True], NOBODY[0]])
    loss = attention(torch.ones(2, 1, dtype=dtype), k, v, keep)[0].sum()
    p = np.exp([1.0, 2.0]) / np.exp([1.0, 2.0]).sum()
    expected = [p * ([1, 3] - p @ [1, 3]), p]
    for found, right in zip(torch.autograd.grad(loss, (k, v)), expected, strict=True):
        # gradients of a few roundings: p, v − o, their product
        tolerance = 8 * torch.finfo(dtype).eps
        np.testing.assert_allclose(found.double().flatten(), right, rtol=0, atol=tolerance)


@every_path
def test_a_live_score_that_is_nan_stays_visible(attention):
    assert math.isnan(row(attention, [math.nan, 0.0], [1, 2], FIRST))
    assert math.isnan(row(attention, [math.nan, 0.0], [1, 2], [[0.0, -math.inf]]))


@every_path
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_lowest_number_means_uniform_and_a_boolean_mask_zero(attention, dtype):
    lowest = torch.finfo(dtype).min
    assert row(attention, [3, 1], [1, 2], [[lowest, lowest]], dtype) == 1.5
    assert row(attention, [3, 1], [1, 2], NOBODY, dtype) == 0


@every_path
@pytest.mark.parametrize("scores", [[-15, -17], [-16, -20], [-16, -16], [16, -30]])
def test_the_lowest_float16_number_plus_a_score_is_added_in_float32(attention, scores):
    lowest = torch.finfo(torch.float16).min
    expected = reference(np.array(scores) + lowest, [1, 2])
    found = row(attention, scores, [1, 2], [[lowest, lowest]], torch.float16)
    assert found == near(expected, torch.float16)
    assert row(attention, scores, [1, 2], NOBODY, torch.float16) == 0


@every_dtype
@every_path
def test_two_masks_combined_as_sets(attention, dtype):
    causal = torch.ones(3, 3, dtype=torch.bool).tril()
    keep = causal & torch.tensor([False, False, True])
    one = torch.ones(3, 1, dtype=dtype)
    v = torch.tensor([[1.0], [2.0], [6.0]], dtype=dtype)
    assert attention(one, one, v, keep).flatten().tolist() == [0.0, 0.0, 6.0]
    lowest = torch.finfo(dtype).min
    single = torch.zeros(3, 3, dtype=dtype).masked_fill(~keep, lowest)
    found = attention(one, one, v, single).flatten().tolist()
    assert found == near([3.0, 3.0, 6.0], dtype)


@every_dtype
@every_path
def test_masks_added_twice_stay_finite_and_never_nan(attention, dtype):
    lowest = torch.finfo(dtype).min
    once = torch.zeros(3, 3, dtype=dtype)
    causal = torch.ones(3, 3, dtype=torch.bool).tril()
    twice = once.masked_fill(~causal, lowest) + once.masked_fill(
        torch.tensor([True, True, False]), lowest
    )
    assert twice.isinf().any()
    one = torch.ones(3, 1, dtype=dtype)
    v = torch.tensor([[1.0], [2.0], [6.0]], dtype=dtype)
    # what was asked for: key 1 of row 0 is masked by −∞, the others by the lowest number
    assert attention(one, one, v, twice)[0].item() == near(3.5, dtype)
    # in rows 1 and 2, which are masked once or not at all
    assert attention(one, one, v, twice)[1].item() == near(3.0, dtype)
    assert attention(one, one, v, twice)[2].item() == 6.0


@every_dtype
@every_path_of_ours
@pytest.mark.parametrize("hidden", [1e4, math.inf, -math.inf, math.nan])
def test_what_hides_behind_a_mask_is_of_no_account(attention, dtype, hidden):
    for mask in (FIRST, [[0.0, -math.inf]]):
        assert row(attention, [1, 1], [1, hidden], mask, dtype) == 1
        assert row(attention, [1, hidden], [1, 2], mask, dtype) == 1


@every_path_of_ours
@pytest.mark.parametrize("hidden", [math.inf, math.nan])
def test_what_hides_behind_a_mask_reaches_no_gradient(attention, hidden):
    q, k, v = (
        torch.tensor(x).requires_grad_()
        for x in ([[1.0]], [[1.0], [2.0], [hidden]], [[1.0], [3.0], [hidden]])
    )
    loss = attention(q, k, v, torch.tensor([[True, True, False]])).sum()
    gradients = torch.autograd.grad(loss, (q, k, v))
    assert all(g.isfinite().all() for g in gradients)
    assert gradients[1][2] == gradients[2][2] == 0


@every_dtype
@every_path
@pytest.mark.parametrize("live", [-20_000.0, -60_000.0])
def test_no_sentinel_wins_against_a_very_negative_score(attention, dtype, live):
    assert row(attention, [live, 0], [1, 100], FIRST, dtype) == 1
    assert row(attention, [live, 0], [1, 100], [[0.0, -math.inf]], dtype) == 1


@every_dtype
@every_path
@pytest.mark.parametrize("share", [0.3, 0.9, 1.0])
def test_a_live_row_of_very_negative_scores_is_no_empty_row(attention, dtype, share):
    # as far down as float16 goes, and in wider formats as far as sums of values stay finite
    live = -share * min(torch.finfo(dtype).max, 1e30)
    assert row(attention, [live, live], [1, 3], dtype=dtype) == 2
    # after a chunk that is masked as a whole
    assert row(attention, [0, live, live], [9, 1, 3], [[False, True, True]], dtype) == 2


@every_dtype
@every_path
def test_a_mask_outdoes_logits_of_any_size(attention, dtype):
    assert row(attention, [-100, 100], [1, 2], FIRST, dtype) == 1
    assert row(attention, [-60_000, 60_000], [1, 2], FIRST, dtype) == 1


@every_path
@pytest.mark.parametrize("scale", [None, 1.0, 0.25, 0.0, -1.0])
@pytest.mark.parametrize("bias", [-10.0, 3.0])
def test_a_bias_is_not_multiplied_by_the_scale(attention, scale, bias):
    q, k, v = torch.zeros(1, 64), torch.ones(2, 64), torch.tensor([[0.0], [1.0]])
    found = attention(q, k, v, torch.tensor([[0.0, bias]]), scale=scale).item()
    assert found == near(reference([0, bias], [0, 1]), torch.float32)


@every_dtype
@every_path
@pytest.mark.parametrize("scale", [1.0, 0.0, -1.0, -0.5])
def test_a_causal_mask_is_not_multiplied_by_the_scale(attention, dtype, scale):
    q, v = torch.ones(1, 1, 2, 1, dtype=dtype), torch.tensor([[[[1.0], [3.0]]]], dtype=dtype)
    k = torch.tensor([[[[0.0], [1.0]]]], dtype=dtype)
    right = [1.0, reference([0, scale], [1, 3])]
    found = attention(q, k, v, is_causal=True, scale=scale).flatten().tolist()
    assert found == near(right, dtype)
    keep = torch.ones(2, 2, dtype=torch.bool).tril()
    assert attention(q, k, v, keep, scale=scale).flatten().tolist() == near(right, dtype)
