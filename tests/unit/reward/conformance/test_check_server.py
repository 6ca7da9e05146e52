"""The suite passes an honest server, and names the fault of each broken one."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from argosy.reward.conformance import Finding, Result, Sample, check_server, describe, failures, read_samples
from argosy.reward.conformance.checks import CHECKS
from argosy.types.errors import InvalidInputError
from support.reward_servers import FAULTS, WARNINGS, Honest, names, serve

TIMEOUT_S = 4.0


def called(findings: list[Finding], result: Result) -> set[str]:
    return {finding.check for finding in findings if finding.result is result}


async def test_an_honest_server_passes() -> None:
    async with serve(Honest()) as address:
        findings = await check_server(address, timeout_s=5)
    assert not failures(findings), describe(findings)
    assert called(findings, Result.WARNED) == {"error_details"}
    assert called(findings, Result.SKIPPED) == {"sample_scores"}
    assert [finding.check for finding in findings] == [check.name for check in CHECKS]


@pytest.mark.parametrize(("server", "wanted"), FAULTS.items(), ids=lambda value: getattr(value, "__name__", ""))
async def test_each_fault_fails_its_check(server: type[Honest], wanted: set[str]) -> None:
    async with serve(server()) as address:
        findings = await check_server(address, timeout_s=TIMEOUT_S)
    assert called(findings, Result.FAILED) == wanted, describe(findings)
    for finding in failures(findings):
        assert finding.wrong
        assert finding.advice


@pytest.mark.parametrize(("server", "wanted"), WARNINGS.items(), ids=lambda value: getattr(value, "__name__", ""))
async def test_what_only_helps_people_is_a_warning(server: type[Honest], wanted: set[str]) -> None:
    async with serve(server()) as address:
        findings = await check_server(address, timeout_s=TIMEOUT_S)
    assert not failures(findings), describe(findings)
    assert called(findings, Result.WARNED) == {*wanted, "error_details"}


def test_every_check_has_a_fault() -> None:
    untested = {check.name for check in CHECKS} - set(names())
    assert untested == {"reachable", "error_details", "sample_scores"}  # each has a test of its own here


async def test_where_nobody_listens_the_wait_is_bounded_and_the_rest_is_skipped() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        began = time.monotonic()
        findings = await check_server(address, timeout_s=0.5)
    assert time.monotonic() - began < 20  # a hang guard
    assert called(findings, Result.FAILED) == {"reachable"}
    assert f"no gRPC server answered at {address} within 0.5 s" in findings[0].wrong
    assert all(finding.result is Result.SKIPPED for finding in findings[1:])


async def test_a_server_of_something_else_is_told() -> None:
    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 welcome\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        findings = await check_server(f"127.0.0.1:{port}", timeout_s=0.5)
    assert called(findings, Result.FAILED) == {"reachable"}


@pytest.mark.parametrize("address", ["", "localhost", "http://127.0.0.1:80", "127.0.0.1:0", "127.0.0.1:70000", ":80"])
async def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidInputError, match="ADDRESS must be host:port"):
        await check_server(address)


async def test_samples_of_the_user_are_scored_and_compared(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    lines = [
        {"data_source": "toy", "response_text": "It is 4", "ground_truth": "4", "score": 1},
        {"data_source": "toy", "response_text": "It is 5", "ground_truth": "4", "score": 0.0},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    samples = read_samples(path)
    assert samples[1] == Sample("toy", "It is 5", "4", score=0.0)
    async with serve(Honest()) as address:
        assert called(await check_server(address, samples=samples), Result.SKIPPED) == set()
        wrong = [samples[0], Sample("toy", "It is 5", "4", score=1.0)]
        findings = await check_server(address, samples=wrong)
    assert called(findings, Result.FAILED) == {"sample_scores"}
    assert "sample 2 of the file should score 1, got scored(" in failures(findings)[0].wrong


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1 of .* is not JSON"),
        ('{"data_source": "a"}', "line 1 of .* must be an object with data_source and response_text"),
        ('\n{"data_source": "a", "response_text": "", "respones": 1}', "line 2 of"),
        ("", "has 0 samples"),
    ],
)
def test_a_sample_file_that_is_wrong_names_the_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=message):
        read_samples(path)


async def test_a_server_that_forbids_repeats_is_not_asked_twice_for_the_same() -> None:
    class Charges(Honest):
        repeat_forbidden = True

    async with serve(Charges()) as address:
        findings = await check_server(address)
    assert not failures(findings), describe(findings)
    assert {"same_twice", "order"} <= called(findings, Result.SKIPPED)


@pytest.mark.parametrize("most", [1, 2, 0, 100_000])
async def test_any_batch_size_can_be_checked(most: int) -> None:
    class Sized(Honest):
        limit = most or 256

        async def GetCapabilities(self, request: Any, context: Any) -> Any:
            answer = await super().GetCapabilities(request, context)
            answer.max_batch_size = most
            return answer

    async with serve(Sized()) as address:
        findings = await check_server(address)
    assert not failures(findings), describe(findings)


async def test_ids_and_messages_are_sent_to_a_server_that_wants_them() -> None:
    seen: list[tuple[list[int], str]] = []

    class Wants(Honest):
        needs_token_ids = True

        async def GetCapabilities(self, request: Any, context: Any) -> Any:
            answer = await super().GetCapabilities(request, context)
            answer.needs_messages = True
            return answer

        def score(self, item: Any, result: Any) -> None:
            seen.append((list(item.response_ids), item.messages_json))
            super().score(item, result)
            result.scored.token_scores.extend([0.0] * len(item.response_ids))

    async with serve(Wants()) as address:
        findings = await check_server(address, vocabulary_size=4, samples=[Sample("toy", "4", "4")])
    assert not failures(findings), describe(findings)
    assert max(token for ids, _ in seen for token in ids) == 3
    assert all(ids and json.loads(messages) for ids, messages in seen)
