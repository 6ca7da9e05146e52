"""The template's tokens for what follows a sampled turn, without the sampled text (case C3).

A conversation that goes on is, for the engine and the trainer, all earlier token ids as they were sampled, and then
what the chat template writes for the new messages and the opening of the next answer. Only that is encoded. It is found
by rendering a made-up conversation with and without the new messages:

    …ANSWER<|im_end|>
    …ANSWER<|im_end|>⏎<|im_start|>tool⏎4<|im_end|>⏎<|im_start|>assistant⏎
           └──────────────────── what follows ──────────────────────────┘

Some templates write earlier turns otherwise once something follows (they leave their reasoning out). Tokens here stay
as they were sampled, so what the model is trained on is then not what such a template would give; `rewrites` says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from argosy.text.tokenizer import Message, TextTokenizer
from argosy.types.errors import InvalidInputError

ANSWER = "ANSWER-7f3a"
"""What the assistant says in the made-up conversation: nothing that a template would look for."""
_QUESTION: Message = {"role": "user", "content": "QUESTION-7f3a"}
_THOUGHT = "THOUGHT-7f3a"
_CALL_ID = "call00000"
"""Nine letters and digits, as some templates insist."""
_CACHED = 4096


class TurnTemplate:
    """Encodes what is said between sampled turns.

    Args:
        tokenizer: Of the model.
        template_kwargs: Further variables of the template (`data.apply_chat_template_kwargs`).
    """

    def __init__(self, tokenizer: TextTokenizer, template_kwargs: Mapping[str, Any] | None = None) -> None:
        self.tokenizer = tokenizer
        self._kwargs = dict(template_kwargs or {})
        self._encode = lru_cache(_CACHED)(tokenizer.encode_rendered)
        self._closing: str | None = None

    @property
    def closing(self) -> str:
        """What the template writes after an assistant's content."""
        if self._closing is None:
            text = self._render([_QUESTION, {"role": "assistant", "content": ANSWER}])
            before, answer, after = text.rpartition(ANSWER)
            if not answer or not before:
                raise InvalidInputError(
                    f"the chat template of {self.tokenizer.name} does not write what the assistant said, so a "
                    "conversation can't go on; set actor_rollout_ref.model.custom_chat_template"
                )
            self._closing = after
        return self._closing

    def following(self, messages: Sequence[Message], *, closed: bool) -> tuple[int, ...]:
        """Ids that follow a sampled turn: its end, the new messages, and the opening of the next answer.

        Args:
            messages: What tools or users say, in order.
            closed: The turn ended with an end token of its own, which then stands for the template's.

        Raises:
            InvalidInputError: The template refuses such messages, or writes what came before them otherwise.
        """
        ids = self._encode(self.written(messages))
        return ids[1:] if closed and self._ends_with_a_token(ids) else ids

    def written(self, messages: Sequence[Message]) -> str:
        """The text that is encoded for what follows a turn; raises as `following` does."""
        return self.closing + self._after(messages)

    def check(self, messages: Sequence[Message]) -> list[str]:
        """What is odd about this template with such messages, in words for people; raises as `following` does."""
        found = []
        ids = self.following(messages, closed=False)
        _, whole = self._before_and_whole(messages)
        if tuple(self.tokenizer.encode_rendered(whole)[-len(ids) :]) != ids:
            found.append("its tokens after a turn depend on the text of the turn")
        if self.rewrites(messages):
            found.append("it writes earlier turns otherwise once something follows (it leaves reasoning out)")
        return found

    def rewrites(self, messages: Sequence[Message]) -> bool:
        """Whether the template drops the reasoning of a turn that such messages follow."""
        thinking = f"<think>\n{_THOUGHT}\n</think>\n\n{ANSWER}"
        before, whole = self._before_and_whole(messages, thinking)
        return _THOUGHT in before and _THOUGHT not in whole

    def writes_tools(self, tools: Sequence[Mapping[str, Any]]) -> bool:
        """Whether tool definitions come into the prompt at all."""
        system: Message = {"role": "system", "content": "S"}
        asked = [system, _QUESTION]
        without = self.tokenizer.render(asked, None, **self._kwargs)
        return bool(tools) and self.tokenizer.render(asked, tools, **self._kwargs) != without

    def _after(self, messages: Sequence[Message]) -> str:
        """What the template adds for messages after an assistant's turn, with the next answer's opening."""
        before, whole = self._before_and_whole(messages)
        if not whole.startswith(before):
            raise InvalidInputError(
                f"the chat template of {self.tokenizer.name} writes a turn otherwise once {_roles(messages)} follows, "
                "so that the turns can't be kept as they were sampled; set actor_rollout_ref.model.custom_chat_template"
            )
        return whole[len(before) :]

    def _before_and_whole(self, messages: Sequence[Message], content: str = ANSWER) -> tuple[str, str]:
        """The made-up conversation without and with the new messages.

        Templates want calls before what tools say, but some refuse more than one call a turn: then it has none.
        """
        plain: Message = {"role": "assistant", "content": content}
        calls = _calls(messages)
        for last in [{**plain, "tool_calls": calls}, plain] if calls else [plain]:
            try:
                before = self._render([_QUESTION, last])
                return before, self._render([_QUESTION, last, *messages], add_generation_prompt=True)
            except InvalidInputError:
                if last is plain:
                    raise
        raise AssertionError("unreachable: the last try raises")

    def _ends_with_a_token(self, ids: Sequence[int]) -> bool:
        """Whether what closes a turn begins with an end token, for which a sampled one stands."""
        if not ids or not self.closing:
            return False
        return ids[0] in self.tokenizer.eos_token_ids or not self.tokenizer.decode(ids[:1])

    def _render(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
        return self.tokenizer.render(messages, None, add_generation_prompt=add_generation_prompt, **self._kwargs)


def _calls(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The calls that these messages answer."""
    return [
        {
            "type": "function",
            "id": message.get("tool_call_id") or _CALL_ID,
            "function": {"name": message.get("name") or "tool", "arguments": {}},
        }
        for message in messages
        if message.get("role") == "tool"
    ]


def _roles(messages: Sequence[Message]) -> str:
    return " and ".join(dict.fromkeys(f"a {message.get('role')} message" for message in messages))
