"""Two engines in one run: the embedded one and vLLM, each in an environment of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from argosy.modeling.tiny import save_tiny_model
from contract.engines.served import ENGINES_PYTHON, missing
from support.toy import ToyJob, make_toy_job

pytestmark = [
    pytest.mark.engine,
    pytest.mark.xdist_group("vllm"),
    pytest.mark.skipif(bool(missing("vllm")), reason=missing("vllm") or "-"),
    pytest.mark.timeout(300),
]


@pytest.fixture
def job(tmp_path: Path) -> ToyJob:
    """The toy, with a model whose heads are large enough for vLLM's attention on CPUs."""
    made = make_toy_job(tmp_path)
    save_tiny_model(made.folder / "model", seed=1, hidden_size=128)
    return made


def test_pools_of_two_engines_train_one_policy(job: ToyJob) -> None:
    pools = f"argosy.pools={{plain: {{threads: 1}}, fast: {{engine: vllm, python: {ENGINES_PYTHON}, threads: 1}}}}"
    code, out, err = job.run(
        "mixed", pools, "argosy.deterministic=false", "actor_rollout_ref.actor.use_kl_loss=False",
        "trainer.val_before_train=False", "trainer.test_freq=-1", "trainer.logger=[file]", "argosy.export_hf=false",
        "argosy.trainer.threads=1", "trainer.total_training_steps=4", timeout_s=280,
    )  # fmt: skip
    assert code == 0, out + err
    rows = job.metrics("mixed")
    assert len(rows) == 4
    for row in rows:
        assert row["rollout/pools/plain/servers"] == row["rollout/pools/fast/servers"] == 1.0
        assert row["rollout/pools/plain/generated_tokens"] + row["rollout/pools/fast/generated_tokens"] > 0
    gaps = [row["parity/log_prob_diff_max"] for row in rows if "parity/log_prob_diff_max" in row]
    assert len(gaps) >= 3
    assert max(gaps) <= 1e-4, "both agree with the trainer"
    assert all(sum(row[f"rollout/pools/{pool}/samples"] for row in rows) > 0 for pool in ("plain", "fast"))
