"""How policy and critic are divided over ranks, what of them waits in main memory, and whether layers are compiled."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import CPUOffloadPolicy

from argosy.config import Config, load
from argosy.trainer.build import critic_options_from, options_from
from argosy.trainer.options import TrainerOptions
from argosy.trainer.parallel.mesh import ParallelOptions
from argosy.trainer.parallel.offload import parameter_policy
from unit.config.effects.support import Cores, model_of, problems

PLAIN = Config().with_values({"actor_rollout_ref.model.path": "m", "trainer.n_gpus_per_node": 4})
GPU = torch.device("cuda")


def is_away(options: TrainerOptions) -> bool:
    return isinstance(parameter_policy(options.offload.parameters, GPU), CPUOffloadPolicy)


@pytest.mark.parametrize(
    "key", ["actor_rollout_ref.actor.fsdp_config.param_offload", "actor_rollout_ref.actor.fsdp_config.offload_policy"]
)
def test_param_offload(key: str) -> None:
    changed = load(["actor_rollout_ref.model.path=m", f"{key}=true"])
    assert [is_away(options_from(config)) for config in (PLAIN, changed)] == [False, True]


@pytest.mark.parametrize("key", ["critic.fsdp_config.param_offload", "critic.fsdp_config.offload_policy"])
def test_param_offload_of_the_critic(key: str) -> None:
    changed = load(["actor_rollout_ref.model.path=m", f"{key}=true"])
    assert [is_away(critic_options_from(config)) for config in (PLAIN, changed)] == [False, True]
    assert not is_away(options_from(changed))


def test_optimizer_offload(job: Config, cores: Cores, caplog: pytest.LogCaptureFixture) -> None:
    """On a CPU there is nothing to do, and the log says so."""
    caplog.set_level(logging.INFO)
    for value in (False, True):
        cores("trainer", job.with_values({"actor_rollout_ref.actor.fsdp_config.optimizer_offload": value}))
        assert ("optimizer_offload has nothing to do" in caplog.text) is value


def test_optimizer_offload_of_the_critic() -> None:
    changed = PLAIN.with_values({"critic.fsdp_config.optimizer_offload": True})
    assert [critic_options_from(config).offload.optimizer for config in (PLAIN, changed)] == [False, True]


def test_activation_offload(job: Config, cores: Cores, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for value in (False, True):
        cores("trainer", job.with_values({"actor_rollout_ref.model.enable_activation_offload": value}))
        assert ("enable_activation_offload has nothing to do" in caplog.text) is value


def test_activation_offload_of_the_critic() -> None:
    changed = PLAIN.with_values({"critic.model.enable_activation_offload": True})
    assert [critic_options_from(config).offload.activations for config in (PLAIN, changed)] == [False, True]


@pytest.mark.parametrize(
    "key", ["actor_rollout_ref.actor.use_torch_compile", "actor_rollout_ref.actor.fsdp_config.use_torch_compile"]
)
def test_torch_compile(key: str, job: Config, cores: Cores) -> None:
    """Compiling itself waits for the first forward. The keys are verl's two names of one thing."""
    chosen = load([f"{key}=true"]).actor_rollout_ref.actor.use_torch_compile
    assert chosen
    for value in (False, chosen):
        actor = dataclasses.replace(job.actor_rollout_ref.actor, use_torch_compile=value)
        config = dataclasses.replace(job, actor_rollout_ref=dataclasses.replace(job.actor_rollout_ref, actor=actor))
        layers = model_of("trainer", cores("trainer", config)).model.layers
        assert [layer._compiled_call_impl is not None for layer in layers] == [value] * 2


def parallel(config: Config) -> ParallelOptions:
    return options_from(config).parallel


def test_tensor_parallel() -> None:
    changed = PLAIN.with_values({"argosy.trainer.tensor_parallel_size": 2})
    assert [parallel(config) for config in (PLAIN, changed)] == [
        ParallelOptions(4),
        ParallelOptions(4, tensor_parallel=2),
    ]
    assert critic_options_from(changed).parallel.tensor_parallel == 2
    refused = problems(PLAIN.with_values({"argosy.trainer.tensor_parallel_size": 3}))
    assert "argosy.trainer.tensor_parallel_size=3" in refused
    assert "= 3 doesn't divide trainer.n_gpus_per_node=4" in refused


@pytest.mark.parametrize(
    "key",
    [
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size",
        "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size",
    ],
)
def test_sequence_parallel(key: str) -> None:
    changed = load(["actor_rollout_ref.model.path=m", "trainer.n_gpus_per_node=4", f"{key}=2"])
    assert [parallel(config).sequence_parallel for config in (PLAIN, changed)] == [1, 2]
    assert critic_options_from(changed).parallel.sequence_parallel == 2


@pytest.mark.parametrize(
    "key", ["critic.ulysses_sequence_parallel_size", "critic.fsdp_config.ulysses_sequence_parallel_size"]
)
def test_sequence_parallel_of_the_critic(key: str) -> None:
    changed: Any = load(["actor_rollout_ref.model.path=m", "trainer.n_gpus_per_node=4", f"{key}=2"])
    assert parallel(changed).sequence_parallel == 1
    assert critic_options_from(changed).parallel.sequence_parallel == 2
