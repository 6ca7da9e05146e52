"""A mapping of members that come and go: what it hands out is of this moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from argosy.types.errors import UnavailableError
from argosy.types.records import Member

Client_co = TypeVar("Client_co", covariant=True)


class LeftError(UnavailableError, KeyError):
    """A member that isn't in the fleet (any more) was asked for: a KeyError for mappings, away for all others."""

    __str__ = UnavailableError.__str__


class Live(Mapping[str, Client_co], Generic[Client_co]):
    """Member id → connection, as of now. To ask for one that has left is LeftError: it may leave at any time."""

    def __init__(self, entries: Mapping[str, tuple[Member, Client_co]], check: Callable[[], None]) -> None:
        self._entries = entries
        self._check = check

    def __getitem__(self, member_id: str) -> Client_co:
        entry = self._entries.get(member_id)
        if entry is None:
            raise LeftError(f"{member_id} has left the fleet")
        return entry[1]

    def __iter__(self) -> Iterator[str]:
        self._check()
        return iter(sorted(self._entries))  # a copy: others may join or leave while somebody goes through them

    def __len__(self) -> int:
        return len(self._entries)
