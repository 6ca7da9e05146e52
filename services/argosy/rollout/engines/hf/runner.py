"""The two kinds of forward pass: prompts into the cache, and one token for each running sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from argosy.rollout.engines.hf.attention import Decode, Prefill, Span
from argosy.rollout.engines.hf.loading import LoadedModel
from argosy.rollout.engines.hf.slots import SlotCache
from argosy.rollout.engines.sampling.sampler import Banned, Penalties, Settings, draw

_SPAN_ROUNDING = 16
"""The tokens that attention looks at are rounded up to it: fewer shapes, aligned rows."""

_NATIVE_PREFILL = 512
"""Longer prompts go through the model's own code, whose attention is in blocks and so better at many tokens."""


@dataclass(slots=True, eq=False)
class Fill:
    """Keys and values of a sequence that are being computed, in one piece or in several."""

    ids: Sequence[int]
    store: Tensor
    """[2, L, P, K, D], of which the first `done` tokens are there."""
    done: int = 0

    @property
    def remaining(self) -> int:
        """Tokens still to compute."""
        return len(self.ids) - self.done


class Runner:
    """Runs a model over a slot cache; knows nothing of requests."""

    def __init__(self, model: LoadedModel, *, slot_count: int, max_model_len: int, kv_token_count: int = 0) -> None:
        self.model = model
        self.slots = SlotCache(
            layer_count=model.layer_count,
            slot_count=slot_count,
            kv_head_count=model.kv_head_count,
            head_size=model.head_size,
            max_model_len=max_model_len,
            dtype=model.dtype,
            device=model.device,
            token_count=kv_token_count,
        )

    def begin(self, ids: Sequence[int]) -> Fill:
        """Room for a sequence's keys and values, none of which are computed yet."""
        model = self.model
        shape = (2, model.layer_count, len(ids), model.kv_head_count, model.head_size)
        return Fill(ids, torch.empty(shape, dtype=model.dtype, device=model.device))

    @torch.inference_mode()
    def prefill(self, fills: Sequence[Fill], token_budget: int | None = None) -> None:
        """Compute what remains of each, in one packed pass; with a budget, at most so many tokens of each."""
        ends = [len(f.ids) if token_budget is None else min(len(f.ids), f.done + token_budget) for f in fills]
        short: list[tuple[Fill, int]] = []
        long: list[tuple[Fill, int]] = []
        for fill, end in zip(fills, ends, strict=True):
            native = self.model.native is not None and end <= _NATIVE_PREFILL
            (short if native else long).append((fill, end))
        if short:
            assert self.model.native is not None
            self.model.native.prefill([(fill.ids[fill.done : end], fill.store, fill.done) for fill, end in short])
        if long:
            self._prefill(long)
        for fill, end in zip(fills, ends, strict=True):
            fill.done = end

    def _prefill(self, pieces: Sequence[tuple[Fill, int]]) -> None:
        """By the model's own code."""
        model = self.model
        spans = [Span(fill.store, fill.done, end) for fill, end in pieces]
        ids = [token for fill, end in pieces for token in fill.ids[fill.done : end]]
        positions = torch.cat([torch.arange(span.start, span.end) for span in spans])[None]
        # No mask and no cache: with either, transformers lets packed sequences see each other.
        model.backbone(
            input_ids=torch.tensor([ids]).to(model.device),
            position_ids=positions.to(model.device),
            use_cache=False,
            argosy_plan=Prefill(spans),
        )

    @torch.inference_mode()
    def decode(self, inputs: Sequence[int], cached: Sequence[int]) -> Tensor:
        """Logits [B, V] after feeding one token to each of the first B rows, whose caches hold `cached` tokens.

        They may be overwritten by the next call.
        """
        model, longest = self.model, max(cached) + 1
        self.slots.reserve(longest, len(cached))
        if model.native is not None:
            return model.native.decode(inputs, cached, self.slots.data)
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

    def draw(
        self,
        logits: Tensor,
        uniforms: Tensor,
        settings: Settings,
        penalties: Penalties | None = None,
        banned: Banned | None = None,
    ) -> tuple[list[int], list[float]]:
        """One token for each row of what `decode` gave, and its log-prob; see `sampler.draw`."""
        native = self.model.native
        if native is not None and settings.filtered is None and penalties is None and banned is None:
            return native.draw(uniforms, settings)
        found = draw(logits.contiguous(), uniforms.to(logits.device), settings, penalties, banned)
        return found[0].tolist(), found[1].tolist()
