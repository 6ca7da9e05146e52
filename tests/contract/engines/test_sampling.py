"""What engines sample, and what they say about it: parity, filters, seeds, stops (cases D3, D4, D8, D9, D14)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from argosy.config.validate.engines import LIMITS
from argosy.rpc.clients.rollout import RolloutClient
from argosy.text.tokenizer import load_tokenizer
from argosy.types.errors import InvalidInputError
from argosy.types.records import Completion, FinishReason, Generated, GenerateRequest
from contract.engines.conftest import Model
from contract.engines.served import LONG, MAX_LEN, Served, ask, plain_logits
from contract.forms import mutation, request, until
from unit.rollout.reference import distribution

TOLERANCE = 1e-4
"""Nats, fp32, against the plain Hugging Face model."""
OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.6},
    {"temperature": 1.7},
    {"top_k": 7},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"repetition_penalty": 1.4},
    {"min_tokens": 6, "ignore_eos": False},
    {"min_tokens": 6, "stop_token_ids": tuple(range(3, 120))},
]


def honours(served: Served, params: dict[str, Any]) -> bool:
    return set(params) <= LIMITS[served.engine].sampling | {"temperature"}


def check_parity(served: Served, model: Model, one: GenerateRequest, completion: Completion) -> None:
    """Each log-prob is that of the plain model's processed distribution."""
    params = one.params
    logits = plain_logits(served.model, one.prompt_ids, completion.token_ids, served.model)
    eos = set() if params.ignore_eos else {2, model.eos}
    assert completion.token_ids
    for index, (token, log_prob) in enumerate(zip(completion.token_ids, completion.log_probs, strict=True)):
        banned = eos | {*params.stop_token_ids} if index < params.min_tokens else set()
        seen = (*one.prompt_ids, *completion.token_ids[:index]) if params.repetition_penalty != 1 else ()
        expected = distribution(logits[index].tolist(), params, seen, banned)
        assert log_prob == pytest.approx(math.log(expected[token]), abs=TOLERANCE), (index, params)


async def test_log_probs_are_of_the_distribution_sampled_from(
    served: Served, rollout: RolloutClient, model: Model
) -> None:
    """All options in one batch, so that rows with and without filters share a step."""
    asked = [request(k, **params) for k, params in enumerate(OPTIONS) if honours(served, params)]
    answers = await ask(rollout, asked)
    if served.computes:
        for one, completion in zip(asked, answers, strict=True):
            check_parity(served, model, one, completion)


async def test_d3_no_top_k_is_written_in_several_ways(served: Served, rollout: RolloutClient, model: Model) -> None:
    vocab_size = 259
    ways: list[dict[str, Any]] = [{}, *({"top_k": top_k} for top_k in (-1, 0, vocab_size, vocab_size + 5))]
    asked = [request(1, max_tokens=8, **way) for way in ways]
    answers = [(await ask(rollout, [one]))[0] for one in asked]
    if (await rollout.status()).capabilities["sample_seeds"] == "true":
        assert len({completion.token_ids for completion in answers}) == 1
    if served.computes:
        for completion in answers:
            check_parity(served, model, asked[0], completion)
    [greedy] = await ask(rollout, [request(1, temperature=0.0)])
    ones: list[dict[str, Any]] = [{"top_k": 1}, {"top_p": 0.0}, {"top_p": 1e-6}]
    for params in ones:
        [one] = await ask(rollout, [request(1, **params)])
        assert one.token_ids == greedy.token_ids
        assert one.log_probs == pytest.approx([0.0] * len(one.token_ids), abs=1e-5)


@pytest.mark.parametrize(
    ("params", "field"),
    [({"top_k": -7}, "top_k"), ({"top_k": 0.5}, "top_k"), ({"top_p": 1.2}, "top_p"), ({"stop": ("", "END")}, "stop")],
)
async def test_d3_d4_wrong_values_are_refused_by_name(
    rollout: RolloutClient, params: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInputError, match=field):
        await ask(rollout, [request(0, **params)])
    assert len(await ask(rollout, [request(0, stop=("END",))])) == 1


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("width", [1, 2])
async def test_d4_stop_strings(served: Served, rollout: RolloutClient, include: bool, width: int) -> None:
    """Text is cut, ids and log-probs are those of the tokens up to the one that completes the stop string."""
    decode = load_tokenizer(served.model).decode
    greedy: dict[str, Any] = {"temperature": 0.0, "max_tokens": 24}
    for position in range(12):
        [whole] = await ask(rollout, [request(position, **greedy)])
        stop = _stop_string(whole.text, width)
        if stop:
            break
    else:
        pytest.fail("no answer with text")
    [cut] = await ask(rollout, [request(position, stop=(stop,), include_stop_str_in_output=include, **greedy)])
    count = next(n for n in range(1, 25) if stop in decode(whole.token_ids[:n]))
    assert cut.token_ids == whole.token_ids[:count]
    assert cut.log_probs == pytest.approx(whole.log_probs[:count], abs=TOLERANCE)
    assert cut.finish_reason is FinishReason.STOP
    assert cut.text == whole.text[: whole.text.index(stop) + (len(stop) if include else 0)]


def _stop_string(text: str, width: int) -> str:
    """The first `width` printable characters in a row that aren't the text's beginning."""
    for start in range(1, len(text) - width):
        piece = text[start : start + width]
        if piece.isascii() and piece.isprintable() and piece not in text[:start]:
            return piece
    return ""


async def test_d8_a_seed_does_not_make_all_samples_the_same(served: Served, rollout: RolloutClient) -> None:
    asked = [request(0, k, seed=7) for k in range(8)]
    together = await ask(rollout, asked)
    assert len({completion.token_ids for completion in together}) == 8
    if (await rollout.status()).capabilities["sample_seeds"] == "true":
        alone = [(await ask(rollout, [one]))[0] for one in asked]
        again = await ask(rollout, asked[::-1])
        assert [c.token_ids for c in alone] == [c.token_ids for c in together] == [c.token_ids for c in again[::-1]]
        other = await ask(rollout, [request(0, k, seed=8) for k in range(8)])
        assert not {c.token_ids for c in other} & {c.token_ids for c in together}
    # A second server draws other samples, which have other ids: nothing is a copy.
    more = await ask(rollout, [request(0, k, seed=7) for k in range(8, 16)])
    assert len({c.token_ids for c in (*together, *more)}) == 16


def _to_the_prompt(model: Model, **params: Any) -> GenerateRequest:
    values: dict[str, Any] = {"temperature": 0.0, "max_tokens": 10, **params}
    return replace(request(0, **values), prompt_ids=model.prompt)


async def test_d9_any_of_several_end_tokens_ends_a_sample(served: Served, rollout: RolloutClient, model: Model) -> None:
    [found] = await ask(rollout, [_to_the_prompt(model, ignore_eos=False, max_tokens=200)])
    if served.computes:
        assert found.token_ids == model.greedy[: model.eos_at + 1]
    assert found.token_ids[-1] in (2, model.eos)
    assert not {2, model.eos} & {*found.token_ids[:-1]}
    assert found.finish_reason is FinishReason.STOP


async def test_d9_ignore_eos_goes_on_and_stop_ids_still_count(
    served: Served, rollout: RolloutClient, model: Model
) -> None:
    [found] = await ask(rollout, [_to_the_prompt(model, ignore_eos=True)])
    assert (len(found.token_ids), found.finish_reason) == (10, FinishReason.LENGTH)
    if served.computes:
        assert found.token_ids == model.greedy
    third = next(token for index, token in enumerate(found.token_ids) if index and token not in found.token_ids[:index])
    [stopped] = await ask(rollout, [_to_the_prompt(model, ignore_eos=True, stop_token_ids=(third,))])
    assert stopped.token_ids == found.token_ids[: found.token_ids.index(third) + 1]
    assert stopped.finish_reason is FinishReason.STOP


async def test_d9_no_end_before_min_tokens(served: Served, rollout: RolloutClient, model: Model) -> None:
    """Until then end tokens can't be sampled, and the log-probs are of what is left."""
    least = model.eos_at + 2
    one = _to_the_prompt(model, ignore_eos=False, min_tokens=least, max_tokens=least + 60)
    [found] = await ask(rollout, [one])
    assert len(found.token_ids) > least
    assert not {2, model.eos} & {*found.token_ids[:least]}
    if served.computes:
        assert found.token_ids[: model.eos_at] == model.greedy[: model.eos_at]
        check_parity(served, model, one, found)
    [exact] = await ask(rollout, [replace(one, params=replace(one.params, max_tokens=least))])
    assert (len(exact.token_ids), exact.finish_reason) == (least, FinishReason.LENGTH)


async def test_d14_validation_and_training_do_not_mix(served: Served, rollout: RolloutClient, model: Model) -> None:
    train = [request(position, k) for position in range(2) for k in range(4)]
    validation = [request(position, purpose="val", temperature=0.0) for position in range(3)]
    alone = await ask(rollout, validation)
    before = await ask(rollout, train)
    both = await ask(rollout, [*train, *validation])
    assert [c.token_ids for c in both[len(train) :]] == [c.token_ids for c in alone]
    assert len({c.token_ids for c in before}) == len(train)
    if (await rollout.status()).capabilities["sample_seeds"] == "true":
        assert [c.token_ids for c in both[: len(train)]] == [c.token_ids for c in before]
    if served.computes:
        for one, completion in zip([*train, *validation], both, strict=True):
            check_parity(served, model, one, completion)


async def test_it_goes_on_after_tokens_that_another_server_generated(served: Served, rollout: RolloutClient) -> None:
    one = request(0, temperature=0.0)
    [whole] = await ask(rollout, [one])
    begun = Generated(whole.token_ids[:5], whole.log_probs[:5], (replace(whole.versions[0], token_count=5),))
    [rest] = await ask(rollout, [replace(one, generated=begun)])
    assert rest.token_ids == whole.token_ids
    assert rest.log_probs == pytest.approx(whole.log_probs, abs=TOLERANCE)
    stop = whole.token_ids[3]
    params = replace(one.params, stop_token_ids=(stop,))
    [ended] = await ask(rollout, [replace(one, params=params, generated=begun)])
    assert ended.finish_reason is FinishReason.STOP


async def test_a_second_turn_begins_after_the_end_of_the_first(served: Served, rollout: RolloutClient) -> None:
    """Neither the stop id nor the stop string that ended the first turn ends the second, and no token changes."""
    one = request(0, temperature=0.0, max_tokens=12)
    [whole] = await ask(rollout, [one])
    stop = whole.token_ids[3]
    params = replace(one.params, stop_token_ids=(stop,))
    [first] = await ask(rollout, [replace(one, params=params)])
    assert first.finish_reason is FinishReason.STOP
    said = 2  # tokens of a tool, whose log-probs are 0
    ids = (*first.token_ids, 7, 9)
    begun = Generated(ids, (*first.log_probs, 0.0, 0.0), (replace(first.versions[0], token_count=len(ids)),))
    stops = (first.text[-1:] or "x",) if honours(served, {"stop": ()}) else ()
    turn = replace(one, params=replace(params, stop=stops), generated=begun, turn_start=len(ids))
    [second] = await ask(rollout, [turn])
    assert second.token_ids[: len(ids)] == ids
    assert second.log_probs[-said - len(second.token_ids) + len(ids) :][:said] == (0.0, 0.0)
    assert second.log_probs[: len(ids)] == pytest.approx(begun.log_probs, abs=1e-6)
    assert len(second.token_ids) > len(ids)
    full = replace(turn, params=replace(params, max_tokens=len(ids)))
    [at_once] = await ask(rollout, [full])
    assert (at_once.token_ids, at_once.finish_reason) == (ids, FinishReason.LENGTH)
    with pytest.raises(InvalidInputError, match="turn_start"):
        await ask(rollout, [replace(turn, turn_start=len(ids) + 1)])


async def test_prompts_and_answers_fill_the_context_and_no_more(rollout: RolloutClient) -> None:
    prompt = tuple(3 + index % 200 for index in range(MAX_LEN - 6))
    one = replace(request(0, max_tokens=50), prompt_ids=prompt)
    longest = replace(request(1, max_tokens=50), prompt_ids=(*prompt, *prompt[:5]))
    overlong = replace(request(2), prompt_ids=prompt + prompt[:6])
    found = [completion async for completion in rollout.generate([one, longest, overlong], deadline_s=60)]
    lengths = {completion.sample_id.position: len(completion.token_ids) for completion in found}
    assert lengths == {0: 6, 1: 1, 2: 0}
    assert {completion.finish_reason for completion in found} == {FinishReason.LENGTH}
    assert [c.sample_id.position for c in found if c.overlong_prompt] == [2]


async def test_what_an_engine_declares_is_what_it_does(served: Served, rollout: RolloutClient) -> None:
    """The status tells it, the configuration's table agrees, and a field that it lacks is refused by its name."""
    told = (await rollout.status()).capabilities
    limits = LIMITS[served.engine]
    assert told["engine"] == served.engine
    assert {*told["sampling"].split(",")} == limits.sampling
    assert told["deterministic"] == str(limits.deterministic).lower()
    assert {*told["transports"].split(",")} == limits.transports
    assert told["log_probs"] == "processed"
    values: dict[str, Any] = {
        "top_k": 3, "top_p": 0.5, "min_p": 0.2, "repetition_penalty": 1.2, "min_tokens": 2, "stop_token_ids": (7,),
        "stop": ("END",), "include_stop_str_in_output": True, "ignore_eos": True,
    }  # fmt: skip
    for name, value in values.items():
        one = request(0, **({"ignore_eos": False} | {name: value}))
        if name in limits.sampling:
            await ask(rollout, [one])
        else:
            with pytest.raises(InvalidInputError, match=f"params.{name} is"):
                await ask(rollout, [one])


async def _running(rollout: RolloutClient, requests: Sequence[GenerateRequest]) -> asyncio.Task[list[Completion]]:
    """Begin, and wait until each has a few tokens or so."""
    before = (await rollout.status()).generated_token_count
    task = asyncio.create_task(_all(rollout, requests))
    await until(rollout, lambda status: status.generated_token_count >= before + 4 * len(requests))
    return task


async def _all(rollout: RolloutClient, requests: Sequence[GenerateRequest]) -> list[Completion]:
    return await ask(rollout, requests)


async def test_abort_ends_the_named_samples_with_what_they_have(rollout: RolloutClient) -> None:
    long = [request(position, max_tokens=LONG) for position in range(4)]
    task = await _running(rollout, long)
    assert await rollout.abort([long[0].key, long[2].key, "train:e9-p9-k9-a9"], mutation()) == 2
    assert await rollout.abort([long[0].key], mutation()) == 0
    assert await rollout.abort(None, mutation()) == 2
    for completion in await task:
        assert completion.finish_reason is FinishReason.ABORTED
        assert 0 < len(completion.token_ids) < LONG
    [again] = await ask(rollout, [request(0)])
    assert len(again.token_ids) == 12


@pytest.mark.parametrize("mode", ["keep", "abort"])
async def test_pause(rollout: RolloutClient, mode: str) -> None:
    long = [request(position, max_tokens=LONG, temperature=0.0) for position in range(2)]
    task = await _running(rollout, long)
    await rollout.pause(mode, mutation())
    paused = await rollout.status()
    await asyncio.sleep(0.1)
    still = await rollout.status()
    assert (still.state, still.generated_token_count) == ("paused", paused.generated_token_count)
    late = asyncio.create_task(_all(rollout, [request(5)]))
    await asyncio.sleep(0.1)
    assert not late.done()
    await rollout.resume(mutation())
    reason = FinishReason.LENGTH if mode == "keep" else FinishReason.ABORTED
    assert {completion.finish_reason for completion in await task} == {reason}
    if mode == "keep":
        unbroken = await ask(rollout, long)
        assert [c.token_ids for c in await task] == [c.token_ids for c in unbroken]
    assert len((await late)[0].token_ids) == 12


async def test_sleep_and_wake(served: Served, rollout: RolloutClient) -> None:
    levels = [int(level) for level in (await rollout.status()).capabilities["sleep_levels"].split(",") if level]
    [before] = await ask(rollout, [request(0, temperature=0.0)])
    for level in {0, 1, 2, 3}.difference(levels):
        with pytest.raises(InvalidInputError, match="sleep"):
            await rollout.sleep(level, mutation())
    if 1 in levels:
        await rollout.sleep(1, mutation())
        assert (await rollout.status()).state == "asleep"
        await rollout.wake(mutation())
    [after] = await ask(rollout, [request(0, temperature=0.0)])
    assert after.token_ids == before.token_ids
    assert after.log_probs == pytest.approx(before.log_probs, abs=TOLERANCE)
