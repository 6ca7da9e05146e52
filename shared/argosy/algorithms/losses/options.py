"""Mode-specific numbers of a loss, out of `LossConfig.options`, as one typed record each.

A loss declares a frozen dataclass whose fields are its options with their defaults, and checks the values in
`__post_init__` with `require`. A name that the loss doesn't know is refused: it would be a setting without effect.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, Protocol, TypeVar

from argosy.types.errors import InvalidInputError
from argosy.types.records import LossConfig


class Options(Protocol):
    """A dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


T = TypeVar("T", bound=Options)


@dataclasses.dataclass(frozen=True, slots=True)
class NoOptions:
    """Of a loss that has none."""


def read_options(kind: type[T], config: LossConfig) -> T:
    """The record `kind`, filled from the options that are set.

    Raises InvalidInputError on a name that isn't a field of it, on a value of another type than the field's default
    (an int may stand for a float), and on what `kind` itself refuses.
    """
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for name, value in config.options.items():
        if name not in fields:
            known = ", ".join(fields) or "none"
            raise InvalidInputError(f"the loss {config.loss_mode!r} has no option {name!r}; it has: {known}")
        values[name] = _converted(f"{config.loss_mode}: {name}", value, fields[name].default)
    return kind(**values)


def _converted(name: str, value: float | str | bool, default: Any) -> Any:
    if isinstance(default, float) and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(default):
        raise InvalidInputError(f"{name} must be a {type(default).__name__} like {default!r}, got {value!r}")
    return value


def require(name: str, value: float, low: float, high: float = math.inf, *, low_open: bool = False) -> None:
    """Raise InvalidInputError unless `value` is finite and in [low, high], or in (low, high] with `low_open`."""
    if math.isfinite(value) and (value > low if low_open else value >= low) and value <= high:
        return
    bounds = f"{'above' if low_open else 'at least'} {low:g}" + (f" and at most {high:g}" if high < math.inf else "")
    raise InvalidInputError(f"{name} must be {bounds}, got {value!r}")
