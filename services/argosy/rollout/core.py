"""The rollout role over any engine: usable in this process, or behind the gRPC servicer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import cast

from argosy.roles.weights import WeightSource
from argosy.rollout.engines.base import Decode, Engine
from argosy.rollout.engines.events import Event
from argosy.rollout.engines.hf.options import HfRolloutOptions
from argosy.rollout.mailbox import Mailbox
from argosy.rollout.requests import check_request
from argosy.rollout.weights import ServerWeights
from argosy.types.errors import DeadlineError, InvalidInputError, StateError
from argosy.types.ids import PolicyVersion
from argosy.types.records import Completion, GenerateRequest, Mutation, RolloutStatus, WeightsManifest
from argosy.weightsync import Snapshot

__all__ = ["HfRollout", "HfRolloutOptions", "RolloutCore", "RolloutOptions"]


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
        self._draining = False

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

    async def generate(self, requests: Sequence[GenerateRequest], *, deadline_s: float) -> AsyncIterator[Completion]:
        """See the role."""
        events = cast(
            "AsyncGenerator[Event, None]", self.generate_runs(requests, deadline_s=deadline_s, interval_tokens=0)
        )
        async with contextlib.aclosing(events):  # a caller that leaves ends its samples now, not when it is collected
            async for event in events:
                if isinstance(event, Completion):
                    yield event

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
                yield event
        finally:
            mailbox.closed = True
            if waiting:
                self._leave(set(waiting))

    async def _begin(self, requests: Sequence[GenerateRequest], mailbox: Mailbox, interval: int) -> set[str]:
        """Check the requests and hand them to the engine, all or none; returns their keys."""
        self._check_serving()
        vocab_size = self._engine.facts.vocab_size
        for request in requests:
            check_request(request, vocab_size=vocab_size, max_model_len=self.max_model_len)
        keys = {request.key for request in requests}
        if len(keys) < len(requests) or keys & self._keys:
            counts = Counter(request.key for request in requests)
            twice = next(key for key, count in counts.items() if count > 1 or key in self._keys)
            raise InvalidInputError(f"sample {twice} is in flight on this server already", field="sample_id")
        self._keys |= keys
        try:
            await self._engine.submit(requests, mailbox.deliver, interval)
        except BaseException:
            # A caller that was cancelled may have been taken in all the same.
            self._leave(keys)
            raise
        return keys

    def _leave(self, keys: set[str]) -> None:
        """End samples that nobody waits for; doesn't wait for their end."""
        self._keys -= keys
        task = asyncio.ensure_future(self._engine.abort(keys))
        _LEAVING.add(task)
        task.add_done_callback(_left)

    def _check_serving(self) -> None:
        if self._engine.version is None:
            raise StateError("this rollout server has no current weights: it needs an update first", state="stale")
        if self._draining:
            raise StateError("this rollout server is draining and takes no new samples", state="draining")

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
        deadline = time.monotonic() + ctx.deadline_s
        await self.resume(ctx)
        while self._in_engine():
            if time.monotonic() > deadline:
                raise DeadlineError(f"{len(self._keys)} samples still run after {ctx.deadline_s:g} s of draining")
            await asyncio.sleep(0.01)

    def _in_engine(self) -> int:
        counts = self._engine.counts()
        return counts.running + counts.waiting
