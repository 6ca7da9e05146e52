"""What comes out of the engine, compared with the plain Hugging Face model."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from argosy.types.errors import InvalidInputError
from argosy.types.ids import PolicyVersion, SampleId
from argosy.types.records import Completion, FinishReason, Generated, GenerateRequest, SamplingParams, VersionRun
from unit.rollout.reference import distribution
from unit.rollout.support import PROMPT, Open, answers, plain_logits, request

OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.6},
    {"temperature": 1.7},
    {"top_k": 7},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"repetition_penalty": 1.4},
    {"min_tokens": 10, "ignore_eos": False, "stop_token_ids": (40, 41)},
    {"temperature": 1.2, "top_k": 40, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.1},
]
EOS = 2


def check_log_probs(path: Path, request: GenerateRequest, completion: Completion) -> None:
    """Every token's log-prob is that of the plain model's processed distribution, to 5e-5."""
    params = request.params
    logits = plain_logits(path, request.prompt_ids, completion.token_ids)
    assert len(completion.log_probs) == len(completion.token_ids) > 0
    for index, (token, log_prob) in enumerate(zip(completion.token_ids, completion.log_probs, strict=True)):
        stops = {*params.stop_token_ids} | (set() if params.ignore_eos else {EOS})
        banned = stops if index < params.min_tokens else set()
        seen = (*request.prompt_ids, *completion.token_ids[:index]) if params.repetition_penalty != 1 else ()
        expected = distribution(logits[index].tolist(), params, seen, banned)
        assert log_prob == pytest.approx(math.log(expected[token]), abs=5e-5), index


@pytest.mark.parametrize("params", OPTIONS)
async def test_log_probs_equal_the_plain_models(tiny: Path, open_rollout: Open, params: dict[str, Any]) -> None:
    rollout = await open_rollout()
    requests = [request(k, p, PROMPT[p:], **params) for p in range(2) for k in range(2)]
    for asked, completion in zip(requests, await answers(rollout, requests), strict=True):
        check_log_probs(tiny, asked, completion)


async def test_mixed_parameters_in_one_batch(tiny: Path, open_rollout: Open) -> None:
    rollout = await open_rollout(slot_count=16)
    requests = [request(k, 0, **params) for k, params in enumerate(OPTIONS)]
    for asked, completion in zip(requests, await answers(rollout, requests), strict=True):
        check_log_probs(tiny, asked, completion)


def mixed_requests() -> list[GenerateRequest]:
    """Prompts and outputs of many lengths, in groups of three."""
    return [
        request(k, p, PROMPT[: 1 + 5 * p], max_tokens=3 + 7 * k + p, temperature=(1.0, 0.7)[k % 2])
        for p in range(5)
        for k in range(3)
    ]


def same(left: list[Completion], right: list[Completion]) -> None:
    for a, b in zip(left, right, strict=True):
        assert (a.sample_id, a.token_ids) == (b.sample_id, b.token_ids)
        assert a.log_probs == pytest.approx(b.log_probs, abs=5e-5)


async def test_nothing_depends_on_slots_order_or_batch_mates(open_rollout: Open) -> None:
    requests = mixed_requests()
    base = await answers(await open_rollout(slot_count=15), requests)
    for slot_count in (1, 2, 7):
        same(base, await answers(await open_rollout(slot_count=slot_count, prefill_token_budget=20), requests))
    backwards = await answers(await open_rollout(slot_count=4), requests[::-1])
    same(base, backwards[::-1])
    rollout = await open_rollout(slot_count=4)
    alone = [(await answers(rollout, [one]))[0] for one in requests]
    same(base, alone)


async def test_group_sharing_equals_separate_prefills(open_rollout: Open) -> None:
    requests = [request(k) for k in range(6)]
    shared = await answers(await open_rollout(), requests)
    rollout = await open_rollout(prefix_token_budget=0, slot_count=1)
    separate = await answers(rollout, requests)
    same(shared, separate)
    assert sum(c.cached_prompt_tokens > 0 for c in shared) == 5
    assert {c.cached_prompt_tokens for c in shared} == {0, len(PROMPT) - 1}
    assert all(c.cached_prompt_tokens == 0 for c in separate)


async def test_a_kept_prompt_is_used_though_a_new_one_takes_its_place(tiny: Path, open_rollout: Open) -> None:
    """Both prompts are admitted together, and the store has room for one: the old one must not be lost on the way."""
    rollout = await open_rollout(prefix_token_budget=len(PROMPT))
    await answers(rollout, [request(0)])
    asked = [request(1), request(0, 1, PROMPT[1:])]
    done = await answers(rollout, asked)
    assert [c.cached_prompt_tokens for c in done] == [len(PROMPT) - 1, 0]
    for one, completion in zip(asked, done, strict=True):
        check_log_probs(tiny, one, completion)


async def test_prompt_of_one_token(tiny: Path, open_rollout: Open) -> None:
    rollout = await open_rollout()
    asked = [request(k, prompt=(33,)) for k in range(2)]
    for one, completion in zip(asked, await answers(rollout, asked), strict=True):
        check_log_probs(tiny, one, completion)


async def test_cache_grows_with_long_answers(tiny: Path, open_rollout: Open) -> None:
    rollout = await open_rollout(max_model_len=700, slot_count=2)
    asked = [request(k, max_tokens=20 + 580 * k) for k in range(2)]
    done = await answers(rollout, asked)
    assert [len(c.token_ids) for c in done] == [20, 600]
    check_log_probs(tiny, asked[1], done[1])


async def test_context_limit_ends_with_length(open_rollout: Open) -> None:
    rollout = await open_rollout(max_model_len=30)
    [done] = await answers(rollout, [request(max_tokens=100)])
    assert len(done.token_ids) == 5
    assert done.finish_reason is FinishReason.LENGTH


async def test_goes_on_from_generated_tokens(tiny: Path, open_rollout: Open) -> None:
    """A partial answer of a lost server goes on elsewhere exactly as it would have."""
    asked = request(max_tokens=16)
    [whole] = await answers(await open_rollout(), [asked])
    old = PolicyVersion("main", 41, "abc")
    for count in (1, 9, 15):
        part = Generated(whole.token_ids[:count], whole.log_probs[:count], (VersionRun(old, count),))
        rollout = await open_rollout()
        [resumed] = await answers(rollout, [replace(asked, generated=part)])
        assert resumed.token_ids == whole.token_ids
        assert resumed.log_probs == pytest.approx(whole.log_probs, abs=5e-5)
        assert resumed.log_probs[:count] == whole.log_probs[:count]
        version = (await rollout.status()).version
        assert version is not None
        assert resumed.versions == (VersionRun(old, count), VersionRun(version, 16 - count))


async def test_generated_tokens_that_are_at_the_end_already(open_rollout: Open) -> None:
    rollout = await open_rollout()
    [whole] = await answers(rollout, [request(max_tokens=4)])
    given = Generated(whole.token_ids, whole.log_probs, whole.versions)
    [full] = await answers(rollout, [replace(request(max_tokens=4), generated=given)])
    assert full.finish_reason is FinishReason.LENGTH
    assert full.token_ids == whole.token_ids
    ended = Generated((33, EOS), (-1.0, -1.0), (VersionRun(whole.versions[0].version, 2),))
    [stopped] = await answers(rollout, [replace(request(ignore_eos=False), generated=ended)])
    assert stopped.finish_reason is FinishReason.STOP
    assert stopped.token_ids == (33, EOS)


async def test_runs_at_intervals_add_up(open_rollout: Open) -> None:
    rollout = await open_rollout()
    asked = [request(k, max_tokens=11) for k in range(3)]
    parts: dict[SampleId, list[int]] = {one.sample_id: [] for one in asked}
    done: dict[SampleId, Completion] = {}
    async for event in rollout.generate_runs(asked, deadline_s=60, interval_tokens=4):
        if isinstance(event, Completion):
            done[event.sample_id] = event
        else:
            assert event.offset == len(parts[event.sample_id])
            assert len(event.token_ids) == len(event.log_probs) == sum(run.token_count for run in event.versions) == 4
            parts[event.sample_id].extend(event.token_ids)
    for sample_id, tokens in parts.items():
        assert len(tokens) == 8
        assert done[sample_id].token_ids[:8] == tuple(tokens)


async def test_c3_ids_are_those_that_were_sampled(tiny: Path, open_rollout: Open) -> None:
    """The text of a byte model is often not valid UTF-8: encoding it again would give other ids."""
    rollout = await open_rollout()
    asked = [request(k, ignore_eos=False) for k in range(8)]
    done = await answers(rollout, asked)
    assert any("\ufffd" in completion.text for completion in done)
    for one, completion in zip(asked, done, strict=True):
        check_log_probs(tiny, one, completion)
        assert len(completion.token_ids) == len(completion.log_probs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_ids": ()}, "prompt_ids is empty"),
        ({"prompt_ids": (5, 259)}, "prompt_ids holds 259"),
        ({"prompt_ids": (-1,)}, "prompt_ids holds -1"),
        ({"generated": Generated((4,), (), ())}, "generated.log_probs"),
        ({"generated": Generated((4,), (-1.0,), ())}, "generated.versions"),
        ({"generated": Generated((999,), (-1.0,), (VersionRun(PolicyVersion("m", 0, ""), 1),))}, "holds 999"),
        ({"generated": Generated((4,) * 13, (-1.0,) * 13, (VersionRun(PolicyVersion("m", 0, ""), 13),))}, "max_tokens"),
        (
            {
                "prompt_ids": (5,) * 250,
                "generated": Generated((4,) * 7, (-1.0,) * 7, (VersionRun(PolicyVersion("m", 0, ""), 7),)),
            },
            r"250 \+ 7 tokens, and the server's context holds 256",
        ),
    ],
)
async def test_malformed_requests_are_refused(open_rollout: Open, changes: dict[str, Any], message: str) -> None:
    rollout = await open_rollout()
    with pytest.raises(InvalidInputError, match=message):
        await answers(rollout, [request(1), replace(request(0), **changes)])
    assert (await rollout.status()).running_count == 0


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": 1e-9}, "temperature"),
        ({"min_p": 1.0}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 13}, "min_tokens"),
        ({"stop": ("", "END")}, "stop"),
        ({"stop_token_ids": (259,)}, "stop_token_ids"),
    ],
)
async def test_malformed_parameters_are_refused(open_rollout: Open, params: dict[str, Any], field: str) -> None:
    rollout = await open_rollout()
    with pytest.raises(InvalidInputError, match=field):
        await answers(rollout, [request(**params)])


async def test_d3_every_way_to_say_no_top_k(open_rollout: Open) -> None:
    rollout = await open_rollout()

    async def tokens(**params: Any) -> tuple[int, ...]:
        return (await answers(rollout, [request(**params)]))[0].token_ids

    off = await tokens(top_k=-1)
    assert await tokens(top_k=0) == off
    assert await tokens() == off  # None on the wire is "not set": the default
    assert await tokens(top_k=259) == off
    assert await tokens(top_k=264) == off
    greedy = await tokens(temperature=0.0)
    assert greedy != off
    assert await tokens(top_k=1) == greedy
    assert await tokens(top_p=0.0) == greedy  # by our rule, 0 keeps one token
    assert await tokens(top_p=1.0) == off
    for params, field in (({"top_k": -7}, "top_k"), ({"top_k": 0.5}, "top_k"), ({"top_p": 1.2}, "top_p")):
        with pytest.raises(InvalidInputError, match=field):
            await tokens(**params)


async def test_d8_samples_of_a_group_differ_and_repeat(open_rollout: Open) -> None:
    rollout = await open_rollout()
    asked = [request(k) for k in range(8)]
    together = [c.token_ids for c in await answers(rollout, asked)]
    assert len(set(together)) == 8
    assert [c.token_ids for c in await answers(rollout, asked)] == together
    assert [(await answers(rollout, [one]))[0].token_ids for one in asked] == together
    second = await open_rollout()
    split = [c.token_ids for c in await answers(rollout, asked[:4])] + [
        c.token_ids for c in await answers(second, asked[4:])
    ]
    assert split == together  # two engines share the group without copying each other


async def test_d14_validation_does_not_move_training(open_rollout: Open) -> None:
    train = [request(k, p) for p in range(2) for k in range(4)]
    validation = [
        GenerateRequest(
            SampleId(0, p, 0), PROMPT, SamplingParams(max_tokens=12, temperature=0.0, seed=7), purpose="val"
        )
        for p in range(3)
    ]
    alone = [c.token_ids for c in await answers(await open_rollout(), train)]
    rollout = await open_rollout()
    before = [c.token_ids for c in await answers(rollout, train[:4])]
    judged = await answers(rollout, validation)
    after = [c.token_ids for c in await answers(rollout, train[4:])]
    assert before + after == alone
    assert len(judged) == 3
    assert len({c.token_ids for c in judged}) == 1  # the same prompt, greedy
    both = await answers(rollout, [*train, *validation])  # in one batch too: same sample ids, other purpose
    assert [c.token_ids for c in both] == alone + [c.token_ids for c in judged]
