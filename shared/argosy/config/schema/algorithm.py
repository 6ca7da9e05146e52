"""`algorithm.*`: from rewards to advantages."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class KlCtrlConfig:
    """The coefficient of the KL penalty in the reward."""

    type: str = "fixed"
    """"fixed", or "adaptive" to steer the KL towards target_kl."""
    kl_coef: float = 0.001
    """The coefficient β, at the start if adaptive."""
    horizon: int = 10000
    """Adaptive: sequences over which β may change by a fifth; larger is slower."""
    target_kl: float = 0.1
    """Adaptive: the KL (nats per token) that is aimed at."""


@dataclass(frozen=True)
class FilterGroupsConfig:
    """Dynamic sampling (DAPO): groups that teach nothing make room for others."""

    enable: bool = False
    """Drop groups whose metric is the same for every response, and sample on until data.train_batch_size are left."""
    metric: str | None = None
    """Which metric: "acc" (the score where the scorer names no acc), "score" (the scorer's), "seq_reward" and
    "seq_final_reward" (the score with the overlong penalty), or any number that the scorer returns. Required if on."""
    max_num_gen_batches: int = 0
    """Generation batches after which a step that still isn't full ends the run, with a checkpoint; 0 or -1: as many as
    one data epoch has."""


@dataclass(frozen=True)
class RolloutCorrectionConfig:
    """Corrects for the difference between the policy that sampled and the policy that is trained."""

    rollout_is: str | None = None
    """Importance weights π_old/π_rollout on the policy loss: "token", "sequence"; null: none. Where it isn't given,
    argosy.max_staleness above 0 makes it "token" (except in bypass mode, whose ratio is that weight)."""
    rollout_is_threshold: str = "2.0"
    """Upper bound of a weight ("2.0": truncated importance sampling), or a band ("0.5_2.0": IcePop, 0 outside it)."""
    rollout_is_batch_normalize: bool = False
    """Divide the weights by their mean over the batch."""
    rollout_rs: str | None = None
    """Rejection, a comma list: token_k1, _k2, _k3, seq_sum_k1 …, seq_mean_k1 …, seq_max_k2, _k3; null: none."""
    rollout_rs_threshold: str | None = None
    """One threshold for all of them or one each, comma list: for k1 a band of the ratio ("0.5_2.0"; "2.0" is the same),
    for k2 and k3 an upper bound in nats."""
    bypass_mode: bool = False
    """Take the engine's log-probs for the old ones: no pass to recompute them, and the loss is "bypass_mode"."""
    loss_type: str = "ppo_clip"
    """The loss of bypass_mode: "ppo_clip", or "reinforce" with explicit importance weights."""

    @property
    def decoupled(self) -> bool:
        """Whether weights or rejection are made before the update, from recomputed old log-probs."""
        return not self.bypass_mode and (self.rollout_is is not None or self.rollout_rs is not None)


@dataclass(frozen=True)
class AlgorithmConfig:
    """Advantages and the KL penalty in the reward."""

    adv_estimator: str = "gae"
    """Advantage estimator; `argosy algorithms advantages` says what each does. verl's default, "gae", needs a
    critic."""
    norm_adv_by_std_in_grpo: bool = True
    """grpo, grpo_passk, gdpo: divide by the group's standard deviation; false is Dr.GRPO."""
    gamma: float = 1.0
    """gae, reinforce_plus_plus: discount of later rewards, per token."""
    lam: float = 1.0
    """gae: λ; 1 compares whole returns with the critic, 0 looks one step ahead."""
    gdpo_reward_keys: tuple[str, ...] = ()
    """gdpo: which numbers that the scorer returns are normalised each on its own."""
    gdpo_reward_weights: tuple[float, ...] = ()
    """gdpo: their weights, in the same order; empty: 1 each."""
    filter_groups: FilterGroupsConfig = field(default_factory=FilterGroupsConfig)
    """Dynamic sampling."""
    rollout_correction: RolloutCorrectionConfig = field(default_factory=RolloutCorrectionConfig)
    """Correction for the difference between engine and trainer."""
    use_kl_in_reward: bool = False
    """Subtract β·KL(old, reference) from each token's reward. Starts the reference service."""
    kl_penalty: str = "kl"
    """Its estimator: "kl" ("k1"), "abs", "mse" ("k2"), "low_var_kl" ("k3")."""
    kl_ctrl: KlCtrlConfig = field(default_factory=KlCtrlConfig)
    """The coefficient β of that penalty."""
