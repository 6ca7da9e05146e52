"""The rollout role on the embedded engine: usable in this process, or behind the gRPC servicer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from argosy.modeling.loading import ModelSource
from argosy.roles.weights import WeightSource
from argosy.rollout.engines.events import Event
from argosy.rollout.engines.hf.engine import Engine
from argosy.rollout.engines.hf.loading import adopt, load_module
from argosy.rollout.engines.hf.prefixes import PrefixStore
from argosy.rollout.engines.hf.runner import Runner
from argosy.rollout.engines.hf.sample import Sample
from argosy.rollout.engines.hf.scheduler import Scheduler
from argosy.rollout.engines.hf.selfcheck import Probe
from argosy.rollout.engines.hf.stops import Decode, StopStrings
from argosy.rollout.engines.hf.validation import check_request
from argosy.rollout.engines.updates import WeightUpdates
from argosy.types.errors import (
    DeadlineError,
    InvalidInputError,
    NotFoundError,
    StateError,
    UnavailableError,
)
from argosy.types.ids import PolicyVersion
from argosy.types.records import (
    Completion,
    GenerateRequest,
    Mutation,
    RolloutStatus,
    WeightChunk,
    WeightsManifest,
)
from argosy.weightsync import Snapshot, build_manifest, find_tied, shapes_of

if TYPE_CHECKING:
    from torch import Tensor

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class HfRolloutOptions:
    """The embedded engine's settings."""

    model_path: str
    """Folder or hub name of a causal LM."""
    dtype: str = "float32"
    """A name in `argosy.modeling.loading.DTYPES`."""
    device: str = "auto"
    """"cpu", "cuda", "cuda:N", or "auto": a GPU if there is one."""
    threads: int = 0
    """Compute threads of the engine; 0 leaves it to torch."""
    slot_count: int = 64
    """Samples that run at once, ≥ 1."""
    max_model_len: int = 0
    """Most tokens of prompt and answer together; 0 takes the model's own context."""
    max_waiting: int = 65536
    """Samples that may wait for a slot; more is OverloadedError."""
    prefill_token_budget: int = 4096
    """Prompt tokens that one step computes at most (one longer prompt goes alone)."""
    prefix_token_budget: int = 8192
    """Prompt tokens whose keys and values are kept for sharing; 0 shares only among samples admitted together."""
    deterministic: bool = False
    """Answer the calls of `generate` one after another, each admitted in sample-id order: bit for bit repeatable."""
    stream_interval_tokens: int = 16
    """Tokens of a sample between two runs that are told of it: what is lost at most when this server dies."""
    lineage: str = "main"
    """Lineage of the version that the model's own files are: step 0."""
    start_stale: bool = False
    """Answer nothing until a weight update has come (a newcomer to a run: case D11)."""
    trust_remote_code: bool = False
    """Let the model's folder run its own code."""
    override_config: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the model's config to change, as trainer and reference do."""


class HfRollout:
    """Implements `argosy.roles.rollout.Rollout` with the embedded engine, which works on a thread of its own.

    >>> # rollout = HfRollout(HfRolloutOptions("checkpoints/model"), decode=tokenizer.decode)
    >>> # async for completion in rollout.generate(requests, deadline_s=60): ...

    Args:
        options: See HfRolloutOptions.
        decode: Token ids → text without special tokens; for stop strings and `Completion.text`.

    Raises:
        InvalidInputError: an option is wrong, or the model can't be loaded or run by this engine.
    """

    def __init__(self, options: HfRolloutOptions, decode: Decode) -> None:
        _check_options(options)
        self._options = options
        self._decode = decode
        module = load_module(
            ModelSource(
                options.model_path,
                dtype=options.dtype,
                device=options.device,
                trust_remote_code=options.trust_remote_code,
                override_config=options.override_config,
            )
        )
        probe = Probe.of(module)
        self._model = adopt(module)
        probe.verify(self._model)
        self._max_model_len = min(options.max_model_len or self._model.context_len, self._model.context_len)
        state = module.state_dict()
        self._tied = find_tied(state)
        held = {tensor.dtype for tensor in state.values()}
        casts = [("float32", options.dtype)] if options.dtype != "float32" and len(held) == 1 else []
        self._updates = WeightUpdates(shapes_of(state), self._tied, casts)
        self._manifest = None if options.start_stale else build_manifest(options.lineage, 0, state, self._tied)
        self._snapshot: Snapshot | None = None
        self._swap: asyncio.Task[PolicyVersion] | None = None
        """The last swap of weights, done or running."""
        self._keys: set[str] = set()
        self._draining = False
        self._engine = Engine(
            Runner(self._model, slot_count=options.slot_count, max_model_len=self._max_model_len),
            Scheduler(
                slot_count=options.slot_count, max_waiting=options.max_waiting, deterministic=options.deterministic
            ),
            PrefixStore(options.prefix_token_budget),
            decode,
            prefill_token_budget=options.prefill_token_budget,
            version=None if self._manifest is None else self._manifest.version,
            threads=options.threads,
        )
        self._engine.start()

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
        mailbox = _Mailbox(asyncio.get_running_loop(), time.monotonic() + deadline_s)
        interval = self._options.stream_interval_tokens if interval_tokens is None else interval_tokens
        waiting = await self._begin(requests, mailbox, interval)
        try:
            while waiting:
                event = await mailbox.get(waiting)
                if isinstance(event, Completion):
                    waiting.discard(f"{event.purpose}:{event.sample_id}")
                    self._keys.discard(f"{event.purpose}:{event.sample_id}")
                yield event
        finally:
            mailbox.closed = True
            if waiting:
                gone = set(waiting)
                self._keys -= gone
                self._engine.call(lambda: self._engine.abort(gone))

    async def _begin(self, requests: Sequence[GenerateRequest], mailbox: _Mailbox, interval: int) -> set[str]:
        """Check the requests and hand them to the engine, all or none; returns their keys."""
        self._check_serving()
        samples = [self._sample(request, mailbox, interval) for request in requests]
        keys = {sample.key for sample in samples}
        if len(keys) < len(samples) or keys & self._keys:
            counts = Counter(sample.key for sample in samples)
            twice = next(key for key, count in counts.items() if count > 1 or key in self._keys)
            raise InvalidInputError(f"sample {twice} is in flight on this server already", field="sample_id")
        self._keys |= keys
        try:
            await self._call(lambda: self._engine.submit(samples))
        except BaseException:
            self._keys -= keys
            # A caller that was cancelled may have been taken in all the same.
            self._engine.call(lambda: self._engine.abort(keys))
            raise
        return keys

    def _sample(self, request: GenerateRequest, mailbox: _Mailbox, interval: int) -> Sample:
        check_request(request, vocab_size=self._model.vocab_size, max_model_len=self._max_model_len)
        params = request.params
        eos = frozenset() if params.ignore_eos else self._model.eos_token_ids
        stops = None
        if params.stop:
            stops = StopStrings(
                params.stop,
                self._decode,
                include=params.include_stop_str_in_output,
                min_tokens=params.min_tokens,
            )
        return Sample(
            request,
            stop_ids=eos.union(params.stop_token_ids),
            stops=stops,
            max_model_len=self._max_model_len,
            deliver=mailbox.deliver,
            interval=interval,
        )

    def _check_serving(self) -> None:
        if self._engine.version is None:
            raise StateError("this rollout server has no current weights: it needs an update first", state="stale")
        if self._draining:
            raise StateError("this rollout server is draining and takes no new samples", state="draining")

    # --- control -----------------------------------------------------------------------------------------------------

    async def abort(self, keys: Sequence[str] | None, ctx: Mutation) -> int:
        """See the role."""
        named = None if keys is None else set(keys)
        return await self._call(lambda: self._engine.abort(named))

    async def pause(self, mode: str, ctx: Mutation) -> None:
        """See the role. New requests are taken in and wait."""
        if mode not in ("keep", "abort"):
            raise InvalidInputError(f'pause mode {mode!r} is not "keep" or "abort"', field="mode")

        def stop() -> None:
            self._engine.paused = True
            if mode == "abort":
                self._engine.abort(None)

        await self._call(stop)

    async def resume(self, ctx: Mutation) -> None:
        """See the role. Doesn't end a drain."""
        await self._call(lambda: setattr(self._engine, "paused", False))

    async def drain(self, ctx: Mutation) -> None:
        """See the role; returns when nothing runs any more. A paused server goes on, since it has to finish."""
        self._draining = True
        deadline = time.monotonic() + ctx.deadline_s
        await self.resume(ctx)
        while await self._call(lambda: len(self._engine.scheduler)):
            if time.monotonic() > deadline:
                raise DeadlineError(f"{len(self._keys)} samples still run after {ctx.deadline_s:g} s of draining")
            await asyncio.sleep(0.01)

    async def status(self) -> RolloutStatus:
        """See the role. Doesn't wait for the engine's step: the numbers are of this moment, give or take a step."""
        engine = self._engine
        state = "ready"
        if self._draining:
            state = "draining"
        elif engine.version is None:
            state = "stale"
        elif engine.paused:
            state = "paused"
        return RolloutStatus(
            version=engine.version,
            state=state,
            running_count=len(engine.scheduler.running),
            waiting_count=len(engine.scheduler.waiting),
            slot_count=self._options.slot_count,
            generated_token_count=engine.generated_token_count,
            cached_token_count=engine.prefixes.token_count,
            max_model_len=self._max_model_len,
        )

    async def wait_failed(self) -> BaseException:
        """Return when the engine can't work any more, with the reason."""
        return await asyncio.shield(asyncio.wrap_future(self._engine.failed))

    async def close(self) -> None:
        """End what runs as aborted and stop the engine's thread."""
        await asyncio.to_thread(self._engine.close)

    # --- weights -----------------------------------------------------------------------------------------------------

    async def init_weight_transfer(self, transport: str, ctx: Mutation) -> None:
        """See the role."""
        self._updates.init_transport(transport)

    async def start_weight_update(self, sync_id: str, manifest: WeightsManifest, ctx: Mutation) -> None:
        """See the role. StateError while another update is being swapped in: its bytes are still needed."""
        if self._updates.finished(sync_id) != manifest.version:
            if self._swap is not None and not self._swap.done():
                raise StateError("weights are being swapped in; start an update when finish_weight_update has answered")
            self._updates.start(sync_id, manifest)

    async def update_weights(self, sync_id: str, source: WeightSource, ctx: Mutation) -> None:
        """See the role."""
        if self._updates.finished(sync_id) is None:
            await self._updates.receive(sync_id, source, ctx.deadline_s)

    async def finish_weight_update(self, sync_id: str, ctx: Mutation) -> PolicyVersion:
        """See the role. The swap happens between two steps: samples in flight go on under the new weights, with a cache
        computed anew, and their version runs say where the change was."""
        done = self._updates.finished(sync_id)
        if done is not None:
            return done
        tensors, manifest = self._updates.staged(sync_id)
        if self._swap is None or self._swap.done():
            self._swap = asyncio.create_task(self._swap_in(sync_id, tensors, manifest))
        # Shielded: the engine goes on with a swap that it has begun, even if this caller gives up.
        return await asyncio.shield(self._swap)

    async def _swap_in(self, sync_id: str, tensors: Mapping[str, Tensor], manifest: WeightsManifest) -> PolicyVersion:
        self._manifest, self._snapshot = None, None
        await self._call(lambda: self._engine.swap_weights(tensors, manifest.version))
        self._manifest = manifest
        self._updates.done(sync_id, manifest.version)
        return manifest.version

    def weight_source(self) -> WeightSource:
        """Serves the weights that this server holds, to a newcomer."""
        return _HeldWeights(self)

    async def held_snapshot(self) -> Snapshot:
        """A frozen copy of the weights in use, made on first demand after an update. NotFoundError without any."""
        manifest = self._manifest
        if manifest is None:
            raise NotFoundError("this rollout server holds no weights that it could pass on")
        if self._snapshot is None or self._snapshot.manifest.version != manifest.version:
            state = self._model.module.state_dict()
            held = shapes_of(state)
            if any(held[spec.name].dtype != spec.dtype for spec in manifest.tensors if spec.name in held):
                raise NotFoundError(
                    f"this rollout server holds {manifest.version.short} in {self._options.dtype}, not as it was sent"
                )
            self._snapshot = await self._call(lambda: Snapshot(manifest, state))
        return self._snapshot

    async def _call(self, function: Callable[[], _Result]) -> _Result:
        """Run on the engine's thread between two steps. UnavailableError once the engine is closed."""
        future: Future[_Result] = self._engine.call(function)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if future.cancelled() and self._engine.closing:
                raise UnavailableError("this rollout server is closed") from None
            raise


class _HeldWeights:
    """WeightSource over a rollout server."""

    def __init__(self, rollout: HfRollout) -> None:
        self._rollout = rollout

    @property
    def address(self) -> str:
        """Always "": in this process."""
        return ""

    async def get_manifest(self) -> WeightsManifest:
        """The version that is served."""
        return await (await self._rollout.held_snapshot()).get_manifest()

    async def stream_weights(self, version: PolicyVersion, names: tuple[str, ...] = ()) -> AsyncIterator[WeightChunk]:
        """Its bytes."""
        snapshot = await self._rollout.held_snapshot()
        async for chunk in snapshot.stream_weights(version, names):
            yield chunk


class _Mailbox:
    """Events from the engine's thread to one caller's event loop. Bounded by the caller's own samples and tokens."""

    def __init__(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        self._loop = loop
        self._deadline = deadline
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self.closed = False

    def deliver(self, event: Event) -> None:
        """From the engine's thread."""
        if not self.closed:
            try:
                self._loop.call_soon_threadsafe(self._events.put_nowait, event)
            except RuntimeError:  # the caller's loop ended without closing its generator: nobody waits any more
                self.closed = True

    async def get(self, waiting: set[str]) -> Event:
        """The next event. DeadlineError when the time is up."""
        try:
            async with asyncio.timeout(max(0.0, self._deadline - time.monotonic())):
                return await self._events.get()
        except TimeoutError:
            raise DeadlineError(f"{len(waiting)} samples were not finished within the deadline") from None


def _check_options(options: HfRolloutOptions) -> None:
    for name, least in (("slot_count", 1), ("prefill_token_budget", 1), ("max_waiting", 1), ("prefix_token_budget", 0)):
        if getattr(options, name) < least:
            raise InvalidInputError(f"rollout {name} must be at least {least}, got {getattr(options, name)}")
    if options.max_model_len < 0 or options.max_model_len == 1:
        raise InvalidInputError(f"rollout max_model_len must be 0 or at least 2, got {options.max_model_len}")
