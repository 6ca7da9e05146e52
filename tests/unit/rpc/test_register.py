"""A service registers once etcd answers: at a busy start the first connection may fail."""

from __future__ import annotations

from typing import Any, cast

import pytest

from argosy.membership.memory import MemoryMembership
from argosy.rpc import host
from argosy.types.errors import UnavailableError
from argosy.types.records import Member

MEMBER = Member("rollout-0", "rollout", "h:1", "x")


class Late(MemoryMembership):
    """Fails so many calls first."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    async def register(self, member: Member) -> Any:
        if self.failures > 0:
            self.failures -= 1
            raise UnavailableError("tcp handshaker shutdown")
        return await super().register(member)


async def test_a_first_connection_that_fails_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_REPORT_S", 0.001)
    membership = Late(3)
    registration = await host._register(cast(Any, membership), MEMBER)
    assert registration.member.member_id == "rollout-0"
    await membership.close()


async def test_an_etcd_that_never_answers_is_an_error_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_REPORT_S", 0.001)
    monkeypatch.setattr(host, "_REGISTER_S", 0.05)
    with pytest.raises(UnavailableError, match="handshaker"):
        await host._register(cast(Any, Late(10**9)), MEMBER)
