from __future__ import annotations

import pytest

from support.toy import ToyJob, make_toy_job


@pytest.fixture(scope="module")
def toy_job(tmp_path_factory: pytest.TempPathFactory) -> ToyJob:
    """A folder of each module's own: run names need only be unique within it, also where a worker comes back to it."""
    return make_toy_job(tmp_path_factory.mktemp("toy"))
