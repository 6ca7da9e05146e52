"""Several reference servers answer as one would: whole, in order, and without those that are away."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.controller.references import MIN_ROWS, References, split
from argosy.controller.roster import Roster
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import ArgosyError, InvalidInputError, UnavailableError
from argosy.types.ids import SampleId
from argosy.types.ragged import Ragged
from argosy.types.records import Member, MemberState


class Model:
    """The "log-prob" of a token is its id, negative."""

    def __init__(self, error: ArgosyError | None = None) -> None:
        self.error = error
        self.calls: list[int] = []

    async def compute_log_probs(
        self, batch: TrajectoryBatch, columns: Sequence[str], *, temperature: float, deadline_s: float
    ) -> TrajectoryBatch:
        self.calls.append(len(batch))
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        responses = batch.ragged("response_ids")
        answer = Ragged(-responses.values.astype(np.float32), responses.offsets)
        return TrajectoryBatch(batch.table.select(["sample_id", "response_ids"])).with_column("log_probs", answer)

    async def close(self) -> None:
        pass


def member(name: str, state: MemberState = MemberState.READY) -> Member:
    return Member(name, "reference", "127.0.0.1:4711", name, state=state)


def references(models: dict[str, Model], patience_s: float = 5.0) -> tuple[References, Roster[Model]]:
    roster: Roster[Model] = Roster("reference", lambda one: models[one.member_id], [member(name) for name in models])
    return References(roster, patience_s), roster


def batch(count: int = 40) -> TrajectoryBatch:
    """Rows of lengths 1, 2, 3, 1 …, the first token of each its number."""
    rows = [[number] * (1 + number % 3) for number in range(count)]
    return TrajectoryBatch.build([SampleId(0, n, 0) for n in range(count)], [[1, 2]] * count, rows)


async def answer_of(asked: References, rows: int = 40) -> list[int]:
    """The first value of each row, checked to be of the right sample."""
    whole = batch(rows)
    answer = await asked.compute_log_probs(whole, ["log_probs"], temperature=1.0, deadline_s=10)
    assert answer.sample_ids == whole.sample_ids
    return [-int(row[0]) for row in answer.ragged("log_probs")]


async def test_batch_is_shared_out_over_the_servers_and_comes_back_in_order() -> None:
    models = {"a": Model(), "b": Model(), "c": Model()}
    asked, _ = references(models)
    assert await answer_of(asked) == list(range(40))
    assert all(len(model.calls) == 1 and model.calls[0] >= MIN_ROWS for model in models.values())
    assert sum(model.calls[0] for model in models.values()) == 40


async def test_single_server_gets_the_batch_as_it_is() -> None:
    model = Model()
    asked, _ = references({"a": model})
    assert await answer_of(asked) == list(range(40))
    assert model.calls == [40]


async def test_case_d6_share_of_a_server_that_is_away_goes_to_the_others() -> None:
    models = {"a": Model(), "b": Model(UnavailableError("gone")), "c": Model()}
    asked, _ = references(models)
    assert await answer_of(asked) == list(range(40))
    assert len(models["b"].calls) == 1


async def test_wrong_request_is_nobody_elses_to_answer() -> None:
    other = Model()
    asked, _ = references({"a": Model(InvalidInputError("no such column")), "b": other})
    with pytest.raises(InvalidInputError, match="no such column"):
        await answer_of(asked)
    assert len(other.calls) <= 1


async def test_last_server_that_is_away_is_what_the_caller_hears_of() -> None:
    asked, _ = references({"a": Model(UnavailableError("a is gone")), "b": Model(UnavailableError("b is gone"))})
    with pytest.raises(UnavailableError, match="is gone"):
        await answer_of(asked)


async def test_call_waits_for_a_server_that_joins_and_not_for_ever() -> None:
    model = Model()
    asked, roster = references({"a": model})
    roster.update([member("a", MemberState.DRAINING)])
    waiting = asyncio.ensure_future(answer_of(asked))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    roster.update([member("a", MemberState.READY)])
    assert await waiting == list(range(40))
    nobody, roster = references({"a": Model()}, patience_s=0.05)
    roster.update([])
    with pytest.raises(UnavailableError, match="none has joined"):
        await answer_of(nobody)


@given(lengths=st.lists(st.integers(2, 500), min_size=1, max_size=80), count=st.integers(1, 9))
def test_shares_cover_all_rows_once_and_none_is_empty(lengths: list[int], count: int) -> None:
    parts = split(np.asarray(lengths), count)
    assert np.concatenate(parts).tolist() == list(range(len(lengths)))
    assert 1 <= len(parts) <= count
    assert all(len(part) for part in parts)
