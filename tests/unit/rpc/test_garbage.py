"""Full collections while a program starts."""

from __future__ import annotations

import gc

import pytest

from argosy.rpc.garbage import no_full_collections


def full_collections() -> int:
    return int(gc.get_stats()[2]["collections"])


def test_there_are_none_in_the_block_and_all_is_as_before_after_it() -> None:
    usual = gc.get_threshold()
    gc.collect()
    before = full_collections()
    with no_full_collections():
        kept: list[list[int]] = [[] for _ in range(300_000)]
        assert full_collections() == before
    assert gc.get_threshold() == usual
    more: list[list[int]] = [[] for _ in range(600_000)]
    assert full_collections() > before
    assert len(kept) + len(more) == 900_000


def test_a_start_that_fails_leaves_the_collector_as_it_was() -> None:
    usual = gc.get_threshold()
    with pytest.raises(KeyError, match="start"), no_full_collections():
        raise KeyError("start")
    assert gc.get_threshold() == usual
