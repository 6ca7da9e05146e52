"""From outcomes to advantages, in numpy: the score lands on the last response token, KL may be subtracted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from argosy.algorithms.advantages import AdvantageInputs, AdvantageOptions, estimator
from argosy.algorithms.advantages.inputs import group_numbers
from argosy.algorithms.kl_reward import KLController, kl_penalty
from argosy.config import Config
from argosy.types.batch import TrajectoryBatch
from argosy.types.ids import SampleId
from argosy.types.ragged import Ragged
from argosy.types.records import Completion, Outcome, Prompt, Scored


def build_batch(
    prompts: Sequence[Prompt], completions: Mapping[SampleId, Completion], outcomes: Mapping[SampleId, Outcome]
) -> TrajectoryBatch:
    """One row per sample in id order, with rollout_log_probs, score and token_rewards.

    A sample without a score is masked out: it is in the batch, but no token of it is trained (case G1).
    """
    by_group = {prompt.group: prompt for prompt in prompts}
    order = sorted(completions)
    rows = [completions[sample] for sample in order]
    scores = np.array([_score(outcomes[sample]) for sample in order], np.float64)
    mask = [np.full(len(row.token_ids), 0 if np.isnan(score) else 1) for row, score in zip(rows, scores, strict=True)]
    batch = TrajectoryBatch.build(
        order,
        [by_group[sample.group].token_ids for sample in order],
        [row.token_ids for row in rows],
        [list(row) for row in mask],
        rollout_log_probs=Ragged.from_rows([row.log_probs for row in rows], np.float32),
    )
    rewards = [_token_rewards(outcomes[sample], len(row.token_ids)) for sample, row in zip(order, rows, strict=True)]
    return batch.with_scalars("score", scores).with_column("token_rewards", Ragged.from_rows(rewards, np.float32))


def _score(outcome: Outcome) -> float:
    return outcome.score if isinstance(outcome, Scored) else float("nan")


def _token_rewards(outcome: Outcome, length: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    rewards = np.zeros(length, np.float32)
    if isinstance(outcome, Scored) and length:
        if len(outcome.token_scores) == length:
            rewards[:] = outcome.token_scores
        else:
            rewards[-1] = outcome.score
    return rewards


def subtract_kl(
    config: Config, batch: TrajectoryBatch, controller: KLController
) -> tuple[TrajectoryBatch, dict[str, float]]:
    """r_t -= β · KL_t(old, reference) over trained tokens, and β's next value (`algorithm.use_kl_in_reward`)."""
    mask = batch.ragged("response_mask")
    penalty = kl_penalty(
        batch.ragged("old_log_probs").values, batch.ragged("ref_log_probs").values, config.algorithm.kl_penalty
    )
    masked = penalty * mask.values
    rewards = batch.ragged("token_rewards")
    changed = Ragged((rewards.values - controller.coef * masked).astype(np.float32), rewards.offsets)
    lengths = np.maximum(mask.segment_sum(), 1)
    current = float((Ragged(masked, mask.offsets).segment_sum() / lengths).mean())  # mean over sequences, as verl
    metrics = {"actor/reward_kl_penalty": current, "actor/reward_kl_penalty_coeff": controller.coef}
    controller.update(current, len(batch))
    return batch.with_column("token_rewards", changed), metrics


def add_advantages(config: Config, batch: TrajectoryBatch) -> tuple[TrajectoryBatch, dict[str, float]]:
    """The batch with `advantages`, by the configured estimator."""
    inputs = AdvantageInputs(
        token_rewards=batch.ragged("token_rewards"),
        response_mask=batch.ragged("response_mask"),
        group_index=group_numbers([sample.group for sample in batch.sample_ids]),
        judged=~np.isnan(batch.scalars("score")),
    )
    options = AdvantageOptions(norm_adv_by_std_in_grpo=config.algorithm.norm_adv_by_std_in_grpo)
    result = estimator(config.algorithm.adv_estimator)(inputs, options)
    return batch.with_column("advantages", result.advantages), dict(result.metrics)
