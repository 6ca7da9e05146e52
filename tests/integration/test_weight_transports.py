"""A training run is the same, number for number, by shared memory, collective and stream; and what a sync took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from argosy.cli.main import main
from argosy.weightsync.collective.process import close_idle
from support.toy import ToyJob, make_toy_job

STEPS = ("trainer.total_training_steps=2", "argosy.placement=inprocess", "argosy.export_hf=false")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> ToyJob:
    return make_toy_job(tmp_path_factory.mktemp("transports"))


def run(job: ToyJob, name: str, *overrides: str) -> list[dict[str, Any]]:
    words = job.command(name, *STEPS, *overrides)
    assert main(words[words.index("train") :]) == 0
    return job.metrics(name)


def trained(job: ToyJob, name: str) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not k.startswith("sync/")} for row in job.trained(name)]


def test_transports_change_nothing_but_the_time(job: ToyJob, tmp_path: Path) -> None:
    rows = run(job, "auto")
    run(job, "stream", "argosy.weight_sync.transport=stream")
    run(job, "collective", "argosy.weight_sync.transport=collective", "argosy.weight_sync.collective_backend=gloo")
    close_idle()
    assert trained(job, "auto") == trained(job, "stream") == trained(job, "collective")
    last = rows[-1]
    assert last["sync/total_s"] >= last["sync/transfer_s"] > 0
    assert 0 < last["sync/pause_s"] < last["sync/total_s"]
    assert last["sync/slowest_gb_per_s"] > 0
    assert last["sync/changed_share"] > 0.5, "in float32 nearly every value moves in a step (case E7)"
