"""The toy job with a LoRA adapter: it learns, and needs no reference service."""

from __future__ import annotations

import json

import pytest

from argosy.cli.main import main
from argosy.modeling.tiny import save_tiny_model
from support.toy import ToyJob

pytestmark = pytest.mark.xdist_group("lora")

STEPS = 10
LORA = (
    "actor_rollout_ref.model.lora_rank=4",
    "actor_rollout_ref.model.lora_alpha=32",
    "actor_rollout_ref.model.target_modules=all-linear",
    "actor_rollout_ref.actor.optim.lr=1e-2",
)


@pytest.fixture(scope="module")
def lora(toy_job: ToyJob) -> tuple[str, ...]:
    """Overrides. Embeddings are frozen, so the model needs some that tell letters apart."""
    model = save_tiny_model(toy_job.folder / "wide-spread", seed=1, weight_scale=6.0)
    return (*LORA, f"actor_rollout_ref.model.path={model}")


def test_an_adapter_learns_without_a_reference_service(toy_job: ToyJob, lora: tuple[str, ...]) -> None:
    """Through real processes: merged weights reach the engine, and the KL is against the model without the adapter."""
    code, out, err = toy_job.run("lora", *lora, f"trainer.total_training_steps={STEPS}", "trainer.save_freq=5")
    assert code == 0, out + err
    folder = toy_job.folder / "lora"
    members = {path.stem for path in (folder / "logs").glob("*.log")}
    assert members >= {"controller-0", "rollout-0", "reward-0", "trainer-0"}
    assert not [name for name in members if name.startswith("reference")]
    rows = toy_job.metrics("lora")
    rewards = [row["critic/score/mean"] for row in rows]
    assert rewards[0] < 0.15
    assert max(rewards[-3:]) > 3 * rewards[0]
    assert rows[0]["actor/kl_loss"] < 1e-6 < rows[-1]["actor/kl_loss"], "none before the first step, some after"
    assert rows[-1]["training/rollout_probs_diff_max"] < 1e-3, "the engine samples from the merged weights"
    assert (folder / "hf" / "adapter" / "adapter_model.safetensors").is_file()
    assert (folder / "hf" / "model.safetensors").is_file()
    saved = folder / f"global_step_{STEPS}" / "actor" / "model.safetensors"
    assert saved.stat().st_size < (folder / "hf" / "model.safetensors").stat().st_size / 2


def test_e5_a_resumed_adapter_goes_on_bit_for_bit(toy_job: ToyJob, lora: tuple[str, ...]) -> None:
    base = (*lora, "argosy.placement=inprocess", "trainer.save_freq=1", "argosy.export_hf=false")
    for run, totals in (("lora-whole", (2,)), ("lora-parts", (1, 2))):
        for steps in totals:
            words = toy_job.command(run, *base, f"trainer.total_training_steps={steps}")
            assert main(words[words.index("train") :]) == 0
    assert toy_job.trained("lora-parts") == toy_job.trained("lora-whole")
    reports = [json.loads((toy_job.folder / run / "report.json").read_text()) for run in ("lora-parts", "lora-whole")]
    assert reports[0]["version"].split("#")[1] == reports[1]["version"].split("#")[1]
