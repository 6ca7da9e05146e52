"""Policy losses written from the papers with Python floats, one token at a time: what the vectorised ones must equal.

`new` are the log-probs that the derivative is taken by, `frozen` those at which a stop-gradient sees them. The two are
equal at the point itself, and finite differences move only `new`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from argosy.types.records import LossConfig


@dataclass(frozen=True)
class Token:
    """One response token."""

    new: float
    old: float
    advantage: float
    mask: int = 1
    marked: bool = False
    """By the mini-batch column."""
    frozen: float | None = None

    @property
    def still(self) -> float:
        return self.new if self.frozen is None else self.frozen


Tokens = Sequence[Token]
TokenLoss = Callable[[Token, Tokens, LossConfig], float]


def clip(value: float, low: float, high: float) -> float:
    return low if value < low else high if value > high else value


def surrogate(ratio: float, advantage: float, config: LossConfig) -> float:
    """PPO, eq. 7, as a loss."""
    bounded = clip(ratio, 1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    return -min(ratio * advantage, bounded * advantage)


def vanilla(token: Token, sequence: Tokens, config: LossConfig) -> float:
    """PPO with dual clip."""
    loss = surrogate(math.exp(token.new - token.old), token.advantage, config)
    return min(loss, -config.clip_ratio_c * token.advantage) if token.advantage < 0 else loss


def trained(sequence: Tokens) -> list[Token]:
    return [token for token in sequence if token.mask]


def gspo(token: Token, sequence: Tokens, config: LossConfig) -> float:
    """GSPO-token, eqs. 13 and 14."""
    kept = trained(sequence) or [token]
    log_s = sum(other.still - other.old for other in kept) / len(kept)
    ratio = math.exp(log_s) * math.exp(token.new) / math.exp(token.still)
    return surrogate(ratio, token.advantage, config)


def sapo(token: Token, sequence: Tokens, config: LossConfig) -> float:
    """SAPO, eqs. 5 and 6."""
    default = {"tau_pos": 1.0, "tau_neg": 1.05}
    tau = float((default | dict(config.options))["tau_pos" if token.advantage > 0 else "tau_neg"])
    ratio = math.exp(token.new - token.old)
    return -token.advantage * (4 / tau) / (1 + math.exp(-tau * (ratio - 1)))


def gpg(token: Token, sequence: Tokens, config: LossConfig) -> float:
    """The policy gradient."""
    return -token.advantage * token.new


def clip_cov(token: Token, sequence: Tokens, config: LossConfig) -> float:
    """The clipped surrogate, but nothing at the tokens that were drawn."""
    return 0.0 if token.marked else surrogate(math.exp(token.new - token.old), token.advantage, config)


def kl_cov(token: Token, sequence: Tokens, config: LossConfig) -> float:
    """The surrogate, and the distance at the tokens that were drawn."""
    loss = -token.advantage * math.exp(token.new - token.old)
    coef = float(config.options.get("ppo_kl_coef", 0.1))
    return loss + coef * abs(token.new - token.old) if token.marked else loss


def geo_mean(token: Token, sequence: Tokens, config: LossConfig) -> float:
    """GMPO: the root of the product of clipped ratios, times the sequence's advantage."""
    kept = trained(sequence)
    if not kept:
        return 0.0
    advantage = sum(other.advantage for other in kept) / len(kept)
    product = 1.0
    for other in kept:
        ratio = math.exp(other.new - other.old)
        bounded = clip(ratio, math.exp(-config.clip_ratio_low), math.exp(config.clip_ratio_high))
        product *= min(ratio, bounded) if advantage > 0 else max(ratio, bounded) if advantage < 0 else 1.0
    return -advantage * math.pow(product, 1 / len(kept))


def cispo(token: Token, sequence: Tokens, config: LossConfig) -> float:
    """CISPO, eqs. 4 and 5."""
    weight = clip(math.exp(token.still - token.old), 1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    return -weight * token.advantage * token.new


def _dppo(token: Token, config: LossConfig, too_far: bool) -> float:
    weight = min(math.exp(token.still - token.old), config.clip_ratio_c)
    return 0.0 if too_far else -weight * token.advantage * token.new


def dppo_tv(token: Token, sequence: Tokens, config: LossConfig) -> float:
    """DPPO with binary total variation."""
    moved = math.exp(token.still) - math.exp(token.old)
    up = moved > config.clip_ratio_high and token.advantage > 0
    down = moved < -config.clip_ratio_low and token.advantage <= 0
    return _dppo(token, config, up or down)


def dppo_kl(token: Token, sequence: Tokens, config: LossConfig) -> float:
    """DPPO with binary KL."""
    p, q = math.exp(token.old), math.exp(token.still)
    divergence = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    up = divergence > config.clip_ratio_high and q > p and token.advantage > 0
    down = divergence > config.clip_ratio_low and q < p and token.advantage <= 0
    return _dppo(token, config, up or down)


def dro(token: Token, sequence: Tokens, config: LossConfig) -> float:
    """The quadratic leash."""
    beta = float(config.options.get("dro_beta", 0.05))
    return -(token.advantage * token.new - beta / 2 * (token.new - token.old) ** 2)


def bypass_mode(token: Token, sequence: Tokens, config: LossConfig) -> float:
    """ppo_clip, or reinforce with truncated weights of tokens or sequences."""
    if config.options.get("loss_type", "ppo_clip") == "ppo_clip":
        return vanilla(token, sequence, config)
    level, bound = config.options.get("rollout_is", ""), float(config.options.get("rollout_is_threshold", "2.0"))
    gap = token.still - token.old
    if level == "sequence":
        gap = sum(other.still - other.old for other in trained(sequence))
    weight = min(math.exp(gap), bound) if level else 1.0
    return -weight * token.advantage * token.new


REFERENCES: dict[str, TokenLoss] = {
    "vanilla": vanilla,
    "gspo": gspo,
    "sapo": sapo,
    "gpg": gpg,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
    "geo_mean": geo_mean,
    "cispo": cispo,
    "dppo_tv": dppo_tv,
    "dppo_kl": dppo_kl,
    "dro": dro,
    "bypass_mode": bypass_mode,
}


def reference_losses(sequences: Sequence[Tokens], config: LossConfig) -> list[list[float]]:
    """The loss of each token; 0 where it isn't trained."""
    loss = REFERENCES[config.loss_mode]
    return [[loss(token, sequence, config) if token.mask else 0.0 for token in sequence] for sequence in sequences]


def reference_aggregate(losses: Sequence[Sequence[float]], masks: Sequence[Sequence[int]], config: LossConfig) -> float:
    """loss_agg_mode over a whole mini-batch."""
    kept = [
        [loss for loss, mask in zip(row, flags, strict=True) if mask] for row, flags in zip(losses, masks, strict=True)
    ]
    kept = [row for row in kept if row]
    if not kept:
        return 0.0
    if config.loss_agg_mode == "token-mean":
        return math.fsum(map(math.fsum, kept)) / sum(map(len, kept))
    if config.loss_agg_mode == "seq-mean-token-mean":
        return math.fsum(math.fsum(row) / len(row) for row in kept) / len(kept)
    mean = math.fsum(map(math.fsum, kept)) / len(kept)
    if config.loss_agg_mode == "seq-mean-token-sum":
        return mean
    assert config.loss_agg_mode == "seq-mean-token-sum-norm"
    assert config.loss_scale_factor
    return mean / config.loss_scale_factor
