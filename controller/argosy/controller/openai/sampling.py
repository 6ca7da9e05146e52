"""How a call's tokens are drawn, and how many there may be."""

from __future__ import annotations

from dataclasses import replace

from argosy.config import Config
from argosy.controller.openai.errors import ApiError, bad_request
from argosy.controller.openai.parameters import ChatCall
from argosy.controller.openai.sessions import Branch
from argosy.controller.stages.prompt import training_params
from argosy.types.records import SamplingParams

SHAPES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "min_tokens")
"""Parameters that decide from which distribution tokens are drawn: the trainer takes samples for the run's."""


class Sampling:
    """The run's sampling parameters, with what a call asks for."""

    def __init__(self, config: Config) -> None:
        data = config.data
        self._params = training_params(config)
        self._strict = config.argosy.openai.sampling == "strict"
        self._response_len = data.max_response_length
        self._context_len = (
            config.actor_rollout_ref.rollout.max_model_len or data.max_prompt_length + data.max_response_length
        )
        # The trainer's micro-batches are checked to hold a prompt and a response of the data's lengths, and no more.
        self._trained_len = min(self._context_len, data.max_prompt_length + data.max_response_length)

    def stops(self, call: ChatCall) -> tuple[str, ...]:
        """Stop texts of the run and of the call."""
        return tuple(dict.fromkeys((*self._params.stop, *call.stop)))

    def params(self, call: ChatCall, *, trained: bool) -> SamplingParams:
        """Raises ApiError where a sample that is trained would come from another distribution than the run's."""
        asked = dict(call.sampling)
        for name in SHAPES if trained else ():
            run = getattr(self._params, name)
            if asked.get(name, run) == run:
                continue
            if self._strict:
                raise bad_request(
                    f"{name}: got {asked[name]:g}, but what is trained must be sampled as the trainer takes it for, at "
                    f"{run:g}: leave {name} out, or set argosy.openai.sampling=run, which lets the run's value win",
                    name,
                )
            del asked[name]
        if "stop_token_ids" in asked:
            asked["stop_token_ids"] = (*self._params.stop_token_ids, *asked["stop_token_ids"])
        return replace(self._params, stop=self.stops(call), **asked)

    def limited(self, params: SamplingParams, call: ChatCall, branch: Branch, *, trained: bool) -> SamplingParams:
        """With max_tokens of all that follows the root. Raises ApiError where there is no room for a token."""
        context = self._trained_len if trained else self._context_len
        used, limit = len(branch.mask), context - len(branch.prompt_ids)
        room = (min(limit, self._response_len) if trained else limit) - used
        if room < 1:
            raise ApiError(
                400,
                f"the conversation has {len(branch.prompt_ids) + used} tokens, which leaves no room for an answer: the "
                f"context holds {context}"
                + (f", {self._response_len} of them after a session's first call (data.max_response_length)" * trained),
                param="messages",
                code="context_length_exceeded",
            )
        return replace(params, max_tokens=used + min(call.max_tokens or self._response_len, room))
