"""Odd texts, truths and JSON: none may end the call, none may spoil its neighbour."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from argosy.api.reward.v1 import reward_service_pb2 as pb
from argosy.reward.conformance.checks.batches import limit, require_one_each
from argosy.reward.conformance.findings import CheckError
from argosy.reward.conformance.wire import Outcome, Wire, shown
from argosy.rpc.codec.common import sample_id_from_pb

LONG_BYTES = 1 << 20


async def empty_response(wire: Wire) -> None:
    """Nothing, and blanks."""
    await _odd(wire, [{"response_text": text} for text in ("", " ", "\n\n")])


async def unicode(wire: Wire) -> None:
    """Two to four bytes a character, combined ones, right to left; long, so that a cut would fall inside one."""
    texts = ["é", "答えは四", "𝟜 😀", "a\u0301\u200d👩‍👩‍👧", "\u202eארבע", "\ufeff4\u00a0", "\U0010ffff"]
    long = [f"{'x' * shift}\\boxed{{{'𝔸' * 3000}}}\n#### {'答' * 3000}" for shift in range(4)]
    await _odd(wire, [{"response_text": text} for text in (*texts, *long)])
    await _odd(wire, [{"prompt_text": "𝔸" * 3000, "ground_truth_text": "𝔸" * 3000, "response_text": "𝔸"}])


async def control_characters(wire: Wire) -> None:
    """NUL first, in the middle, last; the other control characters; line ends of all kinds."""
    texts = ["\0", "4\0", "\0\0#### 4", "".join(map(chr, range(32))) + "\x7f\x85\u2028", "4\r\n\r4"]
    await _odd(wire, [{"response_text": text} for text in texts])


async def long_response(wire: Wire) -> None:
    """Without structure, and with a lot of what scorers look for."""
    texts = ["x" * LONG_BYTES, "\\boxed{" * (LONG_BYTES // 7), "1," * (LONG_BYTES // 2)]
    for text in texts:
        await _odd(wire, [{"response_text": text}])


async def ground_truth(wire: Wire) -> None:
    """Every kind of truth."""
    json_values = ("null", "4", "-1.5e3", "true", '""', '"4"', "[]", '["4", "four"]', '{"a": [null, {"b": "𝔸"}]}')
    changes: list[dict[str, str]] = [{"ground_truth_text": text} for text in ("", " ", "4", "null", "𝔸")]
    await _odd(wire, [*changes, *({"ground_truth_json": text} for text in json_values)])
    item = wire.samples.item(0)
    item.ClearField("ground_truth")
    require_one_each([item], await wire.score([item]))


async def extra_info(wire: Wire) -> None:
    """Empty, an empty object, and objects with everything; the first two are the same."""
    texts = ('{"a": {"b": [1, 2.5, null, true, "𝔸\\u0000"]}, "": 0}', '{"n": 12345678901234567890}')
    await _odd(wire, [{"extra_info_json": text} for text in texts])
    if not wire.comparable:
        return
    first, second = [await _only(wire, wire.samples.item(0, extra_info_json=text)) for text in ("", "{}")]
    if first != second:
        raise CheckError(f'the empty extra_info_json gives {first}, "{{}}" gives {second}')


async def broken_json(wire: Wire) -> None:
    """Half a document, a list where an object belongs, depth."""
    changes = [
        {"extra_info_json": "{"},
        {"extra_info_json": "[1]"},
        {"ground_truth_json": '{"a": '},
        {"ground_truth_json": ""},
        {"ground_truth_json": "[" * 20_000},
    ]
    for change in changes:
        item = wire.samples.item(0, **change)
        refusal = await wire.refusal([item])
        what = next(f"{name} = {text[:20]!r}" for name, text in change.items())
        if refusal is not None and refusal.code() is not grpc.StatusCode.INVALID_ARGUMENT:
            raise CheckError(f"{what} ended the call with {refusal.code().name}: {(refusal.details() or '')[:200]}")


async def _odd(wire: Wire, changes: Sequence[dict[str, str]]) -> None:
    """Send items with changed fields and an ordinary one; each has an outcome, and the ordinary one its usual one."""
    ordinary = wire.samples.item(0)
    usual = await _only(wire, ordinary)
    room = max(1, limit(wire) - 1)
    for first in range(0, len(changes), room):
        part = [wire.samples.item(number + 2, **change) for number, change in enumerate(changes[first : first + room])]
        items = [ordinary, *part][: limit(wire)] if limit(wire) > 1 else part
        response = await wire.score(items)
        for result in response.results:
            if result.WhichOneof("outcome") is None:
                raise CheckError(f"the result of {changes[first + result.sample_id.position - 2]} has no outcome")
        found = {sample_id_from_pb(result.sample_id) for result in response.results}
        for item in items:
            if sample_id_from_pb(item.sample_id) not in found:
                raise CheckError(f"an item has no result: {_short(item)}")
        for result in response.results:
            same = result.sample_id != ordinary.sample_id or Outcome(result) == usual
            if not same and wire.comparable:
                raise CheckError(f"an ordinary item beside it got {shown(result)}, alone {usual}")


async def _only(wire: Wire, item: pb.ScoreItem) -> Outcome | None:
    return next((Outcome(result) for result in (await wire.score([item])).results), None)


def _short(item: pb.ScoreItem) -> str:
    truth = item.WhichOneof("ground_truth")
    return f"response {item.response_text[:30]!r}, ground truth {getattr(item, truth)[:30]!r}" if truth else "no truth"
