"""What packed policies and critics share: the network below the head, the checks, and the walk over micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from argosy.modeling.microbatch import MicroBatchLimit, plan_micro_batches
from argosy.modeling.packing import PackedBatch, pack
from argosy.modeling.weight_casts import WeightCasts
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import AbortedError, InvalidInputError
from argosy.types.ragged import Ragged


class PackedNetwork:
    """A transformer with one head, behind packed passes: `PackedModel` or `PackedValueModel`.

    Args:
        model: A transformers causal LM, or a `ValueModel`: has `base_model_prefix` and that attribute.
        head: The linear layer on top of the base.
        compute_dtype: Of matrix products; bfloat16 over float32 parameters is autocast.
    """

    columns: ClassVar[tuple[str, ...]] = ()
    """What `evaluate` can return, one float32 per response token each."""

    def __init__(self, model: Any, head: nn.Linear, compute_dtype: torch.dtype) -> None:
        self.model = model
        self.compute_dtype = compute_dtype
        self._base = getattr(model, model.base_model_prefix)
        self._head = head

    @cached_property
    def casts(self) -> WeightCasts:
        """Of the weights, to `compute_dtype`, as far as the model is lean (`argosy.modeling.lean`)."""
        return WeightCasts()

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        device: torch.device = self._head.weight.device
        return device

    @property
    def vocab_size(self) -> int:
        """Rows of the input embedding: ids must be below it."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    @property
    def max_positions(self) -> int | None:
        """Longest sequence that the model's positions allow, if it says so."""
        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        return None if limit is None else int(limit)

    def hidden_states(self, packed: PackedBatch) -> Tensor:
        """The last hidden state of every packed row, [N, E]."""
        device = self.device.type
        parameter_dtype = self._head.weight.dtype
        # No cache: each weight is used once a pass, so keeping its cast would only hold a second copy of the model.
        with torch.autocast(
            device, self.compute_dtype, enabled=self.compute_dtype != parameter_dtype, cache_enabled=False
        ):
            output = self._base(
                input_ids=packed.input_ids[None],
                position_ids=packed.position_ids[None],
                attention_mask=None,
                use_cache=False,
                packed_layout=packed.layout,
            )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    def weights_fixed(self) -> AbstractContextManager[None]:
        """Within it no weight changes: each is cast once at most."""
        return self.casts.fixed()

    def column_values(self, packed: PackedBatch, columns: Sequence[str], temperature: float) -> Mapping[str, Tensor]:
        """The named columns of the M response tokens, [M] each."""
        raise NotImplementedError

    def evaluate(
        self,
        batch: TrajectoryBatch,
        columns: Sequence[str],
        *,
        temperature: float = 1.0,
        limit: MicroBatchLimit,
        cancelled: Callable[[], bool] = lambda: False,
        plan: Sequence[np.ndarray[Any, Any]] | None = None,
    ) -> TrajectoryBatch:
        """The batch's ids with the named columns, without gradients.

        Rows keep their order, whatever micro-batches they were computed in (case B20). With a `plan`, its micro-batches
        are computed in place of those by `limit`; rows that are in none of them get zeros.

        Raises:
            InvalidInputError: an unknown column, an id outside the vocabulary, too long a sequence, an empty prompt.
            AbortedError: `cancelled` said so between two micro-batches.
        """
        if not columns:
            raise InvalidInputError(f"no column is asked for; known: {', '.join(self.columns)}", field="columns")
        unknown = sorted(set(columns) - set(self.columns))
        if unknown:
            known = ", ".join(self.columns)
            raise InvalidInputError(f"unknown column {unknown[0]!r}; known: {known}", field="columns")
        check_temperature(temperature)
        self.check(batch)
        prompts, responses = batch.ragged("prompt_ids"), batch.ragged("response_ids")
        results = {name: np.zeros(len(responses.values), np.float32) for name in columns}
        with torch.no_grad(), self.weights_fixed():
            for rows in plan_micro_batches(prompts, responses, limit) if plan is None else plan:
                if cancelled():
                    raise AbortedError("nobody waits for these numbers any more")
                packed = pack(prompts.take(rows), responses.take(rows), device=self.device)
                places = token_places(responses, rows)
                for name, values in self.column_values(packed, columns, temperature).items():
                    results[name][places] = values.float().cpu().numpy()
        kept = TrajectoryBatch(batch.table.select(["sample_id", "prompt_ids", "response_ids", "response_mask"]))
        for name in columns:
            kept = kept.with_column(name, Ragged(results[name], responses.offsets))
        return kept

    def check(self, batch: TrajectoryBatch) -> None:
        """Refuse what would crash or be wrong deep inside: names the first faulty sample."""
        names = batch.table.column("sample_id").to_pylist()
        if len(set(names)) != len(names):
            seen: set[str] = set()
            repeated = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            raise InvalidInputError(f"sample {repeated} is in the batch twice", field="sample_id")
        prompts, responses = batch.ragged("prompt_ids"), batch.ragged("response_ids")
        lengths = prompts.lengths + responses.lengths
        for row in np.flatnonzero(prompts.lengths == 0)[:1]:
            raise InvalidInputError(f"sample {names[row]} has an empty prompt: nothing predicts its first token")
        if self.max_positions is not None:
            for row in np.flatnonzero(lengths > self.max_positions)[:1]:
                raise InvalidInputError(
                    f"sample {names[row]} has {lengths[row]} tokens; the model's max_position_embeddings is "
                    f"{self.max_positions}"
                )
        for column, ragged in (("prompt_ids", prompts), ("response_ids", responses)):
            wrong = np.flatnonzero((ragged.values < 0) | (ragged.values >= self.vocab_size))
            if len(wrong):
                row = int(np.searchsorted(ragged.offsets, wrong[0], side="right")) - 1
                raise InvalidInputError(
                    f"sample {names[row]} has token id {ragged.values[wrong[0]]} in {column}; the model's vocabulary "
                    f"has {self.vocab_size} ids",
                    field=column,
                )

    def self_check(self) -> float:
        """Compare a small packed pass with the model's own plain one; InternalError if they differ."""
        raise NotImplementedError


def self_check_batch(vocab_size: int) -> tuple[Ragged, Ragged]:
    """Prompts and responses for a self-check: two that share a prompt, of unlike length, and a third."""
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, vocab_size, count, np.int32) for count in (4, 3, 6)]
    prompts = Ragged.from_rows([ids[0], ids[0], ids[1]], np.int32)
    return prompts, Ragged.from_rows([ids[1], ids[2], ids[2]], np.int32)


def check_temperature(temperature: float) -> None:
    """Log-probs exist for a positive, finite temperature only (greedy decoding reports those of temperature 1)."""
    if not (temperature > 0 and np.isfinite(temperature)):
        raise InvalidInputError(f"temperature must be a positive number, got {temperature}", field="temperature")


def token_places(ragged: Ragged, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Where the tokens of the given rows are in `ragged.values`, in the rows' order."""
    pieces = [np.arange(ragged.offsets[row], ragged.offsets[row + 1]) for row in rows]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
