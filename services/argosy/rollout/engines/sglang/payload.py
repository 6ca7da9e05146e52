"""Our sampling parameters as the server's."""

from __future__ import annotations

from typing import Any

from argosy.rollout.engines.sampling.sample import Sample
from argosy.types.errors import InvalidInputError
from argosy.types.records import SamplingParams

SAMPLING = frozenset({
    "top_k", "top_p", "min_p", "min_tokens", "stop_token_ids", "stop", "include_stop_str_in_output", "ignore_eos",
})  # fmt: skip
"""Fields of SamplingParams that are honoured besides max_tokens and temperature."""
_NEVER = -1e9
"""Added to the logits of ids that may not come: their probability is exactly 0 in any float."""


def check_params(params: SamplingParams, *, vocab_size: int, filter_tokens: int) -> None:
    """Refuse filters that leave more tokens than can be renormalised. InvalidInputError names the field."""
    if is_filtered(params, vocab_size) and _top_k(params, vocab_size) > filter_tokens:
        raise InvalidInputError(
            f"params.top_k is {params.top_k} beside a filter, and the log-probs of at most {filter_tokens} tokens can "
            "be renormalised (argosy.rollout.sglang.filter_tokens)",
            field="top_k",
        )


def is_filtered(params: SamplingParams, vocab_size: int) -> bool:
    """Whether the distribution sampled from is not the temperature-scaled one of all tokens."""
    return params.temperature > 0 and (0 < params.top_k < vocab_size or params.top_p < 1 or params.min_p > 0)


def segment_payload(sample: Sample, request_id: str, *, vocab_size: int, stream_interval: int) -> dict[str, Any]:
    """The next request of a sample: to its end, or to min_tokens while stop ids may not come."""
    params = sample.request.params
    filtered = is_filtered(params, vocab_size)
    sampling: dict[str, Any] = {
        "temperature": params.temperature,
        "top_k": _top_k(params, vocab_size) if filtered else -1,
        # 0 keeps the likeliest token, as top_k 1 does.
        "top_p": params.top_p if filtered and params.top_p > 0 else 1.0,
        "min_p": params.min_p if filtered else 0.0,
        "stream_interval": stream_interval,
    }
    sampling |= _ends(sample)
    return {
        "rid": request_id,
        "input_ids": [*sample.request.prompt_ids, *sample.token_ids],
        "sampling_params": sampling,
        "return_logprob": True,
        "return_sampling_mask": filtered,
        "stream": True,
    }


def _ends(sample: Sample) -> dict[str, Any]:
    """Where the segment ends."""
    params, count = sample.request.params, len(sample.token_ids)
    floor = min(params.min_tokens, sample.limit)
    if sample.stop_ids and count < floor:
        banned = dict.fromkeys(map(str, sorted(sample.stop_ids)), _NEVER)
        return {"max_new_tokens": floor - count, "ignore_eos": True, "logit_bias": banned}
    # The server's ignore_eos would switch stop_token_ids off too: those are then looked for as tokens arrive.
    ends = {"max_new_tokens": sample.limit - count, "ignore_eos": params.ignore_eos}
    return ends if params.ignore_eos else {**ends, "stop_token_ids": sorted(sample.stop_ids)}


def _top_k(params: SamplingParams, vocab_size: int) -> int:
    if params.top_p == 0:
        return 1
    return params.top_k if 0 < params.top_k < vocab_size else vocab_size
