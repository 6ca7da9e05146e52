"""Refuses a malformed request before it reaches an engine, with the name of the field that is wrong.

A prompt that leaves no room in the context isn't malformed: the same data may fit another server, and one such row must
not end a batch. Its sample ends at once, without tokens and flagged (`Completion.overlong_prompt`).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import fields

from argosy.types.errors import InvalidInputError
from argosy.types.records import Completion, FinishReason, GenerateRequest, SamplingParams

MAX_PRIORITY = 1000
"""Either way; engines have their own numbers, which these must fit into."""


_ALWAYS = frozenset({"max_tokens", "temperature", "seed"})
"""Fields that every engine takes; whether a seed fixes a sample, `Capabilities.sample_seeds` tells."""
_DEFAULTS = {field.name: field.default for field in fields(SamplingParams) if field.name not in _ALWAYS}
ALL_FIELDS = frozenset(_DEFAULTS)


def check_request(
    request: GenerateRequest, *, vocab_size: int, max_model_len: int, sampling: Collection[str] = ALL_FIELDS
) -> None:
    """Raise InvalidInputError that names the sample and the field.

    Args:
        sampling: `Capabilities.sampling` of the engine: another field that is set is refused, never ignored.
    """
    problem = (
        _prompt_problem(request, vocab_size)
        or _generated_problem(request, vocab_size, max_model_len)
        or params_problem(request.params, vocab_size)
        or _unsupported_problem(request.params, sampling)
        or _priority_problem(request.priority)
    )
    if problem:
        raise InvalidInputError(f"request {request.key}: {problem}", sample_id=str(request.sample_id))


def overlong_completion(request: GenerateRequest, max_model_len: int) -> Completion | None:
    """The flagged end of a sample whose prompt leaves no room for a token; None for one that fits."""
    prompt_count = len(request.prompt_ids)
    if prompt_count < max_model_len or request.generated.token_ids:
        return None
    return Completion(
        request.sample_id,
        (),
        (),
        (),
        FinishReason.LENGTH,
        error=f"the prompt has {prompt_count} tokens, and the server's context holds {max_model_len} with the answer: "
        "shorten it (data.max_prompt_length drops such rows), or raise actor_rollout_ref.rollout.max_model_len",
        purpose=request.purpose,
    )


def _prompt_problem(request: GenerateRequest, vocab_size: int) -> str:
    if not request.prompt_ids:
        return "prompt_ids is empty"
    return _ids_problem("prompt_ids", request.prompt_ids, vocab_size)


def _generated_problem(request: GenerateRequest, vocab_size: int, max_model_len: int) -> str:
    generated = request.generated
    count = len(generated.token_ids)
    if len(generated.log_probs) != count:
        return f"generated.log_probs has {len(generated.log_probs)} values for {count} tokens"
    if sum(run.token_count for run in generated.versions) != count:
        return f"generated.versions covers {sum(run.token_count for run in generated.versions)} of {count} tokens"
    if count > request.params.max_tokens:
        return f"generated.token_ids has {count} tokens, more than max_tokens {request.params.max_tokens}"
    if not _is_int(request.turn_start) or not 0 <= request.turn_start <= count:
        return f"turn_start must be from 0 to the {count} tokens of generated, got {request.turn_start!r}"
    prompt_count = len(request.prompt_ids)
    if count and prompt_count + count > max_model_len:
        return (
            f"prompt_ids and generated.token_ids have {prompt_count} + {count} tokens, and the server's context holds "
            f"{max_model_len}"
        )
    return _ids_problem("generated.token_ids", generated.token_ids, vocab_size)


def _ids_problem(name: str, ids: tuple[int, ...], vocab_size: int) -> str:
    wrong = [token for token in ids if not 0 <= token < vocab_size] if ids and _outside(ids, vocab_size) else []
    if wrong:
        return f"{name} holds {wrong[0]}, and the model's ids are 0 … {vocab_size - 1}"
    return ""


def _outside(ids: tuple[int, ...], vocab_size: int) -> bool:
    return min(ids) < 0 or max(ids) >= vocab_size


def params_problem(params: SamplingParams, vocab_size: int) -> str:
    """What is wrong with sampling parameters, or an empty string."""
    number_problems = [
        (not _is_int(params.max_tokens) or params.max_tokens < 1, "max_tokens", "an integer of at least 1"),
        (not _is_int(params.min_tokens) or params.min_tokens < 0, "min_tokens", "an integer of at least 0"),
        (not _is_int(params.top_k) or params.top_k < -1, "top_k", "a positive integer, or -1 or 0 for off"),
        (not _within(params.top_p, 0, 1), "top_p", "in [0, 1] (1 is off, 0 keeps one token)"),
        (not _within(params.min_p, 0, 1) or params.min_p == 1, "min_p", "in [0, 1) (0 is off)"),
        (not _within(params.temperature, 0, math.inf), "temperature", "0 (greedy) or a finite number above 1e-5"),
        (0 < params.temperature < 1e-5, "temperature", "0 (greedy) or a finite number above 1e-5"),
        (not params.repetition_penalty > 0, "repetition_penalty", "a finite number above 0 (1 is off)"),
        (not math.isfinite(params.repetition_penalty), "repetition_penalty", "a finite number above 0 (1 is off)"),
        (not _is_int(params.seed), "seed", "an integer"),
    ]
    for wrong, name, rule in number_problems:
        if wrong:
            return f"params.{name} must be {rule}, got {getattr(params, name)!r}"
    if params.min_tokens > params.max_tokens:
        return f"params.min_tokens {params.min_tokens} is above max_tokens {params.max_tokens}"
    if any(not isinstance(stop, str) or not stop for stop in params.stop):
        return f"params.stop must hold strings that are not empty, got {list(params.stop)!r}"
    return _ids_problem("params.stop_token_ids", params.stop_token_ids, vocab_size)


def _unsupported_problem(params: SamplingParams, sampling: Collection[str]) -> str:
    """A field that is set and that the engine doesn't have."""
    for name, off in _DEFAULTS.items():
        value = getattr(params, name)
        if name not in sampling and value != off and not (name == "top_k" and value == 0):
            return f"params.{name} is {value!r}, and this server's engine doesn't have {name}"
    return ""


def _priority_problem(priority: int) -> str:
    if not _is_int(priority) or abs(priority) > MAX_PRIORITY:
        return f"priority must be an integer from {-MAX_PRIORITY} to {MAX_PRIORITY}, got {priority!r}"
    return ""


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _within(value: float, low: float, high: float) -> bool:
    return isinstance(value, (int, float)) and low <= value <= high and math.isfinite(value)
