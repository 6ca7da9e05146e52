"""A check at start: the engine's passes must give the log-probs that the plain model gives.

Models differ in ways that no list of config keys covers (masks, caches, layer kinds). One short sequence through both
finds out before the first sample is drawn, in a fraction of a second.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from argosy.rollout.engines.hf.loading import LoadedModel
from argosy.rollout.engines.hf.runner import Runner
from argosy.types.errors import InvalidInputError

_LOG = logging.getLogger(__name__)
_PREFILL_COUNT = 12
_DECODE_COUNT = 4
_TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.3, torch.bfloat16: 1.0}
"""Largest accepted difference of the likeliest tokens' log-probs; a wrong mask gives several nats."""
_TOP = 8


@dataclass(frozen=True, slots=True)
class Probe:
    """A sequence, and the plain model's log-probs of what follows its last tokens."""

    ids: list[int]
    log_probs: Tensor
    """[_DECODE_COUNT, V] float32"""

    @classmethod
    @torch.inference_mode()
    def of(cls, module: nn.Module) -> Probe:
        """Run the plain model, before its attention is replaced."""
        model: Any = module
        vocab_size = int(model.get_input_embeddings().weight.shape[0])
        # Longer than a small sliding window, so that it matters; spread over the vocabulary.
        window = getattr(model.config.get_text_config(), "sliding_window", None) or 0
        length = _PREFILL_COUNT + _DECODE_COUNT + (window if window <= 128 else 0)
        limit = getattr(model.config.get_text_config(), "max_position_embeddings", None) or length
        ids = [(index * 7919 + 13) % vocab_size for index in range(min(length, limit))]
        inputs = torch.tensor([ids], device=model.get_input_embeddings().weight.device)
        logits: Tensor = model(input_ids=inputs, use_cache=False).logits[0, -_DECODE_COUNT:]
        return cls(ids, logits.float().log_softmax(-1))

    def verify(self, model: LoadedModel) -> LoadedModel:
        """The model as the engine may run it: without the native decode step if that is what computes something else.

        Raises InvalidInputError if the model's own code computes something else too.
        """
        worst, bound = self._difference(model), _TOLERANCE[model.dtype]
        if not worst <= bound and model.native is not None:
            _LOG.error("the native decode step differs by %.3g in log-prob from the model's own code: not used", worst)
            model = replace(model, native=None)
            worst = self._difference(model)
        if not worst <= bound:
            raise InvalidInputError(
                f"the embedded rollout engine computes {type(model.module).__name__} wrongly: log-probs differ from "
                f"the plain model's by {worst:.3g}. Use another engine (actor_rollout_ref.rollout.name) for this model."
            )
        return model

    def _difference(self, model: LoadedModel) -> float:
        """Largest difference of the likeliest tokens' log-probs."""
        runner = Runner(model, slot_count=1, max_model_len=len(self.ids))
        start = len(self.ids) - _DECODE_COUNT
        runner.slots.reserve(len(self.ids))
        fill = runner.begin(self.ids[:start])
        runner.prefill([fill], _PREFILL_COUNT // 2)
        runner.prefill([fill])
        runner.slots.fill(0, fill.store)
        rows = [runner.decode([self.ids[place]], [place])[0].clone() for place in range(start, len(self.ids))]
        found = torch.stack(rows).float().log_softmax(-1)
        best = self.log_probs.topk(min(_TOP, self.log_probs.shape[1]))
        return float((found.gather(1, best.indices) - best.values).abs().max())
