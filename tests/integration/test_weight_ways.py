"""A training run is the same, number for number, by whichever way its weights go; only the bytes differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from argosy.cli.main import main
from argosy.weightsync.chain import read_links
from support.toy import ToyJob, make_toy_job

STEPS = ("trainer.total_training_steps=2", "argosy.placement=inprocess", "argosy.export_hf=false")
SLOW = ("actor_rollout_ref.actor.optim.lr=1e-6",)
"""In float32 every value changes, but only its last bits: half the bytes."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> ToyJob:
    return make_toy_job(tmp_path_factory.mktemp("ways"))


def run(job: ToyJob, name: str, *overrides: str) -> list[dict[str, Any]]:
    words = job.command(name, *STEPS, *overrides)
    assert main(words[words.index("train") :]) == 0
    return job.metrics(name)


def trained(job: ToyJob, name: str) -> list[dict[str, Any]]:
    """Numbers of each step that don't depend on how bytes travel."""
    return [{k: v for k, v in row.items() if not k.startswith("sync/")} for row in job.trained(name)]


def test_disk_and_deltas_change_nothing_but_the_bytes(job: ToyJob, tmp_path: Path) -> None:
    plain = run(job, "plain", *SLOW)
    disk = run(
        job, "disk", *SLOW, "argosy.weight_sync.transport=disk", f"argosy.weight_sync.disk_path={tmp_path}/weights"
    )
    stream = run(job, "stream", *SLOW, "argosy.weight_sync.delta=xor")
    assert trained(job, "disk") == trained(job, "stream") == trained(job, "plain")
    assert [link.kind for link in read_links(tmp_path / "weights")] == ["base", "delta", "delta"]
    for rows in (disk, stream):
        assert all(row["sync/delta_ratio"] > 1.5 for row in rows)
        assert all(row["sync/delta_encode_mb_s"] > 0 for row in rows)
        assert all(row["sync/transferred_mb"] < row["sync/manifest_mb"] / 1.5 for row in rows)
    assert all(row["sync/transferred_mb"] == pytest.approx(row["sync/manifest_mb"]) for row in plain)


def test_an_adapter_alone_trains_as_merged_weights_do(job: ToyJob) -> None:
    lora = ("actor_rollout_ref.model.lora_rank=4", "actor_rollout_ref.model.lora_alpha=8")
    merged = run(job, "merged", *lora, "argosy.weight_sync.adapter_only=off")
    alone = run(job, "alone", *lora)
    assert trained(job, "alone") == trained(job, "merged")
    for few, many in zip(alone, merged, strict=True):
        assert few["sync/transferred_mb"] == few["sync/manifest_mb"] < many["sync/transferred_mb"] / 5
