"""Log set-up of a process: plain or JSON lines with the member id and the current trace id; secrets never.

Services log to stderr, which the launcher (or the container runtime) collects.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import TextIO

from argosy.telemetry.traces import current_trace_id

_SECRETS = (
    # key=value and "key": "value" with a telling key; the value ends at a blank, a quote or a separator
    re.compile(
        r"(?i)(\b[\w-]*(?:password|passwd|secret|token|api[_-]?key|credential)s?\b[\"']?\s*[=:]\s*[\"']?)"
        r"(?!\d+\b)([^\s\"',;&}]{4,})"
    ),
    re.compile(r"(?i)(\b(?:bearer|basic)\s+)([\w.~+/=-]{8,})"),
    re.compile(r"(\w+://[^\s:/@]+:)([^\s:/@]+)(?=@)"),  # scheme://user:password@host
    re.compile(r"()\b((?:hf|sk|ghp|gho|glpat|xox[bp])[_-][A-Za-z0-9_-]{16,})"),
)


def redact(text: str) -> str:
    """Replace what looks like a secret. Numbers after "token" stay: we log many token counts.

    >>> redact("WANDB_API_KEY=abcd1234 token_count=12 http://me:pass@host")
    'WANDB_API_KEY=*** token_count=12 http://me:***@host'
    """
    for pattern in _SECRETS:
        text = pattern.sub(r"\1***", text)
    return text


class PlainFormatter(logging.Formatter):
    """`2026-11-30 10:00:00.123 INFO rollout-0 argosy.rollout.core: text [trace 0af7…]`."""

    def __init__(self, member_id: str) -> None:
        super().__init__()
        self._member_id = member_id

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback's lines after it."""
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        trace_id = current_trace_id()
        tail = f" [trace {trace_id}]" if trace_id else ""
        head = f"{moment}.{int(record.msecs):03d} {record.levelname} {self._member_id} {record.name}"
        text = f"{head}: {record.getMessage()}{tail}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return redact(text)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (Unix seconds), level, member, logger, message, trace_id, exception."""

    def __init__(self, member_id: str) -> None:
        super().__init__()
        self._member_id = member_id

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        fields = {
            "time": round(record.created, 3),
            "level": record.levelname,
            "member": self._member_id,
            "logger": record.name,
            "message": redact(record.getMessage()),
            "trace_id": current_trace_id(),
        }
        if record.exc_info:
            fields["exception"] = redact(self.formatException(record.exc_info))
        return json.dumps(fields, ensure_ascii=False)


_EXPECTED_ERRORS = ("opentelemetry.context",)
"""Loggers whose errors are none: a span of a stream that its caller gave up is ended in another task's context, by
design of asyncio, which OpenTelemetry reports as an ERROR with a traceback. It would stand last in the log of a service
that is then killed, and be shown as the cause."""


def setup_logging(
    member_id: str, *, level: int = logging.INFO, json_lines: bool = False, stream: TextIO | None = None
) -> None:
    """Send the root logger to `stream` (stderr); replaces earlier handlers of the root logger."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(member_id) if json_lines else PlainFormatter(member_id))
    root = logging.getLogger()
    for older in list(root.handlers):
        root.removeHandler(older)
    root.addHandler(handler)
    root.setLevel(level)
    for name in _EXPECTED_ERRORS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.captureWarnings(True)
