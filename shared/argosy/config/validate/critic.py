"""`critic.*` and the warm-up: what must fit the estimator, the batch and the run."""

from __future__ import annotations

from collections.abc import Iterator

from argosy.algorithms.catalog import estimator_needs
from argosy.config.schema import Config
from argosy.config.validate.relations import divisor_problem


def check_critic(config: Config) -> Iterator[str]:
    """A critic where values are read and nowhere else; its mini-batches and token budgets; the warm-up."""
    estimator, enable = config.algorithm.adv_estimator, config.critic.enable
    reads_values = "values" in estimator_needs(estimator)
    if enable is False and reads_values:
        yield (
            f"critic.enable: got false with algorithm.adv_estimator={estimator}, which needs a critic; leave it out, "
            "or set an estimator without one, such as grpo"
        )
    if enable is True and not reads_values:
        yield (
            f"critic.enable: got true with algorithm.adv_estimator={estimator}, which reads no values: nothing would "
            "use the critic; leave it out, or set algorithm.adv_estimator=gae"
        )
    yield from _check_warmup(config)
    if config.needs_critic:
        yield from _check_sizes(config)


def _check_warmup(config: Config) -> Iterator[str]:
    warmup, total = config.trainer.critic_warmup, config.trainer.total_training_steps
    if warmup > 0 and not config.needs_critic:
        yield (
            f"trainer.critic_warmup: got {warmup} with algorithm.adv_estimator={config.algorithm.adv_estimator}, which "
            "has no critic: nothing would be trained in these steps; wants 0"
        )
    elif total is not None and warmup >= total:
        yield (
            f"trainer.critic_warmup: got {warmup} for trainer.total_training_steps={total}: the policy would never be "
            f"trained; wants < {total}"
        )


def _check_sizes(config: Config) -> Iterator[str]:
    critic, given, n = config.full_critic, config.critic, config.actor_rollout_ref.rollout.n
    mini = critic.ppo_mini_batch_size or 0
    if given.ppo_mini_batch_size is not None:  # else it is the actor's, and said there
        problem = divisor_problem("critic.ppo_mini_batch_size", mini, config.data.train_batch_size)
        if problem:
            yield problem
    micro = critic.ppo_micro_batch_size_per_gpu
    if micro is not None and not critic.use_dynamic_bsz and micro > mini * n:
        yield (
            f"critic.ppo_micro_batch_size_per_gpu: got {micro} for mini-batches of {mini * n} sequences "
            f"(ppo_mini_batch_size {mini} × rollout.n {n}); wants ≤ {mini * n}"
        )
    longest = config.data.max_prompt_length + config.data.max_response_length
    budgets = {
        "ppo_max_token_len_per_gpu": (critic.ppo_max_token_len_per_gpu, micro),
        "forward_max_token_len_per_gpu": (
            critic.forward_max_token_len_per_gpu or 0,
            critic.forward_micro_batch_size_per_gpu,
        ),
    }
    for name, (budget, sequences) in budgets.items():
        by_tokens = sequences is None or critic.use_dynamic_bsz
        if by_tokens and budget < longest and getattr(given, name) is not None:
            yield (
                f"critic.{name}: got {budget}, less than one sequence may have (data.max_prompt_length + "
                f"data.max_response_length = {longest}); wants ≥ {longest}"
            )
