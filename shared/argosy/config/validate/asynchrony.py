"""Asynchronous training: what it can't be combined with."""

from __future__ import annotations

from collections.abc import Iterator

from argosy.algorithms.catalog import estimator_needs
from argosy.config.schema import Config

_STALENESS, _STREAM = "argosy.max_staleness", "argosy.stream"


def check_asynchrony(config: Config) -> Iterator[str]:
    """Streams need devices and an order of their own; over-sampling needs samples that stand for each other."""
    argosy, stream = config.argosy, config.argosy.stream
    if argosy.streams and argosy.colocated:
        yield (
            f"argosy.colocated: got true with {_cause(config)}: trainer and rollout servers take turns on their "
            f"devices, so nothing is generated beside the trainer; set argosy.colocated=false, or {_STALENESS}=0 and "
            "no over-sampling"
        )
    if argosy.streams and argosy.deterministic:
        yield (
            f"argosy.deterministic: got true with {_cause(config)}: which samples a step gets then depends on how fast "
            f"they are; set argosy.deterministic=false, or {_STALENESS}=0 and no over-sampling"
        )
    if argosy.max_staleness and config.trainer.val_only:
        yield f"{_STALENESS}: got {argosy.max_staleness} with trainer.val_only=true, which trains nothing; wants 0"
    if argosy.validation_overlap and argosy.colocated:
        yield (
            "argosy.validation_overlap: got true with argosy.colocated=true: trainer and rollout servers take turns on "
            "their devices, so nothing is answered beside the trainer; wants false"
        )
    if stream.extra_samples and "baseline" in estimator_needs(config.algorithm.adv_estimator):
        yield (
            f"{_STREAM}.extra_samples: got {stream.extra_samples} with algorithm.adv_estimator="
            f"{config.algorithm.adv_estimator}, whose greedy answer is the sample after the others; wants 0"
        )
    most, batch = stream.max_in_flight_groups, config.data.train_batch_size
    if most and stream.extra_groups and most < batch + stream.extra_groups:
        yield (
            f"{_STREAM}.max_in_flight_groups: got {most}, fewer than data.train_batch_size={batch} and "
            f"{_STREAM}.extra_groups={stream.extra_groups} together: the extra ones would only begin when others are "
            f"done, so that no slow one could be left out; wants 0 (none) or ≥ {batch + stream.extra_groups}"
        )
    if stream.max_in_flight_groups and not argosy.streams:
        yield (
            f"{_STREAM}.max_in_flight_groups: got {stream.max_in_flight_groups} with {_STALENESS}=0, where each step "
            f"is generated at once; wants 0, or {_STALENESS} of at least 1"
        )


def _cause(config: Config) -> str:
    if config.argosy.max_staleness:
        return f"{_STALENESS}={config.argosy.max_staleness}"
    return f"over-sampling ({_STREAM}.extra_groups or extra_samples)"
