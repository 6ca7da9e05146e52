"""What `algorithm.rollout_correction.*` says, parsed: no numpy here, since the configuration is checked with it.

A threshold is text, as in verl: "2.0" is an upper bound, "0.5_2.0" a band.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from argosy.types.errors import ConfigError

_KEYS = "algorithm.rollout_correction"
WEIGHT_LEVELS = ("token", "sequence")
LOSS_TYPES = ("ppo_clip", "reinforce")
"""Of bypass mode; the first is the default."""
REJECTION_NAMES = (
    *("token_k1", "token_k2", "token_k3"),
    *("seq_sum_k1", "seq_sum_k2", "seq_sum_k3"),
    *("seq_mean_k1", "seq_mean_k2", "seq_mean_k3"),
    *("seq_max_k2", "seq_max_k3"),
)


@dataclass(frozen=True, slots=True)
class WeightRule:
    """How importance weights are made."""

    level: str
    """"token" or "sequence"."""
    upper: float
    """Truncation (TIS) where `lower` is None; else the upper end of the band (IcePop)."""
    lower: float | None = None
    """Lower end of the band: a weight outside it becomes 0."""
    batch_normalize: bool = False
    """Divide all weights of the batch by their mean."""


@dataclass(frozen=True, slots=True)
class RejectionRule:
    """One criterion; a token is kept where lower ≤ statistic ≤ upper."""

    name: str
    """"token_k1", "seq_mean_k3" …"""
    lower: float
    """In nats; -inf for k2 and k3, which are never negative."""
    upper: float
    """In nats."""

    @property
    def over(self) -> str:
        """What the statistic is over: "token", "seq_sum", "seq_mean" or "seq_max"."""
        return self.name.rpartition("_")[0]

    @property
    def divergence(self) -> str:
        """ "k1", "k2" or "k3"."""
        return self.name.rpartition("_")[2]


@dataclass(frozen=True, slots=True)
class CorrectionRules:
    """Weights, rejection, both or neither."""

    weights: WeightRule | None = None
    rejections: tuple[RejectionRule, ...] = ()


def parse_rules(
    rollout_is: str | None,
    rollout_is_threshold: str,
    rollout_rs: str | None,
    rollout_rs_threshold: str | None,
    batch_normalize: bool = False,
) -> CorrectionRules:
    """The keys as rules. Raises ConfigError with the key, what it holds and what it wants."""
    weights = None
    if rollout_is is not None:
        if rollout_is not in WEIGHT_LEVELS:
            raise ConfigError(f"{_KEYS}.rollout_is: got {rollout_is!r}, wants {' or '.join(WEIGHT_LEVELS)}")
        lower, upper = parse_band(rollout_is_threshold, f"{_KEYS}.rollout_is_threshold")
        weights = WeightRule(rollout_is, upper, lower, batch_normalize)
    return CorrectionRules(weights, parse_rejections(rollout_rs, rollout_rs_threshold))


def parse_band(text: str, key: str) -> tuple[float | None, float]:
    """("0.5_2.0") → (0.5, 2.0); ("2.0") → (None, 2.0). Raises ConfigError unless 0 < lower < upper < ∞.

    >>> parse_band("0.5_2.0", "key"), parse_band("5", "key")
    ((0.5, 2.0), (None, 5.0))
    """
    first, separator, second = text.strip().partition("_")
    try:
        bounds = [float(part) for part in ((first, second) if separator else (first,))]
    except ValueError:
        raise ConfigError(f"{key}: got {text!r}, wants a number such as 2.0 or a band such as 0.5_2.0") from None
    if not all(math.isfinite(bound) and bound > 0 for bound in bounds):
        raise ConfigError(f"{key}: got {text!r}, wants bounds above 0 and finite")
    if separator and not bounds[0] < bounds[1]:
        raise ConfigError(f"{key}: got {text!r}, wants lower < upper, as in 0.5_2.0")
    return (bounds[0], bounds[1]) if separator else (None, bounds[0])


def parse_rejections(names: str | None, thresholds: str | None) -> tuple[RejectionRule, ...]:
    """Comma lists of criteria and their thresholds; one threshold serves all. Raises ConfigError.

    k1's threshold is a band of the ratio μ/π_old ("0.5_2.0"), or its upper end, whose reciprocal is then the lower one;
    k2's and k3's is an upper bound in nats. (verl's conventions.)
    """
    if names is None:
        return ()
    wanted = list(dict.fromkeys(name for part in names.split(",") if (name := part.strip())))
    for name in wanted:
        if name not in REJECTION_NAMES:
            raise ConfigError(f"{_KEYS}.rollout_rs: unknown criterion {name!r}; known: {', '.join(REJECTION_NAMES)}")
    if not wanted:
        raise ConfigError(f"{_KEYS}.rollout_rs: got {names!r}, wants one or more of {', '.join(REJECTION_NAMES)}")
    key = f"{_KEYS}.rollout_rs_threshold"
    given = [part for text in (thresholds or "").split(",") if (part := text.strip())]
    if len(given) not in (1, len(wanted)):
        raise ConfigError(
            f"{key}: got {len(given)} thresholds ({thresholds!r}) for {len(wanted)} criteria ({', '.join(wanted)}); "
            f"wants {'1' if len(wanted) == 1 else f'1 or {len(wanted)}'}"
        )
    given = given * len(wanted) if len(given) == 1 else given
    return tuple(_rejection(name, text, key) for name, text in zip(wanted, given, strict=True))


def _rejection(name: str, text: str, key: str) -> RejectionRule:
    lower, upper = parse_band(text, key)
    if not name.endswith("_k1"):
        if lower is not None:
            raise ConfigError(f"{key}: got the band {text!r} for {name}, which is never negative: wants an upper bound")
        return RejectionRule(name, -math.inf, upper)
    lower = 1.0 / upper if lower is None else lower
    if not lower <= 1.0 <= upper:
        raise ConfigError(f"{key}: got {text!r} for {name}: even equal policies (ratio 1) would be rejected")
    return RejectionRule(name, math.log(lower), math.log(upper))
