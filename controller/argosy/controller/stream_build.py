"""Which producer a run has, and which source a stream."""

from __future__ import annotations

from argosy.controller.context import RunContext
from argosy.controller.data.sampler import PromptSampler
from argosy.controller.groups import GroupSource
from argosy.controller.openai.endpoint import session_source
from argosy.controller.producing import Producer, StepProducer, batch_limit, last_data_epoch
from argosy.controller.stages.generation import OnStage
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.stream import GroupStream
from argosy.controller.stream_source import PromptGroups


def build_producer(
    ctx: RunContext, sampler: PromptSampler, rollout: RolloutStage, on_stage: OnStage, total_steps: int
) -> StepProducer:
    """Whole batches where nothing may be stale and nothing is over-sampled, else the stream."""
    if not ctx.config.argosy.streams:
        return Producer(ctx, sampler, rollout, on_stage)
    limit = batch_limit(
        ctx.config.algorithm.filter_groups.max_num_gen_batches, sampler, ctx.config.data.train_batch_size
    )
    source = build_source(ctx, sampler, rollout)
    return GroupStream(ctx, source, rollout, on_stage, total_steps, limit * sampler.batch_size)


def build_source(ctx: RunContext, sampler: PromptSampler, rollout: RolloutStage) -> GroupSource:
    """Who begins groups."""
    if ctx.config.argosy.openai.source == "sessions":
        return session_source(ctx, sampler)
    # The turns of an agent can't be told from tokens: after a restart its unfinished samples begin anew.
    so_far = rollout.singles.so_far if rollout.answerer is rollout else None
    return PromptGroups(ctx, sampler, rollout.answerer, so_far, last_data_epoch(ctx.config))
