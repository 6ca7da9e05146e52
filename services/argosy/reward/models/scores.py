"""What a scoring model's raw outputs mean: which label counts, on which scale, and what is no score at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from argosy.types.errors import ConfigError
from argosy.types.records import Failed, Outcome, Scored

ACTIVATIONS = ("none", "sigmoid", "softmax")


@dataclass(frozen=True, slots=True)
class ScoreRule:
    """From a model's labels to one number.

    >>> ScoreRule(label=1, activation="softmax").apply([0.0, 0.0], model="m")
    Scored(score=0.5, parts={}, token_scores=())
    """

    label: int | None = None
    """Index of the label whose value is the score; None: the only one."""
    activation: str = "none"
    """ "none": the raw value; "sigmoid": of that value alone, 0 to 1; "softmax": its share among all labels."""

    def check(self, label_count: int, *, model: str, names: Sequence[str] = ()) -> None:
        """Raises ConfigError if the rule doesn't fit a model with that many labels."""
        key = "argosy.reward.model.label"
        shown = f" ({', '.join(names[:8])})" if names and label_count > 1 else ""
        if self.label is None and label_count != 1:
            raise ConfigError(f"{key}: model {model!r} has {label_count} labels{shown}; set the one that is the score")
        if self.label is not None and not 0 <= self.label < label_count:
            raise ConfigError(f"{key}: got {self.label}, but model {model!r} has {label_count} labels{shown}, from 0")
        if self.activation == "softmax" and label_count == 1:
            raise ConfigError(
                f"argosy.reward.model.activation=softmax makes every score of model {model!r} 1: it has one label; "
                "set none or sigmoid"
            )

    def apply(self, values: Sequence[float], *, model: str) -> Outcome:
        """The outcome of one sample from its raw values, one per label; NaN and infinities are Failed (case G1)."""
        index = self.label if self.label is not None else 0
        if not index < len(values) or (self.label is None and len(values) != 1):
            wanted = "one" if self.label is None else f"at least {index + 1}"
            return Failed("bad_return", f"model {model!r} gave {len(values)} values for a sample; wants {wanted}")
        for value in values:
            if not math.isfinite(value):
                return Failed("bad_return", f"model {model!r} gave {value}; a score must be finite")
        chosen = values[index]
        if self.activation == "sigmoid":
            return Scored(_sigmoid(chosen))
        if self.activation == "softmax":
            top = max(values)
            return Scored(math.exp(chosen - top) / math.fsum(math.exp(value - top) for value in values))
        return Scored(float(chosen))


def _sigmoid(value: float) -> float:
    if value >= 0:
        return 1 / (1 + math.exp(-value))
    small = math.exp(value)
    return small / (1 + small)
