"""`actor_rollout_ref.actor.*` and `.ref.*`: how the policy is trained, and the frozen reference."""

from __future__ import annotations

from dataclasses import dataclass, field

from argosy.config.schema.optim import EngineConfig, OptimConfig


@dataclass(frozen=True)
class PolicyLossConfig:
    """Which policy loss."""

    loss_mode: str = "vanilla"
    """"vanilla": PPO's clipped surrogate with dual clip; "gspo", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean",
    "cispo", "dppo_tv", "dppo_kl", "dro", "bypass_mode": `argosy algorithms` lists what they are."""
    clip_cov_ratio: float = 0.0002
    """clip_cov: share of the mini-batch's tokens that lose their gradient, at least one."""
    clip_cov_lb: float = 1.0
    """clip_cov: those are drawn where the covariance is above this …"""
    clip_cov_ub: float = 5.0
    """clip_cov: … and below this."""
    kl_cov_ratio: float = 0.0002
    """kl_cov: share of the mini-batch's tokens, those with the largest covariance, that are penalised, at least one."""
    ppo_kl_coef: float = 0.1
    """kl_cov: weight of that penalty."""
    dro_beta: float = 0.05
    """dro: weight β of the squared log-ratio. (verl has no default.)"""


@dataclass(frozen=True)
class ActorConfig:
    """The update of the policy. Sizes are global and counted in prompts; `*_per_gpu` sizes are local to a process."""

    strategy: str = "fsdp"
    """How ranks hold the model between them: "fsdp" ("fsdp2" is the same: PyTorch's FSDP2), or "megatron" (layers of
    megatron-core, an extra, cut by argosy.trainer.tensor_parallel_size; a critic stays with FSDP2)."""
    ppo_mini_batch_size: int = 256
    """Prompts per optimizer step; × rollout.n sequences. Must divide data.train_batch_size."""
    ppo_micro_batch_size_per_gpu: int | None = None
    """Sequences per forward/backward; changes memory, not the result. null: by ppo_max_token_len_per_gpu."""
    use_dynamic_bsz: bool = False
    """Form micro-batches by tokens (ppo_max_token_len_per_gpu) in place of a fixed number of sequences."""
    ppo_max_token_len_per_gpu: int = 16384
    """Token budget of a micro-batch while use_dynamic_bsz is on or no micro-batch size is given."""
    ppo_epochs: int = 1
    """Passes over each step's batch."""
    shuffle: bool = False
    """Shuffle the sequences before they are split into mini-batches, anew in each pass."""
    data_loader_seed: int | None = None
    """Seed of that shuffling; null takes argosy.seed."""
    clip_ratio: float = 0.2
    """ε of the clipped surrogate on both sides, unless clip_ratio_low or clip_ratio_high says otherwise."""
    clip_ratio_low: float | None = None
    """ε below 1; null takes clip_ratio. (verl's own default of 0.2 makes its clip_ratio dead; here it works.)"""
    clip_ratio_high: float | None = None
    """ε above 1; null takes clip_ratio. DAPO's clip-higher is 0.28."""
    clip_ratio_c: float = 3.0
    """Dual clip: bound of the loss at −A·c where the advantage A is negative; above 1. dppo: bound of the ratio."""
    policy_loss: PolicyLossConfig = field(default_factory=PolicyLossConfig)
    """Which policy loss."""
    tau_pos: float = 1.0
    """sapo: τ of the gate where the advantage is positive; larger fades faster."""
    tau_neg: float = 1.05
    """sapo: τ where it is not."""
    loss_agg_mode: str | None = None
    """Token losses to one number, over the global mini-batch: "token-mean", "seq-mean-token-sum",
    "seq-mean-token-mean" or "seq-mean-token-sum-norm". null takes what the loss is meant for: "seq-mean-token-mean" for
    gspo, sapo and geo_mean (verl uses it for these whatever the key says), "token-mean" for the others."""
    loss_scale_factor: float | None = None
    """Divisor of "seq-mean-token-sum-norm" (Dr.GRPO's constant); null takes data.max_response_length."""
    entropy_coeff: float = 0.0
    """Weight of the entropy bonus; 0 leaves it out of the loss."""
    calculate_entropy: bool = False
    """Report actor/entropy even while entropy_coeff is 0."""
    use_kl_loss: bool = False
    """Add kl_loss_coef × KL(policy, reference) to the loss. Starts the reference service."""
    kl_loss_coef: float = 0.001
    """Weight of that KL term."""
    kl_loss_type: str = "low_var_kl"
    """Its estimator: "k1" ("kl"), "abs", "k2" ("mse"), "k3" ("low_var_kl"); a "+" at the end takes k2's gradient."""
    grad_clip: float = 1.0
    """Bound of the gradient's global norm. A step whose norm isn't finite is skipped."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """Optimizer and schedule."""
    fsdp_config: EngineConfig = field(default_factory=EngineConfig)
    """How the training engine computes."""
    ulysses_sequence_parallel_size: int = 1
    """Trainer ranks that divide the tokens of each packed batch, and the heads in attention; 1: none. It must divide
    the model's attention heads, and × argosy.trainer.tensor_parallel_size the trainer.n_gpus_per_node."""
    use_torch_compile: bool = False
    """Compile the model's layers: minutes at the start, faster steps on GPUs. Needs a C++ compiler on a CPU, where it
    rarely pays. (verl's default is true.)"""

    @property
    def clip_range(self) -> tuple[float, float]:
        """(ε low, ε high) with clip_ratio filled in."""
        low = self.clip_ratio if self.clip_ratio_low is None else self.clip_ratio_low
        high = self.clip_ratio if self.clip_ratio_high is None else self.clip_ratio_high
        return low, high


@dataclass(frozen=True)
class RefConfig:
    """The frozen reference: the start model. Runs only while use_kl_loss or use_kl_in_reward is on."""

    log_prob_micro_batch_size_per_gpu: int | None = None
    """Sequences per forward; null: by log_prob_max_token_len_per_gpu."""
    log_prob_use_dynamic_bsz: bool = False
    """Form micro-batches by tokens in place of a fixed number of sequences."""
    log_prob_max_token_len_per_gpu: int = 16384
    """Token budget of a forward while log_prob_use_dynamic_bsz is on or no micro-batch size is given."""
