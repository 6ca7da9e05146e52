"""Validation metrics under verl's names: `val-core|val-aux/{source}/{variable}/{metric}`.

With N answers per prompt: mean@N, std@N, and for n = 2, 4, … N best@n, worst@n and maj@n (the score of the most common
`pred`), each as mean and std over 1000 bootstrap draws of n answers (seed 42). A source's core variable is "acc" where
the scorer reports it, else "reward"; its mean, best and maj at N are val-core, all else is val-aux.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

BOOTSTRAP_DRAWS = 1000
BOOTSTRAP_SEED = 42


@dataclass(frozen=True, slots=True)
class ValidationSample:
    """One judged held-out answer."""

    data_source: str
    prompt: str
    """Which question: answers of one prompt are compared with each other."""
    variables: Mapping[str, float]
    """"reward", and the numeric parts of the score ("acc", …)."""
    pred: str | None = None
    """The extracted answer, for the majority vote."""


def validation_metrics(samples: Sequence[ValidationSample]) -> dict[str, float]:
    """All metrics of one validation pass."""
    per_prompt: dict[tuple[str, str, str], dict[str, float]] = {}
    by_prompt: dict[tuple[str, str], list[ValidationSample]] = defaultdict(list)
    for sample in samples:
        by_prompt[sample.data_source, sample.prompt].append(sample)
    for (source, prompt), answers in by_prompt.items():
        for variable in sorted(set().union(*(answer.variables for answer in answers))):
            values = [answer.variables[variable] for answer in answers if variable in answer.variables]
            preds = [answer.pred for answer in answers if variable in answer.variables]
            per_prompt[source, variable, prompt] = _prompt_metrics(np.array(values, np.float64), preds)
    collected: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for (source, variable, _), metrics in per_prompt.items():
        for metric, value in metrics.items():
            collected[source, variable, metric].append(value)
    sources_with_acc = {source for source, variable, _ in collected if variable == "acc"}
    named = {}
    for (source, variable, metric), values in collected.items():
        core = variable == ("acc" if source in sources_with_acc else "reward")
        largest = max(_count_of(m) for s, v, m in collected if (s, v) == (source, variable))
        headline = metric.split("@")[0] in ("mean", "best", "maj") and _count_of(metric) == largest
        section = "val-core" if core and headline else "val-aux"
        named[f"{section}/{source}/{variable}/{metric}"] = float(np.mean(values))
    return named


def _count_of(metric: str) -> int:
    return int(metric.split("@")[1].split("/")[0])


def _prompt_metrics(values: Values, preds: Sequence[str | None]) -> dict[str, float]:
    count = len(values)
    metrics = {f"mean@{count}": float(values.mean())}
    if count == 1:
        return metrics
    metrics[f"std@{count}"] = float(values.std(ddof=1))
    sizes = [2**power for power in range(1, count.bit_length()) if 2**power < count] + [count]
    for size in sizes:
        draws = np.random.default_rng(BOOTSTRAP_SEED).integers(0, count, (BOOTSTRAP_DRAWS, size))
        scores = {"best": values[draws].max(axis=1), "worst": values[draws].min(axis=1)}
        if all(pred is not None for pred in preds):
            scores["maj"] = np.array([_majority(draw, values, preds) for draw in draws])
        for name, drawn in scores.items():
            metrics[f"{name}@{size}/mean"] = float(drawn.mean())
            metrics[f"{name}@{size}/std"] = float(drawn.std())
    return metrics


def _majority(draw: npt.NDArray[np.int64], values: Values, preds: Sequence[str | None]) -> float:
    winner = Counter(preds[index] for index in draw).most_common(1)[0][0]
    return next(float(values[index]) for index in draw if preds[index] == winner)


def wilson_interval(successes: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a proportion. Wilson 1927, JASA 22 (158), "Probable inference, the law of succession"."""
    if not count:
        return 0.0, 1.0
    share = successes / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(values: Sequence[float], z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a mean: Wilson's for scores in [0, 1], the normal one for others."""
    if all(0.0 <= value <= 1.0 for value in values):
        return wilson_interval(sum(values), len(values), z)
    scores = np.array(values, np.float64)
    half = z * float(scores.std(ddof=1)) / math.sqrt(len(scores)) if len(scores) > 1 else math.inf
    return float(scores.mean()) - half, float(scores.mean()) + half


def paired_difference(before: Mapping[str, float], after: Mapping[str, float], z: float = 1.96) -> tuple[float, float]:
    """Mean change over the prompts that both have, and the half width of its 95 % interval (normal, paired)."""
    changes = np.array([after[prompt] - before[prompt] for prompt in before if prompt in after], np.float64)
    if len(changes) < 2:
        return (float(changes.mean()) if len(changes) else 0.0), math.inf
    return float(changes.mean()), z * float(changes.std(ddof=1)) / math.sqrt(len(changes))
