"""Packed policies and critics whose rows, or whose matrices, are divided over ranks.

Every rank of a sequence or tensor group is given the same packed batch and returns the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor, Shard

from argosy.modeling.log_probs import TokenStats, token_stats
from argosy.modeling.packed_model import PackedModel
from argosy.modeling.packing import PackedBatch
from argosy.modeling.value_model import PackedValueModel, ValueModel
from argosy.trainer.parallel.sequence import gather_tokens, split_rows
from argosy.trainer.parallel.tensor import local_weight
from argosy.trainer.parallel.vocabulary import vocabulary_parallel_stats


class WholePass(nn.Module):
    """All that reads weights in one packed pass, as one module: transformer and head.

    `fully_shard` of this module, after that of the layers, brings embedding, last norm and head together for a pass.
    """

    def __init__(self, model: nn.Module, compute: Callable[..., tuple[Tensor | None, ...]]) -> None:
        super().__init__()
        self.model = model
        self._compute = compute

    def forward(self, packed: PackedBatch, **settings: Any) -> tuple[Tensor | None, ...]:
        """Tensors in a tuple, where FSDP finds them for its backward hooks."""
        return self._compute(packed, **settings)


class ParallelPolicy(PackedModel):
    """A causal LM after `apply_tensor_parallel` and `apply_sequence_parallel`, or either, or neither.

    Args:
        model: The transformers model.
        sequence: Ranks that split the rows; None: not split.
        device: Where it computes; None: where the parameters are now. (Offloaded ones are elsewhere between passes.)
        compute_dtype, chunk_tokens: As in `PackedModel`.
    """

    def __init__(
        self,
        model: Any,
        *,
        sequence: ProcessGroup | None = None,
        device: torch.device | None = None,
        compute_dtype: torch.dtype = torch.float32,
        chunk_tokens: int = 1024,
    ) -> None:
        super().__init__(model, compute_dtype=compute_dtype, chunk_tokens=chunk_tokens)
        self._sequence, self._device = sequence, device or super().device
        self.module = WholePass(model, self._pass)
        """To be sharded as a whole."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self._device

    def response_stats(
        self, packed: PackedBatch, *, temperature: float, entropy: bool = False, sum_pi_squared: bool = False
    ) -> TokenStats:
        """Statistics of all M response tokens, on every rank; each computes those of its rows."""
        log_probs, entropies, squares = self.module(
            packed, temperature=temperature, entropy=entropy, sum_pi_squared=sum_pi_squared
        )
        return TokenStats(log_probs, entropies, squares)

    def _pass(self, packed: PackedBatch, **settings: Any) -> tuple[Tensor | None, ...]:
        if self._sequence is None:
            stats = self._head_stats(self.hidden_states(packed), packed, settings)
            return stats.log_probs, stats.entropy, stats.sum_pi_squared
        local, places = split_rows(packed, self._sequence)
        # A rank without response tokens goes through all of it too: the others wait for it in attention.
        stats = self._head_stats(self.hidden_states(local), local, settings)
        columns = (stats.log_probs, stats.entropy, stats.sum_pi_squared)
        present = torch.stack([column for column in columns if column is not None])  # [1…3, m]
        gathered = iter(gather_tokens(present, places, len(packed.targets), self._sequence))
        # Clones: FSDP's backward hooks could get lost on views.
        return tuple(None if column is None else next(gathered).clone() for column in columns)

    def _head_stats(self, hidden: Tensor, packed: PackedBatch, settings: dict[str, Any]) -> TokenStats:
        """[m] of [n, E]; divided by the vocabulary if the head is."""
        states = hidden.index_select(0, packed.output_rows)  # [m, E]
        settings |= {"chunk_tokens": self.chunk_tokens, "compute_dtype": self.compute_dtype}
        weight = self._head.weight
        group = _vocabulary_group(weight)
        if group is None:
            return token_stats(states, local_weight(weight), packed.targets, **settings)
        return vocabulary_parallel_stats(states, local_weight(weight), packed.targets, group, **settings)


class ParallelCritic(PackedValueModel):
    """A critic after the same. The value head is whole on every rank.

    Args:
        model: As `PackedValueModel`'s.
        sequence, device: As in `ParallelPolicy`.
        compute_dtype: As in `PackedValueModel`.
    """

    def __init__(
        self,
        model: ValueModel,
        *,
        sequence: ProcessGroup | None = None,
        device: torch.device | None = None,
        compute_dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(model, compute_dtype=compute_dtype)
        self._sequence, self._device = sequence, device or super().device
        self.module = WholePass(model, self._pass)
        """To be sharded as a whole."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self._device

    def response_values(self, packed: PackedBatch) -> Tensor:
        """V before each of all M response tokens, [M], on every rank."""
        (values,) = self.module(packed)
        return values  # type: ignore[no-any-return]

    def _pass(self, packed: PackedBatch) -> tuple[Tensor]:
        if self._sequence is None:
            return (self._values(self.hidden_states(packed), packed),)
        local, places = split_rows(packed, self._sequence)
        values = self._values(self.hidden_states(local), local)
        return (gather_tokens(values, places, len(packed.targets), self._sequence),)

    def _values(self, hidden: Tensor, packed: PackedBatch) -> Tensor:
        """[m] of [n, E], in the parameters' own type."""
        weight, bias = local_weight(self._head.weight), local_weight(self._head.bias)
        states = hidden.index_select(0, packed.output_rows)
        with torch.autocast(hidden.device.type, enabled=False):
            return torch.mv(states.to(weight.dtype), weight[0]) + bias  # a view would lose FSDP's backward hook


def _vocabulary_group(weight: Tensor) -> ProcessGroup | None:
    """The ranks that hold rows of an output head between them, if it is divided. FSDP must have gathered it."""
    if not isinstance(weight, DTensor) or not any(isinstance(part, Shard) for part in weight.placements):
        return None
    return weight.device_mesh.get_group()
