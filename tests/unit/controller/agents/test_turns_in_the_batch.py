"""What a sample with several turns is to the stages: tool tokens are there, and nothing that they say counts."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from argosy.algorithms.rollout_correction.correct import correct
from argosy.algorithms.rollout_correction.thresholds import parse_rules
from argosy.config import Config
from argosy.controller.canary import agreement_metrics
from argosy.controller.context import RunContext
from argosy.controller.dumps import write_dump
from argosy.controller.metrics import turn_metrics
from argosy.controller.stages.advantage import add_advantages, build_batch
from argosy.controller.stages.reward import RewardStage, score_request
from argosy.controller.stages.shaping import reward_of
from argosy.types.batch import TrajectoryBatch
from argosy.types.ids import GroupId, PolicyVersion, SampleId
from argosy.types.ragged import Ragged
from argosy.types.records import Abstained, Completion, FinishReason, Prompt, Scored, VersionRun

VERSION = PolicyVersion("l0", 0, "00")
PROMPT = Prompt(GroupId(0, 0), (1, 2), "s", "1", messages=({"role": "user", "content": "2+2?"},))
SAID = (
    {"role": "assistant", "content": "calc"},
    {"role": "tool", "content": "4"},
    {"role": "assistant", "content": "4"},
)


def sample(k: int) -> SampleId:
    return SampleId(0, 0, k)


def two_turns(k: int, **fields: Any) -> Completion:
    """Two sampled tokens, three of a tool, one sampled."""
    return Completion(
        sample(k),
        (10, 11, 90, 91, 92, 12),
        (-0.5, -0.6, 0.0, 0.0, 0.0, -0.7),
        (VersionRun(VERSION, 6),),
        FinishReason.STOP,
        text="calc 4 4",
        response_mask=(1, 1, 0, 0, 0, 1),
        turn_count=2,
        **fields,
    )


def batch_of(*completions: Completion, scores: tuple[float, ...]) -> TrajectoryBatch:
    outcomes = {one.sample_id: Scored(score) for one, score in zip(completions, scores, strict=True)}
    return build_batch([PROMPT], {one.sample_id: one for one in completions}, outcomes)


def test_only_sampled_tokens_are_trained_and_rewards_lie_where_they_belong() -> None:
    batch = batch_of(two_turns(0, turn_rewards=((1, 0.25), (1, 0.5))), two_turns(1), scores=(1.0, 0.0))
    assert batch.ragged("response_mask")[0].tolist() == [1, 1, 0, 0, 0, 1]
    assert batch.ragged("token_rewards")[0].tolist() == [0, 0.75, 0, 0, 0, 1.0]
    config = Config().with_values({"algorithm.adv_estimator": "grpo"})
    advantages = add_advantages(config, batch)[0].ragged("advantages")
    assert [value != 0 for value in advantages[0]] == [True, True, False, False, False, True]
    assert reward_of(config, Scored(1.0), 6, ((1, 0.25), (1, 0.5))) == 1.75


def test_a_score_lands_on_the_last_sampled_token_where_a_tool_had_the_last_word() -> None:
    ended = replace(two_turns(0), response_mask=(1, 1, 0, 0, 0, 0))
    assert batch_of(ended, scores=(1.0,)).ragged("token_rewards")[0].tolist() == [0, 1, 0, 0, 0, 0]
    assert ended.message_count == 5
    assert two_turns(0).message_count == 4


def test_nobody_judged_it_so_no_turn_of_it_is_trained() -> None:
    rows = {sample(0): two_turns(0, turn_rewards=((1, 3.0),))}
    batch = build_batch([PROMPT], rows, {sample(0): Abstained()})
    assert not batch.ragged("response_mask").values.any()
    assert not batch.ragged("token_rewards").values.any()


def test_corrections_and_agreement_do_not_see_tool_tokens() -> None:
    """The trainer's log-prob of a tool's token is far from the 0 that stands there: no figure may move."""
    mixed = batch_of(two_turns(0), scores=(1.0,))
    plain = Completion(sample(0), (10, 11, 12), (-0.5, -0.6, -0.7), (VersionRun(VERSION, 3),), FinishReason.STOP)
    alone = batch_of(plain, scores=(1.0,))

    rules = parse_rules("token", "2.0", "seq_mean_k1", "0.5_1.5")

    def figures(batch: TrajectoryBatch, old: list[float]) -> dict[str, float]:
        batch = batch.with_column("old_log_probs", Ragged.from_rows([old], np.float32))
        columns = [batch.ragged(name) for name in ("old_log_probs", "rollout_log_probs", "response_mask")]
        corrected = correct(columns[0], columns[1], columns[2], rules)
        return {**corrected.metrics, **agreement_metrics(batch)}

    found = figures(mixed, [-0.4, -0.6, -30.0, -40.0, -9.0, -0.9])
    assert found == pytest.approx(figures(alone, [-0.4, -0.6, -0.9]))
    assert found["training/rollout_probs_diff_max"] == pytest.approx(np.exp(-0.7) - np.exp(-0.9), abs=0.02)


def test_metrics_and_dumps_show_the_turns(tmp_path: Path) -> None:
    plain = Completion(sample(1), (10,), (-0.5,), (VersionRun(VERSION, 1),), FinishReason.STOP)
    rows = {sample(0): two_turns(0, metrics={"tool_calls": 1.0}, messages=SAID), sample(1): plain}
    assert turn_metrics(rows.values()) == {
        "num_turns/mean": 3.0, "num_turns/max": 4.0, "num_turns/min": 2.0, "agent/tool_calls/mean": 1.0,
    }  # fmt: skip
    path = write_dump(tmp_path, 1, [PROMPT], rows, {sample(0): Scored(1.0), sample(1): Scored(0.0)})
    first, second = map(json.loads, path.read_text().splitlines())
    assert (first["num_turns"], first["messages"], first["metrics"]) == (4, list(SAID), {"tool_calls": 1.0})
    assert "messages" not in second


def test_the_reward_service_sees_the_conversation_and_is_not_asked_where_a_verdict_came_along() -> None:
    asked: list[SampleId] = []

    class Judge:
        async def score(self, requests: Any, *, deadline_s: float) -> list[Any]:
            asked.extend(request.sample_id for request in requests)
            return [SimpleNamespace(sample_id=request.sample_id, outcome=Scored(0.5)) for request in requests]

    assert score_request(PROMPT, two_turns(0, messages=SAID)).messages == (*PROMPT.messages, *SAID)

    async def run() -> dict[SampleId, Any]:
        context = cast(RunContext, SimpleNamespace(deadline_s=1.0, services=SimpleNamespace(reward=Judge())))
        async with asyncio.TaskGroup() as tasks:
            stage = RewardStage(context, [PROMPT], 3, tasks)
            empty = replace(two_turns(2, outcome=Abstained("gone")), token_ids=(), finish_reason=FinishReason.LENGTH)
            for one in (two_turns(0), two_turns(1, outcome=Scored(2.0)), empty):
                await stage.add(one)
        return stage.outcomes

    outcomes = asyncio.run(run())
    assert outcomes == {sample(0): Scored(0.5), sample(1): Scored(2.0), sample(2): Abstained("gone")}
    assert asked == [sample(0)]
