from __future__ import annotations

import math

import pytest

from argosy.algorithms.rollout_correction.thresholds import RejectionRule, WeightRule, parse_rules
from argosy.types.errors import ConfigError


def test_weights() -> None:
    assert parse_rules("token", "2.0", None, None).weights == WeightRule("token", 2.0)
    assert parse_rules("sequence", " 0.5_5 ", None, None, True).weights == WeightRule("sequence", 5.0, 0.5, True)
    assert parse_rules(None, "2.0", None, None).weights is None


def test_rejections() -> None:
    found = parse_rules(None, "2.0", "token_k1, seq_mean_k3,token_k1", "0.5_4.0,0.01").rejections
    assert found == (
        RejectionRule("token_k1", math.log(0.5), math.log(4.0)),
        RejectionRule("seq_mean_k3", -math.inf, 0.01),
    )
    shared = parse_rules(None, "2.0", "token_k1,seq_sum_k2", "2.0").rejections
    assert shared[0].lower == pytest.approx(-math.log(2))
    assert [rule.upper for rule in shared] == [math.log(2), 2.0]


@pytest.mark.parametrize(
    ("rollout_is", "threshold", "rollout_rs", "rs_threshold", "wanted"),
    [
        ("geometric", "2.0", None, None, "rollout_is: got 'geometric', wants token or sequence"),
        ("token", "much", None, None, "rollout_is_threshold: got 'much', wants a number such as 2.0"),
        ("token", "0", None, None, "rollout_is_threshold: got '0', wants bounds above 0"),
        ("token", "inf", None, None, "above 0 and finite"),
        ("token", "5_0.5", None, None, "got '5_0.5', wants lower < upper"),
        (None, "2.0", "seq_max_k1", "2.0", "rollout_rs: unknown criterion 'seq_max_k1'; known: token_k1"),
        (None, "2.0", " , ", "2.0", "rollout_rs: got ' , ', wants one or more of"),
        (None, "2.0", "token_k1", None, r"got 0 thresholds \(None\) for 1 criteria"),
        (None, "2.0", "token_k1,token_k2", "1,2,3", r"got 3 thresholds \('1,2,3'\) for 2 criteria.*wants 1 or 2"),
        (None, "2.0", "token_k3", "0.1_1", "got the band '0.1_1' for token_k3"),
        (None, "2.0", "token_k1", "1.5_2", "even equal policies"),
        (None, "2.0", "token_k1", "0.5", "even equal policies"),
    ],
)
def test_nonsense_is_refused_with_its_key(
    rollout_is: str | None, threshold: str, rollout_rs: str | None, rs_threshold: str | None, wanted: str
) -> None:
    with pytest.raises(ConfigError, match=wanted):
        parse_rules(rollout_is, threshold, rollout_rs, rs_threshold)
