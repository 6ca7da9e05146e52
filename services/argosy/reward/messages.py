"""What the pool and its workers say to each other: one JSON object a line, over a pair of pipes of their own.

JSON, because what a reward function returns must never be unpickled here. Standard input and output are not used, so
that a function that prints can't disturb the protocol.

    pool → worker   {"custom": {…} | null, "sandbox": {…}, "memory_limit_bytes": n, …}     once
                    {"id": n, "samples": [{"data_source": …, "response_text": …, "ground_truth": …, …}, …],
                     "quota_s": processor seconds | null, "allowed_s": seconds on the clock}
    worker → pool   {"ready": true, "traits": {…}} | {"error": "why it can't start"}       once; traits: `calling`
                    {"loading": true}, {"loading": false}                                  around a slow import
                    {"id": n, "outcomes": [{"kind": "scored" | "abstained" | "failed", …}, …], "used_s": …}
                    {"id": n, "put_aside": true}                                           it exceeds its quota
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from argosy.types.records import Abstained, Failed, Outcome, Scored

MOST_REQUEST_BYTES = 32 * 1024 * 1024
MOST_REPLY_BYTES = 4 * 1024 * 1024
"""A longer reply ends the worker: nothing that a function returns may fill our memory."""


def encode(message: Mapping[str, Any]) -> bytes:
    """One line. Arrays and numpy scalars from a Parquet row become lists and numbers, other objects their text."""
    return json.dumps(message, default=_plain).encode("ascii") + b"\n"


def with_limits(line: bytes, *, quota_s: float | None, allowed_s: float) -> bytes:
    """A request's line with what it may take: encoded once, sent as often as need be."""
    limits = json.dumps({"quota_s": quota_s, "allowed_s": allowed_s})
    return line[:-2] + b", " + limits[1:].encode("ascii") + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """Read one line back. Raises ValueError if it is no JSON object."""
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError(f"expected a JSON object, got {type(message).__name__}")
    return message


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """An outcome as plain data."""
    if isinstance(outcome, Scored):
        tokens = {"token_scores": outcome.token_scores} if outcome.token_scores else {}
        return {"kind": "scored", "score": outcome.score, "parts": dict(outcome.parts), **tokens}
    if isinstance(outcome, Abstained):
        return {"kind": "abstained", "reason": outcome.reason}
    return {"kind": "failed", "reason": outcome.reason, "message": outcome.message}


def outcome_from_json(data: Mapping[str, Any]) -> Outcome:
    """Read it back, and check it: a worker runs code that we don't know. Raises ValueError, KeyError or TypeError."""
    kind = data["kind"]
    if kind == "abstained":
        return Abstained(str(data["reason"]))
    if kind == "failed":
        return Failed(str(data["reason"]), str(data["message"]))
    if kind != "scored":
        raise ValueError(f"unknown kind of outcome {kind!r}")
    score, *token_scores = map(float, (data["score"], *data.get("token_scores", ())))
    if not all(map(math.isfinite, (score, *token_scores))):
        raise ValueError(f"the score is {score}, its tokens' are {token_scores[:10]}")
    parts = {str(name): _part(value) for name, value in dict(data["parts"]).items()}
    return Scored(score, parts, tuple(token_scores))


def _part(value: Any) -> float | str | bool:
    if isinstance(value, bool | str):
        return value
    return float(value)


def _plain(value: Any) -> Any:
    for method in ("tolist", "item", "isoformat"):
        if hasattr(value, method):
            return getattr(value, method)()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return repr(value)
