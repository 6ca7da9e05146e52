from __future__ import annotations

import json

import pytest

from argosy.config.schema import NamedRewardConfig
from argosy.controller.rewards.failures import RewardsUnusableError
from argosy.controller.rewards.figures import Figures
from argosy.controller.rewards.statistics import Statistics
from argosy.types.ids import SampleId
from argosy.types.records import Abstained, Failed, Outcome, Scored

BAD = Failed("timeout", "no verdict within 60 s")


def figures(max_error_rate: float | None = None, *, window: int = 8) -> Figures:
    tone = NamedRewardConfig(required=False, max_error_rate=max_error_rate)
    return Figures({"numbers": NamedRewardConfig(), "tone": tone}, window)


def step(*tone: Outcome, source: str = "essays") -> Statistics:
    made = Statistics()
    made.add_service("tone", source, {SampleId(0, 0, k): outcome for k, outcome in enumerate(tone)})
    return made


def test_what_a_service_usually_gives_is_its_mean_for_the_data_source_in_the_steps_before() -> None:
    made = figures()
    assert made.usual(["numbers", "tone"], "essays") == {}, "nothing is known in the first step"
    made.take(step(Scored(0.25), Scored(0.75), BAD, Abstained("no idea")))
    made.take(step(Scored(8.0), source="maths"))
    made.take(step(BAD, BAD, source="verse"))
    assert made.usual(["numbers", "tone"], "essays") == {"tone": 0.5}
    assert made.usual(["tone"], "maths") == {"tone": 8.0}
    assert made.usual(["tone"], "verse") == {}
    assert made.moments["tone"].count == 3
    assert made.moments["tone"].mean == 3.0


def test_g11_an_optional_service_over_its_own_limit_ends_the_run() -> None:
    made = figures(0.5)
    made.take(step(BAD, BAD, BAD, BAD))  # the window isn't full
    with pytest.raises(RewardsUnusableError) as ended:
        made.take(step(BAD, Scored(1.0), Abstained("no idea"), Scored(1.0)))
    assert ended.value.message == (
        "reward service 'tone': 5 of its last 8 samples could not be judged "
        "(argosy.reward.services.tone.max_error_rate=0.5); 1 times 'timeout', for example: no verdict within 60 s"
    )


def test_without_a_limit_of_its_own_an_optional_service_ends_nothing() -> None:
    made = figures()
    for _ in range(100):
        made.take(step(BAD, BAD, BAD, BAD))


def test_g11_an_optional_service_that_fails_is_told(caplog: pytest.LogCaptureFixture) -> None:
    figures().take(step(BAD, Scored(1.0), Abstained("no idea")))
    [record] = caplog.records
    assert record.getMessage() == (
        "reward service tone failed for 1 of 3 samples, which count without it; 1 times 'timeout', for example: no "
        "verdict within 60 s"
    )
    caplog.clear()
    figures().take(step(Scored(1.0), Abstained("no idea")))
    assert not caplog.records


def test_a_resumed_run_knows_what_was_known() -> None:
    made, resumed = figures(0.5), figures(0.5)
    made.take(step(Scored(0.1), Scored(0.2), BAD, BAD))
    resumed.restore(json.loads(json.dumps(made.state())))
    assert resumed.state() == made.state()
    assert resumed.usual(["tone"], "essays") == made.usual(["tone"], "essays")
    with pytest.raises(RewardsUnusableError, match="5 of its last 8"):
        resumed.take(step(BAD, BAD, BAD, Scored(1.0)))


def test_figures_of_a_service_that_is_gone_are_left() -> None:
    made = figures()
    made.restore({"other": {"count": 1, "mean": 1.0, "squares": 0.0}})
    assert set(made.moments) == {"numbers", "tone"}
