"""The rollout role over any engine: usable in this process, or behind the gRPC servicer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from argosy.roles.weights import WeightSource
from argosy.rollout.deadline import in_time
from argosy.rollout.engines.base import Engine, EngineCounts
from argosy.rollout.engines.events import Decode, Event
from argosy.rollout.engines.hf.options import HfRolloutOptions
from argosy.rollout.mailbox import Mailbox
from argosy.rollout.pulse import Pulse, Rate
from argosy.rollout.requests import check_request, overlong_completion
from argosy.rollout.weights import HeldWeights, ServerWeights
from argosy.types.errors import InvalidInputError, OverloadedError, StateError
from argosy.types.ids import PolicyVersion
from argosy.types.records import (
    Completion,
    GenerateRequest,
    Mutation,
    RolloutStatus,
    TokenRun,
    TransferOffer,
    WeightsManifest,
)
from argosy.weightsync import Snapshot
from argosy.weightsync.hosts import host_id

__all__ = ["HfRollout", "HfRolloutOptions", "RolloutCore", "RolloutOptions"]

MIN_RETRY_S, MAX_RETRY_S = 0.05, 30.0
"""Bounds of the advice when to come again."""
UNKNOWN_RETRY_S = 1.0
"""The advice while nothing has ended yet."""


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """What the core has to know beside its engine."""

    slot_count: int = 64
    """Samples that the engine runs at once, as the status tells it."""
    max_waiting: int = 65536
    """Samples that may wait beyond those; more is OverloadedError."""
    max_model_len: int = 0
    """Most tokens of prompt and answer together; 0 takes the engine's context."""
    stream_interval_tokens: int = 16
    """Tokens of a sample between two runs that are told of it: what is lost at most when this server dies."""
    stall_timeout_s: float = 120.0
    """Seconds that the engine may stand still before the server says that it is stuck."""


class RolloutCore:
    """Implements `argosy.roles.rollout.Rollout`, and what its servicer needs beyond it, for every engine.

    >>> # core = RolloutCore(engine, RolloutOptions(), decode=tokenizer.decode)
    >>> # await core.start()
    >>> # async for completion in core.generate(requests, deadline_s=60): ...

    Args:
        engine: See `argosy.rollout.engines.base`.
        options: See RolloutOptions.
        decode: Token ids → text without special tokens.
    """

    def __init__(self, engine: Engine, options: RolloutOptions, decode: Decode) -> None:
        self._engine = engine
        self._options = options
        self._decode = decode
        self._held: ServerWeights | None = None
        self._keys: set[str] = set()
        """Samples in flight."""
        self._leaving: dict[str, asyncio.Future[int]] = {}
        """Samples that nobody waits for any more → the abort that ends them."""
        self._paused = False
        self._draining = False
        self._asleep = False
        self._falling_asleep: asyncio.Task[None] | None = None
        """The last sleep, done or beginning."""
        self._ended_count = self._overlong_count = self._refused_count = 0
        self._token_rate, self._ended_rate = Rate(), Rate()
        self._ended_rate.note(0)
        self._pulse = Pulse(engine, options.stall_timeout_s)

    async def start(self) -> None:
        """Load the model if that is still to be done, and warm up. Raises what `Engine.start` does."""
        await self._engine.start()

    @property
    def engine(self) -> Engine:
        """What samples."""
        return self._engine

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and answer together."""
        context_len = self._engine.facts.context_len
        return min(self._options.max_model_len or context_len, context_len)

    # --- generate ----------------------------------------------------------------------------------------------------

    async def generate(
        self,
        requests: Sequence[GenerateRequest],
        *,
        deadline_s: float,
        on_run: Callable[[TokenRun], None] | None = None,
    ) -> AsyncIterator[Completion]:
        """See the role."""
        events = cast(
            "AsyncGenerator[Event, None]",
            self.generate_runs(requests, deadline_s=deadline_s, interval_tokens=0 if on_run is None else None),
        )
        async with contextlib.aclosing(events):  # a caller that leaves ends its samples now, not when it is collected
            async for event in events:
                if isinstance(event, Completion):
                    yield event
                elif on_run is not None:
                    on_run(event)

    async def generate_runs(
        self, requests: Sequence[GenerateRequest], *, deadline_s: float, interval_tokens: int | None = None
    ) -> AsyncIterator[Event]:
        """As `generate`, with a TokenRun of each sample every `interval_tokens` tokens in between (0: none; None: the
        options' stream_interval_tokens). A sample's last tokens come only in its Completion, which has all of them."""
        mailbox = Mailbox(asyncio.get_running_loop(), time.monotonic() + deadline_s)
        interval = self._options.stream_interval_tokens if interval_tokens is None else interval_tokens
        waiting = await self._begin(requests, mailbox, interval)
        try:
            while waiting:
                event = await mailbox.get(len(waiting))
                if isinstance(event, Completion):
                    waiting.discard(f"{event.purpose}:{event.sample_id}")
                    self._keys.discard(f"{event.purpose}:{event.sample_id}")
                    self._ended_count += 1
                yield event
        finally:
            mailbox.closed = True
            if waiting:
                self._leave(set(waiting))

    async def _begin(self, requests: Sequence[GenerateRequest], mailbox: Mailbox, interval: int) -> set[str]:
        """Check the requests and hand them to the engine, all or none; returns their keys."""
        keys = {request.key for request in requests}
        async with mailbox.in_time(len(keys)):
            await self._until_settled(keys)
            self._check_serving()
            vocab_size, longest = self._engine.facts.vocab_size, self.max_model_len
            sampling = self._engine.capabilities.sampling
            for request in requests:
                check_request(request, vocab_size=vocab_size, max_model_len=longest, sampling=sampling)
            overlong = {request.key: end for request in requests if (end := overlong_completion(request, longest))}
            self._check_keys(requests, keys)
            self._check_room(len(keys) - len(overlong))
            self._keys |= keys
            await self._submit([r for r in requests if r.key not in overlong], keys, mailbox, interval)
        self._overlong_count += len(overlong)
        for completion in overlong.values():
            mailbox.deliver(completion)
        return keys

    async def _until_settled(self, keys: set[str]) -> None:
        """Wait for what is over by itself: a swap of weights, in which an engine has none that it could serve, and the
        abort of a caller that left, which must not meet the samples of one that asks again."""
        while True:
            pending: set[asyncio.Future[Any]] = {
                end for key in keys & self._leaving.keys() if not (end := self._leaving[key]).done()
            }
            if self._held is not None and (swap := self._held.swap_under_way) is not None:
                pending.add(swap)
            if not pending:
                return
            await asyncio.wait(pending)

    async def _submit(
        self, requests: Sequence[GenerateRequest], keys: set[str], mailbox: Mailbox, interval: int
    ) -> None:
        """Hand requests to the engine; if it takes none of them, `keys` are nobody's again."""
        try:
            if requests:
                await self._engine.submit(requests, mailbox.deliver, interval)
        except OverloadedError as full:
            self._keys -= keys
            self._refused_count += len(requests)
            raise self._overloaded(len(requests), full.message) from full
        except BaseException:
            self._leave(keys)  # a caller that was cancelled may have been taken in all the same
            raise

    def _check_room(self, count: int) -> None:
        """Raise OverloadedError if so many more samples don't fit into the queue, whatever the engine would take."""
        room = self._options.slot_count + self._options.max_waiting - len(self._keys)
        if count > room:
            self._refused_count += count
            raise self._overloaded(
                count - room,
                f"{count} samples don't fit: {len(self._keys)} are in flight, and {self._options.slot_count} may run "
                f"and {self._options.max_waiting} wait",
            )

    def _overloaded(self, excess: int, message: str) -> OverloadedError:
        """The refusal, with the time after which `excess` samples will have ended if they go on ending as they do."""
        per_second = self._ended_rate.note(self._ended_count)
        wait_s = excess / per_second if per_second > 0 else UNKNOWN_RETRY_S
        return OverloadedError(message, retry_after_s=min(max(wait_s, MIN_RETRY_S), MAX_RETRY_S))

    def _check_keys(self, requests: Sequence[GenerateRequest], keys: set[str]) -> None:
        if len(keys) < len(requests) or keys & self._keys:
            counts = Counter(request.key for request in requests)
            twice = next(key for key, count in counts.items() if count > 1 or key in self._keys)
            raise InvalidInputError(f"sample {twice} is in flight on this server already", field="sample_id")

    def _leave(self, keys: set[str]) -> None:
        """End samples that nobody waits for. Doesn't wait for their end: an engine that is stuck must hold up nobody
        who wants to go."""
        self._keys -= keys
        task = asyncio.ensure_future(self._engine.abort(keys))
        self._leaving |= dict.fromkeys(keys, task)
        task.add_done_callback(lambda done: self._left(keys, done))

    def _left(self, keys: set[str], task: asyncio.Future[int]) -> None:
        for key in keys:
            if self._leaving.get(key) is task:
                del self._leaving[key]
        if not task.cancelled():
            task.exception()  # of an engine that is closed or dead, where nothing runs any more

    def _check_serving(self) -> None:
        if self._engine.version is None:
            raise StateError("this rollout server has no current weights: it needs an update first", state="stale")
        if self._draining:
            raise StateError("this rollout server is draining and takes no new samples", state="draining")
        if self._asleep:
            raise StateError("this rollout server is asleep: wake it first", state="asleep")

    # --- control -----------------------------------------------------------------------------------------------------

    async def abort(self, keys: Sequence[str] | None, ctx: Mutation) -> int:
        """See the role."""
        return await self._engine.abort(None if keys is None else set(keys))

    async def pause(self, mode: str, ctx: Mutation) -> None:
        """See the role. New requests are taken in and wait."""
        if mode not in ("keep", "abort"):
            raise InvalidInputError(f'pause mode {mode!r} is not "keep" or "abort"', field="mode")
        await self._engine.pause(mode)
        self._paused = True

    async def resume(self, ctx: Mutation) -> None:
        """See the role. Doesn't end a drain."""
        await self._engine.resume()
        self._paused = False

    async def drain(self, ctx: Mutation) -> None:
        """See the role; returns when nothing runs any more. A paused server goes on, since it has to finish."""
        self._draining = True
        late = f"samples still run after {ctx.deadline_s:g} s of draining"
        async with in_time(ctx.deadline_s, lambda: f"{len(self._keys)} {late}"):
            await self.resume(ctx)
            while await self._in_engine():  # noqa: ASYNC110 - an engine tells how many it has only when it is asked
                await asyncio.sleep(0.01)

    async def hand_over(self, ctx: Mutation) -> None:
        """After a drain that took too long: end what still runs, and return when it has ended. Each sample is answered
        as aborted with the tokens that it has, so that another server can go on from there."""
        await self._engine.abort(None)
        late = f"samples have not ended {ctx.deadline_s:g} s after their abort"
        async with in_time(ctx.deadline_s, lambda: f"{len(self._keys)} {late}"):
            while self._keys or await self._in_engine():  # noqa: ASYNC110 - as in `drain`
                await asyncio.sleep(0.01)

    async def sleep(self, level: int, ctx: Mutation) -> None:
        """See the role. The engine goes on with a sleep that it has begun, even if the time is up."""
        levels = self._engine.capabilities.sleep_levels
        if level not in levels:
            known = f"it can {', '.join(map(str, levels))}" if levels else "it can't sleep at all"
            name = self._engine.capabilities.engine
            raise InvalidInputError(f"the engine {name} can't sleep at level {level}: {known}", field="level")
        async with in_time(ctx.deadline_s, lambda: f"the engine does not sleep after {ctx.deadline_s:g} s"):
            if not self._asleep:
                in_engine = await self._in_engine()
                if self._keys or in_engine:
                    message = f"{len(self._keys)} samples are in flight: abort them or wait, then sleep"
                    raise StateError(message, state="ready")
            if not self._asleep:
                self._asleep = True  # from now on nothing new is taken in
                self._falling_asleep = asyncio.create_task(self._fall_asleep(level))
            if self._falling_asleep is not None:
                await asyncio.shield(self._falling_asleep)

    async def _fall_asleep(self, level: int) -> None:
        try:
            self.weights.release()
            await self._engine.sleep(level)
            self.weights.release(engine_drops=level > 1)
        except BaseException:
            self._asleep = False
            raise

    async def wake(self, ctx: Mutation) -> None:
        """See the role."""
        if self._falling_asleep is not None and not self._falling_asleep.done():
            async with in_time(ctx.deadline_s, lambda: f"the engine still falls asleep after {ctx.deadline_s:g} s"):
                await asyncio.wait({self._falling_asleep})
        if self._asleep:
            await self._engine.wake()
            self._asleep = False

    async def _in_engine(self) -> int:
        """Samples that the engine has, counted when its loop has had a turn: not in the middle of a step."""
        await self._engine.abort(set())
        counts = self._engine.counts()
        return counts.running + counts.waiting

    async def status(self) -> RolloutStatus:
        """See the role. Doesn't wait for the engine's step: the numbers are of this moment, give or take a step."""
        counts, version = self._engine.counts(), self._engine.version
        self._ended_rate.note(self._ended_count)
        capabilities = self._engine.capabilities
        return RolloutStatus(
            version=version,
            state=self._state(version, counts),
            running_count=counts.running,
            waiting_count=counts.waiting,
            slot_count=self._options.slot_count,
            generated_token_count=counts.generated_token_count,
            cached_token_count=counts.cached_token_count,
            max_model_len=self.max_model_len,
            engine=capabilities.engine,
            capabilities=capabilities.as_texts() | {"host_id": host_id()},
            kv_used_tokens=counts.kv_used_tokens,
            kv_total_tokens=counts.kv_total_tokens,
            tokens_per_second=self._token_rate.note(counts.generated_token_count),
            prompt_token_count=counts.prompt_token_count,
            prompt_cached_token_count=counts.prompt_cached_token_count,
            overlong_prompt_count=self._overlong_count,
            refused_sample_count=self._refused_count,
        )

    def _state(self, version: PolicyVersion | None, counts: EngineCounts) -> str:
        idle = self._paused or version is None or counts.running + counts.waiting == 0
        swapping_s = 0.0 if self._held is None else self._held.swapping_s
        if self._pulse.stuck_s(idle=idle) or swapping_s > self._options.stall_timeout_s:
            return "stuck"
        if self._draining:
            return "draining"
        if self._asleep:
            return "asleep"
        if version is None:
            return "stale"
        return "paused" if self._paused else "ready"

    async def wait_failed(self) -> BaseException:
        """Return when the engine can't work any more, with the reason."""
        return await asyncio.shield(asyncio.wrap_future(self._engine.failed))

    async def close(self) -> None:
        """End what runs as aborted and stop the engine."""
        self._pulse.close()
        await self._engine.close()

    # --- weights -----------------------------------------------------------------------------------------------------

    @property
    def weights(self) -> ServerWeights:
        """The four phases of an update, and the weights that are held."""
        if self._held is None:
            self._held = ServerWeights(self._engine)
        return self._held

    async def init_weight_transfer(self, transport: str, ctx: Mutation) -> None:
        """See the role."""
        self.weights.init_transport(transport)

    async def start_weight_update(self, sync_id: str, manifest: WeightsManifest, ctx: Mutation) -> None:
        """See the role. StateError while another update is being swapped in: its bytes are still needed."""
        if self._asleep:
            raise StateError("this rollout server is asleep: wake it before new weights come", state="asleep")
        await self.weights.start(sync_id, manifest)

    async def update_weights(
        self, sync_id: str, source: WeightSource, ctx: Mutation, offer: TransferOffer | None = None
    ) -> int:
        """See the role."""
        return await self.weights.receive(sync_id, source, ctx.deadline_s, offer)

    async def finish_weight_update(self, sync_id: str, ctx: Mutation) -> PolicyVersion:
        """See the role. What becomes of samples in flight, the engine's capabilities tell (`updates_in_flight`)."""
        return await self.weights.finish(sync_id)

    def weight_source(self) -> WeightSource:
        """Serves the weights that this server holds, to a newcomer. May be asked for before `start`."""
        return HeldWeights(lambda: self.weights)

    async def held_snapshot(self) -> Snapshot:
        """A frozen copy of the weights in use, made on first demand after an update. NotFoundError without any."""
        return await self.weights.held_snapshot()


class HfRollout(RolloutCore):
    """A core over the embedded engine, loaded and usable at once; `start` only warms it up.

    >>> # rollout = HfRollout(HfRolloutOptions("checkpoints/model"), decode=tokenizer.decode)
    >>> # async for completion in rollout.generate(requests, deadline_s=60): ...

    Raises:
        InvalidInputError: an option is wrong, or the model can't be loaded or run by this engine.
    """

    def __init__(self, options: HfRolloutOptions, decode: Decode) -> None:
        from argosy.rollout.engines.hf.adapter import HfEngine

        engine = HfEngine(options, decode)
        engine.load()
        super().__init__(
            engine,
            RolloutOptions(
                slot_count=options.slot_count,
                max_waiting=options.max_waiting,
                max_model_len=options.max_model_len,
                stream_interval_tokens=options.stream_interval_tokens,
                stall_timeout_s=options.stall_timeout_s,
            ),
            decode,
        )
