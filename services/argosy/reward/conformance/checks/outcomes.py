"""What stands in an outcome."""

from __future__ import annotations

import math
import secrets

from argosy.api.reward.v1 import reward_service_pb2 as pb
from argosy.reward.conformance.checks.batches import limit
from argosy.reward.conformance.findings import CheckError, CheckSkipped, CheckWarning
from argosy.reward.conformance.samples import concrete
from argosy.reward.conformance.wire import Wire, shown
from argosy.rpc.codec.common import sample_id_from_pb


async def well_formed(wire: Wire) -> None:
    """Right and wrong answers."""
    for result in (await wire.score(wire.samples.items(min(limit(wire), 8)))).results:
        require_well_formed(result)


def require_well_formed(result: pb.ScoreResult) -> None:
    """CheckError unless there is an outcome, and its score is a finite number."""
    kind = result.WhichOneof("outcome")
    sample = sample_id_from_pb(result.sample_id)
    if kind is None:
        raise CheckError(f"the result of sample {sample} has no outcome")
    if kind == "scored":
        if not result.scored.HasField("score"):
            raise CheckError(f"sample {sample} is scored without a score")
        for number in (result.scored.score, *result.scored.token_scores):
            if not math.isfinite(number):
                raise CheckError(f"sample {sample} has the score {number}")
    if kind == "failed" and not result.failed.reason:
        raise CheckError(f"sample {sample} failed without a reason", "set failed.reason to a short stable code")


async def judges(wire: Wire) -> None:
    """Something must be scored, or the other checks say little."""
    count = min(limit(wire), max(len(wire.samples.given), 8))
    results = (await wire.score(wire.samples.items(count))).results
    if not any(result.WhichOneof("outcome") == "scored" for result in results):
        first = shown(results[0]) if results else "no results"
        raise CheckWarning(f"none of {count} samples of {wire.samples.source()!r} was scored: {first}")


async def sample_scores(wire: Wire) -> None:
    """The user's samples, one by one."""
    given = [(number, sample) for number, sample in enumerate(wire.samples.given) if sample.score is not None]
    if not given:
        raise CheckSkipped("no sample with a score was given")
    for number, sample in given:
        for result in (await wire.score([wire.samples.item(number)])).results:
            scored = result.WhichOneof("outcome") == "scored"
            if not scored or not math.isclose(result.scored.score, sample.score or 0.0, rel_tol=1e-6, abs_tol=1e-9):
                raise CheckError(f"sample {number + 1} of the file should score {sample.score:g}, got {shown(result)}")


async def declared_sources(wire: Wire) -> None:
    """One item for each; "prefix/*" by a name that begins so."""
    numbered = list(enumerate(wire.samples.capabilities.data_sources))
    for first in range(0, len(numbered), limit(wire)):
        part = numbered[first : first + limit(wire)]
        items = [wire.samples.item(number, data_source=concrete(source)) for number, source in part]
        for result in (await wire.score(items)).results:
            if result.failed.reason == "unknown_data_source":
                index = result.sample_id.position
                raise CheckError(f"it declares {dict(numbered).get(index)!r} but says {shown(result)}")


async def unknown_source(wire: Wire) -> None:
    """A name that nobody has, beside an ordinary item."""
    if "*" in wire.samples.capabilities.data_sources:
        raise CheckSkipped("it judges any data source")
    name = f"no-such-source-{secrets.token_hex(4)}"
    items = [wire.samples.item(0, data_source=name), wire.samples.item(1)][: limit(wire)]
    for result in (await wire.score(items)).results:
        if result.sample_id.position == 0 and result.WhichOneof("outcome") != "failed":
            raise CheckError(f"data source {name!r} got {shown(result)}")
        if result.sample_id.position == 0 and result.failed.reason != "unknown_data_source":
            raise CheckWarning(f"its reason is {result.failed.reason!r} instead of 'unknown_data_source'")
        if result.sample_id.position == 1 and result.failed.reason == "unknown_data_source":
            raise CheckError(f"the item beside it, of {items[1].data_source!r}, is failed too")


async def parts(wire: Wire) -> None:
    """Kinds and names."""
    for result in (await wire.score(wire.samples.items(min(limit(wire), 8)))).results:
        for name, value in result.scored.parts.items():
            if not name:
                raise CheckError("a part has an empty name")
            if value.WhichOneof("value") is None:
                raise CheckError(f"part {name!r} has no value")
            if value.WhichOneof("value") == "number" and not math.isfinite(value.number):
                raise CheckError(f"part {name!r} is {value.number}")


async def token_scores(wire: Wire) -> None:
    """With ids of three lengths, whether or not it asks for them."""
    wanted = wire.samples.capabilities.needs_token_ids
    lengths = (7, 1, 30)
    items = [wire.samples.item(number) for number in range(len(lengths))][: limit(wire)]
    for item, length in zip(items, lengths, strict=False):
        del item.response_ids[:]
        item.response_ids.extend(number % wire.samples.vocabulary_size for number in range(length))
    for result in (await wire.score(items)).results:
        position, got = result.sample_id.position, len(result.scored.token_scores)
        if got and position < len(items) and got != len(items[position].response_ids):
            raise CheckError(f"{len(items[position].response_ids)} response ids have {got} token scores")
        if got and not wanted:
            raise CheckWarning(
                "it returns token_scores without asking for ids", "set needs_token_ids: else none are sent"
            )
