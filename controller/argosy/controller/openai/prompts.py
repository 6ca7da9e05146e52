"""From a call's messages to the ids that the engine gets: a conversation's beginning, and what follows an answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from argosy.config import Config
from argosy.controller.agents.instructions import instructions, with_instructions
from argosy.controller.agents.template import TurnTemplate
from argosy.controller.openai.errors import bad_request
from argosy.controller.openai.parameters import ChatCall
from argosy.controller.openai.sessions import Branch, tools_key
from argosy.text import Message, TextTokenizer

log = logging.getLogger(__name__)


class Prompts:
    """The policy's chat template, as calls need it. Tools come into the prompt as `argosy.agents.tool_prompt` says."""

    def __init__(self, config: Config, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._kwargs = dict(config.data.apply_chat_template_kwargs or {})
        self._tool_prompt = config.argosy.agents.tool_prompt
        self._form = config.actor_rollout_ref.rollout.multi_turn.format
        self._turns = TurnTemplate(tokenizer, self._kwargs)
        self._written: dict[str, bool] = {}
        """Role → whether the template writes what such a message says; "tools": whether it writes tools."""

    def root(self, call: ChatCall, attempt: int) -> Branch:
        """A conversation that begins with all of the call's messages. Raises ApiError, InvalidInputError."""
        messages: Sequence[Message] = call.messages
        in_template = call.tools if self._tool_prompt == "template" else ()
        if in_template and not self._once("tools", lambda: self._turns.writes_tools(call.tools)):
            raise bad_request(
                f"tools: the chat template of {self._tokenizer.name} does not write tools, so the model would not know "
                "of any; start the run with argosy.agents.tool_prompt=system, which puts them into the system message, "
                "or =none and tell of them in your own messages",
                "tools",
            )
        if call.tools and self._tool_prompt == "system":
            told = instructions(call.tools, self._form)
            messages = with_instructions([dict(message) for message in messages], told)
        kwargs = self._kwargs | dict(call.template_kwargs)
        ids = self._tokenizer.encode_prompt(messages, in_template or None, **kwargs)
        return Branch(attempt, ids, tools_key(call.tools)).asked(call.messages, ())

    def after(self, branch: Branch, new_messages: Sequence[Message]) -> Branch:
        """A branch with what comes after its last answer. Raises ApiError, InvalidInputError."""
        last = branch.generated.token_ids[branch.turns[-1].stop - 1]
        ids = self._turns.following(new_messages, closed=last in self._tokenizer.eos_token_ids)
        for message in new_messages:
            self._check_written(message)
        return branch.asked(new_messages, ids)

    def _check_written(self, message: Message) -> None:
        role = str(message["role"])
        if not self._once(role, lambda: self._writes(role, message)):
            raise bad_request(
                f"messages: the chat template of {self._tokenizer.name} does not write {role} messages after an "
                "answer; send it as a user message, or set actor_rollout_ref.model.custom_chat_template"
            )

    def _writes(self, role: str, message: Message) -> bool:
        probe: dict[str, Any] = {**message, "content": "RESULT-7f3a"}
        if role != "assistant" and self._turns.rewrites([probe]):
            log.warning(
                "the chat template of %s leaves reasoning out of earlier turns; sessions keep and train all as sampled",
                self._tokenizer.name,
            )
        ids = self._turns.following([probe], closed=False)
        return "RESULT-7f3a" in self._tokenizer.decode(ids, skip_special_tokens=False)

    def _once(self, name: str, find: Callable[[], bool]) -> bool:
        if name not in self._written:
            self._written[name] = find()
        return self._written[name]
