"""AsyncLLM behind the Engine Protocol."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from argosy.rollout.engines.base import Capabilities, EngineCounts, ModelFacts
from argosy.rollout.engines.events import Decode, Deliver
from argosy.rollout.engines.vllm.counts import Usage
from argosy.rollout.engines.vllm.environment import prepare_environment, require_vllm
from argosy.rollout.engines.vllm.facts import read_facts
from argosy.rollout.engines.vllm.flights import Flights
from argosy.rollout.engines.vllm.launch import launch, make_ready
from argosy.rollout.engines.vllm.options import VllmOptions, check_options
from argosy.rollout.engines.vllm.parameters import SAMPLING
from argosy.rollout.engines.vllm.receiving import receive_in_worker
from argosy.rollout.engines.vllm.weights import WorkerWeights, describe_files, name_of
from argosy.types.errors import (
    InternalError,
    InvalidInputError,
    NotFoundError,
    OverloadedError,
    StateError,
    UnavailableError,
)
from argosy.types.ids import PolicyVersion
from argosy.types.records import FinishReason, GenerateRequest

if TYPE_CHECKING:
    from torch import Tensor

_LOG = logging.getLogger(__name__)
_WATCH_S = 0.25
"""Seconds between two looks at whether vLLM's processes live."""
_TURNS = 16
"""Turns of the event loop in which what vLLM has taken from its queue reaches the samples; four are enough."""
_TRANSPORTS = frozenset({"stream", "collective", "shared_memory", "disk"})
"""All fill a staging area that the workers map: the collective from within the first of them, the others from here."""


class VllmEngine:
    """Implements `argosy.rollout.engines.base.Engine` with vLLM, whose scheduler and workers are other processes.

    Everything here runs on the event loop that `start` was called on.

    Args:
        options: See VllmOptions.
        decode: Token ids → text without special tokens; for stop strings and `Completion.text`.

    Raises:
        InvalidInputError: an option is wrong, or there is no such model.
        ConfigError: this interpreter has no vLLM.
    """

    def __init__(self, options: VllmOptions, decode: Decode) -> None:
        check_options(options)
        require_vllm()
        prepare_environment(options.model_path, options.threads)
        self._options = options
        self._facts = read_facts(options)
        self._flights = Flights(self._facts, decode)
        self._weights = WorkerWeights(options, self._facts)
        self._usage = Usage()
        self._failed: Future[BaseException] = Future()
        self._llm: Any = None
        self._on_cpu = True
        self._keyed_noise = True
        self._swapping = asyncio.Lock()
        self._replacing = False
        self._paused = False
        self._asleep = 0
        self._closed = False
        self._watch: asyncio.Task[None] | None = None
        self._dropping: asyncio.Task[None] | None = None

    # --- what it is --------------------------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        """See the Protocol."""
        return Capabilities(
            engine="vllm",
            log_probs="processed",
            sampling=SAMPLING,
            sample_seeds=self._keyed_noise,
            partial_resume=True,
            updates_in_flight=True,
            transports=_TRANSPORTS,
            sleep_levels=(1,) if self._on_cpu else (1, 2),
            adapter_sync=True,
            # Which samples share a step depends on when they arrive, and sums over other batches may round otherwise.
            deterministic=False,
            version_spans=True,
        )

    @property
    def facts(self) -> ModelFacts:
        """See the Protocol; valid from the beginning."""
        return self._facts

    @property
    def version(self) -> PolicyVersion | None:
        """See the Protocol."""
        return self._flights.version

    @property
    def failed(self) -> Future[BaseException]:
        """See the Protocol."""
        return self._failed

    def counts(self) -> EngineCounts:
        """See the Protocol. How many prompt tokens its cache holds for sharing, vLLM doesn't tell: that stays 0."""
        flights, usage = self._flights, self._usage
        return EngineCounts(
            running=flights.running,
            waiting=len(flights) - flights.running,
            generated_token_count=flights.generated_token_count,
            kv_used_tokens=round(usage.cache_usage * usage.cache_tokens) if len(flights) else 0,
            kv_total_tokens=usage.cache_tokens,
            prompt_token_count=flights.prompt_token_count,
            prompt_cached_token_count=flights.prompt_cached_token_count,
        )

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """See the Protocol. Takes ten seconds to minutes."""
        try:
            await asyncio.to_thread(self._launch)
            await self._prepare()
            self._keyed_noise = await make_ready(self._llm, self._options, self._facts, self._flights.lora_request)
            if not self._options.start_stale:
                manifest = await asyncio.to_thread(describe_files, self._options)
                await self._serve(manifest.version)
        except BaseException:
            await self.close()
            raise
        self._watch = asyncio.create_task(self._watch_processes())

    def _launch(self) -> None:
        """In a thread, which no cancellation stops: what it starts after `close` is ended here."""
        launched = launch(self._options, self._facts, self._usage)
        self._llm, self._on_cpu = launched.llm, launched.on_cpu
        if self._closed:
            launched.llm.shutdown()

    async def _prepare(self) -> None:
        """What has to be there before the first sample."""

    async def _serve(self, version: PolicyVersion) -> None:
        await self._llm.update_weight_version(name_of(version))
        self._flights.version = version

    async def _watch_processes(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            if self._llm.errored:
                break
        self._fail(UnavailableError("vLLM's engine process has died; its last words are in this service's log"))

    def _fail(self, error: UnavailableError) -> None:
        """Nothing works any more."""
        self._flights.version = None
        self._flights.end(None, FinishReason.FAILED, str(error))
        if not self._closed and not self._failed.done():
            self._failed.set_result(error)

    async def close(self) -> None:
        """See the Protocol."""
        self._closed = True
        await self._flights.close()
        for task in (self._watch, self._dropping):
            if task is not None:
                task.cancel()
        if self._llm is not None:
            await asyncio.to_thread(self._llm.shutdown)
        self._weights.close()

    def _check_alive(self) -> None:
        if self._closed:
            raise UnavailableError("this rollout engine is closed")
        if self._llm is None or self._llm.errored:
            raise UnavailableError("vLLM's engine process is not running")
        if self._failed.done():
            raise UnavailableError(f"this rollout engine has failed: {self._failed.result()}")

    # --- samples -----------------------------------------------------------------------------------------------------

    async def submit(self, requests: Sequence[GenerateRequest], deliver: Deliver, interval_tokens: int) -> None:
        """See the Protocol. InvalidInputError on a temperature that vLLM would change."""
        self._check_alive()
        capacity = self._options.slot_count + self._options.max_waiting
        if len(self._flights) + len(requests) > capacity:
            raise OverloadedError(
                f"{len(requests)} samples don't fit: {len(self._flights)} of {capacity} places are taken"
            )
        self._flights.submit(self._llm, requests, deliver, interval_tokens)

    async def abort(self, keys: set[str] | None) -> int:
        """See the Protocol."""
        return await self._end(keys, FinishReason.ABORTED)

    async def _end(self, keys: set[str] | None, reason: FinishReason, error: str = "") -> int:
        gone = self._flights.end(keys, reason, error)
        if gone and not self._llm.errored:
            await self._llm.abort(gone)
        return len(gone)

    # --- control -----------------------------------------------------------------------------------------------------

    async def pause(self, mode: str) -> None:
        """See the Protocol."""
        self._check_alive()
        self._paused = True
        if mode == "abort":
            await self.abort(None)
        if not self._asleep:
            await self._hold()

    async def resume(self) -> None:
        """See the Protocol."""
        self._check_alive()
        self._paused = False
        await self._go_on()

    async def _hold(self) -> None:
        """Stop vLLM between two steps and take in every token that it has sampled."""
        # What `pause_generation` does, without its 20 ms of sleep.
        await self._llm.engine_core.pause_scheduler_async(mode="keep", clear_cache=False)
        # The answer came after the last tokens, over the same socket; these may still be on their way to the samples:
        # from the queue to vLLM's handler, from there to each sample's own queue, and from that to its task.
        quiet = 0
        while quiet < _TURNS and not self._llm.errored:
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._llm.engine_core.outputs_queue.empty() else 0

    async def _go_on(self) -> None:
        """End a hold, unless something else wants it held."""
        if not (self._paused or self._asleep or self._replacing or self._llm.errored):
            await self._llm.resume_generation()

    async def sleep(self, level: int) -> None:
        """See the Protocol. On CPUs vLLM has no sleep; level 1 is then to free the cache."""
        known = self.capabilities.sleep_levels
        if level not in known:
            raise InvalidInputError(f"sleep level {level}: this vLLM has {known}", field="level")
        if len(self._flights):
            raise StateError(f"{len(self._flights)} samples are in flight: nothing may be, to sleep", state="busy")
        if self._asleep:
            return
        self._asleep = level
        try:
            await self._hold()
            if self._on_cpu:
                await self._llm.reset_prefix_cache()
                await self._llm.collective_rpc("argosy_release_cache")
                return
            await self._llm.sleep(level, mode="keep")
        except BaseException:
            self._asleep = 0
            await self._go_on()
            raise
        if level == 2:
            self._flights.version = None

    async def wake(self) -> None:
        """See the Protocol."""
        if not self._asleep:
            return
        if self._on_cpu:
            await self._llm.collective_rpc("argosy_restore_cache")
        else:
            await self._llm.wake_up()
        self._asleep = 0
        if self._paused:  # waking has set vLLM going
            await self._hold()
        await self._go_on()

    # --- weights -----------------------------------------------------------------------------------------------------

    async def receive_collective(self, command: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        """See `ReceivesCollectives`."""
        self._check_alive()
        return await receive_in_worker(self._llm, command, deadline_s)

    async def swap_weights(self, tensors: Mapping[str, Tensor], version: PolicyVersion) -> None:
        """See the Protocol. Samples in flight go on while the new weights are made ready, as far as that can be
        done beside the old ones, are held for the rest, and compute their cache anew.

        UnavailableError if it takes longer than the options' swap_timeout_s: the engine has failed then.
        """
        self._check_alive()
        if self.version is None and not self._weights.is_whole(tensors):
            raise StateError("this engine has no current weights that some of them could be replaced in", state="stale")
        async with self._swapping:
            await self._weights.lay_out(tensors)
            if self._dropping is not None:
                self._dropping.cancel()  # preparing drops what is left, first of all
            await self._replace(self._put_weights_in, version, self._prepare_weights)
            # Not awaited: the workers first compute the samples' cache anew.
            self._dropping = asyncio.create_task(self._drop_replaced())

    async def _prepare_weights(self) -> None:
        await self._weights.prepare(self._llm, lambda: not self._paused and len(self._flights) > 0)

    async def _drop_replaced(self) -> None:
        """Samples go on already, and the new weights are served, whatever becomes of the old ones' memory."""
        try:
            async with asyncio.timeout(self._options.swap_timeout_s):
                await self._weights.drop(self._llm)
        except Exception as error:  # noqa: BLE001 - of vLLM or its workers, and nothing depends on it
            _LOG.warning("vLLM's workers have not freed the weights that were replaced: %s", error)

    async def _put_weights_in(self) -> None:
        await self._weights.put_in(self._llm)

    async def _replace(
        self,
        put_in: Callable[[], Awaitable[None]],
        version: PolicyVersion,
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Prepare, hold the samples, change what they are sampled by, and serve it as a version; stale if that
        fails."""
        limit = asyncio.timeout(self._options.swap_timeout_s)
        try:
            async with limit:
                if prepare is not None:
                    await prepare()
                self._replacing = True
                await self._hold()
                self._flights.version = None
                await put_in()
                await self._serve(version)
        except Exception as error:
            if limit.expired():  # its workers hang: nothing that vLLM is asked would be answered
                hung = UnavailableError(f"vLLM has not put new weights in in {self._options.swap_timeout_s:g} s")
                self._fail(hung)
                raise hung from error
            await self._end(None, FinishReason.FAILED, f"new weights could not be put in: {error}")
            raise InternalError(f"vLLM could not take version {version.short}: {error}") from error
        finally:
            self._replacing = False
            if not self._failed.done():
                await self._go_on()

    async def mark_stale(self) -> None:
        """See the Protocol."""
        self._flights.version = None

    async def held_state(self) -> Mapping[str, Tensor]:
        """See the Protocol. To be read while no weights are swapped."""
        if self.version is None:
            raise NotFoundError("this engine has no current weights")
        return await self._weights.state()
