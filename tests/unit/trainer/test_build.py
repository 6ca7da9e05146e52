"""The configuration's keys reach the trainer: verl's names and rules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from argosy.config import Config
from argosy.modeling.microbatch import MicroBatchLimit
from argosy.trainer.backends import make_backend
from argosy.trainer.build import options_from
from argosy.trainer.options import TrainerOptions
from argosy.types.errors import ConfigError

ACTOR = "actor_rollout_ref.actor."
ROLLOUT = "actor_rollout_ref.rollout."


def options(**values: Any) -> TrainerOptions:
    return options_from(Config().with_values({"actor_rollout_ref.model.path": "m", **values}))


def test_defaults_are_verls() -> None:
    found = options()
    assert found.optimizer.schedule.rate(0) == 1e-6
    assert (found.optimizer.weight_decay, found.optimizer.betas, found.optimizer.grad_clip) == (0.01, (0.9, 0.999), 1.0)
    assert found.gradient_checkpointing
    assert found.update_limit == MicroBatchLimit(max_tokens=16384)


@pytest.mark.parametrize(
    ("values", "update"),
    [
        ({ACTOR + "ppo_micro_batch_size_per_gpu": 4}, MicroBatchLimit(max_sequences=4)),
        ({ACTOR + "ppo_max_token_len_per_gpu": 999}, MicroBatchLimit(max_tokens=999)),
        (
            {
                ACTOR + "ppo_micro_batch_size_per_gpu": 4,
                ACTOR + "use_dynamic_bsz": True,
                ACTOR + "ppo_max_token_len_per_gpu": 999,
            },
            MicroBatchLimit(max_tokens=999),
        ),
    ],
)
def test_micro_batches_by_sequences_or_by_tokens(values: dict[str, Any], update: MicroBatchLimit) -> None:
    assert options(**values).update_limit == update


def test_log_prob_micro_batches_have_keys_of_their_own() -> None:
    found = options(**{ROLLOUT + "log_prob_micro_batch_size_per_gpu": 3})
    assert (found.log_prob_limit, found.update_limit.max_sequences) == (MicroBatchLimit(max_sequences=3), None)


def test_the_rest_of_the_keys() -> None:
    found = options(
        **{
            ACTOR + "fsdp_config.dtype": "bfloat16",
            ACTOR + "grad_clip": 0.3,
            ACTOR + "calculate_entropy": True,
            ACTOR + "optim.weight_decay": 0.0,
            ACTOR + "optim.betas": [0.8, 0.95],
            ACTOR + "optim.eps": 1e-6,
            "actor_rollout_ref.model.enable_gradient_checkpointing": False,
            "actor_rollout_ref.model.trust_remote_code": True,
            "argosy.rollout.dtype": "bfloat16",
            "argosy.trainer.threads": 3,
            "argosy.trainer.device": "cpu",
            "argosy.trainer.log_prob_chunk_tokens": 77,
        }
    )
    optimizer = found.optimizer
    assert (optimizer.grad_clip, optimizer.weight_decay, optimizer.betas, optimizer.eps) == (
        0.3,
        0.0,
        (0.8, 0.95),
        1e-6,
    )
    assert (found.compute_dtype, found.publish_dtype, found.report_entropy) == ("bfloat16", "bfloat16", True)
    assert (found.gradient_checkpointing, found.model.trust_remote_code) == (False, True)
    assert (found.threads, found.model.device, found.log_prob_chunk_tokens) == (3, "cpu", 77)
    assert found.send.device == "cpu"


def test_deterministic_fixes_the_thread_count_that_is_left_open() -> None:
    assert options().threads == 0
    assert options(**{"argosy.deterministic": True}).threads == 1
    assert options(**{"argosy.deterministic": True, "argosy.trainer.threads": 3}).threads == 3


CORES = """
import importlib, os, sys, torch
from argosy.config import Config

config = Config().with_values({"argosy.deterministic": True, "actor_rollout_ref.model.path": sys.argv[1]})
for role in ("trainer", "reference", "rollout"):
    torch.use_deterministic_algorithms(False)
    importlib.import_module(f"argosy.{role}.build").build_core(config)
    print(role, torch.are_deterministic_algorithms_enabled(), flush=True)
os._exit(0)
"""


def test_deterministic_cores_use_repeatable_kernels_only(tiny_folder: Path) -> None:
    command = [sys.executable, "-c", CORES, str(tiny_folder)]  # in a process of its own: the switch is the process's
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.split() == ["trainer", "True", "reference", "True", "rollout", "True"], done.stderr


def test_warmup_by_steps_or_by_share_and_a_falling_schedule() -> None:
    schedule = options(**{ACTOR + "optim.lr": 1.0, ACTOR + "optim.lr_warmup_steps": 4}).optimizer.schedule
    assert [schedule.rate(step) for step in (0, 2, 4, 99)] == [0.0, 0.5, 1.0, 1.0]
    falling = {
        ACTOR + "optim.lr": 1.0,
        ACTOR + "optim.lr_warmup_steps_ratio": 0.2,
        ACTOR + "optim.lr_scheduler_type": "linear",
        ACTOR + "optim.min_lr_ratio": 0.5,
        "trainer.total_training_steps": 10,
    }
    schedule = options(**falling).optimizer.schedule
    assert [schedule.rate(step) for step in (0, 1, 2, 6, 10)] == [0.0, 0.5, 1.0, 0.75, 0.5]
    own_length = options(**falling, **{ACTOR + "optim.total_training_steps": 20}).optimizer.schedule
    assert own_length.rate(10) > 0.75


@pytest.mark.parametrize("key", ["lr_scheduler_type", "lr_warmup_steps_ratio"])
def test_a_schedule_without_a_length_is_refused(key: str) -> None:
    value: Any = "cosine" if key == "lr_scheduler_type" else 0.1
    with pytest.raises(ConfigError, match=r"optim\.total_training_steps"):
        options(**{ACTOR + "optim." + key: value})


def test_an_unknown_backend_lists_the_known_ones() -> None:
    import dataclasses

    with pytest.raises(ConfigError, match=r"backend 'fsdp9'; known: single"):
        make_backend(dataclasses.replace(options(), backend="fsdp9"))
