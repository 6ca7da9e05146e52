"""Ranks that don't come together at the start are told within its bound, with where each of them is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from argosy.trainer.backends import fsdp, fsdp_model, make_backend
from argosy.trainer.options import TrainerOptions
from argosy.trainer.parallel.mesh import ParallelOptions, make_mesh
from argosy.trainer.ranks import rendezvous
from argosy.trainer.ranks.group import END_WITHIN_S
from argosy.trainer.ranks.process import RankProcess
from argosy.types.errors import InternalError
from support.freezing import freeze
from support.rank_program import PROGRAM
from support.ranks import run_ranks
from support.training import options_for

pytestmark = pytest.mark.xdist_group("ranks")

START_S = 4.0
SLACK_S = 5.0


def options_of_two(folder: Path) -> TrainerOptions:
    return options_for(folder, backend="fsdp", parallel=ParallelOptions(world_size=2), threads=1)


def test_ranks_in_different_collectives_are_told_apart_from_slow_ones(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of a trainer that is gone took part in this one's group: both ranks waited, for ten minutes."""
    spread, began = fsdp_model.spread, 0.0

    def beside_a_stranger(*arguments: Any) -> Any:
        nonlocal began
        began = time.monotonic()
        distributed.all_reduce(torch.ones(()))
        return spread(*arguments)

    monkeypatch.setattr(fsdp, "spread", beside_a_stranger)
    monkeypatch.setattr(rendezvous, "START_S", START_S)
    options = options_of_two(tiny_folder)
    with pytest.raises(InternalError, match=r"trainer rank \d failed in start") as caught:
        make_backend(options)
    assert time.monotonic() - began < START_S + END_WITHIN_S + SLACK_S < options.rank_timeout_s
    assert not distributed.is_initialized(), "the next trainer can start"
    told = str(caught.value)
    assert "in beside_a_stranger" in told, "where rank 0 was"
    assert "in _send" in told, "where rank 1 was"


def test_a_stopped_rank_does_not_say_where_it_is() -> None:
    rank = RankProcess(1, PROGRAM, {})
    try:
        freeze(rank.pid)
        assert rank.whereabouts() == "rank 1 doesn't say where it is: it is stopped, or gets no processor"
    finally:
        rank.kill()
        rank.wait(SLACK_S)
        rank.close()


def timeouts(rank_timeout_s: float) -> list[float]:
    mesh = make_mesh(ParallelOptions(world_size=4, tensor_parallel=2), timeout_s=rank_timeout_s)
    groups = mesh.get_all_groups()
    return [group._get_backend(torch.device("cpu")).options._timeout.total_seconds() for group in groups]


def test_groups_of_a_mesh_have_the_ranks_timeout() -> None:
    """PyTorch gives new groups half an hour, whatever the default group has."""
    assert run_ranks(4, timeouts, 33.0) == [[33.0] * 3] * 4
