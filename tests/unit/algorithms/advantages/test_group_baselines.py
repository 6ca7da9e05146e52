"""RLOO, OPO, GPG, REINFORCE++ with baseline and GDPO by numbers that can be checked by hand."""

from __future__ import annotations

import math

import pytest

from argosy.algorithms.advantages import AdvantageOptions, estimator
from argosy.types.errors import ConfigError
from support.advantage_references import Sample, inputs_of


def first_tokens(name: str, samples: list[Sample], options: AdvantageOptions | None = None) -> list[float]:
    advantages = estimator(name)(inputs_of(samples), options or AdvantageOptions()).advantages
    return [float(row[0]) for row in advantages]


def answer(group: str, reward: float, length: int = 1, **more: object) -> Sample:
    return Sample(group, [0.0] * (length - 1) + [reward], [1] * length, **more)  # type: ignore[arg-type]


def test_b2_rloo_leaves_one_out_and_a_lone_sample_gets_zero() -> None:
    rows = first_tokens("rloo", [*(answer("a", reward) for reward in (2, 0, 1)), answer("b", 0.7)])
    assert rows == pytest.approx([1.5, -1.5, 0.0, 0.0])


def test_rloo_counts_judged_samples_only() -> None:
    rows = first_tokens("rloo", [answer("a", 1), answer("a", 0), answer("a", math.nan, judged=False)])
    assert rows == pytest.approx([1.0, -1.0, 0.0])


def test_opo_weighs_by_length() -> None:
    # baseline = (1·1 + 3·0) / 4
    assert first_tokens("opo", [answer("a", 1, 1), answer("a", 0, 3)]) == pytest.approx([0.75, -0.25])


def test_gpg_scales_by_the_rewarded_share_of_the_batch() -> None:
    batch = [answer("a", 1), answer("a", 0), answer("b", 0), answer("b", 0)]
    result = estimator("gpg")(inputs_of(batch), AdvantageOptions())
    assert result.metrics["critic/gpg_alpha"] == 4.0
    assert [float(row[0]) for row in result.advantages] == pytest.approx([2.0, -2.0, 0.0, 0.0])


def test_reinforce_plus_plus_baseline_is_whitened_over_tokens() -> None:
    rows = first_tokens("reinforce_plus_plus_baseline", [answer("a", 1, 3), answer("a", 0, 1)])
    # deviations ±0.5 on tokens [½ ½ ½ −½]: mean ¼, unbiased variance ¼
    assert rows == pytest.approx([0.5, -1.5], rel=1e-6)


def test_gdpo_keeps_apart_what_the_sum_would_join() -> None:
    """Right but ugly, and wrong but pretty, score 1 in sum like each other; rarer merits count for more in GDPO."""
    parts = [{"right": r, "style": s} for r, s in ((1, 0), (0, 1), (0, 1), (0, 0))]
    batch = [answer("a", sum(part.values()), parts=part) for part in parts]
    right_only, pretty, *_, neither = first_tokens("gdpo", batch)
    assert right_only > pretty + 0.2 > neither + 0.4
    grpo = first_tokens("grpo", batch)
    assert grpo[0] == grpo[1]


def test_gdpo_weights_choose_the_parts() -> None:
    parts = [{"right": r, "style": s} for r, s in ((1, 0), (0, 1))]
    batch = [answer("a", 1, parts=part) for part in parts]
    assert first_tokens("gdpo", batch) == [0.0, 0.0]
    right = first_tokens("gdpo", batch, AdvantageOptions(gdpo_weights={"right": 3.0}))
    assert right == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)], rel=1e-6)
    with pytest.raises(ConfigError, match="got brevity, which no score of this batch has; there are right, style"):
        first_tokens("gdpo", batch, AdvantageOptions(gdpo_weights={"brevity": 1.0}))
    nameless = [answer("a", 1), answer("a", 0)]
    with pytest.raises(ConfigError, match="got brevity, which no score of this batch has; let compute_score return"):
        first_tokens("gdpo", nameless, AdvantageOptions(gdpo_weights={"brevity": 1.0}))


def test_remax_without_a_judged_greedy_answer_learns_nothing_from_the_prompt() -> None:
    batch = [answer("a", 1, 2, baseline=0.25), answer("b", 1, 2, baseline=math.nan)]
    result = estimator("remax")(inputs_of(batch), AdvantageOptions())
    assert [row.tolist() for row in result.advantages] == [[0.75, 0.75], [0.0, 0.0]]
    assert result.metrics == {"critic/baseline/mean": 0.25, "critic/baseline/unjudged_fraction": 0.5}
