"""A sync that fails, and then can't resume its server either: the server is held no longer."""

from __future__ import annotations

import types
from typing import Any, cast

import pytest

from argosy.controller.stages.dispatch import Places
from argosy.controller.stages.phases import Deadline
from argosy.controller.stages.swaps import Swap
from argosy.types.errors import InternalError, UnavailableError


@pytest.mark.parametrize("answer", [InternalError("dying"), RuntimeError("a bug")])
async def test_failed_resume_after_a_failed_sync_leaves_no_hold(answer: Exception) -> None:
    places = Places(lambda: ["a"], lambda _: 1, lambda _: True)
    given_up: list[str] = []

    class Server:
        async def pause(self, mode: str, ctx: object) -> None:
            return

        async def resume(self, ctx: object) -> None:
            raise answer

    rollout = types.SimpleNamespace(
        singles=types.SimpleNamespace(places=places, interrupt=lambda _: None), give_up=given_up.append
    )
    ctx = types.SimpleNamespace(
        services=types.SimpleNamespace(rollouts={"a": Server()}),
        config=types.SimpleNamespace(
            argosy=types.SimpleNamespace(weight_sync=types.SimpleNamespace(while_generating="abort"))
        ),
        mutation=lambda *names: names,
    )
    expected = UnavailableError if isinstance(answer, InternalError) else RuntimeError

    async def sync() -> None:
        async with Swap(cast(Any, ctx), cast(Any, rollout), "a", ("s", 1)) as swap:
            await swap.settle(Deadline(20))
            assert places.is_held("a")
            raise UnavailableError("the transfer broke")

    with pytest.raises(expected):  # what failed first, unless there is a bug
        await sync()
    assert not places.is_held("a")
    assert given_up == ["a"]
