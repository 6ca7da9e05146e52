"""`argosy.parity.*`: the engine's log-probs are -0.5 in these runs, the trainer's are what the test says."""

from __future__ import annotations

import pytest

from argosy.config import Config
from argosy.types.errors import CorruptDataError
from unit.config.effects.recorded import Recorded, run_recorded
from unit.config.effects.support import problems


async def _run(job: Config, monkeypatch: pytest.MonkeyPatch, gap: float, **parity: object) -> Recorded:
    values: dict[str, object] = {"trainer.total_training_steps": 1, "argosy.parity.enabled": True}
    values |= {f"argosy.parity.{name}": value for name, value in parity.items()}
    return await run_recorded(job.with_values(values), monkeypatch, policy_log_prob=-0.5 + gap)


async def test_enabled(job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CorruptDataError, match="rollout-0 does not compute what the trainer computes"):
        await _run(job, monkeypatch, 0.25)
    off = {"argosy.parity.enabled": False, "trainer.default_local_dir": f"{job.run_folder}-2"}
    recorded = await run_recorded(job.with_values(off), monkeypatch, policy_log_prob=-0.25)
    assert recorded.requests("warmup") == []
    assert recorded.metrics("parity/log_prob_diff_max") == []


@pytest.mark.parametrize(("name", "other"), [("max_diff", "mean_diff"), ("mean_diff", "max_diff")])
async def test_either_bound_alone_stops_the_run(
    job: Config, monkeypatch: pytest.MonkeyPatch, name: str, other: str
) -> None:
    with pytest.raises(CorruptDataError, match=r"differ by 0\.25 at most and 0.25 on average"):
        await _run(job, monkeypatch, 0.25, **{name: 0.2, other: 1.0})


async def test_max_diff(job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = await _run(job, monkeypatch, 0.25, max_diff=0.3, mean_diff=1.0)
    assert recorded.metrics("parity/log_prob_diff_max") == [pytest.approx(0.25)]
    assert "argosy.parity.max_diff: got -1" in problems(job.with_values({"argosy.parity.max_diff": -1.0}))


async def test_mean_diff(job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = await _run(job, monkeypatch, 0.25, max_diff=1.0, mean_diff=0.3)
    assert recorded.metrics("parity/log_prob_diff_mean") == [pytest.approx(0.25)]
    assert "argosy.parity.mean_diff: got -1" in problems(job.with_values({"argosy.parity.mean_diff": -1.0}))
