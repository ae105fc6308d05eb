"""Rotary embedding: complex multiplication as reference, and the laws of rotations."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_scaling import apply_rotary, rotary_frequencies, yarn_attention_factor

from .reference import rotate

#: Entries below 4, angles below 1000 exact to 1000·2⁻⁵², twice: 4·2·2.2e-13. Laws at smaller
#: angles are held to 1e-12.
NEAR = 4e-12
seeds = st.integers(0, 2**32 - 1)
pairings = st.booleans()
bases = st.sampled_from([100.0, 10000.0, 500000.0])


def tokens(seed, length=5, d=8):
    return torch.tensor(np.random.default_rng(seed).uniform(-2, 2, (length, d)))


@given(seeds, pairings, bases, st.sampled_from([2, 4, 10]))
def test_equals_complex_multiplication(seed, interleaved, base, d):
    x = tokens(seed, d=d)
    positions = torch.tensor(np.random.default_rng(seed).integers(0, 1000, 5))
    mine = apply_rotary(x, positions, base=base, interleaved=interleaved)
    expected = rotate(x.numpy(), positions.numpy(), base, interleaved)
    np.testing.assert_allclose(mine.numpy(), expected, rtol=0, atol=NEAR)


def test_frequencies():
    frequencies = rotary_frequencies(64)
    assert frequencies.dtype == torch.float64
    assert frequencies.shape == (32,)
    assert frequencies[0] == 1
    expected = [10000 ** (-2 * i / 64) for i in range(32)]
    assert frequencies.tolist() == pytest.approx(expected, rel=1e-14)
    assert rotary_frequencies(4, 100.0).tolist() == pytest.approx([1, 0.1], rel=1e-15)


@given(seeds, pairings)
def test_identity_at_position_zero(seed, interleaved):
    x = tokens(seed)
    assert torch.equal(apply_rotary(x, torch.zeros(5), interleaved=interleaved), x)


@given(seeds, pairings, bases)
def test_norms_are_kept_and_so_are_products_at_one_position(seed, interleaved, base):
    x, y = tokens(seed), tokens(seed + 1)
    positions = torch.arange(5) * 17
    turned = [apply_rotary(t, positions, base=base, interleaved=interleaved) for t in (x, y)]
    torch.testing.assert_close(turned[0].norm(dim=-1), x.norm(dim=-1), rtol=0, atol=1e-12)
    torch.testing.assert_close((turned[0] * turned[1]).sum(-1), (x * y).sum(-1), rtol=0, atol=1e-12)


@given(pairings)
def test_the_matrix_is_orthogonal(interleaved):
    rows = apply_rotary(
        torch.eye(8, dtype=torch.float64), torch.full((8,), 7), interleaved=interleaved
    )
    torch.testing.assert_close(rows @ rows.T, torch.eye(8, dtype=torch.float64), rtol=0, atol=1e-14)
    assert torch.linalg.det(rows) == pytest.approx(1, abs=1e-12)


@given(seeds, pairings, st.integers(-50, 50), st.integers(-50, 50))
def test_turns_add_up(seed, interleaved, m, n):
    x = tokens(seed)

    def turn(t, by):
        return apply_rotary(t, torch.tensor([by]), interleaved=interleaved)

    torch.testing.assert_close(turn(turn(x, m), n), turn(x, m + n), rtol=0, atol=1e-12)
    torch.testing.assert_close(turn(turn(x, m), -m), x, rtol=0, atol=1e-12)


@given(seeds, pairings, st.integers(0, 100), st.integers(0, 100), st.integers(-100, 100))
def test_products_depend_on_the_distance_only(seed, interleaved, m, n, shift):
    q, k = tokens(seed, length=1), tokens(seed + 1, length=1)

    def product(at_q, at_k):
        turned = [
            apply_rotary(t, torch.tensor([at]), interleaved=interleaved)
            for t, at in ((q, at_q), (k, at_k))
        ]
        return float((turned[0] * turned[1]).sum())

    assert product(m + shift, n + shift) == pytest.approx(product(m, n), abs=NEAR)
    assert product(m - n, 0) == pytest.approx(product(m, n), abs=NEAR)


def test_products_do_depend_on_the_distance():
    q = torch.ones(1, 2, dtype=torch.float64)
    turned = apply_rotary(q, torch.tensor([2]))
    assert float((turned * q).sum()) == pytest.approx(2 * math.cos(2), rel=1e-14)


def test_pairings_are_one_another_with_features_permuted():
    x = tokens(1)
    positions = torch.arange(5)
    order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])  # half-split pairs (i, i + 4), side by side
    interleaved = apply_rotary(x[:, order], positions, interleaved=True)
    assert torch.equal(interleaved, apply_rotary(x, positions)[:, order])
    swapped = apply_rotary(x, positions, interleaved=True)
    assert (swapped - apply_rotary(x, positions)).abs().max() > 0.1
    # by hand: at position 1 the fastest pair turns by one radian
    one = torch.zeros(1, 8, dtype=torch.float64)
    one[0, 0] = 1
    split = apply_rotary(one, torch.tensor([1]))[0]
    assert split.nonzero().flatten().tolist() == [0, 4]
    assert split[[0, 4]].tolist() == pytest.approx([math.cos(1), math.sin(1)], rel=1e-15)
    beside = apply_rotary(one, torch.tensor([1]), interleaved=True)[0]
    assert beside.nonzero().flatten().tolist() == [0, 1]


@pytest.mark.parametrize("interleaved", [False, True])
def test_partial_rotation(interleaved):
    x = tokens(2)
    positions = torch.arange(5)
    mine = apply_rotary(x, positions, rotary_dim=4, interleaved=interleaved, attention_factor=2.0)
    alone = apply_rotary(x[:, :4], positions, interleaved=interleaved)
    torch.testing.assert_close(mine[:, :4], 2 * alone, rtol=1e-15, atol=1e-15)
    assert torch.equal(mine[:, 4:], x[:, 4:])


def test_isotropic_variance_is_kept_and_other_variance_is_not():
    """Var = tr(Σ_q R Σ_k Rᵀ): with Σ = diag(2, 0) it is 4 cos²θ, with Σ = I it stays d."""
    for theta in (0.0, math.pi / 4, math.pi / 2):
        angle = torch.tensor([theta], dtype=torch.float64)
        rotation = apply_rotary(torch.eye(2, dtype=torch.float64), angle)
        skew = torch.diag(torch.tensor([2.0, 0.0], dtype=torch.float64))
        variance = torch.trace(skew @ rotation @ skew @ rotation.T)
        assert float(variance) == pytest.approx(4 * math.cos(theta) ** 2, abs=1e-14)
        assert float(torch.trace(rotation @ rotation.T)) == pytest.approx(2, abs=1e-14)


def test_yarn_factor():
    assert yarn_attention_factor(1) == yarn_attention_factor(0.5) == 1
    assert yarn_attention_factor(32) == pytest.approx(1.346574, abs=1e-6)
    assert yarn_attention_factor(40, 0.707) == pytest.approx(1.260804, abs=1e-6)
    assert yarn_attention_factor(16) == pytest.approx(0.1 * math.log(16) + 1, rel=1e-15)
    # It multiplies q and k, and so logits by its square.
    factor = yarn_attention_factor(32)
    q, k = tokens(3, length=1), tokens(4, length=1)
    plain, stretched = (
        [apply_rotary(t, torch.tensor([9]), attention_factor=f) for t in (q, k)]
        for f in (1.0, factor)
    )
    torch.testing.assert_close(
        stretched[0].norm() / plain[0].norm(), torch.tensor(factor).double(), rtol=0, atol=1e-7
    )
    ratio = (stretched[0] * stretched[1]).sum() / (plain[0] * plain[1]).sum()
    assert float(ratio) == pytest.approx(1.81326, abs=1e-5)


def test_positions_broadcast_and_dtypes_are_kept():
    x = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(5))
    shared = apply_rotary(x, torch.arange(5))
    assert torch.equal(shared, apply_rotary(x, torch.arange(5).expand(2, 1, 5)))
    own = torch.stack([torch.arange(5), torch.arange(5) + 100])[:, None]  # (2, 1, 5)
    assert torch.equal(apply_rotary(x, own)[0], shared[0])
    assert not torch.equal(apply_rotary(x, own)[1], shared[1])
    for dtype in (torch.float16, torch.bfloat16):
        half = apply_rotary(x.to(dtype), torch.arange(5))
        assert half.dtype == dtype
        assert torch.equal(half, apply_rotary(x.to(dtype).float(), torch.arange(5)).to(dtype))
    # far out, a float32 angle is off by 1e6·2⁻²⁴ = 0.06; ours is not
    far = apply_rotary(torch.ones(1, 2), torch.tensor([1_000_001]))
    exact = [math.cos(1_000_001) - math.sin(1_000_001), math.cos(1_000_001) + math.sin(1_000_001)]
    assert far[0].tolist() == pytest.approx(exact, abs=1e-6)


def test_gradients():
    x = tokens(6).requires_grad_()
    for interleaved in (False, True):

        def turn(t, interleaved=interleaved):
            return apply_rotary(t, torch.arange(5), interleaved=interleaved, rotary_dim=6)

        assert torch.autograd.gradcheck(turn, x)
