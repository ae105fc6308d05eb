"""Floating-point formats as data, and rounding to them as arithmetic.

PyTorch has the formats; what it does not have is a rounding one can look at, or ask where it ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from attention_scaling import _arrays
from attention_scaling._arrays import Array

__all__ = ["FORMATS", "FloatFormat", "float_format", "round_to_format"]


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format: one sign bit, exponent bits, mantissa bits.

    Parameters
    ----------
    name : str
        PyTorch's name of it, a key of `FORMATS`.
    dtype : torch.dtype
    exponent_bits, mantissa_bits : int
        Stored bits; a normal number has one more, implicit, bit of mantissa.
    has_infinity : bool
        True: the largest exponent means infinity and NaN, as in IEEE 754. False ("fn", finite):
        it holds numbers too, and only the pattern of all ones is NaN.

    References
    ----------
    IEEE 754-2019, §3. Micikevicius et al. (2022), "FP8 formats for deep learning", Table 1, for
    e4m3 and e5m2.
    """

    name: str
    dtype: torch.dtype
    exponent_bits: int
    mantissa_bits: int
    has_infinity: bool = True

    @property
    def bits(self) -> int:
        """Size of one number in bits."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def eps(self) -> float:
        """Distance from 1 to the next larger number: 2 to the power −mantissa_bits."""
        return 2.0**-self.mantissa_bits

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number; below it the spacing stays what it is."""
        return 2 - (1 << (self.exponent_bits - 1))

    @property
    def max_exponent(self) -> int:
        """Exponent of the largest number."""
        return (1 << (self.exponent_bits - 1)) - (1 if self.has_infinity else 0)

    @property
    def max(self) -> float:
        """Largest finite number: 65504 in float16, 448 in float8_e4m3fn."""
        largest_mantissa = 2.0 - self.eps if self.has_infinity else 2.0 - 2 * self.eps
        return largest_mantissa * 2.0**self.max_exponent

    @property
    def min_normal(self) -> float:
        """Smallest positive number of full precision."""
        return 2.0**self.min_exponent

    @property
    def min_subnormal(self) -> float:
        """Smallest positive number; all numbers are multiples of it."""
        return self.min_normal * self.eps

    @property
    def overflow_boundary(self) -> float:
        """Half a step beyond `max`: 65520 in float16, 464 in float8_e4m3fn.

        Smaller magnitudes round to a finite number and larger ones are out of range. At the
        boundary the tie goes to the even neighbour: out of range in the IEEE formats
        (`boundary_overflows`), down to `max` in float8_e4m3fn.
        """
        return self.max + 0.5 * self.eps * 2.0**self.max_exponent

    @property
    def boundary_overflows(self) -> bool:
        """Whether `overflow_boundary` itself is out of range; true of the IEEE formats."""
        return self.has_infinity


#: Formats by PyTorch's name.
FORMATS: Mapping[str, FloatFormat] = MappingProxyType(
    {
        fmt.name: fmt
        for fmt in (
            FloatFormat("float32", torch.float32, 8, 23),
            FloatFormat("float16", torch.float16, 5, 10),
            FloatFormat("bfloat16", torch.bfloat16, 8, 7),
            FloatFormat("float8_e4m3fn", torch.float8_e4m3fn, 4, 3, has_infinity=False),
            FloatFormat("float8_e5m2", torch.float8_e5m2, 5, 2),
        )
    }
)


def float_format(fmt: str | torch.dtype | FloatFormat) -> FloatFormat:
    """Look up a format by name or dtype; an own `FloatFormat` is returned as it is.

    Parameters
    ----------
    fmt : str, torch.dtype or FloatFormat
        For example ``"float16"`` or ``torch.float16``.

    Returns
    -------
    FloatFormat

    Raises
    ------
    KeyError
        If no format goes by that name.
    """
    if isinstance(fmt, FloatFormat):
        return fmt
    name = str(fmt).removeprefix("torch.")
    if name not in FORMATS:
        raise KeyError(f"fmt must be a FloatFormat or one of {', '.join(FORMATS)}, got {fmt!r}")
    return FORMATS[name]


def round_to_format(
    values: Array, fmt: str | torch.dtype | FloatFormat, *, saturate: bool = False
) -> Array:
    """Round to the nearest number of a format, ties to even, once.

    The result stays in the dtype that came in, so that what follows is computed in full precision.
    A number beyond the format becomes infinite, or NaN where the format has no infinity, and so
    does infinity itself. Subnormal numbers are kept, as on CPUs and GPUs. No gradient passes.

    Converting a float64 tensor to half precision in PyTorch rounds twice, by way of float32; here
    it rounds once, as NumPy does.

    Parameters
    ----------
    values : tensor or ndarray
        float32 or float64.
    fmt : str, torch.dtype or FloatFormat
        The format to round to.
    saturate : bool
        Replace what is out of range, infinity included, by ± the largest number. For the 8-bit
        formats libraries and their versions differ here: PyTorch 2.13 saturates float8_e4m3fn,
        where earlier versions gave NaN, and does not saturate float8_e5m2.

    Returns
    -------
    tensor or ndarray
        Numbers of the format; shape, dtype and device of `values`.

    Raises
    ------
    TypeError
        If `values` is neither float32 nor float64.
    KeyError
        If `fmt` names no format.
    """
    fmt = float_format(fmt)
    given = _arrays.tensor("values", values, min_dims=0).detach()
    if given.dtype not in (torch.float32, torch.float64):
        raise TypeError(
            f"values must be float32 or float64 to hold any format's numbers, got {given.dtype}; "
            "convert it with values.float()"
        )
    x = given.double()
    # |x| = mantissa · 2^exponent with a mantissa in [½, 1), so the leading bit is exponent − 1.
    exponent = torch.frexp(x).exponent.long() - 1
    exponent = exponent.where(x.isfinite(), 0).clamp(min=fmt.min_exponent)
    spacing = _power_of_two(exponent - fmt.mantissa_bits)
    rounded = (x / spacing).round() * spacing  # torch rounds ties to even; 2^k scales exactly
    beyond = rounded.abs() > fmt.max
    limit = fmt.max if saturate else torch.inf if fmt.has_infinity else torch.nan
    rounded = torch.where(beyond, torch.sign(rounded) * limit, rounded)
    return _arrays.like(values, rounded.to(given.dtype))


def _power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """2 to an integer power from −1022 to 1023, exactly: the bits of a float64."""
    return ((exponent + 1023) << 52).view(torch.float64)
