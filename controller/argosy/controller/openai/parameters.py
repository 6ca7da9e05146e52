"""What a chat completion may ask for. What the engines can't do is refused by name; nothing is silently ignored."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from argosy.controller.openai.errors import ApiError, bad_request
from argosy.controller.openai.messages import read_messages
from argosy.controller.plain import refusal
from argosy.text.chat import Message

MAX_CHOICES = 128
MAX_STOPS = 16
MAX_TOOLS = 128
LARGEST = 2**31 - 1
"""Of whole numbers that go to the engines."""

_SAME_AS_UNSET: dict[str, tuple[Any, ...]] = {
    "audio": (), "frequency_penalty": (0,), "function_call": (), "functions": (), "logit_bias": ({},),
    "modalities": (["text"],), "parallel_tool_calls": (True,), "prediction": (), "presence_penalty": (0,),
    "reasoning_effort": (), "response_format": ({"type": "text"},), "service_tier": ("auto", "default"),
    "store": (False,), "verbosity": (), "web_search_options": (),
}  # fmt: skip
"""OpenAI's parameters that are not supported → values that mean the same as leaving them out."""
_INSTEAD = {
    "functions": "use tools", "function_call": "use tool_choice",
    "frequency_penalty": "repetition_penalty is what the engines have",
    "presence_penalty": "repetition_penalty is what the engines have",
    "response_format": "ask for JSON in the prompt, and let the reward judge it",
    "logit_bias": "leave it out", "reasoning_effort": "pass chat_template_kwargs if the model's template has a switch",
}  # fmt: skip
_OURS_IN_TEMPLATES = frozenset({
    "chat_template", "conversation", "messages", "tools", "add_generation_prompt", "continue_final_message", "tokenize",
    "padding", "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask",
    "tokenizer_kwargs", "processor_kwargs", "self",
})  # fmt: skip
"""What `apply_chat_template` takes besides the template's variables."""
_FOR_THE_CALLER = ("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
"""Labels of the caller's own, which change nothing."""


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A chat completion as it was asked for; None stands for what was left out."""

    messages: tuple[Message, ...]
    model: str
    tools: tuple[Mapping[str, Any], ...] = ()
    parse_tools: bool = False
    """Whether the answer is searched for tool calls."""
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    """A last event of the stream with the counts of tokens."""
    logprobs: bool = False
    return_token_ids: bool = False
    """Ids of prompt and answer, beside OpenAI's fields (as vLLM has it)."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `SamplingParams` that were set."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


def read_call(body: Any) -> ChatCall:
    """The call of a request's JSON. Raises ApiError (400) that names the parameter and says what to do."""
    if not isinstance(body, Mapping):
        raise bad_request("the body wants a JSON object with model and messages")
    given = {str(name): value for name, value in body.items() if value is not None}
    _refuse_unsupported(given)
    tools, parse_tools = _tools(given)
    stream = _flag(given, "stream")
    return ChatCall(
        messages=read_messages(given.get("messages")),
        model=_typed(given, "model", str, "") or "",
        tools=tools,
        parse_tools=parse_tools,
        n=_whole(given, "n", 1, MAX_CHOICES) or 1,
        stream=stream,
        include_usage=_include_usage(given, stream),
        logprobs=_logprobs(given),
        return_token_ids=_flag(given, "return_token_ids"),
        max_tokens=_max_tokens(given),
        stop=_stops(given.get("stop", [])),
        sampling=_sampling(given),
        template_kwargs=_template_kwargs(given),
    )


def parse_json(data: bytes) -> Any:
    """A body's JSON, without what Python would take and nobody could carry on. Raises ApiError."""
    try:
        body = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is not valid JSON: {error}") from error
    if problem := refusal(body):  # half a character, which no tokenizer takes, or a number beyond a double
        raise bad_request(f"the body: {problem}")
    return body


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _refuse_unsupported(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if name in _SAME_AS_UNSET:
            if value not in _SAME_AS_UNSET[name]:
                what = _INSTEAD.get(name, "leave it out")
                raise bad_request(f"{name}: got {_short(value)}, which the rollout engines can't do; {what}", name)
        elif name not in READ and name not in _FOR_THE_CALLER:
            raise bad_request(
                f"{name}: there is no such parameter here; leave it out. Supported: {', '.join(sorted(READ))}",
                name,
                "unknown_parameter",
            )


def _tools(given: Mapping[str, Any]) -> tuple[tuple[Mapping[str, Any], ...], bool]:
    """The tools that are offered, and whether the answer is searched for calls."""
    tools, choice = given.get("tools", []), given.get("tool_choice", "auto")
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise bad_request(f"tools: wants a list of at most {MAX_TOOLS} tools", "tools")
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            where = f"tools[{index}]"
            raise bad_request(f'{where}: wants {{"type": "function", "function": {{"name": …}}}}', where)
    if choice == "none":
        return (), False
    if choice != "auto":
        raise bad_request(
            f"tool_choice: got {_short(choice)}; a call can't be forced, since answers are sampled freely: wants auto "
            "or none",
            "tool_choice",
        )
    return tuple(tools), bool(tools)


def _template_kwargs(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Variables of the chat template. A template of the client's own would run in the run's process."""
    variables: Mapping[str, Any] = _typed(given, "chat_template_kwargs", Mapping, {})
    taken = sorted(_OURS_IN_TEMPLATES.intersection(variables))
    if taken:
        raise bad_request(
            f"chat_template_kwargs.{taken[0]}: is no variable of a chat template that a call may set",
            "chat_template_kwargs",
        )
    return variables


def _include_usage(given: Mapping[str, Any], stream: bool) -> bool:
    options = _typed(given, "stream_options", Mapping, None)
    if options is None:
        return False
    if not stream:
        raise bad_request("stream_options: only with stream=true", "stream_options")
    unknown = sorted(set(options) - {"include_usage", "include_obfuscation"})
    if unknown:
        raise bad_request(f"stream_options: there is no {unknown[0]}; wants include_usage", "stream_options")
    return options.get("include_usage") is True


def _logprobs(given: Mapping[str, Any]) -> bool:
    wanted = _flag(given, "logprobs")
    others = _whole(given, "top_logprobs", 0, 20)
    if others:
        raise bad_request(
            f"top_logprobs: got {others}; the rollout engines tell the log-prob of the sampled token alone; set 0",
            "top_logprobs",
        )
    return wanted


def _max_tokens(given: Mapping[str, Any]) -> int | None:
    older, newer = _whole(given, "max_tokens", 1), _whole(given, "max_completion_tokens", 1)
    if older is not None and newer is not None and older != newer:
        raise bad_request(
            f"max_completion_tokens: got {newer} beside max_tokens={older}; give one of them", "max_completion_tokens"
        )
    return newer if older is None else older


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(isinstance(s, str) and s for s in stops):
        raise bad_request(f"stop: wants text or a list of at most {MAX_STOPS} texts, none of them empty", "stop")
    return tuple(stops)


def _sampling(given: Mapping[str, Any]) -> dict[str, Any]:
    read: dict[str, Callable[[], Any]] = {
        "temperature": lambda: _real(given, "temperature", 0, 2),
        "top_p": lambda: _real(given, "top_p", 0, 1),
        "min_p": lambda: _real(given, "min_p", 0, 1),
        "repetition_penalty": lambda: _real(given, "repetition_penalty", 1e-3, 1e3),
        "top_k": lambda: _whole(given, "top_k", -1, LARGEST),
        "min_tokens": lambda: _whole(given, "min_tokens", 0, LARGEST),
        "seed": lambda: _whole(given, "seed", -(2**63), 2**63 - 1),
        "ignore_eos": lambda: _flag(given, "ignore_eos"),
        "stop_token_ids": lambda: tuple(_ids(given["stop_token_ids"])),
    }
    return {name: reader() for name, reader in read.items() if name in given}


def _ids(value: Any) -> Sequence[int]:
    whole = isinstance(value, list) and all(isinstance(one, int) and not isinstance(one, bool) for one in value)
    if not whole or not all(0 <= one <= LARGEST for one in value):
        raise bad_request("stop_token_ids: wants a list of token ids", "stop_token_ids")
    return list(value)


def _flag(given: Mapping[str, Any], name: str) -> bool:
    return bool(_typed(given, name, bool, False))


def _typed(given: Mapping[str, Any], name: str, kind: type, otherwise: Any) -> Any:
    value = given.get(name, otherwise)
    if name in given and not isinstance(value, kind):
        wanted = {bool: "true or false", str: "text", Mapping: "an object"}[kind]
        raise bad_request(f"{name}: got {_short(value)}, wants {wanted}", name)
    return value


def _whole(given: Mapping[str, Any], name: str, low: int, high: int | None = None) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        bounds = f"≥ {low}" if high is None else f"{low} … {high}"
        raise bad_request(f"{name}: got {_short(value)}, wants a whole number {bounds}", name)
    return value


def _real(given: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    value = given.get(name)
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not low <= value <= high:
        raise bad_request(f"{name}: got {_short(value)}, wants a number {low:g} … {high:g}", name)
    return float(value)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "…"


READ = frozenset({
    "messages", "model", "tools", "tool_choice", "n", "stream", "stream_options", "logprobs", "top_logprobs",
    "max_tokens", "max_completion_tokens", "stop", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
    "min_tokens", "seed", "ignore_eos", "stop_token_ids", "return_token_ids", "chat_template_kwargs",
})  # fmt: skip
"""Names that `read_call` reads."""

__all__ = ["ApiError", "ChatCall", "parse_json", "read_call"]
