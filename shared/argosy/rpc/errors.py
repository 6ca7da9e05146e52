"""The one place where our exceptions become gRPC status + ErrorInfo, and the other way round.

Outwards: status code, message, `google.rpc.ErrorInfo(reason, domain="argosy", metadata)`, and `RetryInfo` with an
OverloadedError.
Inwards: by ErrorInfo.reason if the domain is ours; else by the status code alone, so that a server in another language
needs no details to be understood.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import cast

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # generated, without stubs
from grpc_status import rpc_status

from argosy.types import errors

DOMAIN = "argosy"
_LOG = logging.getLogger(__name__)
_MAX_MESSAGE_BYTES = 1200
"""Longest message sent. It travels twice in HTTP/2 trailers, once with each byte in up to three, and peers in other
languages bound all trailers at 8 KiB."""
_MAX_METADATA_BYTES = 1500
"""Most metadata sent, all keys and values together."""

REASONS: dict[str, tuple[type[errors.ArgosyError], grpc.StatusCode]] = {
    "INVALID_INPUT": (errors.InvalidInputError, grpc.StatusCode.INVALID_ARGUMENT),
    "CONFIG": (errors.ConfigError, grpc.StatusCode.INVALID_ARGUMENT),
    "NOT_FOUND": (errors.NotFoundError, grpc.StatusCode.NOT_FOUND),
    "FENCED": (errors.FencedError, grpc.StatusCode.FAILED_PRECONDITION),
    "STEP_MISMATCH": (errors.StepMismatchError, grpc.StatusCode.FAILED_PRECONDITION),
    "WEIGHTS_REFUSED": (errors.WeightsRefusedError, grpc.StatusCode.FAILED_PRECONDITION),
    "STATE": (errors.StateError, grpc.StatusCode.FAILED_PRECONDITION),
    "CORRUPT_DATA": (errors.CorruptDataError, grpc.StatusCode.DATA_LOSS),
    "STORAGE": (errors.StorageError, grpc.StatusCode.FAILED_PRECONDITION),
    "OVERLOADED": (errors.OverloadedError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    "MESSAGE_TOO_LARGE": (errors.MessageTooLargeError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    "DEADLINE": (errors.DeadlineError, grpc.StatusCode.DEADLINE_EXCEEDED),
    "ABORTED": (errors.AbortedError, grpc.StatusCode.ABORTED),
    "UNAVAILABLE": (errors.UnavailableError, grpc.StatusCode.UNAVAILABLE),
    "INTERNAL": (errors.InternalError, grpc.StatusCode.INTERNAL),
}
"""ErrorInfo.reason → our exception and its status."""

_REASON_OF = {kind: reason for reason, (kind, _) in REASONS.items()}

_BY_CODE: dict[grpc.StatusCode, type[errors.ArgosyError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidInputError,
    grpc.StatusCode.OUT_OF_RANGE: errors.InvalidInputError,
    grpc.StatusCode.NOT_FOUND: errors.NotFoundError,
    grpc.StatusCode.FAILED_PRECONDITION: errors.StateError,
    grpc.StatusCode.DATA_LOSS: errors.CorruptDataError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.OverloadedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineError,
    grpc.StatusCode.ABORTED: errors.AbortedError,
    # Nobody of ours cancels a call and then looks at its status: the other side, or the connection, is going away.
    grpc.StatusCode.CANCELLED: errors.UnavailableError,
    grpc.StatusCode.UNAVAILABLE: errors.UnavailableError,
}
"""What a status without our ErrorInfo means; all others are InternalError."""

_OVERSIZE_TEXTS = ("message larger than max", "MESSAGE_TOO_LARGE")
"""How gRPC itself words a message over its limit ("Sent message larger than max (9 vs. 8)")."""

_BROKEN_TEXT = "Internal error from Core"
"""What gRPC's own client says when the peer dies in the moment in which it writes to a stream: no defect of anybody."""


def as_argosy_error(error: BaseException) -> errors.ArgosyError:
    """Ours as it is; a gRPC error translated; anything else an InternalError that says what it was."""
    if isinstance(error, errors.ArgosyError):
        return error
    if isinstance(error, grpc.aio.AioRpcError):
        return from_rpc_error(error)
    return errors.InternalError(f"{type(error).__name__}: {error}", exception=type(error).__name__)


def to_status(error: BaseException) -> status_pb2.Status:
    """The google.rpc.Status for an exception. What isn't ours is a defect: INTERNAL, with its type and text."""
    ours = as_argosy_error(error)
    reason = to_reason(ours)
    info = error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=_bounded(ours.metadata))
    details = [_packed(info)]
    if isinstance(ours, errors.OverloadedError):
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(round(ours.retry_after_s * 1e9))
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    code = REASONS[reason][1].value[0]
    return status_pb2.Status(code=code, message=_cut(ours.message, _MAX_MESSAGE_BYTES), details=details)


def from_rpc_error(error: grpc.aio.AioRpcError, *, peer: str = "") -> errors.ArgosyError:
    """Our exception for what a call raised. `peer` (an address, a member id) is put before the message."""
    text = error.details() or error.code().name
    info, retry_after_s = _details_of(error)
    message = f"{peer}: {text}" if peer else text
    metadata = dict(info.metadata) if info is not None else {}
    if info is not None and info.domain == DOMAIN and info.reason in REASONS:
        return from_reason(info.reason, message, metadata, retry_after_s)
    kind = _BY_CODE.get(error.code(), errors.InternalError)
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and any(known in text for known in _OVERSIZE_TEXTS):
        kind = errors.MessageTooLargeError
    elif error.code() is grpc.StatusCode.INTERNAL and text.startswith(_BROKEN_TEXT):
        kind = errors.UnavailableError
    elif kind is errors.InternalError:
        message = f"{message} ({error.code().name})"
    return _made(kind, message, retry_after_s, metadata)


def to_reason(error: errors.ArgosyError) -> str:
    """ErrorInfo.reason of one of ours: that of its class, or of the nearest ancestor that has one."""
    return next((_REASON_OF[kind] for kind in type(error).__mro__ if kind in _REASON_OF), "INTERNAL")


def from_reason(
    reason: str, message: str, metadata: Mapping[str, str], retry_after_s: float | None = None
) -> errors.ArgosyError:
    """Our exception for an ErrorInfo.reason; InternalError for one that is unknown here."""
    kind = REASONS[reason][0] if reason in REASONS else errors.InternalError
    return _made(kind, message, retry_after_s, dict(metadata))


def _cut(text: str, limit_bytes: int) -> str:
    data = text.encode(errors="replace")
    return text if len(data) <= limit_bytes else data[: limit_bytes - 3].decode(errors="ignore") + "…"


def _bounded(metadata: dict[str, str]) -> dict[str, str]:
    """As many entries as fit, the last one cut."""
    kept: dict[str, str] = {}
    room = _MAX_METADATA_BYTES
    for key, value in metadata.items():
        room -= len(key.encode())
        if room < 16:
            break
        kept[key] = _cut(value, room)
        room -= len(kept[key].encode(errors="replace"))
    return kept


def _made(
    kind: type[errors.ArgosyError], message: str, retry_after_s: float | None, metadata: dict[str, str]
) -> errors.ArgosyError:
    if kind is errors.OverloadedError:
        made: errors.ArgosyError = errors.OverloadedError(
            message, retry_after_s=0.5 if retry_after_s is None else retry_after_s
        )
    else:
        made = kind(message)
    made.metadata = metadata  # not as keywords: a foreign key may be no Python identifier, or "message"
    return made


def _details_of(error: grpc.aio.AioRpcError) -> tuple[error_details_pb2.ErrorInfo | None, float | None]:
    info: error_details_pb2.ErrorInfo | None = None
    retry_after_s: float | None = None
    try:
        status: status_pb2.Status | None = rpc_status.from_call(cast("grpc.Call", error))
    except ValueError as mismatch:  # the server's details contradict its status: the status is what counts
        _LOG.warning("ignoring error details that do not fit their status: %s", mismatch)
        return None, None
    for detail in status.details if status is not None else ():
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            info = error_details_pb2.ErrorInfo()
            detail.Unpack(info)
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            retry = error_details_pb2.RetryInfo()
            detail.Unpack(retry)
            retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9
    return info, retry_after_s


def _packed(message: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed
