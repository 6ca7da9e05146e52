"""Requests in, events out: AsyncLLM behind the Engine Protocol."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from argosy.rollout.engines.base import Capabilities, Decode, EngineCounts, ModelFacts
from argosy.rollout.engines.events import Deliver
from argosy.rollout.engines.hf.sample import Sample
from argosy.rollout.engines.hf.stops import StopStrings
from argosy.rollout.engines.vllm.arguments import check_known, engine_arguments, runs_eager
from argosy.rollout.engines.vllm.counts import Usage, logger_for
from argosy.rollout.engines.vllm.environment import compile_nothing, prepare_environment, require_vllm
from argosy.rollout.engines.vllm.facts import read_facts
from argosy.rollout.engines.vllm.options import VllmOptions, check_options
from argosy.rollout.engines.vllm.parameters import SAMPLING, to_vllm
from argosy.rollout.engines.vllm.segment import Segment
from argosy.types.errors import (
    InternalError,
    InvalidInputError,
    NotFoundError,
    OverloadedError,
    StateError,
    UnavailableError,
)
from argosy.types.ids import PolicyVersion, SampleId
from argosy.types.records import FinishReason, GenerateRequest, SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

_LOG = logging.getLogger(__name__)
_WATCH_S = 0.25
"""Seconds between two looks at whether vLLM's processes live."""
_TURNS = 16
"""Turns of the event loop in which what vLLM has taken from its queue reaches the samples; four are enough."""
_TRANSPORTS = frozenset({"stream", "collective", "shared_memory", "disk"})
"""All that fill a staging area in this process; the workers get it from there."""


class _InFlight:
    """A sample, and what vLLM calls it."""

    __slots__ = ("ended", "id", "sample", "seen_prompt", "task")

    def __init__(self, sample: Sample, number: int) -> None:
        self.sample = sample
        self.id = f"{sample.key}#{number}"
        self.ended = False
        self.seen_prompt = False
        self.task: asyncio.Task[None] | None = None


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
        self._decode = decode
        self._failed: Future[BaseException] = Future()
        self._version: PolicyVersion | None = None
        self._facts = read_facts(options)
        self._usage = Usage()
        self._segment = Segment()
        self._flights: dict[str, _InFlight] = {}
        self._names: dict[str, PolicyVersion] = {}
        self._swapping = asyncio.Lock()
        self._number = 0
        self._paused = False
        self._asleep = 0
        self._closed = False
        self._keyed_noise = True
        self._on_cpu = True
        self._generated_token_count = 0
        self._prompt_token_count = 0
        self._prompt_cached_token_count = 0
        self._llm: Any = None
        self._watch: asyncio.Task[None] | None = None

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
        return self._version

    @property
    def failed(self) -> Future[BaseException]:
        """See the Protocol."""
        return self._failed

    def counts(self) -> EngineCounts:
        """See the Protocol. How many prompt tokens its cache holds for sharing, vLLM doesn't tell: that stays 0."""
        running = sum(flight.seen_prompt for flight in self._flights.values())
        return EngineCounts(
            running=running,
            waiting=len(self._flights) - running,
            generated_token_count=self._generated_token_count,
            kv_used_tokens=round(self._usage.cache_usage * self._usage.cache_tokens) if self._flights else 0,
            kv_total_tokens=self._usage.cache_tokens,
            prompt_token_count=self._prompt_token_count,
            prompt_cached_token_count=self._prompt_cached_token_count,
        )

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """See the Protocol. Takes ten seconds to minutes."""
        options = self._options
        self._llm = await asyncio.to_thread(self._load)
        try:
            await self._make_ready()
        except BaseException as error:
            await self.close()
            if isinstance(error, RuntimeError) or type(error).__module__.startswith("vllm"):
                raise InvalidInputError(
                    f"vLLM has loaded model {options.model_path!r} but can't run it: {error}. The lines above say why"
                ) from error
            raise
        if not options.start_stale:
            await self._adopt_files()
        self._watch = asyncio.create_task(self._watch_processes())

    def _load(self) -> Any:
        """Start vLLM's processes; on a thread, since it blocks."""
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        self._on_cpu = bool(current_platform.is_cpu())
        built_for = "cpu" if self._on_cpu else str(current_platform.device_type)
        if self._options.device not in ("auto", built_for):
            raise InvalidInputError(
                f"argosy.rollout.device={self._options.device}, but this vLLM is built for {built_for}: set auto"
            )
        if runs_eager(self._options, on_cpu=self._on_cpu):
            compile_nothing()
        arguments = engine_arguments(self._options, self.facts.context_len, on_cpu=self._on_cpu)
        check_known(arguments)
        # Named to the workers as text; this process has to know the weight transfer that it registers, too.
        import argosy.rollout.engines.vllm.worker  # noqa: F401

        try:
            return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=[logger_for(self._usage)])
        except (RuntimeError, ValueError, NotImplementedError) as error:
            raise InvalidInputError(f"vLLM can't run model {self._options.model_path!r}: {error}") from error

    async def _make_ready(self) -> None:
        self._keyed_noise = all(await self._llm.collective_rpc("argosy_key_noise"))
        if not self._keyed_noise:
            _LOG.warning("this vLLM's sampler takes no noise keyed by sample: samples are not repeatable")
        await self._warm_up()

    async def _warm_up(self) -> None:
        """Sample a few tokens each way, so that nothing is compiled or allocated under the first real request."""
        ways = (
            SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True),
            SamplingParams(max_tokens=2, top_k=2, top_p=0.9, min_p=0.01, repetition_penalty=1.1, ignore_eos=True),
        )
        prompt = (0, 1) if self.facts.context_len > 3 else (0,)
        for k, params in enumerate(ways):
            request = GenerateRequest(SampleId(0, 0, k), prompt, params, purpose="warmup")
            chosen = to_vllm(request, stop_ids=(), limit=2, vocab_size=self.facts.vocab_size)
            async for _ in self._llm.generate(_prompt_of(prompt), chosen, f"warmup#{k}"):
                pass
        await self._llm.reset_prefix_cache()

    async def _adopt_files(self) -> None:
        """Name the weights that vLLM has loaded from the model's own files."""
        manifest = await asyncio.to_thread(_describe_files, self._options)
        self._version = manifest.version
        await self._name_version(manifest.version)

    async def _name_version(self, version: PolicyVersion) -> None:
        name = f"{version.lineage}/{version.step}/{version.digest}"
        self._names[name] = version
        await self._llm.update_weight_version(name)

    async def _watch_processes(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            if self._llm.errored:
                break
        error = UnavailableError("vLLM's engine process has died; its last words are in this service's log")
        self._version = None
        for flight in list(self._flights.values()):
            self._end(flight, FinishReason.FAILED, str(error))
        if not self._closed and not self._failed.done():
            self._failed.set_result(error)

    async def close(self) -> None:
        """See the Protocol."""
        self._closed = True
        for flight in list(self._flights.values()):
            self._end(flight, FinishReason.ABORTED)
        if self._watch is not None:
            self._watch.cancel()
        if self._llm is not None:
            await asyncio.to_thread(self._llm.shutdown)
        self._segment.close()

    # --- samples -----------------------------------------------------------------------------------------------------

    async def submit(self, requests: Sequence[GenerateRequest], deliver: Deliver, interval_tokens: int) -> None:
        """See the Protocol."""
        self._check_alive()
        capacity = self._options.slot_count + self._options.max_waiting
        if len(self._flights) + len(requests) > capacity:
            raise OverloadedError(
                f"{len(requests)} samples don't fit: {len(self._flights)} of {capacity} places are taken"
            )
        samples = [self._sample(request, deliver, interval_tokens) for request in requests]
        chosen = [
            to_vllm(
                sample.request, stop_ids=sample.stop_ids, limit=max(sample.limit, 1), vocab_size=self.facts.vocab_size
            )
            if len(sample.token_ids) < sample.limit
            else None
            for sample in samples
        ]
        for sample, params in zip(samples, chosen, strict=True):
            reason = sample.replay()
            if reason is not None or params is None:
                sample.complete(reason or FinishReason.LENGTH, self._decode)
                continue
            self._number += 1
            flight = _InFlight(sample, self._number)
            self._flights[sample.key] = flight
            flight.task = asyncio.create_task(self._run(flight, params))

    def _sample(self, request: GenerateRequest, deliver: Deliver, interval_tokens: int) -> Sample:
        params = request.params
        eos: frozenset[int] = frozenset() if params.ignore_eos else self.facts.eos_token_ids
        stops = None
        if params.stop:
            stops = StopStrings(
                params.stop, self._decode, include=params.include_stop_str_in_output, min_tokens=params.min_tokens
            )
        return Sample(
            request,
            stop_ids=eos.union(params.stop_token_ids),
            stops=stops,
            max_model_len=self.facts.context_len,
            deliver=deliver,
            interval=interval_tokens,
        )

    async def _run(self, flight: _InFlight, params: Any) -> None:
        """One sample from its request to its end."""
        try:
            async with contextlib.aclosing(self._generate(flight, params)) as outputs:
                async for output in outputs:
                    if flight.ended:
                        return
                    self._note_prompt(flight, output)
                    if self._take(flight, output):
                        return
            if not flight.ended:
                self._end(flight, FinishReason.FAILED, "vLLM ended the sample without a reason")
        except asyncio.CancelledError:
            self._end(flight, FinishReason.ABORTED)
            raise
        except Exception as error:  # noqa: BLE001 - the end of this sample: its completion says so
            cause = error.__cause__ or error
            self._end(flight, FinishReason.FAILED, f"vLLM: {type(cause).__name__}: {cause}")

    def _generate(self, flight: _InFlight, params: Any) -> Any:
        request = flight.sample.request
        prompt = _prompt_of((*request.prompt_ids, *flight.sample.token_ids))
        # vLLM puts the smallest number first.
        return self._llm.generate(prompt, params, flight.id, priority=-request.priority)

    def _note_prompt(self, flight: _InFlight, output: Any) -> None:
        if flight.seen_prompt:
            return
        flight.seen_prompt = True
        length, cached = len(flight.sample.request.prompt_ids), int(output.num_cached_tokens or 0)
        flight.sample.cached_prompt_tokens = min(cached, length)
        self._prompt_token_count += length
        self._prompt_cached_token_count += flight.sample.cached_prompt_tokens

    def _take(self, flight: _InFlight, output: Any) -> bool:
        """Take in new tokens, one by one, up to the one that ends the sample; whether it has ended."""
        sample, new = flight.sample, output.outputs[0]
        version = self._version
        for token, likely in zip(new.token_ids, new.logprobs or (), strict=True):
            log_prob = float(likely[token].logprob)
            if not math.isfinite(log_prob):
                self._end(flight, FinishReason.FAILED, "the model's logits are not finite")
                return True
            if version is None:
                self._end(flight, FinishReason.FAILED, "the weights were lost while this sample ran")
                return True
            self._generated_token_count += 1
            reason = sample.append(token, log_prob, version)
            if reason is not None:
                self._end(flight, reason)
                return True
        if new.finish_reason is not None:
            self._end(flight, *_reason_of(new.finish_reason))
            return True
        sample.send_progress()
        return False

    def _end(self, flight: _InFlight, reason: FinishReason, error: str = "") -> None:
        """Deliver the completion, once."""
        if flight.ended:
            return
        flight.ended = True
        if self._flights.get(flight.sample.key) is flight:
            del self._flights[flight.sample.key]
        flight.sample.complete(reason, self._decode, error)

    # --- control -----------------------------------------------------------------------------------------------------

    async def abort(self, keys: set[str] | None) -> int:
        """See the Protocol."""
        gone = [flight for key, flight in self._flights.items() if keys is None or key in keys]
        for flight in gone:
            self._end(flight, FinishReason.ABORTED)
        if gone and not self._llm.errored:
            await self._llm.abort([flight.id for flight in gone])
        return len(gone)

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
        if not self._asleep and not self._swapping.locked():
            await self._llm.resume_generation()

    async def _hold(self) -> None:
        """Stop vLLM between two steps and take in every token that it has sampled."""
        await self._llm.pause_generation(mode="keep", clear_cache=False)
        # The answer came after the last tokens, over the same socket; these may still be on their way to the samples:
        # from the queue to vLLM's handler, from there to each sample's own queue, and from that to its task.
        quiet = 0
        while quiet < _TURNS and not self._llm.errored:
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._llm.engine_core.outputs_queue.empty() else 0

    async def sleep(self, level: int) -> None:
        """See the Protocol. On CPUs vLLM has no sleep; level 1 is then to free the cache."""
        if level not in self.capabilities.sleep_levels:
            raise InvalidInputError(
                f"sleep level {level}: this vLLM has {self.capabilities.sleep_levels}", field="level"
            )
        if self._flights:
            raise StateError(f"{len(self._flights)} samples are in flight: nothing may be, to sleep", state="busy")
        if self._asleep:
            return
        await self._hold()
        self._asleep = level
        if self._on_cpu:
            await self._llm.reset_prefix_cache()
            await self._llm.collective_rpc("argosy_release_cache")
            return
        await self._llm.sleep(level, mode="keep")
        if level == 2:
            self._version = None

    async def wake(self) -> None:
        """See the Protocol."""
        if not self._asleep:
            return
        if self._on_cpu:
            await self._llm.collective_rpc("argosy_restore_cache")
        else:
            await self._llm.wake_up()
        self._asleep = 0
        if self._paused:
            await self._hold()
        else:
            await self._llm.resume_generation()

    # --- weights -----------------------------------------------------------------------------------------------------

    async def swap_weights(self, tensors: Mapping[str, Tensor], version: PolicyVersion) -> None:
        """See the Protocol. Samples in flight are held meanwhile and compute their cache anew.

        vLLM fuses tensors, so it can't take some alone: the others come again from our copy of them.
        """
        self._check_alive()
        async with self._swapping:
            await self._lay_out(tensors)
            await self._hold()
            try:
                await self._put_in(version)
            except Exception as error:
                await self._lose(error)
                raise InternalError(f"vLLM could not take version {version.short}: {error}") from error
            finally:
                if not self._paused and not self._asleep and not self._llm.errored:
                    await self._llm.resume_generation()

    async def _lay_out(self, tensors: Mapping[str, Tensor]) -> None:
        """Put tensors where the workers will read them, the others of the model beside them."""
        owners = self.facts.shapes.keys() - self.facts.tied.keys()
        if owners <= tensors.keys():
            await asyncio.to_thread(self._segment.fill, tensors)
            return
        if self._version is None:
            raise StateError("this engine has no current weights that some of them could be replaced in", state="stale")
        if not self._segment.placed:
            state = await asyncio.to_thread(_read_files, self._options)
            await asyncio.to_thread(self._segment.fill, {name: state[name] for name in state if name in owners})
        await asyncio.to_thread(self._segment.replace, tensors)

    async def _put_in(self, version: PolicyVersion) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        placed = [[place.name, place.dtype, list(place.shape), place.offset] for place in self._segment.placed]
        update = {"path": self._segment.path, "size": self._segment.size, "tensors": placed}
        self._version = None
        await self._llm.start_weight_update()
        await self._llm.update_weights(WeightTransferUpdateRequest(update_info=update))
        await self._llm.finish_weight_update()
        await self._llm.reset_prefix_cache(reset_running_requests=True)
        await self._name_version(version)
        self._version = version

    async def _lose(self, error: Exception) -> None:
        """A swap failed half way: what the workers hold is nobody's weights."""
        self._version = None
        gone = list(self._flights.values())
        for flight in gone:
            self._end(flight, FinishReason.FAILED, f"new weights could not be put in: {type(error).__name__}: {error}")
        if gone and not self._llm.errored:
            await self._llm.abort([flight.id for flight in gone])

    async def mark_stale(self) -> None:
        """See the Protocol."""
        self._version = None

    async def held_state(self) -> Mapping[str, Tensor]:
        """See the Protocol. What the last update brought (to be read while no weights are swapped), or else what the
        model's files hold."""
        if self._version is None:
            raise NotFoundError("this engine has no current weights")
        return self._segment.tensors() or await asyncio.to_thread(_read_files, self._options)

    def _check_alive(self) -> None:
        if self._closed:
            raise UnavailableError("this rollout engine is closed")
        if self._llm is None or self._llm.errored:
            raise UnavailableError("vLLM's engine process is not running")


def _prompt_of(ids: Sequence[int]) -> dict[str, Any]:
    """Token ids as vLLM takes them without any work on them."""
    return {"type": "token", "prompt_token_ids": list(ids)}


def _reason_of(finish_reason: str) -> tuple[FinishReason, str]:
    known = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORTED}
    reason = known.get(finish_reason)
    return (FinishReason.FAILED, f"vLLM ended the sample: {finish_reason}") if reason is None else (reason, "")


def _read_files(options: VllmOptions) -> dict[str, Any]:
    """The state dict of the model's files in the engine's dtype."""
    from argosy.modeling.loading import ModelSource, load_plain

    source = ModelSource(
        options.model_path,
        dtype=options.dtype,
        device="cpu",
        trust_remote_code=options.trust_remote_code,
        override_config=options.override_config,
    )
    state: dict[str, Any] = load_plain(source).state_dict()
    return state


def _describe_files(options: VllmOptions) -> Any:
    from argosy.weightsync import build_manifest, find_tied

    state = _read_files(options)
    return build_manifest(options.lineage, 0, state, find_tied(state))
