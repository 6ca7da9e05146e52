"""Rewards by models in whole runs: rules, a scoring model and a judge together; one service in verl's words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from support.model_server import Fault, model_server
from support.scoring import save_tiny_scorer
from support.toy import ToyJob

pytestmark = pytest.mark.xdist_group("reward-models")


def test_rules_a_reward_model_and_a_judge_train_one_model(toy_job: ToyJob, tmp_path: Path) -> None:
    """Five processes more than a run without: each service's own figures, costs and the weighted sum are in metrics."""
    scorer = save_tiny_scorer(tmp_path / "scorer")
    with model_server() as server:
        # The judge likes long answers. It is busy once, and says nothing readable now and then.
        server.reply = lambda messages: f"Score: {min(len(messages[1]['content'].split('answer')[2]) % 10, 9)}"
        server.faults = [Fault(429, {"retry-after": "0.2"})]
        services = {
            "letters": {"custom_reward_function": {"path": f"{toy_job.folder}/reward.py"}, "data_sources": ["toy"]},
            "scorer": {
                "kind": "model",
                "data_sources": ["toy"],
                "weight": 0.1,
                "normalize": True,
                "clip_min": -2.0,
                "clip_max": 2.0,
                "service": {"model": {"path": str(scorer), "device": "cpu"}},
            },
            "judge": {
                "kind": "judge",
                "data_sources": ["toy"],
                "weight": 0.5,
                "service": {
                    "judge": {"endpoint": {"url": f"{server.url}/v1", "model": "big", "prompt_price": 1e4}},
                },
            },
        }
        config = tmp_path / "services.yaml"
        config.write_text(yaml.safe_dump({"argosy": {"reward": {"services": services}}}))
        code, out, err = toy_job.run(
            "three", "custom_reward_function.path=null", "--config", str(config), "argosy.export_hf=false",
            "trainer.total_training_steps=2", "trainer.val_before_train=false",
        )  # fmt: skip
        assert code == 0, out + err
        bodies = [body for _, body in server.requests]
    rows = toy_job.metrics("three")
    assert len(rows) == 2
    for row in rows:
        assert row["reward/toy/failed"] == 0
        for name in ("letters", "scorer", "judge"):
            assert f"reward_service/{name}/mean" in row
        assert row["reward/judge/cost/mean"] == pytest.approx(1.0, abs=0.05)
        assert row["reward/judge/prompt_tokens/mean"] >= 100
        assert row["reward/scorer/truncated/mean"] == 0
        assert row["reward/scorer/tokens/mean"] > 30
    assert rows[0]["reward_service/scorer/std"] > 0
    # The conversation and the answer as they were, not the policy's template.
    assert all("say something" in body["messages"][1]["content"] for body in bodies)
    assert not any("<|im_start|>" in body["messages"][1]["content"] for body in bodies)


def test_verls_keys_start_a_reward_model(toy_job: ToyJob, tmp_path: Path) -> None:
    """One service, in verl's words, in this one process; each answer's reward is the model's own number."""
    scorer = save_tiny_scorer(tmp_path / "scorer")
    code, out, err = toy_job.run(
        "verl", "custom_reward_function.path=null", "reward_model.enable=True", f"reward_model.model.path={scorer}",
        "reward_model.max_length=200", "reward_model.micro_batch_size_per_gpu=4", "argosy.placement=inprocess",
        "argosy.export_hf=false", "trainer.total_training_steps=1", "trainer.val_before_train=false",
    )  # fmt: skip
    assert code == 0, out + err
    (row,) = toy_job.metrics("verl")
    assert row["reward/failed_fraction"] == 0
    assert row["critic/score/max"] > row["critic/score/min"]


def test_a_judge_that_is_down_ends_the_run_with_its_cause(toy_job: ToyJob) -> None:
    """Case G11: never a step of rewards 0, and not even the start of one where the judge refuses our key."""
    with model_server() as server:
        server.faults = [Fault(401, {}, b"no such key")] * 10_000
        code, out, err = toy_job.run(
            "down", "custom_reward_function.path=null", "argosy.reward.kind=judge", "argosy.placement=inprocess",
            f"argosy.reward.judge.endpoint.url={server.url}/v1", "argosy.reward.judge.endpoint.model=big",
            "trainer.total_training_steps=1", "trainer.val_before_train=false", "argosy.export_hf=false",
        )  # fmt: skip
    assert code != 0
    assert "'default' can't judge samples of data source 'toy'" in out + err
    assert "no such key" in out + err
    report = toy_job.folder / "down" / "metrics.jsonl"
    assert not report.exists() or not [
        line for line in report.read_text().splitlines() if "critic/score" in json.loads(line)
    ]
