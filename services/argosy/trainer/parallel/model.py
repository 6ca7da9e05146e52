"""Packed policies and critics whose rows, or whose matrices, are divided over ranks.

Both take the same packed batch on every rank of a sequence or tensor group and return the same numbers on each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional

from argosy.modeling.log_probs import TokenStats, token_stats
from argosy.modeling.packed_model import PackedModel
from argosy.modeling.packing import PackedBatch
from argosy.modeling.value_model import PackedValueModel, ValueModel
from argosy.trainer.parallel.sequence import gather_tokens, split_rows
from argosy.trainer.parallel.tensor import local_weight
from argosy.trainer.parallel.vocabulary import vocabulary_parallel_stats


class ParallelPolicy(PackedModel):
    """A causal LM after `apply_tensor_parallel` and `apply_sequence_parallel`, or either, or neither.

    Args:
        model: The transformers model.
        sequence: Ranks that split the rows; None: not split.
        compute_dtype, chunk_tokens: As in `PackedModel`.
    """

    def __init__(
        self,
        model: Any,
        *,
        sequence: ProcessGroup | None = None,
        compute_dtype: torch.dtype = torch.float32,
        chunk_tokens: int = 1024,
    ) -> None:
        super().__init__(model, compute_dtype=compute_dtype, chunk_tokens=chunk_tokens)
        self._sequence = sequence

    def response_stats(
        self, packed: PackedBatch, *, temperature: float, entropy: bool = False, sum_pi_squared: bool = False
    ) -> TokenStats:
        """Statistics of all M response tokens, on every rank; each computes those of its rows."""
        settings: dict[str, Any] = {
            "temperature": temperature,
            "chunk_tokens": self.chunk_tokens,
            "compute_dtype": self.compute_dtype,
            "entropy": entropy,
            "sum_pi_squared": sum_pi_squared,
        }
        if self._sequence is None:
            hidden = self.hidden_states(packed).index_select(0, packed.output_rows)
            return self._head_stats(hidden, packed.targets, settings)
        local, places = split_rows(packed, self._sequence)
        # A rank without response tokens goes through it all too: the others wait for it in attention.
        hidden = self.hidden_states(local).index_select(0, local.output_rows)
        stats = self._head_stats(hidden, local.targets, settings)
        parts = [part for part in (stats.log_probs, stats.entropy, stats.sum_pi_squared) if part is not None]
        rows = list(gather_tokens(torch.stack(parts), places, len(packed.targets), self._sequence))
        return TokenStats(
            rows.pop(0), rows.pop(0) if entropy else None, rows.pop(0).detach() if sum_pi_squared else None
        )

    def _head_stats(self, hidden: Tensor, targets: Tensor, settings: dict[str, Any]) -> TokenStats:
        """[m] from [m, E]; divided by the vocabulary if the head is."""
        weight = self._head.weight
        group = _vocabulary_group(weight)
        if group is None:
            return token_stats(hidden, local_weight(weight), targets, **settings)
        return vocabulary_parallel_stats(hidden, local_weight(weight), targets, group, **settings)


class ParallelCritic(PackedValueModel):
    """A critic after the same. The value head is whole on every rank.

    Args:
        model: As `PackedValueModel`'s.
        sequence: Ranks that split the rows; None: not split.
        compute_dtype: As in `PackedValueModel`.
    """

    def __init__(
        self, model: ValueModel, *, sequence: ProcessGroup | None = None, compute_dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(model, compute_dtype=compute_dtype)
        self._sequence = sequence

    def response_values(self, packed: PackedBatch) -> Tensor:
        """V before each of all M response tokens, [M], on every rank."""
        if self._sequence is None:
            return self._values(self.hidden_states(packed).index_select(0, packed.output_rows))
        local, places = split_rows(packed, self._sequence)
        values = self._values(self.hidden_states(local).index_select(0, local.output_rows))
        return gather_tokens(values, places, len(packed.targets), self._sequence)

    def _values(self, hidden: Tensor) -> Tensor:
        """[m] of [m, E], in the parameters' own type."""
        weight, bias = local_weight(self._head.weight), local_weight(self._head.bias)
        with torch.autocast(hidden.device.type, enabled=False):
            return functional.linear(hidden.to(weight.dtype), weight, bias)[:, 0]


def _vocabulary_group(weight: Tensor) -> ProcessGroup | None:
    """The ranks that hold rows of an output head between them, if it is divided. FSDP must have gathered it."""
    if not isinstance(weight, DTensor) or not any(isinstance(part, Shard) for part in weight.placements):
        return None
    return weight.device_mesh.get_group()
