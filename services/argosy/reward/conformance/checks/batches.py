"""Every item has one outcome, whose it is, whatever else is in the batch."""

from __future__ import annotations

import random

import grpc

from argosy.api.common.v1 import ids_pb2
from argosy.api.reward.v1 import reward_service_pb2 as pb
from argosy.reward.conformance.findings import CheckError, CheckSkipped
from argosy.reward.conformance.wire import Wire, by_id
from argosy.rpc.codec.common import sample_id_from_pb
from argosy.rpc.codec.reward import DEFAULT_MAX_BATCH_SIZE

MOST_ITEMS = 4096
"""Larger batches than this are not tried, whatever the server says that it takes."""


def limit(wire: Wire) -> int:
    """Most items in one request."""
    return wire.samples.capabilities.max_batch_size or DEFAULT_MAX_BATCH_SIZE


def require_one_each(items: list[pb.ScoreItem], response: pb.ScoreResponse) -> None:
    """CheckError unless each item has one result, and no other sample has any."""
    asked = {sample_id_from_pb(item.sample_id) for item in items}
    got = [sample_id_from_pb(result.sample_id) for result in response.results]
    strange = [sample for sample in got if sample not in asked]
    missing = asked - set(got)
    if strange:
        raise CheckError(f"it judged sample {strange[0]}, which was not in the request (of {len(items)} items)")
    if missing:
        raise CheckError(f"{len(missing)} of {len(items)} items have no result, such as {min(missing)}")
    if len(got) > len(items):
        raise CheckError(f"{len(items)} items have {len(got)} results: some have more than one")


async def one(wire: Wire) -> None:
    """One item."""
    items = wire.samples.items(1)
    require_one_each(items, await wire.score(items))


async def empty(wire: Wire) -> None:
    """No items."""
    response = await wire.score([])
    if response.results:
        raise CheckError(f"no items, but {len(response.results)} results")


async def full(wire: Wire) -> None:
    """As many items as it takes, shuffled."""
    items = wire.samples.items(min(limit(wire), MOST_ITEMS))
    random.Random(0).shuffle(items)
    require_one_each(items, await wire.score(items))


async def over_limit(wire: Wire) -> None:
    """One more than it takes."""
    most = limit(wire)
    if most > MOST_ITEMS:
        raise CheckSkipped(f"max_batch_size is {most}; batches above {MOST_ITEMS} aren't tried")
    refusal = await wire.refusal(wire.samples.items(most + 1))
    if refusal is None:
        raise CheckError(f"it took {most + 1} items, though max_batch_size is {most}")
    if refusal.code() is not grpc.StatusCode.INVALID_ARGUMENT:
        raise CheckError(f"{most + 1} items (max_batch_size is {most}) ended with {refusal.code().name}")


async def sample_ids(wire: Wire) -> None:
    """Ids that differ in one component only, zero, and large ones."""
    ids = [
        ids_pb2.SampleId(),
        ids_pb2.SampleId(data_epoch=1),
        ids_pb2.SampleId(position=1),
        ids_pb2.SampleId(k=1),
        ids_pb2.SampleId(attempt=1),
        ids_pb2.SampleId(data_epoch=2**31, position=2**53 + 1, k=2**40 + 3, attempt=2**32 + 1),
    ]
    for first in range(0, len(ids), limit(wire)):
        items = []
        for sample in ids[first : first + limit(wire)]:
            items.append(wire.samples.item(0))
            items[-1].sample_id.CopyFrom(sample)
        asked = {sample_id_from_pb(item.sample_id) for item in items}
        wrong = by_id(await wire.score(items)).keys() ^ asked
        if wrong:
            got = ", ".join(map(str, sorted(wrong - asked))) or "no result"
            raise CheckError(f"sample {min(wrong & asked, default='')} came back as {got}")


async def order(wire: Wire) -> None:
    """The same items forwards, backwards and one by one."""
    if not wire.comparable:
        raise CheckSkipped("its outcomes can't be compared")
    items = wire.samples.items(min(limit(wire), 6))
    forwards = await wire.outcomes(items)
    backwards = await wire.outcomes(items[::-1])
    for item in items:
        sample = sample_id_from_pb(item.sample_id)
        alone = (await wire.outcomes([item])).get(sample)
        if forwards.get(sample) != alone or backwards.get(sample) != alone:
            raise CheckError(f"sample {sample} has one outcome alone and another one in a batch of {len(items)}")


async def counts(wire: Wire) -> None:
    """Each count against the results; all at 0 means that the server doesn't count."""
    response = await wire.score([*wire.samples.items(min(limit(wire), 4))])
    said = (response.scored_count, response.abstained_count, response.failed_count)
    kinds = [result.WhichOneof("outcome") for result in response.results]
    real = tuple(kinds.count(kind) for kind in ("scored", "abstained", "failed"))
    if any(said) and said != real:
        raise CheckError(f"scored, abstained and failed counts are {said}, the results are {real}")
