"""What is online about online attention: any chunks, bounded memory, and no more protection.

Its laws as an attention function are tested in `test_attention`, together with explicit attention.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from attention_scaling import explicit_attention, online_attention

from .attention_cases import assert_near, build, cases, inputs, masks


@given(
    cases,
    st.integers(1, 7),
    st.none() | st.floats(0.5, 30),
    st.none() | st.floats(-3, 3),
    st.sampled_from(["zero", "uniform"]),
)
def test_any_chunking_equals_explicit_attention(case, chunk_size, softcap, sink, masked_rows):
    tensors, options = build(case)
    options |= {"softcap": softcap, "masked_rows": masked_rows}
    leaves = [t.requires_grad_() for t in tensors]
    if sink is not None:
        sinks = torch.full((tensors[0].shape[1],), sink, dtype=torch.float64, requires_grad=True)
        options["sinks"] = sinks
        leaves.append(sinks)
    if options.get("attn_mask") is not None and options["attn_mask"].is_floating_point():
        leaves.append(options["attn_mask"].requires_grad_())
    explicit = explicit_attention(*tensors, **options, return_weights=True)
    online = online_attention(*tensors, **options, return_weights=True, chunk_size=chunk_size)
    for mine, other in zip(online, explicit, strict=True):
        assert_near(mine.detach(), other.detach())
    gradients = (
        torch.autograd.grad(
            result[0].cos().sum(), leaves, allow_unused=True, materialize_grads=True
        )
        for result in (online, explicit)
    )
    for mine, other in zip(*gradients, strict=True):
        # A gradient sums up to S·E terms with factors below 2: 50 times the error of a weight.
        assert_near(mine, other, 1e-11)


@pytest.mark.parametrize("masked", [{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 2}, {0, 1, 2}], ids=str)
@pytest.mark.parametrize("sink", [None, 0.4])
def test_chunks_that_are_masked_as_a_whole(masked, sink):
    q, k, v = inputs(1)
    keep = torch.ones(3, 6, dtype=torch.bool)
    for chunk in masked:
        keep[1:, 2 * chunk : 2 * chunk + 2] = False  # the first query sees all
    bias = torch.zeros(3, 6, dtype=torch.float64).masked_fill(~keep, -math.inf)
    for mask in (keep, bias):
        leaves = [t.clone().requires_grad_() for t in (q, k, v)]
        output = online_attention(*leaves, mask, sinks=sink, chunk_size=2)
        assert_near(output.detach(), explicit_attention(q, k, v, mask, sinks=sink))
        assert all(g.isfinite().all() for g in torch.autograd.grad(output.sum(), leaves))
    if len(masked) == 3:
        assert (output[:, :, 1:] == 0).all()


def test_causal_chunks_with_more_keys_than_queries_and_fewer():
    for length, keys in ((3, 10), (10, 3)):
        q, k, v = inputs(2, (1, 2, length, 5), length=keys)
        for chunk_size in (1, 2, 4, 10):
            online = online_attention(q, k, v, is_causal=True, chunk_size=chunk_size)
            assert_near(online, explicit_attention(q, k, v, is_causal=True))


class Largest(TorchDispatchMode):
    """Keeps the number of elements of the largest tensor that an operation returns."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not result._is_view():
            self.numel = max(self.numel, result.numel())
        return result


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"softcap": 5.0, "sinks": 0.1}])
def test_never_more_than_one_chunk_of_logits(options):
    length, keys, chunk_size = 128, 1024, 16
    q, k, v = (torch.randn(n, 4, dtype=torch.float32) for n in (length, keys, keys))
    with Largest() as online, torch.no_grad():
        online_attention(q, k, v, chunk_size=chunk_size, **options)
    assert online.numel <= length * chunk_size
    with Largest() as explicit, torch.no_grad():
        explicit_attention(q, k, v, **options)
    assert explicit.numel == length * keys


def test_many_chunks_do_not_wear_the_result_out():
    """2,000 chunks of one key, each with four roundings: 2000·4·2⁻⁵³ < 9e-13, relatively."""
    q, k, v = inputs(3, (1, 1, 2, 8), length=2000)
    exact = explicit_attention(q, k, v)
    assert_near(online_attention(q, k, v, chunk_size=1), exact)
    rising = torch.linspace(-2, 2, 2000, dtype=torch.float64)[:, None]  # a new maximum every time
    k = rising * q[0, 0, 0] / q[0, 0, 0].norm()
    assert_near(
        online_attention(q, k[None, None], v, chunk_size=1),
        explicit_attention(q, k[None, None], v),
    )


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (torch.float16, 6e4),
        (torch.bfloat16, 1e18),
        (torch.float32, 1e19),
        (torch.float64, 1e154),
    ],
)
@pytest.mark.parametrize("chunk_size", [1, 2, 3])
def test_finite_logits_of_any_size(dtype, size, chunk_size):
    """Logits near the limit of the working format: one-hot, and halves where two are equal."""
    q = torch.tensor([[size]], dtype=dtype)
    k = torch.tensor([[-size], [size], [size / 2]], dtype=dtype)
    v = torch.tensor([[1.0], [2.0], [4.0]], dtype=dtype)
    for attention in (
        lambda *t, **o: online_attention(*t, chunk_size=chunk_size, **o),
        explicit_attention,
    ):
        assert attention(q, k, v).item() == 2
        assert attention(q, k[[1, 0, 1]], v[[0, 1, 2]]).item() == 2.5
        assert attention(-q, k, v).item() == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_near_the_largest_number_do_not_overflow(dtype):
    """The running output is a mean, never a sum."""
    q, k, _ = (t[0, 0].to(dtype) for t in inputs(4))
    v = torch.full((6, 2), 0.99 * torch.finfo(dtype).max, dtype=dtype)
    v[3] *= -1
    for chunk_size in (1, 2, 6):
        online = online_attention(q, k, v, chunk_size=chunk_size)
        assert online.isfinite().all()
        torch.testing.assert_close(online, explicit_attention(q, k, v), rtol=1e-2, atol=1e33)


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_the_output_of_a_prefix_is_the_state_of_the_whole(seed, n):
    """Keys after the n-th that get no weight leave what the first n made."""
    q, k, v = inputs(seed)
    keep = torch.arange(6) < n
    whole = online_attention(q, k, v, keep, chunk_size=1)
    assert torch.equal(whole, online_attention(q, k[..., :n, :], v[..., :n, :], chunk_size=1))


def test_scores_that_overflowed_before_are_nan_here_too():
    row = torch.tensor([65504.0 * 2, 3.0]).half().float()  # inf, as a float16 product leaves it
    q, v = torch.ones(1, 1), torch.ones(2, 1)
    for chunk_size in (1, 2):
        assert online_attention(q, row[:, None], v, scale=1.0, chunk_size=chunk_size).isnan().all()
    assert explicit_attention(q, row[:, None], v, scale=1.0).isnan().all()


def test_half_precision_weights_are_rounded_once_too():
    q, k, v = (t.half() for t in inputs(5))
    keep, _ = masks(5)
    for mine, wide in zip(
        online_attention(q, k, v, keep, return_weights=True, chunk_size=4),
        online_attention(q.float(), k.float(), v.float(), keep, return_weights=True, chunk_size=4),
        strict=True,
    ):
        assert torch.equal(mine, wide.half())
    assert np.isfinite(mine.float().numpy()).all()
