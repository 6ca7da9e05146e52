"""The simulated engine: takes samples into slots, and lets time pass."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from argosy.rollout.engines.base import Capabilities, EngineCounts, ModelFacts
from argosy.rollout.engines.events import Decode, Deliver
from argosy.rollout.engines.folder import ModelFolder
from argosy.rollout.engines.simulated.failures import Failure
from argosy.rollout.engines.simulated.language import Language
from argosy.rollout.engines.simulated.latency import Latency
from argosy.rollout.engines.simulated.lengths import hazard_of
from argosy.rollout.engines.simulated.options import SimulatedOptions
from argosy.rollout.engines.simulated.prompts import PromptCache
from argosy.rollout.engines.simulated.sample import Sample
from argosy.types.errors import InternalError, InvalidInputError, NotFoundError, OverloadedError, StateError
from argosy.types.ids import PolicyVersion
from argosy.types.records import FinishReason, GenerateRequest
from argosy.weightsync.manifest import make_manifest

if TYPE_CHECKING:
    from torch import Tensor

_LOG = logging.getLogger(__name__)

CAPABILITIES = Capabilities(
    engine="simulated",
    log_probs="processed",
    sampling=frozenset({
        "top_k", "top_p", "min_p", "min_tokens", "stop_token_ids", "stop", "include_stop_str_in_output", "ignore_eos",
        "seed",
    }),
    sample_seeds=True,
    partial_resume=True,
    updates_in_flight=True,
    transports=frozenset({"stream", "collective", "shared_memory", "disk"}),
    sleep_levels=(1, 2),
    adapter_sync=False,
    deterministic=True,
    version_spans=True,
)  # fmt: skip
_MOST_HAZARDS = 1 << 20
"""Positions for which the length model is tabulated; contexts are shorter."""


class SimulatedEngine:
    """Implements `argosy.rollout.engines.base.Engine` on the caller's event loop.

    Args:
        options: See SimulatedOptions.
        decode: Token ids → text.
    """

    def __init__(self, options: SimulatedOptions, decode: Decode) -> None:
        self._options = options
        self._decode = decode
        self._latency = Latency(options.decode_ms, options.decode_ms_per_sample, options.prefill_us_per_token)
        self._failure = Failure(options.failure, options.failure_after)
        self._prompts = PromptCache(options.prefix_token_budget)
        self._waiting: deque[Sample] = deque()
        self._running: dict[str, Sample] = {}
        self._events: list[tuple[int, int, Sample]] = []
        """(step, tie-break, sample): when something has to be told next. Of samples that are gone, too."""
        self._order = itertools.count()
        self._step = 0
        self._due = 0.0
        """When the current step ends, on time.monotonic."""
        self._paused = False
        self._asleep = 0
        self._version: PolicyVersion | None = None
        self._facts: ModelFacts | None = None
        self._language: Language | None = None
        self._work = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._finished_count = 0
        self._generated = self._prompt_tokens = self._prompt_cached = 0
        self.failed: Future[BaseException] = Future()

    @property
    def capabilities(self) -> Capabilities:
        """See the Protocol."""
        return CAPABILITIES

    @property
    def facts(self) -> ModelFacts:
        """See the Protocol."""
        if self._facts is None:
            raise StateError("the simulated engine has not been started")
        return self._facts

    @property
    def version(self) -> PolicyVersion | None:
        """See the Protocol."""
        return self._version

    async def start(self) -> None:
        """See the Protocol."""
        options = self._options
        folder = await asyncio.to_thread(ModelFolder, options.model_path)
        context_len = min(options.max_model_len or folder.context_len, folder.context_len)
        if folder.vocab_size <= len(folder.eos_token_ids):
            raise InvalidInputError(f"the model {options.model_path} has no tokens besides its end tokens")
        self._facts = ModelFacts(
            shapes=folder.shapes,
            tied=folder.tied,
            casts=tuple((sent, held) for sent in ("float32", "bfloat16") for held in ("float32", "bfloat16")),
            vocab_size=folder.vocab_size,
            context_len=context_len,
            eos_token_ids=folder.eos_token_ids,
        )
        hazard = hazard_of(options.length, options.length_mean, options.length_spread, min(context_len, _MOST_HAZARDS))
        self._language = await asyncio.to_thread(Language, folder.vocab_size, folder.eos_token_ids, hazard)
        if not options.start_stale:
            specs = await asyncio.to_thread(folder.specs)
            self._version = make_manifest(options.lineage, 0, specs).version
        self._loop = asyncio.create_task(self._run(), name="simulated-engine")

    async def submit(self, requests: Sequence[GenerateRequest], deliver: Deliver, interval_tokens: int) -> None:
        """See the Protocol."""
        if self._asleep:
            raise StateError("the simulated engine is asleep; wake it first", state="asleep")
        if len(self._waiting) + len(requests) > self._options.max_waiting + self._free:
            raise OverloadedError(
                f"{len(requests)} more samples don't fit: {len(self._waiting)} wait already, and at most "
                f"{self._options.max_waiting} may"
            )
        context = self.facts.context_len
        arrived = [
            Sample(
                request,
                min(request.params.max_tokens, context - len(request.prompt_ids)),
                self.facts.eos_token_ids,
                deliver,
                interval_tokens,
            )
            for request in requests
        ]
        self._waiting += arrived
        if any(sample.request.priority for sample in self._waiting):
            self._waiting = deque(sorted(self._waiting, key=lambda sample: -sample.request.priority))
        self._work.set()

    async def abort(self, keys: set[str] | None) -> int:
        """See the Protocol."""
        if self._failure.due("hang", self._finished_count):
            await asyncio.Event().wait()  # as an engine whose loop no longer turns
        return self._end(keys)

    def _end(self, keys: set[str] | None) -> int:
        """End samples as ABORTED; how many."""
        waiting, self._waiting = self._waiting, deque()
        gone = [sample for key, sample in self._running.items() if keys is None or key in keys]
        for sample in gone:
            self._release(sample)
        for sample in waiting:
            (gone if keys is None or sample.key in keys else self._waiting).append(sample)
        for sample in gone:
            sample.complete(FinishReason.ABORTED, self._decode)
        self._work.set()
        return len(gone)

    async def pause(self, mode: str) -> None:
        """See the Protocol."""
        self._paused = True
        if mode == "abort":
            self._end(None)

    async def resume(self) -> None:
        """See the Protocol."""
        self._paused = False
        self._due = time.monotonic()
        self._work.set()

    async def swap_weights(self, tensors: Mapping[str, Tensor], version: PolicyVersion) -> None:
        """See the Protocol. The tensors were checked by the core; only their version is kept."""
        self._version = version
        self._prompts.clear()
        for sample in self._running.values():
            self._write(sample)
        self._work.set()

    async def mark_stale(self) -> None:
        """See the Protocol."""
        self._version = None

    async def held_state(self) -> Mapping[str, Tensor]:
        """NotFoundError: it keeps no weights."""
        raise NotFoundError("the simulated engine keeps no weights that it could pass on")

    async def sleep(self, level: int) -> None:
        """See the Protocol. There is nothing to free; only the rules are kept."""
        if level not in CAPABILITIES.sleep_levels:
            raise InvalidInputError(f"sleep level must be 1 or 2, got {level}", field="level")
        if self._running or self._waiting:
            raise StateError(f"{len(self._running) + len(self._waiting)} samples are in flight; end them before sleep")
        self._asleep = level
        self._prompts.clear()

    async def wake(self) -> None:
        """See the Protocol."""
        if self._asleep == 2:
            self._version = None
        self._asleep = 0

    def counts(self) -> EngineCounts:
        """See the Protocol."""
        used = sum(len(sample.request.prompt_ids) + sample.count for sample in self._running.values())
        now = sum(sample.count - sample.base for sample in self._running.values())
        return EngineCounts(
            running=len(self._running),
            waiting=len(self._waiting),
            generated_token_count=self._generated + now,
            cached_token_count=self._prompts.token_count,
            kv_used_tokens=used,
            kv_total_tokens=self._options.slot_count * (self._facts.context_len if self._facts else 0),
            prompt_token_count=self._prompt_tokens,
            prompt_cached_token_count=self._prompt_cached,
        )

    async def close(self) -> None:
        """See the Protocol."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait([self._loop])
            self._loop = None
        self._end(None)

    # --- the loop ----------------------------------------------------------------------------------------------------

    @property
    def _free(self) -> int:
        return self._options.slot_count - len(self._running)

    @property
    def _can_work(self) -> bool:
        return not self._paused and self._version is not None and bool(self._running or self._waiting)

    async def _run(self) -> None:
        self._due = time.monotonic()
        try:
            while True:
                self._work.clear()
                if not self._can_work:
                    await self._work.wait()
                    self._due = max(self._due, time.monotonic())
                    continue
                await self._steps()
        except Exception as error:  # noqa: BLE001 - the end of the loop: whoever watches `failed` learns of it
            _LOG.critical("the simulated engine has failed", exc_info=error)
            self._version = None
            for sample in [*self._running.values(), *self._waiting]:
                sample.complete(FinishReason.FAILED, self._decode, f"{type(error).__name__}: {error}")
            self._running.clear()
            self._waiting.clear()
            self.failed.set_result(error)

    async def _steps(self) -> None:
        """Admit, let one step's time pass (or all steps to the next event, if they take none), tell what is due."""
        self._strike()
        if self._failure.due("hang", self._finished_count):
            await self._work.wait()
            return
        prefill_tokens = self._admit()
        if not self._running:
            return
        step_s = self._latency.step_s(len(self._running), prefill_tokens)
        self._due = max(self._due, time.monotonic() - step_s) + step_s
        left_s = self._due - time.monotonic()
        await asyncio.sleep(max(0.0, left_s))
        if self._paused or self._version is None or not self._running:
            return
        self._step = self._step + 1 if step_s else max(self._step + 1, self._events[0][0])
        self._tell()

    def _strike(self) -> None:
        self._failure.strike(self._finished_count)
        if self._failure.due("fail", self._finished_count):
            raise InternalError(f"the simulated engine failed on demand after {self._finished_count} samples")

    def _admit(self) -> int:
        """Give slots to waiting samples; returns the prompt tokens to compute."""
        prefill_tokens = 0
        while self._waiting and self._free:
            sample = self._waiting.popleft()
            if self._failure.due("error", self._finished_count):
                sample.complete(FinishReason.FAILED, self._decode, "failed on demand")
                continue
            length = len(sample.request.prompt_ids)
            sample.cached_prompt_tokens = self._prompts.take(sample.request.prompt_ids)
            prefill_tokens += length - sample.cached_prompt_tokens
            self._prompt_tokens += length
            self._prompt_cached += sample.cached_prompt_tokens
            self._running[sample.key] = sample
            self._write(sample)
        return prefill_tokens

    def _write(self, sample: Sample) -> None:
        """Let a running sample go on under the weights in use."""
        assert self._language is not None
        assert self._version is not None
        self._generated += sample.count - sample.base
        sample.write(self._language, self._version, self._decode)
        sample.started_at = self._step
        self._expect(sample)

    def _expect(self, sample: Sample) -> None:
        steps = sample.next_stop - sample.count
        heapq.heappush(self._events, (self._step + steps, next(self._order), sample))

    def _tell(self) -> None:
        """Uncover this step's tokens; end and report what is due."""
        for sample in self._running.values():
            sample.at_step(self._step)
        while self._events and self._events[0][0] <= self._step:
            sample = heapq.heappop(self._events)[2]
            if self._running.get(sample.key) is not sample:
                continue
            if sample.count < sample.next_stop:  # it was written anew after an update, and is expected later
                continue
            if sample.count < sample.total:
                sample.send_progress()
                self._expect(sample)
                continue
            self._release(sample)
            self._finished_count += 1
            assert sample.reason is not None
            sample.complete(sample.reason, self._decode)
            self._strike()

    def _release(self, sample: Sample) -> None:
        del self._running[sample.key]
        self._generated += sample.count - sample.base
