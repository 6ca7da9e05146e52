"""The embedded engine behind the Protocol that every engine has."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from argosy.modeling.loading import ModelSource
from argosy.rollout.engines.base import Capabilities, EngineCounts, ModelFacts
from argosy.rollout.engines.events import Decode, Deliver
from argosy.rollout.engines.hf.engine import Engine as Loop
from argosy.rollout.engines.hf.loading import LoadedModel, adopt, load_module
from argosy.rollout.engines.hf.options import HfRolloutOptions
from argosy.rollout.engines.hf.prefixes import PrefixStore
from argosy.rollout.engines.hf.room import kv_room
from argosy.rollout.engines.hf.runner import Runner
from argosy.rollout.engines.hf.scheduler import Scheduler
from argosy.rollout.engines.hf.selfcheck import Probe
from argosy.rollout.engines.hf.sleeping import LEVELS, Nap
from argosy.rollout.engines.sampling.sample import Sample
from argosy.rollout.engines.warmup import WARM_UP_VERSION, warm_up
from argosy.types.errors import InvalidInputError, UnavailableError
from argosy.types.ids import PolicyVersion
from argosy.types.records import GenerateRequest
from argosy.weightsync import build_manifest, find_tied, shapes_of

if TYPE_CHECKING:
    from torch import Tensor

    from argosy.config import Config

_LOG = logging.getLogger(__name__)
_Result = TypeVar("_Result")

CAPABILITIES = Capabilities(
    engine="hf",
    log_probs="processed",
    sampling=frozenset({
        "top_k", "top_p", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "stop",
        "include_stop_str_in_output", "ignore_eos", "seed",
    }),
    sample_seeds=True,
    partial_resume=True,
    updates_in_flight=True,
    transports=frozenset({"stream", "collective", "shared_memory", "disk"}),
    sleep_levels=LEVELS,
    adapter_sync=True,
    deterministic=True,
    version_spans=True,
)  # fmt: skip


class HfEngine:
    """Implements `argosy.rollout.engines.base.Engine` with the step loop of `engine.py`, on a thread of its own.

    Args:
        options: See HfRolloutOptions.
        decode: Token ids → text without special tokens.

    Raises:
        InvalidInputError: an option is wrong.
    """

    def __init__(self, options: HfRolloutOptions, decode: Decode) -> None:
        options.check()
        self._options = options
        self._decode = decode
        self._loop: Loop | None = None
        self._model: LoadedModel | None = None
        self._facts: ModelFacts | None = None
        self._nap: Nap | None = None
        self._kv_token_count = 0

    # --- the model ---------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Load the model and begin stepping; blocks. InvalidInputError if this engine can't load or run the model."""
        options = self._options
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
        model = probe.verify(adopt(module, native_kernels=options.native_kernels))
        state = module.state_dict()
        tied = find_tied(state)
        held = {tensor.dtype for tensor in state.values()}
        self._model = model
        self._facts = ModelFacts(
            shapes=shapes_of(state),
            tied=tied,
            casts=[("float32", options.dtype)] if options.dtype != "float32" and len(held) == 1 else [],
            vocab_size=model.vocab_size,
            context_len=min(options.max_model_len or model.context_len, model.context_len),
            eos_token_ids=model.eos_token_ids,
        )
        self._kv_token_count = kv_room(model, options, self._facts.context_len)
        version = None if options.start_stale else build_manifest(options.lineage, 0, state, tied).version
        self._loop = self._make_loop(model, self._facts.context_len, version)
        self._loop.start()

    def _make_loop(self, model: LoadedModel, max_model_len: int, version: PolicyVersion | None) -> Loop:
        options = self._options
        return Loop(
            Runner(
                model,
                slot_count=options.slot_count,
                max_model_len=max_model_len,
                kv_token_count=self._kv_token_count,
            ),
            Scheduler(
                slot_count=options.slot_count,
                max_waiting=options.max_waiting,
                deterministic=options.deterministic,
                kv_token_count=self._kv_token_count if self._kv_token_count < options.slot_count * max_model_len else 0,
            ),
            PrefixStore(options.prefix_token_budget),
            self._decode,
            prefill_token_budget=options.prefill_token_budget,
            version=version,
            threads=options.threads,
        )

    async def start(self) -> None:
        """See the Protocol."""
        if self._loop is None:
            await asyncio.to_thread(self.load)
        served = self.version
        await self.call(lambda: self._set_version(WARM_UP_VERSION))
        try:
            seconds = await warm_up(self)
        finally:
            await self.call(lambda: self._forget_warm_up(served))
        _LOG.info("the embedded engine is warm: the first tokens took %.3f s", seconds)

    def _forget_warm_up(self, served: PolicyVersion | None) -> None:
        loop = self.loop
        self._set_version(served)
        loop.prefixes.clear()
        loop.generated_token_count = loop.prompt_token_count = loop.prompt_cached_token_count = 0

    def _set_version(self, version: PolicyVersion | None) -> None:
        self.loop.version = version

    @property
    def loop(self) -> Loop:
        """The stepping thread."""
        if self._loop is None:
            raise UnavailableError("the embedded engine has not loaded its model yet")
        return self._loop

    @property
    def model(self) -> LoadedModel:
        """What is loaded."""
        if self._model is None:
            raise UnavailableError("the embedded engine has not loaded its model yet")
        return self._model

    @property
    def capabilities(self) -> Capabilities:
        """See the Protocol."""
        return CAPABILITIES

    @property
    def facts(self) -> ModelFacts:
        """See the Protocol."""
        if self._facts is None:
            raise UnavailableError("the embedded engine has not loaded its model yet")
        return self._facts

    @property
    def version(self) -> PolicyVersion | None:
        """See the Protocol."""
        return self.loop.version

    @property
    def failed(self) -> Future[BaseException]:
        """See the Protocol."""
        return self.loop.failed

    # --- samples -----------------------------------------------------------------------------------------------------

    async def submit(self, requests: Sequence[GenerateRequest], deliver: Deliver, interval_tokens: int) -> None:
        """See the Protocol."""
        samples = [Sample.of(request, self.facts, self._decode, deliver, interval_tokens) for request in requests]
        await self.call(lambda: self.loop.submit(samples))

    async def abort(self, keys: set[str] | None) -> int:
        """See the Protocol."""
        return await self.call(lambda: self.loop.abort(keys))

    async def pause(self, mode: str) -> None:
        """See the Protocol."""

        def stop() -> None:
            self.loop.paused = True
            if mode == "abort":
                self.loop.abort(None)

        await self.call(stop)

    async def resume(self) -> None:
        """See the Protocol."""
        await self.call(lambda: setattr(self.loop, "paused", False))

    # --- weights -----------------------------------------------------------------------------------------------------

    async def swap_weights(self, tensors: Mapping[str, Tensor], version: PolicyVersion) -> None:
        """See the Protocol. Happens between two steps: samples in flight go on under the new weights, with a cache
        computed anew."""
        await self.call(lambda: self.loop.swap_weights(tensors, version))

    async def mark_stale(self) -> None:
        """See the Protocol."""
        await self.call(lambda: self._set_version(None))

    async def held_state(self) -> Mapping[str, Tensor]:
        """See the Protocol. The live tensors: read them while no weights are swapped."""
        state: Mapping[str, Tensor] = self.model.module.state_dict()
        return state

    async def sleep(self, level: int) -> None:
        """See the Protocol. InvalidInputError on a level that isn't in the capabilities."""
        if level not in LEVELS:
            raise InvalidInputError(f"the embedded engine can't sleep at level {level}", field="level")
        self._nap = await self.call(lambda: Nap(self.loop, level))

    async def wake(self) -> None:
        """See the Protocol. Room for new weights is there again; after level 2 it is stale until they come."""
        if self._nap is not None:
            await self.call(self._nap.end)
            self._nap = None

    # --- state -------------------------------------------------------------------------------------------------------

    def counts(self) -> EngineCounts:
        """See the Protocol."""
        loop = self.loop
        running = list(loop.scheduler.running)
        return EngineCounts(
            running=len(running),
            waiting=len(loop.scheduler.waiting),
            generated_token_count=loop.generated_token_count,
            cached_token_count=loop.prefixes.token_count,
            kv_used_tokens=sum(sample.cached for sample in running),
            kv_total_tokens=self._kv_token_count,
            prompt_token_count=loop.prompt_token_count,
            prompt_cached_token_count=loop.prompt_cached_token_count,
        )

    async def close(self) -> None:
        """See the Protocol. May be given up: no thread of the event loop's own waits for an engine that is stuck."""
        if self._loop is None:
            return
        closed: Future[None] = Future()

        def close(loop: Loop) -> None:
            loop.close()
            closed.set_result(None)

        closing = threading.Thread(target=close, args=(self._loop,), name="close-engine", daemon=True)
        closing.start()
        await asyncio.shield(asyncio.wrap_future(closed))
        # It has only to let go of the loop, while `self` still holds it. Else it might be the last to do so, and free
        # the model while the interpreter ends: torch gives the GIL up for that, and taking it again ends in SIGABRT.
        closing.join()

    async def call(self, function: Callable[[], _Result]) -> _Result:
        """Run on the engine's thread between two steps. UnavailableError once the engine is closed."""
        loop = self.loop
        future: Future[_Result] = loop.call(function)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if future.cancelled() and loop.closing:
                raise UnavailableError("this rollout server is closed") from None
            raise


def make(config: Config, decode: Decode, *, start_stale: bool) -> HfEngine:
    """The engine of a run's configuration, loaded."""
    from argosy.modeling.determinism import use_repeatable_kernels

    if config.argosy.deterministic:
        use_repeatable_kernels()
    engine = HfEngine(replace(options_of(config), start_stale=start_stale), decode)
    engine.load()
    return engine


def options_of(config: Config) -> HfRolloutOptions:
    """The engine's settings in a run's configuration."""
    service = config.argosy.rollout
    needed = config.data.max_prompt_length + config.data.max_response_length
    return HfRolloutOptions(
        model_path=config.actor_rollout_ref.model.path,
        dtype=service.dtype,
        device=service.device,
        threads=config.argosy.threads_of("rollout"),
        slot_count=service.slot_count,
        kv_token_count=service.kv_tokens,
        max_waiting=service.max_waiting,
        max_model_len=config.actor_rollout_ref.rollout.max_model_len or needed,
        prefill_token_budget=service.prefill_token_budget,
        native_kernels=service.native_kernels,
        stream_interval_tokens=service.stream_interval_tokens,
        stall_timeout_s=service.stall_timeout_s,
        deterministic=config.argosy.deterministic,
        override_config=config.actor_rollout_ref.model.override_config,
        trust_remote_code=config.actor_rollout_ref.model.trust_remote_code,
    )
