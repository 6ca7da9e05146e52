"""Samples, completions and the state of rollout servers."""

from __future__ import annotations

import dataclasses

from argosy.api.rollout.v1 import generate_pb2 as pb
from argosy.api.rollout.v1 import rollout_service_pb2 as service_pb
from argosy.rpc.codec.common import (
    duration_from_pb,
    duration_to_pb,
    float32s_from_bytes,
    float32s_to_bytes,
    int32s_from_bytes,
    int32s_to_bytes,
    optional_version_from_pb,
    sample_id_from_pb,
    sample_id_to_pb,
    version_runs_from_pb,
    version_runs_to_pb,
)
from argosy.rpc.errors import from_reason, to_reason
from argosy.types.errors import ArgosyError, CorruptDataError, InternalError, InvalidInputError, OverloadedError
from argosy.types.ids import SampleId
from argosy.types.records import (
    FinishReason,
    Generated,
    GenerateRequest,
    RolloutStatus,
    SamplingParams,
)

FINISH_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.ABORTED: pb.FINISH_REASON_ABORTED,
    FinishReason.FAILED: pb.FINISH_REASON_FAILED,
}
STATES = {
    "ready": service_pb.ROLLOUT_STATE_READY,
    "paused": service_pb.ROLLOUT_STATE_PAUSED,
    "stale": service_pb.ROLLOUT_STATE_STALE,
    "draining": service_pb.ROLLOUT_STATE_DRAINING,
    "stuck": service_pb.ROLLOUT_STATE_STUCK,
    "asleep": service_pb.ROLLOUT_STATE_ASLEEP,
}
PAUSE_MODES = {"keep": service_pb.PAUSE_MODE_KEEP, "abort": service_pb.PAUSE_MODE_ABORT}

_REPEATED_PARAMS = ("stop_token_ids", "stop")
_PLAIN_PARAMS = tuple(
    field.name for field in dataclasses.fields(SamplingParams) if field.name not in (*_REPEATED_PARAMS, "max_tokens")
)


def key_to_pb(request: GenerateRequest) -> pb.SampleKey:
    """The key of a request as a message."""
    return pb.SampleKey(purpose=request.purpose, sample_id=sample_id_to_pb(request.sample_id))


def key_from_pb(message: pb.SampleKey) -> str:
    """As `GenerateRequest.key`."""
    return f"{message.purpose or 'train'}:{sample_id_from_pb(message.sample_id)}"


def parse_key(key: str) -> pb.SampleKey:
    """A `GenerateRequest.key` as a message. InvalidInputError on anything else."""
    purpose, _, sample = key.partition(":")
    try:
        return pb.SampleKey(purpose=purpose, sample_id=sample_id_to_pb(SampleId.parse(sample)))
    except ValueError as unreadable:
        raise InvalidInputError(
            f"a sample's key looks like 'train:e0-p12-k3-a0', got {key!r}", field="keys"
        ) from unreadable


def params_to_pb(params: SamplingParams) -> pb.SamplingParams:
    """Every field set, zeros too (case F11). InvalidInputError names a field of a wrong type."""
    message = pb.SamplingParams()
    for name in ("max_tokens", *_PLAIN_PARAMS):
        value = getattr(params, name)
        try:
            if value is not None:
                setattr(message, name, value)
        except (TypeError, ValueError) as unfit:
            raise InvalidInputError(f"{name} can't be {value!r}: {unfit}", field=name) from unfit
    for name in _REPEATED_PARAMS:
        try:
            getattr(message, name).extend(getattr(params, name))
        except (TypeError, ValueError) as unfit:
            raise InvalidInputError(f"{name} can't be {getattr(params, name)!r}: {unfit}", field=name) from unfit
    return message


def params_from_pb(message: pb.SamplingParams) -> SamplingParams:
    """An unset field gets the record's default; a set zero stays zero. The engine judges the values."""
    given = {name: getattr(message, name) for name in _PLAIN_PARAMS if message.HasField(name)}  # type: ignore[arg-type]
    return SamplingParams(
        max_tokens=message.max_tokens if message.HasField("max_tokens") else 0,
        stop_token_ids=tuple(message.stop_token_ids),
        stop=tuple(message.stop),
        **given,
    )


def generated_to_pb(generated: Generated) -> pb.GeneratedTokens:
    """Tokens with log-probs and versions as a message."""
    return pb.GeneratedTokens(
        token_ids=int32s_to_bytes(generated.token_ids),
        log_probs=float32s_to_bytes(generated.log_probs),
        versions=version_runs_to_pb(generated.versions),
    )


def generated_from_pb(message: pb.GeneratedTokens) -> Generated:
    """Tokens with log-probs and versions as a record."""
    return Generated(
        int32s_from_bytes(message.token_ids, "token_ids"),
        float32s_from_bytes(message.log_probs, "log_probs"),
        version_runs_from_pb(message.versions),
    )


def sample_request_to_pb(request: GenerateRequest) -> pb.SampleRequest:
    """A sample to generate as a message."""
    try:
        message = pb.SampleRequest(
            key=key_to_pb(request),
            prompt_ids=int32s_to_bytes(request.prompt_ids),
            params=params_to_pb(request.params),
            priority=request.priority,
            turn_start=request.turn_start,
        )
    except (TypeError, ValueError) as unfit:
        problem = f"priority can't be {request.priority!r}, or turn_start {request.turn_start!r}: {unfit}"
        raise InvalidInputError(problem, field="priority") from unfit
    if request.generated.token_ids:
        message.generated.CopyFrom(generated_to_pb(request.generated))
    return message


def sample_request_from_pb(message: pb.SampleRequest) -> GenerateRequest:
    """A sample to generate as a record."""
    return GenerateRequest(
        sample_id=sample_id_from_pb(message.key.sample_id),
        prompt_ids=int32s_from_bytes(message.prompt_ids, "prompt_ids"),
        params=params_from_pb(message.params),
        purpose=message.key.purpose or "train",
        generated=generated_from_pb(message.generated),
        priority=message.priority,
        turn_start=message.turn_start,
    )


def finish_reason_from_pb(reason: pb.FinishReason.ValueType) -> FinishReason:
    """CorruptDataError on one that isn't told."""
    for known, value in FINISH_REASONS.items():
        if value == reason:
            return known
    raise CorruptDataError(f"unknown finish reason {reason}")


def refusal_to_pb(keys: list[pb.SampleKey], error: ArgosyError) -> pb.RefusedSamples:
    """An error that concerns some samples of a stream."""
    delay = duration_to_pb(error.retry_after_s) if isinstance(error, OverloadedError) else None
    return pb.RefusedSamples(
        keys=keys, reason=to_reason(error), message=error.message, metadata=error.metadata, retry_delay=delay
    )


def refusal_from_pb(message: pb.RefusedSamples, peer: str) -> ArgosyError:
    """The error again, with the peer before its message."""
    retry_after_s = duration_from_pb(message.retry_delay) if message.HasField("retry_delay") else None
    return from_reason(message.reason, f"{peer}: {message.message}", message.metadata, retry_after_s)


def rollout_status_to_pb(status: RolloutStatus) -> service_pb.GetStatusResponse:
    """All but the context. InternalError on a state that the proto lacks."""
    if status.state not in STATES:
        raise InternalError(f"unknown rollout state {status.state!r}")
    return service_pb.GetStatusResponse(
        state=STATES[status.state],
        running_count=status.running_count,
        waiting_count=status.waiting_count,
        slot_count=status.slot_count,
        generated_token_count=status.generated_token_count,
        cached_token_count=status.cached_token_count,
        max_model_length=status.max_model_len,
        engine=status.engine,
        capabilities=status.capabilities,
        kv_used_token_count=status.kv_used_tokens,
        kv_total_token_count=status.kv_total_tokens,
        tokens_per_second=status.tokens_per_second,
        prompt_token_count=status.prompt_token_count,
        prompt_cached_token_count=status.prompt_cached_token_count,
        overlong_prompt_count=status.overlong_prompt_count,
        refused_sample_count=status.refused_sample_count,
    )


def rollout_status_from_pb(message: service_pb.GetStatusResponse) -> RolloutStatus:
    """The status; the version comes from the context."""
    names = {value: name for name, value in STATES.items()}
    if message.state not in names:
        raise CorruptDataError(f"unknown rollout state {message.state}")
    return RolloutStatus(
        version=optional_version_from_pb(message.context),
        state=names[message.state],
        running_count=message.running_count,
        waiting_count=message.waiting_count,
        slot_count=message.slot_count,
        generated_token_count=message.generated_token_count,
        cached_token_count=message.cached_token_count,
        max_model_len=message.max_model_length,
        engine=message.engine,
        capabilities=dict(message.capabilities),
        kv_used_tokens=message.kv_used_token_count,
        kv_total_tokens=message.kv_total_token_count,
        tokens_per_second=message.tokens_per_second,
        prompt_token_count=message.prompt_token_count,
        prompt_cached_token_count=message.prompt_cached_token_count,
        overlong_prompt_count=message.overlong_prompt_count,
        refused_sample_count=message.refused_sample_count,
    )
