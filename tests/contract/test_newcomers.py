"""Case E11: a newcomer never becomes the source of weights, and who was replaced is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from argosy.trainer.backends import make_backend
from argosy.trainer.core import Trainer
from argosy.types.errors import FencedError, NotFoundError, StateError, StepMismatchError, WeightsRefusedError
from argosy.types.records import LossConfig, UpdateConfig
from contract.forms import Form, MakeRollout, mutation
from support.training import grouped_batch, options_for
from support.training import mutation as of_step

UPDATE = UpdateConfig(LossConfig(), mini_batch_size=12)


async def trained(trainer: Trainer, steps: int) -> Trainer:
    for step in range(steps):
        await trainer.update(grouped_batch(seed=step), UPDATE, of_step(step))
    return trainer


async def test_e11_an_untrained_trainer_that_joins_cannot_publish_the_trained_step(form: Form, tiny: Path) -> None:
    """`m9` has trained three steps; `m1`, which sorts first, joins with the start weights."""
    source = await trained(Trainer(options_for(tiny), make_backend), 3)
    newcomer = Trainer(options_for(tiny), make_backend)
    members = {"m1": await form.policy(newcomer), "m9": await form.policy(source)}
    with pytest.raises(StepMismatchError, match="at step 0"):
        await members["m1"].publish_weights("l0", 3, mutation(expected_step=3))
    manifest = await members["m9"].publish_weights("l0", 3, mutation(expected_step=3))
    assert (await members["m9"].weight_source().get_manifest()).version == manifest.version
    with pytest.raises(NotFoundError):
        await members["m1"].weight_source().get_manifest()
    for trainer in (source, newcomer):
        trainer.close()


async def test_e11_a_newcomer_without_the_version_is_refused_as_a_source(
    form: Form, make_rollout: MakeRollout, tiny: Path
) -> None:
    """A rollout server that is told to take version 3 from a member that doesn't hold it keeps what it has."""
    source = await trained(Trainer(options_for(tiny), make_backend), 3)
    manifest = await source.publish_weights("l0", 3, mutation(expected_step=3))
    receiver, newcomer = await form.rollout(make_rollout()), make_rollout()
    before = (await receiver.status()).version
    await receiver.init_weight_transfer("stream", mutation())
    await receiver.start_weight_update("sync-3", manifest, mutation())
    with pytest.raises((NotFoundError, WeightsRefusedError, StateError)):
        await receiver.update_weights("sync-3", await form.source(newcomer.weight_source()), mutation())
    status = await receiver.status()
    assert (status.version, status.state) == (before, "ready")
    source.close()


async def test_e11_a_leader_that_was_replaced_is_refused_everywhere(
    grpc_form: Form, make_rollout: MakeRollout, tiny: Path
) -> None:
    """It wakes up with its old term and still believes that it leads."""
    trainer = Trainer(options_for(tiny), make_backend)
    policy, rollout = await grpc_form.policy(trainer), await grpc_form.rollout(make_rollout())
    await policy.publish_weights("l0", 0, mutation(term=2, expected_step=0))
    await rollout.init_weight_transfer("stream", mutation(term=2))
    with pytest.raises(FencedError):
        await policy.publish_weights("l0", 0, mutation(term=1, expected_step=0))
    with pytest.raises(FencedError):
        await rollout.init_weight_transfer("stream", mutation(term=1))
    trainer.close()
