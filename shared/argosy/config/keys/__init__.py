"""The key table: each key of verl is honoured, refused with a reason, or warned about with a reason; none is ignored.

A path that ends in `.*` stands for everything below it; the longest path that fits decides.
"""

from argosy.config.keys.entry import Entry, Honoured, Refused, Warned
from argosy.config.keys.honoured import HONOURED
from argosy.config.keys.refused import REFUSED
from argosy.config.keys.warned import WARNED

TABLE: dict[str, Entry] = {**HONOURED, **REFUSED, **WARNED}

__all__ = ["HONOURED", "REFUSED", "TABLE", "WARNED", "Entry", "Honoured", "Refused", "Warned", "find"]


def find(path: str) -> tuple[str, Entry] | None:
    """The table's row for a full path, or None: the path itself, else the nearest `section.*` above it.

    >>> find("actor_rollout_ref.actor.megatron.use_mbridge")[0]
    'actor_rollout_ref.actor.megatron.*'
    """
    if path in TABLE:
        return path, TABLE[path]
    names = path.split(".")
    for length in range(len(names) - 1, 0, -1):
        parent = ".".join(names[:length])
        if parent in HONOURED:  # a free mapping, such as reward_kwargs
            return parent, TABLE[parent]
        if f"{parent}.*" in TABLE:
            return f"{parent}.*", TABLE[f"{parent}.*"]
    return None
