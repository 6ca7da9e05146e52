"""Resume of session tasks with another number of samples per prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from argosy.config import Config
from argosy.controller.groups import Ticket
from argosy.controller.openai.source import SessionSource
from argosy.types.ids import GroupId
from support.openai_endpoint import served


@pytest.mark.parametrize(("before", "now"), [(2, 4), (4, 2), (2, 2)])
async def test_groups_of_another_size_are_dropped(agent_job: Config, tmp_path: Path, before: int, now: int) -> None:
    group, ticket = GroupId(0, 0), Ticket(1, 0)
    state: dict[str, Any] = {"own_tasks": 0, "n": before, "groups": [{"group": str(group), "admitted_step": 0}]}
    async with served(agent_job.with_values({"actor_rollout_ref.rollout.n": now}), tmp_path) as up:
        source = SessionSource(up.ctx, up.source._sampler, up.tokenizer)
        source.restore(state, lambda group, step: ticket)
        assert source.state()["n"] == now
        assert len(source.open_groups()) == (before == now)
        lost = [len(samples) for _, samples, _ in source._lost]
        assert lost == ([] if before == now else [before]), "the books hold as many as there were"
