"""A server of models for each test that wants one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.model_server import ModelServer, model_server


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as running:
        yield running
