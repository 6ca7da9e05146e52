from __future__ import annotations

import contextvars
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import context

from argosy.telemetry.logs import redact, setup_logging
from argosy.telemetry.traces import setup_tracing, span


@pytest.fixture(autouse=True)
def root_logger_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def test_plain_lines_name_member_logger_and_trace(tmp_path: Path) -> None:
    stream = io.StringIO()
    setup_logging("rollout-0", stream=stream)
    tracing = setup_tracing("rollout-0", path=tmp_path / "spans.jsonl")
    logging.getLogger("argosy.x").info("loaded %d tensors", 7)
    with span("step") as current:
        logging.getLogger("argosy.x").warning("slow")
        trace_id = f"{current.get_span_context().trace_id:032x}"
    tracing.shutdown()
    first, second = stream.getvalue().splitlines()
    assert first.endswith("INFO rollout-0 argosy.x: loaded 7 tensors")
    assert second.endswith(f"WARNING rollout-0 argosy.x: slow [trace {trace_id}]")


def test_json_lines_carry_exceptions() -> None:
    stream = io.StringIO()
    setup_logging("trainer-0", json_lines=True, stream=stream)
    try:
        raise ValueError("bad\nnews")
    except ValueError:
        logging.getLogger("argosy.y").exception("failed")
    [line] = stream.getvalue().splitlines()
    record = json.loads(line)
    assert (record["member"], record["level"], record["message"]) == ("trainer-0", "ERROR", "failed")
    assert "ValueError: bad\nnews" in record["exception"]


def test_a_span_that_ends_in_another_context_is_no_error() -> None:
    stream = io.StringIO()
    setup_logging("trainer-0", stream=stream)
    token = contextvars.copy_context().run(context.attach, context.Context())
    context.detach(token)
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    "secret",
    [
        "WANDB_API_KEY=0123456789abcdefsecret",
        'password: "sesecret"',
        "Authorization: Bearer eyJsecret.abc",
        "etcd://root:topsecret@host:2379",
        "using hf_abcdefghijklmnopqrsecret for the hub",
        "{'auth_token': 'verysecret'}",
    ],
)
def test_secrets_are_replaced(secret: str) -> None:
    assert "secret" not in redact(secret).replace("_secret", "")
    assert "***" in redact(secret)
    stream = io.StringIO()
    setup_logging("m", stream=stream)
    logging.getLogger().info("%s", secret)
    assert "***" in stream.getvalue()


@pytest.mark.parametrize(
    "text",
    ["token_count=123456", "tokens: 20000", "tokens/s: 81.5", "max_token=4096", "http://127.0.0.1:2379/x", "a@b"],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert redact(text) == text
