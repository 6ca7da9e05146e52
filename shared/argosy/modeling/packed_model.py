"""The one forward pass that trainer and reference share: packed rows in, statistics of the response tokens out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from argosy.modeling.attention import PACKED_ATTENTION
from argosy.modeling.log_probs import TokenStats, token_stats
from argosy.modeling.microbatch import MicroBatchLimit, plan_micro_batches
from argosy.modeling.packing import PackedBatch, pack
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import AbortedError, InternalError, InvalidInputError
from argosy.types.ragged import Ragged

COLUMNS = ("log_probs", "entropy", "sum_pi_squared")
"""What `compute_log_probs` can return, one float32 per response token each."""

SELF_CHECK_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.5}
"""Largest difference in log-prob between the packed pass and the model's own that is rounding and not an error."""


class PackedModel:
    """A causal LM behind packed, chunked log-probs.

    Args:
        model: From `load_causal_lm`.
        compute_dtype: Of matrix products; bfloat16 over float32 parameters is autocast.
        chunk_tokens: Response tokens whose logits exist at one time.
    """

    def __init__(self, model: Any, *, compute_dtype: torch.dtype = torch.float32, chunk_tokens: int = 1024) -> None:
        self.model = model
        self.compute_dtype = compute_dtype
        self.chunk_tokens = chunk_tokens
        self._base = getattr(model, model.base_model_prefix)
        self._head = model.get_output_embeddings()

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
        with torch.autocast(device, self.compute_dtype, enabled=self.compute_dtype != parameter_dtype):
            output = self._base(
                input_ids=packed.input_ids[None],
                position_ids=packed.position_ids[None],
                attention_mask=None,
                use_cache=False,
                packed_layout=packed.layout,
            )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    def response_stats(
        self, packed: PackedBatch, *, temperature: float, entropy: bool = False, sum_pi_squared: bool = False
    ) -> TokenStats:
        """Statistics of the M response tokens; only their rows go through the output head."""
        if len(packed.targets) == 0:
            empty = torch.zeros(0, device=self.device)
            return TokenStats(empty, empty if entropy else None, empty if sum_pi_squared else None)
        return token_stats(
            self.hidden_states(packed).index_select(0, packed.output_rows),
            self._head.weight,
            packed.targets,
            temperature=temperature,
            chunk_tokens=self.chunk_tokens,
            compute_dtype=self.compute_dtype,
            entropy=entropy,
            sum_pi_squared=sum_pi_squared,
        )

    def evaluate(
        self,
        batch: TrajectoryBatch,
        columns: Sequence[str],
        *,
        temperature: float,
        limit: MicroBatchLimit,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> TrajectoryBatch:
        """The batch's ids with the named columns, without gradients.

        Rows keep their order, whatever micro-batches they were computed in (case B20).

        Raises:
            InvalidInputError: an unknown column, an id outside the vocabulary, too long a sequence, an empty prompt.
            AbortedError: `cancelled` said so between two micro-batches.
        """
        if not columns:
            raise InvalidInputError(f"no column is asked for; known: {', '.join(COLUMNS)}", field="columns")
        unknown = sorted(set(columns) - set(COLUMNS))
        if unknown:
            raise InvalidInputError(f"unknown column {unknown[0]!r}; known: {', '.join(COLUMNS)}", field="columns")
        check_temperature(temperature)
        self.check(batch)
        prompts, responses = batch.ragged("prompt_ids"), batch.ragged("response_ids")
        results = {name: np.zeros(len(responses.values), np.float32) for name in columns}
        with torch.no_grad():
            for rows in plan_micro_batches(prompts, responses, limit):
                if cancelled():
                    raise AbortedError("nobody waits for these log-probs any more")
                packed = pack(prompts.take(rows), responses.take(rows), device=self.device)
                stats = self.response_stats(
                    packed,
                    temperature=temperature,
                    entropy="entropy" in columns,
                    sum_pi_squared="sum_pi_squared" in columns,
                )
                places = token_places(responses, rows)
                for name in columns:
                    results[name][places] = getattr(stats, name).float().cpu().numpy()
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
        """Compare a small packed pass with the model's own plain forward; returns the largest log-prob difference.

        An architecture whose attention or output head does something that packing doesn't know would train on wrong
        numbers in silence. Raises InternalError instead.
        """
        rng = np.random.default_rng(0)
        ids = [rng.integers(0, self.vocab_size, count, np.int32) for count in (4, 3, 6)]
        prompts = Ragged.from_rows([ids[0], ids[0], ids[1]], np.int32)
        responses = Ragged.from_rows([ids[1], ids[2], ids[2]], np.int32)
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


def check_temperature(temperature: float) -> None:
    """Log-probs exist for a positive, finite temperature only (greedy decoding reports those of temperature 1)."""
    if not (temperature > 0 and np.isfinite(temperature)):
        raise InvalidInputError(f"temperature must be a positive number, got {temperature}", field="temperature")


def token_places(ragged: Ragged, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Where the tokens of the given rows are in `ragged.values`, in the rows' order."""
    pieces = [np.arange(ragged.offsets[row], ragged.offsets[row + 1]) for row in rows]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
