"""The tool loop: what the model is told, what is masked, and what ends a conversation."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from argosy.controller.agents.interactions import Interaction
from argosy.controller.agents.loops.tool_agent import ToolAgent
from argosy.controller.agents.template import TurnTemplate
from argosy.controller.agents.tools.base import BaseTool, ToolResponse
from argosy.types.records import Completion, FinishReason
from unit.controller.agents.scripted import END, Echo, Policy, call, lead, prompt_of, setting_of


async def run(
    template: TurnTemplate, tools: list[BaseTool], *says: str, max_tokens: int = 2000, extra: Any = None, **values: Any
) -> Completion:
    loop = ToolAgent(setting_of(template, tools, **values))
    return await lead(loop, Policy(template, *says), prompt_of(template, tools, **(extra or {})), max_tokens)


def told(completion: Completion) -> list[str]:
    """What tools and users said."""
    return [str(message["content"]) for message in completion.messages if message["role"] in ("tool", "user")]


async def test_a_call_its_result_and_an_answer(template: TurnTemplate) -> None:
    done = await run(template, [Echo()], f"Hm. {call('a')}", "It is <a>.")
    tokenizer = template.tokenizer
    whole = tokenizer.decode(done.token_ids, skip_special_tokens=False)
    assert whole == (
        f"Hm. {call('a')}<|im_end|>\n<|im_start|>tool\n<a><|im_end|>\n<|im_start|>assistant\nIt is <a>.<|im_end|>"
    )
    sampled = [token for token, mask in zip(done.token_ids, done.response_mask, strict=True) if mask]
    assert sampled == [
        *tokenizer.encode_rendered(f"Hm. {call('a')}"),
        END,
        *tokenizer.encode_rendered("It is <a>."),
        END,
    ]
    assert {lp for lp, mask in zip(done.log_probs, done.response_mask, strict=True) if not mask} == {0.0}
    assert sum(run.token_count for run in done.versions) == len(done.token_ids)
    assert (done.turn_count, done.message_count, done.finish_reason) == (2, 4, FinishReason.STOP)
    assert done.metrics == {"tool_calls": 1, "malformed_calls": 0, "tool_failures": 0}
    first, result, last = done.messages
    assert first["content"] == "Hm."
    assert first["tool_calls"][0]["function"] == {"name": "echo", "arguments": {"text": "a"}}
    assert result == {"role": "tool", "content": "<a>", "name": "echo", "tool_call_id": first["tool_calls"][0]["id"]}
    assert last == {"role": "assistant", "content": "It is <a>."}


async def test_an_answer_without_a_call_is_a_plain_sample(template: TurnTemplate) -> None:
    done = await run(template, [Echo()], "It is 4.")
    assert (done.response_mask, done.messages, done.turn_count, done.text) == ((), (), 1, "It is 4.")


@pytest.mark.parametrize(
    ("says", "message"),
    [
        ("<tool_call>{</tool_call>", "error: the call is no valid JSON"),
        (call("x", name="delete"), "error: there is no tool 'delete'; the tools are echo"),
        ('<tool_call>{"name": "echo"}</tool_call>', "error: argument 'text' is missing"),
        ('<tool_call>{"name": "echo", "arguments": {"text": 4}}</tool_call>', "must be of type string, got 4"),
        ('<tool_call>{"name": "echo", "arguments": {"text": "", "a": 1}}</tool_call>', "there is no argument 'a'"),
    ],
)
async def test_a_malformed_call_is_told_and_counted(template: TurnTemplate, says: str, message: str) -> None:
    done = await run(template, [Echo()], says, "Sorry.")
    assert message in told(done)[0]
    assert done.metrics["malformed_calls"] == 1
    assert done.turn_count == 2


async def test_a_malformed_call_ends_the_sample_by_rule(template: TurnTemplate) -> None:
    done = await run(template, [Echo()], "<tool_call>{</tool_call>", malformed_calls="end")
    assert (done.turn_count, done.response_mask, done.metrics["malformed_calls"]) == (1, (), 1)


async def test_calls_beyond_the_limit_are_not_made_and_the_model_is_told(template: TurnTemplate) -> None:
    echo = Echo()
    done = await run(template, [echo], call("a") + call("b") + call("c"), "Ok.", max_parallel_calls=2)
    assert told(done) == ["<a>", "<b>", "error: 1 more calls were not made: at most 2 a turn"]
    assert [entry[2]["text"] for entry in echo.happened if entry[0] == "execute"] == ["a", "b"]
    assert done.metrics["refused_calls"] == 1


@pytest.mark.parametrize(
    ("limits", "turns", "replies"),
    [
        ({"max_assistant_turns": 1}, 1, 0),
        ({"max_assistant_turns": 2}, 2, 1),
        ({"max_user_turns": 2}, 3, 2),
        ({"max_assistant_turns": 2, "max_user_turns": 9}, 2, 1),
    ],
)
async def test_turns_are_limited(template: TurnTemplate, limits: dict[str, int], turns: int, replies: int) -> None:
    done = await run(template, [Echo()], *[call("a")] * 5, **limits)
    assert (done.turn_count, len(told(done))) == (turns, replies)
    assert not done.response_mask or done.response_mask[-1] == 1  # what nobody answers isn't said


@pytest.mark.parametrize(
    ("side", "shown"),
    [("left", "<aaaa...(truncated)"), ("right", "(truncated)...bbbb>"), ("middle", "<a...(truncated)...b>")],
)
async def test_long_results_are_cut(template: TurnTemplate, side: str, shown: str) -> None:
    limit = 5 if side != "middle" else 4
    done = await run(
        template, [Echo()], call("aaaaabbbbb"), "Ok.", max_tool_response_length=limit, tool_response_truncate_side=side
    )
    assert told(done) == [shown]


async def test_a_result_without_room_for_an_answer_ends_the_sample_unsaid(template: TurnTemplate) -> None:
    text = call("a")
    room = len(text) + 1
    done = await run(template, [Echo()], text, "Ok.", max_tokens=room + 20)
    assert (done.finish_reason, done.turn_count, len(done.token_ids)) == (FinishReason.LENGTH, 1, room)
    cut = await run(template, [Echo()], text, "Ok.", max_tokens=room - 5)
    assert (cut.finish_reason, cut.metrics["tool_calls"]) == (FinishReason.LENGTH, 0)


class Failing(Echo):
    async def execute(self, instance_id: str, parameters: Mapping[str, Any], **kwargs: Any) -> Any:
        kind = parameters["text"]
        if kind == "slow":
            await asyncio.sleep(60)
        if kind == "timeout":
            raise TimeoutError("upstream")
        if kind == "odd":
            return object()
        raise RuntimeError("the disk is on fire")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("slow", "error: echo took longer than 0.05 s"),
        ("timeout", "error: TimeoutError: upstream"),
        ("odd", "error: TypeError: execute() returned a object"),
        ("raise", "error: RuntimeError: the disk is on fire"),
    ],
)
async def test_a_tool_that_fails_is_told_and_counted(template: TurnTemplate, kind: str, message: str) -> None:
    tool = Failing({"timeout_s": 0.05})
    done = await run(template, [tool], call(kind), "Sorry.")
    assert told(done)[0].startswith(message)
    assert done.metrics["tool_failures"] == 1
    assert tool.happened[-1][0] == "release"


async def test_rows_give_arguments_and_tools_are_released_however_it_ends(template: TurnTemplate) -> None:
    echo = Echo()
    kwargs = {"echo": {f"{name}_kwargs": {"of": name} for name in ("create", "execute", "calc_reward", "release")}}
    await run(template, [echo], call("a"), call("b"), "Ok.", extra={"tools_kwargs": kwargs})
    assert [entry[0] for entry in echo.happened] == ["create", "execute", "execute", "calc_reward", "release"]
    assert all(entry[-1] == {"of": entry[0]} for entry in echo.happened)
    assert len({entry[1] for entry in echo.happened}) == 1
    broken = Echo()
    with pytest.raises(IndexError):
        await run(template, [broken], call("a"))  # the policy has nothing more to say
    assert [entry[0] for entry in broken.happened] == ["create", "execute", "release"]


class Rewarding(Echo):
    async def execute(self, instance_id: str, parameters: Mapping[str, Any], **kwargs: Any) -> Any:
        return ("ok", 0.25, {"hits": 2}) if parameters["text"] == "verl" else ToolResponse("ok", 0.5, {"hits": 1})

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        return 2.0


async def test_rewards_of_turns_lie_on_the_last_token_of_the_turn(template: TurnTemplate) -> None:
    done = await run(template, [Rewarding()], call("verl"), call("own"), "Ok.")
    ends = [index for index, token in enumerate(done.token_ids) if token == END and done.response_mask[index]]
    assert done.turn_rewards == ((ends[0], 0.25), (ends[1], 0.5), (ends[2], 2.0))
    assert done.metrics["hits"] == 3


class Blocking(Echo):
    """Plain functions, which block."""

    def execute(self, instance_id: str, parameters: Mapping[str, Any], **kwargs: Any) -> Any:
        self.happened.append(threading.current_thread().name)
        time.sleep(0.05)
        return "done"


async def test_plain_functions_block_a_thread_and_never_the_loop(template: TurnTemplate) -> None:
    tool = Blocking({"max_concurrency": 2})
    loop = ToolAgent(setting_of(template, [tool]))
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.005)
            ticks += 1

    ticking = asyncio.create_task(tick())
    samples = [lead(loop, Policy(template, call("a"), "Ok."), prompt_of(template, [tool])) for _ in range(4)]
    began = time.perf_counter()
    await asyncio.gather(*samples)
    ticking.cancel()
    assert time.perf_counter() - began >= 0.1  # four calls, two at a time
    assert ticks >= 5
    assert "argosy-tool" in tool.happened


class Counts(Interaction):
    """Says "again" until the answer is long enough."""

    async def start_interaction(self, instance_id: str, **kwargs: Any) -> None:
        self.config.setdefault("log", []).append(("start", kwargs))

    async def generate_response(self, instance_id: str, messages: Any, **kwargs: Any) -> Any:
        over = len(messages[-1]["content"]) >= kwargs["length"]
        return over, "again", float(over), {"tries": 1}

    async def finalize_interaction(self, instance_id: str, **kwargs: Any) -> None:
        self.config["log"].append(("end", {}))


async def test_a_simulated_user_answers_and_judges(template: TurnTemplate) -> None:
    user = Counts({})
    extra = {"interaction_kwargs": {"name": "counts", "length": 3}}
    done = await run(template, [], "a", "ab", "abc", extra=extra, interactions={"counts": user})
    assert told(done) == ["again", "again"]
    assert done.turn_rewards == ((len(done.token_ids) - 1, 1.0),)
    assert done.metrics["tries"] == 3
    assert user.config["log"] == [("start", {"length": 3}), ("end", {})]


async def test_a_row_without_a_user_has_none(template: TurnTemplate) -> None:
    done = await run(template, [], "a", interactions={"counts": Counts({})})
    assert done.turn_count == 1
