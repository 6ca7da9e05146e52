"""One sample at a time: hundreds of callers wait here, and each gets a server as soon as one has room.

A server gets a few samples more than it has slots for, never all at once: which server a sample goes to is settled as
late as possible, so that slow servers get fewer, and little has to be ended or waited for when new weights come.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from argosy.controller.stages.window import Window
from argosy.types.ids import GroupId
from argosy.types.records import GenerateRequest

AFFINITY = 8
"""A sample goes where its group is, unless that server is behind another by the prompt and so many samples like it."""
MAX_HOMES = 4096
"""Groups whose server is remembered."""
PROGRESS = 0.125
"""Part of a server's tokens that it has to make before its place among the others is looked up anew."""
SPARE_OFFERS = 64
"""Outdated entries for each member after which those of all are made anew."""

Tokens = Callable[[GenerateRequest, bool], float]
"""What a sample costs a server, which has its prompt or not."""


def one_each(request: GenerateRequest, has_prompt: bool) -> float:
    """All samples cost the same."""
    return 1.0


@dataclass(slots=True)
class _Waiter:
    turn: tuple[int, bool, int]
    request: GenerateRequest
    place: asyncio.Future[str]
    avoided: Set[str]

    def __lt__(self, other: _Waiter) -> bool:
        return self.turn < other.turn


class Places:
    """Room at the servers, and who waits for it: by priority, those that have tokens already first, then in order
    of arrival. Of the servers with room, a sample goes to the one that would be done soonest with the tokens that it
    has: outstanding tokens per slot, over its speed.

    A sample costs a few steps in heaps, whatever the number of servers: what may have changed outside (who is usable,
    how many slots they have) is looked at in `fill`, which is to be called when it has; only that a server is no longer
    usable is noticed by itself.

    Args:
        usable: The members that may get samples now.
        slots: How many samples a member runs at once.
        is_usable: Whether a member is among `usable`.
        tokens: What a sample costs.
        speed: How fast a member is, relative to the others; above 0.
    """

    def __init__(
        self,
        usable: Callable[[], Sequence[str]],
        slots: Callable[[str], int],
        is_usable: Callable[[str], bool],
        tokens: Tokens = one_each,
        speed: Callable[[str], float] = lambda member: 1.0,
    ) -> None:
        self._usable = usable
        self._slots = slots
        self._is_usable = is_usable
        self._tokens = tokens
        self._speed = speed
        self._outstanding: dict[str, int] = defaultdict(int)
        self._load: dict[str, float] = defaultdict(float)
        """Tokens that each is still to make of its samples, as far as is known."""
        self._left_to_do: dict[str, float] = {}
        """Sample → of these, its own."""
        self._windows: dict[str, Window] = defaultdict(Window)
        self._held: dict[str, set[str]] = defaultdict(set)
        """Member → who hold it."""
        self._room: list[tuple[float, str, int]] = []
        """(tokens per slot and speed, member, number of the entry) of those that have room: of a member only the newest
        entry counts."""
        self._newest: dict[str, int] = {}
        """Member → its newest entry there; none where it had no room."""
        self._offered_load: dict[str, float] = {}
        """Member → its tokens in that entry."""
        self._offers = itertools.count()
        self._limits: dict[str, tuple[int, int]] = {}
        """Member → slots, most samples; of those that were usable at the last `fill`."""
        self._waiting: list[_Waiter] = []
        self._arrivals = itertools.count()
        self._homes: OrderedDict[GroupId, str] = OrderedDict()
        self._left = asyncio.Event()

    @property
    def waiting_count(self) -> int:
        """Samples without a place."""
        return sum(not waiter.place.done() for waiter in self._waiting)

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

    async def take(self, request: GenerateRequest, avoided: Set[str] = frozenset()) -> str:
        """The member to send a sample to, which has one more from now on; none of the `avoided`, as long as there are
        others. Raises what `fail` is given."""
        place: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        fresh = not request.generated.token_ids
        turn = (-request.priority, fresh, next(self._arrivals))
        heapq.heappush(self._waiting, _Waiter(turn, request, place, avoided))
        self._hand_out()
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self.leave(place.result(), request)  # it came in the same moment as the caller's end
            raise

    def fail(self, error: Exception) -> None:
        """Nobody who waits will get a place."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.place.done():
                waiter.place.set_exception(error)

    def progress(self, member: str, request: GenerateRequest, token_count: int) -> None:
        """A server has made so many tokens more of a sample."""
        left = self._left_to_do.get(request.key)
        if left is None:
            return
        done = min(float(token_count), left)
        self._left_to_do[request.key] = left - done
        self._load[member] -= done
        if self._load[member] < (1 - PROGRESS) * self._offered_load.get(member, 0.0):
            self._offer(member)

    def refused(self, member: str) -> None:
        """A server has turned a sample away, which it still has here: it gets fewer at a time from now on."""
        self._windows[member].refused(self._outstanding[member] - 1)
        self._renew_limit(member)

    def made(self, member: str) -> None:
        """A server has finished a sample: it may get more again."""
        self._windows[member].made()
        before = self._limits.get(member)
        self._renew_limit(member)
        if self._limits.get(member) != before:
            self._offer(member)
            self._hand_out()

    def leave(self, member: str, request: GenerateRequest) -> None:
        """A sample is done with its server."""
        self._outstanding[member] -= 1
        self._load[member] -= self._left_to_do.pop(request.key, 0.0)
        if not self._outstanding[member]:
            self._load[member] = 0.0  # sums of rounded numbers end beside 0
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
        self._windows.pop(member, None)

    def room_besides(self, member: str) -> int:
        """How many samples the other servers could get at once, beyond those who wait."""
        there = (other for other in self._limits if other != member and self._has_room(other))
        return max(sum(self._limits[other][1] - self._outstanding[other] for other in there) - self.waiting_count, 0)

    async def empty(self, member: str) -> None:
        """Return when a server has no sample of ours."""
        while self._outstanding[member]:
            self._left.clear()
            await self._left.wait()

    def fill(self) -> None:
        """See anew who is usable and how much each can take, and give out the room that there is."""
        self._limits = {member: self._limit(member) for member in self._usable()}
        self._offer_all()
        self._hand_out()

    def _offer_all(self) -> None:
        self._room, self._newest = [], {}
        for member in self._limits:
            self._offer(member)

    def _renew_limit(self, member: str) -> None:
        if member in self._limits:
            self._limits[member] = self._limit(member)

    def _offer(self, member: str) -> None:
        """Let a member be chosen, if it has room."""
        slots, limit = self._limits.get(member, (1, 0))
        if self._outstanding[member] >= limit:
            self._newest.pop(member, None)
            return
        if len(self._room) > SPARE_OFFERS * (len(self._limits) + 1):
            self._room = [entry for entry in self._room if self._newest.get(entry[1]) == entry[2]]
            heapq.heapify(self._room)
        number = self._newest[member] = next(self._offers)
        self._offered_load[member] = self._load[member]
        heapq.heappush(self._room, (self._load[member] / (slots * self._speed(member)), member, number))

    def _hand_out(self) -> None:
        passed_over: list[_Waiter] = []
        while self._waiting:
            if self._waiting[0].place.done():  # its caller has gone
                heapq.heappop(self._waiting)
                continue
            waiter = self._waiting[0]
            best = self._best()
            if best is None:
                break
            heapq.heappop(self._waiting)
            member = self._choose(waiter.request, best, self._to_avoid(waiter))
            if member is None:  # of those that it may go to none has room; others need not wait for that
                passed_over.append(waiter)
                continue
            self._give(waiter, member)
        for waiter in passed_over:
            heapq.heappush(self._waiting, waiter)

    def _give(self, waiter: _Waiter, member: str) -> None:
        request, group = waiter.request, waiter.request.sample_id.group
        tokens = self._left_to_do[request.key] = self._tokens(request, self._homes.get(group) == member)
        self._outstanding[member] += 1
        self._load[member] += tokens
        self._offer(member)
        self._remember(group, member)
        waiter.place.set_result(member)

    def _to_avoid(self, waiter: _Waiter) -> Set[str]:
        """What it asked to, unless there is nobody else."""
        if not waiter.avoided or all(one in waiter.avoided for one in self._limits if self._is_usable(one)):
            return frozenset()
        return waiter.avoided

    def _choose(self, request: GenerateRequest, best: str, avoided: Set[str]) -> str | None:
        if best in avoided:
            others = [one for one in self._limits if one not in avoided and self._has_room(one)]
            return min(others, key=self._seconds, default=None)
        home = self._homes.get(request.sample_id.group)
        if home is None or home == best or home in avoided or not self._has_room(home):
            return best
        behind, rest = self._seconds(home) - self._seconds(best), self._tokens(request, True)
        worth = AFFINITY * rest + self._tokens(request, False) - rest  # the prompt is computed once more elsewhere
        return home if behind < worth / self._slots_of(best) else best

    def _seconds(self, member: str) -> float:
        """Until it has made what it has, in the time that a slot takes for one token."""
        return self._load[member] / (self._slots_of(member) * self._speed(member))

    def _slots_of(self, member: str) -> int:
        return self._limits.get(member, (1, 0))[0]

    def _best(self) -> str | None:
        """The member that is done soonest with what it has; None if there is none with room."""
        while self._room:
            _, member, number = self._room[0]
            if self._newest.get(member) == number and self._has_room(member):
                return member
            heapq.heappop(self._room)
        return None

    def _has_room(self, member: str) -> bool:
        limit = self._limits.get(member, (1, 0))[1]
        return self._outstanding[member] < limit and not self._held[member] and self._is_usable(member)

    def _limit(self, member: str) -> tuple[int, int]:
        slots = self._slots(member)
        return slots, self._windows[member].limit(slots)

    def _remember(self, group: GroupId, member: str) -> None:
        self._homes[group] = member
        self._homes.move_to_end(group)
        if len(self._homes) > MAX_HOMES:
            self._homes.popitem(last=False)
