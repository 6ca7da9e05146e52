"""The sampler's tensors for a running batch, from its samples' parameters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from argosy.rollout.engines.sampling.noise import uniforms
from argosy.rollout.engines.sampling.sample import Sample
from argosy.rollout.engines.sampling.sampler import Banned, Penalties, Settings
from argosy.types.records import SamplingParams


def make_settings(samples: Sequence[Sample], vocab_size: int, device: torch.device) -> Settings:
    """Settings of the rows, in order; to be made again only when the batch's members change."""
    params = [sample.request.params for sample in samples]
    temperatures = [p.temperature or 1.0 for p in params]
    greedy = [p.temperature == 0 for p in params]
    filtered = [row for row, p in enumerate(params) if p.temperature > 0 and _has_filter(p, vocab_size)]
    chosen = [params[row] for row in filtered]
    return Settings(
        temperature=torch.tensor(temperatures).to(device) if any(t != 1 for t in temperatures) else None,
        greedy=torch.tensor(greedy).to(device) if any(greedy) else None,
        filtered=torch.tensor(filtered).to(device) if filtered else None,
        top_k=torch.tensor([p.top_k if p.top_k > 0 else vocab_size for p in chosen]).to(device),
        top_p=torch.tensor([p.top_p for p in chosen], dtype=torch.float64).to(device),
        min_p=torch.tensor([p.min_p for p in chosen], dtype=torch.float64).to(device),
    )


def _has_filter(params: SamplingParams, vocab_size: int) -> bool:
    return 0 < params.top_k < vocab_size or params.top_p < 1 or params.min_p > 0


def make_uniforms(samples: Sequence[Sample]) -> Tensor:
    """Noise of the rows' next tokens, [B] float64 on the CPU."""
    keys = np.array([sample.noise for sample in samples], np.uint64)
    positions = np.array([len(sample.token_ids) for sample in samples], np.int64)
    return torch.from_numpy(uniforms(keys, positions))


def make_penalties(samples: Sequence[Sample], device: torch.device) -> Penalties | None:
    """Places of tokens already seen, in rows with a repetition penalty."""
    rows: list[int] = []
    tokens: list[int] = []
    factors: list[float] = []
    for row, sample in enumerate(samples):
        factor = sample.request.params.repetition_penalty
        if factor != 1:
            seen = {*sample.request.prompt_ids, *sample.token_ids}
            tokens.extend(seen)
            rows.extend([row] * len(seen))
            factors.extend([factor] * len(seen))
    if not rows:
        return None
    return Penalties(torch.tensor(rows).to(device), torch.tensor(tokens).to(device), torch.tensor(factors).to(device))


def make_banned(samples: Sequence[Sample], device: torch.device) -> Banned | None:
    """Places of stop ids in rows that have fewer than min_tokens tokens."""
    places = [
        (row, token)
        for row, sample in enumerate(samples)
        if len(sample.token_ids) < sample.request.params.min_tokens
        for token in sorted(sample.stop_ids)
    ]
    if not places:
        return None
    rows, tokens = zip(*places, strict=True)
    return Banned(torch.tensor(rows).to(device), torch.tensor(tokens).to(device))
