"""OpenTelemetry spans: one trace per training step, through every process that works for it.

Spans go to `traces/<member>.jsonl` in the run folder, one JSON object a line, and to an OTLP collector when
`argosy.telemetry.otlp_endpoint` is set. gRPC calls carry the W3C `traceparent`, so that a server's span is the child of
its caller's; health checks make no spans.

    tracing = setup_tracing("trainer-0", run_id="r1", path=run_dir / "traces/trainer-0.jsonl")
    with span("step", step=3):
        with span("rollout", sample_count=64):
            ...
    tracing.shutdown()
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from argosy.telemetry.span_file import SpanFile

_TRACER = "argosy"
_EXPORT_DELAY_MS = 500
_QUEUE_SPANS = 8192
_SHUTDOWN_S = 3.0

AttributeValue = str | bool | int | float | Sequence[str] | Sequence[int] | Sequence[float]


class Tracing:
    """The tracing of this process. `shutdown` writes what is still in memory; a dead collector can't hold it up."""

    def __init__(self, provider: TracerProvider | None) -> None:
        self._provider = provider

    def server_interceptors(self) -> list[Any]:
        """For `grpc.aio.server(interceptors=…)`, before all others: one span per call, the caller's span its parent."""
        if self._provider is None:
            return []
        from opentelemetry.instrumentation.grpc import aio_server_interceptor, filters

        no_health = filters.negate(filters.health_check())
        return [aio_server_interceptor(tracer_provider=self._provider, filter_=no_health)]

    def flush(self, timeout_s: float = _SHUTDOWN_S) -> None:
        """Write the spans that have ended, within `timeout_s`."""
        if self._provider is not None:
            self._provider.force_flush(int(timeout_s * 1000))

    def shutdown(self, timeout_s: float = _SHUTDOWN_S) -> None:
        """Write the rest and end tracing; returns after `timeout_s` at the latest. Safe to call twice."""
        provider, self._provider = self._provider, None
        if provider is None:
            return
        _instrument_clients(None)
        # OTLP's own shutdown waits 30 s for a dead collector: let it do so in a thread that nobody waits for.
        thread = threading.Thread(target=provider.shutdown, name="tracing-shutdown", daemon=True)
        thread.start()
        thread.join(timeout_s)


def setup_tracing(
    member_id: str,
    *,
    run_id: str = "",
    path: Path | None = None,
    otlp_endpoint: str | None = None,
) -> Tracing:
    """Begin tracing in this process; without `path` and `otlp_endpoint` nothing is recorded.

    Call it once, before channels are opened: only channels opened later are instrumented.
    """
    if path is None and otlp_endpoint is None:
        return Tracing(None)
    resource = Resource.create({"service.name": member_id, "service.namespace": "argosy", "argosy.run_id": run_id})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    if path is not None:
        provider.add_span_processor(_batched(SpanFile(path)))
    if otlp_endpoint is not None:
        provider.add_span_processor(_batched(_otlp(otlp_endpoint)))
    global _provider
    _provider = provider
    _instrument_clients(provider)
    return Tracing(provider)


@contextmanager
def span(name: str, *, parent: str | None = None, **attributes: AttributeValue) -> Iterator[trace.Span]:
    """A span around a block; an exception marks it as failed. Free when tracing is off.

    `parent` is another process's `traceparent()` for what doesn't travel in a call's metadata, such as one sample of a
    multiplexed stream; without it the parent is the span around this one. Names of attributes get the prefix `argosy.`
    """
    context = None if parent is None else propagate.extract({"traceparent": parent})
    named = {f"argosy.{key}": value for key, value in attributes.items()}
    tracer = trace.get_tracer(_TRACER) if _provider is None else _provider.get_tracer(_TRACER)
    with tracer.start_as_current_span(name, context=context, attributes=named) as current:
        yield current


def traceparent() -> str:
    """The current span as a W3C header value, to send along; empty outside of spans."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, otel_context.get_current())
    return carrier.get("traceparent", "")


def current_trace_id() -> str:
    """32 hex digits; empty outside of spans."""
    context = trace.get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else ""


_provider: TracerProvider | None = None
"""Of this process; not OpenTelemetry's global one, which can be set only once and would leak between tests."""
_client_instrumentor: Any = None


def _batched(exporter: SpanExporter) -> BatchSpanProcessor:
    return BatchSpanProcessor(exporter, max_queue_size=_QUEUE_SPANS, schedule_delay_millis=_EXPORT_DELAY_MS)


def _otlp(endpoint: str) -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=endpoint, insecure=not endpoint.startswith("https"), timeout=5)


def _instrument_clients(provider: TracerProvider | None) -> None:
    """Let channels that are opened from now on make client spans and send `traceparent`; None ends that."""
    global _client_instrumentor, _provider
    from opentelemetry.instrumentation.grpc import GrpcAioInstrumentorClient, filters

    if _client_instrumentor is not None:
        _client_instrumentor.uninstrument()
        _client_instrumentor = None
    if provider is None:
        _provider = None
        return
    _client_instrumentor = GrpcAioInstrumentorClient(filter_=filters.negate(filters.health_check()))
    _client_instrumentor.instrument(tracer_provider=provider, skip_dep_check=True)


def setup_from_settings(
    member_id: str, *, run_id: str, run_dir: Path, enabled: bool, otlp_endpoint: str | None
) -> Tracing:
    """`setup_tracing` with the values of `argosy.telemetry` and the run folder's usual place."""
    path = run_dir / "traces" / f"{member_id}.jsonl" if enabled else None
    return setup_tracing(member_id, run_id=run_id, path=path, otlp_endpoint=otlp_endpoint if enabled else None)
