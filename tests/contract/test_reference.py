"""The reference role: the frozen model itself, and its client behind a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from argosy.modeling.loading import ModelSource
from argosy.reference.core import ReferenceModel, ReferenceOptions
from argosy.types.errors import DeadlineError, InvalidInputError
from contract.batches import batch_of
from contract.forms import DEADLINE_S, Form

COLUMNS = ("log_probs", "entropy", "sum_pi_squared")


@pytest.fixture
def core(tiny: Path) -> Iterator[ReferenceModel]:
    model = ReferenceModel(ReferenceOptions(model=ModelSource(path=str(tiny)), threads=1))
    yield model
    model.close()


async def test_the_same_numbers_matched_by_id(form: Form, core: ReferenceModel) -> None:
    reference = await form.reference(core)
    batch = batch_of(40)
    expected = await core.compute_log_probs(batch, COLUMNS, temperature=1.3, deadline_s=DEADLINE_S)
    order = np.random.default_rng(0).permutation(len(batch))
    answer = await reference.compute_log_probs(batch.select(order), COLUMNS, temperature=1.3, deadline_s=DEADLINE_S)
    assert sorted(answer.sample_ids) == sorted(batch.sample_ids)
    for column in COLUMNS:
        wanted = dict(zip(expected.sample_ids, expected.ragged(column), strict=True))
        for sample, values in zip(answer.sample_ids, answer.ragged(column), strict=True):
            np.testing.assert_allclose(values, wanted[sample], atol=1e-6)
            assert len(values) == len(wanted[sample]) > 0


async def test_the_columns_asked_for_come_and_the_response_stays(form: Form, core: ReferenceModel) -> None:
    reference = await form.reference(core)
    batch = batch_of(advantages=False)
    answer = await reference.compute_log_probs(batch, ("entropy",), temperature=1.0, deadline_s=DEADLINE_S)
    assert answer.has("entropy")
    assert not answer.has("log_probs")
    rows = dict(zip(batch.sample_ids, batch.ragged("response_ids"), strict=True))
    for sample, ids in zip(answer.sample_ids, answer.ragged("response_ids"), strict=True):
        assert ids.tolist() == rows[sample].tolist()


@pytest.mark.parametrize(
    ("columns", "temperature"), [((), 1.0), (("nonsense",), 1.0), (("log_probs",), 0.0), (("log_probs",), -2.0)]
)
async def test_bad_calls_are_refused(
    form: Form, core: ReferenceModel, columns: tuple[str, ...], temperature: float
) -> None:
    reference = await form.reference(core)
    with pytest.raises(InvalidInputError):
        await reference.compute_log_probs(batch_of(), columns, temperature=temperature, deadline_s=DEADLINE_S)


async def test_a_token_outside_the_vocabulary_is_refused(form: Form, core: ReferenceModel) -> None:
    from argosy.types.batch import TrajectoryBatch

    reference = await form.reference(core)
    bad = TrajectoryBatch.build(batch_of(1).sample_ids, [[1, 2]], [[3, 70_000]])
    with pytest.raises(InvalidInputError):
        await reference.compute_log_probs(bad, ("log_probs",), temperature=1.0, deadline_s=DEADLINE_S)


async def test_a_deadline_that_has_passed(form: Form, core: ReferenceModel) -> None:
    reference = await form.reference(core)
    with pytest.raises(DeadlineError):
        await reference.compute_log_probs(batch_of(300), COLUMNS, temperature=1.0, deadline_s=0.001)
