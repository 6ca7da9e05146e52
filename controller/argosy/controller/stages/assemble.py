"""A scored step becomes what the models are asked about, and then what they learn from.

With many samples both take seconds, in which the event loop has better things to do (answers that come in, heartbeats,
the next groups): they are made to run in a thread, and touch nothing but what they are given.
"""

from __future__ import annotations

from dataclasses import dataclass

from argosy.algorithms.kl_reward import KLController
from argosy.config import Config
from argosy.controller.canary import agreement_metrics
from argosy.controller.metrics import batch_metrics, outcome_metrics
from argosy.controller.producing import StepRecord
from argosy.controller.stages.advantage import (
    add_advantages,
    add_baselines,
    add_reward_parts,
    build_batch,
    subtract_kl,
)
from argosy.controller.stages.correction import correct_rollout, take_rollout_log_probs
from argosy.controller.stages.shaping import shape_rewards
from argosy.controller.timing import timed
from argosy.telemetry.traces import span
from argosy.types.batch import TrajectoryBatch
from argosy.types.ids import SampleId
from argosy.types.records import Scored


@dataclass(frozen=True, slots=True)
class Fates:
    """What becomes of each sample of a step once it is trained, in the order of the ids."""

    trained: list[SampleId]
    empty: list[SampleId]
    """Judged, but no token is trained."""
    unjudged: list[SampleId]


def build(config: Config, record: StepRecord) -> tuple[TrajectoryBatch, dict[str, float]]:
    """Tokens and rewards of a scored step."""
    batch, metrics = shape_rewards(config, build_batch(record.prompts, record.completions, record.outcomes))
    batch = add_reward_parts(config, batch, record.outcomes)
    if record.baselines:
        batch = add_baselines(batch, record.baselines)
    return batch, metrics


def finish(
    config: Config, record: StepRecord, batch: TrajectoryBatch, kl: KLController, timing: dict[str, float]
) -> tuple[TrajectoryBatch, dict[str, float], Fates]:
    """The batch with advantages, once it has the models' log-probs. `kl` moves on; `timing` gets "adv"."""
    metrics = outcome_metrics(record.outcomes[sample] for sample in batch.sample_ids)
    metrics |= agreement_metrics(batch)
    batch = take_rollout_log_probs(config, batch)
    with timed(timing, "adv"), span("stage.advantage", step=record.step):
        if config.algorithm.use_kl_in_reward:
            batch, more = subtract_kl(config, batch, kl)
            metrics |= more
        batch, more = correct_rollout(config, batch)
        metrics |= more
        batch, more = add_advantages(config, batch)
    data = config.data
    metrics |= more
    metrics |= batch_metrics(batch, record.completions, data.max_response_length, data.max_prompt_length)
    return batch, metrics, fates_of(record, batch)


def fates_of(record: StepRecord, batch: TrajectoryBatch) -> Fates:
    """What is trained of a finished batch."""
    kept = batch.ragged("response_mask").segment_sum() > 0
    fates = Fates([], [], [])
    for sample, live in zip(batch.sample_ids, kept, strict=True):
        judged = isinstance(record.outcomes[sample], Scored)
        (fates.unjudged if not judged else fates.trained if live else fates.empty).append(sample)
    return fates
