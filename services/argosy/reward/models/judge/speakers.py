"""Who speaks as the judge: an OpenAI-compatible endpoint, or rollout services of ours."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from argosy.reward.models.costs import Prices, Usage
from argosy.reward.models.dialogue import plain_text
from argosy.reward.models.endpoint import Endpoint, EndpointError
from argosy.reward.models.limits import RateLimit
from argosy.text.tokenizer import TextTokenizer
from argosy.types.errors import ArgosyError, DeadlineError, InvalidInputError, OverloadedError, StateError
from argosy.types.ids import SampleId
from argosy.types.records import Completion, FinishReason, GenerateRequest, SamplingParams

Messages = Sequence[Mapping[str, str]]
_CHARACTERS_PER_TOKEN = 3
"""For the rate limit's estimate of a prompt, before the server has counted; on the careful side for English."""
_WHOLE = ("", "none", "stop", "eos", "eos_token", "stop_sequence", "end_turn")
"""finish_reason of a reply that the judge itself ended, or of which the server says nothing. All others cut it."""


@dataclass(frozen=True, slots=True)
class Speech:
    """How a judge's reply is drawn."""

    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 1024


@dataclass(frozen=True, slots=True)
class Reply:
    """What a judge said, and what it cost."""

    text: str
    usage: Usage
    cut: str = ""
    """Who ended it before the judge was done: "length", "content_filter" …; "": nobody."""


class Speaker(Protocol):
    """One model that answers a chat."""

    name: str

    async def say(self, messages: Messages, key: str, *, deadline_s: float) -> Reply:
        """One reply. `key` names the draw: equal keys may give equal replies. Raises EndpointError."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class Generates(Protocol):
    """The part of `argosy.roles.rollout.Rollout` that a judge needs."""

    def generate(self, requests: Sequence[GenerateRequest], *, deadline_s: float) -> AsyncIterator[Completion]:
        """Yield each sample's completion as it ends."""
        ...


class ChatSpeaker:
    """`POST {url}/chat/completions`, as OpenAI, vLLM, SGLang and many others have it."""

    def __init__(self, endpoint: Endpoint, model: str, speech: Speech) -> None:
        self._endpoint = endpoint
        self._model = model
        self._speech = speech
        self.name = model

    async def say(self, messages: Messages, key: str, *, deadline_s: float) -> Reply:
        """As the Protocol says; the key isn't sent, since not every server takes a seed."""
        payload = {
            "model": self._model,
            "messages": [dict(message) for message in messages],
            "temperature": self._speech.temperature,
            "top_p": self._speech.top_p,
            "max_tokens": self._speech.max_tokens,
        }
        characters = sum(len(message["content"]) for message in messages)
        expected = characters // _CHARACTERS_PER_TOKEN + self._speech.max_tokens
        answer, usage = await self._endpoint.post(
            "/chat/completions", payload, deadline_s=deadline_s, expected_tokens=expected
        )
        try:
            choice: Any = answer["choices"][0]
            text: Any = choice["message"]["content"]
            reason: Any = choice.get("finish_reason")
        except (KeyError, IndexError, TypeError, AttributeError):
            raise EndpointError("bad_return", f"{self.name} gave no choices[0].message.content", usage=usage) from None
        cut = "" if str(reason).lower() in _WHOLE else str(reason)[:32]
        return Reply(text if isinstance(text, str) else "", usage, cut)

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoint.close()


class RolloutSpeaker:
    """Rollout services of ours that serve the judge's own weights.

    Args:
        rollouts: Replicas; a draw goes to the one that its key chooses, and to the next if that fails.
        tokenizer: The judge's.
        limits: Requests and tokens a minute.
    """

    def __init__(
        self,
        rollouts: Sequence[Generates],
        tokenizer: TextTokenizer,
        speech: Speech,
        *,
        concurrency: int = 8,
        limits: tuple[RateLimit, RateLimit] | None = None,
        timeout_s: float = 60.0,
        prices: Prices | None = None,
    ) -> None:
        self._rollouts = rollouts
        self._tokenizer = tokenizer
        self._speech = speech
        self._slots = asyncio.Semaphore(concurrency)
        self._limits = limits or (RateLimit(0), RateLimit(0))
        self._timeout_s = timeout_s
        self._prices = prices or Prices()
        self.name = tokenizer.name

    async def say(self, messages: Messages, key: str, *, deadline_s: float) -> Reply:
        """As the Protocol says: the noise is a function of the key."""
        number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "little")
        special = self._tokenizer.special_tokens
        prompt = self._tokenizer.encode_prompt(
            [{**message, "content": plain_text(message["content"], special)} for message in messages]
        )
        usage = Usage()
        end = asyncio.get_running_loop().time() + deadline_s
        problem = EndpointError("unavailable", "no rollout service is configured")
        try:
            async with asyncio.timeout(deadline_s), self._slots:
                for attempt in range(2 * len(self._rollouts)):
                    if attempt >= len(self._rollouts):
                        await asyncio.sleep(0.2 * attempt)
                    await self._limits[0].take()
                    await self._limits[1].take(len(prompt) + self._speech.max_tokens)
                    usage.requests += 1
                    usage.repeats += attempt > 0
                    rollout = self._rollouts[(number + attempt) % len(self._rollouts)]
                    left_s = min(self._timeout_s, end - asyncio.get_running_loop().time())
                    try:
                        return self._reply(await self._draw(rollout, number, prompt, left_s), len(prompt), usage)
                    except InvalidInputError as error:
                        raise EndpointError("refused", f"the judge's rollout: {error.message}", usage=usage) from error
                    except (DeadlineError, OverloadedError, StateError) as error:
                        reason = "timeout" if isinstance(error, DeadlineError) else "unavailable"
                        problem = EndpointError(reason, f"the judge's rollout: {error.message}", usage=usage)
                    except ArgosyError as error:
                        problem = EndpointError("unavailable", f"the judge's rollout: {error.message}", usage=usage)
        except TimeoutError:
            raise EndpointError(
                "timeout", f"the judge's rollout gave no reply within {deadline_s:.3g} s", usage=usage
            ) from None
        raise problem

    async def _draw(self, rollout: Generates, number: int, prompt: tuple[int, ...], deadline_s: float) -> Completion:
        params = SamplingParams(
            temperature=self._speech.temperature, top_p=self._speech.top_p, max_tokens=self._speech.max_tokens
        )
        request = GenerateRequest(SampleId(0, number, 0), prompt, params, purpose="val")
        async for completion in rollout.generate([request], deadline_s=deadline_s):
            return completion
        raise DeadlineError("no completion came")

    def _reply(self, completion: Completion, prompt_count: int, usage: Usage) -> Reply:
        if completion.overlong_prompt:
            raise EndpointError("too_large", f"the judge's rollout: {completion.error}", usage=usage)
        if completion.finish_reason in (FinishReason.FAILED, FinishReason.ABORTED):
            raise DeadlineError(completion.error or completion.finish_reason.value)
        count = len(completion.token_ids)
        self._limits[1].settle(count - self._speech.max_tokens)
        usage.prompt_tokens += prompt_count
        usage.completion_tokens += count
        usage.cost += self._prices.cost(prompt_count, count)
        return Reply(completion.text, usage, "length" if completion.finish_reason is FinishReason.LENGTH else "")

    async def close(self) -> None:
        """Close the connections."""
        for rollout in self._rollouts:
            close = getattr(rollout, "close", None)
            if close is not None:
                await close()
