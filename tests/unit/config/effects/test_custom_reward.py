"""`custom_reward_function.*` and `argosy.reward.*`: who scores, and how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from argosy.config import Config, load
from argosy.controller.rewards.failures import RewardsUnusableError
from argosy.reward import seat
from argosy.reward.build import build_core, reward_options
from argosy.reward.calling import CallPlan
from argosy.reward.custom import LoadedFunction
from argosy.reward.sdk import RewardSpec
from argosy.types.ids import SampleId
from argosy.types.records import Scored, ScoreRequest
from unit.config.effects.recorded import run_recorded

SOURCE = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, scale=1.0):
    return scale * len(solution_str)

def other(data_source, solution_str, ground_truth, extra_info=None, scale=1.0):
    return -scale
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "scorers.py"
    path.write_text(SOURCE)
    return path


def score(*arguments: str) -> float:
    """Of the answer "four", by the function that the reward service's workers would load."""
    custom = reward_options(load(arguments)).custom
    assert custom is not None
    sample = {"data_source": "toy", "response_text": "four", "ground_truth": "", "extra_info": {}}
    outcome = LoadedFunction(custom).score(sample)
    assert isinstance(outcome, Scored)
    return outcome.score


class Worker:
    """Stands for a worker process, which costs a second to start: it answers at once, and notes its time limit."""

    started: list[Worker]
    is_alive = True
    traits = CallPlan({}, RewardSpec()).traits()

    def __init__(self, settings: Any, **_: object) -> None:
        self.limits: list[float] = []
        self.started.append(self)

    def wait_ready(self) -> None:
        pass

    def exchange(self, message: bytes, *, timeout_s: float) -> dict[str, Any]:
        self.limits.append(timeout_s)
        return {"id": json.loads(message)["id"], "outcomes": [{"kind": "abstained", "reason": ""}], "used_s": 0.0}

    def kill(self) -> None:
        pass

    close = kill


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[Worker]:
    """Those that a reward core starts."""
    Worker.started = []
    monkeypatch.setattr(seat, "WorkerProcess", Worker)
    return Worker.started


@pytest.mark.parametrize("key", ["custom_reward_function.path", "reward.custom_reward_function.path"])
async def test_path(file: Path, key: str, workers: list[Worker]) -> None:
    """It scores, and any data source then has a scorer."""
    assert reward_options(Config()).custom is None
    assert score(f"{key}={file}") == 4.0
    for config, sources in ((Config(), False), (load([f"{key}={file}"]), True)):
        core = build_core(config)
        assert ((await core.capabilities()).data_sources == ("*",)) is sources
        await core.close()


@pytest.mark.parametrize("key", ["custom_reward_function.name", "reward.custom_reward_function.name"])
def test_name(file: Path, key: str) -> None:
    assert score(f"custom_reward_function.path={file}", f"{key}=other") == -1.0


@pytest.mark.parametrize("key", ["custom_reward_function.reward_kwargs", "reward.custom_reward_function.reward_kwargs"])
def test_reward_kwargs(file: Path, key: str) -> None:
    assert score(f"custom_reward_function.path={file}", f"+{key}.scale=0.5") == 2.0


@pytest.mark.parametrize("key", ["reward.num_workers", "reward_model.num_workers", "argosy.reward.worker_count"])
async def test_worker_count(key: str, workers: list[Worker]) -> None:
    """By all three names."""
    await build_core(load([f"{key}=3"])).close()
    assert len(workers) == 3


async def test_timeout(workers: list[Worker]) -> None:
    core = build_core(load(["argosy.reward.timeout_s=1.5", "argosy.reward.worker_count=1"]))
    await core.score([ScoreRequest(SampleId(0, 0, 0), "openai/gsm8k", "", "4", "4")], deadline_s=60)
    await core.close()
    assert workers[0].limits == [1.5]


async def test_max_error_rate(job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a group's two samples fails: half of the step."""
    job = job.with_values({"trainer.val_before_train": False})
    await run_recorded(job, monkeypatch, failing=1)
    changed = job.with_values({
        "argosy.reward.max_error_rate": 0.4, "trainer.default_local_dir": f"{job.run_folder}-2"
    })  # fmt: skip
    with pytest.raises(RewardsUnusableError, match=r"4 of 8 samples could not be judged"):
        await run_recorded(changed, monkeypatch, failing=1)
