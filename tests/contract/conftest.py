"""One suite, two forms: a role is the core itself, or its client behind a real server on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from argosy.modeling.tiny import save_tiny_model
from contract.forms import Form, MakeRollout


@pytest.fixture(params=["core", "grpc"])
async def form(request: pytest.FixtureRequest) -> AsyncIterator[Form]:
    async with AsyncExitStack() as stack:
        yield Form(request.param, stack)


@pytest.fixture
async def grpc_form() -> AsyncIterator[Form]:
    """For what only the wire has: fencing, lost servers, retries."""
    async with AsyncExitStack() as stack:
        yield Form("grpc", stack)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tied tiny model whose outputs are far from uniform."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), seed=1, weight_scale=4.0)


@pytest.fixture(scope="session")
def other_tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same architecture with other weights."""
    return save_tiny_model(tmp_path_factory.mktemp("other"), seed=2, weight_scale=4.0)


@pytest.fixture
async def make_rollout(tiny: Path) -> AsyncIterator[MakeRollout]:
    """Real embedded engines, closed at the end of the test."""
    from argosy.rollout.core import HfRollout, HfRolloutOptions
    from argosy.text.tokenizer import load_tokenizer

    made: list[HfRollout] = []

    def make(path: Path = tiny, **options: Any) -> HfRollout:
        core = HfRollout(
            HfRolloutOptions(str(path), threads=1, **({"slot_count": 8} | options)), load_tokenizer(str(path)).decode
        )
        made.append(core)
        return core

    yield make
    for core in made:
        await core.close()


@pytest.fixture
async def rollout_core(make_rollout: MakeRollout) -> Any:
    return make_rollout()
