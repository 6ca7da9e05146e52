"""Scorers by models are the reward role like any other, here and behind a server; a judge may be our own rollout."""

from __future__ import annotations

from pathlib import Path

import pytest

from argosy.config import Config
from argosy.modeling.tiny import save_tiny_model
from argosy.reward.build import build_core
from argosy.reward.models.judge.speakers import RolloutSpeaker, Speech
from argosy.rollout.build import build_core as build_rollout
from argosy.text.tokenizer import load_tokenizer
from argosy.types.records import Failed, Scored
from contract.forms import DEADLINE_S, Form
from support.model_server import model_server
from support.scoring import request, save_tiny_scorer


async def test_a_scoring_model(form: Form, tmp_path: Path) -> None:
    """Messages travel, since the service asks for them; scores are those of the model alone."""
    core = build_core(
        Config().with_values({
            "argosy.reward.kind": "model", "argosy.reward.model.path": str(save_tiny_scorer(tmp_path / "m")),
            "argosy.reward.model.device": "cpu",
        })
    )  # fmt: skip
    items = [request(k, "x" * (k + 1)) for k in range(9)]
    reward = await form.reward(core)
    capabilities = await reward.capabilities()
    assert (capabilities.needs_messages, capabilities.needs_token_ids) == (True, False)
    together = await reward.score(items, deadline_s=DEADLINE_S)
    for item, result in zip(items, together, strict=True):
        (alone,) = await core.score([item], deadline_s=DEADLINE_S)
        assert isinstance(result.outcome, Scored)
        assert isinstance(alone.outcome, Scored)
        assert result.outcome.score == pytest.approx(alone.outcome.score, abs=1e-5)
    await core.close()


async def test_a_judge_is_paid_once_for_a_call_that_is_repeated(form: Form) -> None:
    with model_server() as server:
        core = build_core(
            Config().with_values({
                "argosy.reward.kind": "judge", "argosy.reward.judge.endpoint.url": f"{server.url}/v1",
                "argosy.reward.judge.endpoint.model": "big",
            })
        )  # fmt: skip
        reward = await form.reward(core)
        items = [request(k, f"answer {k}") for k in range(5)]
        first = await reward.score(items, deadline_s=DEADLINE_S)
        assert await reward.score(items, deadline_s=DEADLINE_S) == first
        assert [result.outcome.score for result in first if isinstance(result.outcome, Scored)] == [0.7] * 5
        assert len(server.requests) == 5
        assert not (await reward.capabilities()).repeat_forbidden
        await core.close()


async def test_a_judge_that_is_our_own_rollout(form: Form, tmp_path: Path) -> None:
    """What it says is what the engine says to the same prompt; a random model's reply has no verdict."""
    model = save_tiny_model(tmp_path / "tiny", weight_scale=3.0)
    config = Config().with_values({
        "actor_rollout_ref.model.path": str(model), "argosy.rollout.device": "cpu", "argosy.rollout.slot_count": 8,
        "data.max_prompt_length": 1000, "data.max_response_length": 24,
    })  # fmt: skip
    engine = build_rollout(config, start_stale=False)
    rollout = await form.rollout(engine)
    tokenizer = load_tokenizer(model)
    speaker = RolloutSpeaker([rollout], tokenizer, Speech(temperature=1.0, max_tokens=16))
    reply = await speaker.say([{"role": "user", "content": "2+2?"}], "key", deadline_s=DEADLINE_S)
    again = await speaker.say([{"role": "user", "content": "2+2?"}], "key", deadline_s=DEADLINE_S)
    other = await speaker.say([{"role": "user", "content": "2+2?"}], "another", deadline_s=DEADLINE_S)
    assert reply.text == again.text != other.text
    assert (reply.usage.requests, reply.usage.prompt_tokens) == (
        1,
        len(tokenizer.encode_prompt([{"role": "user", "content": "2+2?"}])),
    )
    assert 1 <= reply.usage.completion_tokens <= 16

    from argosy.reward.models.judge.judge import JudgeOptions, JudgeScorer
    from argosy.reward.models.judge.prompt import JudgePrompt, PromptOptions
    from argosy.reward.models.judge.verdict import Scale

    prompt = JudgePrompt(PromptOptions(prompt="Grade {{ response }}", system=""), Scale())
    judge = JudgeScorer(RolloutSpeaker([rollout], tokenizer, Speech(max_tokens=8)), prompt, JudgeOptions(attempts=2))
    (result,) = await judge.score([request(0, "four")], deadline_s=DEADLINE_S)
    assert isinstance(result.outcome, Failed)
    assert result.outcome.reason == "unreadable_judgement"
    assert judge.usage.requests == 2
    assert judge.usage.completion_tokens > 0
    await engine.close()
