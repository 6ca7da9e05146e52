"""Do recording, replay and rollouts without a trainer go together with the rest?"""

from __future__ import annotations

from collections.abc import Iterator

from argosy.config.schema import Config


def check_recording(config: Config) -> Iterator[str]:
    """A replay generates nothing, and rollouts alone train nothing."""
    argosy, trainer = config.argosy, config.trainer
    if argosy.replay.path is not None:
        if argosy.rollout_only:
            yield "argosy.rollout_only: got true with argosy.replay.path, which generates nothing: set one of them"
        if argosy.record.enable:
            yield "argosy.record.enable: got true with argosy.replay.path, whose steps are recorded already: set false"
        if trainer.val_only:
            yield "trainer.val_only: got true with argosy.replay.path, which starts no rollout server to validate with"


def unused_in_replay(config: Config) -> Iterator[str]:
    """One line for each key that a replay has no use for, as `load` reports it."""
    if config.argosy.replay.path is None:
        return
    test_freq = config.trainer.test_freq
    if config.data.val_files and test_freq > 0:
        yield (
            f"trainer.test_freq={test_freq} has no effect: argosy.replay.path starts no rollout server to validate "
            "with."
        )
