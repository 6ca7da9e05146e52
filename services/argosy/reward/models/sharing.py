"""Forward passes that concurrent calls share. One pass at a time; each takes what fits of all that waits then.

Calls of one sample each, as a controller makes them that scores answers while others are still written, would otherwise
have a pass each. The first call after a pause waits a few milliseconds for company, unless there was none the last
time; from then on company gathers by itself, while a pass runs. Whose sequences a pass holds changes no score (case
B15), and no call waits longer than without: passes go by the oldest call that they serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Protocol

from argosy.modeling.compute_thread import ComputeThread
from argosy.reward.models.batching import BatchLimits, plan_batches
from argosy.types.errors import DeadlineError, InvalidInputError, OverloadedError, UnavailableError

Row = list[float] | InvalidInputError
"""A sequence's values, one for each label, or why it has none."""


class Network(Protocol):
    """What `argosy.reward.models.network.ScoringNetwork` is to the scorer; here, so that torch stays out."""

    name: str

    def values(
        self, sequences: Sequence[Sequence[int]], limits: BatchLimits, *, cancelled: Callable[[], bool]
    ) -> list[list[float]]:
        """One value per label for each sequence."""
        ...


@dataclass(eq=False, slots=True)
class _Call:
    sequences: Sequence[Sequence[int]]
    end: float
    rows: dict[int, Row] = field(default_factory=dict)
    future: Future[list[Row]] = field(default_factory=Future)

    @property
    def wanted(self) -> bool:
        """Whether somebody still waits."""
        return not self.future.done() and time.monotonic() < self.end

    def put(self, index: int, row: Row) -> None:
        self.rows[index] = row
        if len(self.rows) == len(self.sequences):
            with contextlib.suppress(InvalidStateError):  # nobody waits any more
                self.future.set_result([self.rows[index] for index in range(len(self.sequences))])

    def fail(self, error: BaseException) -> None:
        with contextlib.suppress(InvalidStateError):
            self.future.set_exception(error)


_Place = tuple[_Call, int]


class SharedPasses:
    """Values of sequences, by a network in a thread. `close` it when done."""

    def __init__(
        self, network: Network, limits: BatchLimits, *, threads: int = 0, gather_s: float = 0.003, max_calls: int = 64
    ) -> None:
        """`gather_s`: how long the first call after a pause waits for others. `threads`: as in ComputeThread."""
        self._network, self._limits = network, limits
        self._gather_s, self._max_calls = gather_s, max_calls
        self._thread = ComputeThread(f"reward model {network.name}", threads=threads, max_pending=2)
        self._lock = threading.Lock()
        self._calls: list[_Call] = []
        self._plan: deque[list[_Place]] = deque()
        self._changed = False
        self._company = True
        self._serving: asyncio.Future[None] | None = None
        self._served = True

    async def values(self, sequences: Sequence[Sequence[int]], *, end: float) -> list[Row]:
        """A row for each sequence of token ids. `end`: by time.monotonic().

        Raises DeadlineError at `end`, OverloadedError if too many calls wait, UnavailableError when it is closed, and
        what a pass raises.
        """
        if not sequences:
            return []
        call = _Call(sequences, end)
        with self._lock:
            if len(self._calls) >= self._max_calls:
                raise OverloadedError(
                    f"reward model {self._network.name} has {len(self._calls)} calls waiting, its limit"
                )
            self._calls.append(call)
            self._changed = True
            start, self._served = self._served, False
        try:
            if start:
                self._serving = asyncio.ensure_future(self._thread.run(self._serve))
                self._serving.add_done_callback(self._ended)
            async with asyncio.timeout(max(0.0, end - time.monotonic())):
                return await asyncio.wrap_future(call.future)
        except TimeoutError:
            raise DeadlineError(f"reward model {self._network.name} did not score in time") from None
        finally:
            with self._lock:
                self._calls.remove(call)

    def close(self) -> None:
        """Let the running pass finish, drop what waits."""
        self._thread.close(wait=False)
        self._fail_all(UnavailableError(f"reward model {self._network.name} is closed"))

    def _ended(self, serving: asyncio.Future[None]) -> None:
        """Whatever ended it before its time, a closed thread say: those that wait must learn of it."""
        if serving.cancelled():
            self._fail_all(UnavailableError(f"reward model {self._network.name} was stopped"))
        elif (error := serving.exception()) is not None:
            self._fail_all(error)

    def _fail_all(self, error: BaseException) -> None:
        with self._lock:
            calls, self._served = list(self._calls), True
            self._plan.clear()
        for call in calls:
            call.fail(error)

    def _serve(self) -> None:
        """In the thread: passes until nothing waits."""
        if self._company:
            time.sleep(self._gather_s)
        self._company = False
        while (places := self._next()) is not None:
            self._company |= len(self._calls) > 1
            self._pass(places)

    def _next(self) -> list[_Place] | None:
        with self._lock:
            if self._changed:
                self._plan, self._changed = self._replan(), False
            while self._plan:
                places = [(call, index) for call, index in self._plan.popleft() if call.wanted]
                if places:
                    return places
            self._served = True
            return None

    def _replan(self) -> deque[list[_Place]]:
        waiting = [
            (call, index)
            for call in self._calls
            if call.wanted
            for index in range(len(call.sequences))
            if index not in call.rows
        ]
        age = {call: number for number, call in enumerate(self._calls)}
        batches = plan_batches([len(call.sequences[index]) for call, index in waiting], self._limits)
        planned = [[waiting[place] for place in batch] for batch in batches]
        return deque(sorted(planned, key=lambda places: min(age[call] for call, _ in places)))

    def _pass(self, places: list[_Place]) -> None:
        try:
            sequences = [call.sequences[index] for call, index in places]
            rows: Sequence[Row] = self._network.values(sequences, self._limits, cancelled=lambda: False)
        except InvalidInputError as error:
            if len(places) > 1:  # one of them: the others must not suffer for it
                for place in places:
                    self._pass([place])
                return
            rows = [error]
        except Exception as error:  # noqa: BLE001 -- of this pass: those that wait for it learn of it, others go on
            for call in {call for call, _ in places}:
                call.fail(error)
            return
        for (call, index), row in zip(places, rows, strict=True):
            call.put(index, row)
