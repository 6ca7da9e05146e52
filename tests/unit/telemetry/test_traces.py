from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from argosy.telemetry.span_file import SpanFile
from argosy.telemetry.traces import current_trace_id, setup_from_settings, setup_tracing, span, traceparent


def read(path: Path) -> dict[str, dict[str, Any]]:
    return {record["name"]: record for record in map(json.loads, path.read_text().splitlines())}


def test_spans_nest_and_reach_the_file(tmp_path: Path) -> None:
    path = tmp_path / "traces" / "controller-0.jsonl"
    tracing = setup_tracing("controller-0", run_id="r1", path=path)
    with span("step", step=3), span("rollout", data_source="gsm8k"):
        inside = current_trace_id()
    with pytest.raises(ValueError, match="bad"), span("broken"):
        raise ValueError("bad")
    tracing.shutdown()
    spans = read(path)
    step, rollout, broken = spans["step"], spans["rollout"], spans["broken"]
    assert rollout["parent_id"] == step["span_id"]
    assert step["parent_id"] == ""
    assert step["trace_id"] == rollout["trace_id"] == inside
    assert broken["trace_id"] != inside
    assert step["attributes"] == {"argosy.step": 3}
    assert step["service"] == "controller-0"
    assert step["duration_ms"] >= rollout["duration_ms"] >= 0
    assert broken["status"] == "ERROR"
    assert broken["events"][0]["attributes"]["exception.message"] == "bad"


def test_off_means_nothing_is_recorded_and_nothing_breaks(tmp_path: Path) -> None:
    tracing = setup_from_settings("m", run_id="", run_dir=tmp_path, enabled=False, otlp_endpoint="http://127.0.0.1:1")
    with span("step"):
        assert traceparent() == ""
        assert current_trace_id() == ""
    assert tracing.server_interceptors() == []
    tracing.shutdown()
    assert not list(tmp_path.iterdir())


def test_a_parent_from_elsewhere_is_joined(tmp_path: Path) -> None:
    tracing = setup_tracing("m", path=tmp_path / "s.jsonl")
    with span("step"):
        carried = traceparent()
    with span("sample", parent=carried):
        pass
    tracing.shutdown()
    spans = read(tmp_path / "s.jsonl")
    assert spans["sample"]["parent_id"] == spans["step"]["span_id"]
    assert spans["sample"]["trace_id"] == spans["step"]["trace_id"] == carried.split("-")[1]


def test_set_up_again_after_a_shutdown(tmp_path: Path) -> None:
    for number in range(2):
        tracing = setup_tracing("m", path=tmp_path / f"{number}.jsonl")
        with span("step"):
            pass
        tracing.shutdown()
        tracing.shutdown()
        assert len(read(tmp_path / f"{number}.jsonl")) == 1


def test_a_dead_collector_holds_nothing_up(tmp_path: Path) -> None:
    with socket.socket() as silent:  # accepts connections and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        tracing = setup_tracing("m", path=tmp_path / "s.jsonl", otlp_endpoint=endpoint)
        with span("step"):
            pass
        began = time.monotonic()
        tracing.shutdown(timeout_s=1.0)
        assert time.monotonic() - began < 10  # a hang guard
    assert "step" in read(tmp_path / "s.jsonl")


def test_h13_the_span_file_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(SpanFile(path, max_bytes=5_000)))
    tracer = provider.get_tracer("t")
    for number in range(200):
        tracer.start_span(f"span-{number}").end()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["s.jsonl", "s.jsonl.1"]
    assert all(file.stat().st_size <= 5_000 for file in tmp_path.iterdir())
    assert "span-199" in read(path)


def test_a_full_disk_is_told_once_and_does_not_disturb(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    exporter = SpanFile(tmp_path / "s.jsonl")
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    (tmp_path / "s.jsonl").symlink_to("/dev/full")
    for _ in range(3):
        provider.get_tracer("t").start_span("step").end()
    assert caplog.text.count("spans can't be written") == 1
