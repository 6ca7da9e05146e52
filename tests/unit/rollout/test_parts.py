"""The engine's small parts, each alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from argosy.rollout.engines.hf.prefixes import PrefixStore
from argosy.rollout.engines.hf.scheduler import Scheduler
from argosy.rollout.engines.hf.slots import SlotCache
from argosy.rollout.engines.sampling.sample import Sample
from argosy.types.errors import OverloadedError
from unit.rollout.support import request


def sample(k: int, length: int = 5) -> Sample:
    return Sample(
        request(k, prompt=tuple(range(length))),
        stop_ids=frozenset(),
        stops=None,
        max_model_len=99,
        deliver=lambda event: None,
    )


def scheduler(slot_count: int = 3, max_waiting: int = 100, deterministic: bool = False) -> Scheduler:
    return Scheduler(slot_count=slot_count, max_waiting=max_waiting, deterministic=deterministic)


def admit(queue: Scheduler, budget: int = 1000) -> list[int]:
    return [s.request.sample_id.k for s in queue.admit(budget, lambda s: len(s.prefix))]


def test_admits_in_order_within_slots_and_budget() -> None:
    queue = scheduler()
    queue.add([sample(k, length=11) for k in range(5)])
    assert admit(queue, budget=20) == [0, 1]
    assert admit(queue, budget=5) == []
    assert queue.next is not None  # it stays the next one: pieces of its prefill make it cheaper
    assert queue.next.request.sample_id.k == 2
    assert admit(queue) == [2]
    assert queue.next is None  # no slot
    assert admit(queue) == []
    assert [s.slot for s in queue.running] == [0, 1, 2]


def test_release_leaves_no_hole() -> None:
    queue = scheduler()
    queue.add([sample(k) for k in range(3)])
    admit(queue)
    first, second, last = queue.running
    assert queue.release(first) is last
    assert last.slot == 0
    assert queue.release(second) is None
    assert queue.running == [last]
    assert queue.release(last) is None


def test_preempted_samples_come_first_again_in_order() -> None:
    queue = scheduler()
    queue.add([sample(k) for k in range(4)])
    admit(queue)
    queue.preempt()
    assert len(queue) == 4
    assert admit(queue) == [0, 1, 2]


def test_room_counts_free_slots() -> None:
    queue = scheduler(slot_count=2, max_waiting=1)
    queue.add([sample(k) for k in range(3)])
    with pytest.raises(OverloadedError, match="2 samples don't fit"):
        queue.add([sample(k) for k in range(3, 5)])
    assert len(queue) == 3


def test_deterministic_cohorts_do_not_mix() -> None:
    queue = scheduler(slot_count=4, deterministic=True)
    queue.add([sample(2), sample(0)])
    queue.add([sample(1)])
    assert admit(queue) == [0, 2]
    assert admit(queue) == []
    for running in list(queue.running):
        queue.release(running)
    assert admit(queue) == [1]


def test_prefix_store_is_bounded_and_forgets_the_oldest() -> None:
    store = PrefixStore(10)
    entry = torch.zeros(1)
    store.put((1, 2, 3, 4), entry)
    store.put((5, 6, 7, 8), entry)
    assert store.get((1, 2, 3, 4)) is entry  # now the youngest
    store.put((9, 9, 9), entry)
    assert store.get((5, 6, 7, 8)) is None
    assert store.get((1, 2, 3, 4)) is entry
    assert store.token_count == 7
    store.put(tuple(range(11)), entry)  # larger than everything: not kept
    assert store.token_count == 7
    store.clear()
    assert store.token_count == 0


def cache(capacity: int = 1000) -> SlotCache:
    return SlotCache(
        layer_count=2,
        slot_count=3,
        kv_head_count=2,
        head_size=4,
        max_model_len=capacity,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def test_growth_keeps_what_is_there() -> None:
    slots = cache()
    prefix = torch.randn(2, 2, 200, 2, 4)
    slots.reserve(200)
    slots.fill(1, prefix)
    slots.reserve(600)
    assert 600 <= slots.capacity <= 1000
    assert torch.equal(slots.data[:, :, 1, :200], prefix)
    slots.reserve(1000)
    assert slots.capacity == 1000
    slots.move(1, 0, 200)
    assert torch.equal(slots.data[:, :, 0, :200], prefix)


@given(st.lists(st.integers(1, 1000), max_size=20))
def test_capacity_is_enough_and_never_over_the_limit(lengths: list[int]) -> None:
    slots = cache()
    for length in lengths:
        slots.reserve(length)
        assert length <= slots.capacity <= 1000
