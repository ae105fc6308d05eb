"""Formats and rounding against PyTorch's own conversions, on every 8- and 16-bit pattern."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_scaling import FORMATS, FloatFormat, float_format, round_to_format

from .reference import nearest_even

NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


def all_numbers(fmt):
    """Every finite number of an 8- or 16-bit format, ascending, as float32 (which holds them)."""
    pattern = torch.arange(2**fmt.bits, dtype=torch.int32)
    integers = torch.int16 if fmt.bits == 16 else torch.uint8
    numbers = pattern.to(integers).view(fmt.dtype).float()
    return numbers[numbers.isfinite()].sort().values


def same(one, other):
    """Equal bit by bit, except that NaN equals NaN: 0 and −0 differ."""
    one, other = one.double(), other.double()
    return torch.equal(one.nan_to_num(nan=1.25), other.nan_to_num(nan=1.25)) and torch.equal(
        one.signbit() & ~one.isnan(), other.signbit() & ~other.isnan()
    )


def torch_round(x, fmt):
    """What PyTorch makes of float32; beyond e4m3fn's range, where its versions differ, NaN."""
    rounded = x.to(fmt.dtype).float()
    if not fmt.has_infinity:
        rounded = torch.where(x.abs() > fmt.overflow_boundary, math.nan, rounded)
    return rounded


@pytest.mark.parametrize("name", FORMATS)
def test_data_are_those_of_torch(name):
    fmt = FORMATS[name]
    info = torch.finfo(fmt.dtype)
    assert name == fmt.name == str(fmt.dtype).removeprefix("torch.")
    assert fmt.bits == info.bits
    assert fmt.max == info.max
    assert fmt.eps == info.eps
    assert fmt.min_normal == info.smallest_normal
    smallest = torch.ones((), dtype={8: torch.uint8, 16: torch.int16, 32: torch.int32}[fmt.bits])
    assert fmt.min_subnormal == smallest.view(fmt.dtype).double()
    assert torch.tensor(math.inf).to(fmt.dtype).float().isinf() == fmt.has_infinity


def test_overflow_boundaries():
    boundaries = {name: FORMATS[name].overflow_boundary for name in NARROW}
    assert boundaries == {
        "float16": 65520,
        "bfloat16": 255.5 * 2.0**120,
        "float8_e4m3fn": 464,
        "float8_e5m2": 61440,
    }
    for name, fmt in FORMATS.items():
        boundary = torch.tensor(fmt.overflow_boundary, dtype=torch.float64)
        below = torch.nextafter(boundary, torch.zeros_like(boundary))
        above = torch.nextafter(boundary, torch.full_like(boundary, math.inf))
        for sign in (1, -1):
            assert round_to_format(sign * below, fmt) == sign * fmt.max, name
            assert not round_to_format(sign * above, fmt).isfinite()
            tie = round_to_format(sign * boundary, fmt)
            assert tie.isfinite() != fmt.boundary_overflows
            assert fmt.boundary_overflows or tie == sign * fmt.max


@pytest.mark.parametrize("name", NARROW)
def test_every_number_of_the_format_stays(name):
    fmt = FORMATS[name]
    numbers = all_numbers(fmt)
    infinite = 2 ** (fmt.mantissa_bits + 1) if fmt.has_infinity else 2  # these and NaN are left out
    assert len(numbers) == 2**fmt.bits - infinite
    for dtype in (torch.float32, torch.float64):
        assert same(round_to_format(numbers.to(dtype), fmt), numbers)


@pytest.mark.parametrize("name", NARROW)
def test_between_neighbours_it_rounds_as_torch_does(name):
    """At every midpoint, a tie, and one float32 step to either side of it."""
    fmt = FORMATS[name]
    numbers = all_numbers(fmt).unique()  # 0 once
    midpoints = ((numbers[:-1].double() + numbers[1:].double()) / 2).float()
    away = torch.tensor([-math.inf, math.inf])
    for x in (midpoints, *(torch.nextafter(midpoints, end) for end in away)):
        assert same(round_to_format(x, fmt), torch_round(x, fmt))
        assert torch.equal(round_to_format(x, fmt), round_to_format(x.double(), fmt).float())
    down, up = (torch.nextafter(midpoints, end) for end in away)
    assert torch.equal(round_to_format(down, fmt), numbers[:-1])
    assert torch.equal(round_to_format(up, fmt), numbers[1:])


@pytest.mark.parametrize("name", NARROW)
def test_a_grid_over_all_float32_patterns(name):
    fmt = FORMATS[name]
    pattern = torch.arange(-(2**31), 2**31, 10007, dtype=torch.int64).to(torch.int32)
    x = pattern.view(torch.float32)
    assert len(x) > 400_000
    assert same(round_to_format(x, fmt), torch_round(x, fmt))


@pytest.mark.parametrize("name", NARROW)
@given(st.floats(width=32))
def test_any_float32_rounds_as_torch_does(name, x):
    x = torch.tensor(x, dtype=torch.float32)
    assert same(round_to_format(x, name), torch_round(x, FORMATS[name]))


@pytest.mark.parametrize("name", FORMATS)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_float64_rounds_once_to_the_nearest(name, x):
    fmt = FORMATS[name]
    nearest = nearest_even(x, fmt.mantissa_bits, fmt.min_exponent)
    expected = (
        float(nearest)
        if abs(nearest) <= fmt.max
        else math.copysign(math.inf, x)
        if fmt.has_infinity
        else math.nan
    )
    rounded = float(round_to_format(torch.tensor(x, dtype=torch.float64), fmt))
    assert rounded == expected or (math.isnan(expected) and math.isnan(rounded))
    if name == "float32":
        assert rounded == float(torch.tensor(x, dtype=torch.float64).float())


def test_float64_is_rounded_once_where_torch_rounds_twice():
    """1 + 2⁻¹¹ + 2⁻⁴⁰ lies above the middle of 1 and 1 + 2⁻¹⁰; float32 makes it the middle."""
    x = torch.tensor(1 + 2.0**-11 + 2.0**-40, dtype=torch.float64)
    assert round_to_format(x, "float16") == 1 + 2.0**-10
    assert float(np.float64(x).astype(np.float16)) == 1 + 2.0**-10
    assert x.half() == 1


def test_familiar_numbers():
    def rounded(x, fmt):
        return float(round_to_format(torch.tensor(x), fmt))

    assert rounded(257.0, "bfloat16") == 256
    assert rounded(37500.0, "float16") == 37504
    assert rounded(65519.0, "float16") == 65504
    assert rounded(65520.0, "float16") == math.inf
    assert rounded(-1e9, torch.float16) == -math.inf
    assert rounded(2.0**-25, torch.float16) == 0  # a tie between 0 and the smallest number
    assert rounded(2.0**-25 * 1.001, torch.float16) == 2.0**-24
    assert math.copysign(1, rounded(-1e-30, "float16")) == -1
    assert math.isnan(rounded(500.0, "float8_e4m3fn"))


def test_saturation_and_what_is_not_finite():
    x = torch.tensor([1e6, -1e6, math.inf, -math.inf, 3.0, math.nan])
    assert round_to_format(x, "float16", saturate=True).tolist()[:5] == [
        65504,
        -65504,
        65504,
        -65504,
        3,
    ]
    assert round_to_format(x, "float8_e4m3fn", saturate=True).tolist()[:5] == [
        448,
        -448,
        448,
        -448,
        3,
    ]
    for fmt in FORMATS:
        for saturate in (False, True):
            assert round_to_format(x, fmt, saturate=saturate)[5].isnan()
    assert round_to_format(x, "float8_e5m2").tolist()[:4] == [math.inf, -math.inf] * 2
    assert round_to_format(x, "float8_e4m3fn")[:4].isnan().all()


def test_kind_and_dtype_are_kept_and_no_gradient_passes():
    array = round_to_format(np.array([257.0, 3.0]), "bfloat16")
    assert isinstance(array, np.ndarray)
    assert array.dtype == np.float64
    assert array.tolist() == [256, 3]
    x = torch.tensor([1.0], requires_grad=True)
    assert round_to_format(x, "float16").dtype == torch.float32
    assert not round_to_format(x, "float16").requires_grad
    assert round_to_format(torch.empty(0, 3), "float16").shape == (0, 3)


def test_formats_by_name_by_dtype_and_of_ones_own():
    assert float_format("float16") is float_format(torch.float16) is FORMATS["float16"]
    own = FloatFormat("e3m2", torch.uint8, 3, 2)  # a toy of 6 bits
    assert float_format(own) is own
    assert (own.bits, own.max, own.min_normal, own.overflow_boundary) == (6, 14.0, 0.25, 15.0)
    rounded = round_to_format(torch.tensor([1.1, 1.2, 14.9, 15.0]), own)
    assert rounded.tolist() == [1.0, 1.25, 14.0, math.inf]
