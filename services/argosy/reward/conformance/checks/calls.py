"""Calls that come twice, side by side, too large, too late, or are given up."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import cast

import grpc
from google.rpc import error_details_pb2  # type: ignore[import-untyped]  # generated, without stubs
from grpc_status import rpc_status

from argosy.api.reward.v1 import reward_service_pb2 as pb
from argosy.reward.conformance.checks.batches import MOST_ITEMS, limit
from argosy.reward.conformance.findings import CheckError, CheckSkipped, CheckWarning
from argosy.reward.conformance.wire import Wire, by_id
from argosy.rpc.codec.common import sample_id_from_pb

CALLS = 16
LARGE_BYTES = 9 << 20
"""A client of Argosy puts up to 8 MiB into a request, and a single larger item goes alone."""
CUT_S = 0.03
CANCEL_ROUNDS = 3
CANCEL_WITHIN_S = 1.0
"""Calls are given up within this time in the first of the rounds, in each further one within twice as much."""
TOLD_DEADLINE_S = 0.3
SPARE_S = 2.0
"""What a call may take beyond the deadline that its request tells."""
# Field 1000 as a number, field 1001 as a text: no version of the contract has them.
LATER_FIELDS = b"\xc0\x3e\x01" + b"\xca\x3e\x05later"


async def unknown_fields(wire: Wire) -> None:
    """Fields of a later version, in the request and in its item."""
    item = wire.samples.item(0)
    usual = await wire.outcomes([item])
    body = item.SerializeToString() + LATER_FIELDS
    request = b"\x12" + _varint(len(body)) + body + LATER_FIELDS
    found = by_id(await wire.score_bytes(request))
    if found.keys() != usual.keys():
        raise CheckError("an item with fields of a later version has no result")
    if found != usual and wire.comparable:
        raise CheckError("fields of a later version change the outcome")


async def same_twice(wire: Wire) -> None:
    """The same bytes three times."""
    if wire.samples.capabilities.repeat_forbidden:
        raise CheckSkipped("it forbids repeats")
    items = wire.samples.items(min(limit(wire), 4))
    first = await wire.outcomes(items)
    for _ in range(2):
        again = await wire.outcomes(items)
        changed = [sample for sample in first if first[sample] != again.get(sample)]
        if changed:
            raise CheckError(f"sample {changed[0]} got another outcome when it was sent again")


async def large_request(wire: Wire) -> None:
    """Over the 4 MB that gRPC takes unless it is told otherwise (case F1)."""
    count = min(limit(wire), 8)
    items = [wire.samples.item(number, prompt_text="x" * (LARGE_BYTES // count)) for number in range(count)]
    found = await wire.outcomes(items)
    if len(found) != count:
        raise CheckError(f"{count} items of together {LARGE_BYTES >> 20} MiB have {len(found)} results")


async def error_details(wire: Wire) -> None:
    """The refusal of a batch that is too large."""
    if limit(wire) > MOST_ITEMS:
        raise CheckSkipped("no batch over the limit was tried")
    refusal = await wire.refusal(wire.samples.items(limit(wire) + 1))
    if refusal is None:
        raise CheckSkipped("it refuses nothing")
    if not refusal.details():
        raise CheckWarning(f"{refusal.code().name} comes without a message", "say what was wrong, and the limit")
    status = rpc_status.from_call(cast("grpc.Call", refusal))
    if status is None or not any(detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR) for detail in status.details):
        raise CheckWarning(f"{refusal.code().name} comes without ErrorInfo")


async def garbage(wire: Wire) -> None:
    """A length that reaches beyond the message; a text that is not UTF-8, which some libraries mend."""
    for request, may_be_mended in ((b"\x12\xff\xff\xff\x7fxx", False), (b"\x12\x04\x12\x02\xff\xfe", True)):
        try:
            await wire.score_bytes(request)
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE):
                raise CheckError(f"bytes that are no request ended with {error.code().name}") from error
        else:
            if may_be_mended:
                continue
            raise CheckError(f"it answered OK to the bytes {request!r}, which are no request")
    await _still_well(wire, "after bytes that were no request")


async def concurrent(wire: Wire) -> None:
    """Different batches side by side; each has the outcomes that it has alone."""
    size = min(limit(wire), 3)
    batches = [[wire.samples.item(call * size + place) for place in range(size)] for call in range(CALLS)]
    together = await asyncio.gather(*(wire.outcomes(batch) for batch in batches))
    for batch, found in zip(batches, together, strict=True):
        asked = {sample_id_from_pb(item.sample_id) for item in batch}
        if found.keys() != asked:
            raise CheckError(f"of {CALLS} calls side by side, one was answered with the samples of another")
    if not wire.comparable:
        return
    for batch, found in zip(batches, together, strict=True):
        if await wire.outcomes(batch) != found:
            raise CheckError(f"of {CALLS} calls side by side, one has other outcomes than it has alone")


async def deadline(wire: Wire) -> None:
    """A deadline that is too short for the work, told by gRPC and told by the request."""
    items = _work(wire)
    for _ in range(4):
        try:
            await wire.score(items, timeout_s=CUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise CheckError(f"a call with {CUT_S:g} s to go ended with {error.code().name}") from error
    began = time.monotonic()
    try:
        await wire.score(items, told_deadline_s=TOLD_DEADLINE_S)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            raise CheckError(f"context.deadline passed, and the call ended with {error.code().name}") from error
    took_s = time.monotonic() - began
    if took_s > TOLD_DEADLINE_S + min(SPARE_S, wire.timeout_s / 4):
        raise CheckError(f"context.deadline was {TOLD_DEADLINE_S:g} s, the call took {took_s:.1f} s")
    await _still_well(wire, "after calls whose deadline passed")


async def cancelled(wire: Wire) -> None:
    """Many calls given up at all points of the work: how long it takes depends on the server and on the machine."""
    items = _work(wire)
    began = time.monotonic()
    with contextlib.suppress(grpc.aio.AioRpcError):  # how it ends was checked before; here its time counts
        await wire.score(items, timeout_s=min(CANCEL_WITHIN_S, wire.timeout_s))
    took_s = max(time.monotonic() - began, CUT_S)
    for round_number in range(CANCEL_ROUNDS):
        tasks = [asyncio.ensure_future(wire.score(items)) for _ in range(CALLS)]
        # Side by side they take longer than alone: the later rounds give up later.
        pause_s = took_s * 2**round_number / CALLS
        for task in tasks:
            await asyncio.sleep(pause_s)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await _still_well(wire, f"after {CANCEL_ROUNDS * CALLS} cancelled calls")


def _work(wire: Wire) -> list[pb.ScoreItem]:
    """A batch that takes some time: 2 MiB in all at most."""
    count = min(limit(wire), 64)
    text = f"{'It is 3, or 5. ' * 2000}\n#### 4"
    return [wire.samples.item(number, response_text=text) for number in range(count)]


async def _still_well(wire: Wire, when: str) -> None:
    try:
        found = await wire.outcomes([wire.samples.item(0)])
    except grpc.aio.AioRpcError as error:
        text = "no answer" if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED else error.code().name
        raise CheckError(f"{when}, an ordinary call ended with {text}") from error
    if len(found) != 1:
        raise CheckError(f"{when}, an ordinary call had {len(found)} results")


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)
