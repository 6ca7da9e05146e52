"""The step of continuous batching, and the thread that repeats it."""

from __future__ import annotations

import atexit
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import torch
from torch import Tensor

from argosy.rollout.engines.events import Decode
from argosy.rollout.engines.hf.batching import make_banned, make_penalties, make_settings, make_uniforms
from argosy.rollout.engines.hf.prefixes import Prefix, PrefixStore
from argosy.rollout.engines.hf.runner import Fill, Runner
from argosy.rollout.engines.hf.scheduler import Scheduler
from argosy.rollout.engines.sampling.sample import Sample
from argosy.rollout.engines.sampling.sampler import Settings
from argosy.types.ids import PolicyVersion
from argosy.types.records import FinishReason

_LOG = logging.getLogger(__name__)
_Result = TypeVar("_Result")

EXIT_GRACE_S = 10.0
"""How long the interpreter's end waits for a step of an engine that was not closed."""


class Engine:
    """Runs samples to their end on a thread of its own.

    Everything but `call`, `start` and `close` belongs to that thread: other threads reach it through `call`, which runs
    a function between two steps.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        prefixes: PrefixStore,
        decode: Decode,
        *,
        prefill_token_budget: int,
        version: PolicyVersion | None,
        threads: int = 0,
    ) -> None:
        self.runner = runner
        self.scheduler = scheduler
        self.prefixes = prefixes
        self.version = version
        """The weights that are served; None while there are none to serve."""
        self.paused = False
        self.generated_token_count = 0
        self.prompt_token_count = 0
        """Tokens whose keys and values samples needed when they were admitted."""
        self.prompt_cached_token_count = 0
        """How many of those were there already."""
        self._decode = decode
        self._prefill_token_budget = prefill_token_budget
        self._threads = threads
        self._settings: Settings | None = None
        self._ahead: Fill | None = None
        """A prompt longer than the budget, of which pieces are computed before its sample is admitted."""
        self._commands: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self.failed: Future[BaseException] = Future()
        """Done when the thread has died of a defect: then nothing is answered any more."""
        self._thread = threading.Thread(target=self._main, name="argosy-rollout-engine", daemon=True)

    # --- from any thread ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin stepping."""
        # A thread inside native code when the interpreter ends would take the process down with SIGABRT.
        atexit.register(self._end_in_time)
        self._thread.start()

    def call(self, function: Callable[[], _Result]) -> Future[_Result]:
        """Run `function` on the engine's thread between two steps."""
        future: Future[_Result] = Future()
        with self._wake:
            if self._closing:
                future.cancel()
            else:
                self._commands.append((future, function))
                self._wake.notify()
        return future

    @property
    def closing(self) -> bool:
        """Whether `close` was called: nothing new is run."""
        return self._closing

    def close(self) -> None:
        """End every sample as aborted and stop the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join()
        atexit.unregister(self._end_in_time)

    def _end_in_time(self) -> None:
        """At the interpreter's end, of an engine that nobody closed."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(EXIT_GRACE_S)

    # --- on the engine's thread --------------------------------------------------------------------------------------

    def submit(self, samples: Sequence[Sample]) -> None:
        """Take samples in, all or (OverloadedError) none; those that are at their end already complete at once."""
        self.scheduler.check_room(len(samples))
        open_samples = []
        for sample in samples:
            reason = sample.replay()
            if reason is None:
                open_samples.append(sample)
            else:
                sample.complete(reason, self._decode)
        self.scheduler.add(open_samples)

    def abort(self, keys: set[str] | None) -> int:
        """End the named samples (all with None) with what they have; returns how many."""
        gone = self.scheduler.remove_waiting(keys)
        for sample in [s for s in self.scheduler.running if keys is None or s.key in keys]:
            self._release(sample)
            gone.append(sample)
        for sample in gone:
            sample.complete(FinishReason.ABORTED, self._decode)
        return len(gone)

    def swap_weights(self, tensors: Mapping[str, Tensor], version: PolicyVersion) -> None:
        """Copy new weights into the model in place. Samples in flight start over their cache under the new weights.

        The version is None while the copy runs: if it fails half way, the server is stale, every sample it has ends as
        failed, and it answers nothing until a whole update has come.
        """
        state = self.runner.model.module.state_dict()
        self.version = None
        try:
            with torch.inference_mode():
                for name, tensor in tensors.items():
                    state[name].copy_(tensor)
        except Exception as error:
            self.scheduler.preempt()
            self._fail(self.scheduler.remove_waiting(None), error)
            raise
        self.version = version
        self.forget()
        self.scheduler.preempt()

    def forget(self) -> None:
        """Drop every key and value that is kept for samples to come."""
        self.prefixes.clear()
        self._ahead = None
        self._settings = None

    def step(self) -> None:
        """Admit what fits, then sample one token for every running sample."""
        self._admit()
        samples = self.scheduler.running
        if not samples:
            return
        logits = self.runner.decode([s.next_input for s in samples], [s.cached for s in samples])
        device = logits.device
        if self._settings is None:
            self._settings = make_settings(samples, logits.shape[1], device)
        tokens, log_probs = self.runner.draw(
            logits,
            make_uniforms(samples),
            self._settings,
            make_penalties(samples, device),
            make_banned(samples, device),
        )
        self._collect(tokens, log_probs)

    def _collect(self, tokens: list[int], log_probs: list[float]) -> None:
        """Hand each running sample its token; release those that end."""
        assert self.version is not None
        ended: list[tuple[Sample, FinishReason, str]] = []
        for sample, token, log_prob in zip(self.scheduler.running, tokens, log_probs, strict=True):
            if not math.isfinite(log_prob):
                ended.append((sample, FinishReason.FAILED, "the model's logits are not finite"))
                continue
            reason = sample.append(token, log_prob, self.version)
            self.generated_token_count += 1
            if reason is None:
                sample.send_progress()
            else:
                ended.append((sample, reason, ""))
        for sample, reason, error in ended:
            self._release(sample)
            sample.complete(reason, self._decode, error)

    def _admit(self) -> None:
        """Give slots to waiting samples, and fill them with their prompts' keys and values."""
        if self.scheduler.starts_afresh:
            # A prompt computed in other company may differ in the last bit.
            self.prefixes.clear()
        planned: set[Prefix] = set()

        def cost(sample: Sample) -> int:
            prefix = sample.prefix
            if prefix in planned or self.prefixes.get(prefix) is not None:
                return 0
            planned.add(prefix)
            return self._ahead.remaining if self._ahead is not None and self._ahead.ids == prefix else len(prefix)

        admitted = self.scheduler.admit(self._prefill_token_budget, cost)
        if not admitted:
            self._fill_ahead()
            return
        self._settings = None
        entries, owners = self._entries_for(admitted)
        for sample in admitted:
            sample.cached = len(sample.prefix)
        running = self.scheduler.running
        self.runner.slots.reserve(max(sample.cached for sample in running) + 1, len(running))
        for sample in admitted:
            prefix = sample.prefix
            if not prefix:
                continue
            self.runner.slots.fill(sample.slot, entries[prefix])
            self.prompt_token_count += len(prefix)
            if owners.get(prefix) is not sample:
                sample.cached_prompt_tokens = min(len(prefix), len(sample.request.prompt_ids))
                self.prompt_cached_token_count += len(prefix)
        # Only now: keeping a new prompt may drop an old one that these samples still needed.
        for prefix, sample in owners.items():
            # Only whole prompts are worth keeping: nobody shares a sampled answer.
            if not sample.token_ids:
                self.prefixes.put(prefix, entries[prefix])

    def _fill_ahead(self) -> None:
        """One piece, as long as a step may compute, of the prompt that is too long to be admitted at once."""
        sample = self.scheduler.next
        if sample is not None:
            self._ahead = self._fill_of(sample.prefix)
            self.runner.prefill([self._ahead], self._prefill_token_budget)

    def _fill_of(self, prefix: Prefix) -> Fill:
        """The one that is begun, or a new one."""
        if self._ahead is not None and self._ahead.ids == prefix:
            return self._ahead
        return self.runner.begin(prefix)

    def _entries_for(self, admitted: Sequence[Sample]) -> tuple[dict[Prefix, Tensor], dict[Prefix, Sample]]:
        """Keys and values of every prefix, and the sample for which each missing one was computed, once."""
        entries: dict[Prefix, Tensor] = {}
        owners: dict[Prefix, Sample] = {}
        for sample in admitted:
            prefix = sample.prefix
            kept = self.prefixes.get(prefix)
            if kept is not None:
                entries[prefix] = kept
            elif prefix:
                owners.setdefault(prefix, sample)
        if owners:
            fills = [self._fill_of(prefix) for prefix in owners]
            self.runner.prefill(fills)
            entries |= {prefix: fill.store for prefix, fill in zip(owners, fills, strict=True)}
            if self._ahead in fills:
                self._ahead = None
        return entries, owners

    def _release(self, sample: Sample) -> None:
        slot = sample.slot
        moved = self.scheduler.release(sample)
        if moved is not None:
            self.runner.slots.move(len(self.scheduler.running), slot, moved.cached)
        self._settings = None

    def _fail_running(self, error: Exception) -> None:
        """A step failed: nothing of the running batch can be trusted, so every sample in it ends as failed."""
        _LOG.exception("a step of the rollout engine failed")
        running = {sample.key for sample in self.scheduler.preempt()}
        self._fail(self.scheduler.remove_waiting(running), error)

    def _fail(self, samples: Sequence[Sample], error: Exception) -> None:
        for sample in samples:
            sample.complete(FinishReason.FAILED, self._decode, f"{type(error).__name__}: {error}")
        self.forget()

    @property
    def _has_work(self) -> bool:
        return not self.paused and self.version is not None and len(self.scheduler) > 0

    def _main(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - the end of the thread: whoever watches `failed` learns of it
            _LOG.critical("the rollout engine's thread has died", exc_info=error)
            with self._wake:
                self._closing = True
                for future, _ in self._commands:
                    future.cancel()
                self._commands.clear()
            self.failed.set_result(error)

    def _run(self) -> None:
        if self._threads > 0:
            # OpenMP's thread count belongs to the calling thread, so it is set here and not where the model was loaded.
            torch.set_num_threads(self._threads)
        while True:
            with self._wake:
                while not (self._commands or self._closing or self._has_work):
                    self._wake.wait()
                commands, closing = list(self._commands), self._closing
                self._commands.clear()
            for future, function in commands:
                _answer(future, function)
            if closing:
                self.abort(None)
                return
            if self._has_work:
                try:
                    self.step()
                except Exception as error:  # noqa: BLE001 - every sample of the batch reports it, and the log has the trace
                    self._fail_running(error)


def _answer(future: Future[Any], function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except BaseException as error:  # noqa: BLE001 - it is the caller's: the future carries it there
        future.set_exception(error)
