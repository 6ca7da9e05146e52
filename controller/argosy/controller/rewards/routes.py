"""From data sources to reward services."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_EXACT = 1 << 30


def fits(pattern: str, source: str) -> int:
    """How closely a pattern names a data source: higher is closer, -1 not at all.

    >>> fits("math/*", "math/algebra"), fits("*", "math/algebra"), fits("math", "math/algebra")
    (5, 0, -1)
    """
    if pattern == source:
        return _EXACT
    prefix = pattern.removesuffix("*")
    return len(prefix) if prefix != pattern and source.startswith(prefix) else -1


def knows(patterns: Sequence[str], source: str) -> bool:
    """Whether one of the patterns names the source."""
    return any(fits(pattern, source) >= 0 for pattern in patterns)


def choose(patterns: Mapping[str, Sequence[str]], source: str) -> tuple[str, ...]:
    """The services that score a data source, in the mapping's order; () if none does.

    Those whose patterns name it most closely: a name before a prefix, a longer prefix before a shorter one, "*" last.
    Services that name it equally closely score it together.

    >>> choose({"rules": ["gsm8k"], "judge": ["*"], "length": ["gsm8k", "*"]}, "gsm8k")
    ('rules', 'length')
    >>> choose({"rules": ["gsm8k"], "judge": ["*"], "length": ["gsm8k", "*"]}, "essays")
    ('judge', 'length')
    """
    closeness = {name: max((fits(pattern, source) for pattern in own), default=-1) for name, own in patterns.items()}
    closest = max(closeness.values(), default=-1)
    return tuple(name for name, close in closeness.items() if close == closest >= 0)
