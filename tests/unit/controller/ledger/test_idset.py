from __future__ import annotations

import random

import pytest

from argosy.controller.ledger.idset import IdSet
from argosy.types.ids import SampleId


def test_it_is_a_set_whatever_the_order() -> None:
    random_source = random.Random(7)
    every = [SampleId(epoch, position, k) for epoch in range(2) for position in range(30) for k in range(3)]
    for _ in range(50):
        chosen = random_source.choices(every, k=random_source.randrange(len(every)))
        ids, plain_set = IdSet(), set()
        for sample in chosen:
            assert ids.add(sample) == (sample not in plain_set)
            plain_set.add(sample)
        assert [sample in ids for sample in every] == [sample in plain_set for sample in every]
        assert (len(ids), set(ids)) == (len(plain_set), plain_set)
        assert IdSet.from_plain(ids.plain()) == ids == IdSet(plain_set)


def test_a_long_run_stays_small() -> None:
    ids = IdSet(SampleId(0, position, k) for position in range(5000) for k in range(8))
    assert ids.plain() == [[0, [[k, 0] for k in range(8)], [0, 5000]]]


@pytest.mark.parametrize("bounds", [[3, 1], [0, 2, 1], [0, 2, 2, 4], [1, 1]])
def test_damaged_ranges_are_refused(bounds: list[int]) -> None:
    with pytest.raises(ValueError, match="ascending pairs"):
        IdSet.from_plain([[0, [[0, 0]], bounds]])
