from __future__ import annotations

import pytest

from support.toy import ToyJob, make_toy_job


@pytest.fixture(scope="session")
def toy_job(tmp_path_factory: pytest.TempPathFactory) -> ToyJob:
    return make_toy_job(tmp_path_factory.mktemp("toy"))
