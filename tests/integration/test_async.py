"""Asynchronous training of the tiny model over real services: it learns, and every sample is accounted for."""

from __future__ import annotations

from collections import Counter

import pytest

from argosy.cli.main import main
from argosy.controller.ledger import read_segment
from support.toy import ToyJob

pytestmark = pytest.mark.xdist_group("async")

STEPS = 8
COMMON = (
    "argosy.deterministic=false",
    "actor_rollout_ref.actor.use_kl_loss=False",
    "data.max_response_length=32",
    # Rollouts are the slower side by far, and nothing keeps samples from a server while weights are on their way (the
    # parity check does, so that it needn't wait): some always run when new weights come.
    "argosy.rollout.slot_count=2",
    "argosy.parity.enabled=false",
    "trainer.val_before_train=False",
    "trainer.logger=[file]",
    "argosy.export_hf=false",
    f"trainer.total_training_steps={STEPS}",
)


@pytest.mark.parametrize(("max_staleness", "mode", "placement"), [
    (1, "finish", "inprocess"), (2, "abort", "local"), (2, "keep", "inprocess"),
])  # fmt: skip
def test_it_learns_and_no_sample_is_lost(toy_job: ToyJob, max_staleness: int, mode: str, placement: str) -> None:
    arguments = (
        *COMMON, f"argosy.placement={placement}", f"argosy.max_staleness={max_staleness}",
        f"argosy.weight_sync.while_generating={mode}",
    )  # fmt: skip
    if placement == "local":
        code, out, err = toy_job.run(mode, *arguments)
        assert code == 0, out + err
    else:
        words = toy_job.command(mode, *arguments)
        assert main(words[words.index("train") :]) == 0
    rows = toy_job.metrics(mode)
    scores = [row["critic/score/mean"] for row in rows]
    assert sum(scores[-2:]) > 1.3 * sum(scores[:2])
    assert max(row["staleness/max"] for row in rows) <= max_staleness
    assert rows[-1]["staleness/mean"] > 0
    assert "rollout_corr/rollout_is_mean" in rows[-1], "corrected by default"
    mixed = [row["staleness/mixed_version_fraction"] for row in rows]
    if mode == "finish":
        assert max(mixed) == 0.0
    else:
        assert max(mixed) > 0.0
    if mode == "abort":
        assert rows[-1]["rollout/resumed_samples"] > 0
    samples = [row for step in range(1, STEPS + 1) for row in read_segment(toy_job.folder / mode / "ledger", step)]
    assert Counter(row["state"] for row in samples) == {"trained": 64 * STEPS}
    assert len({row["sample_id"] for row in samples}) == 64 * STEPS
