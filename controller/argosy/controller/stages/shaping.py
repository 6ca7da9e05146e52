"""What is made of outcomes before anything is compared: rewards with the overlong penalty, and named numbers.

The reward manager `dapo` adds the soft overlong penalty of arXiv:2503.14476, eq. 13, to the last token's reward. The
raw score stays in the batch ("score"); the shaped one ("shaped_score") is what verl calls critic/score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from argosy.algorithms.overlong import overlong_penalty
from argosy.config import Config
from argosy.controller.metrics import spread
from argosy.types.batch import TrajectoryBatch
from argosy.types.ragged import Ragged
from argosy.types.records import Outcome, Scored

Floats = npt.NDArray[np.float64]


def token_rewards(
    outcome: Outcome, length: int, mask: Sequence[int] = (), turn_rewards: Sequence[tuple[int, float]] = ()
) -> npt.NDArray[np.float32]:
    """Of a response of `length` tokens: dense scores where the scorer gave them, else the score on the last token that
    the policy sampled (by `mask`; empty: the last one); and what was given on the way, each on its token."""
    rewards = np.zeros(length, np.float32)
    if isinstance(outcome, Scored) and length:
        if len(outcome.token_scores) == length:
            rewards[:] = outcome.token_scores
        else:
            rewards[_last_sampled(mask, length)] = outcome.score
        for index, reward in turn_rewards:
            rewards[index] += reward
    return rewards


def _last_sampled(mask: Sequence[int], length: int) -> int:
    sampled = np.flatnonzero(np.asarray(mask))
    return int(sampled[-1]) if len(sampled) else length - 1


def overlong_penalties(config: Config, lengths: npt.ArrayLike) -> Floats | None:
    """What the reward manager adds for lengths [B], ≤ 0; None where the penalty is off."""
    kwargs = config.reward_model.reward_kwargs
    buffer = kwargs.overlong_buffer_cfg
    if config.reward_model.reward_manager != "dapo" or not buffer.enable or buffer.len is None:
        return None
    longest = kwargs.max_resp_len or config.data.max_response_length
    return overlong_penalty(lengths, longest, buffer.len, buffer.penalty_factor)


def reward_of(config: Config, outcome: Outcome, length: int, turn_rewards: Sequence[tuple[int, float]] = ()) -> float:
    """A response's whole reward, penalty and rewards on the way included; NaN when nobody could judge it."""
    if not isinstance(outcome, Scored):
        return math.nan
    penalty = overlong_penalties(config, [length])
    rewards = token_rewards(outcome, length, (), turn_rewards)
    return float(rewards.sum()) + (0.0 if penalty is None else float(penalty[0]))


def shape_rewards(config: Config, batch: TrajectoryBatch) -> tuple[TrajectoryBatch, dict[str, float]]:
    """The batch with the penalty on each judged response's last token, and shaped_score; nothing where it is off."""
    rewards = batch.ragged("token_rewards")
    penalty = overlong_penalties(config, rewards.lengths)
    if penalty is None:
        return batch, {}
    scores = batch.scalars("score")
    judged = ~np.isnan(scores) & (rewards.lengths > 0)
    values = rewards.values.astype(np.float64)
    values[rewards.offsets[1:][judged] - 1] += penalty[judged]
    batch = batch.with_column("token_rewards", Ragged(values.astype(np.float32), rewards.offsets))
    metrics = spread("critic/raw_score", scores[~np.isnan(scores)])
    if config.reward_model.reward_kwargs.overlong_buffer_cfg.log:
        metrics |= {
            "reward/overlong_reward/mean": float(penalty[judged].mean()) if judged.any() else 0.0,
            "reward/overlong/mean": float((penalty[judged] < 0).mean()) if judged.any() else 0.0,
        }
    return batch.with_scalars("shaped_score", scores + penalty), metrics


def number_of(outcome: Outcome, name: str) -> float:
    """A number that the scorer returned by that name ("score" is its score); NaN if there is none."""
    if not isinstance(outcome, Scored):
        return math.nan
    if name == "score":
        return outcome.score
    value = outcome.parts.get(name)
    return float(value) if isinstance(value, (int, float)) else math.nan


def reward_parts(names: Sequence[str], outcomes: Sequence[Outcome]) -> dict[str, Floats]:
    """Each named number of each sample, [B]; a name that no judged sample has is left out."""
    parts = {name: np.array([number_of(outcome, name) for outcome in outcomes], np.float64) for name in names}
    judged = np.array([isinstance(outcome, Scored) for outcome in outcomes], np.bool_)
    return {name: values for name, values in parts.items() if not judged.any() or not np.isnan(values).all()}
