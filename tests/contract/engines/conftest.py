"""Every engine behind a real server process: started once, given back by each test as it was."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from argosy.modeling.tiny import save_tiny_model
from argosy.roles.rollout import Rollout
from argosy.rpc.clients.rollout import RolloutClient
from argosy.types.ids import PolicyVersion
from argosy.weightsync import Snapshot, find_tied
from contract.engines.served import Served, greedy_ids, missing, serving, sync
from contract.forms import Form

ENGINES = [
    "hf",
    "simulated",
    *(
        pytest.param(name, marks=[pytest.mark.engine, pytest.mark.timeout(600), pytest.mark.xdist_group(name)])
        for name in ("vllm", "sglang")
    ),
]
"""One real server each serves all tests of a worker process, so the tests of one engine go to one worker."""


@dataclasses.dataclass(frozen=True)
class Model:
    """A tiny model with two end tokens, one of which it says, and tied embeddings with a redundant head in its file."""

    path: Path
    prompt: tuple[int, ...]
    """A prompt whose greedy answer has the end token `eos` as token `eos_at`, and not before."""
    greedy: tuple[int, ...]
    """What it says to the prompt."""
    eos: int
    eos_at: int


def save(folder: Path, seed: int, *, tied: bool = True) -> Path:
    return save_tiny_model(folder, seed=seed, hidden_size=128, weight_scale=4.0, tied=tied)


def add_redundant_head(folder: Path) -> None:
    """What some tools write: the head beside the embedding that it is tied to (its flag in the config)."""
    from safetensors.torch import load_file, save_file

    state = load_file(folder / "model.safetensors")
    state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is True


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = save(tmp_path_factory.mktemp("engine-model") / "model", seed=1)
    add_redundant_head(folder)
    for last in range(50, 80):
        prompt = (1, 40, 41, 42, last)
        greedy = greedy_ids(folder, prompt, 10)
        for place in range(3, 8):
            if greedy[place] not in greedy[:place] and greedy[place] > 2:
                (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, greedy[place]]}))
                return Model(folder, prompt, tuple(greedy), greedy[place], place)
    raise AssertionError("no prompt with a late new token")


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Weights of the same architecture."""
    import torch
    from transformers import AutoModelForCausalLM

    folder = save(tmp_path_factory.mktemp("engine-other") / "model", seed=2)
    state: dict[str, Any] = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    return state


@pytest.fixture(scope="session", params=ENGINES)
def served(request: pytest.FixtureRequest, model: Model) -> Iterator[Served]:
    reason = missing(request.param)
    if reason:
        pytest.skip(reason)
    with serving(request.param, model.path) as found:
        yield found


@pytest.fixture
async def rollout(served: Served) -> AsyncIterator[RolloutClient]:
    client = RolloutClient(served.address)
    yield client
    await client.close()


class Weights:
    """Gives a server new weights, and its own back at the end."""

    def __init__(self, rollout: Rollout, form: Form, base: dict[str, Any]) -> None:
        self._rollout = rollout
        self._form = form
        self._base = base
        self._step = 0

    async def set(self, state: dict[str, Any]) -> PolicyVersion:
        snapshot, source = await self.offer(state)
        return await sync(self._rollout, source, snapshot.manifest)

    async def offer(self, state: dict[str, Any]) -> tuple[Snapshot, Any]:
        self._step += 1
        snapshot = Snapshot.freeze("main", self._step, state, find_tied(state))
        return snapshot, await self._form.source(snapshot)

    async def restore(self) -> None:
        if self._step:
            await self.set(self._base)


@pytest.fixture
async def weights(served: Served, rollout: RolloutClient, grpc_form: Form) -> AsyncIterator[Weights]:
    found = Weights(rollout, grpc_form, weights_of(served.model))
    yield found
    await found.restore()


def weights_of(folder: Path) -> dict[str, Any]:
    """A folder's state dict, tied names sharing memory."""
    import torch
    from transformers import AutoModelForCausalLM

    state: dict[str, Any] = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    return state


@asynccontextmanager
async def client_of(served: Served) -> AsyncIterator[RolloutClient]:
    """For servers that a test starts itself."""
    client = RolloutClient(served.address)
    try:
        yield client
    finally:
        await client.close()
