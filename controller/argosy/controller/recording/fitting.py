"""Does a record fit the configuration that is to train from it? Told before any process starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from argosy.algorithms.catalog import estimator_needs
from argosy.config import Config
from argosy.controller.recording.store import Record
from argosy.types.errors import ConfigError
from argosy.types.records import Prompt

_KEY = "argosy.replay.path"


def tokenizer_digest(config: Config) -> str:
    """Names the vocabulary: equal digests give every id the same text. Raises InvalidInputError without a tokenizer."""
    from argosy.text import load_tokenizer

    model = config.actor_rollout_ref.model
    return load_tokenizer(
        model.tokenizer_path or model.path, trust_remote_code=model.trust_remote_code or config.data.trust_remote_code
    ).digest


def check_fits(config: Config, record: Record, first_step: int, total_steps: int) -> None:
    """Raise ConfigError that lists what doesn't fit; CorruptDataError that names the steps that are damaged.

    Args:
        config: Of the run that is to train.
        record: What it is to train from.
        first_step: Steps done already.
        total_steps: Steps wanted in all.
    """
    problems = list(_problems(config, record, first_step, total_steps))
    if problems:
        raise ConfigError("\n".join(f"{_KEY}: {record.folder} {problem}" for problem in problems))


def _problems(config: Config, record: Record, first_step: int, total_steps: int) -> Iterator[str]:
    head = record.head
    if head.tokenizer != tokenizer_digest(config):
        yield (
            f"was recorded with the vocabulary of {head.model}, which is not that of actor_rollout_ref.model.path="
            f"{config.actor_rollout_ref.model.path}: its token ids mean something else there"
        )
    n, batch = config.actor_rollout_ref.rollout.n, config.data.train_batch_size
    if head.n != n:
        yield f"has n={head.n} samples per prompt, actor_rollout_ref.rollout.n is {n}"
    if head.train_batch_size != batch:
        yield f"has {head.train_batch_size} prompts per step, data.train_batch_size is {batch}"
    missing = [step for step in range(first_step + 1, total_steps + 1) if step not in record.entries]
    if missing:
        yield (
            f"has {record.range_text()}; step {missing[0]} is wanted (steps {first_step + 1} to {total_steps}): "
            f"set trainer.total_training_steps to at most {_last_before_gap(record, first_step)}"
        )
        return
    record.check_all(range(first_step + 1, total_steps + 1))
    first = record.read(first_step + 1).record
    if "baseline" in estimator_needs(config.algorithm.adv_estimator) and not first.baselines:
        yield f"has no greedy answers, which algorithm.adv_estimator={config.algorithm.adv_estimator} needs"
    yield from _length_problems(config, first.prompts)


def _length_problems(config: Config, prompts: Sequence[Prompt]) -> Iterator[str]:
    longest = max((len(prompt.token_ids) for prompt in prompts), default=0)
    if longest > config.data.max_prompt_length:
        yield f"has a prompt of {longest} tokens, data.max_prompt_length is {config.data.max_prompt_length}"


def _last_before_gap(record: Record, first_step: int) -> int:
    step = first_step
    while step + 1 in record.entries:
        step += 1
    return step
