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

    A sample costs a few steps in heaps, whatever the number of servers: what may have changed outside (who is usable,
    how many slots they have) is looked at in `fill`, which is to be called when it has; only that a server is no longer
    usable is noticed by itself.

    Args:
        usable: The members that may get samples now.
        slots: How many samples a member runs at once.
        is_usable: Whether a member is among `usable`.
    """

    def __init__(
        self, usable: Callable[[], Sequence[str]], slots: Callable[[str], int], is_usable: Callable[[str], bool]
    ) -> None:
        self._usable = usable
        self._slots = slots
        self._is_usable = is_usable
        self._outstanding: dict[str, int] = defaultdict(int)
        self._held: dict[str, set[str]] = defaultdict(set)
        """Member → who hold it."""
        self._room: list[tuple[float, str, int]] = []
        """(samples per slot, member, samples) of those that have room: of a member only an entry with the number of
        samples that it has counts."""
        self._offered: set[tuple[str, int]] = set()
        """(member, samples) of the entries there: each is there once, so that they stay as few as there are slots."""
        self._limits: dict[str, tuple[int, int]] = {}
        """Member → slots, most samples; of those that were usable at the last `fill`."""
        self._waiting: list[tuple[tuple[int, bool, int], GroupId, asyncio.Future[str]]] = []
        self._arrivals = itertools.count()
        self._homes: OrderedDict[GroupId, str] = OrderedDict()
        self._left = asyncio.Event()

    @property
    def waiting_count(self) -> int:
        """Samples without a place."""
        return sum(not place.done() for *_, place in self._waiting)

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody may be waiting."""
        return bool(self._waiting)

    @property
    def is_filled(self) -> bool:
        """Whether any server is known."""
        return bool(self._limits)

    def outstanding(self, member: str) -> int:
        """Samples that a server has."""
        return self._outstanding[member]

    async def take(self, request: GenerateRequest) -> str:
        """The member to send a sample to, which has one more from now on. Raises what `fail` is given."""
        place: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        fresh = not request.generated.token_ids
        turn = (-request.priority, fresh, next(self._arrivals))
        heapq.heappush(self._waiting, (turn, request.sample_id.group, place))
        self._hand_out()
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
        self._offer(member)
        self._hand_out()

    def is_held(self, member: str) -> bool:
        """Whether it gets nothing at the moment."""
        return bool(self._held[member])

    def hold(self, member: str, holder: str) -> None:
        """Send it nothing more until each of those that hold it has called `release`."""
        self._held[member].add(holder)

    def release(self, member: str, holder: str) -> None:
        """End `hold`, however often that was called."""
        self._held[member].discard(holder)
        self._offer(member)
        self._hand_out()

    def forget(self, member: str) -> None:
        """A server has left: whoever held it did so for what it was, and not for another life of it."""
        self._held.pop(member, None)
        self._limits.pop(member, None)

    async def empty(self, member: str) -> None:
        """Return when a server has no sample of ours."""
        while self._outstanding[member]:
            self._left.clear()
            await self._left.wait()

    def fill(self) -> None:
        """See anew who is usable and how much each can take, and give out the room that there is."""
        self._limits = {member: self._limit(member) for member in self._usable()}
        self._room, self._offered = [], set()
        for member in self._limits:
            self._offer(member)
        self._hand_out()

    def _offer(self, member: str) -> None:
        """Let a member be chosen, if it has room."""
        count = self._outstanding[member]
        slots, limit = self._limits.get(member, (1, 0))
        if count < limit and (member, count) not in self._offered:
            self._offered.add((member, count))
            heapq.heappush(self._room, (count / slots, member, count))

    def _hand_out(self) -> None:
        while self._waiting:
            if self._waiting[0][2].done():  # its caller has gone
                heapq.heappop(self._waiting)
                continue
            group = self._waiting[0][1]
            member = self._choose(group)
            if member is None:
                return
            place = heapq.heappop(self._waiting)[2]
            self._outstanding[member] += 1
            self._offer(member)
            self._remember(group, member)
            place.set_result(member)

    def _choose(self, group: GroupId) -> str | None:
        best = self._best()
        if best is None:
            return None
        home = self._homes.get(group)
        if home is None or not self._has_room(home):
            return best
        return home if self._outstanding[home] < self._outstanding[best] + AFFINITY else best

    def _best(self) -> str | None:
        """The member with the most room for its size; None if there is none."""
        while self._room:
            _, member, count = self._room[0]
            if count == self._outstanding[member] and self._has_room(member):
                return member
            heapq.heappop(self._room)
            self._offered.discard((member, count))
        return None

    def _has_room(self, member: str) -> bool:
        limit = self._limits.get(member, (1, 0))[1]
        return self._outstanding[member] < limit and not self._held[member] and self._is_usable(member)

    def _limit(self, member: str) -> tuple[int, int]:
        slots = self._slots(member)
        return slots, slots + 1 + slots // LOOKAHEAD

    def _remember(self, group: GroupId, member: str) -> None:
        self._homes[group] = member
        self._homes.move_to_end(group)
        if len(self._homes) > MAX_HOMES:
            self._homes.popitem(last=False)
