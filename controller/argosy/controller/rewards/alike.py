"""Whether servers can stand in for each other: replicas of one service must say the same of themselves."""

from __future__ import annotations

from argosy.types.records import RewardCapabilities

_TOLD = (
    ("needs_token_ids", "asks for token ids otherwise"),
    ("needs_messages", "asks for messages otherwise"),
    ("repeat_forbidden", "forbids repeating otherwise"),
    ("version", "has another version"),
)


def difference(one: RewardCapabilities, other: RewardCapabilities, name: str, other_name: str) -> str:
    """What tells `one` from `other`, in words; "" if nothing does. Names and batch sizes may differ.

    >>> difference(RewardCapabilities(("a",), version="2"), RewardCapabilities(("a",), version="1"), "x", "y")
    'x has another version (2) than y (1)'
    """
    if set(one.data_sources) != set(other.data_sources):
        return (
            f"{name} knows other data sources ({', '.join(one.data_sources)}) than {other_name} "
            f"({', '.join(other.data_sources)})"
        )
    for field, words in _TOLD:
        mine, theirs = getattr(one, field), getattr(other, field)
        if mine != theirs:
            return f"{name} {words} ({mine}) than {other_name} ({theirs})"
    return ""
