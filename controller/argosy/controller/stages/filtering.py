"""Dynamic sampling: groups whose metric is the same for every response are dropped, others are drawn in their place.

Yu et al. 2025, "DAPO", arXiv:2503.14476, §3.2, eq. 11: every group of a batch is to have right and wrong answers, since
a group without spread has no gradient. Rules for what the paper leaves open (case B19):

- A group is kept where its judged responses' metrics differ by more than rounding; unjudged ones don't count.
- Generation batches of data.gen_batch_size prompts are drawn until data.train_batch_size groups are kept. The first
  ones in the order of the draw are trained; surplus groups are dropped, as in verl: later they would be stale.
- After max_num_gen_batches of them a step that isn't full ends the run, with counts. 0 stands for a data epoch's worth
  beyond what a batch takes: endless sampling is no option.
- Data that runs out in the middle of a step ends the run cleanly before that step, as a data epoch's remainder does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from argosy.algorithms.advantages.groups import SPREAD_RESOLUTION
from argosy.config import Config
from argosy.controller.stages.shaping import number_of, reward_of
from argosy.types.errors import ArgosyError, ConfigError
from argosy.types.ids import GroupId, SampleId
from argosy.types.records import Completion, Outcome, Prompt, Scored

SHAPED = ("seq_reward", "seq_final_reward")
FLAT, UNJUDGED, SURPLUS = "same metric in the whole group", "fewer than two judged", "surplus"
REASONS = {FLAT: "flat", UNJUDGED: "unjudged", SURPLUS: "surplus"}
"""Why a group is dropped → the metric that counts it."""


class NoFullBatchError(ArgosyError):
    """Dynamic sampling has drawn as often as it may, and a step's batch still isn't full."""


def metric_of(config: Config, outcome: Outcome, length: int, turn_rewards: Sequence[tuple[int, float]] = ()) -> float:
    """`algorithm.filter_groups.metric` of one response; NaN when nobody could judge it.

    Raises ConfigError where the scorer gives no such number.
    """
    name = config.algorithm.filter_groups.metric or "score"
    if not isinstance(outcome, Scored):
        return math.nan
    if name in SHAPED:
        return reward_of(config, outcome, length, turn_rewards)
    value = number_of(outcome, name)
    if math.isnan(value) and name == "acc":
        return outcome.score
    if math.isnan(value):
        known = sorted(key for key in outcome.parts if not math.isnan(number_of(outcome, key)))
        raise ConfigError(
            f"algorithm.filter_groups.metric: the scorer returns no number {name!r}; it returns "
            f"{', '.join(['score', *known])}"
        )
    return value


def drop_reason(values: Sequence[float]) -> str | None:
    """Why a group with these metrics is dropped; None keeps it."""
    judged = np.array([value for value in values if not math.isnan(value)], np.float64)
    if len(judged) < 2:
        return UNJUDGED
    spread, scale = float(judged.max() - judged.min()), float(np.abs(judged).max())
    return FLAT if spread <= SPREAD_RESOLUTION * scale else None


@dataclass(slots=True)
class GroupFilter:
    """The kept groups of one step, and counts of the others."""

    config: Config
    kept: list[Prompt] = field(default_factory=list)
    """In the order of the draw, at most train_batch_size."""
    drawn_count: int = 0
    batch_count: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Groups by reason."""
    values: list[float] = field(default_factory=list)
    """The metric of every judged response."""

    @property
    def full(self) -> bool:
        """Whether the step has all its groups."""
        return len(self.kept) >= self.config.data.train_batch_size

    def add(
        self,
        prompts: Sequence[Prompt],
        completions: Mapping[SampleId, Completion],
        outcomes: Mapping[SampleId, Outcome],
    ) -> dict[GroupId, str]:
        """Take a generation batch with its sampled responses; returns the groups that are dropped, and why."""
        self.batch_count += 1
        self.drawn_count += len(prompts)
        dropped: dict[GroupId, str] = {}
        if not self.config.algorithm.filter_groups.enable:
            self.kept += prompts
            return dropped
        samples: dict[GroupId, list[SampleId]] = {prompt.group: [] for prompt in prompts}
        for sample in completions:
            samples[sample.group].append(sample)
        for prompt in prompts:
            reason = self._judge(samples[prompt.group], completions, outcomes) or (SURPLUS if self.full else None)
            if reason is None:
                self.kept.append(prompt)
            else:
                dropped[prompt.group] = reason
        self.dropped.update(dropped.values())
        return dropped

    def take(self, completions: Mapping[SampleId, Completion], outcomes: Mapping[SampleId, Outcome]) -> str | None:
        """Take one group by itself, with its sampled responses; returns why it is dropped, None if it isn't."""
        self.drawn_count += 1
        if not self.config.algorithm.filter_groups.enable:
            return None
        reason = self._judge(list(completions), completions, outcomes)
        if reason is not None:
            self.dropped[reason] += 1
        return reason

    def _judge(
        self,
        samples: Sequence[SampleId],
        completions: Mapping[SampleId, Completion],
        outcomes: Mapping[SampleId, Outcome],
    ) -> str | None:
        rows = [(outcomes[sample], completions[sample]) for sample in samples]
        values = [
            metric_of(self.config, outcome, len(row.token_ids), row.turn_rewards) for outcome, row in rows
        ]  # fmt: skip
        self.values += [value for value in values if not math.isnan(value)]
        return drop_reason(values)

    def not_full(self, step: int) -> NoFullBatchError:
        """What to raise when the step may draw no more."""
        data, chosen = self.config.data, self.config.algorithm.filter_groups
        return NoFullBatchError(
            f"step {step}: {self.batch_count} generation batches (algorithm.filter_groups.max_num_gen_batches="
            f"{chosen.max_num_gen_batches}) of {data.gen_batch_size or data.train_batch_size} prompts gave only "
            f"{len(self.kept)} of data.train_batch_size={data.train_batch_size} groups whose {chosen.metric} differs "
            f"within the group ({self.counts()}). The prompts may be too easy or too hard: look at the scores, "
            "or raise the limit or actor_rollout_ref.rollout.n"
        )

    def counts(self) -> str:
        """For people: what became of the groups that were drawn."""
        parts = [f"{count} {reason}" for reason, count in sorted(self.dropped.items())]
        mean = f", mean {np.mean(self.values):.3g}" if self.values else ""
        return f"{self.drawn_count} drawn, {len(self.kept)} kept, {', '.join(parts) or 'none dropped'}{mean}"

    def metrics(self) -> dict[str, float]:
        """Counts and shares; nothing where dynamic sampling is off."""
        chosen = self.config.algorithm.filter_groups
        if not chosen.enable:
            return {}
        found = {f"filter_groups/{name}_groups": float(self.dropped[reason]) for reason, name in REASONS.items()}
        found |= {
            "train/num_gen_batches": float(self.batch_count),
            "filter_groups/drawn_groups": float(self.drawn_count),
            "filter_groups/filtered_fraction": sum(self.dropped.values()) / max(self.drawn_count, 1),
        }
        if self.values:
            found[f"filter_groups/{chosen.metric}/mean"] = float(np.mean(self.values))
        return found
