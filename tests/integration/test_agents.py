"""Agents through real services: a model learns to use a tool; runs repeat; conversations stream; failures are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from argosy.cli.main import main
from support.tool_job import AGENTS, make_tool_job
from support.toy import ToyJob

pytestmark = pytest.mark.xdist_group("agents")

TURNS = "actor_rollout_ref.rollout.multi_turn"


@pytest.fixture(scope="module")
def tool_job(tmp_path_factory: pytest.TempPathFactory) -> ToyJob:
    return make_tool_job(tmp_path_factory.mktemp("agents"))


def arguments(job: ToyJob, steps: int, *overrides: str) -> tuple[str, ...]:
    return (
        *AGENTS,
        f"{TURNS}.tool_config_path={job.folder}/tools.yaml",
        "actor_rollout_ref.actor.use_kl_loss=False",
        "actor_rollout_ref.actor.optim.lr=2e-3",
        "actor_rollout_ref.actor.ppo_mini_batch_size=16",
        "data.train_batch_size=16",
        "data.max_response_length=16",
        "trainer.val_before_train=False",
        "trainer.logger=[file]",
        "argosy.export_hf=false",
        f"trainer.total_training_steps={steps}",
        *overrides,
    )


def here(job: ToyJob, run: str, steps: int, *overrides: str) -> list[dict[str, Any]]:
    """The metrics of a run in this process."""
    words = job.command(run, *arguments(job, steps, "argosy.placement=inprocess", *overrides))
    assert main(words[words.index("train") :]) == 0
    return job.metrics(run)


def dumped(folder: Path, step: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{step}.jsonl").read_text().splitlines()]


def test_a_model_learns_to_use_the_calculator(tool_job: ToyJob) -> None:
    """Only a right call and its result score: they become common, in 24 steps of real services."""
    dumps = tool_job.folder / "dumps"
    code, out, err = tool_job.run("learns", *arguments(tool_job, 24, f"trainer.rollout_data_dir={dumps}"))
    assert code == 0, out + err
    rows = tool_job.metrics("learns")

    def means(name: str) -> tuple[float, float]:
        values = [row[name] for row in rows]
        return float(np.mean(values[:3])), float(np.mean(values[-3:]))

    for name, gain in (("critic/score/mean", 0.3), ("reward/right_call/mean", 0.3), ("agent/tool_calls/mean", 0.25)):
        before, after = means(name)
        assert after > before + gain, (name, before, after)
    assert means("num_turns/mean")[1] > 3.5
    assert max(row["training/rollout_probs_diff_max"] for row in rows) < 1e-4  # masked tokens are left out of it
    whole = [row for row in dumped(dumps, 24) if row["score"] == 1.0]
    assert whole
    first, result, last = whole[0]["messages"]
    assert first["tool_calls"][0]["function"]["name"] == "calculator"
    assert (result["role"], result["content"]) == ("tool", whole[0]["gts"])
    assert last == {"role": "assistant", "content": whole[0]["gts"]}


def test_equal_runs_give_equal_numbers(tool_job: ToyJob) -> None:
    for run in ("once", "again"):
        here(tool_job, run, 3)
    assert tool_job.trained("once") == tool_job.trained("again")


def test_conversations_stream_in_asynchronous_training_and_validation_has_them_too(tool_job: ToyJob) -> None:
    rows = here(tool_job, "stream", 3, "argosy.max_staleness=1", "trainer.test_freq=3", "argosy.deterministic=false")
    assert len(rows) == 3
    assert all(row["num_turns/max"] == 4 for row in rows)


LOOPS = """
import asyncio
from argosy.controller.agents.loops.base import AgentLoop

class Fails(AgentLoop):
    async def run(self, episode):
        await episode.generate()
        if episode.request.sample_id.k == 0:
            raise RuntimeError("the game is lost")
"""


def test_a_loop_that_fails_costs_its_samples_and_no_more(tool_job: ToyJob, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(LOOPS)
    (tmp_path / "loops.yaml").write_text("- {name: fails, class_name: 'fails.py:Fails'}\n")
    loop = (
        "actor_rollout_ref.rollout.agent.default_agent_loop=fails",
        f"actor_rollout_ref.rollout.agent.agent_loop_config_path={tmp_path}/loops.yaml",
        "argosy.reward.max_error_rate=0.2",
    )
    [row] = here(tool_job, "fails", 1, *loop)
    assert row["reward/failed_fraction"] == 1 / 8
    words = tool_job.command("stops", *arguments(tool_job, 1, "argosy.placement=inprocess", *loop[:2]))
    assert main([*words[words.index("train") :], "argosy.reward.max_error_rate=0.05"]) != 0
