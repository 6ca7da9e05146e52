"""Weights that are spread over ranks are published one by one: no rank holds all of them beside the snapshot."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from argosy.trainer.backends import make_backend
from argosy.trainer.options import LoraOptions
from argosy.trainer.parallel.mesh import ParallelOptions
from argosy.trainer.source import PublishedWeights
from argosy.types.records import WeightsForm
from argosy.weightsync import Snapshot
from support.training import options_for

pytestmark = pytest.mark.xdist_group("gathering-ranks")


@pytest.fixture(scope="module", params=[None, LoraOptions(rank=4, alpha=8)], ids=["plain", "lora"])
def two_ranks(tiny_folder: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    parallel = ParallelOptions(world_size=2)
    backend = make_backend(options_for(tiny_folder, lora=request.param, backend="fsdp", parallel=parallel, threads=1))
    yield backend
    backend.close()


def test_what_is_gathered_one_by_one_is_what_is_gathered_at_once(two_ranks: Any) -> None:
    weights, tied = two_ranks.weights()
    at_once = Snapshot.freeze("main", 1, weights, tied)
    manifest = PublishedWeights().publish(two_ranks, "main", 1, WeightsForm.MERGED, 1)
    assert manifest.version == at_once.manifest.version
    assert {spec.name for spec in manifest.tensors} == {spec.name for spec in at_once.manifest.tensors}


def test_no_rank_holds_the_whole_model_twice(two_ranks: Any) -> None:
    """The tensor before may linger until the next is there, none of those before it."""
    given: list[weakref.ref[Tensor]] = []
    most = 0

    def put(name: str, tensor: Tensor) -> None:
        nonlocal most
        given.append(weakref.ref(tensor))
        most = max(most, sum(one() is not None for one in given))

    two_ranks.weights_into(put)
    assert len(given) == len(two_ranks.weight_forms()[0]) > 10
    assert most <= 2
