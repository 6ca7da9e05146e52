"""Member records as JSON text, the form in which they lie in the store."""

from __future__ import annotations

import json
from typing import Any

from argosy.types.errors import CorruptDataError
from argosy.types.ids import PolicyVersion
from argosy.types.records import Member, MemberState


def encode_member(member: Member) -> str:
    """One line of JSON, keys sorted.

    >>> decode_member(encode_member(Member("reward-0", "reward", "127.0.0.1:7", "ab"))).address
    '127.0.0.1:7'
    """
    version = member.version
    return json.dumps(
        {
            "member_id": member.member_id,
            "role": member.role,
            "address": member.address,
            "incarnation": member.incarnation,
            "pool": member.pool,
            "engine": member.engine,
            "capabilities": dict(member.capabilities),
            "state": member.state.value,
            "version": None
            if version is None
            else {"lineage": version.lineage, "step": version.step, "digest": version.digest},
        },
        sort_keys=True,
    )


def decode_member(text: str | bytes) -> Member:
    """Read back what `encode_member` wrote; unknown keys of a newer writer are passed over.

    Raises CorruptDataError when the text is no member record.
    """
    try:
        record: dict[str, Any] = json.loads(text)
        version = record["version"]
        return Member(
            member_id=record["member_id"],
            role=record["role"],
            address=record["address"],
            incarnation=record["incarnation"],
            pool=record["pool"],
            engine=record["engine"],
            capabilities=record["capabilities"],
            state=MemberState(record["state"]),
            version=None if version is None else PolicyVersion(version["lineage"], version["step"], version["digest"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(f"membership holds a record that is no member: {text!r} ({error})") from error
