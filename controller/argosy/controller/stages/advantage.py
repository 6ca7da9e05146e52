"""From outcomes to advantages, in numpy: the score lands on the last response token, KL may be subtracted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from argosy.algorithms.advantages import AdvantageInputs, AdvantageOptions, estimator
from argosy.algorithms.advantages.inputs import group_numbers
from argosy.algorithms.kl_reward import KLController, kl_penalty
from argosy.config import Config
from argosy.controller.stages.shaping import reward_parts, token_rewards
from argosy.types.batch import TrajectoryBatch
from argosy.types.ids import SAMPLE_ORDER, GroupId, SampleId
from argosy.types.ragged import Ragged
from argosy.types.records import Completion, Outcome, Prompt, Scored

PART = "reward_part/"
"""Prefix of the batch's columns with named numbers of the scorer."""


def build_batch(
    prompts: Sequence[Prompt], completions: Mapping[SampleId, Completion], outcomes: Mapping[SampleId, Outcome]
) -> TrajectoryBatch:
    """One row per sample in id order, with rollout_log_probs, score and token_rewards.

    A sample without a score is masked out: it is in the batch, but no token of it is trained (case G1). Of a sample
    with several turns only what the policy sampled is trained.
    """
    by_group = {prompt.group: prompt for prompt in prompts}
    order = sorted(completions, key=SAMPLE_ORDER)
    rows = [completions[sample] for sample in order]
    verdicts = [outcomes[sample] for sample in order]
    scores = np.array([_score(verdict) for verdict in verdicts], np.float64)
    batch = TrajectoryBatch.build(
        order,
        [by_group[sample.group].token_ids for sample in order],
        [row.token_ids for row in rows],
        _mask(rows, ~np.isnan(scores)),
        rollout_log_probs=Ragged.from_rows([row.log_probs for row in rows], np.float32),
    )
    return batch.with_scalars("score", scores).with_column("token_rewards", _rewards(rows, verdicts, scores))


def _mask(rows: Sequence[Completion], judged: npt.NDArray[np.bool_]) -> Ragged:
    """1 where the policy sampled a token of a judged row."""
    mask = _column(rows, np.int8)
    mask.values[:] = mask.spread(judged)
    for place, row in enumerate(rows):
        if row.response_mask and judged[place]:
            mask[place][:] = row.response_mask
    return mask


def _rewards(rows: Sequence[Completion], verdicts: Sequence[Outcome], scores: npt.NDArray[np.float64]) -> Ragged:
    """`token_rewards` of each row; of the many that just have a score, at once."""
    rewards = _column(rows, np.float32)
    plain = np.array([_has_score_only(row, verdict) for row, verdict in zip(rows, verdicts, strict=True)], np.bool_)
    plain &= rewards.lengths > 0
    rewards.values[rewards.offsets[1:][plain] - 1] = scores[plain]
    for place in np.flatnonzero(~plain):
        row = rows[place]
        rewards[int(place)][:] = token_rewards(verdicts[place], len(row.token_ids), row.response_mask, row.turn_rewards)
    return rewards


def _column(rows: Sequence[Completion], dtype: npt.DTypeLike) -> Ragged:
    """Zeros for each token of some answers."""
    lengths = [len(row.token_ids) for row in rows]
    return Ragged.from_lengths(np.zeros(sum(lengths), dtype), lengths)


def _has_score_only(row: Completion, verdict: Outcome) -> bool:
    return isinstance(verdict, Scored) and not (verdict.token_scores or row.response_mask or row.turn_rewards)


def _score(outcome: Outcome) -> float:
    return outcome.score if isinstance(outcome, Scored) else float("nan")


def add_baselines(batch: TrajectoryBatch, baselines: Mapping[GroupId, float]) -> TrajectoryBatch:
    """The batch with "baseline": the reward of the greedy answer to each sample's prompt (ReMax)."""
    return batch.with_scalars("baseline", [baselines[sample.group] for sample in batch.sample_ids])


def add_reward_parts(config: Config, batch: TrajectoryBatch, outcomes: Mapping[SampleId, Outcome]) -> TrajectoryBatch:
    """The batch with one column for each of `algorithm.gdpo_reward_keys`."""
    parts = reward_parts(config.algorithm.gdpo_reward_keys, [outcomes[sample] for sample in batch.sample_ids])
    for name, values in parts.items():
        batch = batch.with_scalars(PART + name, values)
    return batch


def subtract_kl(
    config: Config, batch: TrajectoryBatch, controller: KLController
) -> tuple[TrajectoryBatch, dict[str, float]]:
    """r_t -= β · KL_t(old, reference) over trained tokens, and β's next value (`algorithm.use_kl_in_reward`).

    The KL that is shown and controlled is the mean over sequences of their means, as in verl; a sequence without a
    trained token has none, and doesn't count as 0.
    """
    mask = batch.ragged("response_mask")
    penalty = kl_penalty(
        batch.ragged("old_log_probs").values, batch.ragged("ref_log_probs").values, config.algorithm.kl_penalty
    )
    masked = np.where(mask.values != 0, penalty, 0.0)  # a NaN at a token that isn't trained must not spread: NaN · 0
    rewards = batch.ragged("token_rewards")
    changed = Ragged((rewards.values - controller.coef * masked).astype(np.float32), rewards.offsets)
    lengths = mask.segment_sum()
    live = lengths > 0
    metrics = {"actor/reward_kl_penalty_coeff": controller.coef}
    if live.any():
        current = float((Ragged(masked, mask.offsets).segment_sum()[live] / lengths[live]).mean())
        metrics["actor/reward_kl_penalty"] = current
        controller.update(current, int(live.sum()))
    return batch.with_column("token_rewards", changed), metrics


def add_advantages(config: Config, batch: TrajectoryBatch) -> tuple[TrajectoryBatch, dict[str, float]]:
    """The batch with `advantages`, by the configured estimator; with `returns` where it makes them for a critic."""
    result = estimator(config.algorithm.adv_estimator)(advantage_inputs(batch), advantage_options(config))
    batch = batch.with_column("advantages", result.advantages)
    if result.returns is not None:
        batch = batch.with_column("returns", result.returns)
    return batch, dict(result.metrics)


def advantage_inputs(batch: TrajectoryBatch) -> AdvantageInputs:
    """What the batch has of what estimators may need."""

    def column(name: str) -> Ragged | None:
        return batch.ragged(name) if batch.has(name) else None

    parts = {name.removeprefix(PART): batch.scalars(name) for name in batch.columns if name.startswith(PART)}
    return AdvantageInputs(
        token_rewards=batch.ragged("token_rewards"),
        response_mask=batch.ragged("response_mask"),
        group_index=group_numbers([sample.group for sample in batch.sample_ids]),
        judged=~np.isnan(batch.scalars("score")),
        values=column("values"),
        old_log_probs=column("old_log_probs"),
        sum_pi_squared=column("sum_pi_squared"),
        rollout_is_weights=column("rollout_is_weights"),
        baseline=batch.scalars("baseline") if batch.has("baseline") else None,
        reward_parts=parts or None,
    )


def advantage_options(config: Config) -> AdvantageOptions:
    """`algorithm.*`, as far as estimators read it."""
    algorithm = config.algorithm
    keys = algorithm.gdpo_reward_keys
    weights = algorithm.gdpo_reward_weights or (1.0,) * len(keys)
    return AdvantageOptions(
        norm_adv_by_std_in_grpo=algorithm.norm_adv_by_std_in_grpo,
        gamma=algorithm.gamma,
        lam=algorithm.lam,
        gdpo_weights=dict(zip(keys, weights, strict=True)) if keys else None,
    )
