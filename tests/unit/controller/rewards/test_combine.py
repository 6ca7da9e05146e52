from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from argosy.controller.rewards.combine import Term, combine
from argosy.controller.rewards.moments import Moments
from argosy.types.ids import SampleId
from argosy.types.records import Abstained, Failed, Outcome, Scored

NOTHING = {"a": Moments(), "b": Moments()}


def group(*outcomes: Outcome) -> dict[SampleId, Outcome]:
    return {SampleId(0, 0, k): outcome for k, outcome in enumerate(outcomes)}


def both(
    a: tuple[Outcome, ...],
    b: tuple[Outcome, ...],
    *,
    terms: tuple[Term, ...] = (Term("a"), Term("b", 0.5)),
    usual: Mapping[str, float] | None = None,
) -> list[Outcome]:
    return list(combine(terms, {"a": group(*a), "b": group(*b)}, NOTHING, usual or {}).values())


def test_a_weighted_sum_with_prefixed_parts() -> None:
    [outcome] = both((Scored(1.0, {"acc": True, "rule": "number"}),), (Scored(0.5, {"acc": 0.25, "tone": "kind"}),))
    assert outcome == Scored(
        1.25,
        {
            "acc": True, "a/score": 1.0, "a/acc": True, "a/rule": "number",
            "b/score": 0.5, "b/acc": 0.25, "b/tone": "kind",
        },
    )  # fmt: skip


def test_one_plain_service_changes_nothing() -> None:
    given = group(Scored(0.0, {"x": 1.0}, (0.0, 0.5)), Failed("timeout", "slow"), Abstained("no"))
    assert combine([Term("a")], {"a": given}, NOTHING, {}) == given


def test_one_service_is_weighted_and_its_parts_keep_their_names() -> None:
    given = {"a": group(Scored(2.0, {"x": 1.0}, (1.0, 3.0)), Failed("timeout", "slow"), Abstained("no"))}
    found = list(combine([Term("a", weight=0.5)], given, NOTHING, {}).values())
    assert found == [Scored(1.0, {"x": 1.0}, (0.5, 1.5)), Failed("timeout", "slow"), Abstained("no")]


def test_g11_a_failed_required_member_fails_the_sample_and_is_named() -> None:
    assert both((Scored(1.0),), (Failed("timeout", "slow"),)) == [Failed("timeout", "b: slow")]
    assert both((Abstained("no truth"),), (Failed("timeout", "slow"),)) == [Failed("timeout", "b: slow")]


def test_g1_an_abstaining_required_member_makes_the_sample_abstained() -> None:
    assert both((Abstained("no truth"),), (Scored(1.0),)) == [Abstained("a: no truth")]


@pytest.mark.parametrize("missing", [Failed("timeout", "slow"), Abstained("can't say")])
def test_g11_a_missing_optional_member_moves_its_sample_neither_up_nor_down(missing: Outcome) -> None:
    """It counts as the mean of what it gave the others of the prompt: the group's mean of it stays what it was."""
    terms = (Term("a"), Term("b", 0.5, required=False))
    a = (Scored(1.0), Scored(1.0), Scored(1.0))
    found = both(a, (Scored(0.2), missing, Scored(0.6)), terms=terms)
    scores = [outcome.score for outcome in found if isinstance(outcome, Scored)]
    assert scores == pytest.approx([1.1, 1.2, 1.3])
    assert scores[1] == pytest.approx(math.fsum(scores) / 3)
    parts = [outcome.parts for outcome in found if isinstance(outcome, Scored)]
    assert "b/score" not in parts[1]
    assert parts[0]["b/score"] == 0.2
    nobody = both(a, (missing,) * 3, terms=terms)
    assert [outcome.score for outcome in nobody if isinstance(outcome, Scored)] == [1.0] * 3
    usual = both(a, (missing,) * 3, terms=terms, usual={"b": 0.4})
    assert [outcome.score for outcome in usual if isinstance(outcome, Scored)] == [1.2] * 3, "nor its whole prompt"


def test_g11_what_a_missing_optional_member_usually_gives_is_normalised_and_clipped_as_its_scores_are() -> None:
    moments = {"a": Moments(), "b": Moments().with_scores([10.0, 20.0])}
    missing = {"a": group(Scored(1.0)), "b": group(Failed("timeout", "slow"))}
    for clip_max, expected in ((None, 1.0 + 0.5 * 3.0), (2.0, 1.0 + 0.5 * 2.0)):
        terms = [Term("a"), Term("b", 0.5, required=False, normalize=True, clip_max=clip_max)]
        [outcome] = combine(terms, missing, moments, {"b": 30.0}).values()
        assert isinstance(outcome, Scored)
        assert outcome.score == expected, "30 is three spreads of 5 above the mean of 15"


def test_where_all_are_optional_one_is_enough_and_none_is_no_zero() -> None:
    terms = (Term("a", required=False), Term("b", required=False))
    found = both(
        (Scored(1.0), Failed("timeout", "slow"), Abstained("x")),
        (Failed("crashed", "gone"), Abstained("y"), Abstained("y")),
        terms=terms,
    )
    assert isinstance(found[0], Scored)
    assert found[1:] == [Failed("timeout", "a: slow"), Abstained("a: x")]


def test_f11_zero_is_a_score_a_weight_and_a_bound() -> None:
    found = both(
        (Scored(0.0), Scored(-3.0)), (Scored(5.0), Scored(7.0)), terms=(Term("a", clip_min=0.0), Term("b", weight=0.0))
    )
    assert [outcome.score for outcome in found if isinstance(outcome, Scored)] == [0.0, 0.0]


def test_scores_are_normalised_by_what_was_before_and_then_clipped() -> None:
    moments = {"a": Moments().with_scores([10.0, 20.0]), "b": Moments()}
    terms = [Term("a", 2.0, normalize=True, clip_max=1.5), Term("b", normalize=True)]
    given = {"a": group(Scored(15.0), Scored(30.0)), "b": group(Scored(0.25), Scored(0.0))}
    found = combine(terms, given, moments, {})
    scores = [outcome.score for outcome in found.values() if isinstance(outcome, Scored)]
    assert scores == [2 * 0.0 + 0.25, 2 * 1.5 + 0.0], (
        "the first has mean 15 and spread 5; of the second nothing is known"
    )


def test_rewards_of_tokens_are_added_and_others_land_on_the_last_token() -> None:
    assert both((Scored(1.0, {}, (0.0, 1.0)),), (Scored(4.0),)) == [
        Scored(3.0, {"a/score": 1.0, "b/score": 4.0}, (0.0, 3.0))
    ]
    [failed] = both((Scored(1.0, {}, (0.0, 1.0)),), (Scored(4.0, {}, (4.0,)),))
    assert isinstance(failed, Failed)
    assert failed.reason == "bad_return"


def test_moments_are_those_of_all_scores_at_once() -> None:
    scores = [0.1 * number**2 for number in range(50)]
    parts = Moments().with_scores(scores[:7]).with_scores([]).with_scores(scores[7:])
    mean = math.fsum(scores) / 50
    assert parts.mean == pytest.approx(mean)
    assert parts.spread == pytest.approx(math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / 50))
    assert Moments.of_state(parts.state()) == parts
    alike = Moments().with_scores([2.0, 2.0])
    assert (alike.normalized(2.0), alike.normalized(3.0)) == (0.0, 1.0), "never a million"


def test_g1_a_sum_that_is_not_finite_is_no_score() -> None:
    [found] = both((Scored(1e308),), (Scored(1.0),), terms=(Term("a", 100.0), Term("b")))
    assert found == Failed("bad_return", "the weighted sum of the scores is inf")
