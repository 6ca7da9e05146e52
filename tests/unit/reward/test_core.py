"""The Reward role: ids, unknown data sources, counts, formats, and what the configuration gives it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from argosy.config import Config
from argosy.config.schema.argosy import ArgosyConfig
from argosy.config.schema.reward import CustomRewardConfig
from argosy.config.schema.rewards import RewardServiceConfig
from argosy.reward.build import build_core, reward_options
from argosy.reward.core import RewardScorers
from argosy.reward.pool import PoolOptions
from argosy.reward.verifiers import PREFIXES, VERIFIERS, find_verifier
from argosy.reward.verifiers.base import Verifier
from argosy.roles.reward import Reward
from argosy.types.errors import ConfigError, InvalidInputError
from argosy.types.records import Failed, Outcome, Scored, ScoreRequest

MakeScorers = Callable[..., RewardScorers]
MakeRequest = Callable[..., ScoreRequest]


async def test_results_carry_their_samples_ids(make_scorers: MakeScorers, make_request: MakeRequest) -> None:
    scorers: Reward = make_scorers(worker_count=2)
    items = [make_request(k, f"#### {k % 3}", str(k % 2)) for k in range(60)]
    results = await scorers.score(items, deadline_s=30)
    assert [result.sample_id for result in results] == [item.sample_id for item in items]
    scores = [result.outcome.score for result in results if isinstance(result.outcome, Scored)]
    assert scores == [float(k % 3 == k % 2) for k in range(60)]


async def test_a_repeated_id_is_refused(make_scorers: MakeScorers, make_request: MakeRequest) -> None:
    with pytest.raises(InvalidInputError, match="twice"):
        await make_scorers().score([make_request(1, "a"), make_request(1, "b")], deadline_s=30)


async def test_nothing_gives_nothing(make_scorers: MakeScorers) -> None:
    assert await make_scorers().score([], deadline_s=30) == []


async def test_unknown_sources_and_bad_golds_are_counted(make_scorers: MakeScorers, make_request: MakeRequest) -> None:
    scorers = make_scorers()
    items = [
        make_request(0, "#### 5", source="who/knows"),
        make_request(1, "#### 5", gold=""),
        make_request(2, "#### 5", gold="see figure 3"),
        make_request(3, "no idea"),
        make_request(4, "#### 5", gold=5),
    ]
    results = await scorers.score(items, deadline_s=30)
    failures = [result.outcome.reason for result in results if isinstance(result.outcome, Failed)]
    assert failures == ["unknown_data_source", "bad_ground_truth", "bad_ground_truth"]
    assert isinstance(results[0].outcome, Failed)
    assert "'who/knows'" in results[0].outcome.message
    stats = scorers.stats()
    assert (stats.scored, stats.abstained, stats.unextracted, stats.unfinished) == (2, 0, 1, 0)
    assert stats.failed == {"unknown_data_source": 1, "bad_ground_truth": 2}
    assert stats.error_rate == 0.6


async def test_capabilities_name_the_known_sources(make_scorers: MakeScorers) -> None:
    capabilities = await make_scorers().capabilities()
    assert {"openai/gsm8k", "lighteval/MATH", "reasoning_gym/*"} <= set(capabilities.data_sources)
    assert not capabilities.needs_token_ids


def test_every_registered_verifier_is_found() -> None:
    for source, verifier in VERIFIERS.items():
        assert find_verifier(source) is verifier
    for prefix, verifier in PREFIXES.items():
        assert find_verifier(f"{prefix}x") is verifier


def format_outcome(response: str, **extra: object) -> Outcome:
    verifier = find_verifier("argosy/format")
    assert isinstance(verifier, Verifier)
    return verifier.verify(response, None, extra)


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("<think>1+1</think>\n<answer>2</answer>", 1),
        ("  <think>\n1+1\n</think><answer>\n2\n</answer>\n", 1),
        ("<answer>2</answer>", 0),
        ("<think></think><answer>2</answer>", 0),
        ("<think>1+1</think><answer> </answer>", 0),
        ("<think>1+1</think><answer>2</answer> and more", 0),
        ("Well: <think>1+1</think><answer>2</answer>", 0),
        ("<answer>2</answer><think>1+1</think>", 0),
        ("<think>a</think><think>b</think><answer>2</answer>", 0),
        ("<think>a</think><answer>2", 0),
        ("", 0),
    ],
)
def test_the_think_answer_format(response: str, right: int) -> None:
    assert format_outcome(response) == Scored(
        float(right), {"acc": float(right), "format": float(right), "rule": "format"}
    )


def test_a_format_pattern_of_the_row() -> None:
    assert format_outcome("a\nb", format_pattern="a.b") == Scored(1.0, {"acc": 1.0, "format": 1.0, "rule": "format"})
    assert format_outcome("a\nbc", format_pattern="a.b") == Scored(0.0, {"acc": 0.0, "format": 0.0, "rule": "format"})
    assert isinstance(format_outcome("a", format_pattern="("), Failed)


def test_reasoning_gym_judges_numbers_and_words() -> None:
    verifier = find_verifier("reasoning_gym/spell_backward")
    assert verifier is not None
    for response, gold, right in [
        ("The reversed word is:\n<answer>olleh</answer>", "olleh", 1),
        ("olleh", "olleh", 1),
        ("hello", "olleh", 0),
        ("So 3 + 4 = 7.", "7", 1),
        ("7", "7.0", 1),
        ("The answer is -7", "7", 0),
    ]:
        outcome = verifier.verify(response, gold, {})
        assert isinstance(outcome, Scored)
        assert outcome.score == right, response


def test_pool_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="worker_count must be positive, got 0"):
        PoolOptions(worker_count=0)


def configuration(path: str | None) -> Config:
    reward = RewardServiceConfig(worker_count=1, timeout_s=7.0)
    custom = CustomRewardConfig(path=path, name="judge", reward_kwargs={"scale": 2})
    return Config(argosy=ArgosyConfig(reward=reward), custom_reward_function=custom)


async def test_the_configuration_builds_the_scorers(tmp_path: Path, make_request: MakeRequest) -> None:
    path = tmp_path / "reward.py"
    path.write_text("def judge(data_source, solution_str, ground_truth, extra_info=None, scale=1):\n    return scale\n")
    cfg = configuration(str(path))
    options = reward_options(cfg)
    assert (options.pool.worker_count, options.pool.timeout_s) == (1, 7.0)
    scorers = build_core(cfg)
    try:
        [result] = await scorers.score([make_request(0, "", source="anything")], deadline_s=30)
    finally:
        await scorers.close()
    assert result.outcome == Scored(2.0)


def test_the_default_configuration_uses_the_built_in_scorers() -> None:
    assert reward_options(configuration(None)).custom is None
