"""Rollout correction as loops over tokens in Python floats, written from the papers: what the fast code is held to."""

from __future__ import annotations

import math

Rows = list[list[float]]
Masks = list[list[int]]

LIMIT = 20.0


def bound(value: float) -> float:
    return max(-LIMIT, min(LIMIT, value))


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def ratios(old: Rows, rollout: Rows, masks: Masks) -> Rows:
    """ℓ of the trained tokens alone, a list per sequence."""
    found = []
    for old_row, rollout_row, mask in zip(old, rollout, masks, strict=True):
        found.append([a - b for a, b, m in zip(old_row, rollout_row, mask, strict=True) if m])
    return found


def weights(logs: Rows, level: str, upper: float, lower: float | None, normalize: bool) -> tuple[Rows, Rows, Rows]:
    """(raw, bounded, applied) of the trained tokens."""
    raw: Rows = []
    for row in logs:
        if level == "token":
            raw.append([math.exp(bound(value)) for value in row])
        else:
            whole = math.exp(bound(math.fsum(row)))
            raw.append([whole for _ in row])
    bounded: Rows = []
    for row in raw:
        kept = []
        for value in row:
            if lower is None:
                kept.append(value if value < upper else upper)
            else:
                kept.append(value if lower <= value <= upper else 0.0)
        bounded.append(kept)
    divisor = 1.0
    if normalize:
        units = [v for row in bounded for v in row] if level == "token" else [row[0] for row in bounded if row]
        divisor = mean(units) if units and mean(units) > 1e-8 else 1.0
    return raw, bounded, [[value / divisor for value in row] for row in bounded]


def statistic(row: list[float], name: str) -> list[float]:
    """A criterion's number for each trained token of a sequence."""
    over, _, kind = name.rpartition("_")
    values = []
    for log_ratio in row:
        log_ratio = bound(log_ratio)
        if kind == "k1":
            values.append(-log_ratio)
        elif kind == "k2":
            values.append(log_ratio * log_ratio / 2)
        else:
            values.append(math.exp(log_ratio) - 1 - log_ratio)
    if over == "token" or not row:
        return values
    one = {"seq_sum": math.fsum(values), "seq_mean": mean(values), "seq_max": max(values)}[over]
    return [one for _ in row]


def keeps(row: list[float], rules: list[tuple[str, float, float]]) -> list[bool]:
    """Whether each trained token of a sequence passes all (name, lower, upper) rules, bounds in nats."""
    passed = [True for _ in row]
    for name, lower, upper in rules:
        for place, value in enumerate(statistic(row, name)):
            passed[place] = passed[place] and lower <= value <= upper
    return passed


def divergences(old: Rows, rollout: Rows, masks: Masks) -> dict[str, float]:
    """The metrics that need no rule."""
    logs = [row for row in ratios(old, rollout, masks) if row]
    tokens = [value for row in logs for value in row]
    training, sampled = [], []
    for old_row, rollout_row, mask in zip(old, rollout, masks, strict=True):
        if any(mask):
            training.append(-mean([a for a, m in zip(old_row, mask, strict=True) if m]))
            sampled.append(-mean([b for b, m in zip(rollout_row, mask, strict=True) if m]))
    difference = [a - b for a, b in zip(training, sampled, strict=True)]
    return {
        "kl": -mean(tokens),
        "k3_kl": mean([math.exp(bound(v)) - bound(v) - 1 for v in tokens]),
        "training_ppl": mean([math.exp(v) for v in training]),
        "training_log_ppl": mean(training),
        "rollout_ppl": mean([math.exp(v) for v in sampled]),
        "rollout_log_ppl": mean(sampled),
        "log_ppl_diff": mean(difference),
        "log_ppl_abs_diff": mean([abs(v) for v in difference]),
        "log_ppl_diff_max": max(difference),
        "log_ppl_diff_min": min(difference),
        "ppl_ratio": mean([math.exp(bound(v)) for v in difference]),
        "chi2_token": mean([math.exp(2 * bound(v)) for v in tokens]) - 1,
        "chi2_seq": mean([math.exp(2 * bound(math.fsum(row))) for row in logs]) - 1,
    }
