"""A rollout server in virtual time. All its running samples get tokens at one pace, which their number sets."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from argosy.roles.weights import WeightSource
from argosy.types.errors import OverloadedError, StateError
from argosy.types.ids import PolicyVersion
from argosy.types.records import (
    Completion,
    FinishReason,
    GenerateRequest,
    Mutation,
    RolloutStatus,
    TokenRun,
    TransferOffer,
    VersionRun,
    WeightsManifest,
)
from simulated_fleet.workload import SYNC_S, Workload

TOKEN, LOG_PROB = 7, -0.5
SWAP_S = 0.1
"""In which sampling holds still for new weights; their transfer is the rest of SYNC_S."""
MAX_WAITING = 65536


@dataclass(slots=True, eq=False)
class _Sample:
    request: GenerateRequest
    total: int
    """Units when it is whole."""
    out: asyncio.Queue[Completion]
    versions: list[VersionRun] = field(default_factory=list)
    have: int = 0
    """Units at `since`."""
    since: float = 0.0
    """The server's progress at that moment."""
    on_run: Callable[[TokenRun], None] | None = None
    told: int = 0
    """Units that `on_run` was told of, and those that came with the request."""


class SimulatedServer:
    """Implements `argosy.roles.rollout.Rollout`. Answers are as long as the workload says, whatever the weights.

    Args:
        name: Member id.
        work: See Workload.
        slots: Samples that run at once.
        slowness: By how much each of its steps takes longer than the workload says.
        run_s: Seconds between two runs of tokens of a sample; None: nobody is told before a sample ends, which is less
            work, and enough where no server falls behind.
    """

    def __init__(
        self, name: str, work: Workload, slots: int, slowness: float = 1.0, run_s: float | None = None
    ) -> None:
        self._slowness = slowness
        self._run_s = run_s
        self._telling = False
        self._name = name
        self._work = work
        self._slots = slots
        self._loop = asyncio.get_running_loop()
        self._running: dict[str, _Sample] = {}
        self._waiting: deque[_Sample] = deque()
        self._ends: list[tuple[float, int, _Sample]] = []
        self._order = itertools.count()
        self._progress = 0.0
        """Units that a sample running since the beginning would have."""
        self._noted = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._version: PolicyVersion | None = None
        self._manifest: WeightsManifest | None = None
        self._generated = 0
        self.busy_s = 0.0
        """In which at least one sample ran."""

    # --- generate ----------------------------------------------------------------------------------------------------

    async def generate(
        self,
        requests: Sequence[GenerateRequest],
        *,
        deadline_s: float,
        on_run: Callable[[TokenRun], None] | None = None,
    ) -> AsyncIterator[Completion]:
        """See the role."""
        if self._version is None:
            raise StateError("no weights yet", state="stale")
        if len(self._waiting) + len(requests) > MAX_WAITING:
            raise OverloadedError("too many samples wait", retry_after_s=1.0)
        out: asyncio.Queue[Completion] = asyncio.Queue()
        mine = [self._take(request, out, on_run) for request in requests]
        self._fill()
        left = len(mine)
        try:
            while left:
                yield await out.get()
                left -= 1
        finally:
            if left:
                self._end({sample.request.key for sample in mine}, tell=False)

    def _take(
        self, request: GenerateRequest, out: asyncio.Queue[Completion], on_run: Callable[[TokenRun], None] | None
    ) -> _Sample:
        sample_id, have = request.sample_id, request.generated
        total = min(self._work.length(sample_id.data_epoch, sample_id.position, sample_id.k), request.params.max_tokens)
        count = len(have.token_ids)
        sample = _Sample(request, total, out, list(have.versions), count, on_run=on_run, told=count)
        self._waiting.append(sample)
        return sample

    def _fill(self) -> None:
        """Give free slots to those who wait."""
        self._note()
        while self._waiting and len(self._running) < self._slots:
            sample = self._waiting.popleft()
            sample.since = self._progress
            self._running[sample.request.key] = sample
            end = self._progress + max(0, sample.total - sample.have)
            heapq.heappush(self._ends, (end, next(self._order), sample))
        self._set_timer()
        if self._run_s is not None and self._running and not self._telling:
            self._telling = True
            self._loop.call_later(self._run_s, self._tell_runs)

    def _tell_runs(self) -> None:
        """Tell of the tokens since the last time, and go on with that while samples run."""
        self._telling = False
        self._note()
        for sample in list(self._running.values()):
            units = self._units(sample)
            new = units - sample.told
            if sample.on_run is None or new < 1 or self._version is None:
                continue
            sample_id, purpose = sample.request.sample_id, sample.request.purpose
            versions = (VersionRun(self._version, new),)
            sample.on_run(TokenRun(sample_id, purpose, sample.told, (TOKEN,) * new, (LOG_PROB,) * new, versions))
            sample.told = units
        if self._running and self._run_s is not None:
            self._telling = True
            self._loop.call_later(self._run_s, self._tell_runs)

    def _step_s(self) -> float:
        """Seconds of a unit of each sample that runs now."""
        return self._work.step_s(len(self._running)) * self._slowness

    def _note(self) -> None:
        """Let progress be that of now."""
        now = self._loop.time()
        if self._running and not self._paused:
            self._progress += (now - self._noted) / self._step_s()
            self.busy_s += now - self._noted
        self._noted = now

    def _set_timer(self) -> None:
        """Wake up when the next sample is whole."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._ends and self._running.get(self._ends[0][2].request.key) is not self._ends[0][2]:
            heapq.heappop(self._ends)
        if self._ends and not self._paused:
            left = max(0.0, self._ends[0][0] - self._progress)
            self._timer = self._loop.call_later(left * self._step_s(), self._finish_due)

    def _finish_due(self) -> None:
        self._timer = None
        self._note()
        while self._ends and self._ends[0][0] <= self._progress + 1e-6:
            sample = heapq.heappop(self._ends)[2]
            if self._running.get(sample.request.key) is sample:
                self._leave(sample, sample.total, FinishReason.STOP)
        self._fill()

    def _leave(self, sample: _Sample, units: int, reason: FinishReason, *, tell: bool = True) -> None:
        """Take a running sample out."""
        del self._running[sample.request.key]
        self._cut(sample, units)
        if tell:
            self._deliver(sample, reason)

    def _cut(self, sample: _Sample, units: int) -> None:
        """Let a sample have so many units; what is new is of the version in use."""
        new = units - sample.have
        begun = max(0.0, self._progress - sample.since - new)
        if new > 0:
            assert self._version is not None
            self._generated += new
            if sample.versions and sample.versions[-1].version == self._version:
                new += sample.versions.pop().token_count
            sample.versions.append(VersionRun(self._version, new))
        sample.have, sample.since = units, self._progress - begun  # of the next unit a part is done

    def _units(self, sample: _Sample) -> int:
        """Whole units that a running sample has now."""
        return min(sample.total, sample.have + int(self._progress - sample.since + 1e-6))

    def _deliver(self, sample: _Sample, reason: FinishReason) -> None:
        count = sample.have
        sample.out.put_nowait(
            Completion(
                sample.request.sample_id,
                (TOKEN,) * count,
                (LOG_PROB,) * count,
                tuple(sample.versions),
                reason,
                "",
                purpose=sample.request.purpose,
                member_id=self._name,
            )
        )

    def _end(self, keys: set[str] | None, *, tell: bool = True) -> int:
        """End samples; how many."""
        self._note()
        gone = [sample for key, sample in self._running.items() if keys is None or key in keys]
        for sample in gone:
            self._leave(sample, self._units(sample), FinishReason.ABORTED, tell=tell)
        waiting, self._waiting = self._waiting, deque()
        for sample in waiting:
            if keys is None or sample.request.key in keys:
                gone.append(sample)
                if tell:
                    self._deliver(sample, FinishReason.ABORTED)
            else:
                self._waiting.append(sample)
        self._fill()
        return len(gone)

    # --- control -----------------------------------------------------------------------------------------------------

    async def abort(self, keys: Sequence[str] | None, ctx: Mutation) -> int:
        """See the role."""
        return self._end(None if keys is None else set(keys))

    async def pause(self, mode: str, ctx: Mutation) -> None:
        """See the role."""
        if mode == "abort":
            self._end(None)
        self._note()
        self._paused = True
        self._set_timer()

    async def resume(self, ctx: Mutation) -> None:
        """See the role."""
        self._note()
        self._paused = False
        self._set_timer()

    async def drain(self, ctx: Mutation) -> None:
        """Nobody drains one."""

    async def sleep(self, level: int, ctx: Mutation) -> None:
        """It has a device of its own."""

    async def wake(self, ctx: Mutation) -> None:
        """It never sleeps."""

    async def status(self) -> RolloutStatus:
        """See the role."""
        return RolloutStatus(
            self._version,
            "stale" if self._version is None else "paused" if self._paused else "ready",
            len(self._running),
            len(self._waiting),
            self._slots,
            self._generated,
            0,
            self._work.max_units + 64,
            engine="simulated",
            capabilities={"engine": "simulated", "updates_in_flight": "true"},
        )

    # --- weights -----------------------------------------------------------------------------------------------------

    async def init_weight_transfer(self, transport: str, ctx: Mutation) -> None:
        """Any."""

    async def start_weight_update(self, sync_id: str, manifest: WeightsManifest, ctx: Mutation) -> None:
        """See the role."""
        self._manifest = manifest

    async def update_weights(
        self, sync_id: str, source: WeightSource, ctx: Mutation, offer: TransferOffer | None = None
    ) -> int:
        """Take as long as weights take; samples go on."""
        await asyncio.sleep(SYNC_S - SWAP_S)
        return 0

    async def finish_weight_update(self, sync_id: str, ctx: Mutation) -> PolicyVersion:
        """Swap: what runs goes on under the new version."""
        assert self._manifest is not None
        self._note()
        held, self._paused = self._paused, True
        self._set_timer()
        await asyncio.sleep(SWAP_S)
        self._note()
        for sample in self._running.values():
            self._cut(sample, self._units(sample))
        self._version = self._manifest.version
        self._paused = held
        self._fill()
        return self._version
