"""The SGLang engine: samples become requests to the server, in segments that end where something changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import shutil
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from argosy.rollout.engines.base import Capabilities, EngineCounts, ModelFacts
from argosy.rollout.engines.events import Decode, Deliver
from argosy.rollout.engines.folder import ModelFolder
from argosy.rollout.engines.sampling.sample import Sample
from argosy.rollout.engines.sglang.admission import Admission
from argosy.rollout.engines.sglang.answer import Piece, read_piece
from argosy.rollout.engines.sglang.client import SglangClient
from argosy.rollout.engines.sglang.command import (
    LOOPBACK,
    filter_tokens,
    free_port,
    key_arguments,
    kv_tokens,
    server_arguments,
    server_environment,
)
from argosy.rollout.engines.sglang.facts import CAPABILITIES, facts_of, is_on_cpu
from argosy.rollout.engines.sglang.job import Job, stream_interval
from argosy.rollout.engines.sglang.options import SglangOptions
from argosy.rollout.engines.sglang.payload import check_params, is_filtered, segment_payload
from argosy.rollout.engines.sglang.server import ServerProcess
from argosy.rollout.engines.sglang.weights import WeightFolders
from argosy.types.errors import (
    ArgosyError,
    DeadlineError,
    InternalError,
    InvalidInputError,
    NotFoundError,
    OverloadedError,
    StateError,
    UnavailableError,
)
from argosy.types.ids import PolicyVersion
from argosy.types.records import FinishReason, GenerateRequest
from argosy.weightsync.manifest import make_manifest

if TYPE_CHECKING:
    from torch import Tensor

_LOG = logging.getLogger(__name__)
_AHEAD = 4
"""Requests beyond the server's slots, so that it never waits for the next one."""
_READY_POLL_S = 0.25
_KEY_BYTES = 32
_ABORT_AGAIN_S = 0.25
"""An abort can overtake the request that it is for: it is repeated until the request has ended."""
_IDLE_S = 10.0
"""Seconds that the server may take to be idle when nothing of ours is there any more."""
_IDLE_POLL_S = 0.01


class SglangEngine:
    """Implements `argosy.rollout.engines.base.Engine` with SGLang's server.

    Args:
        options: See SglangOptions.
        decode: Token ids → text.
    """

    def __init__(self, options: SglangOptions, decode: Decode) -> None:
        self._options = options
        self._decode = decode
        self._facts: ModelFacts | None = None
        self._own: PolicyVersion | None = None
        self._version: PolicyVersion | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="argosy-sglang-"))
        self._weights = WeightFolders(self._folder)
        self._server: ServerProcess | None = None
        self._client: SglangClient | None = None
        self._watch: asyncio.Task[None] | None = None
        self._jobs: dict[str, Job] = {}
        self._admission = Admission(options.slot_count + _AHEAD)
        self._open = asyncio.Event()
        """Set while segments may begin: not paused, not updating, not stale."""
        self._paused = False
        self._updating = asyncio.Lock()
        self._on_cpu = True
        self._generated = self._prompt_tokens = self._prompt_cached = self._held_tokens = 0
        self.failed: Future[BaseException] = Future()

    @property
    def capabilities(self) -> Capabilities:
        """See the Protocol."""
        return CAPABILITIES

    @property
    def facts(self) -> ModelFacts:
        """See the Protocol."""
        if self._facts is None:
            raise StateError("the SGLang engine has not been started", state="joining")
        return self._facts

    @property
    def version(self) -> PolicyVersion | None:
        """See the Protocol."""
        return self._version

    @property
    def server_process_id(self) -> int:
        """Of the child; 0 before `start`."""
        return 0 if self._server is None else self._server.process_id

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """See the Protocol. Starts the server and waits until it has answered one request."""
        options = self._options
        folder = await asyncio.to_thread(ModelFolder, options.model_path)
        self._facts = facts_of(folder, options)
        self._on_cpu = await asyncio.to_thread(is_on_cpu, options.device)
        self._own = make_manifest(options.lineage, 0, await asyncio.to_thread(folder.specs)).version
        port = free_port()
        arguments = server_arguments(options, self._facts, port, self._own.short, on_cpu=self._on_cpu)
        key = secrets.token_hex(_KEY_BYTES)
        arguments += await asyncio.to_thread(key_arguments, self._folder, key)
        self._server = ServerProcess(arguments, server_environment(options, self._folder))
        self._client = SglangClient(f"{LOOPBACK}:{port}", key=key, call_timeout_s=options.call_timeout_s)
        await self._server.start()
        await self._until_ready()
        self._watch = asyncio.create_task(self._watch_server(), name="sglang-watch")
        await self._warm_up()
        if not options.start_stale:
            self._version = self._own
        self._update_gate()

    async def close(self) -> None:
        """See the Protocol."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        for job in list(self._jobs.values()):
            job.aborted = True
            if job.task is not None:
                job.task.cancel()
                await asyncio.wait([job.task])
            self._finish(job, FinishReason.ABORTED)
        if self._client is not None:
            await self._client.close()
        if self._server is not None:
            await self._server.stop(self._options.stop_grace_s)
        self._weights.drop(self._weights.held)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _until_ready(self) -> None:
        assert self._server is not None
        assert self._client is not None
        deadline = time.monotonic() + self._options.start_timeout_s
        while not await self._client.is_ready():
            if self._server.exit_code is not None:
                raise InternalError(
                    f"SGLang's server has ended with {self._server.exit_code} while it started; its log is above"
                )
            if time.monotonic() > deadline:
                await self._server.stop(0)
                raise DeadlineError(
                    f"SGLang's server was not ready within {self._options.start_timeout_s:g} s "
                    "(argosy.startup_timeout_s)"
                )
            await asyncio.sleep(_READY_POLL_S)

    async def _warm_up(self) -> None:
        """One request with all that real ones may have: what is compiled at first use is compiled now."""
        assert self._client is not None
        sampling = {"max_new_tokens": 2, "temperature": 1.0, "ignore_eos": True}
        body = {"input_ids": [0, 0], "sampling_params": sampling, "return_logprob": True, "stream": True}
        async with asyncio.timeout(self._options.start_timeout_s):
            async for _ in self._client.generate(body):
                pass
        await self._until_idle()

    async def _watch_server(self) -> None:
        """Report the server's end, or that it no longer answers."""
        assert self._server is not None
        assert self._client is not None
        ended = asyncio.ensure_future(self._server.wait())
        seen = time.monotonic()
        try:
            while True:
                await asyncio.wait([ended], timeout=self._options.health_interval_s)
                if ended.done():
                    return self._fail(UnavailableError(f"SGLang's server has ended with {ended.result()}"))
                if await self._is_well():
                    seen = time.monotonic()
                elif time.monotonic() - seen > self._options.health_timeout_s:
                    return self._fail(
                        UnavailableError(f"SGLang's server has not answered for {self._options.health_timeout_s:g} s")
                    )
        finally:
            ended.cancel()

    async def _is_well(self) -> bool:
        """With samples at work the whole server is asked, scheduler included; else only its HTTP side, for free."""
        assert self._client is not None
        busy = any(job.request_id for job in self._jobs.values()) and not self._updating.locked()
        try:
            await self._client.check("/health" if busy else "/ready", self._options.health_timeout_s / 2)
        except (UnavailableError, DeadlineError) as error:
            _LOG.warning("SGLang's server: %s", error)
            return False
        return True

    def _fail(self, error: ArgosyError) -> None:
        _LOG.critical("the rollout engine has failed: %s", error)
        self._version = None
        self._update_gate()
        for job in list(self._jobs.values()):
            if job.task is not None:
                job.task.cancel()
            self._finish(job, FinishReason.FAILED, error.message)
        if not self.failed.done():
            self.failed.set_result(error)

    # --- samples -----------------------------------------------------------------------------------------------------

    async def submit(self, requests: Sequence[GenerateRequest], deliver: Deliver, interval_tokens: int) -> None:
        """See the Protocol."""
        if self.failed.done():
            raise UnavailableError("SGLang's server is gone")
        if len(self._jobs) + len(requests) > self._options.slot_count + self._options.max_waiting:
            raise OverloadedError(
                f"{len(requests)} more samples don't fit: {len(self._jobs)} are in flight, and at most "
                f"{self._options.slot_count + self._options.max_waiting} may be"
            )
        vocab_size, cap = self.facts.vocab_size, filter_tokens(self._options, self.facts)
        for request in requests:
            check_params(request.params, vocab_size=vocab_size, filter_tokens=cap)
        for request in requests:
            job = Job(Sample.of(request, self.facts, self._decode, deliver, interval_tokens))
            self._jobs[request.key] = job
            job.task = asyncio.create_task(self._serve(job), name=f"sglang-{request.key}")

    async def _serve(self, job: Job) -> None:
        """One sample from its first segment to its end, whatever that is."""
        reason: FinishReason | None
        error = ""
        try:
            reason = job.sample.replay()
            while reason is None and not job.aborted:
                async with self._admission.slot(job.sample.request.priority):
                    while not self._open.is_set():  # it may have been closed again before this task's turn came
                        await self._open.wait()
                    if not job.aborted:
                        reason = await self._segment(job)
        except ArgosyError as failure:
            reason, error = FinishReason.FAILED, failure.message
        except Exception as failure:  # noqa: BLE001 - it ends this sample only, which says why
            _LOG.exception("a sample failed")
            reason, error = FinishReason.FAILED, f"{type(failure).__name__}: {failure}"
        self._finish(job, FinishReason.ABORTED if reason is None else reason, error)

    async def _segment(self, job: Job) -> FinishReason | None:
        """One request to the server; None if the sample goes on after it."""
        assert self._client is not None
        assert self._version is not None
        sample, version = job.sample, self._version
        params = sample.request.params
        filtered = is_filtered(params, self.facts.vocab_size)
        job.request_id = f"{sample.key}/{uuid.uuid4().hex}"
        body = segment_payload(
            sample, job.request_id, vocab_size=self.facts.vocab_size, stream_interval=stream_interval(sample)
        )
        job.interrupted = False
        job.idle.clear()
        before = len(sample.token_ids)
        first = not sample.token_ids
        try:
            async with contextlib.aclosing(self._client.generate(body)) as pieces:
                async for content in pieces:
                    piece = read_piece(content, filtered=filtered)
                    if first:
                        self._count_prompt(sample, piece)
                        first = False
                    reason = self._take(sample, piece, version)
                    if reason is not None:
                        return reason
                    if piece.finish == "abort" and not job.interrupted:
                        raise InternalError(f"SGLang ended a request: {piece.message}")
            if len(sample.token_ids) == before and not job.interrupted:
                raise InternalError("SGLang ended a request without a token")
            return None
        finally:
            job.request_id = ""
            job.idle.set()

    def _take(self, sample: Sample, piece: Piece, version: PolicyVersion) -> FinishReason | None:
        """Take tokens in, up to the one that ends the sample."""
        if piece.token_ids and piece.weight_version != version.short:
            raise InternalError(
                f"SGLang sampled with the weights {piece.weight_version!r}, and {version.short!r} are served"
            )
        for token, log_prob in zip(piece.token_ids, piece.log_probs, strict=True):
            self._generated += 1
            reason = sample.append(token, log_prob, version)
            if reason is not None:
                return reason
        sample.send_progress()
        return None

    def _count_prompt(self, sample: Sample, piece: Piece) -> None:
        length = len(sample.request.prompt_ids)
        cached = min(piece.cached_tokens, length)
        sample.cached_prompt_tokens = cached
        self._prompt_tokens += length
        self._prompt_cached += cached
        self._held_tokens += length - cached

    def _finish(self, job: Job, reason: FinishReason, error: str = "") -> None:
        if self._jobs.get(job.sample.key) is job:
            del self._jobs[job.sample.key]
            job.sample.complete(reason, self._decode, error)

    # --- control -----------------------------------------------------------------------------------------------------

    async def abort(self, keys: set[str] | None) -> int:
        """See the Protocol."""
        jobs = [job for key, job in self._jobs.items() if (keys is None or key in keys) and not job.aborted]
        for job in jobs:
            job.aborted = True
        waiting = [job for job in jobs if not job.request_id]
        for job in waiting:
            if job.task is not None:
                job.task.cancel()
            self._finish(job, FinishReason.ABORTED)
        await self._end_segments([job for job in jobs if job.request_id])
        return len(jobs)

    async def pause(self, mode: str) -> None:
        """See the Protocol. Samples keep their tokens here, and nothing of them is at the server meanwhile."""
        self._paused = True
        self._update_gate()
        if mode == "abort":
            await self.abort(None)
        await self._end_segments(list(self._jobs.values()))

    async def resume(self) -> None:
        """See the Protocol."""
        self._paused = False
        self._update_gate()

    async def _end_segments(self, jobs: Sequence[Job]) -> None:
        """End what these samples have at the server; their tokens are taken in before this returns."""
        deadline = time.monotonic() + self._options.call_timeout_s
        while left := [job for job in jobs if job.request_id]:
            assert self._client is not None  # nothing has a request before the server is up
            if time.monotonic() > deadline:
                raise DeadlineError(f"SGLang has not ended {len(left)} requests")
            for job in left:
                job.interrupted = True
                await self._client.call("/abort_request", {"rid": job.request_id})
            waits = [asyncio.ensure_future(job.idle.wait()) for job in left]
            await asyncio.wait(waits, timeout=_ABORT_AGAIN_S)
            for wait in waits:
                wait.cancel()

    def _update_gate(self) -> None:
        if self._paused or self._updating.locked() or self._version is None:
            self._open.clear()
        else:
            self._open.set()

    # --- weights -----------------------------------------------------------------------------------------------------

    async def swap_weights(self, tensors: Mapping[str, Tensor], version: PolicyVersion) -> None:
        """See the Protocol. Samples in flight go on under the new weights, their prompts and tokens computed anew."""
        assert self._client is not None
        folder = await asyncio.to_thread(self._weights.write, tensors)  # samples go on meanwhile
        try:
            async with self._updating:
                self._update_gate()
                await self._end_segments(list(self._jobs.values()))
                await self._load(folder, version)
        except BaseException:
            self._weights.drop(folder)
            raise
        finally:
            self._update_gate()
        self._weights.keep(folder)

    async def _load(self, folder: Path, version: PolicyVersion) -> None:
        """Let the server read a folder. If that fails, nobody knows what it holds: stale, and samples fail."""
        assert self._client is not None
        await self._until_idle()
        self._version = None
        body = {"model_path": str(folder), "weight_version": version.short, "flush_cache": True}
        try:
            await self._client.call("/pause_generation", {"mode": "in_place"})
            await self._client.call("/update_weights_from_disk", body)
            await self._client.call("/continue_generation")
        except ArgosyError as error:
            for job in list(self._jobs.values()):
                if job.task is not None:
                    job.task.cancel()
                self._finish(job, FinishReason.FAILED, f"the weights could not be changed: {error.message}")
            raise
        self._version = version
        self._held_tokens = 0

    async def _until_idle(self) -> None:
        """What has just been ended leaves the scheduler's batch a step later; the cache can be flushed from then on.

        (The server's own waiting, `flush_cache?timeout=`, takes up to a second: its loop sleeps when it is idle.)
        """
        assert self._client is not None
        deadline = time.monotonic() + _IDLE_S
        while True:
            try:
                await self._client.call("/flush_cache")
            except InternalError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_IDLE_POLL_S)
            else:
                return

    async def mark_stale(self) -> None:
        """See the Protocol."""
        self._version = None
        self._update_gate()

    async def held_state(self) -> Mapping[str, Tensor]:
        """See the Protocol. NotFoundError while the weights are the model's own files."""
        if self._version is None or self._weights.held is None:
            raise NotFoundError("the SGLang engine holds no weights that it was sent")
        return await asyncio.to_thread(self._weights.read)

    async def sleep(self, level: int) -> None:
        """InvalidInputError: the server can't free its memory without ending (no CPU build can)."""
        raise InvalidInputError(f"sleep level {level}: the engine sglang can't sleep", field="level")

    async def wake(self) -> None:
        """Nothing to do: it never sleeps."""

    def counts(self) -> EngineCounts:
        """See the Protocol. What the cache holds is estimated from the prompts that it took in."""
        active = sum(1 for job in self._jobs.values() if job.request_id)
        running = min(active, self._options.slot_count)
        if self._facts is None:
            return EngineCounts()
        total = kv_tokens(self._options, self._facts, on_cpu=self._on_cpu)
        held = [len(job.sample.request.prompt_ids) + len(job.sample.token_ids) for job in self._jobs.values()]
        return EngineCounts(
            running=running,
            waiting=len(self._jobs) - running,
            generated_token_count=self._generated,
            cached_token_count=min(self._held_tokens, total) if total else self._held_tokens,
            kv_used_tokens=sum(held),
            kv_total_tokens=total,
            prompt_token_count=self._prompt_tokens,
            prompt_cached_token_count=self._prompt_cached,
        )
