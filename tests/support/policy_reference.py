"""A trainer's objective from its definition, for tests: float64, one unpadded sequence and one token at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from argosy.types.batch import TrajectoryBatch
from argosy.types.ragged import Ragged
from argosy.types.records import LossConfig
from support.training import grouped_batch

FULL_LOSS = LossConfig(
    entropy_coeff=0.01, use_kl_loss=True, kl_loss_coef=0.1, temperature=0.8, clip_ratio_high=0.28, loss_scale_factor=16
)


def policy_batch(seed: int = 0) -> TrajectoryBatch:
    """A batch with old and reference log-probs that differ from any model's."""
    batch = grouped_batch(seed=seed)
    rng = np.random.default_rng(seed)
    offsets = batch.ragged("response_ids").offsets
    for name in ("old_log_probs", "ref_log_probs"):
        batch = batch.with_column(name, Ragged(rng.normal(-5, 0.7, offsets[-1]).astype(np.float32), offsets))
    return batch


def reference_loss(model: Any, batch: TrajectoryBatch, loss: LossConfig, mode: str) -> Tensor:
    """The objective of the whole mini-batch from its definition: a loop over sequences and tokens, full softmax."""
    mask = batch.ragged("response_mask")
    tokens = float(mask.values.sum())
    sequences = float((mask.segment_sum() > 0).sum())
    total = torch.zeros((), dtype=torch.float64)
    for row in range(len(batch)):
        prompt, response = batch.ragged("prompt_ids")[row], batch.ragged("response_ids")[row]
        ids = torch.tensor(np.concatenate([prompt, response]), dtype=torch.int64)
        log_pi = torch.log_softmax(model(input_ids=ids[None]).logits[0].double() / loss.temperature, -1)
        for place, token in enumerate(response):
            if not mask[row][place]:
                continue
            line = log_pi[len(prompt) - 1 + place]
            ratio = (line[token] - float(batch.ragged("old_log_probs")[row][place])).exp()
            advantage = float(batch.ragged("advantages")[row][place])
            surrogate = torch.minimum(
                ratio * advantage, ratio.clamp(1 - loss.clip_ratio_low, 1 + loss.clip_ratio_high) * advantage
            )
            if advantage < 0:
                surrogate = surrogate.clamp(min=loss.clip_ratio_c * advantage)
            gap = float(batch.ragged("ref_log_probs")[row][place]) - line[token]
            kl = (gap.exp() - gap - 1).clamp(max=10.0)
            entropy = -(line.exp() * line).sum()
            value = -surrogate + loss.kl_loss_coef * kl - loss.entropy_coeff * entropy
            weight = {
                "token-mean": 1 / tokens,
                "seq-mean-token-sum": 1 / sequences,
                "seq-mean-token-mean": 1 / sequences / float(mask[row].sum()),
                "seq-mean-token-sum-norm": 1 / sequences / 16.0,
            }[mode]
            total = total + weight * value
    return total
