"""vLLM for real: the engine by itself, and GRPO through `argosy train` with the rollout in vLLM's own environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from argosy.modeling.tiny import save_tiny_model
from contract.engines.served import ENGINES_PYTHON, missing
from support.toy import ToyJob, make_toy_job

pytestmark = [
    pytest.mark.engine,
    pytest.mark.xdist_group("vllm"),
    pytest.mark.skipif(bool(missing("vllm")), reason=missing("vllm") or "-"),
]

HERE = Path(__file__).parent
PROGRAMS = HERE / "vllm_programs"
SMOLLM2 = HERE.parents[1] / "models/smollm2-135m-instruct"
VLLM = (
    "actor_rollout_ref.rollout.name=vllm", f"argosy.services.rollout.python={ENGINES_PYTHON}",
    "argosy.deterministic=false", "actor_rollout_ref.actor.use_kl_loss=False", "trainer.val_before_train=False",
    "trainer.test_freq=-1", "trainer.logger=[file]", "argosy.export_hf=false", "argosy.trainer.threads=1",
    "argosy.rollout.threads=1", "argosy.rollout.slot_count=64", "trainer.save_freq=-1",
)  # fmt: skip
PARITY = 1e-4
"""Largest accepted difference between log-probs of engine and trainer in fp32."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> ToyJob:
    """The toy, with a model whose heads are large enough for vLLM's attention on CPUs."""
    made = make_toy_job(tmp_path_factory.mktemp("vllm"))
    save_tiny_model(made.folder / "model", seed=1, hidden_size=128)
    return made


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", ["inside.py", "lora.py", "sharded.py"])
def test_the_engine_by_itself(program: str) -> None:
    done = subprocess.run(
        [str(ENGINES_PYTHON), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(PROGRAMS / program)],
        capture_output=True, text=True, timeout=280, cwd=HERE.parents[1],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def check_run(job: ToyJob, run: str, steps: int) -> None:
    """Every step was trained on, on policy, and on log-probs that the trainer agrees with."""
    rows = job.metrics(run)
    assert [row["step"] for row in rows] == list(range(1, steps + 1))
    assert all(row["training/rollout_probs_diff_max"] <= PARITY for row in rows)
    assert all(row["parity/log_prob_diff_max"] <= PARITY for row in rows[1:])


@pytest.mark.timeout(240)
def test_grpo_of_the_tiny_model_learns_through_vllm(job: ToyJob) -> None:
    code, out, err = job.run("vllm", *VLLM, "trainer.total_training_steps=6", timeout_s=230)
    assert code == 0, out + err
    check_run(job, "vllm", 6)
    rewards = [row["critic/rewards/mean"] for row in job.metrics("vllm")]
    assert rewards[-1] > rewards[0] + 0.1


@pytest.mark.timeout(240)
@pytest.mark.parametrize("beside", [False, True])
def test_an_adapter_alone_reaches_vllm(job: ToyJob, beside: bool) -> None:
    """It is merged into the modules that it has, or stays beside them; parity says that the others stayed."""
    run = f"lora-{beside}"
    code, out, err = job.run(
        run, *VLLM, "trainer.total_training_steps=3", "actor_rollout_ref.model.lora_rank=4",
        "actor_rollout_ref.model.lora_alpha=32", "actor_rollout_ref.model.target_modules=[q_proj,down_proj]",
        "argosy.weight_sync.adapter_only=on",
        f"actor_rollout_ref.rollout.engine_kwargs.vllm.enable_lora={beside}", timeout_s=230,
    )  # fmt: skip
    assert code == 0, out + err
    check_run(job, run, 3)


@pytest.mark.timeout(300)
@pytest.mark.skipif(not SMOLLM2.is_dir(), reason="needs SmolLM2: make models/smollm2-135m-instruct/config.json")
def test_smollm2_trains_a_few_steps_through_vllm(job: ToyJob) -> None:
    code, out, err = job.run(
        "smollm2", *VLLM, "trainer.total_training_steps=2", f"actor_rollout_ref.model.path={SMOLLM2}",
        "data.train_batch_size=4", "actor_rollout_ref.rollout.n=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.actor.optim.lr=1e-5", timeout_s=290,
    )  # fmt: skip
    assert code == 0, out + err
    check_run(job, "smollm2", 2)


def test_without_vllm_the_run_says_where_to_get_it(job: ToyJob) -> None:
    python = f"argosy.services.rollout.python={sys.executable}"
    code, out, err = job.run("nowhere", *VLLM, python, "trainer.total_training_steps=1", timeout_s=60)
    assert code == 2
    assert "doesn't have the package vllm" in out + err
    assert "make install-engines" in out + err
