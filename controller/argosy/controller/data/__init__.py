"""Datasets in verl's schema, templated into prompts, drawn in an order that can be resumed exactly.

files → tables → rows (checked, null-free) → PromptSource (token ids, filtered, cut) → PromptSampler (order, resume).
"""

from __future__ import annotations

from argosy.controller.data.prompts import PromptOptions, PromptSource, build_prompts, load_prompts
from argosy.controller.data.sampler import PromptSampler, validation_batches

__all__ = ["PromptOptions", "PromptSampler", "PromptSource", "build_prompts", "load_prompts", "validation_batches"]
