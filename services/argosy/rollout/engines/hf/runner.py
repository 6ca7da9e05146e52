"""The two kinds of forward pass: prompts into the cache, and one token for each running sample."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from argosy.rollout.engines.hf.attention import Decode, Prefill
from argosy.rollout.engines.hf.loading import LoadedModel
from argosy.rollout.engines.hf.slots import SlotCache

_SPAN_ROUNDING = 16
"""The tokens that attention looks at are rounded up to it: fewer shapes, aligned rows."""


class Runner:
    """Runs a model over a slot cache; knows nothing of requests."""

    def __init__(self, model: LoadedModel, *, slot_count: int, max_model_len: int) -> None:
        self.model = model
        self.slots = SlotCache(
            layer_count=model.layer_count,
            slot_count=slot_count,
            kv_head_count=model.kv_head_count,
            head_size=model.head_size,
            max_model_len=max_model_len,
            dtype=model.dtype,
            device=model.device,
        )

    @torch.inference_mode()
    def prefill(self, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
        """Keys and values of whole sequences, computed in one packed pass; one [2, L, P, K, D] each."""
        model, lengths = self.model, [len(sequence) for sequence in sequences]
        count = sum(lengths)
        shape = (2, model.layer_count, count, model.kv_head_count, model.head_size)
        plan = Prefill(lengths, torch.empty(shape, dtype=model.dtype, device=model.device))
        ids = torch.tensor([[token for sequence in sequences for token in sequence]])
        positions = torch.cat([torch.arange(length) for length in lengths])[None]
        # No mask and no cache: with either, transformers lets packed sequences see each other (FACTS).
        model.backbone(
            input_ids=ids.to(model.device),
            position_ids=positions.to(model.device),
            use_cache=False,
            argosy_plan=plan,
        )
        ends = list(itertools.accumulate(lengths))
        return [plan.store[:, :, end - length : end] for length, end in zip(lengths, ends, strict=True)]

    @torch.inference_mode()
    def decode(self, inputs: Sequence[int], cached: Sequence[int]) -> Tensor:
        """Logits [B, V] after feeding one token to each of the first B rows, whose caches hold `cached` tokens."""
        model, longest = self.model, max(cached) + 1
        self.slots.reserve(longest)
        positions = torch.tensor(cached).to(model.device)
        span = min(-(-longest // _SPAN_ROUNDING) * _SPAN_ROUNDING, self.slots.capacity)
        output = model.module(
            input_ids=torch.tensor(inputs)[:, None].to(model.device),
            position_ids=positions[:, None],
            use_cache=False,
            argosy_plan=Decode(self.slots.data, positions, span),
        )
        logits: Tensor = output.logits[:, 0]
        return logits
