"""How many ranks the trainer has, and how they hold the model between them."""

from __future__ import annotations

import pytest

from argosy.config import Config, load
from argosy.trainer.backends.fsdp import FsdpBackend
from argosy.trainer.backends.single import SingleProcessBackend
from argosy.trainer.build import critic_options_from, options_from
from unit.config.effects.support import Cores, problems

PLAIN = Config().with_values({"actor_rollout_ref.model.path": "m", "trainer.n_gpus_per_node": 4})


def test_rank_count(job: Config) -> None:
    changed = job.with_values({"trainer.n_gpus_per_node": 2})
    found = [options_from(config) for config in (job, changed)]
    assert [(options.parallel.world_size, options.backend) for options in found] == [(1, "single"), (2, "fsdp")]
    assert found[1].threads >= 1, "ranks share the cores"
    assert critic_options_from(changed).parallel.world_size == 2
    assert "trainer.n_gpus_per_node: got 0" in problems(job.with_values({"trainer.n_gpus_per_node": 0}))


def test_backend(job: Config, cores: Cores) -> None:
    changed = job.with_values({"argosy.trainer.backend": "fsdp"})
    core = cores("trainer", changed)
    try:
        assert isinstance(core._backend, FsdpBackend)
    finally:
        core.close()
    assert isinstance(cores("trainer", job)._backend, SingleProcessBackend)
    alone = changed.with_values({"argosy.trainer.backend": "single", "trainer.n_gpus_per_node": 2})
    assert "one process, with trainer.n_gpus_per_node=2" in problems(alone)


def test_rank_timeout(job: Config) -> None:
    changed = job.with_values({"argosy.trainer.rank_timeout_s": 7.0})
    assert [options_from(config).rank_timeout_s for config in (job, changed)] == [600.0, 7.0]


@pytest.mark.parametrize("key", [f"actor_rollout_ref.actor.{k}" for k in ("strategy", "fsdp_config.strategy")])
def test_strategy(key: str) -> None:
    """FSDP by both of its names; what isn't there is refused."""
    assert key in ("actor_rollout_ref.actor.strategy", "actor_rollout_ref.actor.fsdp_config.strategy")
    base = ["actor_rollout_ref.model.path=m"]
    assert load([*base, f"{key}=fsdp2"]).actor_rollout_ref.actor.strategy == "fsdp2"
    assert "strategy=torchtitan is a backend that is not there" in problems(load([*base, f"{key}=torchtitan"]))


def test_megatron() -> None:
    """By verl's names; a critic beside it is FSDP2's; what it lacks is refused."""
    strategy = "actor_rollout_ref.actor.strategy"
    chosen = PLAIN.with_values({strategy: "megatron"})
    assert [options_from(config).backend for config in (PLAIN, chosen)] == ["fsdp", "megatron"]
    assert critic_options_from(chosen).backend == "fsdp"
    size = "actor_rollout_ref.actor.megatron.tensor_model_parallel_size"
    loaded = load(["actor_rollout_ref.model.path=m", f"{strategy}=megatron", f"{size}=2", "trainer.n_gpus_per_node=4"])
    assert options_from(loaded).parallel.tensor_parallel == 2
    half = chosen.with_values({"actor_rollout_ref.actor.fsdp_config.dtype": "bfloat16"})
    assert "dtype: got bfloat16 with the megatron backend, which has only float32" in problems(half)


def test_shard_size() -> None:
    changed = PLAIN.with_values({"actor_rollout_ref.actor.fsdp_config.fsdp_size": 2})
    assert [options_from(config).fsdp.shard_size for config in (PLAIN, changed)] == [-1, 2]
    odd = PLAIN.with_values({"actor_rollout_ref.actor.fsdp_config.fsdp_size": 3})
    assert "fsdp_size: got 3, wants -1 or a size that divides trainer.n_gpus_per_node=4" in problems(odd)


def test_shard_size_of_the_critic() -> None:
    changed = PLAIN.with_values({"critic.fsdp_config.fsdp_size": 2})
    assert [critic_options_from(config).fsdp.shard_size for config in (PLAIN, changed)] == [-1, 2]


def test_reshard_and_prefetch(job: Config, cores: Cores) -> None:
    """What FSDP is told of each layer."""
    section = "actor_rollout_ref.actor.fsdp_config"
    changed = {
        "actor_rollout_ref.actor.fsdp_config.reshard_after_forward": False,
        "actor_rollout_ref.actor.fsdp_config.forward_prefetch": True,
    }
    assert all(key.startswith(section) for key in changed)
    found = []
    for values in ({}, changed):
        core = cores("trainer", job.with_values({"argosy.trainer.backend": "fsdp", **values}))
        state = next(core._backend._hf_model.model.layers.children())._get_fsdp_state()
        found.append((state._fsdp_param_group._reshard_after_forward, len(state._states_to_forward_prefetch)))
        core.close()
    assert found == [(True, 0), (False, 1)]


def test_reshard_of_the_critic() -> None:
    changed = PLAIN.with_values({"critic.fsdp_config.reshard_after_forward": False})
    assert [critic_options_from(config).fsdp.reshard_after_forward for config in (PLAIN, changed)] == [True, False]


def test_prefetch_of_the_critic() -> None:
    changed = PLAIN.with_values({"critic.fsdp_config.forward_prefetch": True})
    assert [critic_options_from(config).fsdp.forward_prefetch for config in (PLAIN, changed)] == [False, True]
