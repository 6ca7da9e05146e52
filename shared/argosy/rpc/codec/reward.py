"""RewardService: items, outcomes, capabilities."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from argosy.api.reward.v1 import reward_service_pb2 as pb
from argosy.rpc.codec.common import sample_id_from_pb, sample_id_to_pb, scalars_from_pb, scalars_to_pb
from argosy.types.errors import InvalidInputError
from argosy.types.records import (
    Abstained,
    Failed,
    Outcome,
    RewardCapabilities,
    Scored,
    ScoreRequest,
    ScoreResult,
)

DEFAULT_MAX_BATCH_SIZE = 256


def item_to_pb(item: ScoreRequest, *, with_ids: bool, with_messages: bool = False) -> pb.ScoreItem:
    """One sample to judge. InvalidInputError if truth, extra_info or messages are not JSON (NaN isn't)."""
    message = pb.ScoreItem(
        sample_id=sample_id_to_pb(item.sample_id),
        data_source=item.data_source,
        prompt_text=item.prompt_text,
        response_text=item.response_text,
        extra_info_json=_to_json(dict(item.extra_info), f"extra_info of {item.sample_id}") if item.extra_info else "",
        truncated=not item.valid_response,
    )
    if with_ids:
        message.prompt_ids.extend(item.prompt_ids)
        message.response_ids.extend(item.response_ids)
    if with_messages and item.messages:
        message.messages_json = _to_json([dict(entry) for entry in item.messages], f"messages of {item.sample_id}")
    if isinstance(item.ground_truth, str):
        message.ground_truth_text = item.ground_truth
    elif item.ground_truth is not None:
        message.ground_truth_json = _to_json(item.ground_truth, f"ground_truth of {item.sample_id}")
    return message


def item_from_pb(message: pb.ScoreItem) -> ScoreRequest:
    """Read back. InvalidInputError if a JSON field can't be read."""
    sample = sample_id_from_pb(message.sample_id)
    extra_info = _from_json(message.extra_info_json, f"extra_info of {sample}") if message.extra_info_json else {}
    if not isinstance(extra_info, dict):
        raise InvalidInputError(f"extra_info of {sample} must be a JSON object, got {type(extra_info).__name__}")
    messages = _from_json(message.messages_json, f"messages of {sample}") if message.messages_json else []
    if not isinstance(messages, list) or not all(isinstance(entry, dict) for entry in messages):
        raise InvalidInputError(f"messages of {sample} must be a JSON list of objects")
    kind = message.WhichOneof("ground_truth")
    truth: Any = None
    if kind == "ground_truth_text":
        truth = message.ground_truth_text
    elif kind == "ground_truth_json":
        truth = _from_json(message.ground_truth_json, f"ground_truth of {sample}")
    return ScoreRequest(
        sample_id=sample,
        data_source=message.data_source,
        prompt_text=message.prompt_text,
        response_text=message.response_text,
        ground_truth=truth,
        extra_info=extra_info,
        prompt_ids=tuple(message.prompt_ids),
        response_ids=tuple(message.response_ids),
        valid_response=not message.truncated,
        messages=tuple(messages),
    )


def result_to_pb(result: ScoreResult) -> pb.ScoreResult:
    """One outcome."""
    message = pb.ScoreResult(sample_id=sample_id_to_pb(result.sample_id))
    outcome = result.outcome
    if isinstance(outcome, Scored):
        parts = scalars_to_pb(outcome.parts)
        message.scored.CopyFrom(pb.Scored(score=outcome.score, parts=parts, token_scores=outcome.token_scores))
    elif isinstance(outcome, Abstained):
        message.abstained.CopyFrom(pb.Abstained(reason=outcome.reason))
    else:
        message.failed.CopyFrom(pb.Failed(reason=outcome.reason, message=outcome.message))
    return message


def result_from_pb(message: pb.ScoreResult) -> ScoreResult:
    """Read back. What no verifier may return (no outcome, no score, NaN) is the outcome Failed("bad_return")."""
    return ScoreResult(sample_id_from_pb(message.sample_id), _outcome_from_pb(message))


def results_to_pb(results: Sequence[ScoreResult]) -> pb.ScoreResponse:
    """All outcomes, counted; the servicer adds the context."""
    return pb.ScoreResponse(
        results=[result_to_pb(result) for result in results],
        scored_count=sum(isinstance(result.outcome, Scored) for result in results),
        abstained_count=sum(isinstance(result.outcome, Abstained) for result in results),
        failed_count=sum(isinstance(result.outcome, Failed) for result in results),
    )


def capabilities_to_pb(capabilities: RewardCapabilities) -> pb.GetCapabilitiesResponse:
    """What the server can judge; the servicer adds the context."""
    return pb.GetCapabilitiesResponse(
        data_sources=capabilities.data_sources,
        needs_token_ids=capabilities.needs_token_ids,
        max_batch_size=capabilities.max_batch_size,
        needs_messages=capabilities.needs_messages,
        repeat_forbidden=capabilities.repeat_forbidden,
        name=capabilities.name,
        version=capabilities.version,
    )


def capabilities_from_pb(message: pb.GetCapabilitiesResponse) -> RewardCapabilities:
    """Read back; a batch size of 0 means the default."""
    return RewardCapabilities(
        data_sources=tuple(message.data_sources),
        needs_token_ids=message.needs_token_ids,
        max_batch_size=message.max_batch_size or DEFAULT_MAX_BATCH_SIZE,
        needs_messages=message.needs_messages,
        repeat_forbidden=message.repeat_forbidden,
        name=message.name,
        version=message.version,
    )


def _outcome_from_pb(message: pb.ScoreResult) -> Outcome:
    kind = message.WhichOneof("outcome")
    if kind == "scored":
        return _scored_from_pb(message.scored)
    if kind == "abstained":
        return Abstained(message.abstained.reason)
    if kind == "failed":
        return Failed(message.failed.reason or "unknown", message.failed.message)
    return Failed("bad_return", "the server sent a result without an outcome")


def _scored_from_pb(message: pb.Scored) -> Scored | Failed:
    if not message.HasField("score"):
        return Failed("bad_return", "the server sent a score without a value")
    numbers = (message.score, *message.token_scores)
    if not all(map(math.isfinite, numbers)):
        return Failed("bad_return", f"the server sent the score {next(n for n in numbers if not math.isfinite(n))}")
    try:
        parts = scalars_from_pb(message.parts)
    except InvalidInputError as error:
        return Failed("bad_return", f"parts: {error.message}")
    return Scored(message.score, parts, tuple(message.token_scores))


def _to_json(value: Any, what: str) -> str:
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"{what} is not JSON: {error}") from error


def _plain(value: Any) -> Any:
    """Numpy values, as Parquet readers return them, as what JSON knows."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _from_json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # the latter: nested too deep
        raise InvalidInputError(f"{what} is not JSON: {error}") from error
