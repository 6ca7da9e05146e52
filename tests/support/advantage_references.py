"""Every advantage estimator once more, as plain loops over lists in float64, written from the papers.

Slow and obvious on purpose. Shares no code with argosy.algorithms.advantages.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st

from argosy.algorithms.advantages import AdvantageInputs, AdvantageOptions
from argosy.algorithms.advantages.inputs import group_numbers
from argosy.types.ragged import Ragged

Rows = list[list[float]]


@dataclass(frozen=True)
class Sample:
    group: str
    rewards: list[float]
    mask: list[int]
    judged: bool = True
    values: list[float] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    squares: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    baseline: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def outcome(self) -> float:
        return sum(self.rewards)

    @property
    def trained(self) -> list[int]:
        return [t for t, m in enumerate(self.mask) if m and self.judged]

    def padded(self, place: int) -> Sample:
        """With a token at `place` that nobody sampled, with values that would show if they were read."""

        def put(row: list[float], value: float) -> list[float]:
            return [*row[:place], value, *row[place:]] if len(row) == len(self.mask) else row

        mask = [*self.mask[:place], 0, *self.mask[place:]]
        return replace(
            self,
            rewards=[*self.rewards[:place], 0.0, *self.rewards[place:]],
            mask=mask,
            values=put(self.values, 77.0),
            log_probs=put(self.log_probs, -33.0),
            squares=put(self.squares, 0.9),
            weights=put(self.weights, 50.0),
        )


def inputs_of(samples: Sequence[Sample]) -> AdvantageInputs:
    """As the estimators take it; columns that samples lack stay None."""

    def column(name: str) -> Ragged | None:
        rows = [getattr(sample, name) for sample in samples]
        whole = all(len(row) == len(sample.mask) for row, sample in zip(rows, samples, strict=True))
        return Ragged.from_rows(rows, np.float32) if whole else None

    names = {name for sample in samples for name in sample.parts}
    parts = {
        name: np.array([sample.parts.get(name, math.nan) for sample in samples], np.float64) for name in sorted(names)
    }
    return AdvantageInputs(
        Ragged.from_rows([sample.rewards for sample in samples], np.float32),
        Ragged.from_rows([sample.mask for sample in samples], np.int8),
        group_numbers([sample.group for sample in samples]),
        np.array([sample.judged for sample in samples], bool),
        values=column("values"),
        old_log_probs=column("log_probs"),
        sum_pi_squared=column("squares"),
        rollout_is_weights=column("weights"),
        baseline=np.array([sample.baseline for sample in samples], np.float64),
        reward_parts=parts or None,
    )


def _peers(samples: Sequence[Sample], sample: Sample) -> list[Sample]:
    return [other for other in samples if other.group == sample.group and other.judged]


def _silent(values: Sequence[float]) -> bool:
    return len(values) < 2 or max(values) == min(values)


def _broadcast(samples: Sequence[Sample], scalars: Sequence[float]) -> Rows:
    return [
        [scalar if t in sample.trained else 0.0 for t in range(len(sample.mask))]
        for sample, scalar in zip(samples, scalars, strict=True)
    ]


def _outcome_rule(rule: Callable[[Sample, list[Sample], list[Sample]], float]) -> Callable[..., Rows]:
    """An estimator that gives a sample one number, from its judged peers; silent groups give 0."""

    def estimate(samples: Sequence[Sample], options: AdvantageOptions) -> Rows:
        del options
        scalars = []
        for sample in samples:
            peers = _peers(samples, sample)
            quiet = not sample.judged or _silent([peer.outcome for peer in peers])
            scalars.append(0.0 if quiet else rule(sample, peers, [s for s in samples if s.judged]))
        return _broadcast(samples, scalars)

    return estimate


def _mean(peers: list[Sample]) -> float:
    return sum(peer.outcome for peer in peers) / len(peers)


def _deviation(peers: list[Sample]) -> float:
    return statistics.stdev([peer.outcome for peer in peers]) + 1e-6


def grpo(samples: Sequence[Sample], options: AdvantageOptions) -> Rows:
    by_std = options.norm_adv_by_std_in_grpo
    return _outcome_rule(lambda s, p, _: (s.outcome - _mean(p)) / (_deviation(p) if by_std else 1))(samples, options)


def grpo_passk(samples: Sequence[Sample], options: AdvantageOptions) -> Rows:
    def rule(sample: Sample, peers: list[Sample], _: list[Sample]) -> float:
        second, best = sorted(peer.outcome for peer in peers)[-2:]
        lead = best - second if sample.outcome == best else 0.0
        return lead / _deviation(peers) if options.norm_adv_by_std_in_grpo else lead

    return _outcome_rule(rule)(samples, options)


def _rloo(sample: Sample, peers: list[Sample], _: list[Sample]) -> float:
    others = [peer.outcome for peer in peers if peer is not sample]
    return sample.outcome - sum(others) / len(others)


def _opo(sample: Sample, peers: list[Sample], _: list[Sample]) -> float:
    lengths = [len(peer.trained) for peer in peers]
    if not sum(lengths):
        return sample.outcome - _mean(peers)  # and no token to put it on
    weighted = sum(length * peer.outcome for length, peer in zip(lengths, peers, strict=True))
    return sample.outcome - weighted / sum(lengths)


def _gpg(sample: Sample, peers: list[Sample], judged: list[Sample]) -> float:
    rewarded = sum(1 for other in judged if other.outcome != 0)
    return len(judged) / rewarded * (sample.outcome - _mean(peers))


def _whitened(rows: Rows, samples: Sequence[Sample]) -> Rows:
    chosen = [rows[i][t] for i, sample in enumerate(samples) for t in sample.trained]
    if len(chosen) < 2:
        return [[0.0] * len(row) for row in rows]
    mean, deviation = sum(chosen) / len(chosen), math.sqrt(statistics.variance(chosen) + 1e-8)
    return [
        [(row[t] - mean) / deviation if t in sample.trained else 0.0 for t in range(len(row))]
        for row, sample in zip(rows, samples, strict=True)
    ]


def step_rewards(sample: Sample) -> dict[int, float]:
    """Reward of each trained token, with what landed on the others after it (or before the first)."""
    rewards = dict.fromkeys(sample.trained, 0.0)
    for t, reward in enumerate(sample.rewards):
        before = [step for step in sample.trained if step <= t]
        if sample.trained:
            rewards[before[-1] if before else sample.trained[0]] += reward
    return rewards


def _to_go(sample: Sample, gamma: float) -> list[float]:
    row, running = [0.0] * len(sample.mask), 0.0
    rewards = step_rewards(sample)
    for t in reversed(sample.trained):
        running = rewards[t] + gamma * running
        row[t] = running
    return row


def gae_raw(samples: Sequence[Sample], options: AdvantageOptions) -> Rows:
    """Before whitening."""
    rows = []
    for sample in samples:
        row, following, advantage = [0.0] * len(sample.mask), 0.0, 0.0
        rewards = step_rewards(sample)
        for t in reversed(sample.trained):
            delta = rewards[t] + options.gamma * following - sample.values[t]
            advantage = delta + options.gamma * options.lam * advantage
            following = sample.values[t]
            row[t] = advantage
        rows.append(row)
    return rows


def gae(samples: Sequence[Sample], options: AdvantageOptions) -> Rows:
    return _whitened(gae_raw(samples, options), samples)


def reinforce_plus_plus(samples: Sequence[Sample], options: AdvantageOptions) -> Rows:
    return _whitened([_to_go(sample, options.gamma) for sample in samples], samples)


def reinforce_plus_plus_baseline(samples: Sequence[Sample], options: AdvantageOptions) -> Rows:
    return _whitened(_outcome_rule(lambda s, p, _: s.outcome - _mean(p))(samples, options), samples)


def remax(samples: Sequence[Sample], options: AdvantageOptions) -> Rows:
    del options
    rows = []
    for sample in samples:
        row = _to_go(sample, 1.0)
        for t in sample.trained:
            row[t] = 0.0 if math.isnan(sample.baseline) else row[t] - sample.baseline
        rows.append(row)
    return rows


def _token_baseline(place: Callable[[Sample, int], int]) -> Callable[[Sequence[Sample], AdvantageOptions], Rows]:
    def estimate(samples: Sequence[Sample], options: AdvantageOptions) -> Rows:
        del options
        rows = [[0.0] * len(sample.mask) for sample in samples]
        for i, sample in enumerate(samples):
            for t in sample.trained:
                met = [  # (G, W) of each peer's token at the same place
                    (_to_go(peer, 1.0)[u], _energy(peer, u))
                    for peer in _peers(samples, sample)
                    for u in peer.trained
                    if place(peer, u) == place(sample, t)
                ]
                if _silent([to_go for to_go, _ in met]):
                    continue
                baseline = sum(to_go * energy for to_go, energy in met) / sum(energy for _, energy in met)
                rows[i][t] = _to_go(sample, 1.0)[t] - baseline
        return rows

    return estimate


def _energy(sample: Sample, last: int) -> float:
    total = 0.0
    for t in sample.trained:
        if t <= last:
            weight = sample.weights[t] if sample.weights else 1.0
            total += weight**2 * (1 - 2 * math.exp(sample.log_probs[t]) + sample.squares[t])
    return total


def gdpo(samples: Sequence[Sample], options: AdvantageOptions) -> Rows:
    weights = options.gdpo_weights or dict.fromkeys({name for sample in samples for name in sample.parts}, 1.0)
    total = [0.0] * len(samples)
    for name, weight in weights.items():
        alone = [replace(s, rewards=[s.parts.get(name, 0.0)], judged=s.judged and name in s.parts) for s in samples]
        for i, sample in enumerate(alone):
            peers = _peers(alone, sample)
            if sample.judged and not _silent([peer.outcome for peer in peers]):
                divisor = _deviation(peers) if options.norm_adv_by_std_in_grpo else 1.0
                total[i] += weight * (sample.outcome - _mean(peers)) / divisor
    return _whitened(_broadcast(samples, total), samples)


REFERENCES: dict[str, Callable[[Sequence[Sample], AdvantageOptions], Rows]] = {
    "gae": gae,
    "grpo": grpo,
    "dr_grpo": _outcome_rule(lambda s, p, _: s.outcome - _mean(p)),
    "grpo_passk": grpo_passk,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "remax": remax,
    "rloo": _outcome_rule(_rloo),
    "opo": _outcome_rule(_opo),
    "gpg": _outcome_rule(_gpg),
    "optimal_token_baseline": _token_baseline(lambda sample, t: t),
    "tir_optimal_token_baseline": _token_baseline(lambda sample, t: sample.trained.index(t)),
    "gdpo": gdpo,
}

_EIGHTHS = st.integers(-8, 8).map(lambda x: x / 8)  # exact in float32, and far apart beside its resolution


@st.composite
def samples(draw: st.DrawFn, group: str | None = None) -> Sample:
    """One response of 0-6 tokens with everything that any estimator reads."""
    length = draw(st.integers(0, 6))

    def row(values: st.SearchStrategy[float]) -> list[float]:
        return draw(st.lists(values, min_size=length, max_size=length))

    probs = row(st.floats(0.05, 0.9))
    return Sample(
        group=group or draw(st.sampled_from("abc")),
        rewards=row(_EIGHTHS),
        mask=[int(x) for x in row(st.sampled_from([0.0, 1.0, 1.0]))],
        judged=draw(st.sampled_from([True, True, True, False])),
        values=row(_EIGHTHS),
        log_probs=[math.log(p) for p in probs],
        squares=[p * p + share * (1 - p) ** 2 for p, share in zip(probs, row(st.floats(0.1, 1)), strict=True)],
        weights=row(st.floats(0.5, 2)),
        baseline=draw(st.one_of(_EIGHTHS, st.just(math.nan))),
        parts=draw(st.fixed_dictionaries({"right": _EIGHTHS}, optional={"style": _EIGHTHS})),
    )


@st.composite
def batches(draw: st.DrawFn) -> list[Sample]:
    """Up to nine samples, of which two at least share a prompt."""
    styled = replace(draw(samples("a")), parts={"right": draw(_EIGHTHS), "style": draw(_EIGHTHS)})
    batch = [*draw(st.lists(samples(), max_size=7)), draw(samples("a")), styled]
    return draw(st.permutations(batch))


OPTIONS = st.builds(
    AdvantageOptions,
    norm_adv_by_std_in_grpo=st.booleans(),
    gamma=st.sampled_from([1.0, 0.9, 0.0]),
    lam=st.sampled_from([1.0, 0.95, 0.0]),
    gdpo_weights=st.sampled_from([None, {"right": 2.0}, {"right": 0.5, "style": 3.0}]),
)
