"""`data.*`: which rows are read, and how they become prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class DataConfig:
    """Training and validation data, in verl's row schema."""

    train_files: tuple[str, ...] = ()
    """Parquet, JSON or JSONL files of training rows: a path, a glob, or a list of them. Required; `~` is the home
    folder."""
    val_files: tuple[str, ...] = ()
    """Files of held-out rows. May be empty only if trainer.val_before_train=false and trainer.test_freq=-1."""
    train_max_samples: int = -1
    """Use at most this many training rows; -1 uses all of them."""
    val_max_samples: int = -1
    """Use at most this many validation rows; -1 uses all of them."""
    prompt_key: str = "prompt"
    """Column that holds the prompt: a list of {role, content} messages."""
    reward_fn_key: str = "data_source"
    """Column that names the row's data source; it chooses the scorer and groups the validation metrics."""
    max_prompt_length: int = 512
    """Longest templated prompt in tokens; what happens to longer ones: see filter_overlong_prompts and truncation."""
    max_response_length: int = 512
    """Most tokens that are sampled for one response."""
    train_batch_size: int = 1024
    """Prompts per training step (not sequences: those are this × actor_rollout_ref.rollout.n)."""
    gen_batch_size: int | None = None
    """Prompts per generation batch of dynamic sampling (algorithm.filter_groups); null takes train_batch_size."""
    val_batch_size: int | None = None
    """Validation prompts that are in flight at once; null sends all of them."""
    shuffle: bool = True
    """Draw the training rows in a new order in each data epoch; false keeps the file's order."""
    seed: int | None = None
    """Seed of the training order; null takes argosy.seed."""
    validation_shuffle: bool = False
    """While val_max_samples limits the validation rows: keep a random draw of them in place of the first ones."""
    filter_overlong_prompts: bool = False
    """Drop rows whose templated prompt is longer than max_prompt_length, and say how many were dropped."""
    truncation: str = "error"
    """Overlong prompts that were not filtered: "error" ends the run; "left", "right" and "middle" cut that part out."""
    trust_remote_code: bool = False
    """Let transformers run Python code that comes with the tokenizer's folder."""
    apply_chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Extra arguments of the chat template, such as {enable_thinking: false}."""
