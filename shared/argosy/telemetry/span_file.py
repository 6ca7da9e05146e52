"""A span exporter that writes one JSON object per line into the run folder, bounded in size."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

_LOG = logging.getLogger(__name__)


class SpanFile(SpanExporter):
    """Appends to `path`; at `max_bytes` the file becomes `<path>.1` (replacing an older one) and a new one begins.

    A line, in short:
    {"name": "step", "service": "controller-0", "trace_id": …, "span_id": …, "parent_id": "" for a root, "kind":
    "INTERNAL", "start_ns": Unix time, "end_ns": …, "duration_ms": 12.5, "status": "UNSET", "attributes": {…}}
    """

    def __init__(self, path: Path, *, max_bytes: int = 50_000_000) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._failing = False
        path.parent.mkdir(parents=True, exist_ok=True)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append the spans. A full disk is reported once and never disturbs the traced work."""
        text = "".join(json.dumps(_record(span), default=str) + "\n" for span in spans)
        with self._lock:
            try:
                self._append(text)
            except OSError as error:
                if not self._failing:
                    _LOG.warning("spans can't be written to %s: %s", self._path, error)
                self._failing = True
                return SpanExportResult.FAILURE
        self._failing = False
        return SpanExportResult.SUCCESS

    def _append(self, text: str) -> None:
        if self._path.exists() and self._path.stat().st_size + len(text) > self._max_bytes:
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        with self._path.open("a", encoding="utf-8") as file:
            file.write(text)

    def shutdown(self) -> None:
        """Nothing is held open."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Every export is on its way to the disk already."""
        return True


def _record(span: ReadableSpan) -> dict[str, Any]:
    context, start_ns, end_ns = span.get_span_context(), span.start_time or 0, span.end_time or 0
    record: dict[str, Any] = {
        "name": span.name,
        "service": span.resource.attributes.get("service.name", ""),
        "trace_id": f"{context.trace_id:032x}" if context else "",
        "span_id": f"{context.span_id:016x}" if context else "",
        "parent_id": f"{span.parent.span_id:016x}" if span.parent else "",
        "kind": span.kind.name,
        "start_ns": start_ns,
        "end_ns": end_ns,
        "duration_ms": round((end_ns - start_ns) / 1e6, 3),
        "status": span.status.status_code.name,
        "attributes": dict(span.attributes or {}),
    }
    if span.status.description:
        record["status_description"] = span.status.description
    if span.events:
        record["events"] = [_event(event.name, event.timestamp, event.attributes) for event in span.events]
    return record


def _event(name: str, time_ns: int, attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"name": name, "time_ns": time_ns, "attributes": dict(attributes or {})}
