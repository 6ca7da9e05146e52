"""Which of our fields a full path names, and what the key table says about it."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from argosy.config.convert import describe, field_types
from argosy.config.keys import Honoured, Refused, Warned, find
from argosy.config.schema import Config
from argosy.config.suggest import suggest


@dataclass(frozen=True)
class Leaf:
    """A field that takes a value."""

    path: str
    kind: Any
    """Its type."""
    inside: str = ""
    """Path below the field, where the field is a free mapping: "path.to.key" of reward_kwargs.path.to.key."""

    @property
    def is_mapping(self) -> bool:
        """Whether the field takes any keys."""
        return is_mapping_type(self.kind)

    @property
    def is_text(self) -> bool:
        """Whether a single value given to it is text: a str, or a str or null, or a list of str."""
        if self.inside:
            return self.is_mapping and typing.get_args(self.kind)[1] is str
        options = typing.get_args(self.kind) if isinstance(self.kind, types.UnionType) else (self.kind,)
        return any(option is str or option == tuple[str, ...] for option in options)


@dataclass(frozen=True)
class Verdict:
    """What is to be done with one key and value."""

    targets: tuple[str, ...] = ()
    """Our paths that take the value; empty if it is dropped."""
    warning: str = ""
    problem: str = ""


def is_mapping_type(kind: Any) -> bool:
    """Whether a field's type is a free mapping."""
    origin = typing.get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def find_leaf(path: str) -> Leaf | None:
    """The field that a full path names, or None if it names a section or nothing."""
    section: type[Any] = Config
    names = path.split(".")
    for i, name in enumerate(names):
        kind = field_types(section).get(name)
        if kind is None:
            return None
        if dataclasses.is_dataclass(kind):
            section = typing.cast("type[Any]", kind)
            continue
        leaf = Leaf(".".join(names[: i + 1]), kind, ".".join(names[i + 1 :]))
        return leaf if not leaf.inside or leaf.is_mapping else None
    return None


def is_section(path: str) -> bool:
    """Whether a full path names a section."""
    kind: Any = Config
    for name in path.split("."):
        kind = field_types(kind).get(name)
        if not dataclasses.is_dataclass(kind):
            return False
    return True


def targets_of(path: str) -> tuple[str, ...]:
    """Our full paths for a path in any spelling that is honoured; empty if it isn't."""
    if find_leaf(path):
        return (path,)
    row = find(path)
    if row is None or not isinstance(row[1], Honoured):
        return ()
    below = path[len(row[0]) :]
    return tuple(f"{target}{below}" for target in row[1].targets if find_leaf(f"{target}{below}"))


def judge(path: str, value: Any) -> Verdict:
    """What becomes of a key that was given a value."""
    targets = targets_of(path)
    if targets:
        return Verdict(targets=targets)
    row = find(path)
    if row is None or isinstance(row[1], Honoured):
        return Verdict(problem=f"{path}: no such key. {suggest(path)}")
    entry = row[1]
    if any(_same(value, neutral) for neutral in entry.neutral):
        return Verdict()
    if isinstance(entry, Refused):
        return Verdict(problem=f"{path}={show(value)} is refused: {entry.reason}.{_accepted(entry.neutral)}")
    return _warn(path, value, entry)


def _warn(path: str, value: Any, entry: Warned) -> Verdict:
    if isinstance(value, str) and value in entry.refused_values:
        return Verdict(problem=f"{path}={show(value)} is refused: {entry.refused_values[value]}.")
    return Verdict(warning=f"{path}={show(value)} has no effect: {entry.reason}.")


def _accepted(neutral: tuple[Any, ...]) -> str:
    shown = [show(value) for value in neutral]
    return f" (Accepted: {' or '.join(shown)}.)" if shown else ""


def _same(value: Any, neutral: Any) -> bool:
    """Equal, without 1 == True."""
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)


def show(value: Any) -> str:
    """A value as one would type it."""
    return str(value) if isinstance(value, str) else describe(value)
