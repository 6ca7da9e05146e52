"""The reference core: a frozen model that answers log-prob calls. Implements `argosy.roles.reference.Reference`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from argosy.modeling.compute_thread import ComputeThread
from argosy.modeling.loading import ModelSource, load_causal_lm, resolve_dtype
from argosy.modeling.microbatch import MicroBatchLimit
from argosy.modeling.packed_model import PackedModel
from argosy.types.batch import TrajectoryBatch


@dataclass(frozen=True, slots=True)
class ReferenceOptions:
    """One reference process."""

    model: ModelSource
    """`model.dtype` is that of parameters and compute alike: nothing is trained, so nothing needs master weights."""
    log_prob_chunk_tokens: int = 1024
    """Response tokens whose logits exist at one time."""
    limit: MicroBatchLimit = field(default_factory=lambda: MicroBatchLimit(max_tokens=16384))
    threads: int = 0
    """PyTorch's intra-op threads; 0 leaves PyTorch's own choice."""


class ReferenceModel:
    """Frozen weights. Calls run in one compute thread, in order of arrival."""

    def __init__(self, options: ReferenceOptions) -> None:
        self._options = options
        self._thread = ComputeThread("reference", threads=options.threads)
        model = load_causal_lm(options.model)
        model.requires_grad_(False)
        self._model = PackedModel(
            model, compute_dtype=resolve_dtype(options.model.dtype), chunk_tokens=options.log_prob_chunk_tokens
        )
        self._model.self_check()

    async def compute_log_probs(
        self, batch: TrajectoryBatch, columns: Sequence[str], *, temperature: float, deadline_s: float
    ) -> TrajectoryBatch:
        """Columns "log_probs" (of logits / temperature), "entropy", "sum_pi_squared" of the response tokens."""
        given_up = False

        def compute() -> TrajectoryBatch:
            return self._model.evaluate(
                batch, columns, temperature=temperature, limit=self._options.limit, cancelled=lambda: given_up
            )

        try:
            return await self._thread.run(compute, deadline_s=deadline_s)
        finally:
            given_up = True  # nobody waits any more: stop at the next micro-batch

    def close(self) -> None:
        """Let a running call finish, drop the waiting ones."""
        self._thread.close()
