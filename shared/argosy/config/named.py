"""What a run has several of by name, rollout pools and reward services: typed sections, and one's own keys in place."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from argosy.types.errors import ConfigError

S = TypeVar("S")


def typed_sections(kind: type[S], given: Mapping[str, Any], path: str, wanted: str) -> dict[str, S]:
    """The sections by name, in the order given.

    Args:
        kind: Dataclass of a section.
        given: Name → its keys.
        path: Full key of `given`, for messages.
        wanted: What a section looks like, for messages.

    Raises ConfigError with every problem of every section.
    """
    from argosy.config.convert import build_section

    problems: list[str] = []
    sections: dict[str, S] = {}
    for name, values in given.items():
        if not isinstance(values, Mapping):
            problems.append(f"{path}.{name}: {wanted}, got {values!r}")
            continue
        try:
            sections[name] = build_section(kind, values, f"{path}.{name}.")
        except ConfigError as error:
            problems.append(error.message)
    if problems:
        raise ConfigError("\n".join(problems))
    return sections


def choose(names: Collection[str], name: str | None, *, option: str, which: str, absent: str) -> str:
    """The name that a server has; the only one need not be said. Raises ConfigError on none of these.

    Args:
        names: All there are.
        name: What the server was told.
        option: Where it is told, for messages.
        which: The question if it wasn't.
        absent: What to say of a name that isn't there.
    """
    if name is None and len(names) == 1:
        return next(iter(names))
    if name is None or name not in names:
        raise ConfigError(f"{option}: {which if name is None else absent} The configuration has: {', '.join(names)}")
    return name


def placed(path: str, key: str, value: Any, run_wide: frozenset[str], why: str, problems: list[str]) -> dict[str, Any]:
    """Full key → value for one override, in any spelling that is honoured; else a further line in `problems`.

    Args:
        path: Where it was given.
        key: The key of the whole run that it stands for.
        value: Its value.
        run_wide: Keys that are the same for all of the run.
        why: What to say of those.
        problems: Gets what is wrong.
    """
    from argosy.config.lookup import targets_of

    targets = targets_of(key)
    if not targets:
        problems.append(f"{path}: {key} is no key that has an effect here")
    elif run_wide.intersection(targets):
        problems.append(f"{path}: {why}; set {targets[0]}")
    return dict.fromkeys(targets, value)
