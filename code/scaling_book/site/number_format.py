"""Numbers as a card shows them: as many digits as they deserve."""

from __future__ import annotations

import math

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def significant(value: float, digits: int = 4) -> str:
    """Return `value` with so many significant digits at most; whole numbers below 10⁶ in full."""
    if not math.isfinite(value):
        return "∞" if value == math.inf else "−∞" if value == -math.inf else "NaN"
    if value == round(value) and abs(value) < 1e6:
        return _signed(f"{value:.0f}")
    mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
    exponent = int(power)  # after rounding: 9.9996 counts as 10.00
    if not -4 <= exponent < 6:
        return f"{_signed(_trim(mantissa))} · 10{str(exponent).translate(SUPERSCRIPTS)}"
    return _signed(_trim(f"{value:.{max(0, digits - 1 - exponent)}f}"))


def with_error(value: float, standard_error: float | None) -> str:
    """Return ``64.1 ± 0.5``: the error with one digit, two if it begins with 1."""
    if not standard_error or not math.isfinite(standard_error) or not math.isfinite(value):
        return significant(value)
    exponent = math.floor(math.log10(standard_error))
    leading = round(standard_error / 10.0**exponent, 1)
    decimals = max(0, -exponent + (1 if leading < 2 else 0))
    if decimals > 6:
        return f"{significant(value)} ± {significant(standard_error, 2)}"
    return f"{_signed(f'{value:.{decimals}f}')} ± {standard_error:.{decimals}f}"


def _trim(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def _signed(text: str) -> str:
    if text.startswith("-") and float(text) == 0:  # −0.00 says no more than 0.00
        text = text[1:]
    return text.replace("-", "−")
