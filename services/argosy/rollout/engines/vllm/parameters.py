"""Our sampling parameters as vLLM's."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from argosy.rollout.engines.sampling.noise import noise_key
from argosy.types.errors import InvalidInputError
from argosy.types.records import GenerateRequest

SAMPLING = frozenset(
    {
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "min_tokens",
        "stop_token_ids",
        "stop",
        "include_stop_str_in_output",
        "ignore_eos",
        "seed",
    }
)
"""Fields that are honoured."""
EXTRA = "argosy"
"""See `noise.EXTRA`, which can't be imported without vllm."""
_LEAST_TEMPERATURE = 0.01
"""vLLM silently raises what is below."""


def to_vllm(request: GenerateRequest, *, stop_ids: Collection[int], limit: int, vocab_size: int) -> Any:
    """vLLM's SamplingParams for what is left of a request.

    Args:
        request: A checked one.
        stop_ids: Every id that ends it.
        limit: Most tokens of output, those in `request.generated` included.
        vocab_size: Of the model.

    Raises:
        InvalidInputError: a temperature that vLLM would change.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params, done = request.params, len(request.generated.token_ids)
    if 0 < params.temperature < _LEAST_TEMPERATURE:
        raise InvalidInputError(
            f"request {request.key}: params.temperature {params.temperature:g} is below {_LEAST_TEMPERATURE}, the "
            "least that vLLM samples with: use 0 for greedy",
            sample_id=str(request.sample_id),
        )
    top_k = params.top_k if 0 < params.top_k < vocab_size else 0
    top_p = params.top_p
    if top_p == 0:  # one token is kept; vLLM wants a number above 0
        top_k, top_p = 1, 1.0
    return SamplingParams(
        temperature=params.temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        max_tokens=limit - done,
        min_tokens=max(0, params.min_tokens - done),
        stop_token_ids=sorted(stop_ids),
        # The end ids are among stop_token_ids where they count, so vLLM need know of no others.
        ignore_eos=True,
        detokenize=False,
        logprobs=0,
        output_kind=RequestOutputKind.DELTA,
        extra_args={EXTRA: [noise_key(params.seed, request.purpose, request.sample_id), len(request.prompt_ids)]},
    )


def prompt_of(ids: Sequence[int]) -> dict[str, Any]:
    """Token ids as vLLM takes them without any work on them."""
    return {"type": "token", "prompt_token_ids": list(ids)}
