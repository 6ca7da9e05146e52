"""A calculator: arithmetic on numbers, read as an expression tree and computed node by node; nothing is evaluated."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from argosy.controller.agents.parsers.base import Schema
from argosy.controller.agents.tools.base import BaseTool, ToolResponse

MAX_CHARACTERS = 1000
MAX_BITS = 4096
"""Of a whole number on the way: 2^4096 has 1,234 digits."""
MAX_DEPTH = 50
MAX_DIGITS = 300

Number = int | float


class CalculationError(ValueError):
    """An expression that has no value here; the message is for the model."""


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _rounded(number: Number, digits: Number = 0) -> Number:
    """`round`, whose time grows without bound with the number of digits."""
    if not isinstance(digits, int) or abs(digits) > MAX_DIGITS:
        raise CalculationError(f"round takes from {-MAX_DIGITS} to {MAX_DIGITS} digits")
    return round(number, digits) if digits else round(number)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs, "round": _rounded, "min": min, "max": max, "sqrt": math.sqrt, "exp": math.exp, "log": math.log,
    "log2": math.log2, "log10": math.log10, "sin": math.sin, "cos": math.cos, "tan": math.tan, "asin": math.asin,
    "acos": math.acos, "atan": math.atan, "floor": math.floor, "ceil": math.ceil, "gcd": math.gcd, "lcm": math.lcm,
}  # fmt: skip
_CONSTANTS = {"pi": math.pi, "e": math.e}


def calculate(expression: str) -> Number:
    """The value of an arithmetic expression. Raises CalculationError.

    `^` is taken for a power, `×`, `÷` and thousands separators as people write them are understood.

    >>> calculate("2*(3+4)^2"), calculate("7/2"), calculate("1,000 - 1")
    (98, 3.5, 999)
    """
    if len(expression) > MAX_CHARACTERS:
        raise CalculationError(f"the expression has {len(expression)} characters, at most {MAX_CHARACTERS} are read")
    try:
        tree = ast.parse(_as_python(expression), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise CalculationError("this is no arithmetic expression") from None
    try:
        return _value(tree.body, MAX_DEPTH)
    except ZeroDivisionError:
        raise CalculationError("division by zero") from None
    except OverflowError:
        raise CalculationError("the result is too large") from None
    except (ValueError, TypeError) as error:
        raise error if isinstance(error, CalculationError) else CalculationError(str(error)) from None


def written(value: Number) -> str:
    """A result as text: whole numbers without a point, others with at most 12 digits.

    >>> written(4.0), written(1 / 3)
    ('4', '0.333333333333')
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value) if isinstance(value, int) else f"{value:.12g}"


def _as_python(expression: str) -> str:
    text = expression.strip().rstrip("=").strip()
    for sign, meaning in (("^", "**"), ("×", "*"), ("÷", "/"), ("−", "-"), ("·", "*")):
        text = text.replace(sign, meaning)
    return text if "(" in text else text.replace(",", "")  # without a function's arguments commas part thousands


def _value(node: ast.expr, depth: int) -> Number:
    if depth < 1:
        raise CalculationError("the expression is nested too deeply")
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _bounded(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, depth - 1)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, depth - 1)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left, depth - 1), _value(right, depth - 1))
        case ast.BinOp(left=left, op=kind, right=right) if type(kind) in _BINARY:
            return _bounded(_BINARY[type(kind)](_value(left, depth - 1), _value(right, depth - 1)))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*(_value(one, depth - 1) for one in arguments)))
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)):
            raise CalculationError(f"{name} is not known; there are {', '.join([*_FUNCTIONS, *_CONSTANTS])}")
    raise CalculationError("only numbers, + - * / // % ^, brackets and functions are read")


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > MAX_BITS:
        raise CalculationError("the result is too large")
    return _bounded(base**exponent)


def _bounded(value: Any) -> Number:
    if isinstance(value, int) and not isinstance(value, bool):
        if value.bit_length() > MAX_BITS:
            raise CalculationError("the result is too large")
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise CalculationError("the result is not a real number")


class Calculator(BaseTool):
    """Computes one expression a call."""

    schema: ClassVar[Schema | None] = {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Computes an arithmetic expression.",
            "parameters": {
                "type": "object",
                "properties": {
                    "expression": {"type": "string", "description": "For example 2*(3+4)^2 or sqrt(2)."},
                },
                "required": ["expression"],
            },
        },
    }

    async def execute(self, instance_id: str, parameters: Mapping[str, Any], **kwargs: Any) -> ToolResponse:
        """The value as text, or why there is none."""
        try:
            return ToolResponse(written(calculate(str(parameters["expression"]))))
        except CalculationError as error:
            return ToolResponse(f"error: {error}", failed=True)
