from __future__ import annotations

import numpy as np
import pytest

from argosy.config import Config
from argosy.controller.stages.parity import (
    BFLOAT16,
    FLOAT32,
    PROMPT_COUNT,
    SAMPLE_COUNT,
    bound_of,
    canary_requests,
    judge,
)
from argosy.types.errors import CorruptDataError
from argosy.types.ids import GroupId
from argosy.types.records import Prompt

PROMPTS = [Prompt(GroupId(0, i), tuple(range(5, 25 + i)), "toy", "") for i in range(4)]


@pytest.mark.parametrize(
    ("gaps", "right"),
    [
        ([0.0, 9e-5], False),  # one token within, the mean beyond: a small error everywhere is no rounding
        ([0.0] * 9 + [9e-5], True),
        ([0.0] * 20 + [2e-4], False),
        ([0.0, float("nan")], False),
        ([float("inf")], False),
    ],
)
def test_both_bounds_hold_and_a_nan_never_passes(gaps: list[float], right: bool) -> None:
    if right:
        judge("rollout-3", np.array(gaps), FLOAT32)
    else:
        with pytest.raises(CorruptDataError, match="rollout-3"):
            judge("rollout-3", np.array(gaps), FLOAT32)


@pytest.mark.parametrize("path", ["argosy.rollout.dtype", "actor_rollout_ref.actor.fsdp_config.dtype"])
def test_the_bound_follows_the_coarser_side(path: str) -> None:
    exact = Config().with_values({
        "argosy.rollout.dtype": "float32", "actor_rollout_ref.actor.fsdp_config.dtype": "float32",
    })  # fmt: skip
    assert bound_of(exact) == FLOAT32
    assert bound_of(exact.with_values({path: "bfloat16"})) == BFLOAT16


def test_the_canary_draws_from_the_full_distribution_at_the_training_temperature() -> None:
    config = Config().with_values({
        "actor_rollout_ref.rollout.top_p": 0.5, "actor_rollout_ref.rollout.top_k": 3,
        "actor_rollout_ref.rollout.repetition_penalty": 1.3, "actor_rollout_ref.rollout.temperature": 0.7,
        "argosy.rollout.min_p": 0.2,
    })  # fmt: skip
    requests = canary_requests(config, PROMPTS)
    wanted = [prompt.token_ids for prompt in PROMPTS[:PROMPT_COUNT] for _ in range(SAMPLE_COUNT)]
    assert [request.prompt_ids for request in requests] == wanted
    assert len({request.key for request in requests}) == len(requests)
    for request in requests:
        params = request.params
        assert (params.top_p, params.top_k, params.min_p, params.repetition_penalty) == (1.0, -1, 0.0, 1.0)
        assert params.temperature == 0.7
        assert request.purpose == "warmup", "its noise and its keys are its own"


def test_the_canary_stays_within_the_context() -> None:
    config = Config().with_values({"actor_rollout_ref.rollout.max_model_len": 21})
    assert [request.params.max_tokens for request in canary_requests(config, PROMPTS)] == [1] * SAMPLE_COUNT
