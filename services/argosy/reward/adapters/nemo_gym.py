"""A resources server of NeMo Gym as a reward service: POST /verify.

    POST URL/verify  {"responses_create_params": {"input": [messages]},
                      "response": {"object": "response", "output": [{"type": "message", "role": "assistant",
                                   "content": [{"type": "output_text", "text": …}]}], …},
                      "expected_answer": …, "verifier_metadata": {…}, …}
    200              {"reward": 1.0, …}

The request follows OpenAI's Responses API, as NeMo Gym 0.7 documents it. What a verifier reads beside the
answer differs between environments: the row says it in `extra_info.nemo_gym`, whose members are put into the request as
they are. `mask_sample: true` in the answer says that the environment failed, not the model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from argosy.config import Config
from argosy.config.schema.reward_adapters import NemoGymConfig
from argosy.reward.adapters.base import AdapterCore, ServerOptions
from argosy.reward.custom import outcome_of
from argosy.reward.models.endpoint import Endpoint, EndpointError
from argosy.types.records import Failed, Outcome, ScoreRequest

ROW_KEY = "nemo_gym"
"""Member of a row's extra_info that holds what the verifier reads."""
_ECHOED = ("responses_create_params", "response", "reward", "reward_components", "mask_sample")


class NemoGymCore(AdapterCore):
    """Asks a resources server."""

    needs_messages = True

    def __init__(self, options: ServerOptions, gym: NemoGymConfig) -> None:
        super().__init__(options)
        self._gym = gym
        self._endpoint = options.endpoint()
        self._slots = asyncio.Semaphore(options.config.concurrency)

    async def judge_one(self, item: ScoreRequest, deadline_s: float) -> Outcome:
        """One sample, in a session of its own where the environment keeps one."""
        label = f"{self.options.url}{self._gym.path}"
        body = request_of(item, self._gym.ground_truth_key)
        if not self._gym.seed_session:
            answer, _ = await self._endpoint.post(self._gym.path, body, deadline_s=deadline_s)
            return outcome_of_verify(answer, label)
        end = asyncio.get_running_loop().time() + deadline_s
        try:
            async with asyncio.timeout_at(end), self._slots:
                session = self._endpoint.with_own_cookies()
                try:
                    return outcome_of_verify(await self._in_session(session, body, end), label)
                finally:
                    await session.close()
        except TimeoutError:
            raise EndpointError("timeout", f"{label} gave no answer within {deadline_s:.3g} s") from None

    async def _in_session(self, session: Endpoint, body: Mapping[str, Any], end: float) -> dict[str, Any]:
        """What /verify says in a session of its own, until `end` of the loop's clock."""
        time = asyncio.get_running_loop().time
        seed = {name: value for name, value in body.items() if name != "response"}
        await session.post("/seed_session", seed, deadline_s=end - time())
        answer, _ = await session.post(self._gym.path, body, deadline_s=end - time())
        return answer

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoint.close()


def request_of(item: ScoreRequest, ground_truth_key: str) -> dict[str, Any]:
    """The body of /verify."""
    messages = [dict(message) for message in item.messages] or [{"role": "user", "content": item.prompt_text}]
    sample = str(item.sample_id)
    text = {"type": "output_text", "text": item.response_text, "annotations": []}
    message = {"type": "message", "id": f"msg_{sample}", "role": "assistant", "status": "completed", "content": [text]}
    body: dict[str, Any] = {
        "responses_create_params": {"input": messages},
        "response": {
            "id": f"resp_{sample}",
            "object": "response",
            "created_at": 0,
            "model": "policy",
            "status": "completed" if item.valid_response else "incomplete",
            "incomplete_details": None if item.valid_response else {"reason": "max_output_tokens"},
            "output": [message],
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
        },
    }
    if ground_truth_key:
        body[ground_truth_key] = item.ground_truth
    own = item.extra_info.get(ROW_KEY, {})
    return {**body, **(own if isinstance(own, Mapping) else {})}


def outcome_of_verify(answer: Mapping[str, Any], label: str) -> Outcome:
    """What the answer of /verify means; its further scalars, and the components of a reward, become parts."""
    if answer.get("mask_sample") is True:
        why = answer.get("failure_kind") or answer.get("failure_reason") or "it says no more"
        return Failed("masked", f"{label} asks to leave the sample out: {why}")
    if "reward" not in answer:
        keys = ", ".join(map(repr, list(answer)[:10])) or "none"
        return Failed("bad_return", f"{label} gave no reward (its keys: {keys})")
    parts = {
        name: value
        for name, value in answer.items()
        if name not in _ECHOED and isinstance(value, bool | int | float) and value == value
    }
    components = answer.get("reward_components")
    if isinstance(components, Mapping):
        parts |= {f"reward_components/{name}": value for name, value in components.items()}
    return outcome_of({**parts, "score": answer["reward"]}, label)


def build(config: Config) -> NemoGymCore:
    """For `argosy.reward.kind=nemo_gym`. Raises ConfigError."""
    return NemoGymCore(ServerOptions.of(config, "nemo_gym"), config.argosy.reward.nemo_gym)
