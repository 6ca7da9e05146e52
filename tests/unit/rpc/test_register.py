"""A service registers once etcd answers: at a busy start a first connection may fail, and etcd be away for minutes."""

from __future__ import annotations

from typing import Any

import pytest

from argosy.membership.memory import MemoryMembership
from argosy.rpc import etcd_wait
from argosy.rpc.etcd_wait import once_etcd_answers
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


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_wait, "_RETRY_S", 0.001)


async def test_a_first_connection_that_fails_is_no_end(caplog: pytest.LogCaptureFixture) -> None:
    membership = Late(30)
    registration = await once_etcd_answers(lambda: membership.register(MEMBER), "register", 60.0)
    assert registration.member.member_id == "rollout-0"
    assert 1 <= caplog.text.count("can't register yet") < 15, "it is told, and not each time"
    await membership.close()


async def test_an_etcd_that_never_answers_is_an_error_in_the_end() -> None:
    membership = Late(10**9)
    with pytest.raises(UnavailableError, match="handshaker"):
        await once_etcd_answers(lambda: membership.register(MEMBER), "register", 0.05)
