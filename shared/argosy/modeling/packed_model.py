"""The one forward pass that trainer and reference share: packed rows in, statistics of the response tokens out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from argosy.modeling.attention import PACKED_ATTENTION
from argosy.modeling.log_probs import TokenStats, token_stats
from argosy.modeling.native.library import Workspace
from argosy.modeling.native.output_head import can_run
from argosy.modeling.packed_network import PackedNetwork, check_temperature, self_check_batch, token_places
from argosy.modeling.packing import PackedBatch, pack
from argosy.types.errors import InternalError

__all__ = ["COLUMNS", "SELF_CHECK_TOLERANCE", "PackedModel", "check_temperature", "token_places"]

COLUMNS = ("log_probs", "entropy", "sum_pi_squared")
"""What `compute_log_probs` can return, one float32 per response token each."""

SELF_CHECK_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.5}
"""Largest difference in log-prob between the packed pass and the model's own that is rounding and not an error."""


class PackedModel(PackedNetwork):
    """A causal LM behind packed, chunked log-probs.

    Args:
        model: From `load_causal_lm`.
        compute_dtype: Of matrix products; bfloat16 over float32 parameters is autocast.
        chunk_tokens: Response tokens whose logits exist at one time.
    """

    columns: ClassVar[tuple[str, ...]] = COLUMNS
    adds_to_gradient: bool = False
    """Whether the head's gradient is added to that of earlier micro-batches in place (`token_stats`)."""

    workspace: Workspace | None = None
    """Where the compiled library may work; None: torch alone computes."""

    def __init__(self, model: Any, *, compute_dtype: torch.dtype = torch.float32, chunk_tokens: int = 1024) -> None:
        super().__init__(model, model.get_output_embeddings(), compute_dtype)
        self.chunk_tokens = chunk_tokens

    def response_stats(
        self, packed: PackedBatch, *, temperature: float, entropy: bool = False, sum_pi_squared: bool = False
    ) -> TokenStats:
        """Statistics of the M response tokens; only their rows go through the output head."""
        if len(packed.targets) == 0:
            empty = torch.zeros(0, device=self.device)
            return TokenStats(empty, empty if entropy else None, empty if sum_pi_squared else None)
        weight = self._head.weight
        # Not of a weight that is gathered anew at each use.
        known = self.casts.keeping and isinstance(weight, nn.Parameter)
        hidden = self.hidden_states(packed).index_select(0, packed.output_rows)
        if self.workspace is not None and can_run(hidden, weight, self.compute_dtype):
            known = False  # the library reads the parameter itself
        return token_stats(
            hidden,
            weight,
            packed.targets,
            temperature=temperature,
            chunk_tokens=self.chunk_tokens,
            compute_dtype=self.compute_dtype,
            entropy=entropy,
            sum_pi_squared=sum_pi_squared,
            cast=self.casts.get([weight], self.compute_dtype) if known else None,
            add_to_gradient=self.adds_to_gradient,
            workspace=self.workspace,
        )

    def column_values(self, packed: PackedBatch, columns: Sequence[str], temperature: float) -> Mapping[str, Tensor]:
        """Of `COLUMNS`."""
        stats = self.response_stats(
            packed,
            temperature=temperature,
            entropy="entropy" in columns,
            sum_pi_squared="sum_pi_squared" in columns,
        )
        return {name: getattr(stats, name) for name in columns}

    def self_check(self) -> float:
        """Compare a small packed pass with the model's own plain forward; returns the largest log-prob difference.

        An architecture whose attention or output head does something that packing doesn't know would train on wrong
        numbers in silence. Raises InternalError instead.
        """
        prompts, responses = self_check_batch(self.vocab_size)
        with torch.no_grad():
            found = self.response_stats(pack(prompts, responses, device=self.device), temperature=1.0).log_probs
            expected = [self._plain(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]
        difference = float((found - torch.cat(expected)).abs().max())
        tolerance = SELF_CHECK_TOLERANCE[self.compute_dtype]
        if not difference <= tolerance:
            raise InternalError(
                f"{type(self.model).__name__}: packed log-probs differ from the model's own by {difference:.2g} "
                f"(allowed {tolerance:g}); this architecture can't be trained packed"
            )
        return difference

    def _plain(self, prompt: Any, response: Any) -> Tensor:
        """Log-probs of one response by the model's own forward with PyTorch's plain attention, [T]."""
        sequence = torch.from_numpy(np.concatenate([prompt, response]).astype(np.int64)).to(self.device)
        self.model.set_attn_implementation("sdpa")
        try:
            with torch.autocast(
                self.device.type, self.compute_dtype, enabled=self.compute_dtype != self._head.weight.dtype
            ):
                logits = self.model(input_ids=sequence[None], use_cache=False).logits[0]
        finally:
            self.model.set_attn_implementation(PACKED_ATTENTION)
        log_pi = torch.log_softmax(logits.to(torch.promote_types(torch.float32, logits.dtype)), -1)  # [T, V]
        start = len(prompt)
        return log_pi[start - 1 : -1].gather(1, sequence[start:, None])[:, 0]
