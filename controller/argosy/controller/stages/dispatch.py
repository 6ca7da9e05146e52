"""One sample at a time: hundreds of callers wait here, and each gets a server as soon as one has room.

A server gets a few samples more than it has slots for, never all at once: which server a sample goes to is settled as
late as possible, so that slow servers get fewer, and little has to be ended or waited for when new weights come.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence

from argosy.types.ids import GroupId
from argosy.types.records import GenerateRequest

LOOKAHEAD = 8
"""One sample more than slots for every so many slots waits at the server, so that a slot that gets free is filled in
the server's very next step."""
AFFINITY = 8
"""A sample goes where its group is, for the prompt's sake, unless that server has so many more than another."""
MAX_HOMES = 4096
"""Groups whose server is remembered."""


class Places:
    """Room at the servers, and who waits for it: by priority, those that have tokens already first, then in order
    of arrival.

    Args:
        usable: The members that may get samples now.
        slots: How many samples a member runs at once.
    """

    def __init__(self, usable: Callable[[], Sequence[str]], slots: Callable[[str], int]) -> None:
        self._usable = usable
        self._slots = slots
        self._outstanding: dict[str, int] = defaultdict(int)
        self._held: set[str] = set()
        self._waiting: list[tuple[tuple[int, bool, int], GroupId, asyncio.Future[str]]] = []
        self._arrivals = itertools.count()
        self._homes: OrderedDict[GroupId, str] = OrderedDict()
        self._left = asyncio.Event()

    @property
    def waiting_count(self) -> int:
        """Samples without a place."""
        return sum(not place.done() for *_, place in self._waiting)

    def outstanding(self, member: str) -> int:
        """Samples that a server has."""
        return self._outstanding[member]

    async def take(self, request: GenerateRequest) -> str:
        """The member to send a sample to, which has one more from now on. Raises what `fail` is given."""
        place: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        fresh = not request.generated.token_ids
        turn = (-request.priority, fresh, next(self._arrivals))
        heapq.heappush(self._waiting, (turn, request.sample_id.group, place))
        self.fill()
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self.leave(place.result())  # it came in the same moment as the caller's end
            raise

    def fail(self, error: Exception) -> None:
        """Nobody who waits will get a place."""
        waiting, self._waiting = self._waiting, []
        for *_, place in waiting:
            if not place.done():
                place.set_exception(error)

    def leave(self, member: str) -> None:
        """A sample is done with its server."""
        self._outstanding[member] -= 1
        self._left.set()
        self.fill()

    def is_held(self, member: str) -> bool:
        """Whether it gets nothing at the moment."""
        return member in self._held

    def hold(self, member: str) -> None:
        """Send it nothing more until `release`."""
        self._held.add(member)

    def release(self, member: str) -> None:
        """End `hold`."""
        self._held.discard(member)
        self.fill()

    async def empty(self, member: str) -> None:
        """Return when a server has no sample of ours."""
        while self._outstanding[member]:
            self._left.clear()
            await self._left.wait()

    def fill(self) -> None:
        """Give out the room that there is."""
        members = [member for member in self._usable() if member not in self._held]
        while self._waiting:
            if self._waiting[0][2].done():  # its caller has gone
                heapq.heappop(self._waiting)
                continue
            group = self._waiting[0][1]
            member = self._choose(group, members)
            if member is None:
                return
            place = heapq.heappop(self._waiting)[2]
            self._outstanding[member] += 1
            self._remember(group, member)
            place.set_result(member)

    def _choose(self, group: GroupId, members: Sequence[str]) -> str | None:
        free = [member for member in members if self._outstanding[member] < self._limit(member)]
        if not free:
            return None
        best = min(free, key=lambda member: (self._outstanding[member] / self._slots(member), member))
        home = self._homes.get(group)
        if home in free and self._outstanding[home] < self._outstanding[best] + AFFINITY:
            return home
        return best

    def _limit(self, member: str) -> int:
        slots = self._slots(member)
        return slots + 1 + slots // LOOKAHEAD

    def _remember(self, group: GroupId, member: str) -> None:
        self._homes[group] = member
        self._homes.move_to_end(group)
        if len(self._homes) > MAX_HOMES:
            self._homes.popitem(last=False)
