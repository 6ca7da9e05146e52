"""`algorithm.*` and reward managers: an estimator's needs, dynamic sampling, rollout correction, overlong penalty."""

from __future__ import annotations

import math
from collections.abc import Iterator

from argosy.algorithms.catalog import estimator_needs
from argosy.algorithms.rollout_correction.thresholds import LOSS_TYPES, parse_rules
from argosy.config.schema import Config
from argosy.types.errors import ConfigError

_N = "actor_rollout_ref.rollout.n"
_CORRECTION = "algorithm.rollout_correction"
_BUFFER = "reward_model.reward_kwargs.overlong_buffer_cfg"
LARGEST_KL_ERROR = 0.2
"""`argosy.algorithms.kl_reward.ERROR_LIMIT`, which is not imported because numpy comes with it."""


def check_estimator(config: Config) -> Iterator[str]:
    """Groups, greedy baselines, parts of the reward, the adaptive penalty."""
    algorithm, rollout = config.algorithm, config.actor_rollout_ref.rollout
    name, needs = algorithm.adv_estimator, estimator_needs(algorithm.adv_estimator)
    if "group" in needs and rollout.n < 2:
        yield (
            f"{_N}: got {rollout.n} with algorithm.adv_estimator={name}, which compares the responses of one prompt: "
            f"with {rollout.n} each advantage is 0 and nothing is learned; wants ≥ 2 (5, 8 and 16 are usual)"
        )
    if not rollout.do_sample and rollout.n > 1:
        yield (
            f"actor_rollout_ref.rollout.do_sample: got false with rollout.n={rollout.n}: greedy responses of one "
            f"prompt are all the same, so {rollout.n} of them say no more than one; set it true"
        )
    if "baseline" in needs and not rollout.do_sample and rollout.n == 1:
        yield (
            f"actor_rollout_ref.rollout.do_sample: got false with algorithm.adv_estimator={name}: the greedy answer is "
            "the baseline, so each advantage is 0 and nothing is learned; set it true"
        )
    yield from _check_parts(config, needs)
    yield from _check_kl_control(config)


def _check_kl_control(config: Config) -> Iterator[str]:
    algorithm, control = config.algorithm, config.algorithm.kl_ctrl
    sequences = config.data.train_batch_size * config.actor_rollout_ref.rollout.n
    if not algorithm.use_kl_in_reward or control.type != "adaptive":
        return
    if LARGEST_KL_ERROR * sequences >= control.horizon:
        yield (
            f"algorithm.kl_ctrl.horizon: got {control.horizon} for batches of {sequences} sequences (train_batch_size "
            f"{config.data.train_batch_size} × rollout.n {config.actor_rollout_ref.rollout.n}): one step may change "
            f"the coefficient by {LARGEST_KL_ERROR:g} × {sequences} / {control.horizon} of itself, so it could become "
            f"0 or negative; wants > {LARGEST_KL_ERROR * sequences:g} (10000 is usual)"
        )


def _check_parts(config: Config, needs: frozenset[str]) -> Iterator[str]:
    algorithm = config.algorithm
    keys, weights = algorithm.gdpo_reward_keys, algorithm.gdpo_reward_weights
    if "reward_parts" in needs and not keys:
        yield (
            f"algorithm.gdpo_reward_keys: got [] with algorithm.adv_estimator={algorithm.adv_estimator}; wants names "
            "of numbers that the scorer returns, such as [acc,format]"
        )
    if "reward_parts" in needs and algorithm.use_kl_in_reward:
        yield (
            f"algorithm.use_kl_in_reward: got true with algorithm.adv_estimator={algorithm.adv_estimator}, which sees "
            "the named parts of the score and nothing else of the reward; set actor_rollout_ref.actor.use_kl_loss=true "
            "to keep near the reference"
        )
    if "reward_parts" not in needs and (keys or weights):
        yield (
            f"algorithm.gdpo_reward_{'keys' if keys else 'weights'}: got {list(keys or weights)} with "
            f"algorithm.adv_estimator={algorithm.adv_estimator}, which reads no named parts; leave it out, or set "
            "algorithm.adv_estimator=gdpo"
        )
        return
    if len(set(keys)) < len(keys):
        yield f"algorithm.gdpo_reward_keys: got {list(keys)}, where a name is given twice"
    if weights and len(weights) != len(keys):
        yield (
            f"algorithm.gdpo_reward_weights: got {len(weights)} weights {list(weights)} for {len(keys)} "
            f"gdpo_reward_keys {list(keys)}; wants one each, or none"
        )
    elif weights and not (all(map(math.isfinite, weights)) and any(weights)):
        yield (
            f"algorithm.gdpo_reward_weights: got {list(weights)}; wants finite numbers that are not all 0, or nothing "
            "is learned"
        )


def check_filter_groups(config: Config) -> Iterator[str]:
    """Dynamic sampling."""
    chosen, data, n = config.algorithm.filter_groups, config.data, config.actor_rollout_ref.rollout.n
    if not chosen.enable:
        if data.gen_batch_size is not None and data.gen_batch_size != data.train_batch_size:
            yield (
                f"data.gen_batch_size: got {data.gen_batch_size} for data.train_batch_size={data.train_batch_size}: "
                "only dynamic sampling draws batches of another size; set algorithm.filter_groups.enable=true, or "
                "leave it out"
            )
        return
    if n < 2:
        yield (
            f"algorithm.filter_groups.enable: got true with {_N}={n}: a group of {n} never differs within itself, so "
            "every group would be dropped; wants n ≥ 2"
        )
    if chosen.metric is None:
        yield (
            "algorithm.filter_groups.metric: must say what has to differ within a group: acc, score, seq_reward, "
            "seq_final_reward, or a number that the scorer returns"
        )
    if chosen.metric == "seq_final_reward" and config.algorithm.use_kl_in_reward:
        yield (
            "algorithm.filter_groups.metric: got seq_final_reward with algorithm.use_kl_in_reward=true: the KL differs "
            "for each response, so no group would ever be dropped; wants acc, score or seq_reward"
        )
    limit, size = chosen.max_num_gen_batches, data.gen_batch_size or data.train_batch_size
    if limit > 0 and limit * size < data.train_batch_size:
        yield (
            f"algorithm.filter_groups.max_num_gen_batches: got {limit} of data.gen_batch_size={size} prompts: even if "
            f"no group is dropped, {limit * size} are fewer than data.train_batch_size={data.train_batch_size}"
        )


def check_rollout_correction(config: Config) -> Iterator[str]:
    """Names, thresholds, and what bypass mode can't be combined with."""
    chosen = config.algorithm.rollout_correction
    try:
        parse_rules(chosen.rollout_is, chosen.rollout_is_threshold, chosen.rollout_rs, chosen.rollout_rs_threshold)
    except ConfigError as error:
        yield error.message
    if chosen.rollout_is is None and chosen.rollout_is_batch_normalize:
        yield (
            f"{_CORRECTION}.rollout_is_batch_normalize: got true, but {_CORRECTION}.rollout_is=null makes no weights; "
            "set rollout_is=token or sequence"
        )
    if chosen.rollout_rs is None and chosen.rollout_rs_threshold is not None:
        yield (
            f"{_CORRECTION}.rollout_rs_threshold: got {chosen.rollout_rs_threshold!r}, but {_CORRECTION}.rollout_rs="
            "null rejects nothing; set rollout_rs, such as seq_mean_k1"
        )
    if chosen.bypass_mode:
        yield from _check_bypass(config)
    elif chosen.loss_type != LOSS_TYPES[0]:
        yield (
            f"{_CORRECTION}.loss_type: got {chosen.loss_type}, which is a loss of bypass mode; set "
            f"{_CORRECTION}.bypass_mode=true, or choose actor_rollout_ref.actor.policy_loss.loss_mode"
        )


def _check_bypass(config: Config) -> Iterator[str]:
    chosen, mode = config.algorithm.rollout_correction, config.actor_rollout_ref.actor.policy_loss.loss_mode
    if chosen.loss_type == "ppo_clip" and chosen.rollout_is is not None:
        yield (
            f"{_CORRECTION}.rollout_is: got {chosen.rollout_is} with bypass_mode=true and loss_type=ppo_clip, whose "
            "ratio π/π_rollout is already that weight; set rollout_is=null, or loss_type=reinforce"
        )
    if mode not in ("vanilla", "bypass_mode"):
        yield (
            f"actor_rollout_ref.actor.policy_loss.loss_mode: got {mode} with {_CORRECTION}.bypass_mode=true, whose "
            f"loss is bypass_mode ({_CORRECTION}.loss_type={chosen.loss_type}); leave loss_mode out, or set "
            "bypass_mode=false"
        )
    if "sum_pi_squared" in estimator_needs(config.algorithm.adv_estimator):
        yield (
            f"{_CORRECTION}.bypass_mode: got true with algorithm.adv_estimator={config.algorithm.adv_estimator}, which "
            "needs the pass over all tokens that bypass mode leaves out; set bypass_mode=false"
        )


def check_overlong(config: Config) -> Iterator[str]:
    """The reward manager's overlong penalty."""
    manager, kwargs = config.reward_model.reward_manager, config.reward_model.reward_kwargs
    buffer, longest = kwargs.overlong_buffer_cfg, config.data.max_response_length
    if not buffer.enable:
        return
    if manager != "dapo":
        yield f"{_BUFFER}.enable: got true with reward_model.reward_manager={manager}, which has no penalty; set dapo"
    if buffer.len is None:
        yield f"{_BUFFER}.len: must be given where the penalty is on: the tokens over which it grows"
        return
    if "reward_parts" in estimator_needs(config.algorithm.adv_estimator):
        yield (
            f"{_BUFFER}.enable: got true with algorithm.adv_estimator={config.algorithm.adv_estimator}, which sees the "
            "named parts of the score and nothing else of the reward; set it false, and return the penalty as a part"
        )
    whole = kwargs.max_resp_len or longest
    if buffer.len > whole:
        yield f"{_BUFFER}.len: got {buffer.len}, more than max_resp_len={whole}; wants ≤ {whole}"
    elif whole - buffer.len >= longest:
        yield (
            f"reward_model.reward_kwargs.max_resp_len: got {whole} with {_BUFFER}.len={buffer.len}: the penalty begins "
            f"beyond {whole - buffer.len} tokens, and data.max_response_length={longest} allows no such answer"
        )
