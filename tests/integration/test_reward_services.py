"""Several reward services in one run of the tiny model: rules, a function and somebody else's server."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from argosy.cli.main import main
from support.toy import ToyJob

pytestmark = pytest.mark.xdist_group("reward-services")

EXTERNAL = Path(__file__).parent / "reward_programs" / "external.py"
LENGTH = """
def spread(data_source, solution_str, ground_truth, extra_info=None):
    return 100 + 10 * len(set(solution_str))
"""


@pytest.fixture(scope="module")
def external(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    port_file = tmp_path_factory.mktemp("external") / "port"
    process = subprocess.Popen([sys.executable, str(EXTERNAL), str(port_file)])
    deadline = time.monotonic() + 60
    while not port_file.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield f"127.0.0.1:{port_file.read_text()}"
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def mixed(toy_job: ToyJob) -> ToyJob:
    """Every fourth training row is of a source that the rules know."""
    path = toy_job.folder / "train.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows[::4]:
        row["data_source"] = "argosy/exact_match"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (toy_job.folder / "spread.py").write_text(LENGTH)
    return toy_job


def services(job: ToyJob, name: str, **chosen: dict[str, Any]) -> tuple[str, ...]:
    """Overrides that set them, by a file."""
    path = job.folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"argosy": {"reward": {"services": chosen}}}))
    return ("custom_reward_function.path=null", "--config", str(path), "argosy.export_hf=false")


def test_three_services_train_one_model(mixed: ToyJob, external: str) -> None:
    letters = {"custom_reward_function": {"path": f"{mixed.folder}/reward.py"}, "data_sources": ["toy"]}
    chosen = services(
        mixed,
        "three",
        rules={"kind": "rules"},
        letters=letters,
        lengths={"address": external, "weight": 0.01, "clip_max": 4.0, "required": False},
    )
    code, out, err = mixed.run("three", *chosen, "trainer.total_training_steps=3", "data.shuffle=false")
    assert code == 0, out + err
    logs = {path.stem for path in (mixed.folder / "three" / "logs").glob("*.log")}
    assert {"reward-rules-0", "reward-letters-0"} <= logs
    rows = mixed.metrics("three")
    assert len(rows) == 3
    for row in rows:
        assert row["reward/toy/failed"] == row["reward/argosy/exact_match/failed"] == 0
        assert row["reward/argosy/exact_match/mean"] == 0.0
        assert row["reward_service/lengths/mean"] > 4.0, "as it gave it; what counts is clipped"
        assert row["reward/letters/score/mean"] == row["reward_service/letters/mean"]
        # letters + 0.01 × min(length, 4), for every answer alike
        assert row["reward/toy/mean"] == pytest.approx(row["reward_service/letters/mean"] + 0.04, abs=0.01)


def test_a_server_that_is_not_there_ends_the_run_before_it_begins(mixed: ToyJob) -> None:
    chosen = services(mixed, "absent", absent={"address": "127.0.0.1:1"})
    code, _, err = mixed.run("absent", *chosen, "argosy.startup_timeout_s=2")
    assert code == 2, err
    assert not list((mixed.folder / "absent").glob("logs/trainer-*.log")), "nothing was started"
    assert "argosy.reward.services.absent.address: 127.0.0.1:1 doesn't answer" in err


def test_a_source_that_no_service_knows_ends_the_run_before_it_begins(mixed: ToyJob) -> None:
    chosen = services(mixed, "unknown", rules={}, other={"data_sources": ["gsm8k"]})
    code, _, err = mixed.run("unknown", *chosen)
    assert code == 2, err
    assert "no scorer knows the data source 'toy'" in err


def test_a_resumed_run_normalises_as_the_unbroken_one(mixed: ToyJob, external: str) -> None:
    """Running mean and spread are in the checkpoint: bit for bit the same. In one process, but for what is outside."""
    chosen = services(
        mixed,
        "normalised",
        rules={"data_sources": ["argosy/*"]},
        letters={"custom_reward_function": {"path": f"{mixed.folder}/reward.py"}, "data_sources": ["toy"]},
        spread={
            "custom_reward_function": {"path": f"{mixed.folder}/spread.py", "name": "spread"},
            "data_sources": ["toy"],
            "normalize": True,
            "weight": 0.5,
        },
        lengths={"address": external, "weight": 0.0},
    )

    def train(run: str, steps: int) -> None:
        words = mixed.command(
            run, *chosen, "argosy.placement=inprocess", "trainer.val_before_train=false", "trainer.save_freq=2",
            f"trainer.total_training_steps={steps}", "actor_rollout_ref.actor.optim.lr_scheduler_type=constant",
        )  # fmt: skip
        assert main(words[words.index("train") :]) == 0

    train("unbroken", 4)
    train("broken", 2)
    train("broken", 4)
    assert mixed.trained("broken") == mixed.trained("unbroken")
    state = json.loads((mixed.folder / "broken" / "global_step_4" / "controller.json").read_text())
    figures = state["rewards"]["scores"]["spread"]
    assert figures["count"] > 100
    assert figures["mean"] > 100
    first, *later = [row["reward/toy/mean"] for row in mixed.metrics("broken")]
    assert first > 50, "nothing is known in the first step"
    assert all(abs(value) < 5 for value in later)
