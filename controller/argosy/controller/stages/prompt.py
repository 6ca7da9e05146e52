"""Prompts in: which samples a step consists of, and the requests that ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from argosy.config import Config
from argosy.types.ids import SampleId
from argosy.types.records import GenerateRequest, Prompt, SamplingParams

PRIORITIES = {"train": 0, "val": 1, "warmup": 2}
"""By purpose. Validation and the parity check ("warmup") go before training samples that wait: the loop stands still
for them, and they are short."""


def training_params(config: Config) -> SamplingParams:
    """How training samples are drawn (`actor_rollout_ref.rollout`)."""
    rollout = config.actor_rollout_ref.rollout
    engine = config.argosy.rollout
    return SamplingParams(
        max_tokens=config.data.max_response_length,
        temperature=rollout.temperature if rollout.do_sample else 0.0,
        top_k=rollout.top_k,
        top_p=rollout.top_p,
        min_p=engine.min_p,
        repetition_penalty=rollout.repetition_penalty,
        min_tokens=engine.min_response_length,
        stop=tuple(engine.stop),
        stop_token_ids=tuple(engine.stop_token_ids),
        ignore_eos=rollout.ignore_eos,
        seed=config.argosy.seed,
    )


def validation_params(config: Config) -> SamplingParams:
    """How held-out samples are drawn (`actor_rollout_ref.rollout.val_kwargs`): greedy unless do_sample."""
    rollout, engine = config.actor_rollout_ref.rollout, config.argosy.rollout
    chosen = rollout.val_kwargs
    return SamplingParams(
        max_tokens=config.data.max_response_length,
        temperature=chosen.temperature if chosen.do_sample else 0.0,
        top_k=chosen.top_k,
        top_p=chosen.top_p,
        repetition_penalty=rollout.repetition_penalty,
        min_tokens=engine.min_response_length,
        stop=tuple(engine.stop),
        stop_token_ids=tuple(engine.stop_token_ids),
        ignore_eos=rollout.ignore_eos,
        seed=config.argosy.seed,
    )


def make_requests(
    prompts: Sequence[Prompt], n: int, params: SamplingParams, purpose: str, max_model_len: int | None = None
) -> list[GenerateRequest]:
    """n requests per prompt, in sample-id order; max_tokens is cut to what the context leaves."""
    requests = []
    for prompt in prompts:
        room = params.max_tokens if max_model_len is None else max_model_len - len(prompt.token_ids)
        limited = params if room >= params.max_tokens else replace(params, max_tokens=max(room, 1))
        for k in range(n):
            sample = SampleId(prompt.group.data_epoch, prompt.group.position, k)
            requests.append(
                GenerateRequest(sample, prompt.token_ids, limited, purpose, priority=PRIORITIES.get(purpose, 0))
            )
    return sorted(requests, key=lambda request: request.sample_id)


def greedy_requests(
    prompts: Sequence[Prompt], n: int, params: SamplingParams, max_model_len: int | None = None
) -> list[GenerateRequest]:
    """One greedy answer per prompt beside the n sampled ones, as their sample n: the baseline of ReMax.

    Greedy means the likeliest token after the repetition penalty and the stops of `params`.
    """
    greedy = replace(params, temperature=0.0, top_k=-1, top_p=1.0, min_p=0.0)
    return [
        replace(request, sample_id=replace(request.sample_id, k=n))
        for request in make_requests(prompts, 1, greedy, "train", max_model_len)
    ]
