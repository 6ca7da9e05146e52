"""Refusals in the shape that OpenAI's clients read: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import math
from typing import Any

from argosy.types.errors import (
    ArgosyError,
    DeadlineError,
    InvalidInputError,
    OverloadedError,
    StateError,
    UnavailableError,
)


class ApiError(Exception):
    """A call that is not answered as asked; becomes a response with OpenAI's error JSON.

    Args:
        status: HTTP status.
        message: What is wrong, and what to do.
        param: The parameter that is meant; None: none.
        code: A short stable name for programs.
        retry_after_s: When to come again; None: a repeat does not help, and the client is told not to try.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    @property
    def kind(self) -> str:
        """OpenAI's `type`."""
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def body(self) -> dict[str, Any]:
        """The JSON."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """Advice on repeats: OpenAI's clients repeat 408, 409, 429 and 5xx by themselves unless told not to."""
        if self.retry_after_s is None:
            return {"x-should-retry": "false"}
        return {"retry-after": str(max(1, math.ceil(self.retry_after_s)))}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request itself is wrong."""
    return ApiError(400, message, param=param, code=code)


def run_over() -> ApiError:
    """410: the run has all the samples that it wants."""
    return ApiError(410, "the run takes no more samples", code="run_over")


def from_argosy(error: ArgosyError) -> ApiError:
    """What to answer for an error of ours."""
    match error:
        case OverloadedError():
            return ApiError(429, error.message, code="rate_limit_exceeded", retry_after_s=error.retry_after_s)
        case InvalidInputError():
            return bad_request(error.message, error.metadata.get("field"))
        case DeadlineError():
            return ApiError(504, error.message, code="deadline_exceeded")
        case UnavailableError() | StateError():
            return ApiError(503, error.message, code="unavailable", retry_after_s=2)
        case _:
            return ApiError(500, error.message, code="internal_error")
