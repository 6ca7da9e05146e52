"""Rollout correction: the policy that sampled (μ, the engine) is not quite the policy that is trained (π_old).

Another dtype, another kernel or weights that are some steps old make the difference. Two remedies, which may be
combined:

- **Importance weights** (weights.py) multiply each token's policy loss by π_old/μ, truncated (TIS) or banded (IcePop).
- **Rejection** (rejection.py) takes tokens or whole sequences out of the loss where a divergence is too large (MIS).

Both rest on ℓ_t = log π_old(y_t) − log μ(y_t) and change no gradient of their own: they are constants of the update.

- *Decoupled* (three policies μ, π_old, π): the trainer recomputes π_old; the loss's ratio is π/π_old, the weights carry
  π_old/μ. Hilton, Cobbe, Schulman 2021, "Batch size-invariance for policy gradients", arXiv:2110.00641, §3.
- *Bypass* (two policies): π_old := μ, so the pass that recomputes it is saved and the ratio itself is π/μ. What is left
  to correct then depends on the weights of the moment, so the loss does it (losses/, loss_mode bypass_mode).

Papers: TIS: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training"; IcePop: Ling
Team 2025, "Every Step Evolves", arXiv:2510.18855; MIS: Liu et al. 2025, "When Speed Kills Stability: Demystifying RL
Collapse from the Training-Inference Mismatch"; k1, k2, k3: Schulman 2020, "Approximating KL Divergence".

thresholds.py reads what the keys say, without numpy; correct.py puts the parts together.
"""
