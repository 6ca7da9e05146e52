"""GRPO through `argosy train` with the rollout in SGLang's own environment: launcher, weights and parity for real."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from contract.engines.served import ENGINES_PYTHON, missing
from support.toy import ToyJob, make_toy_job

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(bool(missing("sglang")), reason=missing("sglang") or "-"),
]

SGLANG = (
    "actor_rollout_ref.rollout.name=sglang", f"argosy.services.rollout.python={ENGINES_PYTHON}",
    "argosy.deterministic=false", "actor_rollout_ref.actor.use_kl_loss=False", "trainer.val_before_train=False",
    "trainer.test_freq=-1", "trainer.logger=[file]", "argosy.export_hf=false", "argosy.trainer.threads=1",
    "argosy.rollout.threads=1", "trainer.save_freq=-1",
)  # fmt: skip
PARITY = 1e-4
"""Largest accepted difference between log-probs of engine and trainer in fp32."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> ToyJob:
    return make_toy_job(tmp_path_factory.mktemp("sglang"))


@pytest.mark.timeout(300)
def test_grpo_of_the_tiny_model_learns_through_sglang(job: ToyJob) -> None:
    code, out, err = job.run("sglang", *SGLANG, "trainer.total_training_steps=5", timeout_s=290)
    assert code == 0, out + err
    rows = job.metrics("sglang")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert all(row["training/rollout_probs_diff_max"] <= PARITY for row in rows)
    assert all(row["parity/log_prob_diff_max"] <= PARITY for row in rows[1:])
    assert rows[-1]["critic/rewards/mean"] > rows[0]["critic/rewards/mean"] + 0.05
    assert not [one for one in psutil.process_iter(["cmdline"]) if "sglang.launch_server" in (one.info["cmdline"] or [])
                and str(job.folder) in " ".join(one.info["cmdline"])]  # fmt: skip


def test_without_sglang_the_run_says_where_to_get_it(job: ToyJob) -> None:
    python = f"argosy.services.rollout.python={sys.executable}"
    code, out, err = job.run("nowhere", *SGLANG, python, "trainer.total_training_steps=1", timeout_s=60)
    assert code == 2
    assert "sglang" in out + err
    assert "make install-engines" in out + err


def test_what_sglang_lacks_is_refused_before_anything_starts(job: ToyJob) -> None:
    code, out, err = job.run("refused", *SGLANG, "actor_rollout_ref.rollout.repetition_penalty=1.1", timeout_s=60)
    assert code == 2
    assert "actor_rollout_ref.rollout.repetition_penalty: got 1.1" in out + err
    assert not list(Path(job.folder, "refused").glob("logs/*"))
