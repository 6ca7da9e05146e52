"""What an exception means for the samples of a call."""

from __future__ import annotations

from argosy.types.errors import (
    ArgosyError,
    DeadlineError,
    InvalidInputError,
    MessageTooLargeError,
    OverloadedError,
    StateError,
    UnavailableError,
)
from argosy.types.records import Failed

_REASONS: tuple[tuple[type[ArgosyError], str], ...] = (
    (MessageTooLargeError, "too_large"),
    (InvalidInputError, "refused"),
    (OverloadedError, "overloaded"),
    (DeadlineError, "timeout"),
    (UnavailableError, "unavailable"),
    (StateError, "unavailable"),
)


def failed(error: ArgosyError) -> Failed:
    """A call's failure as the outcome of its samples.

    >>> failed(UnavailableError("gone"))
    Failed(reason='unavailable', message='gone')
    """
    reason = next((reason for kind, reason in _REASONS if isinstance(error, kind)), "service_error")
    return Failed(reason, error.message)
