"""The hidden tests of a row: verl's `{"inputs": […], "outputs": […], "fn_name"?: …}`, as a mapping or as JSON text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from argosy.sandbox import plain


@dataclass(frozen=True, slots=True)
class ProgramTest:
    """Standard input, and what should come out."""

    stdin: str
    stdout: str


@dataclass(frozen=True, slots=True)
class CallTest:
    """A call's arguments, encoded, and the values that are right."""

    arguments: bytes
    accepted: tuple[Any, ...]
    most_bytes: int
    """A longer claim can't be right, and isn't read. Numbers may be written otherwise: 16 times the answer's length."""


@dataclass(frozen=True, slots=True)
class Tests:
    """Tests of one kind."""

    function: str | None
    """None: programs."""
    programs: tuple[ProgramTest, ...] = ()
    calls: tuple[CallTest, ...] = ()

    __test__ = False  # not one of pytest's

    @property
    def count(self) -> int:
        """How many."""
        return len(self.programs) + len(self.calls)


def read_tests(ground_truth: Any) -> Tests:
    """Raises ValueError with what is wrong with the row."""
    if isinstance(ground_truth, str | bytes):
        try:
            ground_truth = json.loads(ground_truth)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"is no JSON: {error}") from None
    if not isinstance(ground_truth, Mapping):
        raise ValueError("is no mapping with inputs and outputs")
    inputs, outputs = ground_truth.get("inputs"), ground_truth.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not inputs or len(inputs) != len(outputs):
        raise ValueError("has no lists of inputs and outputs of the same length, at least one each")
    function = ground_truth.get("fn_name") or None
    if function is None:
        programs = tuple(map(ProgramTest, map(_text, inputs), map(_text, outputs)))
        if not any(test.stdout.strip() for test in programs):
            raise ValueError("expects no output in any test: a program that does nothing would pass")
        return Tests(None, programs=programs)
    if not isinstance(function, str) or not function.isidentifier():
        raise ValueError("has an fn_name that is no name")
    alone = all(isinstance(wanted, list) and len(wanted) == 1 for wanted in outputs)
    calls = tuple(_call(given, wanted, alone) for given, wanted in zip(inputs, outputs, strict=True))
    if all(None in test.accepted for test in calls):
        raise ValueError("expects null in every test: a function that does nothing would pass")
    return Tests(function, calls=calls)


def _text(value: Any) -> str:
    """Standard input or output: a text, or its lines."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    raise ValueError(f"has {str(value)[:80]!r} where a text, or a list of lines, belongs")


def _call(given: Any, wanted: Any, alone: bool) -> CallTest:
    """Two forms: arguments as a list, the value as it is or (`alone`: apps, in every test of the row) alone in a list;
    or both as text, the JSON of each argument on a line of its own (livecodebench).

    Where each value of a row is a list of one, nothing tells which is meant: both are right.
    """
    try:
        if isinstance(given, str):
            arguments = [json.loads(line) for line in given.split("\n") if line.strip()]
            accepted: tuple[Any, ...] = (json.loads(wanted) if isinstance(wanted, str) else wanted,)
        elif isinstance(given, list):
            arguments = given
            accepted = (wanted, wanted[0]) if alone else (wanted,)
        else:
            raise ValueError("has arguments that are neither a list nor text")
        return CallTest(plain.encode(arguments), accepted, 4096 + 16 * len(plain.encode(wanted)))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"has a call that can't be read ({str(given)[:80]!r}): {error}") from None
