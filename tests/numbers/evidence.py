"""Collect the numbers that a statement may rest on, and compare.

Two kinds. A *setting* stands in the source of a cell or in the quantity of a measurement: it is
exact. A *result* was computed: printed by a cell, glued, or measured.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass, field

from .reading import SUPERSCRIPTS, Number

_UNSIGNED = r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?"
PRINTED = re.compile(
    rf"""(?<![A-Za-z0-9_.])(?<!±\ )(?:
      (?:(?P<mantissa>{_UNSIGNED})\s*[·×]\s*)?10(?P<power>\^-?[0-9]+|[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)
      |(?P<plain>{_UNSIGNED})(?:e(?P<tens>[-+]?[0-9]+))?)(?P<percent>\s?%)?""",
    re.X,
)
SMALL = {1.0, 2.0, 3.0, 4.0}


@dataclass
class Evidence:
    """The numbers that are known in one place of the book; signs are not kept."""

    settings: set[float] = field(default_factory=set)
    results: set[float] = field(default_factory=set)

    def __or__(self, other: Evidence) -> Evidence:
        return Evidence(self.settings | other.settings, self.results | other.results)

    def supports(self, number: Number) -> bool:
        """Tell whether a number is among these, at the digits it shows."""
        if number.value in (0, 1) and not number.percent and not number.step:
            return True
        # in a formula, small whole numbers and their quotients are part of the law
        in_law = set(number.parts or [number.value]) <= SMALL
        if number.formula and in_law and not number.percent:
            return True
        if number.parts and all(n == 1 or self._has(n) for n in number.parts):
            return True
        if self._has(number.value, number.step, hedged=number.hedged):
            return True
        # a result may be a percentage already; a setting is a share
        return number.percent and any(
            _rounds(100 * number.value, 100 * number.step, found) for found in self.results
        )

    def _has(self, value: float, step: float = 0.0, *, hedged: bool = False) -> bool:
        known = self.settings | self.results
        if any(_rounds(value, step, found) for found in known):
            return True
        if hedged and any(abs(found - value) <= 0.06 * value for found in self.results):
            return True
        if step:
            return False
        if value != round(value):  # a fraction
            return any(math.isclose(found, value, rel_tol=1e-3) for found in known)
        # a result may be told by a whole number, if it is not a small one
        return value >= 10 and any(_rounds(value, 1.0, found) for found in self.results)


def _rounds(value: float, step: float, found: float) -> bool:
    exact = math.isclose(found, value, rel_tol=1e-9)
    return exact or abs(found - value) <= step / 2 * (1 + 1e-6)


def printed(text: str) -> set[float]:
    """Return the numbers in what a cell printed, or in a quantity."""
    found = set()
    for match in PRINTED.finditer(text):
        if match["power"]:
            exponent = int(match["power"].lstrip("^").translate(SUPERSCRIPTS))
            mantissa = float(match["mantissa"].replace(",", "")) if match["mantissa"] else 1.0
            value = mantissa * 10.0**exponent
        else:
            value = float(match["plain"].replace(",", "")) * 10.0 ** int(match["tens"] or 0)
        found.add(value / 100 if match["percent"] else value)
    return found


def in_source(code: str) -> set[float]:
    """Return the numbers in a cell's source.

    These are its constants, what is computed from constants alone, and how many entries its
    literal lists have.
    """
    found: set[float] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.List | ast.Tuple | ast.Set) and len(node.elts) > 1:
            found.add(len(node.elts))
        elif isinstance(node, ast.Dict) and len(node.keys) > 1:
            found.add(len(node.keys))
        elif isinstance(node, ast.expr) and (value := _constant(node)) is not None:
            found.add(abs(value))
    return found


def _constant(node: ast.AST) -> float | None:
    if isinstance(node, ast.Constant):
        number = isinstance(node.value, int | float) and not isinstance(node.value, bool)
        return float(node.value) if number else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        operand = _constant(node.operand)
        return None if operand is None else -operand
    if isinstance(node, ast.BinOp):
        left, right = _constant(node.left), _constant(node.right)
        if left is None or right is None:
            return None
        try:
            return {
                ast.Add: lambda: left + right,
                ast.Sub: lambda: left - right,
                ast.Mult: lambda: left * right,
                ast.Div: lambda: left / right,
                ast.Pow: lambda: float(left**right),
            }[type(node.op)]()
        except (KeyError, ArithmeticError):
            return None
    return None


def draws(code: str) -> bool:
    """Tell whether a cell draws: its source is full of places and sizes, which state nothing."""
    return "subplots(" in code
