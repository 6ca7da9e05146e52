"""Two ranks that divide matrices or sequences, in a whole run: the first step is one process's, and it learns."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.numpy import load_file

from support.toy import ToyJob

pytestmark = pytest.mark.xdist_group("ranks")

SHORT = (
    "trainer.total_training_steps=2",
    "trainer.val_before_train=false",
    "actor_rollout_ref.model.enable_activation_offload=true",
    "actor_rollout_ref.actor.fsdp_config.param_offload=true",
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload=true",
)
"""On a CPU the offloads only say that there is nothing to do."""

FORMS = {
    "tensor": ("trainer.n_gpus_per_node=2", "argosy.trainer.tensor_parallel_size=2"),
    "sequence": ("trainer.n_gpus_per_node=2", "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"),
}


@pytest.fixture(scope="module")
def plain(toy_job: ToyJob) -> ToyJob:
    """The job, after a run in one process."""
    code, out, err = toy_job.run("plain", *SHORT)
    assert code == 0, out + err
    return toy_job


@pytest.mark.parametrize("form", FORMS)
def test_two_ranks_of_a_group_train_as_one_process_does(plain: ToyJob, form: str) -> None:
    code, out, err = plain.run(form, *SHORT, *FORMS[form])
    assert code == 0, out + err
    one, two = plain.trained("plain"), plain.trained(form)
    assert [row["step"] for row in two] == [1, 2]
    for name, value in one[0].items():
        assert two[0][name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    log = (plain.folder / form / "logs" / "trainer-0.log").read_text()
    assert "param_offload has nothing to do" in log
    assert exported(plain.folder / form).keys() == exported(plain.folder / "plain").keys()


def exported(run: Path) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in load_file(run / "hf" / "model.safetensors").items()}


def test_heads_that_two_ranks_do_not_divide_are_refused_before_anything_starts(plain: ToyJob) -> None:
    """The model has 4 attention and 2 key-value heads."""
    code, _, err = plain.run("refused", "trainer.n_gpus_per_node=4", "argosy.trainer.tensor_parallel_size=4")
    assert code == 2
    assert "tensor parallel size 4 doesn't divide the model's 2 key-value heads; sizes that fit: 1, 2" in err
    assert not (plain.folder / "refused" / "logs").exists()
