"""One sample's conversation, as token ids: what the policy sampled, what others said, and what it was worth.

An agent loop reads like the conversation:

    turn = await episode.generate()                               # the policy speaks
    await episode.say([{"role": "tool", "content": "4"}])         # a tool or a user speaks; masked
    turn = await episode.generate()
    episode.reward(1.0)                                           # at the last sampled token

Nothing is ever encoded again (case C3): the next request has all earlier ids as they were sampled, and `say` appends
the template's own tokens only.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from argosy.controller.agents.template import TurnTemplate
from argosy.controller.plain import cleaned
from argosy.text.tokenizer import Message
from argosy.types.errors import ArgosyError, CorruptDataError, StateError, UnavailableError
from argosy.types.records import (
    Completion,
    FinishReason,
    Generated,
    GenerateRequest,
    Outcome,
    Prompt,
    VersionRun,
)

Policy = Callable[[GenerateRequest], Awaitable[Completion]]


@dataclass(frozen=True, slots=True)
class Turn:
    """What the policy said."""

    text: str
    """Without special tokens."""
    raw: str
    """With special tokens, but the one that ended it: what parsers read."""
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    cut: bool
    """It was ended by a length limit, not by the policy."""


class Episode:
    """A sample on its way. For one loop at a time.

    Args:
        request: Its first request; `max_tokens` bounds all its turns and what is said in between together.
        prompt: What it answers.
        policy: Who samples: `RolloutStage.generate_one`.
        template: Encodes what others say.
    """

    def __init__(self, request: GenerateRequest, prompt: Prompt, policy: Policy, template: TurnTemplate) -> None:
        self.request = request
        self.prompt = prompt
        self._policy = policy
        self._template = template
        self._end_ids = frozenset((*template.tokenizer.eos_token_ids, *request.params.stop_token_ids))
        self._ids: tuple[int, ...] = ()
        self._log_probs: tuple[float, ...] = ()
        self._mask: list[int] = []
        self._versions: tuple[VersionRun, ...] = ()
        self._rewards: list[tuple[int, float]] = []
        self._figures: dict[str, float] = {}
        self._last: Completion | None = None
        self._closed = False
        self._full = False
        self.messages: list[dict[str, Any]] = []
        """What followed the prompt's messages; `generate` and `say` append to it."""
        self.turn_count = 0
        """Turns of the policy."""
        self.reply_count = 0
        """How often somebody else spoke in between."""
        self.outcome: Outcome | None = None
        """Set it to judge the sample here: no reward service is asked then."""
        self.failure: ArgosyError | None = None
        """What the rollout servers failed with: it is no fault of the loop, and ends the run."""

    @property
    def room(self) -> int:
        """Tokens that are left for turns and for what is said in between."""
        return self.request.params.max_tokens - len(self._ids)

    @property
    def ended(self) -> bool:
        """Whether there is no room for more."""
        return self._full

    @property
    def conversation(self) -> list[Message]:
        """The prompt's messages and all that followed."""
        return [*self.prompt.messages, *self.messages]

    async def generate(self, max_tokens: int | None = None) -> Turn:
        """Let the policy speak, for at most `max_tokens` of what is left. Raises StateError when nothing is."""
        if self.ended or self.room < 1:
            raise StateError("the episode has no room for another turn: end the loop when say() returns False")
        start, limit = len(self._ids), self.request.params.max_tokens
        if max_tokens is not None:
            limit = min(limit, start + max(1, max_tokens))
        request = replace(
            self.request,
            params=replace(self.request.params, max_tokens=limit, min_tokens=min(self._min_tokens(start), limit)),
            generated=Generated(self._ids, self._log_probs, self._versions),
            turn_start=start,
        )
        try:
            completion = await self._policy(request)
            if completion.finish_reason is FinishReason.FAILED:  # servers die of it, or can't go on with it
                raise UnavailableError(completion.error)
        except ArgosyError as error:
            self.failure = error
            raise
        return self._take(completion, start)

    async def say(self, messages: Sequence[Message]) -> bool:
        """Let tools or users speak, as chat messages, after which the policy may. False, and nothing is said, when the
        messages and a first token of an answer are more than what is left: the conversation is over.

        Raises:
            InvalidInputError: The chat template refuses them.
            StateError: The policy has not spoken yet: what comes first belongs into the prompt.
        """
        if self._last is None:
            raise StateError("the policy speaks first: what comes before its first turn belongs into the data's prompt")
        if self.ended:
            return False
        messages = [cleaned(message) for message in messages]  # a tool may read half a character from somewhere
        ids = self._template.following(messages, closed=self._closed)
        if len(ids) >= self.room:
            self._full = True
            return False
        self._ids += ids
        self._log_probs += (0.0,) * len(ids)
        self._mask += [0] * len(ids)
        newest = self._versions[-1]
        self._versions = (*self._versions[:-1], replace(newest, token_count=newest.token_count + len(ids)))
        self.messages += [dict(message) for message in messages]
        self.reply_count += 1
        return True

    def reward(self, value: float) -> None:
        """A reward on the way, at the last token that the policy sampled. Raises ValueError unless it is finite."""
        if not math.isfinite(value):
            raise ValueError(f"a reward must be finite, got {value}")
        sampled = [index for index, mask in enumerate(self._mask) if mask]
        if value and sampled:
            self._rewards.append((sampled[-1], float(value)))

    def add(self, name: str, value: float = 1.0) -> None:
        """Add to a figure of this sample: the metric agent/NAME/mean of the step."""
        self._figures[name] = self._figures.get(name, 0.0) + float(value)

    def completion(self) -> Completion:
        """All of it, as the stages take a sample."""
        figures = dict(self._figures)
        if self._last is None:  # the loop never let it speak
            return Completion(
                *(self.request.sample_id, (), (), (), FinishReason.ABORTED),
                purpose=self.request.purpose,
                turn_count=0,
                metrics=figures,
                outcome=self.outcome,
            )
        several = self.turn_count > 1 or not all(self._mask)
        cut = self._full or self._last.finish_reason is FinishReason.LENGTH
        return replace(
            self._last,
            token_ids=self._ids,
            log_probs=self._log_probs,
            versions=self._versions,
            finish_reason=FinishReason.LENGTH if cut else self._last.finish_reason,
            text=self._template.tokenizer.decode(self._ids) if several else self._last.text,
            response_mask=tuple(self._mask) if several else (),
            turn_count=self.turn_count,
            turn_rewards=tuple(self._rewards),
            messages=tuple(cleaned(self.messages)) if several else (),  # loops may write to the list themselves
            metrics=figures,
            outcome=self.outcome,
        )

    def called(self, calls: Sequence[Mapping[str, Any]], content: str) -> None:
        """Write the last turn's message as calls, in OpenAI's form, with the text around them."""
        self.messages[-1] = {"role": "assistant", "content": content, "tool_calls": [dict(call) for call in calls]}

    def _take(self, completion: Completion, start: int) -> Turn:
        """Append a turn. What came before must be there unchanged."""
        if completion.token_ids[:start] != self._ids:
            raise CorruptDataError(
                f"{self.request.key}: the rollout server changed tokens of earlier turns", sample=self.request.key
            )
        ids, log_probs = completion.token_ids[start:], completion.log_probs[start:]
        self._ids += ids
        self._log_probs += log_probs
        self._mask += [1] * len(ids)
        self._versions = completion.versions
        self._last = completion
        self._closed = bool(ids) and ids[-1] in self._end_ids and completion.finish_reason is FinishReason.STOP
        self._full = self.room < 1 or not self._ids
        self.turn_count += 1
        decode, spoken = self._template.tokenizer.decode, ids[:-1] if self._closed else ids
        turn = Turn(
            decode(spoken),
            decode(spoken, skip_special_tokens=False),
            ids,
            log_probs,
            completion.finish_reason is FinishReason.LENGTH,
        )
        self.messages.append({"role": "assistant", "content": turn.text})
        return turn

    def _min_tokens(self, start: int) -> int:
        """The least length is of the first turn: later ones may be as short as they are."""
        return self.request.params.min_tokens if start == 0 else 0
