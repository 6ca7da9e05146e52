"""Samples in flight: each is one request of vLLM's, whose tokens are taken in one by one until one of them ends it."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Sequence
from typing import Any

from argosy.rollout.engines.base import ModelFacts
from argosy.rollout.engines.events import Decode, Deliver
from argosy.rollout.engines.sampling.sample import Sample
from argosy.rollout.engines.vllm.parameters import prompt_of, to_vllm
from argosy.types.ids import PolicyVersion
from argosy.types.records import FinishReason, GenerateRequest

_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORTED}
"""vLLM's → ours."""
_CLOSE_S = 2.0
"""Seconds that vLLM may take to hear of samples that end with us."""


class _Flight:
    """A sample, and what vLLM calls it."""

    __slots__ = ("ended", "id", "sample", "started")

    def __init__(self, sample: Sample, number: int) -> None:
        self.sample = sample
        self.id = f"{sample.key}#{number}"
        self.started = False
        """Whether it has a token from here: its prompt has been computed."""
        self.ended = False


class Flights:
    """All samples in flight, by key.

    Args:
        facts: Of the model.
        decode: See Decode.
    """

    def __init__(self, facts: ModelFacts, decode: Decode) -> None:
        self._facts = facts
        self._decode = decode
        self._flights: dict[str, _Flight] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        """One for each request that vLLM has, also of samples that have ended; the loop itself keeps no task alive."""
        self._number = 0
        self.version: PolicyVersion | None = None
        """What the tokens that come in were sampled by."""
        self.lora_request: Any = None
        """The adapter that every sample runs with, as vLLM is told of it."""
        self.generated_token_count = 0
        self.prompt_token_count = 0
        self.prompt_cached_token_count = 0

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def running(self) -> int:
        """Samples whose prompt has been computed."""
        return sum(flight.started for flight in self._flights.values())

    def submit(self, llm: Any, requests: Sequence[GenerateRequest], deliver: Deliver, interval_tokens: int) -> None:
        """Hand requests to vLLM, all or none; those that are at their end already complete at once.

        Raises:
            InvalidInputError: vLLM would sample otherwise than one asks.
        """
        samples = [Sample.of(request, self._facts, self._decode, deliver, interval_tokens) for request in requests]
        chosen = [
            to_vllm(s.request, stop_ids=s.stop_ids, limit=s.limit, vocab_size=self._facts.vocab_size)
            if len(s.token_ids) < s.limit
            else None
            for s in samples
        ]
        for sample, params in zip(samples, chosen, strict=True):
            reason = sample.replay()
            if reason is not None or params is None:
                sample.complete(reason or FinishReason.LENGTH, self._decode)
                continue
            self._number += 1
            flight = _Flight(sample, self._number)
            self._flights[sample.key] = flight
            task = asyncio.create_task(self._run(llm, flight, params))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def end(self, keys: set[str] | None, reason: FinishReason, error: str = "") -> list[str]:
        """End the samples named by their keys (all with None) with what they have; what vLLM calls them."""
        gone = [flight for key, flight in self._flights.items() if keys is None or key in keys]
        for flight in gone:
            self._end(flight, reason, error)
        return [flight.id for flight in gone]

    async def close(self) -> None:
        """End all as aborted, and wait a moment for vLLM to hear of it."""
        self.end(None, FinishReason.ABORTED)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_S)

    async def _run(self, llm: Any, flight: _Flight, params: Any) -> None:
        """One sample from its request to its end."""
        request = flight.sample.request
        prompt = prompt_of((*request.prompt_ids, *flight.sample.token_ids))
        # vLLM puts the smallest number first.
        answers = llm.generate(prompt, params, flight.id, priority=-request.priority, lora_request=self.lora_request)
        try:
            async with contextlib.aclosing(answers) as outputs:  # leaving it before its end aborts the request
                async for output in outputs:
                    if flight.ended or self._take(flight, output):
                        return
            self._end(flight, FinishReason.FAILED, "vLLM ended the sample without a reason")
        except asyncio.CancelledError:
            self._end(flight, FinishReason.ABORTED)
            raise
        except Exception as error:  # noqa: BLE001 - the end of this sample: its completion says so
            cause = error.__cause__ or error
            self._end(flight, FinishReason.FAILED, f"vLLM: {type(cause).__name__}: {cause}")

    def _take(self, flight: _Flight, output: Any) -> bool:
        """Take in new tokens up to the one that ends the sample; whether it has ended."""
        sample, new = flight.sample, output.outputs[0]
        self._note_prompt(flight, output)
        for token, likely in zip(new.token_ids, new.logprobs or (), strict=True):
            log_prob = float(likely[token].logprob)
            if not math.isfinite(log_prob):
                self._end(flight, FinishReason.FAILED, "the model's logits are not finite")
                return True
            if self.version is None:
                self._end(flight, FinishReason.FAILED, "the weights were lost while this sample ran")
                return True
            self.generated_token_count += 1
            reason = sample.append(token, log_prob, self.version)
            if reason is not None:
                self._end(flight, reason)
                return True
        if new.finish_reason is None:
            sample.send_progress()
            return False
        if new.finish_reason in _REASONS:
            self._end(flight, _REASONS[new.finish_reason])
        else:
            self._end(flight, FinishReason.FAILED, f"vLLM ended the sample: {new.finish_reason}")
        return True

    def _note_prompt(self, flight: _Flight, output: Any) -> None:
        if flight.started:
            return
        flight.started = True
        length = len(flight.sample.request.prompt_ids)
        flight.sample.cached_prompt_tokens = min(int(output.num_cached_tokens or 0), length)
        self.prompt_token_count += length
        self.prompt_cached_token_count += flight.sample.cached_prompt_tokens

    def _end(self, flight: _Flight, reason: FinishReason, error: str = "") -> None:
        """Deliver the completion, once."""
        if flight.ended:
            return
        flight.ended = True
        if self._flights.get(flight.sample.key) is flight:
            del self._flights[flight.sample.key]
        flight.sample.complete(reason, self._decode, error)
