"""The critic's objective by loops, one unpadded sequence at a time; and what the tests of its gradient share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from argosy.modeling.loading import ModelSource
from argosy.modeling.value_model import load_value_model
from argosy.types.batch import TrajectoryBatch
from argosy.types.ragged import Ragged
from argosy.types.records import LossConfig
from support.training import grouped_batch

CLIP = 0.3
LOSS = LossConfig(loss_mode="value", options={"cliprange_value": CLIP})


def save_critic(language_model: Path, folder: Path) -> Path:
    """A critic whose values are about as large as the returns of `value_batch`."""
    model = load_value_model(ModelSource(str(language_model), device="cpu"))
    with torch.no_grad():
        model.score.weight.copy_(torch.linspace(-0.2, 0.2, model.score.in_features)[None])
        model.score.bias.fill_(0.1)
    model.save_pretrained(folder)
    return folder


def plain_critic(folder: Path) -> Any:
    """By transformers' own class, in float64."""
    from transformers import AutoModelForTokenClassification

    model: Any = AutoModelForTokenClassification.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager"
    )
    return model.eval()


def value_batch() -> TrajectoryBatch:
    """Old values and returns of all sizes, so that some tokens are clipped and some not; NaN where nothing trains."""
    batch = grouped_batch()
    mask = batch.ragged("response_mask")
    rng = np.random.default_rng(3)
    for name in ("values", "returns"):
        drawn = np.where(mask.values > 0, rng.normal(size=len(mask.values)), np.nan)
        batch = batch.with_column(name, Ragged(drawn.astype(np.float32), mask.offsets))
    return batch


def reference_loss(model: Any, batch: TrajectoryBatch, mode: str, scale: float) -> tuple[Tensor, float]:
    """½ max((V-G)², (clip(V)-G)²) by loops over sequences and tokens; and the clipped share of tokens."""
    total: Tensor = torch.zeros((), dtype=torch.float64)
    masks = [row for row in batch.ragged("response_mask") if row.sum() > 0]
    token_count = sum(int(row.sum()) for row in masks)
    clipped = 0
    for row in range(len(batch)):
        prompt, response = batch.ragged("prompt_ids")[row], batch.ragged("response_ids")[row]
        ids = torch.tensor(np.concatenate([prompt, response]).astype(np.int64))[None]
        values = model(input_ids=ids).logits[0, :, 0]
        losses = []
        for place in range(len(response)):
            if batch.ragged("response_mask")[row][place] == 0:
                continue
            value = values[len(prompt) - 1 + place]
            old, target = float(batch.ragged("values")[row][place]), float(batch.ragged("returns")[row][place])
            plain = (value - target) ** 2
            bounded = (torch.clamp(value, old - CLIP, old + CLIP) - target) ** 2
            clipped += int(bounded > plain)
            losses.append(0.5 * torch.maximum(plain, bounded))
        if not losses:
            continue
        summed: Tensor = torch.stack(losses).sum()
        divisors = {
            "token-mean": token_count,
            "seq-mean-token-sum": len(masks),
            "seq-mean-token-mean": len(masks) * len(losses),
            "seq-mean-token-sum-norm": len(masks) * scale,
        }
        total = total + summed / divisors[mode]
    return total, clipped / token_count
