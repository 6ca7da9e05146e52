"""A reference core from the run's configuration."""

from __future__ import annotations

from argosy.config import Config
from argosy.modeling.determinism import use_repeatable_kernels
from argosy.modeling.loading import ModelSource
from argosy.modeling.memory import keep_freed_memory
from argosy.modeling.microbatch import MicroBatchLimit
from argosy.reference.core import ReferenceModel, ReferenceOptions


def build_core(cfg: Config) -> ReferenceModel:
    """Load the start model, frozen. Blocks for as long as that takes."""
    keep_freed_memory()
    if cfg.argosy.deterministic:
        use_repeatable_kernels()
    model, ref, service = cfg.actor_rollout_ref.model, cfg.actor_rollout_ref.ref, cfg.argosy.reference
    return ReferenceModel(
        ReferenceOptions(
            model=ModelSource(
                path=model.path,
                dtype=service.dtype,
                device=service.device,
                trust_remote_code=model.trust_remote_code,
                override_config=model.override_config,
            ),
            log_prob_chunk_tokens=service.log_prob_chunk_tokens,
            limit=MicroBatchLimit.by_verls_rule(
                ref.log_prob_micro_batch_size_per_gpu, ref.log_prob_use_dynamic_bsz, ref.log_prob_max_token_len_per_gpu
            ),
            threads=cfg.argosy.threads_of("reference"),
        )
    )
