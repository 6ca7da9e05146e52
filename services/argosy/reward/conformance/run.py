"""Runs the checks, in order, and turns what they raise into findings."""

from __future__ import annotations

import time
from collections.abc import Sequence

import grpc

from argosy.reward.conformance.checks import CHECKS, Check
from argosy.reward.conformance.findings import CheckError, Finding, Result
from argosy.reward.conformance.samples import Sample, SampleMaker
from argosy.reward.conformance.wire import Wire
from argosy.types.errors import InvalidInputError


async def check_server(
    address: str, *, timeout_s: float = 10.0, samples: Sequence[Sample] = (), vocabulary_size: int = 256
) -> list[Finding]:
    """All findings about the server at host:port, in the order of CHECKS. Each call waits for `timeout_s` at most.

    A check that later ones build on (`reachable`, `capabilities`, `batch_one`) skips them when it fails.
    """
    _check_address(address)
    if timeout_s <= 0:
        raise InvalidInputError(f"the timeout must be positive, got {timeout_s:g}")
    wire = Wire(address, timeout_s=timeout_s)
    findings: list[Finding] = []
    broken = ""
    try:
        for check in CHECKS:
            if broken:
                wrong = f"not tried: {broken} failed"
                findings.append(Finding(check.name, check.about, Result.SKIPPED, wrong))
                continue
            finding = await _run(check, wire)
            findings.append(finding)
            if check.name == "capabilities" and finding.result in (Result.PASSED, Result.WARNED):
                wire.samples = SampleMaker(await wire.capabilities(), samples, vocabulary_size)
                wire.comparable = not wire.samples.capabilities.repeat_forbidden
            if check.name == "same_twice" and finding.result is Result.FAILED:
                wire.comparable = False
            if check.needed and finding.result is Result.FAILED:
                broken = check.name
    finally:
        await wire.close()
    return findings


async def _run(check: Check, wire: Wire) -> Finding:
    began = time.monotonic()
    result, wrong, advice = Result.PASSED, "", ""
    try:
        await check.run(wire)
    except CheckError as error:
        result, wrong, advice = error.result, error.wrong, error.advice or check.advice
    except grpc.aio.AioRpcError as error:
        result, wrong, advice = Result.FAILED, call_error(error, wire.timeout_s), _advice(error) or check.advice
    if result is Result.SKIPPED:
        advice = ""
    return Finding(check.name, check.about, result, wrong, advice, time.monotonic() - began)


def call_error(error: grpc.aio.AioRpcError, timeout_s: float) -> str:
    """A failed call, in a line."""
    code = error.code()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {timeout_s:g} s"
    return f"the call ended with {code.name}: {(error.details() or '')[:300]}"


def _advice(error: grpc.aio.AioRpcError) -> str:
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return "serve both methods of argosy.api.reward.v1.RewardService"
    if code is grpc.StatusCode.UNAVAILABLE:
        return "the server went away or refused the connection: see its log"
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        return "raise the server's limit for received messages (grpc.max_receive_message_length) to 64 MiB"
    return ""


def _check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536 or "://" in address:
        raise InvalidInputError(f"ADDRESS must be host:port, such as 127.0.0.1:4711; got {address!r}")
